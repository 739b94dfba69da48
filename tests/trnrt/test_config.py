from pathlib import Path

import attrs
import pytest

from stages.errors import ConfigError
from trnrt.config import Config, load_config, parser
from trnrt.flags import flag_name


def test_no_flags_give_the_defaults() -> None:
    assert load_config([], {}) == Config()


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_preset(tmp_path: Path) -> None:
    file = tmp_path / "trnrt.toml"
    file.write_text('port = 1\nhost = "0.0.0.0"\nmax-running-requests = 3\nlog_level = "debug"\n')
    environ = {"TRNRT_PORT": "2", "TRNRT_HOST": "::1", "TRNRT_CONFIG": str(file)}

    config = load_config(["--port", "5", "--preset", "batch8"], environ)

    assert (config.port, config.host, config.max_running_requests, config.log_level) == (5, "::1", 3, "debug")


def test_a_preset_alone_changes_what_it_names() -> None:
    assert load_config(["--preset", "batch8"], {}).max_running_requests == 8


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["--port", "x"], "--port"),
        (["--port", "-1"], "--port"),
        (["--port", "70000"], "--port"),
        (["--port"], "--port"),
        (["--nope"], "--nope"),
        (["--dtype", "int4"], "--dtype"),
        (["--deterministic", "maybe"], "--deterministic"),
        (["--chunked-prefill-size", "100"], "--chunked-prefill-size"),
        (["--schedule-policy", "best"], "--schedule-policy"),
        (["--schedule-policy", "spf", "--disable-radix-cache"], "--schedule-policy.*--disable-radix-cache"),
        (
            ["--schedule-policy", "shortest-prefill-first", "--disable-radix-cache"],
            "--schedule-policy.*--disable-radix",
        ),
        (
            ["--schedule-policy", "lpm", "--enable-priority-scheduling"],
            "--enable-priority-scheduling.*--schedule-policy",
        ),
        *(
            (["--penalty-buckets", text], "--penalty-buckets")
            for text in ("", "64,", "1024,64", "64,64", "0,64", "-1", "x")
        ),
        (["--penalty-buckets", "9" * 5000], "--penalty-buckets"),
        (["--preset", "huge"], "--preset"),
        (["--config", "/does/not/exist.toml"], "--config"),
        (["--write-timeout", "nan"], "--write-timeout"),
        (["--host-cache-gb", "inf"], "--host-cache-gb.*finite"),
        (["--host-cache-gb", "1e30"], "--host-cache-gb: must be at most"),
        (["--snapshot-slots", "1" + "0" * 23], "--snapshot-slots: must be at most"),
        (["--default-priority-value", "-1" + "0" * 23], "--default-priority-value: must be at most"),
    ],
)
def test_a_wrong_flag_is_named(argv: list[str], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_config(argv, {})


def test_a_wrong_environment_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="TRNRT_PORT"):
        load_config([], {"TRNRT_PORT": "many"})


@pytest.mark.parametrize("line", ['port = "x"', "port = 1.5", "port = true", "nope = 1", "deterministic = 3", "port ="])
def test_a_wrong_line_of_the_file_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "trnrt.toml"
    file.write_text(line)

    with pytest.raises(ConfigError, match=r"trnrt\.toml"):
        load_config(["--config", str(file)], {})


def test_sglangs_other_names_of_a_flag_work() -> None:
    config = load_config(["--model", "/m", "--enable-deterministic-inference"], {})

    assert (config.model_path, config.deterministic) == ("/m", True)


def test_help_gives_every_flag_one_line() -> None:
    lines = parser().format_help().partition("\nmodel:")[2].splitlines()

    for field in attrs.fields(Config):
        rows = [line for line in lines if line.strip().startswith(flag_name(field) + " ")]
        assert len(rows) == 1, field.name
        assert len(rows[0]) <= 150
        assert field.metadata["text"].split("%")[0][:20] in rows[0]


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    file = tmp_path / "trnrt.toml"
    file.write_bytes(b'host = "\xff"')

    with pytest.raises(ConfigError, match=r"trnrt\.toml"):
        load_config(["--config", str(file)], {})


@pytest.mark.parametrize("policy", ["fcfs", "lof", "priority"])
def test_an_order_of_equals_goes_with_priorities(policy: str) -> None:
    config = load_config(["--schedule-policy", policy, "--enable-priority-scheduling"], {})

    assert (config.schedule_policy, config.enable_priority_scheduling) == (policy, True)


def test_the_order_by_priority_switches_priorities_on() -> None:
    assert load_config(["--schedule-policy", "priority"], {}).enable_priority_scheduling
    assert not load_config([], {}).enable_priority_scheduling


def test_a_secret_is_never_shown_only_that_it_is_set() -> None:
    config = Config(api_key="sesame", ssl_keyfile_password="open")

    shown = config.flags()

    assert (shown["api_key"], shown["ssl_keyfile_password"], shown["admin_api_key"]) == ("***", "***", None)
    assert "sesame" not in f"{shown}{config}"
