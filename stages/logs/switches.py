"""What is logged of calls now: set by flags, changed by /configure_logging while serving."""

from typing import Any, Literal

from attrs import define

from stages.logs.lines import LineFormat
from stages.settings import LogSettings

MAX_REQUESTS_LEVEL = 3
# The least of each that shows sampling parameters, and texts.
WITH_SAMPLING = 1
WITH_TEXTS = 2


@define
class LogSwitches:
    """Read at each call's beginning and end."""

    requests: bool = False
    requests_level: int = 0
    requests_format: Literal["auto", "text", "json"] = "auto"
    access: bool = False
    access_health: bool = False

    def change(self, **wanted: Any) -> None:
        """Set what is not None."""
        for name, value in wanted.items():
            if value is not None:
                setattr(self, name, value)

    @property
    def line_format(self) -> LineFormat | None:
        """Return the form of requests' lines, None for that of all lines."""
        return None if self.requests_format == "auto" else self.requests_format


def switches_of(settings: LogSettings) -> LogSwitches:
    """Return the switches as they stand at the start."""
    return LogSwitches(
        settings.requests,
        settings.requests_level,
        settings.requests_format,
        settings.access,
        settings.access_health,
    )
