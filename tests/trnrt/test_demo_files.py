"""The shipped model's folder and the corpus it learned from."""

import hashlib
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from scripts import demo_corpus as corpus
from scripts.demo_batches import Batches
from scripts.demo_folder import ADDED_TOKENS, END_OF_TURN, NUM_SPECIAL, VOCAB_SIZE, added_id, model_config

FILES = Path(__file__).parents[2] / "trnrt" / "models" / "demo_files"
MAX_FOLDER_BYTES = 20_000_000
CORPUS_DIGEST = "f33566d2a1c28af6"
START = "[gMASK]<sop><|system|>Reasoning Effort: "
Messages = list[dict[str, Any]]

USER_HI: Messages = [{"role": "user", "content": "Hi"}]
CALLED: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "1", "function": {"name": "get_weather", "arguments": {"city": "Paris", "unit": "c"}}},
    ],
}
CALL_TEXT = (
    "<|assistant|><think></think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
    "<arg_key>unit</arg_key><arg_value>c</arg_value></tool_call>"
)


def read(name: str) -> Any:
    return json.loads((FILES / name).read_text())


def chat(messages: Messages, **settings: Any) -> str:
    text: str = corpus.template().render(messages=messages, **settings)
    return text


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FILES / "tokenizer.json"))


def test_the_folder_fits_in_twenty_megabytes() -> None:
    assert sum(file.stat().st_size for file in FILES.iterdir()) <= MAX_FOLDER_BYTES


def test_the_folder_is_complete() -> None:
    wanted = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {file.name for file in FILES.iterdir()} == wanted | {"chat_template.jinja", "model.safetensors"}


def test_added_tokens_stand_last_in_the_family_order_and_the_first_18_are_special(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.token_to_id(token) for token in ADDED_TOKENS]
    assert ids == list(range(VOCAB_SIZE - 36, VOCAB_SIZE))
    listed = {entry["content"]: entry for entry in read("tokenizer.json")["added_tokens"]}
    assert [listed[token]["special"] for token in ADDED_TOKENS] == [index < NUM_SPECIAL for index in range(36)]
    assert tokenizer.decode([ids[7], ids[21]], skip_special_tokens=True) == "<think>"


@pytest.mark.parametrize("text", ["Hello, world!", "你好，世界！ café 😀 1234567", "a  b\n\n\n\tc", "naïve Ωμέγα \x00"])
def test_any_text_survives_the_tokenizer(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_configs_agree_with_the_tokenizer_and_each_other(tokenizer: Tokenizer) -> None:
    config, generation, names = read("config.json"), read("generation_config.json"), read("tokenizer_config.json")
    ends = [tokenizer.token_to_id(token) for token in END_OF_TURN]
    assert config == model_config()
    assert config["text_config"]["vocab_size"] == tokenizer.get_vocab_size() == VOCAB_SIZE
    assert generation["eos_token_id"] == config["text_config"]["eos_token_id"] == ends
    assert generation["pad_token_id"] == config["text_config"]["pad_token_id"] == ends[0]
    assert names["eos_token"] == names["pad_token"] == "<|endoftext|>"
    assert tokenizer.token_to_id("<|image|>") == config["image_token_id"]
    assert tokenizer.token_to_id("<|end_of_video|>") == config["video_end_token_id"]


@pytest.mark.parametrize(("effort", "written"), [(None, "Max"), ("low", "Low"), ("high", "High"), ("medium", "Max")])
def test_the_prompt_opens_with_the_reasoning_effort(effort: str | None, written: str) -> None:
    expected = f"{START}{written}<|user|>Hi<|assistant|><think>"
    assert chat(USER_HI, reasoning_effort=effort, add_generation_prompt=True) == expected


@pytest.mark.parametrize("switch", [{"enable_thinking": False}, {"thinking": False}])
def test_thinking_can_be_switched_off(switch: dict[str, bool]) -> None:
    expected = f"{START}Max<|user|>Hi<|assistant|><think></think>"
    assert chat(USER_HI, add_generation_prompt=True, **switch) == expected


def test_a_system_message_stands_after_the_effort() -> None:
    messages = [{"role": "system", "content": "You are terse."}, *USER_HI]
    assert chat(messages) == f"{START}Max<|system|>You are terse.<|user|>Hi"


@pytest.mark.parametrize(("clear", "thoughts"), [(False, "let me add"), (True, "")])
def test_earlier_reasoning_stays_unless_cleared(clear: bool, thoughts: str) -> None:
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "<think>let me add</think>4"},
        {"role": "user", "content": "again"},
    ]
    expected = f"{START}Max<|user|>q<|assistant|><think>{thoughts}</think>4<|user|>again<|assistant|><think>"
    assert chat(messages, clear_thinking=clear, add_generation_prompt=True) == expected


def test_calls_and_results_have_their_tags() -> None:
    messages = [*USER_HI, CALLED, {"role": "tool", "tool_call_id": "1", "content": "18C, clear"}]
    tail = "<|observation|><tool_response>18C, clear</tool_response><|assistant|><think>"
    assert chat(messages, add_generation_prompt=True) == f"{START}Max<|user|>Hi{CALL_TEXT}{tail}"


