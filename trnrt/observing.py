"""What every role that serves does the same to be seen: log switches, and traces where a collector is named."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

from stages.errors import ConfigError, StartupError
from stages.ingress.calls import Calls
from stages.logs.switches import LogSwitches
from stages.messages import RequestRecord
from stages.traces.exporter import TraceExporter
from trnrt.config import HttpConfig

TRACES_PATH = "/v1/traces"
SERVICE = "trnrt"

SendRecord = Callable[[RequestRecord], None]


def calls_of(config: HttpConfig, send: SendRecord, exporter: TraceExporter | None) -> Calls:
    """Return what a server's calls leave behind: records to `send`, traces to the exporter, log lines."""

    def send_both(record: RequestRecord) -> None:
        send(record)
        if exporter is not None:
            exporter.offer(record)

    logs = LogSwitches(
        config.log_requests,
        config.log_requests_level,
        config.log_requests_format,
        config.access_log,
        config.access_log_health,
    )
    return Calls(send_both, logs)


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


def open_traces(config: HttpConfig, version: str, environ: Mapping[str, str]) -> TraceExporter | None:
    """Return the exporter to the collector, not started, None for none; raises StartupError naming what is missing."""
    if config.otlp_endpoint is None:
        return None
    url = traces_url(config.otlp_endpoint)
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


def check_traces(config: HttpConfig) -> None:
    """Raise StartupError, naming the flag, where traces could not be sent as they are to be."""
    open_traces(config, "", {})


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
