"""A short prompt that comes while a long one is being computed, under shortest-prefill-first, in virtual time."""

import pytest
import trio

from graphs.step import StepInput
from stages.settings import SchedulerSettings
from tests.sim.history_device import HistoryDevice
from tests.sim.simkit import Heard, capacity, run_sim, sim_engine, submit

PREFILL_S, DECODE_S = 0.5, 0.125
LONG, SHORT = tuple(range(64)), tuple(range(500, 509))


def family_time_s(step: StepInput) -> float:
    return PREFILL_S if step.key.family == "prefill" else DECODE_S


@pytest.mark.parametrize("overlap", [False, True])
def test_a_shorter_prompt_takes_a_row_beside_the_running_chunk_and_delays_it_by_nothing(overlap: bool):
    device = HistoryDevice(capacity(), family_time_s)
    heard: dict[str, Heard] = {}

    async def main() -> None:
        settings = SchedulerSettings(
            chunked_prefill_size_tokens=16, schedule_policy="shortest-prefill-first", overlap=overlap
        )
        async with sim_engine(settings, device) as engine, trio.open_nursery() as nursery:

            async def ask(name: str, prompt: tuple[int, ...], at_s: float) -> None:
                await trio.sleep(at_s)
                heard[name] = await engine.ask(submit(name, prompt, max_new_tokens=1))

            nursery.start_soon(ask, "long", LONG, 0.0)
            nursery.start_soon(ask, "short", SHORT, 0.1)

    run_sim(main)
    assert heard["short"].times_s == (2 * PREFILL_S,)
    assert heard["long"].times_s == (4 * PREFILL_S,)
    assert [step.num_valid[step.num_valid > 0].tolist() for step in device.steps] == [[16], [16, 9], [16], [16]]
