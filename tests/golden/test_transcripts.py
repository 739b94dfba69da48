"""Every API answers the golden calls byte for byte as it did when tests/golden/transcripts/ was written.

A change is not wrong by itself: look at the lines that changed, then run scripts/golden_transcripts.py.
"""

from pathlib import Path

import pytest

from tests.golden.transcripts import RECORDED, record, table

FOLDER = Path(__file__).parent / "transcripts"


def test_there_is_a_file_for_every_api_and_no_other():
    assert {path.stem for path in FOLDER.iterdir()} == set(RECORDED)
    for name, api in RECORDED.items():
        text = (FOLDER / f"{name}.txt").read_text()
        assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == list(table(api))


@pytest.mark.parametrize("name", RECORDED)
def test_the_answers_of_an_api_are_the_known_ones(name: str):
    assert record(RECORDED[name]).splitlines() == (FOLDER / f"{name}.txt").read_text().splitlines()
