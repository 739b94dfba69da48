"""Measures what the scheduler's core costs a step: plan + complete in microseconds, by number of decoding rows.

The device's answer is a constant, so nothing but the core is timed, in CPU time of this thread. Prints one JSON object.
"""

import argparse
import json
import statistics
import time
from collections import deque

import numpy as np

from graphs.keys import Buckets, doubling
from graphs.step import Capacity, StepOutput
from stages.channels import Admission, open_mailbox
from stages.messages import ChoiceKey, Sampling, StepPlan, Submit, TextForm
from stages.scheduler.core import SchedulerCore
from stages.scheduler.policies import load_policy
from stages.settings import SchedulerSettings

PROMPT_TOKENS = 256
PAGE_TOKENS = 64


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 256])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--waiting", type=int, default=0, help="choices that wait behind the running ones")
    parser.add_argument("--overlap", action="store_true", help="plan each step while the one before it is in flight")
    arguments = parser.parse_args()
    waiting, overlap = arguments.waiting, arguments.overlap
    results = {str(rows): measure(rows, arguments.steps, waiting, overlap) for rows in arguments.rows}
    print(json.dumps({"plan_and_complete_us_by_rows": results, "waiting": waiting, "overlap": overlap}))


def measure(num_rows: int, num_steps: int, num_waiting: int = 0, overlap: bool = False) -> dict[str, float]:
    """Return median and 99th percentile CPU microseconds of plan + complete + take over num_steps decode steps."""
    core = _running_core(num_rows, num_steps, num_waiting, overlap)
    output = _output(num_rows)
    costs_us = []
    flights: deque[StepPlan] = deque()
    if overlap:
        _launch(core, flights)
    for _ in range(num_steps):
        begin_ns = time.thread_time_ns()
        _launch(core, flights)
        plan = flights.popleft()
        core.complete(plan.step, output)
        core.outbox.take()
        costs_us.append((time.thread_time_ns() - begin_ns) / 1e3)
        assert plan.input.key.family == "decode"
    return {"p50": round(statistics.median(costs_us), 1), "p99": round(statistics.quantiles(costs_us, n=100)[98], 1)}


def _launch(core: SchedulerCore, flights: deque[StepPlan]) -> None:
    plan = core.plan()
    assert plan is not None
    flights.append(plan)


def _running_core(num_rows: int, num_steps: int, num_waiting: int, overlap: bool) -> SchedulerCore:
    """Return a core with num_rows choices that decode and num_waiting that find no place."""
    row_pages = -(-(PROMPT_TOKENS + num_steps + 8) // PAGE_TOKENS)
    capacity = Capacity(
        num_pages=2 * num_rows * row_pages + 1,
        page_size_tokens=PAGE_TOKENS,
        num_slots=num_rows + 1,
        buckets=Buckets(doubling(1, num_rows), (1, 2, 4), (64, 256), doubling(4, 2 * row_pages)),
        vocab_size=4096,
        context_length_tokens=row_pages * PAGE_TOKENS,
        max_top_logprobs=20,
    )
    queue = Admission(num_rows + num_waiting, lambda _: None)
    settings = SchedulerSettings(max_running_requests=num_rows, overlap=overlap)
    core = SchedulerCore(settings, capacity, queue, load_policy("fcfs"))
    for index in range(num_rows + num_waiting):
        queue.send_nowait((_submit(index, num_steps + 8),))
    while core.roster.prefilling or not core.roster.decoding:
        plan: StepPlan | None = core.plan()
        assert plan is not None
        core.complete(plan.step, _output(plan.input.key.batch))
    core.outbox.take()
    return core


def _submit(index: int, max_new_tokens: int) -> Submit:
    return Submit(
        key=ChoiceKey(f"request-{index}", 0),
        prompt_ids=tuple(range(PROMPT_TOKENS)),
        sampling=Sampling(temperature=0.7, top_p=0.95),
        seed=index,
        max_new_tokens=10 * max_new_tokens,
        min_new_tokens=0,
        stop_token_ids=frozenset({0, 1, 2}),
        stop=(),
        form=TextForm(),
        in_reasoning=False,
        logprobs=False,
        num_top_logprobs=0,
        mailbox=open_mailbox(1, 1)[0],
    )


def _output(num_rows: int) -> StepOutput:
    token_ids = np.full(num_rows, 7, np.int64)
    return StepOutput(token_ids, np.zeros(num_rows, np.float32), None, None, 0.0)


if __name__ == "__main__":
    main()
