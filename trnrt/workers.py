"""Several processes that serve one address: started, watched, replaced and stopped by one that does nothing else.

All accept from one listening socket, which the parent binds and they inherit: whoever is idle takes the next
connection, none is lost with a worker that dies, and a Unix socket or port 0 is no special case. With SO_REUSEPORT the
kernel would deal connections out by their addresses, to the busy as to the idle, and those that wait for a dead worker
would be reset.

Workers are started afresh, not forked after loading: a tokenizer has threads that do not live through a fork, and
reference counts would unshare what pages it shares. Each has its own tokenizer, and reads the settings that the parent
was started with.

Each worker shares a pair of sockets with the parent: it says there that it is ready, and sees there that the parent has
gone, however that was, upon which it drains as by a signal.
"""

import logging
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress

import trio
from attrs import define, field, frozen

from trnrt.children import exited, how_it_ended
from trnrt.starting import end_if_signalled

# In a worker's environment: its number, the listening socket, its end of the pair.
WORKER_VARIABLE = "TRNRT_RENDER_WORKER"
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
# A worker that was ready for so long has not died of its start.
SETTLED_S = 60.0
# Restarts in a row that never became ready.
MAX_FAILED_STARTS = 5
# Beyond the drain, what it takes to end.
STOP_MARGIN_S = 10.0
READY = b"r"

log = logging.getLogger("trnrt")


@frozen(eq=False)
class Seat:
    """A worker's place: its number, the socket it listens on, its end of the pair with the parent."""

    index: int
    bound: socket.socket
    parent: socket.socket

    def tell_ready(self) -> None:
        """Say that connections are answered."""
        self.parent.setblocking(False)
        with suppress(OSError):  # the parent has gone, which is seen where it is waited for
            self.parent.send(READY)

    async def parent_gone(self) -> None:
        """Wait until the parent has gone."""
        with trio.socket.from_stdlib_socket(self.parent.dup()) as pair:
            while await pair.recv(16):
                pass


def seat_of(environ: MutableMapping[str, str]) -> Seat | None:
    """Return the place that the parent has given this process, taking it from the environment; None without one."""
    given = environ.pop(WORKER_VARIABLE, None)
    if given is None:
        return None
    index, bound, parent = (int(part) for part in given.split(","))
    return Seat(index, socket.socket(fileno=bound), socket.socket(fileno=parent))


