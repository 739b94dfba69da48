"""What a checkpoint folder says of itself, and the one line that comes of a folder that is not whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stages.errors import CheckpointError, ConfigError
from stages.messages import Chat, Prompt, Sampling
from stages.prompt.stage import open_prompter
from stages.settings import PromptSettings
from trnrt.config import Config
from trnrt.resolve import resolve
from trnrt.scheduling import scheduler_settings
from trnrt.served import DEMO_FILES, read_served_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shipped model's folder that a test may damage."""
    for file in DEMO_FILES.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_the_shipped_model_is_served_without_flags() -> None:
    model = read_served_model(Config())

    assert model.settings.served_model_name == "glm-5.3-flash-demo"
    assert len(model.settings.eos_token_ids) == 3
    assert (model.settings.reasoning_parser, model.settings.tool_call_parser) == ("glm45", "glm47")


def test_other_names_are_a_list_and_claude_models_by_default() -> None:
    assert read_served_model(Config()).settings.aliases == ("claude-*",)
    assert read_served_model(Config(model_alias=" a, b* ,")).settings.aliases == ("a", "b*")
    assert read_served_model(Config(model_alias="")).settings.aliases == ()


def test_nothing_is_left_to_decide_after_resolving() -> None:
    model = read_served_model(Config())

    config = resolve(Config(), model)

    open_still = {name for name, value in config.flags().items() if value is None or value == "auto"}
    # Limits that may really be absent, and what follows the machine.
    assert open_still == {
        "chat_template",
        "config",
        "revision",
        "request_timeout",
        "uds",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_keyfile_password",
        "api_key",
        "admin_api_key",
        "max_queued_tokens",
        "queue_timeout",
        "max_token_gap",
        "default_priority_value",
        "radix_eviction_policy_config",
        "device_mode",
        "log_requests_format",
        "otlp_endpoint",
        "prod_dir",
    }


def test_deterministic_keeps_no_prefix_since_decoded_and_prefilled_tokens_differ_in_the_last_bits() -> None:
    model = read_served_model(Config())

    config = resolve(Config(deterministic=True, host_cache_gb=1.0), model)

    assert (config.disable_radix_cache, config.snapshot_slots, config.host_cache_gb) == (True, 0, 0.0)
    assert scheduler_settings(config).cache is None


def test_parsers_can_be_turned_off() -> None:
    settings = read_served_model(Config(reasoning_parser="none", tool_call_parser="none")).settings

    assert (settings.reasoning_parser, settings.tool_call_parser) == (None, None)


@pytest.mark.parametrize(("told_to", "has_priorities", "refuses"), [(1, 0, True), (1, 1, False), (0, 0, False)])
def test_a_priority_is_refused_where_there_are_none_and_the_flag_says_so(
    told_to: int, has_priorities: int, refuses: bool
) -> None:
    flags = {"abort_on_priority_when_disabled": bool(told_to), "enable_priority_scheduling": bool(has_priorities)}

    assert read_served_model(Config(**flags)).settings.refuses_priority is refuses


def test_the_longest_wait_in_the_queue_is_the_flags() -> None:
    assert read_served_model(Config(queue_timeout=2.5)).settings.queue_timeout_s == 2.5
    assert read_served_model(Config()).settings.queue_timeout_s is None


def test_the_stages_know_which_inputs_the_graphs_have() -> None:
    settings = read_served_model(Config()).settings
    assert (settings.structured_outputs, settings.penalties) == (False, False)
    settings = read_served_model(Config(structured_outputs=True, penalties=True)).settings
    assert (settings.structured_outputs, settings.penalties) == (True, True)


def test_openai_sampling_defaults_replace_the_models() -> None:
    sampling = read_served_model(Config(sampling_defaults="openai")).settings.default_sampling

    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)


