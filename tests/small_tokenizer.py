"""A byte-level BPE of GLM's form, trained in a moment: 500 ids and the 36 added tokens."""

from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL_TEXTS = (
    "<|endoftext|> [MASK] [gMASK] [sMASK] <sop> <eop> <|system|> <|user|> <|assistant|> <|observation|> "
    "<|begin_of_image|> <|end_of_image|> <|begin_of_video|> <|end_of_video|> <|begin_of_audio|> <|end_of_audio|> "
    "<|begin_of_transcription|> <|end_of_transcription|>"
)
TAG_TEXTS = (
    "<|code_prefix|> <|code_middle|> <|code_suffix|> <think> </think> <tool_call> </tool_call> <tool_response> "
    "</tool_response> <arg_key> </arg_key> <arg_value> </arg_value> /nothink <|begin_of_box|> <|end_of_box|> "
    "<|image|> <|video|>"
)
SPECIAL = tuple(SPECIAL_TEXTS.split())
TAGS = tuple(TAG_TEXTS.split())
WORDS = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CORPUS = (
    "The weather in Paris is clear and the wind is light; the answer is four.\n\n",
    '{"city": "Paris", "days": 3, "tags": ["sun", "rain"], "metric": true}',
    "Reasoning Effort: Max. You may call one or more functions to assist with the user query.",
    "你好,世界。今天天气很好。 안녕하세요 éàü naïve café 🙂🙂 👩‍🚀",
    "<tool_call> and </think> are only text here, as <|user|> is. /nothink",
)


@cache
def small_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    return tokenizer


def write_small_tokenizer(folder: Path) -> Path:
    small_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def ids(text: str) -> tuple[int, ...]:
    """Ids of text with tags matched."""
    return tuple(small_tokenizer().encode(text).ids)


def tag(text: str) -> int:
    token_id = small_tokenizer().token_to_id(text)
    assert token_id is not None
    return token_id
