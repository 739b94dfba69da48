"""Where a call's time went, from its record: one interval a stage it came to, in order, none between them. Core.

| stage | from | to |
|---|---|---|
| ingress | arrival | the body understood |
| prompt | | its ids |
| grammar | | the constraint compiled; of constrained calls alone |
| queue | | let in by the scheduler |
| prefill | | the first token |
| engine | handed to an engine behind this server | the first token |
| decode | | the last token |
| deliver | | the last byte |

A call that ended before its last stage ended within the stage it had come to.
"""

from typing import Literal

from attrs import frozen

from stages.messages import RequestRecord

StageName = Literal["ingress", "prompt", "grammar", "queue", "engine", "prefill", "decode", "deliver"]
# Ends that come while tokens do: nothing was left to deliver.
_CUT = ("abort", "error", "disconnected")


@frozen
class Interval:
    """A stage of a call, on trio's clock."""

    stage: StageName
    start_s: float
    end_s: float

    @property
    def took_s(self) -> float:
        """Return how long it took."""
        return self.end_s - self.start_s


def intervals(record: RequestRecord) -> list[Interval]:
    """Return the stages that a call came to, the last one up to its end."""
    marks: list[tuple[StageName, float | None]] = [("ingress", record.parsed_s), ("prompt", record.prompt_ready_s)]
    if record.is_constrained:
        marks.append(("grammar", record.submitted_s))
    is_remote = record.first_token_s is not None or record.cause == "engine_refused"
    if record.admitted_s is None and is_remote:
        marks.append(("engine", record.first_token_s))
    else:
        marks += [("queue", record.admitted_s), ("prefill", record.first_token_s)]
    marks.append(("decode", None if record.outcome in _CUT else record.last_token_s))
    marks.append(("deliver", None))
    found: list[Interval] = []
    start_s = record.arrived_s
    for stage, end_s in marks:
        reached_s = record.ended_s if end_s is None else min(max(end_s, start_s), record.ended_s)
        found.append(Interval(stage, start_s, reached_s))
        if end_s is None:
            break
        start_s = reached_s
    return found
