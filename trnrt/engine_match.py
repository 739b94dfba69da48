"""Whether an engine runs the model that prompts are rendered for, as far as it says; how that is watched.

Prompts of another tokenizer are nonsense to an engine, which answers them all the same, and a context or defaults that
differ show only now and then. So what an engine says of itself is compared with what was read here: at the start,
when it comes up later, and whenever it says something else than before.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath

import trio
from attrs import frozen

from stages.engine.facts import EngineFacts
from stages.errors import RemoteFailure, StartupError

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0
# How often an engine that is up is asked again.
POLL_S = 30.0
# How long it may take to say what it is.
FACTS_TIMEOUT_S = 30.0
HUB_FOLDER = re.compile(r"models--(.+?)--(.+)")

log = logging.getLogger("trnrt")


@frozen
class OwnFacts:
    """What this process renders for, by the flags that say so; None is unsaid."""

    names: tuple[str, ...]
    model_path: str
    context_length: int
    vocab_size: int
    sampling_defaults: str
    num_reserved_tokens: int = 0
    tokenizer_path: str | None = None
    revision: str | None = None


def mismatches(own: OwnFacts, engine: EngineFacts) -> list[str]:
    """Return a line for each fact that both have and that differs, with both values and the flag that would mend it."""
    lines = [
        _differs("context length", own.context_length, engine.context_length, "--context-length"),
        _differs("vocabulary", own.vocab_size, engine.vocab_size, "--vocab-size or another MODEL"),
        _differs("sampling defaults", own.sampling_defaults, engine.sampling_defaults, "--sampling-defaults"),
        _differs("reserved tokens", own.num_reserved_tokens, engine.num_reserved_tokens, "--num-reserved-tokens"),
        _differs("revision", own.revision or "main", engine.revision, "--revision"),
        _tokenizers(own, engine),
        _models(own, engine),
    ]
    if engine.preferred_sampling:
        added = ", ".join(f"{name}={value}" for name, value in sorted(engine.preferred_sampling.items()))
        lines.append(f"the engine adds sampling parameters of its own ({added}): see its --preferred-sampling-params")
    if engine.skips_tokenizer:
        lines.append("the engine runs with --skip-tokenizer-init: it cannot see stop strings or minimum tokens")
    return [line for line in lines if line is not None]


async def watch_engine(
    read: Callable[[], Awaitable[EngineFacts]],
    own: OwnFacts,
    *,
    is_strict: bool,
    told: EngineFacts | None = None,
    task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """Compare the engine with `own` whenever it comes up or has changed, for ever, and log what differs.

    `told` is what was compared already. Raises StartupError for what differs where that is strict.
    """
    known, is_away, wait_s = told, False, FIRST_WAIT_S
    while True:
        facts = await facts_or_none(read)
        if facts is None:
            if not is_away:
                log.warning("the engine is not up; what it runs is compared once it is")
            is_away = True
            await trio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            continue
        if is_away or facts != known:
            compare(own, facts, is_strict=is_strict)
        known, is_away, wait_s = facts, False, FIRST_WAIT_S
        await trio.sleep(POLL_S)


async def facts_or_none(read: Callable[[], Awaitable[EngineFacts]]) -> EngineFacts | None:
    """Return what the engine says of itself, None when it is not up."""
    try:
        with trio.fail_after(FACTS_TIMEOUT_S):
            return await read()
    except (RemoteFailure, trio.TooSlowError):
        return None


def compare(own: OwnFacts, engine: EngineFacts, *, is_strict: bool) -> None:
    """Log how the engine differs; raises StartupError instead where that is strict."""
    if not engine.are_known:
        log.warning("the engine says nothing of itself: nothing was compared with it")
        return
    lines = mismatches(own, engine)
    if lines and is_strict:
        raise StartupError(f"--strict-engine-match: {'; '.join(lines)}.")
    for line in lines:
        log.warning("engine mismatch: %s", line)
    if not lines:
        log.info("the engine runs %s, as rendered for here", " ".join(engine.names) or engine.model_path)


def _differs(what: str, ours: object, theirs: object, flag: str) -> str | None:
    if theirs is None or ours == theirs:
        return None
    return f"{what} is {ours} here and {theirs} in the engine: see {flag}"


def _models(own: OwnFacts, engine: EngineFacts) -> str | None:
    theirs = (*engine.names, *(() if engine.model_path is None else (engine.model_path,)))
    ours = (*own.names, own.model_path)
    if not theirs or {plain_name(name) for name in ours} & {plain_name(name) for name in theirs}:
        return None
    return (
        f"the model is {' or '.join(dict.fromkeys(ours))} here and {' or '.join(dict.fromkeys(theirs))} in the engine: "
        "see MODEL, or --served-model-name if it is the same"
    )


def _tokenizers(own: OwnFacts, engine: EngineFacts) -> str | None:
    theirs = engine.tokenizer_path
    if theirs is None or engine.model_path is None:
        return None
    # Each side's own model has the tokenizer unless it says otherwise.
    of_theirs = None if plain_name(theirs) == plain_name(engine.model_path) else theirs
    ours = own.tokenizer_path
    of_ours = None if ours is None or plain_name(ours) == plain_name(own.model_path) else ours
    if of_theirs == of_ours or (of_theirs and of_ours and plain_name(of_theirs) == plain_name(of_ours)):
        return None
    return f"the tokenizer is {ours or own.model_path} here and {theirs} in the engine: see --tokenizer-path"


def plain_name(path: str) -> str:
    """Return what a model is called wherever it lies: the last part of a path, of the hub's cache the model's own."""
    parts = PurePosixPath(path).parts
    for part in parts:
        if found := HUB_FOLDER.fullmatch(part):
            return found[2]
    return parts[-1] if parts else path
