"""The renderer's settings: where they come from, what goes with what, and what a wrong one says."""

import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from stages.errors import ConfigError
from stages.stats.stage import open_stats
from trnrt.flags import flag_name
from trnrt.render import RenderServer, model_of, remote_settings
from trnrt.render_config import RenderConfig, load_render_config, render_parser
from trnrt.running import ingress_settings

DEMO = "trnrt/models/demo_files"
URL = "http://127.0.0.1:30001"


def test_the_model_alone_gives_the_contracts_defaults() -> None:
    config = load_render_config([DEMO], {})
    assert (config.mode, config.host, config.port) == ("render-only", "127.0.0.1", 30000)
    assert (config.tokenizer_workers, config.queue_capacity, config.engine_concurrency) == (1, 128, 32)
    assert (config.max_request_bytes, config.sampling_defaults) == (32 * 1024 * 1024, "model")
    assert (config.engine_timeout, config.engine_idle_timeout, config.engine_connect_timeout) == (None, None, 10.0)
    assert ingress_settings(config).max_request_bytes == 32 * 1024 * 1024


def test_workers_have_the_contracts_name_too() -> None:
    assert load_render_config([DEMO, "--http-workers", "3"], {}).workers == 3


def test_two_flags_decide_the_mode() -> None:
    assert load_render_config([DEMO, "--engine-url", URL], {}).mode == "serving"
    assert load_render_config([DEMO, "--engine-url", URL, "--proxy-unhandled-routes"], {}).mode == "hosted"


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "render.toml"
    file.write_text(f'model-path = "{DEMO}"\nport = 1\nhost = "0.0.0.0"\nengine_url = "{URL}"\n')
    environ = {"TRNRT_PORT": "2", "TRNRT_HOST": "::1", "TRNRT_CONFIG": str(file)}
    config = load_render_config(["--port", "5"], environ)
    assert (config.model_path, config.port, config.host, config.engine_url) == (DEMO, 5, "::1", URL)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "MODEL"),
        ([DEMO, "--model-path", "/other"], "--model-path.*MODEL"),
        ([DEMO, "--proxy-unhandled-routes"], "--proxy-unhandled-routes.*--engine-url"),
        ([DEMO, "--engine-api-key", "k"], "--engine-api-key.*--engine-url"),
        ([DEMO, "--engine-timeout", "5"], "--engine-timeout.*--engine-url"),
        ([DEMO, "--engine-idle-timeout", "5"], "--engine-idle-timeout.*--engine-url"),
        ([DEMO, "--strict-engine-match"], "--strict-engine-match.*--engine-url"),
        ([DEMO, "--engine-url", "ftp://x"], "invalid engine URL"),
        ([DEMO, "--engine-url", "http://u:p@x"], "--engine-api-key"),
        ([DEMO, "--engine-url", "http://x/path"], "without a path"),
        ([DEMO, "--engine-url", "http://x?q"], "query"),
        ([DEMO, "--port", "70000"], "--port"),
        ([DEMO, "--engine-concurrency", "0"], "--engine-concurrency"),
        ([DEMO, "--tokenizer-workers", "0"], "--tokenizer-workers"),
        ([DEMO, "--num-reserved-tokens", "-1"], "--num-reserved-tokens"),
        ([DEMO, "--sampling-defaults", "mine"], "--sampling-defaults"),
        ([DEMO, "--max-running-requests", "3"], "--max-running-requests"),
    ],
)
def test_a_wrong_flag_or_a_bad_combination_is_named(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_render_config(argv, {})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--tool-call-parser", "nobodys"], "nobodys"),
        (["--reasoning-parser", "nobodys"], "nobodys"),
        (["--chat-template", "/nowhere.jinja"], "--chat-template"),
        (["--default-chat-template-kwargs", "[1]"], "--default-chat-template-kwargs"),
        (["--resolved-sampling-params", "{}"], "--context-length"),
        (["--context-length", "999999"], "--context-length"),
    ],
)
def test_what_the_model_does_not_go_with_is_named_before_anything_listens(flags: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        model_of(load_render_config([DEMO, *flags], {}))


def test_the_engines_settings_reach_its_client() -> None:
    flags = ["--engine-url", URL, "--engine-api-key", "k", "--engine-timeout", "5", "--engine-idle-timeout", "6"]
    limits = ["--engine-connect-timeout", "7", "--engine-concurrency", "8", "--max-concurrent-requests", "9"]
    config = load_render_config([DEMO, *flags, *limits], {})
    settings = remote_settings(RenderServer(config, model_of(config), open_stats(), 0))
    assert (str(settings.origin), settings.api_key) == (URL, "k")
    assert (settings.first_event_timeout_s, settings.idle_timeout_s, settings.connect_timeout_s) == (5, 6, 7)
    assert (settings.max_opening, settings.max_running_choices) == (8, 9)
    assert settings.own_end_ids


def test_secrets_are_not_shown() -> None:
    config = RenderConfig(model_path=DEMO, api_key="sesame", engine_api_key="secret")
    assert "sesame" not in f"{config}{config.flags()}"
    assert "secret" not in f"{config}{config.flags()}"


def test_help_gives_every_flag_one_line() -> None:
    lines = render_parser().format_help().splitlines()
    for field in attrs.fields(RenderConfig):
        rows = [line for line in lines if line.strip().startswith(flag_name(field) + " ")]
        assert len(rows) == 1, field.name
        assert len(rows[0]) <= 150, field.name


def test_a_failed_start_is_one_line_and_exit_code_2() -> None:
    command = [sys.executable, "-m", "trnrt", "render", DEMO, "--proxy-unhandled-routes"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "trnrt: --proxy-unhandled-routes: there is no engine without --engine-url\n"
