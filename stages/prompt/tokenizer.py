"""Text and segments to token ids, in batches that release the GIL.

Two tokenizers are built of one tokenizer.json: `matching` as it stands, for prompts that are raw text, and `plain`,
which knows no added token, for text inside a template's segments: `<|user|>` written by a user stays seven letters
and four signs there. A third, `rest`, is `plain` where a text begins that is not the prompt's first.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen
from tokenizers import Tokenizer

from stages.detokenizer.vocabulary import Vocabulary, vocabulary_of
from stages.errors import CheckpointError
from stages.prompt.segments import Control, Marked, Segment
from stages.tokenizer_file import TokenizerFile, read_tokenizer_file

TEXTS_AT_A_TIME = 256


@frozen(eq=False)
class PromptTokenizer:
    """Encodes prompts; not to be used by two threads at once."""

    matching: Tokenizer
    plain: Tokenizer
    rest: Tokenizer
    control_ids: Mapping[str, int]
    vocab_size: int
    # The way back: the same bytes the detokenizer makes answers of.
    vocabulary: Vocabulary

    def encode_texts(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[tuple[int, ...]]:
        """Encode raw texts with added tokens matched, giving each one's ids."""
        if not texts:
            return []
        encodings = self.matching.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [tuple(encoding.ids) for encoding in encodings]

    def names(self, token_ids: Sequence[int]) -> tuple[str, ...]:
        """Return what the vocabulary calls each id, "" for one it has no name for."""
        return tuple(self.matching.id_to_token(token_id) or "" for token_id in token_ids)

    def encode_segments(self, prompts: Sequence[Sequence[Segment]]) -> list[tuple[int, ...]]:
        """Encode segments, giving each prompt's ids; raises KeyError for a control token the vocabulary lacks."""
        texts = [segment for prompt in prompts for segment in prompt if isinstance(segment, str)]
        encoded = self._encodings(texts)
        return [tuple(self._ids(prompt, encoded)) for prompt in prompts]

    def encode_marked(self, prompts: Sequence[Marked]) -> list[tuple[int, ...]]:
        """Encode text prompts: as raw texts where nothing is broken in them, else in parts between their tokens."""
        whole = iter(self.encode_texts([each.text for each in prompts if each.mark is None], add_special_tokens=False))
        return [next(whole) if each.mark is None else self._between(each.text, each.mark) for each in prompts]

    def _between(self, text: str, mark: str) -> tuple[int, ...]:
        """Encode a text whose broken parts are to be mended once the library has found the tokens that are whole."""
        control = frozenset(self.control_ids.values())
        ids: list[int] = []
        at = 0

        def encode(part: str, start: int) -> None:
            mended = part.replace(mark, "")
            if mended:
                ids.extend((self.rest if start else self.plain).encode(mended, add_special_tokens=False).ids)

        encoding = self.matching.encode(text, add_special_tokens=False)
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in control and end > start >= at:
                encode(text[at:start], at)
                ids.append(token_id)
                at = end
        encode(text[at:], at)
        return tuple(ids)

    def _encodings(self, texts: Sequence[str]) -> Iterator[Any]:
        """Yield each text's encoding; a few at a time, since they are made and freed under the interpreter's lock."""
        for at in range(0, len(texts), TEXTS_AT_A_TIME):
            yield from self.plain.encode_batch_fast(texts[at : at + TEXTS_AT_A_TIME], add_special_tokens=False)

    def _ids(self, prompt: Sequence[Segment], encoded: Any) -> list[int]:
        ids: list[int] = []
        for segment in prompt:
            if isinstance(segment, Control):
                ids.append(self.control_ids[segment.text])
            else:
                ids.extend(next(encoded).ids)
        return ids


def open_prompt_tokenizer(path: str) -> PromptTokenizer:
    """Build the tokenizer of a tokenizer.json or its folder; raises CheckpointError when it cannot be."""
    return build_prompt_tokenizer(read_tokenizer_file(path))


def build_prompt_tokenizer(file: TokenizerFile) -> PromptTokenizer:
    """Build the tokenizer of a file that was read; raises CheckpointError when it cannot be."""
    # Batches run in one worker thread; more threads inside would only take cores from the device.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    plain_spec = _without_added_tokens(file)
    try:
        matching = Tokenizer.from_str(file.text)
        plain = Tokenizer.from_str(json.dumps(plain_spec))
        rest_spec = _never_first(plain_spec)
        rest = Tokenizer.from_str(json.dumps(rest_spec)) if rest_spec != plain_spec else plain
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"cannot use {file.path}: {error}") from error
    for tokenizer in (matching, plain, rest):
        # Limits of training; a prompt is never cut or filled up unasked.
        tokenizer.no_truncation()
        tokenizer.no_padding()
    vocab_size = 1 + max(matching.get_vocab().values())
    return PromptTokenizer(matching, plain, rest, file.control_ids, vocab_size, vocabulary_of(file, matching))


def _without_added_tokens(file: TokenizerFile) -> dict[str, Any]:
    """Return the tokenizer.json with no added token, and none of their texts left as a whole word in the model."""
    model = dict(file.spec["model"])
    merged = {"".join(pair) if isinstance(pair, list) else pair.replace(" ", "") for pair in model.get("merges") or ()}
    # What the model falls back to must stay, or it could not encode at all.
    control = {token.text for token in file.added} - merged - {model.get("unk_token")}
    if isinstance(model["vocab"], list):
        # Unigram: a piece's place is its id, so it is renamed to what no text holds.
        unknown = model.get("unk_id")
        model["vocab"] = [
            [f"\0{index}", score] if piece in control and index != unknown else [piece, score]
            for index, (piece, score) in enumerate(model["vocab"])
        ]
    else:
        model["vocab"] = {text: token_id for text, token_id in model["vocab"].items() if text not in control}
    return {**file.spec, "model": model, "added_tokens": [], "post_processor": None}


def _never_first(spec: Any) -> Any:
    """Return a tokenizer.json whose text is never a prompt's first: sentencepiece puts a blank before that alone."""
    if isinstance(spec, dict):
        is_first = spec.get("type") == "Metaspace" and spec.get("prepend_scheme") == "first"
        changed = {"prepend_scheme": "never"} if is_first else {}
        return {key: _never_first(value) if key != "model" else value for key, value in spec.items()} | changed
    return [_never_first(item) for item in spec] if isinstance(spec, list) else spec
