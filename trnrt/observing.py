"""What every role that serves does the same to be seen: log switches, and traces where a collector is named."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, Protocol
from urllib.parse import urlsplit

from stages.errors import ConfigError, StartupError
from stages.messages import RequestRecord
from stages.settings import LogSettings
from stages.traces.exporter import TraceExporter

TRACES_PATH = "/v1/traces"
SERVICE = "trnrt"

SendRecord = Callable[[RequestRecord], None]


class LogFlags(Protocol):
    """The flags of a role that say what is logged of calls."""

    @property
    def log_requests(self) -> bool:
        """Return --log-requests."""
        ...

    @property
    def log_requests_level(self) -> int:
        """Return --log-requests-level."""
        ...

    @property
    def log_requests_format(self) -> Literal["auto", "text", "json"]:
        """Return --log-requests-format."""
        ...

    @property
    def access_log(self) -> bool:
        """Return --access-log."""
        ...

    @property
    def access_log_health(self) -> bool:
        """Return --access-log-health."""
        ...


def log_settings(flags: LogFlags) -> LogSettings:
    """Return what is logged of calls at the start."""
    return LogSettings(
        flags.log_requests,
        flags.log_requests_level,
        flags.log_requests_format,
        flags.access_log,
        flags.access_log_health,
    )


def traces_url(endpoint: str) -> str:
    """Return where traces go at a collector; raises ConfigError for what is no address of one."""
    url = endpoint if "://" in endpoint else f"http://{endpoint}"
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.query or parts.fragment:
        raise ConfigError(f"--otlp-endpoint: expected http://HOST:PORT, got {endpoint!r}")
    if "@" in parts.netloc:  # it would stand in /server_info
        raise ConfigError("--otlp-endpoint: takes no password; put credentials into OTEL_EXPORTER_OTLP_HEADERS")
    path = parts.path.rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path if path.endswith(TRACES_PATH) else path + TRACES_PATH}"


def open_traces(endpoint: str, version: str, environ: Mapping[str, str]) -> TraceExporter:
    """Return the exporter to a collector, not started; raises StartupError that names the extra it needs."""
    url = traces_url(endpoint)
    try:
        from stages.traces.otlp import open_exporter
    except ModuleNotFoundError as error:
        raise StartupError(
            f"--otlp-endpoint needs OpenTelemetry ({error.name} is missing): pip install 'trnrt[otel]'"
        ) from None
    attributes = {"service.version": version}
    if "OTEL_SERVICE_NAME" not in environ and "service.name=" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes["service.name"] = SERVICE
    return open_exporter(url, attributes, version)


@contextmanager
def exporting(exporter: TraceExporter | None) -> Iterator[None]:
    """Let an exporter, where there is one, send for the block and what waits after it."""
    if exporter is None:
        yield
        return
    exporter.start()
    try:
        yield
    finally:
        exporter.close()


def send_to(send: SendRecord, exporter: TraceExporter | None) -> SendRecord:
    """Return what gives each call's record to `send` and to the exporter, where there is one."""
    if exporter is None:
        return send

    def send_both(record: RequestRecord) -> None:
        send(record)
        exporter.offer(record)

    return send_both
