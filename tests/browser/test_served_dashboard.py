"""The dashboard of a whole server with the shipped model, in a real browser: what it shows is what happened."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.clients.process import Server, started

KEY = "right"
HEADERS = {"authorization": f"Bearer {KEY}", "x-request-id": "<b>mine</b>"}
LONG = {
    "model": "glm-5.3-flash-demo",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 600,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def server(browser: Any) -> Iterator[Server]:
    with started("--api-key", KEY, "--root-path", "/engines/a") as server:
        yield server


def post(server: Server, body: dict[str, Any], request_id: str) -> int:
    headers = {**HEADERS, "x-request-id": request_id}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=120).status_code


def test_a_request_is_seen_while_it_runs_and_counted_when_it_has_ended(server: Server, browser: Any) -> None:
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{server.url}/engines/a/dashboard")
    page.locator("#ask-key").fill(KEY)
    page.keyboard.press("Enter")
    page.locator("#headline", has_text="Healthy").wait_for()
    assert page.locator("#n-running").inner_text() == "0"

    running = threading.Thread(target=post, args=(server, LONG, "it-runs"))
    running.start()
    page.locator("#running tbody th", has_text="it-runs").wait_for(timeout=60_000)
    running.join()
    page.locator("#running tbody", has_text="Nothing runs.").wait_for(timeout=30_000)
    page.locator("#footer", has_text="since the start 1.0 requests").wait_for(timeout=30_000)
    assert page.locator("#latency tbody tr").first.locator("td").first.inner_text() != "–"
    stages = [one.get_attribute("data-stage") for one in page.locator(".stage").all()]
    assert stages == ["ingress", "prompt", "queue", "scheduler", "executor", "detokenizer"]
    # The 401 that made it ask for the key is told by the browser itself.
    assert [text for text in said if "401" not in text] == []
    page.close()


def test_what_was_wrong_with_a_request_is_listed_by_its_id(server: Server, browser: Any) -> None:
    page = browser.new_page()
    page.goto(f"{server.url}/dashboard")
    page.locator("#ask-key").fill(KEY)
    page.keyboard.press("Enter")
    assert post(server, {**LONG, "max_tokens": "many"}, "it-is-wrong") == 400
    row = page.locator("#errors tbody tr", has_text="it-is-wrong")
    row.wait_for(timeout=30_000)
    assert "400" in row.inner_text()
    page.locator("#headline", has_text="Healthy").wait_for()
    page.close()


def test_the_page_says_that_a_server_has_gone(browser: Any) -> None:
    with started() as server:
        page = browser.new_page()
        page.goto(f"{server.url}/dashboard")
        page.locator("#link", has_text="live").wait_for(timeout=30_000)
        server.terminate()
        assert server.wait() == 0
        page.locator("#headline", has_text="No figures").wait_for(timeout=30_000)
        page.close()
