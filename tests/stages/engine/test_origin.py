"""--engine-url names an origin and nothing more."""

import pytest

from stages.engine.origin import Origin, parse_origin
from stages.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "origin", "host_header"),
    [
        ("http://a", Origin("http", "a", 80), "a"),
        ("https://a/", Origin("https", "a", 443), "a"),
        ("http://127.0.0.1:30001", Origin("http", "127.0.0.1", 30001), "127.0.0.1:30001"),
        ("http://[::1]:8", Origin("http", "::1", 8), "[::1]:8"),
    ],
)
def test_an_origin_is_read(text: str, origin: Origin, host_header: str) -> None:
    assert parse_origin(text) == origin
    assert origin.host_header == host_header


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a:80",
        "ftp://a",
        "http://",
        "http://u:p@a",
        "http://u@a",
        "http://a/v1",
        "http://a?x=1",
        "http://a#f",
        "http://a:0",
        "http://a:99999",
        "http://a:x",
        "http://[::1",
    ],
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--engine-url"):
        parse_origin(text)
