"""Conversation formats older than chat templates: which model has which, and what they write."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from stages.errors import CheckpointError, ConfigError, InvalidRequest
from stages.messages import Chat
from stages.prompt.jinja.template import open_jinja
from stages.settings import TemplateSource
from trnrt.chat_templates import choose_template
from trnrt.conversations import BUILT_IN, Conversation, implied

TURNS = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c\n"},
)
SYSTEM = {"role": "system", "content": "S"}


def written(source: TemplateSource, *messages: dict[str, Any], **more: Any) -> str:
    return open_jinja(source, (), time.monotonic)(Chat(messages, **more)).text


def style(name: str, *messages: dict[str, Any]) -> str:
    conversation = Conversation(name, "U", "A", sep="|", other="#", before_system="<", behind_system=">", system="d")
    return written(conversation.source(), *(messages or TURNS))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ADD_COLON_SINGLE", "<d>|U: a|A: b|U: c\n|A:"),
        ("ADD_COLON_TWO", "<d>|U: a|A: b#U: c\n|A:"),
        ("ADD_COLON_SPACE_SINGLE", "<d>|U: a|A: b|U: c\n|A: "),
        ("ADD_NEW_LINE_SINGLE", "<d>|U\na|A\nb|U\nc\n|A\n"),
        ("NO_COLON_SINGLE", "<d>Ua|Ab|Uc\n|A"),
        ("NO_COLON_TWO", "<d>Ua|Ab#Uc\n|A"),
        ("CHATML", "<d>|\nU\na|\nA\nb|\nU\nc\n|\nA\n"),
        ("MPT", "<d>|Ua|Ab|Uc\n|A"),
        ("ROBIN", "<d>|U:\na|A:\nb|U:\nc\n|A:\n"),
        ("PHOENIX", "<d>U: <s>a</s>A: <s>b</s>U: <s>c\n</s>A: <s>"),
        ("DOLLY", "<d>U:\na|A:\nb#\n\nU:\nc\n|A:\n"),
        ("FALCON_CHAT", "<d>|U: a|A: b|U: c\n|A:"),
        ("CHATGLM3", "<d>U\naA\nbU\nc\nA"),
        ("CHATINTERN", "<d><s>U:a|\nA:b#\n<s>U:c\n|\nA:"),
        ("DEEPSEEK_CHAT", "<d>U: a|A: b#U: c\n|A:"),
        ("DeepSeekVL2", "<d>|U: a|A: b#U: c\n|A:"),
        ("RWKV", "<d>U: a\n\nA: b\n\nU: c\n\n\nA:"),
        ("METAMATH", "<d>|U:\na|A: #bU:\nc\n|A: #"),
        ("LLAMA2", "<d>a A b#U c\n|A"),
        ("GEMMA3", "<d>a|Ab|Uc\n|A"),
        (
            "LLAMA3",
            "<d><|start_header_id|>U<|end_header_id|>\n\na<|eot_id|><|start_header_id|>A<|end_header_id|>\n\nb<|eot_id|>"
            "<|start_header_id|>U<|end_header_id|>\n\nc<|eot_id|><|start_header_id|>A<|end_header_id|>\n\n",
        ),
        (
            "LLAMA4",
            "<d><|header_start|>U<|header_end|>\n\na<|eot|><|header_start|>A<|header_end|>\n\nb<|eot|>"
            "<|header_start|>U<|header_end|>\n\nc<|eot|><|header_start|>A<|header_end|>\n\n",
        ),
    ],
)
def test_every_style_separates_turns_in_its_own_way(name: str, text: str) -> None:
    assert style(name) == text


def test_the_last_system_message_is_the_chats_and_an_empty_turn_is_an_open_one() -> None:
    assert style("NO_COLON_SINGLE", SYSTEM, *TURNS[:1], {"role": "system", "content": "T"}) == "<T>Ua|A"
    assert style("ADD_COLON_SINGLE", {"role": "user", "content": ""}) == "<d>|U:A:"


def test_a_conversation_knows_three_roles_and_a_developer_is_a_system() -> None:
    source = BUILT_IN["chatml"].source()
    assert "system\nS<|im_end|>" in written(source, {"role": "developer", "content": "S"}, TURNS[0])
    with pytest.raises(InvalidRequest, match="no role tool"):
        written(source, {"role": "tool", "content": "S", "tool_call_id": "1"})


def test_a_last_answer_can_be_gone_on_from() -> None:
    text = written(BUILT_IN["chatml"].source(), *TURNS[:2], continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nb")


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_format_shows_every_turn_and_opens_the_answer(name: str) -> None:
    source = BUILT_IN[name].source()
    text = written(source, SYSTEM, *TURNS)
    assert [text.index(word) for word in ("S", "a", "b", "c")]
    assert text.rstrip().endswith(BUILT_IN[name].assistant.rstrip() or ":") or text.rstrip()[-1] in ":>"
    assert source.stop == BUILT_IN[name].stop


@pytest.mark.parametrize(
    ("model", "model_type", "name"),
    [
        ("lmsys/vicuna-7b-v1.5", "llama", "vicuna_v1.1"),
        ("/models/LLaVA-v1.5-13b/", "llava", "vicuna_v1.1"),
        ("/vicuna/llama", "llama", None),
        ("deepseek-ai/deepseek-vl2-tiny", "", "deepseek-vl2"),
        ("openbmb/MiniCPM-V-2_6", "", "minicpmv"),
        ("openbmb/MiniCPM-o-2_6", "", "minicpmo"),
        ("openbmb/MiniCPM-V-4.6", "", None),
        ("x/y", "minicpmv", "minicpmv"),
        ("x/y", "phi4mm", "phi-4-mm"),
        ("microsoft/Phi-4-multimodal-instruct", "", "phi-4-mm"),
        ("WePOINTS/POINTS-1-5", "", "points-v15-chat"),
        ("x/checkpoints", "llama", None),
        ("Qwen/Qwen3-8B", "qwen3", None),
    ],
)
def test_some_models_are_known_by_name_or_type(model: str, model_type: str, name: str | None) -> None:
    assert implied(model, model_type) == name


def test_a_model_known_by_name_has_its_format_whatever_its_folder_says(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "T", "bos_token": "<s>"}')
    source = choose_template(tmp_path, model="lmsys/vicuna-7b")
    assert "USER" in source.texts["default"]
    assert source.variables == {"bos_token": "<s>"}
    (tmp_path / "t.jinja").write_text("mine")
    assert choose_template(tmp_path, str(tmp_path / "t.jinja"), model="lmsys/vicuna-7b").texts == {"default": "mine"}


DESCRIBED = {
    "name": "x",
    "system": "<sys>",
    "system_message": "hi 'there'\\",
    "user": "U",
    "assistant": "A",
    "sep_style": "NO_COLON_SINGLE",
    "sep": "\n",
    "stop_str": ["<end>"],
}


def described(folder: Path, **changes: Any) -> TemplateSource:
    value = {key: each for key, each in {**DESCRIBED, **changes}.items() if each != "gone"}
    (folder / "x.json").write_text(json.dumps(value))
    return choose_template(folder, str(folder / "x.json"))


def test_a_json_file_describes_a_conversation(tmp_path: Path) -> None:
    source = described(tmp_path)
    assert source.stop == ("<end>",)
    assert written(source, *TURNS) == "<sys>\nhi 'there'\\Ua\nAb\nUc\n\nA"
    assert described(tmp_path, stop_str=None).stop == ()
    assert described(tmp_path, stop_str="x").stop == ("x",)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(({key: "gone"}, f"{key} is missing") for key in ("name", "system", "user", "assistant", "stop_str")),
        ({"sep_style": "NONE"}, "sep_style is 'NONE'; there are ADD_COLON"),
        ({"user": 5}, "user is 5"),
        ({"stop_str": [5]}, "stop_str"),
        ({"stop_str": ""}, "stop_str"),
    ],
)
def test_a_description_that_is_not_whole_is_told_by_its_key(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        described(tmp_path, **changes)


def test_names_of_formats_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"chatml, .*vicuna_v1\.1"):
        choose_template(tmp_path, "nothing")
