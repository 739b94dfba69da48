"""Formats of models' own encoders: what they write, and what they take out of the checkpoint's."""

import time
from pathlib import Path
from typing import Any

import pytest

from stages.errors import CheckpointError, InvalidRequest
from stages.messages import Chat, Tool
from stages.prompt.jinja.template import open_jinja
from stages.prompt.segments import Marked
from trnrt.chat_templates import choose_template
from trnrt.native_formats import native_name

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
CONTROL = (BOS, EOS, USER, ASSISTANT, "<think>", "</think>", "｜DSML｜")
THINKS = {"thinking": True}
TOOLS = (Tool("f", {"type": "function", "function": {"name": "f", "description": "é"}}), Tool("g", {"name": "g"}))
LISTED = '{"name": "f", "description": "é"}\n{"name": "g"}'
ENCODER = '''
"""An encoder that must not run."""
raise SystemExit("it ran")
{name}: str = """Tools: <{{dsml_token}}x> {{thinking_start_token}}..{{thinking_end_token}}
{{tool_schemas}}
end 'of' tools
"""
REASONING_EFFORT_MAX = (
    "Very "
    "much.\\n\\n"
)
REASONING_EFFORT_HIGH = "Much."
'''
CALL_F = {"id": "1", "name": "f", "arguments": {"a": "x", "b": [1, "é"]}}
CALL_G = {"id": "2", "name": "g", "arguments": {}}


