"""What is kept by slot: counts of all choices at once say the same as each choice, and shadows take turns."""

import random
from collections import deque

import numpy as np
import pytest

from stages.channels import Admission
from stages.messages import Cancel, StepPlan
from stages.scheduler.core import SchedulerCore
from stages.scheduler.policies import load_policy
from stages.scheduler.progress import Progress
from stages.settings import CacheSettings, SchedulerSettings
from tests.sim.history_device import HistoryDevice
from tests.sim.simkit import capacity, submit


@pytest.mark.parametrize("seed", range(4))
def test_what_is_kept_for_all_that_run_is_the_sum_of_what_is_kept_for_each(seed: int):
    rng = random.Random(seed)
    device = HistoryDevice(capacity(num_pages=200, num_slots=25))
    queue = Admission(64, lambda _: None)
    settings = SchedulerSettings(overlap=bool(seed % 2), cache=CacheSettings(max_snapshots=8))
    core = SchedulerCore(settings, device.capacity, queue, load_policy("fcfs"))
    plans: deque[StepPlan] = deque()
    sums = set()
    for number in range(60):
        if rng.random() < 0.5:
            stop = frozenset({3}) if rng.random() < 0.7 else frozenset[int]()
            new = rng.randint(1, 90)
            prompt = tuple(rng.randrange(997) for _ in range(rng.randint(1, 40)))
            queue.send_nowait((submit(f"r{number}", prompt, max_new_tokens=new, stop_token_ids=stop),))
        while (plan := core.plan()) is not None:
            plans.append(plan)
        # Whose step is out keeps its slot, and nothing is kept for it any more.
        core.cancel(Cancel(f"r{rng.randrange(60)}"))
        memory, running = core.memory, list(core.roster.running())
        expected = sum(max(0, memory.foreseen_pages(choice) - len(choice.pages)) for choice in running)
        assert memory.reserved_pages() == expected
        sums.add(expected)
        slots = np.array([choice.slot for choice in running], np.int64)
        assert memory.lacks_pages(slots).tolist() == [memory.lacks_page(choice) for choice in running]
        assert memory.progress.num_tokens[slots].tolist() == [choice.num_tokens for choice in running]
        if plans:
            done = plans.popleft()
            core.complete(done.step, device.run(done.input))
    assert len(sums) > 10


def test_the_older_of_two_shadows_is_written_next_and_a_single_one_always():
    progress = Progress(3)
    progress.max_shadows[:] = (0, 1, 2)
    slots = np.array([1, 2])
    assert progress.lacking_shadows(slots).tolist() == [1, 2]
    assert progress.take_shadows(slots, np.array([4, 8])).tolist() == []
    progress.add_shadow(1, 10)
    progress.add_shadow(2, 20)
    assert progress.lacking_shadows(slots).tolist() == [2]
    assert progress.take_shadows(slots, np.array([4, 8])).tolist() == [[1, 10], [2, 20]]
    progress.add_shadow(2, 21)
    assert progress.lacking_shadows(slots).tolist() == []
    taken = [progress.take_shadows(slots, np.array([at, at + 4])).tolist() for at in (8, 12, 16)]
    assert [pair[1] for pair in taken] == [[2, 21], [2, 20], [2, 21]]
    assert [pair[0] for pair in taken] == [[1, 10]] * 3
    progress.clear(2)
    assert not progress.shadow_slots[2].any()