@define(eq=False)
class _Worker:
    """One process and whether it has become ready."""

    index: int
    process: "subprocess.Popen[bytes]"
    pair: socket.socket
    ready: trio.Event = field(factory=trio.Event)
    ready_s: float = 0.0

    async def watch_ready(self) -> None:
        """Note when it is ready; it may end before."""
        with trio.socket.from_stdlib_socket(self.pair.dup()) as pair:
            with suppress(OSError):
                if await pair.recv(1):
                    self.ready_s = trio.current_time()
                    self.ready.set()

    def tell(self, number: int) -> None:
        """Send a signal to it if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(number)


Spawn = Callable[[int, socket.socket], "subprocess.Popen[bytes]"]


@define(eq=False)
class Workers:
    """The workers of one address, and what has become of them."""

    num_workers: int
    spawn: Spawn
    drain_timeout_s: float
    exit_code: int = 0
    _live: dict[int, _Worker] = field(factory=dict)
    _stop: trio.Event = field(factory=trio.Event)

    @property
    def is_stopping(self) -> bool:
        """Whether all are to end."""
        return self._stop.is_set()

    async def run(self, *, on_ready: Callable[[], None] = lambda: None) -> int:
        """Keep all workers running until stop() or one cannot be started, and return the exit code."""
        async with trio.open_nursery() as nursery:
            readies = [trio.Event() for _ in range(self.num_workers)]
            for index, ready in enumerate(readies):
                nursery.start_soon(self._keep, index, ready)
            nursery.start_soon(self._kill_after_stop, nursery.cancel_scope)
            for ready in readies:
                await ready.wait()
            if not self.is_stopping:
                on_ready()
        return self.exit_code

    def stop(self, exit_code: int = 0) -> None:
        """Have every worker drain; a second time, end at once."""
        self.exit_code = self.exit_code or exit_code
        self._stop.set()
        for worker in self._live.values():
            worker.tell(signal.SIGTERM)

    async def _keep(self, index: int, first_ready: trio.Event) -> None:
        """Run one worker after the other until all stop."""
        wait_s, num_failed = FIRST_WAIT_S, 0
        while not self._stop.is_set():
            worker, code = await self._run_one(index, first_ready)
            if self._stop.is_set():
                # One that was still starting knows no other answer to the signal.
                is_told = _as_exit_code(code) == 128 + signal.SIGTERM and not worker.ready.is_set()
                self.exit_code = self.exit_code or (0 if is_told else _as_exit_code(code))
                break
            what = f"worker {index} (process {worker.process.pid}) {how_it_ended(code)}"
            if not first_ready.is_set():
                log.error("%s before it was ready: giving up", what)
                self.stop(_as_exit_code(code) or 1)
                break
            num_failed = 0 if worker.ready.is_set() else num_failed + 1
            if num_failed == MAX_FAILED_STARTS:
                log.error("%s, the last of %d starts in vain: giving up", what, num_failed)
                self.stop(1)
                break
            if worker.ready.is_set() and trio.current_time() - worker.ready_s >= SETTLED_S:
                wait_s = FIRST_WAIT_S
            log.error("%s: starting another in %g s", what, wait_s)
            with trio.move_on_after(wait_s):
                await self._stop.wait()
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        first_ready.set()  # nobody need wait for it any more

    async def _run_one(self, index: int, first_ready: trio.Event) -> tuple[_Worker, int]:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                worker = self._live[index] = _Worker(index, self.spawn(index, theirs), ours)
            async with trio.open_nursery() as nursery:

                async def note_ready() -> None:
                    await worker.watch_ready()
                    if worker.ready.is_set():
                        first_ready.set()

                nursery.start_soon(note_ready)
                code = await exited(worker.process)
                nursery.cancel_scope.cancel()
            del self._live[index]
        return worker, code

    async def _kill_after_stop(self, scope: trio.CancelScope) -> None:
        """End workers that do not end themselves."""
        await self._stop.wait()
        with trio.move_on_after(self.drain_timeout_s + STOP_MARGIN_S):
            while self._live:  # noqa: ASYNC110  # they end in tasks of their own, and this once
                await trio.sleep(0.02)
        for worker in self._live.values():
            log.error("worker %d did not end in time: killing it", worker.index)
            worker.tell(signal.SIGKILL)
        while self._live:  # noqa: ASYNC110
            await trio.sleep(0.02)
        scope.cancel()


async def run_workers(
    workers: Workers,
    *,
    on_ready: Callable[[], None],
    beside: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Run the workers until a signal stops them, the second at once, and return the exit code.

    `beside` runs with them; what it raises stops them, and is raised.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        end_if_signalled()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey_signals, signals, workers)
            failures: list[Exception] = []

            async def guarded(run: Callable[[], Awaitable[None]]) -> None:
                try:
                    await run()
                except Exception as error:  # raised below, once the workers have told their clients
                    failures.append(error)
                    workers.stop(1)

            if beside is not None:
                nursery.start_soon(guarded, beside)
            code = await workers.run(on_ready=on_ready)
            nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]
        return code


async def unless(other: Callable[[], Awaitable[object]], run: Callable[[], Awaitable[None]]) -> None:
    """Run until done, or until `other` is."""

    async def watch(scope: trio.CancelScope) -> None:
        await other()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        await run()
        nursery.cancel_scope.cancel()


async def _obey_signals(signals: AsyncIterator[int], workers: Workers) -> None:
    async for number in signals:
        name = signal.Signals(number).name
        if workers.is_stopping:
            log.warning("%s again: stopping at once", name)
            workers.stop(130)
        else:
            log.info("%s: draining %d workers", name, workers.num_workers)
            workers.stop()


def spawner(command: Sequence[str], bound: socket.socket, environ: Mapping[str, str]) -> Spawn:
    """Return what starts this program once more as a worker of a bound socket."""

    def spawn(index: int, theirs: socket.socket) -> "subprocess.Popen[bytes]":
        seat = f"{index},{bound.fileno()},{theirs.fileno()}"
        # A group of its own: a key pressed at the terminal is for the parent to pass on.
        return subprocess.Popen(
            [sys.executable, "-m", "trnrt", *command],
            env={**environ, WORKER_VARIABLE: seat},
            pass_fds=(bound.fileno(), theirs.fileno()),
            process_group=0,
        )

    return spawn


def _as_exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code
