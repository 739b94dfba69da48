"""Compiled bodies as they become ready: what is on disk at once, the rest from a subprocess of low priority.

A subprocess, because inductor holds the interpreter lock for seconds at a time and would stall serving.
"""

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from tqdm import tqdm

from graphs.catalog import Body, bodies
from graphs.compile import Compiled, Job, stored

log = logging.getLogger("trnrt")


class Bodies:
    """The compiled bodies of a job that are ready now; `ready` is replaced, never changed, so a step can hold one."""

    def __init__(self, job: Job, progress: bool = False) -> None:
        """Load what is on disk and start building the rest."""
        self._job = job
        self._all = {body.name: body for body in bodies(job.config, job.settings)}
        self.ready: Mapping[str, Compiled] = {}
        self._bar = tqdm(total=len(self._all), desc="compile", unit="graph", disable=not progress)
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        missing = [body for body in self._all.values() if not self._take(body)]
        if missing:
            self._start()
        else:
            self._bar.close()

    @property
    def num_total(self) -> int:
        """Return how many bodies there are."""
        return len(self._all)

    def wait(self) -> None:
        """Wait until every body is ready or has failed."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End the subprocess and whatever compiler it runs; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            # The process leads its own group, which holds the C++ compiler too.
            os.killpg(process.pid, signal.SIGKILL)
        self.wait()
        process.wait()

    def _take(self, body: Body) -> bool:
        compiled = stored(self._job, body)
        if compiled is None:
            return False
        self.ready = {**self.ready, body.name: compiled}
        self._bar.update()
        return True

    def _start(self) -> None:
        root = str(Path(__file__).parent.parent)
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            # What the processor says it can do is believed; trying it out compiles six programs first.
            "TORCHINDUCTOR_VEC_ISA_OK": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(self._job.folder.parent / "inductor"),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "graphs.compile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        with self._process.stdin as pipe:
            pickle.dump(self._job, pipe)
        self._thread = threading.Thread(target=self._listen, args=(self._process,), name="trnrt-compile", daemon=True)
        self._thread.start()

    def _listen(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                verdict, name, *why = line.decode().rstrip().split(" ", 2)
                if verdict == "failed":
                    log.warning("graph %s stays eager: %s", name, *why)
                elif name not in self.ready:
                    self._take(self._all[name])
        self._bar.close()
        left = self.num_total - len(self.ready)
        code = process.wait()
        if code == 0:  # not when `close` has ended it
            log.info("%d of %d graphs are compiled and in use", len(self.ready), self.num_total)
        elif code > 0 and left:
            log.warning("the compile process ended with code %d; %d graphs stay eager", process.returncode, left)
