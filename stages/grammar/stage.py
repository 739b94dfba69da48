"""Task: constraints to compiled grammars, and the masks of every choice that has rules.

Compiles run in worker processes (pool.py, process.py), masks in threads (lanes.py); this task waits for neither. A
choice's guide lives as long as its Submit: the scheduler holds that while the choice can still ask, and lets go of it
whatever way it ends, so nothing is left behind by a cancelled one.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from stages.detokenizer.parsers.loading import load_id_reasoning_parser, tag_ids
from stages.errors import ConfigError
from stages.grammar.engines import Engines, check_available, open_engines
from stages.grammar.guide import Guide, ThinkingTags, open_guide
from stages.grammar.lanes import Lanes, OpenGuide, RunSlice, in_threads
from stages.grammar.pool import Compile, CompiledGrammar, Pool
from stages.grammar.process import Worker, start_first
from stages.inbox import Receive
from stages.messages import CompileGrammar, FillMasks, GrammarInbox, MasksFilled, Submit
from stages.settings import GrammarSettings


async def run_grammar(
    settings: GrammarSettings,
    inbox: Receive[GrammarInbox],
    filled: Callable[[MasksFilled], None],
    *,
    task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer until the inbox ends; raises StartupError when the libraries, tokenizer or parser cannot be had."""
    engines = await trio.to_thread.run_sync(_open, settings)
    loading = trio.CapacityLimiter(1)
    workers = [Worker(settings, engines, loading) for _ in range(settings.num_workers)]
    try:
        # Both import the libraries, which takes seconds; the pool takes its last idle worker first.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, engines.warm)
            nursery.start_soon(start_first, workers[-1])
        run = in_threads(guide_opener(settings, engines), settings.max_lanes)
        compilers: list[Compile] = [worker.compile for worker in workers]
        await serve_grammars(settings, inbox, partial(_tell, filled), compilers, run, task_status=task_status)
    finally:
        for worker in workers:
            await worker.kill()


async def serve_grammars(
    settings: GrammarSettings,
    inbox: Receive[GrammarInbox],
    filled: Callable[[MasksFilled], None],
    compilers: list[Compile],
    run: RunSlice,
    *,
    task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer until the inbox ends, with given compilers and a given way to run slices of masks."""
    async with inbox, trio.open_nursery() as nursery:
        pool, lanes = Pool(settings, nursery, compilers), Lanes(settings, nursery, run, filled)
        task_status.started()
        async for message in inbox:
            match message:
                case CompileGrammar():
                    pool.take(message)
                case FillMasks():
                    lanes.take(message)
            del message  # its Submits must not live until the next one, which may be long in coming
        nursery.cancel_scope.cancel()


def guide_opener(settings: GrammarSettings, engines: Engines) -> OpenGuide:
    """Return what opens the guide of a choice; raises StartupError for a parser there is not."""
    return partial(_open_guide, engines, thinking_tags(settings.reasoning_parser, engines))


def thinking_tags(reasoning_parser: str | None, engines: Engines) -> ThinkingTags | None:
    """Return the ids of the reasoning parser's tags, None without one; raises StartupError."""
    if reasoning_parser is None:
        return None
    parser = load_id_reasoning_parser(reasoning_parser)
    if parser is None:
        text = "--reasoning-parser: constrained output needs one whose tags are tokens of this model"
        raise ConfigError(f"{text}, {reasoning_parser!r} reads text")
    ids = tag_ids(parser, engines.vocabulary)
    return ThinkingTags(ids["<think>"], ids["</think>"], ids["<tool_call>"])


def _open_guide(engines: Engines, tags: ThinkingTags | None, submit: Submit) -> Guide:
    grammar = submit.rules.grammar if submit.rules is not None else None
    # Invariant: every Grammar there is was made here.
    assert grammar is None or isinstance(grammar, CompiledGrammar)
    return open_guide(submit, engines.tokens, tags, grammar.start() if grammar is not None else None)


def _tell(filled: Callable[[MasksFilled], None], masks: MasksFilled) -> None:
    """Post masks; in a drain the scheduler ends first, and then nobody waits for any."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        filled(masks)


def _open(settings: GrammarSettings) -> Engines:
    check_available()
    return open_engines(settings.tokenizer_path, settings.vocab_size, settings.eos_token_ids)
