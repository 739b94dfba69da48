"""Starts `python -m trnrt` on a free port and ends it by its own process id."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """A running server: its url, its log so far."""

    def __init__(self, *flags: str, command: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trnrt", *command, "--port", "0", *flags],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.log: list[str] = []
        self.url = self._wait_for_url()
        self._reader = Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float = 60) -> int:
        return self.process.wait(timeout_s)

    def close(self) -> None:
        if self.process.poll() is None:
            self.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _wait_for_url(self) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"listening on (http://\S+)", line):
                return found.group(1)
        raise AssertionError(f"the server ended with {self.process.wait()}:\n{''.join(self.log)}")

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        self.log.extend(self.process.stderr)


@contextmanager
def started(*flags: str, command: Sequence[str] = ()) -> Iterator[Server]:
    server = Server(*flags, command=command)
    try:
        yield server
    finally:
        server.close()
