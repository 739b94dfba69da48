"""The page at /dashboard as the server sends it; tests/browser has what it does in a browser."""

import re
from base64 import b64encode
from hashlib import sha256

import orjson
import pytest

from stages.ingress.dashboard import page
from tests.fakes import counting
from tests.stages.ingress.http import connected, running


def inline(tag: str) -> bytes:
    (found,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>".encode(), page().body, re.DOTALL)
    return bytes(found)


@pytest.mark.parametrize(("tag", "directive"), [("script", "script-src"), ("style", "style-src")])
def test_the_policy_lets_the_pages_own_code_run_and_no_other(tag: str, directive: str) -> None:
    policy = dict(part.split(" ", 1) for part in page().headers["content-security-policy"].split("; "))
    assert policy[directive] == f"'sha256-{b64encode(sha256(inline(tag)).digest()).decode()}'"
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"


def test_the_page_names_no_other_place_and_makes_no_markup_of_strings() -> None:
    body = page().body.decode()
    names = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"https?://[^'\"\s]+", body)) <= names
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", body)
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=\"(?!data:)", body)
    assert not re.search(r"<[a-z][^>]*\s(style|on[a-z]+)=", body)


async def test_the_page_is_open_its_figures_are_not_and_neither_is_kept_by_a_cache() -> None:
    async with running(counting(1, 0.0), api_key="k3y") as server, connected(server.port) as client:
        opened = await client.get("/dashboard")
        assert (opened.status, opened.body) == (200, page().body)
        assert opened.headers["content-type"] == "text/html; charset=utf-8"
        assert opened.headers["cache-control"] == "no-cache"
        assert b"k3y" not in opened.body
        assert (await client.get("/v1/stats/stream?limit=1")).status == 401
        figures = await client.get("/v1/stats/stream?limit=1", headers=["authorization: Bearer k3y"])
        assert figures.status == 200
        assert "no-cache" in figures.headers["cache-control"]


async def test_the_page_is_served_under_the_root_path_too() -> None:
    async with running(counting(1, 0.0), root_path="/engines/a") as server, connected(server.port) as client:
        for path in ("/dashboard", "/dashboard/", "/engines/a/dashboard"):
            assert (await client.get(path)).body == page().body
        event = await client.get("/engines/a/v1/stats/stream?limit=1")
        assert orjson.loads(re.findall(rb"data: (.*)\n\n", event.body)[0])["version_of_schema"] == 1