def said(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CALLING = said("assistant", "Look.", reasoning_content="hm", tool_calls=[CALL_F, CALL_G])
RESULTS = (said("tool", "G", tool_call_id="2"), said("tool", "F", tool_call_id="1"))


def rendered(folder: Path, model_type: str, *messages: dict[str, Any], **more: Any) -> Marked:
    source = choose_template(folder, model_type=model_type)
    return open_jinja(source, CONTROL, time.monotonic)(Chat(messages, **more))


def text(folder: Path, model_type: str, *messages: dict[str, Any], **more: Any) -> str:
    return rendered(folder, model_type, *messages, **more).text


def with_encoder(folder: Path, model_type: str) -> Path:
    name, constant = {
        "deepseek_v32": ("encoding_dsv32.py", "TOOLS_SYSTEM_TEMPLATE"),
        "deepseek_v4": ("encoding_dsv4.py", "TOOLS_TEMPLATE"),
    }[model_type]
    (folder / "encoding").mkdir(exist_ok=True)
    (folder / "encoding" / name).write_text(ENCODER.format(name=constant))
    return folder


BOTH = pytest.mark.parametrize("model_type", ["deepseek_v32", "deepseek_v4"])


@BOTH
def test_turns_are_tags_and_words(tmp_path: Path, model_type: str) -> None:
    turns = (said("system", "S"), said("user", "a"), said("assistant", "b"), said("user", "c"))
    before = f"{BOS}S{USER}a{ASSISTANT}</think>b{EOS}{USER}c{ASSISTANT}"
    assert rendered(tmp_path, model_type, *turns) == Marked(f"{before}</think>", None, in_reasoning=False)
    assert rendered(tmp_path, model_type, *turns, template=THINKS) == Marked(
        f"{before}<think>", None, in_reasoning=True
    )
    effort = {"reasoning_effort": "low", "enable_thinking": True}
    assert text(tmp_path, model_type, *turns, template=effort) == f"{before}<think>"
    assert text(tmp_path, model_type, said("user", "a"), opens_turn=False) == f"{BOS}{USER}a"


@BOTH
def test_reasoning_of_the_last_turn_is_kept_and_of_earlier_ones_dropped(tmp_path: Path, model_type: str) -> None:
    answer = said("assistant", "b", reasoning_content="why")
    turns = (said("user", "a"), answer, said("user", "c"), answer)
    assert text(tmp_path, model_type, *turns, template=THINKS) == (
        f"{BOS}{USER}a{ASSISTANT}</think>b{EOS}{USER}c{ASSISTANT}<think>why</think>b{EOS}"
    )


@BOTH
def test_a_last_answer_can_be_gone_on_from(tmp_path: Path, model_type: str) -> None:
    turns = (said("user", "a"), said("assistant", "b "))
    assert text(tmp_path, model_type, *turns, continue_final_message=True) == f"{BOS}{USER}a{ASSISTANT}</think>b "


@BOTH
def test_a_developer_is_a_system_and_other_roles_are_refused(tmp_path: Path, model_type: str) -> None:
    assert text(tmp_path, model_type, said("developer", "S"), said("user", "a")).startswith(f"{BOS}S{USER}a")
    with pytest.raises(InvalidRequest, match="no role function"):
        rendered(tmp_path, model_type, said("function", "x"))


@BOTH
def test_what_users_write_is_no_tag(tmp_path: Path, model_type: str) -> None:
    marked = rendered(tmp_path, model_type, said("user", f"{EOS}<｜DSML｜x"))
    assert marked.mark is not None
    assert EOS not in marked.text
    assert "｜DSML｜" not in marked.text


@BOTH
def test_tools_are_introduced_in_the_checkpoints_words(tmp_path: Path, model_type: str) -> None:
    with pytest.raises(InvalidRequest, match=r"encoding/encoding_dsv"):
        rendered(tmp_path, model_type, said("user", "a"), tools=TOOLS)
    folder = with_encoder(tmp_path, model_type)
    words = f"\n\nTools: <｜DSML｜x> <think>..</think>\n{LISTED}\nend 'of' tools\n"
    end = f"{USER}a{ASSISTANT}</think>"
    assert text(folder, model_type, said("user", "a"), tools=TOOLS) == f"{BOS}{words}{end}"
    assert text(folder, model_type, said("system", "S"), said("user", "a"), tools=TOOLS) == f"{BOS}S{words}{end}"


def calls(block: str) -> str:
    return (
        f'\n\n<｜DSML｜{block}>\n<｜DSML｜invoke name="f">\n'
        '<｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="b" string="false">[1, "é"]</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n\n</｜DSML｜invoke>\n'
        f"</｜DSML｜{block}>"
    )


def test_v32_shows_results_as_a_block_behind_the_calls(tmp_path: Path) -> None:
    turns = (said("user", "a"), CALLING, *RESULTS)
    shown = (
        f"Look.{calls('function_calls')}{EOS}\n\n<function_results>\n<result>G</result>\n<result>F</result>"
        "\n</function_results>\n\n"
    )
    assert text(tmp_path, "deepseek_v32", *turns) == f"{BOS}{USER}a{ASSISTANT}</think>{shown}</think>"
    thought = f"{BOS}{USER}a{ASSISTANT}<think>hm</think>{shown}<think>"
    assert text(tmp_path, "deepseek_v32", *turns, template=THINKS) == thought
    answered = (*turns, said("assistant", "b", reasoning_content="so"), said("user", "c"))
    assert text(tmp_path, "deepseek_v32", *answered, template=THINKS) == (
        f"{BOS}{USER}a{ASSISTANT}</think>{shown}</think>b{EOS}{USER}c{ASSISTANT}<think>"
    )


def test_v4_shows_results_as_a_users_turn_in_the_order_of_the_calls(tmp_path: Path) -> None:
    turns = (said("user", "a"), CALLING, *RESULTS, said("user", "c"))
    shown = (
        f"Look.{calls('tool_calls')}{EOS}{USER}<tool_result>F</tool_result>\n\n<tool_result>G</tool_result>\n\nc"
        f"{ASSISTANT}"
    )
    assert text(tmp_path, "deepseek_v4", *turns) == f"{BOS}{USER}a{ASSISTANT}</think>{shown}</think>"
    # Without tools the thoughts of earlier turns are dropped, a turn of results among them.
    assert text(tmp_path, "deepseek_v4", *turns, template=THINKS) == f"{BOS}{USER}a{ASSISTANT}</think>{shown}<think>"
    folder = with_encoder(tmp_path, "deepseek_v4")
    kept = text(folder, "deepseek_v4", *turns, template=THINKS, tools=TOOLS)
    assert kept.endswith(f"{USER}a{ASSISTANT}<think>hm</think>{shown}<think>")


def test_v4_joins_users_in_a_row_and_opens_no_answer_before_a_system(tmp_path: Path) -> None:
    turns = (said("user", "a"), said("user", "b"), said("system", "S"), said("user", "c"))
    assert text(tmp_path, "deepseek_v4", *turns) == f"{BOS}{USER}a\n\nbS{USER}c{ASSISTANT}</think>"


def test_v4_asks_for_effort_in_the_checkpoints_words(tmp_path: Path) -> None:
    def effort(value: object, **more: object) -> str:
        switches = {"reasoning_effort": value, "enable_thinking": True, **more}
        return text(tmp_path, "deepseek_v4", said("user", "a"), template=switches)

    plain = f"{USER}a{ASSISTANT}<think>"
    assert effort("high") == BOS + plain
    with pytest.raises(InvalidRequest, match="encoding_dsv4"):
        effort("max")
    with_encoder(tmp_path, "deepseek_v4")
    assert effort("max") == f"{BOS}Very much.\n\n{plain}"
    assert effort("high") == f"{BOS}Much.{plain}"
    assert effort("low") == effort(0.5) == BOS + plain
    assert effort("max", enable_thinking=False) == f"{BOS}{USER}a{ASSISTANT}</think>"


@pytest.mark.parametrize(
    ("encoder", "wrong"),
    [
        ("x = (", "is not Python"),
        ("x = 'y'", "TOOLS_TEMPLATE is no text"),
        ("TOOLS_TEMPLATE = 'no place'", "tool_schemas"),
        ("#" * (1 << 20) + "#", "too long"),
    ],
)
def test_an_encoder_that_is_not_what_it_was_is_told(tmp_path: Path, encoder: str, wrong: str) -> None:
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding/encoding_dsv4.py").write_text(encoder)
    with pytest.raises(CheckpointError, match=wrong):
        choose_template(tmp_path, model_type="deepseek_v4")


@pytest.mark.parametrize(
    ("model_type", "architectures", "name"),
    [
        ("deepseek_v3_2", (), "deepseek_v32"),
        ("", ("DeepseekV32ForCausalLM",), "deepseek_v32"),
        ("", ("DeepseekV4ForCausalLM",), "deepseek_v4"),
        ("deepseek_v3", ("DeepseekV3ForCausalLM",), None),
        ("kimi_k3", (), "kimi_k3"),
    ],
)
def test_a_model_is_known_by_type_or_architecture(
    model_type: str, architectures: tuple[str, ...], name: str | None
) -> None:
    assert native_name(model_type, architectures) == name


@pytest.mark.parametrize("model_type", ["kimi_k3", "inkling_mm_model"])
def test_what_nobody_can_vouch_for_is_refused_by_name_with_the_way_out(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "T"}')
    with pytest.raises(InvalidRequest, match=rf"{model_type}.*--chat-template"):
        rendered(tmp_path, model_type, said("user", "a"))
