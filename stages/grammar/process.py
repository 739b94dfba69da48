"""The parent's side of a worker process."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import trio
from attrs import define, field

from stages.errors import EngineFailure, InvalidRequest, StartupError
from stages.grammar.engines import Engines
from stages.grammar.matchers.port import GrammarRefused, Source, Template
from stages.grammar.pool import Breach, describe_breach
from stages.grammar.worker import LENGTH, Opening
from stages.messages import Constraint
from stages.settings import GrammarSettings

START_TIMEOUT_S = 120.0
MAX_HEADER_BYTES = 64 << 20
COMMAND = (sys.executable, "-c", "from stages.grammar.worker import main; main()")


class _Died(Exception):
    """The worker has closed its pipe."""


@define(eq=False)
class Worker:
    """Compiles constraints one at a time in a process that is started when needed and killed when it must be."""

    settings: GrammarSettings
    engines: Engines
    # Templates are loaded one at a time: the engines are made lazily and are nobody's to make twice.
    loading: trio.CapacityLimiter
    _process: "trio.Process | None" = field(default=None, init=False)
    _unread: bytearray = field(factory=bytearray, init=False)

    async def compile(self, constraint: Constraint) -> Template:
        """Return the template of a constraint; raises InvalidRequest, Breach, or EngineFailure without a worker."""
        await self.start()
        seconds = self.settings.compile_timeout_s
        try:
            with trio.fail_after(seconds):
                await self._send(pickle.dumps(constraint))
                header: Mapping[str, Any] = json.loads(await self._receive(MAX_HEADER_BYTES))
                if not header["is_compiled"]:
                    raise InvalidRequest(header["message"], header["param"])
                compiled = await self._receive(self.settings.max_compiled_bytes)
        except trio.TooSlowError:
            await self.kill()
            raise Breach(f"Grammar preprocessing timed out: it took more than {seconds:g} s.") from None
        except _Died as death:
            await self.kill()
            raise Breach(describe_breach(constraint, str(death))) from None
        except trio.Cancelled:
            await self.kill()
            raise
        source = Source(**header["source"])
        load = partial(self._load, source, compiled)
        return await trio.to_thread.run_sync(load, limiter=self.loading)

    async def start(self) -> None:
        """Start the process unless it runs; raises EngineFailure when it does not come up."""
        if self._process is not None and self._process.poll() is None:
            return
        self._unread.clear()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        try:
            self._process = await trio.lowlevel.open_process(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineFailure(f"a grammar worker did not start: {error}") from None
        s = self.settings
        opening = Opening(
            s.tokenizer_path, s.vocab_size, s.eos_token_ids, s.worker_memory_bytes, 2 * s.compile_timeout_s + 1
        )
        try:
            with trio.fail_after(START_TIMEOUT_S):
                await self._send(pickle.dumps(opening))
                await self._receive(MAX_HEADER_BYTES)
        except (trio.TooSlowError, _Died):
            await self.kill()
            raise EngineFailure("a grammar worker did not start") from None
        except trio.Cancelled:
            await self.kill()
            raise

    async def kill(self) -> None:
        """End the process at once, if there is one, and leave nothing of it."""
        process, self._process = self._process, None
        if process is not None:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        await pipe.aclose()

    def _load(self, source: Source, compiled: bytes) -> Template:
        try:
            return self.engines.of(source).load(source, compiled)
        except (GrammarRefused, RuntimeError) as error:  # what the worker took this process must take too
            raise EngineFailure(f"a compiled grammar could not be loaded: {error}") from None

    async def _send(self, frame: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send_all(LENGTH.pack(len(frame)) + frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise _Died("its compiler ran out of memory or failed.") from None

    async def _receive(self, max_bytes: int) -> bytes:
        size = LENGTH.unpack(await self._exactly(LENGTH.size))[0]
        if size > max_bytes:
            raise _Died(f"it compiles to {size} bytes, more than {max_bytes}.")
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        while len(self._unread) < size:
            part = await self._process.stdout.receive_some(1 << 20)
            if not part:
                raise _Died("its compiler ran out of memory or failed.")
            self._unread += part
        frame = bytes(self._unread[:size])
        del self._unread[:size]
        return frame


async def start_first(worker: Worker) -> None:
    """Start the worker that waits for the first constraint; raises StartupError when it does not come up."""
    try:
        await worker.start()
    except EngineFailure as error:
        raise StartupError(f"--structured-outputs: {error}") from None
