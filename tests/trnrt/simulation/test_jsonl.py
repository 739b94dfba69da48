import json
from pathlib import Path

import pytest

from stages.errors import ConfigError
from trnrt.simulation.jsonl import BLOCK_TOKENS, read_jsonl

GOOD = {"timestamp": 0, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2, 3]}


def write(folder: Path, *rows: object) -> str:
    file = folder / "trace.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(file)


def test_the_same_hash_id_is_the_same_block_of_tokens(tmp_path: Path):
    trace = read_jsonl(write(tmp_path, GOOD, GOOD | {"hash_ids": [1, 2, 4]}, GOOD | {"hash_ids": [5, 2, 3]}))

    first, second, third = (one.turns[0].fresh for one in trace.conversations)
    assert len(first) == len(second) == len(third) == 1200
    assert first[: 2 * BLOCK_TOKENS] == second[: 2 * BLOCK_TOKENS]
    assert first[2 * BLOCK_TOKENS] != second[2 * BLOCK_TOKENS]
    assert first[0] != third[0]
    assert first[BLOCK_TOKENS:] == third[BLOCK_TOKENS:]


def test_tokens_without_a_hash_id_are_the_lines_own(tmp_path: Path):
    trace = read_jsonl(write(tmp_path, GOOD | {"hash_ids": [1, 2]}, GOOD | {"hash_ids": [1, 2]}))

    first, second = (one.turns[0].fresh for one in trace.conversations)
    assert first[:1024] == second[:1024]
    assert first[1024:] != second[1024:]


def test_requests_come_in_order_of_their_timestamps_from_zero(tmp_path: Path):
    trace = read_jsonl(write(tmp_path, *(GOOD | {"timestamp": ms} for ms in (5000, 2500, 9000.5))))

    assert [(one.name, one.start_s) for one in trace.conversations] == [
        ("line-2", 0.0),
        ("line-1", 2.5),
        ("line-3", 6.5005),
    ]


def test_a_limit_takes_the_first_lines_and_empty_lines_are_skipped(tmp_path: Path):
    trace = read_jsonl(write(tmp_path, GOOD, "", GOOD, "not JSON"), limit=2)

    assert [one.name for one in trace.conversations] == ["line-1", "line-3"]


def test_a_priority_may_stand_beside_the_rest(tmp_path: Path):
    (one,) = read_jsonl(write(tmp_path, GOOD | {"priority": -3})).conversations

    assert one.priority == -3


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("{", "not JSON"),
        ([], "object"),
        ({}, "timestamp"),
        (GOOD | {"timestamp": "now"}, "timestamp"),
        (GOOD | {"timestamp": -1}, "timestamp"),
        (GOOD | {"input_length": 0}, "input_length"),
        (GOOD | {"input_length": 1.5}, "input_length"),
        (GOOD | {"output_length": None}, "output_length"),
        (GOOD | {"output_length": True}, "output_length"),
        (GOOD | {"hash_ids": 3}, "hash_ids"),
        (GOOD | {"input_length": 10**10}, "input_length"),
        (GOOD | {"output_length": 10**10}, "output_length"),
        (GOOD | {"hash_ids": ["a"]}, "hash_ids"),
        (GOOD | {"hash_ids": [True]}, "hash_ids"),
        (GOOD | {"hash_ids": [1, 2, 3, 4]}, "hash_ids"),
        (GOOD | {"priority": "high"}, "priority"),
    ],
)
def test_a_bad_line_names_the_file_the_line_and_the_field(row: object, text: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=rf"^--trace: .*trace\.jsonl:2: .*{text}"):
        read_jsonl(write(tmp_path, GOOD, row))


def test_an_empty_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no requests"):
        read_jsonl(write(tmp_path, "", ""))
