"""A shared object with the container's C interface, made here by hand: how tensors cross and how failures are told."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from graphs.chain import Chain, Link, driver
from graphs.shared_object import Loaded

# Gives its first input back as its only output, so ownership of both handles passes through; fails on demand.
SOURCE = """
#include <cstddef>
extern "C" {
struct Container {};
static Container the_container;
int AOTInductorModelContainerCreateWithDevice(Container** out, size_t, const char*, const char*) { *out = &the_container; return CREATE; }
int AOTInductorModelContainerGetNumInputs(Container*, size_t* out) { *out = INPUTS; return 0; }
int AOTInductorModelContainerGetNumOutputs(Container*, size_t* out) { *out = OUTPUTS; return 0; }
int AOTInductorModelContainerRunSingleThreaded(Container*, void** in, size_t, void** out, size_t, void*, void*) {
  out[0] = in[PICK]; if (OUTPUTS > 1) out[1] = in[0]; return RUN;
}
}
"""  # noqa: E501

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")


def built(
    folder: Path, create: int = 0, run: int = 0, pick: int = 1, inputs: int = 2, outputs: int = 2, name: str = "body"
) -> Path:
    (folder / "body.cpp").write_text(SOURCE)
    made = folder / f"{name}.so"
    defined = {"CREATE": create, "RUN": run, "PICK": pick, "INPUTS": inputs, "OUTPUTS": outputs}
    flags = ["-shared", "-fPIC", *(f"-D{key}={value}" for key, value in defined.items())]
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


@needs_compiler
def test_a_chain_gives_each_body_the_last_ones_output_then_its_own_inputs(tmp_path: Path) -> None:
    passes = Loaded(built(tmp_path, pick=0, inputs=3, outputs=1, name="passes"))
    second = Loaded(built(tmp_path, pick=1, inputs=3, outputs=1, name="second"))
    stays, streams, small = torch.full((3,), 7.0), torch.zeros(2), [torch.ones(4), torch.ones(5)]
    library = driver(tmp_path)

    def run(*links: Link) -> int:
        return Chain(library, links)(streams, small).data_ptr()

    assert run(Link(passes, [stays, 0])) == streams.data_ptr()
    assert run(Link(passes, [0, 1]), Link(passes, [stays, stays])) == streams.data_ptr()
    assert run(Link(second, [1, stays]), Link(passes, [0, stays])) == small[1].data_ptr()
    assert run(Link(second, [0, stays]), Link(second, [stays, 0])) == stays.data_ptr()
    assert torch.equal(stays, torch.full((3,), 7.0))


@needs_compiler
def test_a_chain_refuses_a_link_of_the_wrong_size_and_tells_a_failing_body(tmp_path: Path) -> None:
    fails = Loaded(built(tmp_path, run=1, pick=0, outputs=1))

    with pytest.raises(ValueError, match="takes 2 inputs, its link has 3"):
        Chain(driver(tmp_path), [Link(fails, [0, 1])])
    with pytest.raises(RuntimeError, match="a compiled body failed"):
        Chain(driver(tmp_path), [Link(fails, [0])])(torch.ones(1), [torch.ones(1)])


@needs_compiler
def test_the_driver_is_compiled_once(tmp_path: Path) -> None:
    first = driver(tmp_path)
    made_at = first.stat().st_mtime_ns

    assert driver(tmp_path) == first
    assert first.stat().st_mtime_ns == made_at


def test_what_is_no_library_raises(tmp_path: Path) -> None:
    (tmp_path / "body.so").write_bytes(b"not a library")

    with pytest.raises(OSError, match=r"invalid|short|fd"):
        Loaded(tmp_path / "body.so")
