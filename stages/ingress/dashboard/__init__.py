"""The page at /dashboard: one answer with all it needs, read from the files beside this one.

Nothing is fetched but the stream of snapshots, and the policy that goes with the page lets nothing else be: no script
and no style but the two in it, by their hashes, and no string that becomes markup.
"""

from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

from attrs import frozen

# In the order they stand in the page: each uses what is above it.
SCRIPTS = ("units.js", "feed.js", "judge.js", "draw.js", "charts.js", "read.js", "main.js")
STYLE_PLACE, SCRIPT_PLACE = "/* page.css */", "/* page.js */"


@frozen
class Page:
    """A whole page and the headers that go with it."""

    body: bytes
    headers: Mapping[str, str]


@cache
def page() -> Page:
    """Return the page with its style and scripts in place."""
    style, script = _read("page.css"), "".join(map(_read, SCRIPTS))
    body = _read("page.html").replace(STYLE_PLACE, style).replace(SCRIPT_PLACE, script)
    policy = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    return Page(
        body.encode(),
        {
            "content-type": "text/html; charset=utf-8",
            "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
            "cache-control": "no-cache",
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        },
    )


def _read(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
