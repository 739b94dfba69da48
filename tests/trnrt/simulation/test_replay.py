"""A production log as a trace: what calls share is what they found cached; what is unknown is left out and told."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest

import trnrt.simulation.replay
from stages.errors import ConfigError
from stages.messages import RequestRecord
from stages.settings import CacheSettings, SchedulerSettings
from tests.stages.stats.prodlog.kit import journal, record
from tests.trnrt.simulation.models import linear
from trnrt.simulate import run_simulate
from trnrt.simulation.generator import generate
from trnrt.simulation.metrics import measure
from trnrt.simulation.replay import read_production_log
from trnrt.simulation.run import Run, answer_token, simulate
from trnrt.simulation.traces import USER, Conversation, Trace


def call(at_s: float, prompt: int, cached: int = 0, completion: int = 10, **changes: Any) -> RequestRecord:
    """A call that takes a second: in the queue at once, in the batch 0.25 s and with a token 0.5 s later."""
    given: dict[str, Any] = {
        "arrived_s": 0.0,
        "parsed_s": 0.0,
        "prompt_ready_s": 0.0,
        "submitted_s": 0.0,
        "admitted_s": 0.25,
        "first_token_s": 0.5,
        "last_token_s": 1.0,
        "ended_s": 1.0,
        "prompt_tokens": prompt,
        "cached_device_tokens": cached,
        "cached_host_tokens": 0,
        "completion_tokens": completion,
        "reasoning_tokens": 0,
    }
    return record(at_s, **(given | changes))


def logged(path: Path, *calls: RequestRecord) -> Trace:
    one = journal(path, max_bytes=1 << 26, file_bytes=1 << 22)
    one.write(deque(calls))
    one.close()
    return read_production_log(path)


def fresh(conversation: Conversation) -> list[int]:
    (turn,) = conversation.turns
    return list(turn.fresh)


def shared(one: Conversation, other: Conversation) -> int:
    """How many tokens two prompts begin with together, but for a mark that both may have after them."""
    pairs = zip(fresh(one), fresh(other), strict=False)
    count = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(fresh(one)), len(fresh(other))))
    return count - (count > 0 and fresh(one)[count - 1] == USER)


def test_calls_come_when_they_came_to_the_queue_with_their_lengths(tmp_path: Path):
    trace = logged(tmp_path, call(5, 100), call(2, 300, completion=7, submitted_s=0.5))

    assert [one.start_s for one in trace.conversations] == [0.0, 2.5]
    assert [len(fresh(one)) for one in trace.conversations] == [300, 100]
    assert [one.turns[0].output_tokens for one in trace.conversations] == [7, 10]


def test_a_call_that_found_nothing_shares_nothing(tmp_path: Path):
    one, other = logged(tmp_path, call(0, 100), call(5, 100)).conversations

    assert shared(one, other) == 0


def test_the_next_turn_begins_with_the_last_one_and_its_answer(tmp_path: Path):
    calls = (call(0, 100, completion=20), call(1, 90), call(5, 300, cached=116))

    first, _, third = logged(tmp_path, *calls).conversations

    assert shared(first, third) == 100
    assert fresh(third)[100:116] == [answer_token(0, position) for position in range(100, 116)]


def test_a_turn_goes_on_only_once(tmp_path: Path):
    calls = [call(0, 100, completion=20), call(0.125, 100, completion=20), call(5, 300, cached=116)]

    one, two, three, four = logged(tmp_path, *calls, call(5.125, 300, cached=116)).conversations

    assert {shared(one, three), shared(two, three)} == {0, 100}
    assert {shared(one, four), shared(two, four)} == {0, 100}
    assert shared(three, four) == 0


def test_calls_that_found_as_much_as_another_begin_like_it(tmp_path: Path):
    calls = (call(0, 100), call(3, 200, cached=64), call(6, 140), call(9, 300, cached=64))

    first, second, third, fourth = logged(tmp_path, *calls).conversations

    assert shared(first, second) == 64
    assert shared(second, fourth) == 64
    assert shared(third, fourth) == 0
    # The log's cache had a snapshot there, so a turn begins there.
    assert fresh(first)[64] == USER


def test_what_is_still_being_computed_is_shared_by_a_burst(tmp_path: Path):
    calls = [call(0, 200)] + [call(0.125, 200, cached=128) for _ in range(3)]

    conversations = logged(tmp_path, *calls).conversations

    assert [shared(conversations[0], one) for one in conversations[1:]] == [128, 128, 128]


def test_what_came_before_the_log_is_not_made_up_and_its_share_is_told(tmp_path: Path):
    trace = logged(tmp_path, call(0, 100, cached=64), call(3, 100), call(6, 200, cached=64))

    assert shared(trace.conversations[0], trace.conversations[1]) == 0
    assert shared(trace.conversations[0], trace.conversations[2]) == 64
    assert trace.name == f"{tmp_path.name} (0 calls without a token left out; 50 % of 128 cached tokens placed)"


def test_choices_are_calls_at_one_instant_with_one_prompt(tmp_path: Path):
    trace = logged(tmp_path, call(0, 100, completion=11, num_choices=3))

    assert [(one.start_s, one.turns[0].output_tokens) for one in trace.conversations] == [(0, 4), (0, 4), (0, 3)]
    assert len({tuple(fresh(one)) for one in trace.conversations}) == 1
    assert len({one.name for one in trace.conversations}) == 3


def test_calls_without_a_token_are_left_out_and_told(tmp_path: Path):
    refused = call(1, 50, completion=0, outcome="refused", status=503, cause="queue_full", first_token_s=None)
    unmade = call(2, 0, completion=0, submitted_s=None, outcome="refused", status=400)

    trace = logged(tmp_path, call(0, 100), refused, unmade)

    assert trace.num_requests == 1
    assert "2 calls without a token left out; none of 0 cached tokens placed" in trace.name
    with pytest.raises(ConfigError, match=r"--trace: .* has no calls that can be replayed"):
        logged(tmp_path / "other", refused)


def test_a_log_of_more_tokens_than_can_be_held_is_refused_by_the_flag_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trnrt.simulation.replay, "MAX_TRACE_TOKENS", 250)
    with pytest.raises(ConfigError, match="more than 250 prompt tokens; give --num-requests"):
        logged(tmp_path, call(0, 100), call(1, 100), call(2, 100))

    assert read_production_log(tmp_path, 2).num_requests == 2


SETTINGS = SchedulerSettings(
    chunked_prefill_size_tokens=256,
    max_running_requests=8,
    cache=CacheSettings(max_snapshots=64, boundary_token_ids=frozenset({USER})),
)


def records_of(run: Run) -> "deque[RequestRecord]":
    """What a simulated run would have left in a log."""
    return deque(
        call(
            served.asked_s,
            served.prompt_tokens,
            served.usage.cached_tokens,
            served.usage.completion_tokens,
            first_token_s=served.token_times_s[0] - served.asked_s,
            last_token_s=served.ended_s - served.asked_s,
            ended_s=served.ended_s - served.asked_s,
            admitted_s=0.0,
        )
        for served in sorted(run.served, key=lambda one: one.ended_s)
    )


@pytest.mark.parametrize("kind", ["chat", "burst"])
def test_a_replay_under_the_logs_own_settings_finds_in_the_cache_what_was_found_then(tmp_path: Path, kind: str):
    model = linear(step_s=0.01, memory_bytes=1e7)
    then = simulate(generate(kind, 24, 0), SETTINGS, model)

    again = simulate(logged(tmp_path, *records_of(then)), SETTINGS, model)

    hits_then, hits = measure(then), measure(again)
    assert hits_then.hit_rate > 0.4
    assert hits.hit_rate <= hits_then.hit_rate
    assert hits.hit_rate > hits_then.hit_rate - 0.03
    assert hits.prompt_tokens == hits_then.prompt_tokens


def test_simulate_takes_the_folder_of_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    logged(tmp_path, call(0, 100), call(3, 200, cached=64), call(6, 300, cached=64))

    assert run_simulate(["--trace", str(tmp_path), "--device-model", "cpu", "--num-requests", "2", "--json"]) == 0

    table = json.loads(capsys.readouterr().out)
    assert table["results"]["fcfs"]["requests"] == 2
    assert table["results"]["fcfs"]["hit_rate"] > 0
    with pytest.raises(ConfigError, match=r"--trace: .*/none.* is none of"):
        run_simulate(["--trace", str(tmp_path / "none")])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"--trace: .*/empty has no files of a production log"):
        run_simulate(["--trace", str(tmp_path / "empty")])