def test_a_template_of_the_flags_takes_the_place_of_the_cards() -> None:
    assert read_served_model(Config()).template.native == "glm5"
    model = read_served_model(Config(chat_template="chatml"))
    assert model.template.texts.keys() == {"default"}
    assert model.settings.chat_stop == ("<|endoftext|>", "<|im_end|>")
    prompter = open_prompter(PromptSettings(str(model.tokenizer_folder), model.template))
    (prompt,) = prompter.answers([Chat(({"role": "user", "content": "Hi<|user|>"},))])
    assert isinstance(prompt, Prompt)
    text = prompter.tokenizer.vocabulary.text(prompt.token_ids)
    assert text.endswith("<|im_start|>user\nHi<|user|><|im_end|>\n<|im_start|>assistant\n")
    with pytest.raises(ConfigError, match="--chat-template"):
        read_served_model(Config(chat_template="nothing"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()

    with pytest.raises(CheckpointError, match=name):
        read_served_model(Config(model_path=str(folder)))


@pytest.mark.parametrize("key", ["model_type", "vocab_size", "max_position_embeddings"])
def test_a_missing_key_is_named(folder: Path, key: str) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (raw if key in raw else raw["text_config"]).pop(key)
    (folder / "config.json").write_text(json.dumps(raw))

    with pytest.raises(CheckpointError, match=key):
        read_served_model(Config(model_path=str(folder)))


def test_an_architecture_that_is_not_served_is_named(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama"}')

    with pytest.raises(CheckpointError, match="llama"):
        read_served_model(Config(model_path=str(folder)))


def test_a_folder_that_is_not_there_and_a_context_too_long_name_their_flags(folder: Path) -> None:
    with pytest.raises(ConfigError, match="--model-path"):
        read_served_model(Config(model_path=str(folder / "nothing")))
    with pytest.raises(ConfigError, match="--context-length"):
        read_served_model(Config(context_length=1 << 30))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("config.json", Path.unlink),
        ("config.json", truncate),
        ("tokenizer.json", Path.unlink),
        ("tokenizer.json", truncate),
        ("generation_config.json", truncate),
        ("model.safetensors", Path.unlink),
        ("model.safetensors", truncate),
    ],
)
def test_a_damaged_folder_ends_the_start_with_one_line_and_exit_2(folder: Path, name: str, damage: object) -> None:
    damage(folder / name)

    run = subprocess.run(
        [sys.executable, "-m", "trnrt", "--port", "0", "--device-mode", "eager", "--model-path", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )

    said = [line for line in run.stderr.splitlines() if line.startswith("trnrt: ")]
    assert run.returncode == 2
    assert len(said) == 1
    assert name.split(".")[0] in said[0]
    assert "Traceback" not in run.stderr
    assert "listening" not in run.stderr


def rewrite(file: Path, **values: object) -> None:
    """Set keys of a JSON file, at its top and in its text_config."""
    table = json.loads(file.read_text()) | values
    if isinstance(table.get("text_config"), dict):
        table["text_config"] |= {key: value for key, value in values.items() if key in table["text_config"]}
    file.write_text(json.dumps(table))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("config.json", "text_config", 5),
        ("config.json", "model_type", 5),
        ("config.json", "max_position_embeddings", "long"),
        ("config.json", "vocab_size", None),
        ("config.json", "eos_token_id", "<|user|>"),
        ("config.json", "eos_token_id", ["<|user|>"]),
        ("generation_config.json", "eos_token_id", {}),
        ("generation_config.json", "temperature", "hot"),
        ("generation_config.json", "temperature", -1),
        ("generation_config.json", "top_p", 0),
        ("generation_config.json", "top_k", True),
        ("generation_config.json", "min_p", 7),
    ],
)
def test_a_value_that_makes_no_sense_is_named_with_its_file(folder: Path, name: str, key: str, value: object) -> None:
    rewrite(folder / name, **{key: value})

    with pytest.raises(CheckpointError, match=rf"{name}.*{key}"):
        read_served_model(Config(model_path=str(folder)))


def test_null_in_generation_config_is_as_good_as_absent(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"temperature": null, "top_p": null, "top_k": null, "min_p": null}')

    assert read_served_model(Config(model_path=str(folder))).settings.default_sampling == Sampling()


def test_null_architectures_are_none(folder: Path) -> None:
    rewrite(folder / "config.json", architectures=None)

    assert read_served_model(Config(model_path=str(folder))).settings.architectures == ()


@pytest.mark.parametrize("flag", ["reasoning_parser", "tool_call_parser"])
@pytest.mark.parametrize("name", ["no-such", "../glm45"])
def test_a_parser_there_is_not_is_refused_before_the_checkpoint_is_loaded(flag: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')}: there is no '{name}'"):
        read_served_model(Config(**{flag: name}))


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight", "hrrn"])
def test_an_order_by_the_cache_is_fcfs_where_there_is_none_and_the_log_says_so(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = read_served_model(Config())

    with caplog.at_level("INFO", "trnrt"):
        assert resolve(Config(schedule_policy=policy), model).schedule_policy == policy
        assert not caplog.messages
        assert resolve(Config(schedule_policy=policy, disable_radix_cache=True), model).schedule_policy == "fcfs"
    assert [policy in message for message in caplog.messages] == [True]
    assert resolve(Config(schedule_policy="lof", disable_radix_cache=True), model).schedule_policy == "lof"