@pytest.mark.parametrize(
    ("ids", "order"),
    [(("b", "a"), "AB"), (("a", "b"), "BA"), (("b", "b"), "BA"), (("b", "c"), "BA"), (("b", None), "BA")],
)
def test_results_follow_the_calls_only_when_every_id_matches(ids: tuple[str | None, ...], order: str) -> None:
    calls = [{"id": name, "function": {"name": "f", "arguments": {}}} for name in "ab"]
    results = [
        {"role": "tool", "content": text, **({"tool_call_id": name} if name else {})}
        for name, text in zip(ids, "BA", strict=True)
    ]
    text = chat([{"role": "assistant", "content": "", "tool_calls": calls}, *results])
    expected = "".join(f"<tool_response>{letter}</tool_response>" for letter in order)
    assert text.endswith(f"<|observation|>{expected}")


def test_tools_are_one_json_line_each_without_control_keys() -> None:
    shown = {"name": "f", "description": "é <b>", "strict": True, "parameters": {"b": 1, "a": [True, None]}}
    hidden = {"name": "g", "defer_loading": True}
    text = chat(USER_HI, tools=[{"type": "function", "function": shown}, {"type": "function", "function": hidden}])
    line = '{"name": "f", "description": "é <b>", "parameters": {"b": 1, "a": [true, null]}}'
    assert "<|system|>\n# Tools\n\nYou may call one or more functions" in text
    assert f"XML tags:\n<tools>\n{line}\n</tools>\n\nFor each function call" in text
    assert text.endswith("<arg_value>{arg-value-2}</arg_value>...</tool_call><|user|>Hi")


def test_content_parts_are_joined_and_media_become_tags() -> None:
    parts = [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "?"}]
    text = chat([{"role": "user", "content": parts}])
    assert text.endswith("<|user|>see <|begin_of_image|><|image|><|end_of_image|>?")


def test_tool_output_entries_and_tool_references_have_their_own_form() -> None:
    outputs = [{"role": "tool", "content": [{"output": "x"}, {"output": "y"}]}]
    assert chat(outputs).endswith("<|observation|><tool_response>x</tool_response><tool_response>y</tool_response>")
    tools = [{"type": "function", "function": {"name": "g", "defer_loading": True}}]
    references = [{"role": "tool", "content": [{"type": "tool_reference", "name": "g"}]}]
    expected = '<|observation|><tool_response><tools>\n{"name": "g"}\n</tools></tool_response>'
    assert chat(references, tools=tools).endswith(expected)


def test_transformers_renders_the_same_text() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(FILES)
    for doc in islice(corpus.documents(3), 40):
        if doc.text is None:
            text = theirs.apply_chat_template(
                list(doc.messages), tools=list(doc.tools) or None, reasoning_effort=doc.effort, tokenize=False
            )
            assert text + corpus.END == corpus.render(doc, corpus.template())


def test_equal_seeds_give_equal_corpora() -> None:
    first, again, other = (list(islice(corpus.documents(seed), 200)) for seed in (5, 5, 6))
    assert first == again
    assert first != other


def test_the_corpus_is_the_one_the_shipped_weights_were_trained_on() -> None:
    chat_template = corpus.template()
    text = "".join(corpus.render(doc, chat_template) for doc in islice(corpus.documents(1), 300))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == CORPUS_DIGEST


def test_the_loss_weighs_assistant_turns_to_their_end_and_no_forced_token(tokenizer: Tokenizer) -> None:
    text = (
        "[gMASK]<sop><|system|>Reasoning Effort: Max<|user|>Hi<|assistant|><think>x</think>a<|user|>b"
        "<|assistant|><think></think>c<|endoftext|>"
    )
    encoded = tokenizer.encode(text)
    token_id = {name: added_id(name) for name in ADDED_TOKENS}
    weights = corpus.loss_weights(encoded.ids, token_id, 0.25)
    learned = [token for token, weight in zip(encoded.tokens, weights, strict=True) if weight == 1.0]
    forced = [token for token, weight in zip(encoded.tokens, weights, strict=True) if weight == 0.0]
    assert learned == ["x", "</think>", "a", "<|user|>", "c", "<|endoftext|>"]
    assert forced == ["<|assistant|>", "<think>", "<|assistant|>", "<think>", "</think>"]


def test_a_batch_depends_on_its_step_only(tokenizer: Tokenizer) -> None:
    def fresh() -> Batches:
        return Batches(tokenizer, seed=4, num_rows=2, row_tokens=256, other_weight=0.1, batches_per_part=4)

    one, two = fresh(), fresh()
    expected = [one.at(step) for step in range(6)]
    for step in (5, 0, 3):
        batch = two.at(step)
        assert (batch.ids == expected[step].ids).all()
        assert (batch.weights == expected[step].weights).all()
    assert (expected[0].ids != expected[1].ids).any()
