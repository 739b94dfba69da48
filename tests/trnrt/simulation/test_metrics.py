import xml.etree.ElementTree as ElementTree

import pytest

from stages.messages import Finish, Usage
from trnrt.simulation.metrics import measure
from trnrt.simulation.report import Report, Result, to_json, to_text
from trnrt.simulation.run import Moment, Run, Served
from trnrt.simulation.svg import to_svg


def served(name: str, asked_s: float, times_s: list[float], usage: Usage) -> Served:
    return Served(name, asked_s, usage.prompt_tokens, times_s, usage, Finish("length"), times_s[-1])


@pytest.fixture
def run() -> Run:
    return Run(
        served=[
            served("a", 1.0, [2.0, 2.5, 4.0], Usage(100, 3, 60, 0, 20, 1)),
            served("b", 2.0, [5.0], Usage(300, 1)),
        ],
        moments=[Moment(1.0, 0, 1), Moment(2.0, 1, 3), Moment(3.0, 2, 0), Moment(5.0, 0, 0)],
        counts={"preemptions": 2.0},
        busy_s=3.0,
        num_steps=7,
    )


def test_cached_tokens_are_a_share_of_the_prompts_by_tier(run: Run):
    metrics = measure(run)

    assert metrics.hit_rate == 60 / 400
    assert metrics.hit_rate_device == 40 / 400
    assert metrics.hit_rate_host == 20 / 400


def test_times_rates_and_means_run_from_the_first_request_to_the_last_end(run: Run):
    metrics = measure(run)

    assert metrics.duration_s == 4.0
    assert metrics.ttft_s == (2.0, pytest.approx(2.8), pytest.approx(2.98))
    assert metrics.token_gap_s[0] == 1.0
    assert (metrics.output_tokens_per_s, metrics.total_tokens_per_s) == (1.0, 101.0)
    assert (metrics.waiting_mean, metrics.waiting_max) == (1.0, 3)
    assert (metrics.running_mean, metrics.running_max) == (1.25, 2)
    assert metrics.busy_share == 0.75
    assert (metrics.preemptions, metrics.retractions, metrics.steps) == (2, 1, 7)


def report(run: Run) -> Report:
    results = [Result(name, {"schedule_policy": name}, run, measure(run)) for name in ("one", "a<b&c")]
    return Report("chat", "cpu", "made up; not run", 5, results)


def test_the_table_has_a_column_for_each_setting_and_says_where_the_times_come_from(run: Run):
    text = to_text(report(run))

    assert "(made up; not run)" in text
    assert "seed 5" in text
    assert [line.split()[-2:] for line in text.splitlines() if line.startswith("retractions")] == [["1", "1"]]
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_the_picture_is_xml_with_a_line_for_each_setting_in_each_panel_inside_its_bounds(run: Run):
    root = ElementTree.fromstring(to_svg(report(run)))

    lines = [one for one in root.iter() if one.tag.endswith("polyline")]
    assert len(lines) == 4 * 2
    points = [tuple(map(float, point.split(","))) for line in lines for point in line.get("points", "").split()]
    assert all(0 <= x <= float(root.get("width", 0)) and 0 <= y <= float(root.get("height", 0)) for x, y in points)
    assert "a<b&c" in {one.text for one in root.iter()}


def test_a_run_without_a_token_has_a_picture_and_a_table_too():
    nothing = Run(served=[Served("a", 0.0, 10)])

    assert "-" in to_text(report(nothing))
    assert ElementTree.fromstring(to_svg(report(nothing))) is not None
    assert '"p50": null' in to_json(report(nothing))
