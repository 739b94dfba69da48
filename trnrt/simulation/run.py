"""Runs one trace through the real scheduler and executor with a timed device, giving what every client saw when."""

import math

import trio
from attrs import define, evolve, field, frozen

from graphs.devices.sim import SimDevice
from stages.channels import open_mailbox
from stages.errors import ConfigError, RequestError, StartupError, Unavailable
from stages.mailbox import Mailbox
from stages.messages import ChoiceKey, Ended, Finish, Load, Record, Sampling, Submit, TextForm, Usage
from stages.settings import SchedulerSettings
from stages.stats.stage import Stats
from trnrt.simulation.clock import run_virtually
from trnrt.simulation.device_models import DeviceModel
from trnrt.simulation.engine import VirtualEngine, virtual_engine
from trnrt.simulation.traces import FIRST_TOKEN, VOCAB_SIZE, Conversation, Trace, Turn
from trnrt.supervise import first_cause

# Longer than any trace; the virtual clock makes a deadlock an error at once all the same.
TIMEOUT_S = 1e9
REFUSED, TOO_LONG = Finish("error", status=503), Finish("error", status=400)
NOTHING_USED = Usage(0, 0)


@define(eq=False)
class Served:
    """What one request's client saw: token_times_s has the instant of each token, usage is the last heard."""

    name: str
    asked_s: float
    prompt_tokens: int
    token_times_s: list[float] = field(factory=list)
    usage: Usage = NOTHING_USED
    finish: Finish = REFUSED
    ended_s: float = 0.0


@frozen
class Moment:
    """Where the engine stood from at_s on."""

    at_s: float
    running: int
    waiting: int


@define(eq=False)
class Run:
    """Everything seen of one trace under one setting."""

    served: list[Served] = field(factory=list)
    moments: list[Moment] = field(factory=list)
    counts: dict[str, float] = field(factory=dict)
    busy_s: float = 0.0
    num_steps: int = 0

    async def watch(self, stats: Stats, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep what the scheduler tells of itself, in place of the stats stage."""
        task_status.started()
        async for item in stats.receive:
            if isinstance(item, Load):
                self._at(item)
            elif isinstance(item, Record):
                self.counts[item.name] = self.counts.get(item.name, 0.0) + item.value

    def _at(self, load: Load) -> None:
        newest = self.moments[-1] if self.moments else None
        if newest is not None and newest.at_s == trio.current_time():
            self.moments.pop()
        elif newest is not None and (newest.running, newest.waiting) == (load.running, load.waiting):
            return
        self.moments.append(Moment(trio.current_time(), load.running, load.waiting))


@frozen
class Answers:
    """What becomes of an answer in the next turn's prompt."""

    strip_reasoning: bool = False

    def kept(self, turn: Turn, token_ids: list[int]) -> list[int]:
        """Return the part of an answer that the client sends back."""
        return token_ids[turn.reasoning_tokens :] if self.strip_reasoning else token_ids


def simulate(
    trace: Trace,
    settings: SchedulerSettings,
    model: DeviceModel,
    *,
    seed: int = 0,
    answers: Answers = Answers(),
    max_total_tokens: int | None = None,
    host_cache_bytes: float = 0.0,
    queue_timeout_s: float = math.inf,
) -> Run:
    """Return what happened to every request of the trace; the same arguments give the same run; raises StartupError."""
    device = SimDevice(
        model.capacity(settings, max_total_tokens, host_cache_bytes),
        model.step_seconds,
        answer_token,
        model.transfer_seconds,
    )
    run = Run()

    def client_of(engine: VirtualEngine) -> _Client:
        return _Client(engine, answers, queue_timeout_s, model.context_length_tokens, run)

    async def main() -> None:
        async with virtual_engine(settings, device, stats_stage=run.watch) as engine:
            async with trio.open_nursery() as nursery:
                for conversation in trace.conversations:
                    nursery.start_soon(_converse, client_of(engine), conversation)

    try:
        run_virtually(main, seed=seed, timeout_s=TIMEOUT_S)
    except BaseExceptionGroup as group:
        cause = first_cause(group)
        # A setting that only the stages themselves can judge, or a signal.
        raise (cause if isinstance(cause, StartupError | KeyboardInterrupt | SystemExit) else group) from None
    except trio.TooSlowError:
        raise ConfigError(f"--trace, --device-model: the trace takes more than {TIMEOUT_S:g} s") from None
    run.served.sort(key=lambda served: (served.asked_s, served.name))
    run.busy_s, run.num_steps = device.busy_s, device.num_steps
    return run


def answer_token(slot: int, position: int) -> int:
    """Return the simulated token at a position: the same in every slot, so that no setting changes what is asked."""
    return FIRST_TOKEN + position * 7919 % (VOCAB_SIZE - FIRST_TOKEN)


@frozen(eq=False)
class _Client:
    engine: VirtualEngine
    answers: Answers
    queue_timeout_s: float
    context_tokens: int
    run: Run

    async def ask(self, prompt_ids: tuple[int, ...], turn: Turn, priority: int | None, served: Served) -> list[int]:
        """Send one request and listen to its end, giving the answer; what ingress would refuse goes no further."""
        if len(prompt_ids) + turn.output_tokens > self.context_tokens:
            served.finish = TOO_LONG
            return []
        send, receive = open_mailbox(turn.output_tokens, 1)
        answer: list[int] = []
        order = evolve(
            _submit(served.name, prompt_ids, turn.output_tokens, send),
            priority=priority,
            wait_until_s=trio.current_time() + self.queue_timeout_s,
        )
        try:
            self.engine.engine.submit((order,))
        except (Unavailable, RequestError):
            return answer
        while True:
            event = await receive.receive()
            served.usage = event.usage
            if isinstance(event, Ended):
                served.finish = event.finish
                return answer
            answer += event.token_ids
            served.token_times_s += [trio.current_time()] * len(event.token_ids)


async def _converse(client: _Client, conversation: Conversation) -> None:
    """Ask turn after turn; a conversation whose turn failed ends there."""
    await trio.sleep_until(conversation.start_s)
    history: list[int] = []
    for index, turn in enumerate(conversation.turns):
        await trio.sleep(turn.pause_s)
        history += turn.fresh
        served = Served(f"{conversation.name}/{index}", trio.current_time(), len(history))
        client.run.served.append(served)
        answer = await client.ask(tuple(history), turn, conversation.priority, served)
        served.ended_s = trio.current_time()
        if served.finish.kind not in ("stop", "length"):
            return
        history += client.answers.kept(turn, answer)


def _submit(
    name: str,
    prompt_ids: tuple[int, ...],
    output_tokens: int,
    mailbox: Mailbox,
) -> Submit:
    return Submit(
        key=ChoiceKey(name, 0),
        prompt_ids=prompt_ids,
        sampling=Sampling(temperature=0.0),
        seed=0,
        max_new_tokens=output_tokens,
        min_new_tokens=output_tokens,
        stop_token_ids=frozenset(),
        stop=(),
        form=TextForm(),
        in_reasoning=False,
        logprobs=False,
        num_top_logprobs=0,
        mailbox=mailbox,
    )
