"""Everything that is logged anywhere in the process becomes an entry: ours, libraries', warnings, what none caught."""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import TracebackException
from typing import TextIO

from stages.calls import current_call
from stages.logs.lines import Entry, LineFormat
from stages.logs.writer import LineWriter, Write, to_descriptor

log = logging.getLogger("trnrt")


class EntryHandler(logging.Handler):
    """Gives every record to a writer, with the id of the call it was made for."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self.writer = writer

    def handle(self, record: logging.LogRecord) -> bool:
        """Give on what the filters let through, without the lock of a handler: threads would wait for each other."""
        passed = bool(self.filter(record))
        if passed:
            self.emit(record)
        return passed

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record; one that cannot be made into text is told as such."""
        try:
            self.writer.put(entry_of(record))
        except Exception:
            self.handleError(record)


def entry_of(record: logging.LogRecord) -> Entry:
    """Return what a record says, as of now: what its arguments are later is nobody's business.

    `extra` may bring request_id, fields and line_format; the call of the task that logs is known without.
    """
    call = current_call()
    return Entry(
        created_s=record.created,
        level=record.levelname,
        logger=record.name,
        message=record.getMessage(),
        request_id=getattr(record, "request_id", call.request_id if call is not None else None),
        traceback=_traceback(record),
        fields=getattr(record, "fields", {}),
        format=getattr(record, "line_format", None),
    )


@contextmanager
def logging_to(stream: TextIO, level: str, line_format: LineFormat) -> Iterator[LineWriter]:
    """Write all that is logged within the block to `stream`, and what is there at its end before it ends.

    Warnings, and exceptions that end a thread or come out of a destructor, are logged too.
    """
    writer = LineWriter(_write_of(stream), line_format)
    handler = EntryHandler(writer)
    root = logging.getLogger()
    level_before, handlers_before = root.level, root.handlers[:]
    hooks_before = threading.excepthook, sys.unraisablehook
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    threading.excepthook, sys.unraisablehook = _uncaught_in_thread, _unraisable
    writer.start()
    try:
        yield writer
    finally:
        writer.close()
        threading.excepthook, sys.unraisablehook = hooks_before
        logging.captureWarnings(False)
        root.handlers[:] = handlers_before
        root.setLevel(level_before)


def num_lost_lines() -> int:
    """Return how many lines the log of this process has lost."""
    handlers = logging.getLogger().handlers
    return sum(handler.writer.num_lost for handler in handlers if isinstance(handler, EntryHandler))


def _traceback(record: logging.LogRecord) -> TracebackException | None:
    """Return what is needed to write a traceback later, without the frames themselves and without reading a file."""
    if not record.exc_info or record.exc_info[0] is None:
        return None
    return TracebackException(*record.exc_info, lookup_lines=False)


def _write_of(stream: TextIO) -> Write:
    try:
        return to_descriptor(stream.fileno())
    except (OSError, ValueError, AttributeError):  # no file behind it
        return lambda data: _write_text(stream, data)


def _write_text(stream: TextIO, data: bytes) -> None:
    stream.write(data.decode())


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = args.thread.name if args.thread is not None else "?"
        log.error("thread %s failed", name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback))


def _unraisable(args: "sys.UnraisableHookArgs") -> None:
    what = args.err_msg or "an exception was ignored"
    info = (args.exc_type, args.exc_value, args.exc_traceback) if args.exc_value is not None else None
    log.error("%s: %r", what, args.object, exc_info=info)
