"""The thread that writes the production log, and the bounded queue in front of it.

    stats stage, gauges --offer--> queue --> thread: Writer.turn --> Journal

The event loop only appends to a queue. What finds it full is lost, counted, and told in a line of its own once lines
can be written again. After a failure the log says so once and tries again every RETRY_S, with everything it still has.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import trio
from attrs import define, field

from stages.messages import Load, RequestRecord, StatsInbox
from stages.stats.prodlog.folder import Folder
from stages.stats.prodlog.journal import Item, Journal, LoadSeen, Run
from stages.stats.prodlog.lines import LostLine

# Some 400 bytes each: a few megabytes, and 80 s at a hundred requests a second.
QUEUE_ITEMS = 8192
# Of those, how many the thread has in hand at most.
BATCH_ITEMS = 1024
# How long a line waits for others to be written with.
GATHER_S = 0.25
# What a power loss may take.
SYNC_S = 5.0
RETRY_S = 5.0
# How long the end of the server waits for a disk that does not answer.
CLOSE_S = 3.0
GAUGES_S = 5.0
# A folder has some FILES files, which is also how many processes it has room for.
FILES, MIN_FILE_BYTES, MAX_FILE_BYTES = 16, 1 << 16, 1 << 26

log = logging.getLogger("trnrt.prodlog")


@define(eq=False)
class Writer:
    """What the thread does, one turn at a time, on whatever clock it is told."""

    journal: Journal
    queue: deque[Item] = field(factory=deque)
    # Counted by whoever offers; the writer only reads it.
    num_lost: int = 0
    _num_told: int = 0
    _taken: deque[Item] = field(factory=deque)
    _failing_since_s: float | None = None
    _retry_at_s: float = 0.0
    _synced_at_s: float = 0.0

    def offer(self, item: Item) -> None:
        """Queue the item if there is room; otherwise count it as lost. Called by one thread only."""
        if len(self.queue) < QUEUE_ITEMS:
            self.queue.append(item)
        else:
            self.num_lost += 1

    def turn(self, now_s: float) -> float | None:
        """Write what there is; return when to come back though nothing new came, None for not at all."""
        if self._failing_since_s is not None and now_s < self._retry_at_s:
            return self._retry_at_s
        try:
            self._write_all()
            is_due = now_s - self._synced_at_s >= SYNC_S
            if is_due:
                self.journal.sync()
                self._synced_at_s = now_s
        except OSError as error:
            return self._failed(error, now_s)
        if self._failing_since_s is not None:
            log.warning("the production log is written again, after %.0f s", now_s - self._failing_since_s)
            self._failing_since_s = None
        file = self.journal.file
        return None if file is None or file.is_synced else self._synced_at_s + SYNC_S

    def close(self, now_s: float) -> None:
        """Write what there is, whatever failed before, and end the file."""
        self._retry_at_s = now_s
        self.turn(now_s)
        try:
            self.journal.close()
        except OSError as error:
            log.warning("the production log was not ended: %s", error.strerror)
        untold = sum(item.count if isinstance(item, LostLine) else 1 for item in self._taken)
        num_left = len(self.queue) + untold + self.num_lost - self._num_told
        if num_left:
            log.warning("the production log ends without its last %d lines", num_left)

    def _write_all(self) -> None:
        """Write the queue a batch at a time, and losses beside it; raises OSError."""
        while self.queue or self._taken or self.num_lost > self._num_told:
            while self.queue and len(self._taken) < BATCH_ITEMS:
                self._taken.append(self.queue.popleft())
            self.journal.write(self._taken)
            num_lost = self.num_lost
            if num_lost > self._num_told:
                self._taken.append(LostLine(at_s=round(self.journal.clock(), 6), count=num_lost - self._num_told))
                self._num_told = num_lost

    def _failed(self, error: OSError, now_s: float) -> float:
        if self._failing_since_s is None:
            self._failing_since_s = now_s
            log.warning(
                "the production log cannot be written: %s: %s; serving goes on, and it is tried again every %.0f s",
                self.journal.folder.path,
                error.strerror,
                RETRY_S,
            )
        self._retry_at_s = now_s + RETRY_S
        return self._retry_at_s


@define(eq=False)
class ProdLog:
    """A production log that is being written: what others hand their records to. Neither waits nor fails."""

    writer: Writer
    wall_clock: Callable[[], float] = time.time
    _wake: threading.Event = field(factory=threading.Event)
    _closing: threading.Event = field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="prodlog", daemon=True)
        self._thread.start()

    def tap(self, item: StatsInbox) -> None:
        """Log what comes to the stats stage, of it the calls."""
        if isinstance(item, RequestRecord):
            self.request(item)

    def request(self, record: RequestRecord) -> None:
        """Log a call that has ended."""
        self._offer(record)

    def gauges(self, load: Load) -> None:
        """Log where the engine stands."""
        self._offer(LoadSeen(load, self.wall_clock()))

    def lost(self, count: int) -> None:
        """Log that the stats stage had no room for so many records."""
        self._offer(LostLine(at_s=round(self.wall_clock(), 6), count=count, reason="stats"))

    def close(self) -> None:
        """Write what there is and end the file, unless the disk takes longer than CLOSE_S."""
        self._closing.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                log.warning("the production log's disk does not answer; its last lines are lost")

    def _offer(self, item: Item) -> None:
        self.writer.offer(item)
        if not self._wake.is_set():
            self._wake.set()

    def _run(self) -> None:
        try:
            again_s: float | None = None
            while not self._closing.is_set():
                self._wake.wait(None if again_s is None else max(0.0, again_s - time.monotonic()))
                self._closing.wait(GATHER_S)
                self._wake.clear()
                again_s = self.writer.turn(time.monotonic())
            self.writer.close(time.monotonic())
        except Exception:
            log.exception("the production log failed; serving goes on without it")


def open_prodlog(path: Path, max_bytes: int, run: Run) -> ProdLog:
    """Return the production log of a process in the folder `path`, whose files have max_bytes together; not started."""
    file_bytes = max(MIN_FILE_BYTES, min(MAX_FILE_BYTES, max_bytes // FILES))
    return ProdLog(Writer(Journal(Folder(path, max_bytes, file_bytes), run)))


async def run_gauges(
    load: Callable[[], Load | None],
    num_lost: Callable[[], int],
    prodlog: ProdLog,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Log the load, where there is one, and what the stats stage has lost, every GAUGES_S and at the end."""
    newest, num_told = None, 0

    def look() -> None:
        nonlocal newest, num_told
        now, lost = load(), num_lost()
        if now is not None and now != newest:
            prodlog.gauges(now)
        if lost > num_told:
            prodlog.lost(lost - num_told)
        newest, num_told = now, lost

    task_status.started()
    try:
        while True:
            look()
            await trio.sleep(GAUGES_S)
    finally:
        look()
