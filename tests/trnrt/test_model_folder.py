"""What any model folder says of itself, without torch, and what is told of one that is not whole."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stages.errors import CheckpointError, ConfigError
from stages.messages import Penalties, Sampling
from tests.small_tokenizer import tag, write_small_tokenizer
from trnrt.model_folder import ModelFolder, read_model_folder

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "eos_token_id": 7,
}


def write(folder: Path, name: str, table: object) -> None:
    (folder / name).write_text(json.dumps(table))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small folder of a model nobody knows."""
    write_small_tokenizer(tmp_path)
    write(tmp_path, "config.json", LLAMA)
    write(tmp_path, "tokenizer_config.json", {"chat_template": "T", "eos_token": "<|user|>"})
    return tmp_path


def read(folder: Path, **flags: Any) -> ModelFolder:
    return read_model_folder(str(folder), environ=flags.pop("environ", {}), **flags)


def context(folder: Path, config: Mapping[str, object]) -> int:
    write(folder, "config.json", {"vocab_size": 10, **config})
    return read(folder).settings.context_length_tokens


def test_an_unknown_architecture_is_as_good_as_any(folder: Path) -> None:
    write(folder, "generation_config.json", {"eos_token_id": [8, 9], "temperature": 0.6, "repetition_penalty": 1.1})
    model = read(folder)

    settings = model.settings
    assert (settings.served_model_name, settings.model_path) == (str(folder), str(folder))
    assert (settings.model_type, settings.architectures) == ("llama", ("LlamaForCausalLM",))
    assert (settings.context_length_tokens, settings.vocab_size) == (4096, 1000)
    assert settings.eos_token_ids == {7, 8, 9, tag("<|user|>")}
    assert settings.default_sampling == Sampling(temperature=0.6)
    assert settings.default_penalties == Penalties(repetition=1.1)
    assert (settings.tool_call_parser, settings.reasoning_parser) == (None, None)
    assert model.template.texts == {"default": "T"}
    assert model.template.variables == {"eos_token": "<|user|>"}


def test_the_shipped_model_has_its_cards_template_and_parsers() -> None:
    from trnrt.served import DEMO_FILES

    model = read(DEMO_FILES, tool_call_parser="auto", reasoning_parser="auto", default_chat_template_kwargs='{"a": 1}')
    assert (model.template.native, model.template.texts, model.template.defaults) == ("glm5", {}, {"a": 1})
    assert (model.settings.tool_call_parser, model.settings.reasoning_parser) == ("glm47", "glm45")
    # Their own template is a text one, and would let written tags become control tokens.
    assert read(DEMO_FILES, trusts_special_tokens=True).template.texts


def test_a_templates_stop_strings_end_every_chat(folder: Path) -> None:
    model = read(folder, chat_template="chatml")
    assert model.template.stop == model.settings.chat_stop == ("<|endoftext|>", "<|im_end|>")


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 100, "seq_length": 50}, 50),
        ({"max_position_embeddings": 100, "text_config": {"max_position_embeddings": 200}}, 200),
        ({"seq_length": 100, "text_config": {"max_position_embeddings": 200}}, 200),
        ({"max_position_embeddings": 100, "llm_config": {"vocab_size": 5}}, 100),
        ({"thinker_config": {"text_config": {"max_position_embeddings": 300}, "max_position_embeddings": 1}}, 300),
        ({"thinker_config": {"max_position_embeddings": 301}}, 301),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "dynamic", "factor": 4.0}}, 400),
        ({"max_position_embeddings": 100, "rope_parameters": {"rope_type": "linear", "factor": 2.5}}, 250),
        ({"max_position_embeddings": 100, "rope_scaling": {"rope_type": "llama3", "factor": 8}}, 100),
        (
            {"max_position_embeddings": 100, "rope_scaling": {"factor": 8, "original_max_position_embeddings": 12}},
            100,
        ),
        (
            {
                "architectures": ["LlavaLlamaForCausalLM"],
                "max_position_embeddings": 100,
                "text_config": {"max_position_embeddings": 200},
            },
            100,
        ),
        ({}, 2048),
    ],
)
def test_the_context_is_derived_from_the_text_part_first(folder: Path, config: dict[str, object], tokens: int) -> None:
    assert context(folder, config) == tokens


def test_a_longer_context_is_refused_unless_the_environment_allows_it(folder: Path) -> None:
    assert read(folder, context_length=100).settings.context_length_tokens == 100
    with pytest.raises(ConfigError, match=r"--context-length: .*4096.*SGLANG_ALLOW"):
        read(folder, context_length=5000)
    allowed = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "True"}
    assert read(folder, context_length=5000, environ=allowed).settings.context_length_tokens == 5000
    # What a config does not say is for the flag to say.
    write(folder, "config.json", {"vocab_size": 10})
    assert read(folder, context_length=5000).settings.context_length_tokens == 5000


