"""What of a call that is passed on to the engine is passed on, and which calls are: paths, headers, keys. Core.

A message is never forwarded as it was framed here: its length and its transfer coding are ours to write anew, so the
engine cannot see another end of a body than this server did. What the two could still disagree about is refused: both
framings in one head, targets that are no path, dot segments.

The engine's key goes only where the operator gave one, the client brought none, and the call was let in by a key of
this server if it has any. A key of this server never leaves it.

By default the routes that an engine is run by (weights, memory, profiles, pauses, aborts of others' requests) are not
passed on: most engines have no key of their own and rely on nobody reaching them, which is just what a proxy ends.
"""

import hmac
from collections.abc import Iterable
from fnmatch import fnmatchcase
from urllib.parse import unquote_to_bytes, urlsplit

from attrs import field, frozen

from stages.errors import ConfigError, InvalidRequest, MethodNotAllowed, RequestError

Pairs = tuple[tuple[bytes, bytes], ...]

HOP_BY_HOP = frozenset(
    b"connection,keep-alive,proxy-authenticate,proxy-authorization,proxy-connection,te,trailer,transfer-encoding,"
    b"upgrade".split(b",")
)
# Written anew, or answered here: a client that waits for a 100 has had it from this server.
OURS = frozenset((b"host", b"expect"))
CREDENTIALS = frozenset((b"authorization", b"x-api-key"))
# TRACE would tell the key that was added; CONNECT is for proxies of another kind.
REFUSED_METHODS = frozenset(("TRACE", "CONNECT"))
ANY, ADMIN, NONE = "*", "admin", "none"

# Patterns of the routes that SGLang's and vLLM's servers are run by.
ADMIN_PATTERNS = (
    "/flush_cache", "/clear_hicache*", "/hicache/*", "/reset_*cache*", "/abort_request", "/pause_generation",
    "/continue_generation", "/pause", "/resume", "/open_session", "/close_session", "/configure_logging",
    "/start_profile", "/stop_profile", "/freeze_gc", "/start_expert_distribution_record",
    "/stop_expert_distribution_record", "/dump*", "/update_weight*", "/init_weights*", "/destroy_weights*",
    "/send_weights*", "/get_weights*", "/weights_checker", "/release_memory_occupation", "/resume_memory_occupation",
    "/load_lora*", "/unload_lora*", "/v1/load_lora*", "/v1/unload_lora*", "/slow_down", "/set_internal_state",
    "/set_trace_level", "/sleep", "/wake_up", "/collective_rpc", "/scale_elastic_ep", "/shutdown",
)  # fmt: skip
MAX_DECODINGS = 4


class Forbidden(RequestError):
    """The call is one that --proxy-allow and --proxy-deny keep from the engine."""

    status = 403


@frozen
class ForwardingRules:
    """Which paths are passed on, with which keys: an exact name in allow beats deny, which beats a pattern in allow."""

    allow: tuple[str, ...] = (ANY,)
    deny: tuple[str, ...] = ADMIN_PATTERNS
    engine_api_key: str | None = field(default=None, repr=False)
    # Those that open this server, and no other.
    own_keys: tuple[str, ...] = field(default=(), repr=False)

    def check(self, method: str, path: str) -> None:
        """Raise MethodNotAllowed or Forbidden for what is not passed on; the path is one of `plain_path`."""
        if method in REFUSED_METHODS:
            raise MethodNotAllowed(f"{method} is not passed on to the engine.")
        if path in self.allow:
            return
        if _matches(path, self.deny):
            raise Forbidden(f"{path} is not passed on to the engine (--proxy-deny).")
        if not _matches(path, self.allow):
            raise Forbidden(f"{path} is not passed on to the engine (--proxy-allow).")

    def request_headers(self, headers: Iterable[tuple[bytes, bytes]], *, adds_key: bool) -> Pairs:
        """Return the headers the engine gets, in their order; raises InvalidRequest for two framings in one head."""
        given = tuple((name.lower(), value) for name, value in headers)
        names = {name for name, _ in given}
        if b"content-length" in names and b"transfer-encoding" in names:
            raise InvalidRequest("Content-Length and Transfer-Encoding exclude each other.")
        dropped = OURS | named_in_connection(given)
        kept = [pair for pair in given if pair[0] not in dropped and not self._is_own_key(*pair)]
        if adds_key and self.engine_api_key is not None and not any(name in CREDENTIALS for name, _ in kept):
            kept.append((b"authorization", f"Bearer {self.engine_api_key}".encode("latin-1", "replace")))
        return tuple(kept)

    def _is_own_key(self, name: bytes, value: bytes) -> bool:
        if name not in CREDENTIALS:
            return False
        scheme, _, bearer = value.partition(b" ")
        key = bearer.strip() if name == b"authorization" and scheme.lower() == b"bearer" else value.strip()
        return any(hmac.compare_digest(own.encode(errors="surrogateescape"), key) for own in self.own_keys)


