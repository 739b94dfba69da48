"""What is logged of calls now: set by flags, changed by /configure_logging while serving."""

from typing import Any, Literal

from attrs import define

from stages.logs.lines import LineFormat

MAX_REQUESTS_LEVEL = 3
# The least of each that shows sampling parameters, and texts.
WITH_SAMPLING = 1
WITH_TEXTS = 2


@define
class LogSwitches:
    """Read at each call's beginning and end."""

    requests: bool = False
    # 0: counts and times; 1: sampling parameters too; 2: the beginnings and ends of texts; 3: everything.
    requests_level: int = 0
    requests_format: Literal["auto", "text", "json"] = "auto"
    access: bool = False
    # Whether access lines are written of health checks too.
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
