"""Calls a compiled body through its C interface, without holding the interpreter lock while it runs.

torch's own loader keeps the lock for the whole run: 17 bodies a step held it nearly all the time, and the event loop
of the same process got what was left between two of them. ctypes gives the lock up around every call.

Tensors cross as handles, each a new at::Tensor on the heap. A run takes ownership of its input handles and of nothing
else, whether it succeeds or not; the outputs it makes are ours, and become tensors again by taking theirs.
"""

import ctypes
import os
from pathlib import Path

import torch
from torch import Tensor

handles_of = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors
tensors_of = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs

pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
capsule_of = ctypes.pythonapi.PyCapsule_New
capsule_of.restype, capsule_of.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

PREFIX = "AOTInductorModelContainer"


class Loaded:
    """A compiled body as a function of its inputs.

    # Invariant: library and container live as long as the process: nothing unloads a body that may be running.
    """

    def __init__(self, path: Path) -> None:
        """Load the body in a shared object; raises OSError or RuntimeError if it is none."""
        self.name = path.name
        library = ctypes.CDLL(_private_copy(path), mode=ctypes.RTLD_LOCAL)
        self.container = ctypes.c_void_p()
        create = library[PREFIX + "CreateWithDevice"]
        self._check(create(ctypes.byref(self.container), ctypes.c_size_t(1), b"cpu", None))
        count = ctypes.c_size_t()
        self._check(library[PREFIX + "GetNumInputs"](self.container, ctypes.byref(count)))
        self.num_inputs = count.value
        self._check(library[PREFIX + "GetNumOutputs"](self.container, ctypes.byref(count)))
        self.num_outputs = count.value
        self._run = library[PREFIX + "RunSingleThreaded"]
        self._inputs, self._outputs = ctypes.c_void_p * self.num_inputs, ctypes.c_void_p * self.num_outputs
        self._counts = ctypes.c_size_t(self.num_inputs), ctypes.c_size_t(self.num_outputs)

    @property
    def run_address(self) -> int | None:
        """Return the address of the body's C function."""
        return ctypes.cast(self._run, ctypes.c_void_p).value

    def __call__(self, inputs: list[Tensor]) -> list[Tensor]:
        """Run the body; raises RuntimeError when it fails."""
        if len(inputs) != self.num_inputs:
            raise RuntimeError(f"{self.name} takes {self.num_inputs} inputs, got {len(inputs)}")
        outputs = self._outputs()
        taken = self._inputs(*[pointer_of(capsule, None) for capsule in handles_of(inputs)])
        num_inputs, num_outputs = self._counts
        self._check(self._run(self.container, taken, num_inputs, outputs, num_outputs, None, None))
        tensors: list[Tensor] = tensors_of([capsule_of(output, None, None) for output in outputs])
        return tensors

    def _check(self, error: int) -> None:
        if error:
            raise RuntimeError(f"{self.name} failed; what it printed to standard error says why")


def _private_copy(path: Path) -> str:
    """Return a path to the same bytes that nobody else can change: a mapped file cut short kills its process."""
    if not hasattr(os, "memfd_create"):
        return str(path)
    descriptor = os.memfd_create(path.name)
    with open(descriptor, "wb", closefd=False) as copy:
        copy.write(path.read_bytes())
    # Never closed: the loader knows libraries by name, and a number used again would name the wrong one.
    return f"/proc/self/fd/{descriptor}"
