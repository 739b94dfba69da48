"""Reads a Dockerfile: stages of instructions with their flags, continuation lines joined, variables put in."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen

# Those whose arguments a builder puts variables into.
EXPANDED = frozenset(("ADD", "COPY", "ENV", "EXPOSE", "FROM", "LABEL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"))
KNOWN = EXPANDED | {"ARG", "CMD", "ENTRYPOINT", "HEALTHCHECK", "ONBUILD", "RUN", "SHELL"}
VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


@frozen
class Instruction:
    name: str
    flags: Mapping[str, str]
    text: str

    @property
    def command(self) -> list[str]:
        """The arguments of an exec form; raises ValueError for a shell form."""
        words = json.loads(self.text)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{self.name}: not an exec form: {self.text}")
        return words

    def pairs(self) -> dict[str, str]:
        """The NAME=value words of an ENV or ARG, without quotes: none is needed here."""
        words = self.text.split()
        if any(not re.fullmatch(r"[A-Za-z_]\w*=[^\"'\\]*", word) for word in words):
            raise ValueError(f"{self.name}: expected NAME=value words: {self.text}")
        return dict(word.split("=", 1) for word in words)


@frozen
class Stage:
    base: str
    name: str | None
    instructions: list[Instruction] = field(factory=list)

    def all(self, name: str) -> list[Instruction]:
        return [instruction for instruction in self.instructions if instruction.name == name]

    def one(self, name: str) -> Instruction:
        (found,) = self.all(name)
        return found


def read_dockerfile(path: Path) -> list[Stage]:
    """Return the stages; raises ValueError for what no builder knows, and for a variable that nobody sets."""
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    values: dict[str, str] = {}
    for line in _logical_lines(path.read_text()):
        instruction = _instruction(line)
        if instruction.name in EXPANDED:
            scope = arguments if instruction.name == "FROM" else values
            instruction = Instruction(instruction.name, instruction.flags, _expanded(instruction.text, scope))
        if instruction.name == "FROM":
            words = instruction.text.split()
            if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
                raise ValueError(f"FROM: {instruction.text}")
            stages.append(Stage(words[0], words[2] if len(words) == 3 else None))
            values = {}
        elif not stages:
            if instruction.name != "ARG":
                raise ValueError(f"{instruction.name} before the first FROM")
            arguments |= instruction.pairs()
        else:
            if instruction.name in ("ARG", "ENV"):
                values |= instruction.pairs()
            stages[-1].instructions.append(instruction)
    return stages


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    pending = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or (not line.strip() and not pending):
            continue
        if not line.strip():
            raise ValueError("an empty line inside of an instruction")
        pending += line.rstrip()
        if pending.endswith("\\"):
            pending = pending[:-1]
            continue
        lines.append(pending)
        pending = ""
    if pending:
        raise ValueError(f"the last line goes on: {pending}")
    return lines


def _instruction(line: str) -> Instruction:
    name, _, rest = line.strip().partition(" ")
    if name not in KNOWN:
        raise ValueError(f"{name!r} is no instruction")
    flags: dict[str, str] = {}
    rest = rest.strip()
    while found := re.match(r"--([a-z-]+)(?:=(\S+))?\s+", rest):
        flags[found[1]] = found[2] or ""
        rest = rest[found.end() :]
    if not rest:
        raise ValueError(f"{name} without arguments")
    if "<<" in rest:
        raise ValueError(f"{name}: here-documents are not read")
    return Instruction(name, flags, rest)


def _expanded(text: str, values: Mapping[str, str]) -> str:
    def value(found: "re.Match[str]") -> str:
        name = found[1] or found[2]
        if name not in values:
            raise ValueError(f"${name} is not set there: {text}")
        return values[name]

    return VARIABLE.sub(value, text)
