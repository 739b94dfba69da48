"""The default flags plan what they planned when tests/golden/plans.json was written, step by step.

A change of plans is not wrong by itself: look at the counts that changed, then run scripts/golden_plans.py.
"""

import json
from pathlib import Path

import pytest

from tests.golden.plans import KINDS, SEEDS, record

KNOWN = json.loads((Path(__file__).parent / "plans.json").read_text())


def test_the_file_has_every_workload_and_no_other():
    assert list(KNOWN) == [f"{kind} {seed}" for kind in KINDS for seed in SEEDS]
    assert len(KNOWN) >= 96
    assert len({known["digest"] for known in KNOWN.values()}) == len(KNOWN)


def test_the_workloads_reach_what_they_are_there_for():
    def total(kind: str, count: str) -> int:
        return sum(known[count] for name, known in KNOWN.items() if name.startswith(kind))

    assert total("pressure", "retractions") > 0
    assert total("asking, pressure", "retractions") > 0
    assert total("plain", "cached") == 0
    for kind in ("conversations", "sessions", "bursts"):
        assert total(kind, "cached") > total(kind, "prefilled")
    # Four snapshots are too few for eight conversations.
    assert total("crowded", "prefilled") > 3 * total("conversations", "prefilled")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_plans_of_a_workload_are_the_known_ones(kind: str, seed: int):
    assert record(kind, seed) == KNOWN[f"{kind} {seed}"]
