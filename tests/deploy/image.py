"""Builds what the renderer's Dockerfile builds, in a folder: its own RUN lines, with every path below that folder."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from tests.deploy.dockerfile import Instruction, Stage, read_dockerfile
from tests.deploy.test_dockerfile import DOCKERFILE, ROOT

UID = 65532
# What pip says where no index can be reached; it says the same of a package that is not there.
NO_INDEX = ("NewConnectionError", "Temporary failure in name resolution", "Network is unreachable", "ReadTimeoutError")


class Offline(Exception):
    """No package index can be reached."""


@frozen
class Image:
    """A built image: where its root is, and how its programs are started."""

    root: Path
    stage: Stage

    def environ(self) -> dict[str, str]:
        """Return the image's variables and no others, every path below the root."""
        (environment,) = (each.pairs() for each in self.stage.all("ENV"))
        return {name: self._below(value) for name, value in environment.items()}

    def command(self, *arguments: str) -> list[str]:
        """Return what a container with these arguments runs, its program looked up as execve would."""
        return self._found([*self.stage.one("ENTRYPOINT").command, *arguments])

    def health_check(self) -> list[str]:
        _, _, command = self.stage.one("HEALTHCHECK").text.partition(" ")
        return self._found(Instruction("CMD", {}, command).command)

    def _found(self, command: list[str]) -> list[str]:
        program = shutil.which(command[0], path=self.environ()["PATH"])
        assert program is not None, command
        return [program, *command[1:]]

    def _below(self, value: str) -> str:
        # The base image's programs are this machine's.
        own = ("/opt/", "/home/", "/src")
        return ":".join(f"{self.root}{part}" if part.startswith(own) else part for part in value.split(":"))


def build(root: Path) -> Image:
    """Run both stages below root, as the Dockerfile has them; raises Offline."""
    first, final = read_dockerfile(DOCKERFILE)
    image = Image(root, final)
    values: dict[str, str] = {}
    for each in first.instructions:
        if each.name in ("ARG", "ENV"):
            values |= {name: image._below(value) for name, value in each.pairs().items()}
        elif each.name == "WORKDIR":
            folder = Path(image._below(each.text))
            folder.mkdir(parents=True)
        elif each.name == "COPY":
            *sources, target = each.text.split()
            for source in sources:
                _copy(source, folder / target / ("" if len(sources) == 1 else source))
        else:
            assert each.name == "RUN", each
            _run(each.text, folder, values)
    for copy in final.all("COPY"):
        # Both stages have the same places here, so only the owner is new.
        source, target = (Path(image._below(word)) for word in copy.text.split())
        assert source == target
        assert source.is_dir()
        if "chown" in copy.flags and os.geteuid() == 0:
            for path in (source, *source.rglob("*")):
                os.chown(path, *map(int, copy.flags["chown"].split(":")))
    return image


def _copy(source: str, target: Path) -> None:
    if (ROOT / source).is_dir():
        kept_out = [
            line.removeprefix("**/")
            for line in (DOCKERFILE.parent / f"{DOCKERFILE.name}.dockerignore").read_text().splitlines()
            if line.startswith("**/")
        ]
        shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns(*kept_out))
    else:
        shutil.copy(ROOT / source, target)


def _run(line: str, folder: Path, values: Mapping[str, str]) -> None:
    environ = {**os.environ, **values}
    done = subprocess.run(["/bin/sh", "-c", line], cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    if done.returncode and any(word in done.stderr for word in NO_INDEX):
        raise Offline(done.stderr[-300:])
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
