"""Runs all of a decode step's bodies in one call that holds no interpreter lock.

A step is 16 bodies or more, each feeding the next. Called one by one from Python, the engine thread asks for the lock
after every body, and waits there whenever the event loop of the same process runs; a few lines of C in between take
both the wait and the cost of 16 calls away. The C is compiled once, with the compiler that built the bodies.
"""

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch
from attrs import frozen
from torch import Tensor

from graphs.shared_object import Loaded, capsule_of, handles_of, pointer_of, tensors_of

MAX_INPUTS = 32
SOURCE = """
#include <stddef.h>
typedef int (*run_t)(void *, void **, size_t, void **, size_t, void *, void *);
typedef int (*copy_t)(void *, void **);

/* Each body takes the last one's output first, then copies of its own inputs: a run takes what it is given. */
int trnrt_chain(size_t num_links, const run_t *runs, void *const *containers, const size_t *num_inputs,
                void *const *inputs, copy_t copy, void *streams, void **result) {
  for (size_t link = 0; link < num_links; link++) {
    void *given[MAX_INPUTS], *made = NULL;
    int error;
    given[0] = streams;
    for (size_t i = 1; i < num_inputs[link]; i++)
      if ((error = copy(inputs[i], &given[i]))) return error;
    inputs += num_inputs[link];
    if ((error = runs[link](containers[link], given, num_inputs[link], &made, 1, NULL, NULL))) return error;
    streams = made;
  }
  *result = streams;
  return 0;
}
"""


@frozen(eq=False)
class Link:
    """One body and its inputs after the streams: tensors that stay, or the index of one of the step's own."""

    body: Loaded
    inputs: Sequence[Tensor | int]


class Chain:
    """Bodies in order, ready to be run as one; `small` are the step's own inputs, by the index the links name."""

    def __init__(self, library: Path, links: Sequence[Link]) -> None:
        """Take the compiled driver and the links; raises ValueError for a body with other inputs than its link."""
        self._links = tuple(links)  # keeps the tensors alive whose handles are below
        counts = [len(link.inputs) + 1 for link in links]
        for link, count in zip(links, counts, strict=True):
            if count != link.body.num_inputs or count > MAX_INPUTS or link.body.num_outputs != 1:
                raise ValueError(f"{link.body.name} takes {link.body.num_inputs} inputs, its link has {count}")
        self._inputs = (ctypes.c_void_p * sum(counts))()
        self._own: list[tuple[int, int]] = []
        at = 0
        for link in links:
            for place, given in enumerate(link.inputs, at + 1):
                if isinstance(given, int):
                    self._own.append((place, given))
                else:
                    self._inputs[place] = pointer_of(handles_of([given])[0], None)
            at += len(link.inputs) + 1
        self._run = ctypes.CDLL(str(library)).trnrt_chain
        self._fixed = (
            ctypes.c_size_t(len(links)),
            (ctypes.c_void_p * len(links))(*[link.body.run_address for link in links]),
            (ctypes.c_void_p * len(links))(*[link.body.container.value for link in links]),
            (ctypes.c_size_t * len(links))(*counts),
            self._inputs,
            ctypes.c_void_p(_copy_address()),
        )

    def __call__(self, streams: Tensor, small: Sequence[Tensor]) -> Tensor:
        """Return the last body's output for streams and the step's own inputs; raises RuntimeError when one fails."""
        first, *own = handles_of([streams, *small])
        pointers = [pointer_of(handle, None) for handle in own]
        for place, index in self._own:
            self._inputs[place] = pointers[index]
        result = ctypes.c_void_p()
        error = self._run(*self._fixed, ctypes.c_void_p(pointer_of(first, None)), ctypes.byref(result))
        tensors_of(own)  # takes the handles back, which frees them
        if error:
            raise RuntimeError("a compiled body failed; what it printed to standard error says why")
        last: Tensor = tensors_of([capsule_of(result, None, None)])[0]
        return last


def driver(folder: Path) -> Path:
    """Return the compiled driver in `folder`, compiling it the first time; raises OSError or CalledProcessError."""
    text = SOURCE.replace("MAX_INPUTS", str(MAX_INPUTS))
    path = folder / f"chain.{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        command = [os.environ.get("CXX", "g++"), "-x", "c", "-O2", "-shared", "-fPIC", "-", "-o", str(scratch)]
        subprocess.run(command, input=text.encode(), check=True, capture_output=True)
        scratch.replace(path)
    return path


def _copy_address() -> int:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    address = ctypes.cast(library.aoti_torch_new_tensor_handle, ctypes.c_void_p).value
    assert address is not None
    return address
