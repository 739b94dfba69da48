"""A process that compiles what clients send: it may take too long, take too much or crash, and is then killed.

It reads frames from stdin and answers each on stdout: first how to open the engines, then one constraint after
another. A frame is eight bytes of length and that many bytes: a pickle from the parent, which trusts itself; JSON and
bare bytes back. It inherits no other file, has a session of its own so that no Ctrl-C meant for the server reaches it,
and an alarm that ends it when nobody is left to kill it.
"""

import json
import os
import pickle
import resource
import signal
import struct
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import BinaryIO

from attrs import asdict, frozen

from stages.errors import InvalidRequest
from stages.grammar.engines import Engines, open_engines
from stages.grammar.matchers.port import GrammarRefused, Source
from stages.grammar.sources import constraint_source, kind_name
from stages.grammar.tools import loosened
from stages.messages import Constraint, ToolGrammar

LENGTH = struct.Struct(">Q")
RECURSION_LIMIT = 2000
# A library may quote the whole grammar.
MAX_REASON_LETTERS = 500


@frozen
class Opening:
    """What a worker is told first."""

    tokenizer_path: str
    vocab_size: int
    eos_ids: frozenset[int]
    memory_bytes: int
    alarm_s: float


def main() -> None:
    """Answer the parent until it closes the pipe."""
    parent, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between the frames
    opening: Opening = pickle.loads(_read(parent))
    sys.setrecursionlimit(RECURSION_LIMIT)
    engines = open_engines(opening.tokenizer_path, opening.vocab_size, opening.eos_ids)
    engines.warm()
    _limit_memory(opening.memory_bytes)
    _write(answers, json.dumps({"ready": True}).encode())
    while frame := _read(parent):
        signal.setitimer(signal.ITIMER_REAL, opening.alarm_s)
        header, compiled = _answer(pickle.loads(frame), engines)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(answers, json.dumps(header).encode())
        if header["is_compiled"]:
            _write(answers, compiled)


def _answer(constraint: Constraint, engines: Engines) -> tuple[Mapping[str, object], bytes]:
    """Return what became of a constraint, and its compiled form."""
    begun_s = time.perf_counter()
    try:
        source, compiled = compiled_source(constraint, engines)
    except InvalidRequest as error:
        return {"is_compiled": False, "message": error.message[:MAX_REASON_LETTERS], "param": error.param}, b""
    except (GrammarRefused, MemoryError, RecursionError) as error:
        text = f"Failed to compile {kind_name(constraint)} grammar: {error or type(error).__name__}"
        param = "tools" if isinstance(constraint, ToolGrammar) else None
        return {"is_compiled": False, "message": text[:MAX_REASON_LETTERS], "param": param}, b""
    taken_s = time.perf_counter() - begun_s
    return {"is_compiled": True, "source": asdict(source), "taken_s": taken_s}, compiled


def compiled_source(constraint: Constraint, engines: Engines) -> tuple[Source, bytes]:
    """Return a constraint's source and compiled form, loose tools followed as far as an engine goes.

    Raises InvalidRequest, or GrammarRefused.
    """
    try:
        return _compiled(constraint, engines)
    except GrammarRefused:
        if not isinstance(constraint, ToolGrammar):
            raise
    return _compiled(loosened(constraint, partial(_refusal, engines)), engines)


def _compiled(constraint: Constraint, engines: Engines) -> tuple[Source, bytes]:
    source = constraint_source(constraint, engines.tokens)
    return source, engines.of(source).compile(source)


def _refusal(engines: Engines, grammar: ToolGrammar) -> str | None:
    """Return why an engine does not follow a grammar, None where it does."""
    try:
        _compiled(grammar, engines)
    except GrammarRefused as error:
        return str(error)
    return None


def _limit_memory(allowed_bytes: int) -> None:
    with open("/proc/self/statm") as pages:
        taken = int(pages.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + allowed_bytes, taken + allowed_bytes))


def _read(stream: BinaryIO) -> bytes:
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""


def _write(stream: BinaryIO, frame: bytes) -> None:
    stream.write(LENGTH.pack(len(frame)) + frame)
    stream.flush()
