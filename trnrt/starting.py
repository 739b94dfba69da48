"""Signals that come while the process loads: they end it, also when the code they interrupt swallows the exception.

Imports of large libraries run a lot of code that takes any exception for a missing part, and destructors cannot raise
at all; so what came is remembered until the loop takes the signals over.
"""

import signal

_came: list[int] = []


def end_at(*numbers: signal.Signals) -> None:
    """Have these signals end the process from here on, with 128 and their number."""
    for number in numbers:
        signal.signal(number, _end)


def end_if_signalled() -> None:
    """Raise SystemExit where a signal has come and was swallowed."""
    if _came:
        raise SystemExit(128 + _came[0])


def _end(number: int, frame: object) -> None:
    _came.append(number)
    raise SystemExit(128 + number)
