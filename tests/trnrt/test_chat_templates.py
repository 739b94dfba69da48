"""Which chat template a folder has, in all the ways checkpoints spell it."""

import json
from pathlib import Path

import pytest

from stages.errors import CheckpointError, ConfigError
from trnrt.chat_templates import choose_template


def write(folder: Path, chat_template: object = None, **more: object) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": chat_template, **more}))
    return folder


@pytest.mark.parametrize(
    ("entry", "texts"),
    [
        ("a", {"default": "a"}),
        (
            [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}],
            {"default": "a", "tool_use": "b"},
        ),
        ([{"default": "a"}, {"tool_use": "b"}], {"default": "a", "tool_use": "b"}),
    ],
)
def test_an_entry_is_a_text_or_a_list_of_either_spelling(tmp_path: Path, entry: object, texts: dict[str, str]) -> None:
    assert choose_template(write(tmp_path, entry)).texts == texts


def test_a_file_beats_the_entry_and_the_flag_beats_the_file(tmp_path: Path) -> None:
    write(tmp_path, "entry")
    (tmp_path / "chat_template.jinja").write_text("file")
    assert choose_template(tmp_path).texts == {"default": "file"}
    (tmp_path / "mine.json").write_text(json.dumps({"chat_template": "mine"}))
    assert choose_template(tmp_path, str(tmp_path / "mine.json")).texts == {"default": "mine"}
    assert choose_template(tmp_path, "chatml").stop == ("<|endoftext|>", "<|im_end|>")


def test_without_any_the_reason_is_told(tmp_path: Path) -> None:
    assert "no chat_template" in choose_template(tmp_path).missing
    assert "kimi_k3" in choose_template(write(tmp_path, "x"), model_type="kimi_k3").missing


def test_a_file_of_the_flags_may_spell_its_newlines_and_the_folders_is_taken_as_it_is(tmp_path: Path) -> None:
    (write(tmp_path) / "chat_template.jinja").write_text("\na\\nb\n")
    assert choose_template(tmp_path, str(tmp_path / "chat_template.jinja")).texts == {"default": "a\nb"}
    assert choose_template(tmp_path).texts == {"default": "\na\\nb\n"}


def test_special_tokens_are_texts_or_objects(tmp_path: Path) -> None:
    write(tmp_path, "x", bos_token="<s>", eos_token={"content": "</s>"}, unk_token=None)
    assert choose_template(tmp_path).variables == {"bos_token": "<s>", "eos_token": "</s>"}


def test_what_cannot_be_had_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--chat-template.*chatml"):
        choose_template(tmp_path, "nothing")
    with pytest.raises(CheckpointError, match="tokenizer_config"):
        choose_template(write(tmp_path, [{"tool_use": "a"}]))
