"""Unix time as the text other APIs tell it in."""

from datetime import UTC, datetime


def rfc3339(unix_s: float) -> str:
    """Return an instant as RFC 3339 text in UTC, to the microsecond."""
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