def response_headers(headers: Pairs, ours: Iterable[tuple[bytes, bytes]]) -> Pairs:
    """Return the headers the client gets: the engine's, and those of ours that it does not have."""
    names = {name for name, _ in headers}
    # The server writes a date of its own; a length beside a transfer coding was not what framed the body.
    dropped = named_in_connection(headers) | {b"date"}
    if b"transfer-encoding" in names:
        dropped = dropped | {b"content-length"}
    return (*(pair for pair in headers if pair[0] not in dropped), *(pair for pair in ours if pair[0] not in names))


def named_in_connection(headers: Pairs) -> frozenset[bytes]:
    """Return the names of headers that are for this hop only, of a message whose names are in lower case."""
    tokens = (token.strip().lower() for name, value in headers if name == b"connection" for token in value.split(b","))
    return HOP_BY_HOP | frozenset(token for token in tokens if token)


def target_of(raw_path: bytes, query: bytes) -> str:
    """Return the target to ask the engine for, path and query as they came; raises InvalidRequest for no path.

    Of an absolute form the origin is left out: there is one engine, whoever the client thinks it is.
    """
    path = raw_path.decode("ascii", "replace")
    if not path.startswith("/"):
        try:
            parts = urlsplit(path)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidRequest("The request's target is no path.")
        path = parts.path or "/"
    return f"{path}?{query.decode('ascii', 'replace')}" if query else path


def plain_path(target: str) -> str:
    """Return the path that rules are asked about: decoded, without what servers may take away from it.

    Raises InvalidRequest for dot segments, which mean a different path to whoever resolves them.
    """
    text = target.partition("?")[0]
    for _ in range(MAX_DECODINGS):
        decoded = unquote_to_bytes(text).decode("utf-8", "replace")
        if decoded == text:
            break
        text = decoded
    else:
        raise InvalidRequest("The path is encoded too many times over.")
    segments = [segment.partition(";")[0].strip() for segment in text.replace("\\", "/").split("/")]
    if any(segment in (".", "..") for segment in segments):
        raise InvalidRequest("The path has dot segments.")
    return "/" + "/".join(segment for segment in segments if segment)


def is_admin_path(path: str) -> bool:
    """Say whether a plain path is one that an engine is run by."""
    return _matches(path, ADMIN_PATTERNS)


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def patterns_of(flag: str, text: str) -> tuple[str, ...]:
    """Return the patterns of paths that a flag lists by commas, `admin` and `none` being words; raises ConfigError."""
    patterns: list[str] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        if part == ADMIN:
            patterns.extend(ADMIN_PATTERNS)
        elif part.startswith(("/", ANY)):
            patterns.append(part)
        elif part != NONE:
            raise ConfigError(f"{flag}: expected paths that begin with / (* stands for any text), got {part!r}")
    return tuple(patterns)
