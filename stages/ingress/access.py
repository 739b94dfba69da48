"""Who may call what: API keys, and which web pages may read answers. Core.

A key comes as `Authorization: Bearer KEY` or, as Anthropic's clients send it, as `x-api-key`. With an admin key the
admin routes need that one, and the other opens them no more. Health checks never need a key, nor does a browser's
preflight, which cannot carry one.

Where a key is needed, a header that carries one comes once: of two, whoever checked the call on its way may have looked
at the other.
"""

import hmac
from collections.abc import Iterable, Mapping

from attrs import frozen

from stages.errors import InvalidRequest, Unauthorized

# Everything under these is open: what load balancers and scrapers ask, and a page without figures, which asks for
# the key that they need.
OPEN_PREFIXES = ("/health", "/ready", "/metrics", "/dashboard", "/_sglang_renderer/")
CREDENTIAL_HEADERS = ("authorization", "x-api-key")
ANY_ORIGIN = "*"
PREFLIGHT_MAX_AGE_S = "600"
EXPOSED_HEADERS = "x-request-id, request-id, retry-after, x-trnrt-queue-full"


@frozen
class Access:
    """The keys and origins that a server takes; without a key everything is open."""

    api_key: str | None = None
    admin_api_key: str | None = None
    allowed_origins: tuple[str, ...] = (ANY_ORIGIN,)
    admin_paths: frozenset[str] = frozenset()

    def check(self, method: str, path: str, headers: Iterable[tuple[str, str]], *, is_admin: bool = False) -> None:
        """Raise Unauthorized unless the call is open or brings the key its route needs; InvalidRequest for two.

        is_admin says that the path is an admin route of the engine's.
        """
        if _is_open(method, path):
            return
        needs_admin_key = self.needs_admin_key(path) or (is_admin and self.admin_api_key is not None)
        key = self.admin_api_key if needs_admin_key else self.api_key
        if key is not None and not any(_equal(key, given) for given in _given(_credentials(headers))):
            raise Unauthorized

    def asks_for_key(self, method: str, path: str) -> bool:
        """Say whether a call that was let in has shown a key, or is to a server that has none."""
        return self.keys == () or not _is_open(method, path)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys that open something here."""
        return tuple(key for key in (self.api_key, self.admin_api_key) if key is not None)

    def needs_admin_key(self, path: str) -> bool:
        """Say whether the admin key, and no other, opens a path."""
        return self.admin_api_key is not None and path.rstrip("/") in self.admin_paths

    def cors_headers(self, origin: str | None) -> dict[str, str]:
        """Return what tells a browser at `origin` that its page may read the answer; nothing when it may not."""
        if origin is None or not self._allows(origin):
            return {}
        if ANY_ORIGIN in self.allowed_origins:
            return {"access-control-allow-origin": ANY_ORIGIN, "access-control-expose-headers": EXPOSED_HEADERS}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": EXPOSED_HEADERS,
            "vary": "Origin",
        }

    def preflight_headers(self, headers: Mapping[str, str]) -> dict[str, str] | None:
        """Return the answer to a browser's question whether it may call; None when this is no such question."""
        method = headers.get("access-control-request-method")
        if method is None or "origin" not in headers:
            return None
        allowed = self.cors_headers(headers["origin"])
        if not allowed:
            return {}
        return {
            **allowed,
            "access-control-allow-methods": method,
            "access-control-allow-headers": headers.get("access-control-request-headers", "*"),
            "access-control-max-age": PREFLIGHT_MAX_AGE_S,
        }

    def _allows(self, origin: str) -> bool:
        return ANY_ORIGIN in self.allowed_origins or origin in self.allowed_origins


def _is_open(method: str, path: str) -> bool:
    return method == "OPTIONS" or path.startswith(OPEN_PREFIXES)


def _credentials(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers that carry a key, by name; raises InvalidRequest for one that comes again."""
    found: dict[str, str] = {}
    for name, value in headers:
        if (lower := name.lower()) in CREDENTIAL_HEADERS:
            if lower in found:
                raise InvalidRequest(f"The header {lower} came more than once.", lower)
            found[lower] = value
    return found


def _given(headers: Mapping[str, str]) -> list[str]:
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    keys = [bearer.strip()] if scheme.lower() == "bearer" else []
    return keys + ([headers["x-api-key"]] if "x-api-key" in headers else [])


def _equal(key: str, given: str) -> bool:
    """Compare in a time that says nothing of where they differ."""
    return hmac.compare_digest(key.encode(errors="surrogateescape"), given.encode(errors="surrogateescape"))
