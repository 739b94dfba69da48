"""claude-code, codex and OpenCode against a started `python -m trnrt` process: each finishes its turn by itself."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.outside import MODEL, folder_of, json_lines, roomy_model, run, told
from tests.clients.process import started

FRANCE = "What is the capital of France?"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The shipped model as it comes, with its context of 8,192 tokens."""
    with started("--device-mode", "eager", "--max-running-requests", "4") as server:
        yield server.url


@pytest.fixture(scope="module")
def roomy_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The shipped model with room for what agents say of themselves and of their tools."""
    folder = roomy_model(tmp_path_factory.mktemp("models") / MODEL)
    flags = ("--device-mode", "eager", "--max-running-requests", "4", "--chunked-prefill-size", "1024")
    with started("--model-path", str(folder), *flags) as server:
        yield server.url


def claude(home: Path, url: str, *arguments: str, **environ: str) -> dict[str, Any]:
    program = folder_of("claude-code") / "node_modules/.bin/claude"
    done = run(
        [program, *arguments, "--output-format", "json"],
        home,
        ANTHROPIC_BASE_URL=url,
        ANTHROPIC_AUTH_TOKEN="none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        **environ,
    )
    assert done.stdout.startswith("{"), told(done)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def prompt_tokens(answer: dict[str, Any]) -> int:
    usage = answer["usage"]
    total: int = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return total


def test_claude_code_needs_to_be_told_no_more_than_where_the_server_is(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder_of("claude-code")
    url = request.getfixturevalue("url")
    # It asks for a model of Anthropic's and for more tokens than the context has; the second turn brings the first.
    small = ("--system-prompt", "You are terse.", "--tools", "")
    first = claude(tmp_path, url, "-p", FRANCE, *small)
    assert (first["subtype"], first["is_error"], first["stop_reason"]) == ("success", False, "end_turn"), first
    assert first["result"]
    (asked,) = first["modelUsage"]
    assert asked.startswith("claude-")
    second = claude(tmp_path, url, "-p", "And of Italy?", *small, "--continue")
    assert (second["is_error"], second["session_id"]) == (False, first["session_id"]), second
    assert second["usage"]["cache_read_input_tokens"] > prompt_tokens(first) // 2


def test_claude_codes_own_prompt_is_answered_and_found_in_the_cache_by_the_next_session(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder_of("claude-code")
    roomy_url = request.getfixturevalue("roomy_url")
    limits = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "300"}
    ask = ("-p", FRANCE, "--tools", "Bash,Read", "--max-turns", "1", "--model", MODEL)
    # In one folder, which its prompt names.
    first, second = (claude(tmp_path, roomy_url, *ask, **limits) for _ in range(2))
    for answer in (first, second):
        # A model this small calls tools that it was not offered, and is then out of turns.
        assert answer["subtype"] in ("success", "error_max_turns"), answer
        assert answer["stop_reason"] in ("end_turn", "tool_use"), answer
        assert prompt_tokens(answer) > 4000
    assert second["usage"]["cache_read_input_tokens"] > 0.8 * prompt_tokens(second)


def test_codex_finishes_a_turn(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    program = folder_of("codex") / "node_modules/.bin/codex"
    url = request.getfixturevalue("roomy_url")
    provider = f'model_providers.local={{name="local",base_url="{url}/v1",wire_api="responses"}}'
    ask = ["exec", "--json", "--skip-git-repo-check", "-m", MODEL, "-c", "model_provider=local", "-c", provider, FRANCE]
    done = run([program, *ask], tmp_path)
    assert done.returncode == 0, told(done)
    events = json_lines(done.stdout)
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("thread.started", "turn.completed"), told(done)
    assert not {"error", "turn.failed"} & set(kinds), told(done)
    assert events[-1]["usage"]["input_tokens"] > 1000
    assert httpx.get(url + "/get_load").json()[0]["num_reqs"] == 0


def test_opencode_finishes_a_turn(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    program = folder_of("opencode") / "node_modules/.bin/opencode"
    url = request.getfixturevalue("roomy_url")
    (tmp_path / "work").mkdir()
    model = {"name": "demo", "limit": {"context": 65_536, "output": 300}}
    options = {"baseURL": f"{url}/v1", "apiKey": "none"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {MODEL: model}}
    config = {"provider": {"local": provider}, "model": f"local/{MODEL}", "small_model": f"local/{MODEL}"}
    (tmp_path / "work/opencode.json").write_text(json.dumps({**config, "autoupdate": False}))
    done = run([program, "run", FRANCE], tmp_path)
    assert done.returncode == 0, told(done)
    assert done.stdout.strip(), told(done)
    assert "Error" not in done.stderr, told(done)
