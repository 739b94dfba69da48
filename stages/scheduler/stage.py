"""The scheduler's task: one inbox in, plans to the executor and tokens to the detokenizer out; core.py decides."""

import logging
from contextlib import suppress
from typing import assert_never

import trio

from graphs.step import Capacity
from stages.channels import Channels
from stages.errors import EngineFailure
from stages.logs.batches import BatchLog, retraction_line
from stages.messages import (
    Arrived,
    Bumped,
    Cancel,
    Command,
    Drain,
    MasksFilled,
    Record,
    SchedulerInbox,
    StepDone,
    StepFailed,
    Tokens,
    TransferDone,
)
from stages.scheduler.commands import Commands
from stages.scheduler.core import SchedulerCore
from stages.scheduler.policies import load_policy
from stages.settings import SchedulerSettings
from stages.stats.lossy import StatsSend

# How long a failing scheduler waits for clients to hear their Ended("error") before it takes the process down.
FAILURE_GRACE_S = 2.0
_FAILURE_POLL_S = 0.02

log = logging.getLogger("trnrt.scheduler")


async def run_scheduler(
    settings: SchedulerSettings,
    capacity: Capacity,
    channels: Channels,
    stats_send: StatsSend,
    *,
    task_status: trio.TaskStatus[SchedulerCore] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run every submitted choice until a Drain has come and the last one has ended; starts with its core.

    Closes the plans and tokens channels on its way out, so that executor and detokenizer end after it. Raises
    EngineFailure, after telling every client, when the device or the grammar stage is lost.
    """
    core = SchedulerCore(settings, capacity, channels.admission, load_policy(settings.schedule_policy))
    commands = Commands(core)
    batches = BatchLog(settings.decode_log_interval)
    with channels.scheduler_receive, channels.plans_send, channels.transfers_send, channels.tokens_send:
        try:
            task_status.started(core)
            await _serve(core, commands, channels, stats_send, batches)
        finally:
            channels.admission.close()
            commands.close()


async def _serve(
    core: SchedulerCore, commands: Commands, channels: Channels, stats_send: StatsSend, batches: BatchLog
) -> None:
    while not (channels.admission.closed and core.is_idle):
        # A call of its own, so that an idle scheduler keeps no Tokens, and with them no mailbox, alive.
        await _turn(core, commands, channels, stats_send, batches, await _receive_all(channels, core.next_expiry_s))


async def _turn(
    core: SchedulerCore,
    commands: Commands,
    channels: Channels,
    stats_send: StatsSend,
    batches: BatchLog,
    messages: list[SchedulerInbox],
) -> None:
    for message in messages:
        match message:
            case Arrived():
                core.arrive()
            case Cancel():
                core.cancel(message)
            case Drain():
                channels.admission.close()
                core.drain()
            case StepDone():
                flight = core.complete(message.step, message.output)
                batches.stepped(flight.key.family, len(flight.rows), message.output.device_s, trio.current_time())
                stats_send.send(Record("device_s", message.output.device_s))
            case StepFailed():
                await _fail(core, channels, "the device is lost", message.error)
            case Bumped():
                core.bump(message.submit)
            case Command():
                commands.take(message)
            case MasksFilled():
                core.filled(message)
            case TransferDone():
                core.transferred(message.number)
            case _:
                assert_never(message)
    core.expire(trio.current_time())
    commands.settle()
    # The next steps go out before the last one's tokens: delivery overlaps the device.
    while (plan := core.plan()) is not None:
        channels.plans_send.send_nowait(plan)
    core.outbox.note_admissions(trio.current_time())
    await _ask_masks(core, channels)
    for transfer in core.transfers():
        channels.transfers_send.send_nowait(transfer)
    commands.settle()
    for command, result in commands.take_answers():
        with command.reply, suppress(trio.BrokenResourceError):
            command.reply.send_nowait(result)
    tokens = core.outbox.take()
    if tokens is not None:
        channels.tokens_send.send_nowait(tokens)
    counts, load = core.outbox.take_counts(), core.load()
    for name, value in counts.items():
        stats_send.send(Record(name, value))
    stats_send.send(load)
    if (num_retracted := counts.get("retractions")) is not None:
        log.warning(retraction_line(num_retracted, core.memory.pressure.share))
    for line in batches.lines(counts, load, bool(core.flights)):
        log.info(line)


async def _ask_masks(core: SchedulerCore, channels: Channels) -> None:
    """Let the grammar stage hear the new tokens, and ask it for masks."""
    questions = core.take_questions(trio.current_time())
    if questions is None:
        return
    try:
        channels.grammar_send.send_nowait(questions)
    except trio.BrokenResourceError as error:
        await _fail(core, channels, "the grammar stage is lost", error)


async def _receive_all(channels: Channels, until_s: float) -> list[SchedulerInbox]:
    """Wait for a message, giving it and all that stand behind it, in order; none when until_s comes first."""
    messages: list[SchedulerInbox] = []
    with trio.move_on_at(until_s):
        messages.append(await channels.scheduler_receive.receive())
    while True:
        try:
            messages.append(channels.scheduler_receive.receive_nowait())
        except trio.WouldBlock:
            return messages


async def _fail(core: SchedulerCore, channels: Channels, what: str, error: Exception) -> None:
    """Tell every client that the engine failed, wait until they have heard it, and raise EngineFailure."""
    channels.admission.close()
    core.fail()
    tokens = core.outbox.take()
    if tokens is not None:
        channels.tokens_send.send_nowait(tokens)
        with trio.move_on_after(FAILURE_GRACE_S):
            while _has_listener(tokens):  # noqa: ASYNC110  # a mailbox wakes nobody when its reader leaves
                await trio.sleep(_FAILURE_POLL_S)
    raise EngineFailure(f"{what}: {type(error).__name__}: {error}") from error


def _has_listener(tokens: Tokens) -> bool:
    return any(row.submit.mailbox.has_reader for row in tokens.rows)
