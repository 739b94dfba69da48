"""Where an engine is: the origin an --engine-url names. Core."""

from urllib.parse import urlsplit

from attrs import frozen

from stages.errors import ConfigError

_PORTS = {"http": 80, "https": 443}


@frozen
class Origin:
    """Scheme, host and port of an engine."""

    scheme: str
    host: str
    port: int

    @property
    def is_tls(self) -> bool:
        """Whether it is spoken to by TLS."""
        return self.scheme == "https"

    @property
    def host_header(self) -> str:
        """Return the value of Host: the port is there unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        """Return the origin as a URL."""
        return f"{self.scheme}://{self.host_header}"


def parse_origin(text: str) -> Origin:
    """Return the origin an --engine-url names; raises ConfigError for one with more to it than an origin."""

    def wrong(reason: str) -> ConfigError:
        return ConfigError(f"--engine-url: invalid engine URL: {reason}")

    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError as error:
        raise wrong(str(error)) from None
    if parts.scheme not in _PORTS:
        raise wrong(f"it must begin with http:// or https://, got {text!r}")
    if not parts.hostname:
        raise wrong("it names no host")
    if parts.username is not None or parts.password is not None:
        raise wrong("it may hold no user or password; see --engine-api-key")
    if parts.path not in ("", "/"):
        raise wrong(f"it must be an origin without a path, got {parts.path!r}")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise wrong("it may hold no query or fragment")
    if port == 0:
        raise wrong("its port is 0")
    return Origin(parts.scheme, parts.hostname, port or _PORTS[parts.scheme])
