"""Calls a compiled body through its C interface, without holding the interpreter lock while it runs.

torch's own loader keeps the lock for the whole run: 17 bodies a step held it nearly all the time, and the event loop
of the same process got what was left between two of them. ctypes gives the lock up around every call.

Tensors cross as handles, each a new at::Tensor on the heap. A run takes ownership of its input handles and of nothing
else, whether it succeeds or not; the outputs it makes are ours, and become tensors again by taking theirs.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

_alloc = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors
_steal = torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs

_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule_of = ctypes.pythonapi.PyCapsule_New
_capsule_of.restype, _capsule_of.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

PREFIX = "AOTInductorModelContainer"


def load(path: Path) -> Callable[[list[Tensor]], list[Tensor]]:
    """Return the body in a shared object as a function of its inputs; raises OSError or RuntimeError if it is none."""
    library = ctypes.CDLL(_private_copy(path), mode=ctypes.RTLD_LOCAL)
    container = ctypes.c_void_p()
    _check(library[PREFIX + "CreateWithDevice"](ctypes.byref(container), ctypes.c_size_t(1), b"cpu", None), path)
    count = ctypes.c_size_t()
    _check(library[PREFIX + "GetNumInputs"](container, ctypes.byref(count)), path)
    num_inputs = count.value
    _check(library[PREFIX + "GetNumOutputs"](container, ctypes.byref(count)), path)
    num_outputs = count.value
    run = library[PREFIX + "RunSingleThreaded"]
    handles = ctypes.c_void_p * num_inputs
    results = ctypes.c_void_p * num_outputs
    given, returned = ctypes.c_size_t(num_inputs), ctypes.c_size_t(num_outputs)

    def call(inputs: list[Tensor]) -> list[Tensor]:
        if len(inputs) != num_inputs:
            raise RuntimeError(f"{path.name} takes {num_inputs} inputs, got {len(inputs)}")
        outputs = results()
        taken = handles(*[_pointer_of(capsule, None) for capsule in _alloc(inputs)])
        _check(run(container, taken, given, outputs, returned, None, None), path)
        tensors: list[Tensor] = _steal([_capsule_of(output, None, None) for output in outputs])
        return tensors

    # The library and its container live as long as the process: nothing unloads a body that may be running.
    return call


def _private_copy(path: Path) -> str:
    """Return a path to the same bytes that nobody else can change: a mapped file cut short kills its process."""
    if not hasattr(os, "memfd_create"):
        return str(path)
    descriptor = os.memfd_create(path.name)
    with open(descriptor, "wb", closefd=False) as copy:
        copy.write(path.read_bytes())
    # Never closed: the loader knows libraries by name, and a number used again would name the wrong one.
    return f"/proc/self/fd/{descriptor}"


def _check(error: int, path: Path) -> None:
    if error:
        raise RuntimeError(f"{path.name} failed; what it printed to standard error says why")