def test_a_vocabulary_that_no_file_tells_is_the_flags(folder: Path) -> None:
    write(folder, "config.json", {"max_position_embeddings": 10})
    with pytest.raises(CheckpointError, match=r"config\.json: vocab_size .*--vocab-size"):
        read(folder)
    assert read(folder, vocab_size=12).settings.vocab_size == 12


def test_resolved_parameters_do_without_config_json(folder: Path) -> None:
    (folder / "config.json").write_text("no JSON at all")
    flags = {"resolved_sampling_params": '{"temperature": 0, "top_k": 1073741824, "top_p": null}'}
    with pytest.raises(ConfigError, match="--context-length"):
        read(folder, **flags, vocab_size=5)
    with pytest.raises(ConfigError, match="--vocab-size"):
        read(folder, **flags, context_length=5)
    settings = read(folder, **flags, vocab_size=5, context_length=6).settings
    assert settings.default_sampling == Sampling(temperature=0.0)
    assert settings.eos_token_ids == {tag("<|user|>")}


@pytest.mark.parametrize("text", ["[]", "{", '{"temperatur": 1}', '{"top_p": 0}', '{"min_p": "x"}', "[" * 5000])
def test_resolved_parameters_that_make_no_sense_are_refused(folder: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="--resolved-sampling-params"):
        read(folder, resolved_sampling_params=text, vocab_size=5, context_length=6)


def test_openai_defaults_do_without_the_models(folder: Path) -> None:
    write(folder, "generation_config.json", {"temperature": "hot"})
    with pytest.raises(CheckpointError, match=r"generation_config\.json: temperature .*--sampling-defaults openai"):
        read(folder)
    assert read(folder, sampling_defaults="openai").settings.default_sampling == Sampling()


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [
        ("config.json", None, "config.json is missing; --resolved-sampling-params"),
        ("config.json", [], "config.json: is not a JSON object"),
        ("config.json", {"model_type": 5}, "model_type"),
        ("config.json", {"architectures": "x"}, "architectures"),
        ("config.json", {"vocab_size": "x"}, "vocab_size.*--vocab-size"),
        ("config.json", {"vocab_size": 5, "max_position_embeddings": "x"}, "max_position_embeddings.*--context-length"),
        ("config.json", {"vocab_size": 5, "eos_token_id": "x"}, "eos_token_id"),
        (
            "config.json",
            {"vocab_size": 5, "seq_length": 5, "rope_scaling": {"factor": "x"}},
            "rope_scaling.factor.*--context-length",
        ),
        ("generation_config.json", {"eos_token_id": [True]}, "eos_token_id"),
        ("tokenizer.json", None, "tokenizer.json is missing; --tokenizer-path"),
        ("tokenizer_config.json", 5, "tokenizer_config.json"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, name: str, table: object, said: str) -> None:
    if table is None:
        (folder / name).unlink()
    else:
        write(folder, name, table)

    with pytest.raises(CheckpointError, match=said):
        read(folder)


def test_a_name_that_is_neither_folder_nor_hub_name_is_refused_with_its_flag(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"MODEL: there is no folder \./nothing"):
        read_model_folder("./nothing")
    with pytest.raises(ConfigError, match=r"--tokenizer-path: there is no folder /no/such"):
        read(folder, tokenizer_path="/no/such")


@pytest.mark.parametrize("text", ["[]", "{", "5"])
def test_template_defaults_are_an_object(folder: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="--default-chat-template-kwargs"):
        read(folder, default_chat_template_kwargs=text)


@pytest.mark.parametrize("flag", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_parser_is_refused_at_the_start(folder: Path, flag: str) -> None:
    assert getattr(read(folder, **{flag: "qwen3"}).settings, flag) == "qwen3"
    assert getattr(read(folder, **{flag: "auto"}).settings, flag) is None
    with pytest.raises(ConfigError, match=flag.replace("_", "-")):
        read(folder, **{flag: "no-such"})


def test_a_tokenizer_of_its_own_brings_its_own_template(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("tokenizer")
    write_small_tokenizer(other)
    write(other, "tokenizer_config.json", {"bos_token": "<sop>"})
    model = read(folder, tokenizer_path=str(other))
    assert (model.folder, model.tokenizer_folder) == (folder, other)
    assert (model.template.texts, model.template.variables) == ({"default": "T"}, {"bos_token": "<sop>"})
    write(other, "tokenizer_config.json", {"chat_template": "O"})
    assert read(folder, tokenizer_path=str(other)).template.texts == {"default": "O"}


def test_a_file_stands_for_its_folder(folder: Path) -> None:
    assert read(folder / "tokenizer.json").folder == folder


def test_no_torch_is_needed(folder: Path) -> None:
    code = (
        f"import sys; from trnrt.model_folder import read_model_folder; read_model_folder({str(folder)!r});"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
