"""Compiles bodies ahead of time and keeps them on disk, one file each, named by what made them and what they hold.

    <cache>/<fingerprint>/<body>.<digest>.so

The fingerprint covers everything that could change the machine code: settings, config, the source of graphs/, torch,
the processor and the thread count. What edits logits and scores prompts has a folder of its own, so that turning it on
compiles no layer anew. The digest is of the file's own bytes: a file that does not match it, or does not
load, is thrown away with one log line and built anew. Files appear by rename, so a reader never sees half of one.

`python -m graphs.compile` is the background half: it reads a pickled Job from standard input, builds what is missing,
on two processes where there are two cores, and prints `ready <body>` or `failed <body> <why>` a line as each is done.
"""

import contextlib
import hashlib
import logging
import multiprocessing
import os
import pickle
import platform
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch.export import ExportedProgram

from graphs.capture import capture
from graphs.capture_ending import capture_ending
from graphs.catalog import ENDING_PARTS, Body, bodies
from graphs.config import Config
from graphs.settings import GraphSettings
from graphs.shared_object import Loaded

log = logging.getLogger("trnrt")
NICENESS = 10
MAX_WORKERS = 2  # each needs a core and half a gigabyte, and serving goes on meanwhile
SCRATCH = "scratch-"
STALE_S = 3600.0
SOURCES = ("layers/*.py", "models/*.py", "capture.py", "packing.py", "parameters.py", "state.py")
ENDING_SOURCES = ("layers/edits.py", "layers/scores.py", "capture_ending.py")
Compiled = Callable[[list[Tensor]], list[Tensor]]


@frozen
class Job:
    """What to compile, for how many compute threads, and the folders that keep layers and endings."""

    config: Config
    settings: GraphSettings
    folder: Path
    ending_folder: Path
    threads: int = 1

    @classmethod
    def of(cls, config: Config, settings: GraphSettings, cache: Path, threads: int = 1) -> "Job":
        """Return the job whose folders under `cache` are named by everything that could change the machine code."""
        made_by = (torch.__version__, sys.version, processor(), inductor_configs(threads))
        folder = cache / settings.fingerprint(config, threads, source_digest(), *made_by)
        ending = cache / settings.ending_fingerprint(config, threads, ending_digest(), *made_by)
        return cls(config, settings, folder, ending, threads)

    def folder_of(self, body: Body) -> Path:
        """Return the folder that keeps `body`."""
        return self.ending_folder if body.part in ENDING_PARTS else self.folder


def source_digest() -> str:
    """Return a digest of every source file that could change a layer or a draw."""
    root = Path(__file__).parent
    apart = {root / name for name in ENDING_SOURCES}
    return _digest_of(root, {path for pattern in SOURCES for path in root.glob(pattern)} - apart)


def ending_digest() -> str:
    """Return a digest of every source file that could change what edits logits or scores prompts."""
    root = Path(__file__).parent
    return _digest_of(root, {root / name for name in (*ENDING_SOURCES, "capture.py", "layers/sampling.py")})


def _digest_of(root: Path, paths: set[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def processor() -> str:
    """Return what the compiler's -march=native and the kernels' vector width depend on."""
    flags = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith("flags")), "")
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {flags}"


def has_compiler() -> bool:
    """Return whether this machine has the C++ compiler that inductor would call."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


# ---------------------------------------------------------------------------------------------------------------------
# One body on disk
# ---------------------------------------------------------------------------------------------------------------------


def build(job: Job, body: Body) -> Path:
    """Capture, compile and store one body; returns its file."""
    program = captured(body, job.config, job.settings)
    folder = job.folder_of(body)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch:
        package = torch._inductor.aoti_compile_and_package(
            program,
            package_path=os.path.join(scratch, "body.pt2"),
            inductor_configs=inductor_configs(job.threads),
        )
        made = _unpack(Path(package), Path(scratch) / "body.so")
        path = folder / f"{body.name}.{_digest(made)}.so"
        os.replace(made, path)
    return path


def captured(body: Body, config: Config, settings: GraphSettings) -> ExportedProgram:
    """Return the captured program of any body."""
    return (capture_ending if body.part in ENDING_PARTS else capture)(body, config, settings)


def _unpack(package: Path, made: Path) -> Path:
    """Write the package's shared object to `made`; raises RuntimeError when it calls back into torch's dispatcher."""
    with zipfile.ZipFile(package) as archive:
        names = archive.namelist()
        # Nodes that inductor has no kernel for need a proxy executor, which only torch's own loader gives them.
        if any("extern_kernel_nodes" in name for name in names):
            raise RuntimeError("the body has operators without a kernel")
        (library,) = (name for name in names if name.endswith(".so"))
        made.write_bytes(archive.read(library))
    return made


def inductor_configs(threads: int) -> dict[str, Any]:
    """Return how inductor is to compile for `threads` compute threads."""
    return {
        # Twelve seconds once a machine, five saved a body.
        "aot_inductor.precompile_headers": True,
        # It looks for kernels too small to vectorise: found none that matter, for a fifth of inductor's time.
        "cpp.enable_tiling_heuristics": False,
        # Captured from 2 rows up, run with 1 too: nothing in a body depends on there being more than one.
        "aot_inductor.check_lowerbound": False,
        # A quarter of g++'s time, for line numbers in crash reports.
        "aot_inductor.enable_line_tables": False,
        "cpp.threads": threads,
    }


def stored(job: Job, body: Body) -> Compiled | None:
    """Return the body loaded from disk, or None when it is not there; a damaged file is removed with a log line."""
    for path in sorted(job.folder_of(body).glob(f"{body.name}.*.so")):
        try:
            if path.name.split(".")[1] != _digest(path):
                raise ValueError("its digest does not match")
            return Loaded(path)
        except Exception as error:  # whatever a damaged package raises: it is rebuilt either way
            log.warning("compiled graph %s is damaged (%s); building it anew", path.name, error)
            path.unlink(missing_ok=True)
    return None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def is_stored(job: Job, body: Body) -> bool:
    """Return whether the body has a file, damaged or not."""
    return any(job.folder_of(body).glob(f"{body.name}.*.so"))


def main() -> None:
    """Build every missing body of the job on standard input, politely, telling each on standard output."""
    job: Job = pickle.load(sys.stdin.buffer)
    os.nice(NICENESS)
    torch.set_num_threads(1)
    _sweep(job.folder)
    _sweep(job.ending_folder)
    missing = [body for body in bodies(job.config, job.settings) if not is_stored(job, body)]
    torch._inductor.cpu_vec_isa.pick_vec_isa()  # tries the compiler; once here, not in every worker
    workers = min(MAX_WORKERS, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        building = {pool.submit(build, job, body): body.name for body in missing}
        try:
            for done in as_completed(building):
                print(_verdict(building[done], done.exception()), flush=True)
        except BrokenPipeError:
            pool.shutdown(cancel_futures=True)


def _verdict(name: str, error: BaseException | None) -> str:
    if error is None:
        return f"ready {name}"
    return f"failed {name} {type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _sweep(folder: Path) -> None:
    # What a killed compile left; a younger one may be another process's.
    for scratch in folder.glob(f"{SCRATCH}*"):
        if time.time() - scratch.stat().st_mtime > STALE_S:
            shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
