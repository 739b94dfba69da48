"""Constraints to compiled grammars: a cache, a bounded queue, and worker processes that can be killed.

Theory of operation. A constraint that is known is answered at once; one that is being compiled gets one more waiter;
any other is queued for the next free worker, of which the first is started with the server and the others when there
is more than one thing to compile. A worker that takes longer than a constraint may, or dies of one, is killed, and a
new one started with the next constraint. What a constraint is refused for is remembered as its grammar would be, but
for what may go otherwise another time: time and memory.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import orjson
import trio
from attrs import define, field, frozen

from stages.errors import EngineFailure, InvalidRequest, QueueFull
from stages.grammar.matchers.port import Matcher, Template
from stages.grammar.sources import kind_name
from stages.messages import CompileGrammar, Constraint, Grammar, TextGrammar
from stages.settings import GrammarSettings

# What a refusal takes of the cache.
REFUSAL_BYTES = 1024


@frozen(eq=False)
class CompiledGrammar:
    """What a request holds of a constraint once it has compiled."""

    constraint: Constraint
    template: Template

    def start(self) -> Matcher:
        """Return a matcher at the beginning."""
        return self.template.start()


class Breach(Exception):
    """A worker was killed or died over a constraint; the text is the client's."""


# What compiles one constraint: a worker process, or a stand-in on a virtual clock. It raises InvalidRequest or Breach.
Compile = Callable[[Constraint], Awaitable[Template]]


@define(eq=False)
class _Job:
    key: bytes
    constraint: Constraint
    waiters: list[CompileGrammar]


@define(eq=False)
class Pool:
    """Takes CompileGrammar messages; runs as many compiles at once as it has compilers."""

    settings: GrammarSettings
    nursery: trio.Nursery
    idle: list[Compile]
    _cache: "OrderedDict[bytes, tuple[Template | InvalidRequest, int]]" = field(factory=OrderedDict, init=False)
    _cached_bytes: int = field(default=0, init=False)
    _jobs: "OrderedDict[bytes, _Job]" = field(factory=OrderedDict, init=False)
    _running: dict[bytes, _Job] = field(factory=dict, init=False)

    def take(self, order: CompileGrammar) -> None:
        """Answer an order now or when its constraint has compiled; never waits."""
        try:
            key = constraint_key(order.constraint, self.settings.max_source_bytes)
        except InvalidRequest as error:
            _reply(order, error)
            return
        if key in self._cache:
            self._cache.move_to_end(key)
            _reply(order, _outcome(order, self._cache[key][0]))
        elif job := self._running.get(key) or self._jobs.get(key):
            job.waiters.append(order)
        elif len(self._jobs) >= self.settings.max_compiles:
            _reply(order, QueueFull("Too many grammars wait to be compiled."))
        else:
            self._jobs[key] = _Job(key, order.constraint, [order])
            self._start()

    def _start(self) -> None:
        while self.idle and self._jobs:
            key, job = self._jobs.popitem(last=False)
            job.waiters = [waiter for waiter in job.waiters if _is_awaited(waiter)]
            if job.waiters:
                self._running[key] = job
                self.nursery.start_soon(self._run, job, self.idle.pop())

    async def _run(self, job: _Job, compile_: Compile) -> None:
        result: Template | Exception
        try:
            result = await compile_(job.constraint)
            self._keep(job.key, result, result.size_bytes)
        except InvalidRequest as error:
            result = error
            self._keep(job.key, error, REFUSAL_BYTES)
        except Breach as breach:
            result = InvalidRequest(str(breach))
        except EngineFailure as error:
            result = error
        del self._running[job.key]
        self.idle.append(compile_)
        for waiter in job.waiters:
            _reply(waiter, _outcome(waiter, result))
        self._start()

    def _keep(self, key: bytes, result: "Template | InvalidRequest", size_bytes: int) -> None:
        if size_bytes > self.settings.cache_bytes:
            return
        self._cache[key] = result, size_bytes
        self._cached_bytes += size_bytes
        while self._cached_bytes > self.settings.cache_bytes:
            _, (_, freed) = self._cache.popitem(last=False)
            self._cached_bytes -= freed


def constraint_key(constraint: Constraint, max_bytes: int) -> bytes:
    """Return the digest of all that a constraint's compiled form follows from; raises InvalidRequest."""
    if isinstance(constraint, TextGrammar):
        if "\x00" in constraint.text:
            raise InvalidRequest(
                f"Invalid {kind_name(constraint)}: NUL bytes (\\u0000) are not allowed", constraint.kind
            )
        parts: list[object] = [constraint.kind, constraint.any_whitespace, constraint.text]
    else:
        tools = [[tool.name, tool.parameters, tool.is_strict] for tool in constraint.tools]
        parts = [tools, constraint.is_required, constraint.names, constraint.is_parallel]
    try:
        text = orjson.dumps(parts)
    except (TypeError, ValueError) as error:  # too deep for it, or not a string after all
        raise InvalidRequest(f"Failed to compile {kind_name(constraint)} grammar: {error}") from None
    if len(text) > max_bytes:
        raise InvalidRequest(
            f"Failed to compile {kind_name(constraint)} grammar: it has {len(text)} bytes, more than {max_bytes}."
        )
    return hashlib.sha256(text).digest()


def _outcome(order: CompileGrammar, result: "Template | Exception") -> "Grammar | Exception":
    # The constraint's other half, where it applies, is the order's own: the compiled form may be another's.
    return result if isinstance(result, Exception) else CompiledGrammar(order.constraint, result)


def _is_awaited(order: CompileGrammar) -> bool:
    if order.reply.statistics().open_receive_channels:
        return True
    order.reply.close()
    return False


def _reply(order: CompileGrammar, answer: "Grammar | Exception") -> None:
    with order.reply:
        try:
            order.reply.send_nowait(answer)
        except (trio.BrokenResourceError, trio.WouldBlock):
            return  # its task has gone


def describe_breach(constraint: Constraint, what: str) -> str:
    """Return the text of a constraint that cost too much, in SGLang's words."""
    return f"Failed to compile {kind_name(constraint)} grammar: {what}"
