"""The renderer's image, built by its own lines in a folder and run as a container runs it, but for the container.

Nothing of this environment is in its: no torch, no package that pyproject.toml does not name, no variable.
"""

import json
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from tests.deploy.image import UID, Image, Offline, build
from tests.deploy.test_dockerfile import ROOT
from tests.small_tokenizer import small_tokenizer

pytestmark = pytest.mark.slow

TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"
START_S = 60


@define(eq=False)
class Running:
    """A container's process, what it was started with, and what was there before it."""

    image: Image
    environ: dict[str, str]
    process: subprocess.Popen[bytes]
    before: dict[Path, tuple[int, int]]

    def run(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        # Not here, where the repository's own packages would be found first.
        where = self.environ["HOME"]
        return subprocess.run(command, env=self.environ, cwd=where, capture_output=True, text=True, timeout=2 * START_S)

    def python(self, code: str) -> str:
        done = self.run([f"{self.image.root}/opt/trnrt/bin/python", "-c", code])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ask(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.environ['TRNRT_PORT']}{path}"
        request = urllib.request.Request(url, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    # pytest's own folder is closed to everybody else.
    root = Path(tempfile.mkdtemp(prefix="trnrt-image-"))
    root.chmod(0o755)
    try:
        yield build(root)
    except Offline as error:
        pytest.skip(f"no package index can be reached: {error}")
    finally:
        shutil.rmtree(root)


@pytest.fixture(scope="module")
def running(image: Image) -> Iterator[Running]:
    environ = {**image.environ(), "TRNRT_HOST": "127.0.0.1", "TRNRT_PORT": str(free_port())}
    # What a container's user may do, where this machine's Python lets others run it.
    python = Path(f"{image.root}/opt/trnrt/bin/python").resolve()
    drops = os.geteuid() == 0 and all(folder.stat().st_mode & stat.S_IXOTH for folder in python.parents)
    user: dict[str, Any] = {"user": UID, "group": UID, "extra_groups": []} if drops else {}
    before = files(image.root)
    process = subprocess.Popen(
        image.command(str(model(image.root))), env=environ, cwd=environ["HOME"], stderr=subprocess.PIPE, **user
    )
    found = Running(image, environ, process, before)
    try:
        well = found.run([*image.health_check(), "--wait", str(START_S)])
        assert well.returncode == 0, well.stderr
        yield found
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def model(root: Path) -> Path:
    """Write a folder of a model outside of the image, as a mounted one is."""
    folder = root / "model"
    folder.mkdir()
    small_tokenizer().save(str(folder / "tokenizer.json"))
    shape = {"model_type": "llama", "vocab_size": small_tokenizer().get_vocab_size(), "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(shape))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


def files(root: Path) -> dict[Path, tuple[int, int]]:
    """Return size and time of every file of the image; a model's folder is no part of it."""
    return {
        path: (path.lstat().st_size, path.lstat().st_mtime_ns)
        for part in ("opt", "home", "src")
        for path in (root / part).rglob("*")
        if not path.is_dir()
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_its_health_check_says_that_it_serves(running: Running):
    assert running.run(running.image.health_check()).returncode == 0


def test_it_renders_the_ids_of_the_chat(running: Running):
    chat = {
        "messages": [{"role": "user", "content": "The weather in Paris"}],
        "model": running.ask("/v1/models")["data"][0]["id"],
    }
    rendered = running.ask("/v1/chat/completions/render", chat)
    assert rendered["input_ids"] == small_tokenizer().encode("<|user|>The weather in Paris<|assistant|>").ids


def test_it_has_no_torch_and_nothing_that_installs(running: Running):
    assert (
        running.python("import importlib.util as u; print(*map(u.find_spec, ('torch', 'pip', 'pytest')))")
        == "None None None"
    )
    assert "torch" not in Path(f"/proc/{running.process.pid}/maps").read_text()


def test_its_packages_are_those_that_were_tried(running: Running):
    """Every one has the version of constraints.txt, which the tests run with."""
    pinned = {
        line.partition("==")[0].lower().replace("_", "-"): line.partition("==")[2]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    code = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    for each in running.python(code).split():
        name, _, version = each.partition("==")
        assert name == "trnrt" or pinned[name.lower().replace("_", "-")] == version, each


def test_every_file_of_its_packages_is_in_it(running: Running):
    """Pages and templates too; weights are for who computes."""
    packages = Path(running.python("import trnrt, pathlib; print(pathlib.Path(trnrt.__file__).parents[1])"))
    assert running.image.root in packages.parents
    for part in ("trnrt", "stages", "graphs"):
        for source in (ROOT / part).rglob("*.*"):
            if source.suffix not in (".pyc", ".safetensors", ".md"):
                assert (packages / source.relative_to(ROOT)).is_file(), source


def test_it_stops_when_it_is_told_and_its_health_check_says_so(running: Running):
    """The last of these tests."""
    running.process.terminate()
    _, log = running.process.communicate(timeout=START_S)
    assert running.process.returncode == 0, log.decode()
    checked = running.run(running.image.health_check())
    assert checked.returncode == 1
    assert checked.stderr.startswith("not well: ")


def test_it_writes_nothing_but_what_is_kept(running: Running):
    """With a root file system that cannot be written it does the same."""
    cache = Path(running.environ["HF_HOME"])
    after = {path: seen for path, seen in files(running.image.root).items() if cache not in path.parents}
    assert after == {path: seen for path, seen in running.before.items() if cache not in path.parents}
