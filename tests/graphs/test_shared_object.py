"""A shared object with the container's C interface, made here by hand: how tensors cross and how failures are told."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from graphs.shared_object import Loaded

# Gives its first input back as its only output, so ownership of both handles passes through; fails on demand.
SOURCE = """
#include <cstddef>
extern "C" {
struct Container {};
static Container the_container;
int AOTInductorModelContainerCreateWithDevice(Container** out, size_t, const char*, const char*) { *out = &the_container; return CREATE; }
int AOTInductorModelContainerGetNumInputs(Container*, size_t* out) { *out = 2; return 0; }
int AOTInductorModelContainerGetNumOutputs(Container*, size_t* out) { *out = 2; return 0; }
int AOTInductorModelContainerRunSingleThreaded(Container*, void** in, size_t, void** out, size_t, void*, void*) {
  out[0] = in[1]; out[1] = in[0]; return RUN;
}
}
"""  # noqa: E501

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")


def built(folder: Path, create: int = 0, run: int = 0) -> Path:
    (folder / "body.cpp").write_text(SOURCE)
    made = folder / "body.so"
    flags = ["-shared", "-fPIC", f"-DCREATE={create}", f"-DRUN={run}"]
    subprocess.run(["g++", *flags, str(folder / "body.cpp"), "-o", str(made)], check=True)
    return made


@needs_compiler
def test_tensors_cross_and_come_back(tmp_path: Path) -> None:
    body = Loaded(built(tmp_path))
    one, two = torch.arange(3), torch.ones(2, 2)

    first, second = body([one, two])

    assert first.data_ptr() == two.data_ptr()
    assert second.data_ptr() == one.data_ptr()
    assert torch.equal(first, torch.ones(2, 2))


@needs_compiler
def test_a_wrong_number_of_inputs_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="takes 2 inputs, got 1"):
        Loaded(built(tmp_path))([torch.ones(1)])


@needs_compiler
def test_a_failing_body_raises(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"body\.so failed"):
        Loaded(built(tmp_path, run=1))([torch.ones(1), torch.ones(1)])


@needs_compiler
def test_a_body_that_cannot_be_created_raises(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"body\.so failed"):
        Loaded(built(tmp_path, create=1))


@needs_compiler
def test_cutting_the_file_short_does_not_reach_a_loaded_body(tmp_path: Path) -> None:
    made = built(tmp_path)
    body = Loaded(made)

    made.write_bytes(b"")

    assert torch.equal(body([torch.zeros(1), torch.ones(1)])[0], torch.ones(1))


def test_what_is_no_library_raises(tmp_path: Path) -> None:
    (tmp_path / "body.so").write_bytes(b"not a library")

    with pytest.raises(OSError, match=r"invalid|short|fd"):
        Loaded(tmp_path / "body.so")
