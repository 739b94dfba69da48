"""The command as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages.errors import ConfigError
from trnrt.__main__ import main
from trnrt.simulate import run_simulate
from trnrt.simulation.generator import SHAPES

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--trace", "chat", "--num-requests", "8"]
# Many at one instant: what is the same here does not hang on the order in which tasks happen to run.
BURST = ["--trace", "burst", "--num-requests", "12"]

# The base install has neither torch nor pytest, which trio.testing looks for.
WITHOUT_EXTRAS = """
import sys
for name in ("torch", "safetensors", "transformers", "pytest", "_pytest", "xgrammar"):
    sys.modules[name] = None
from trnrt.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def in_a_process(*argv: str, hash_seed: str) -> bytes:
    environ = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT), "TRNRT_SCHEDULE_POLICY": "nonsense"}
    command = [sys.executable, "-c", WITHOUT_EXTRAS, "simulate", *argv]
    return subprocess.run(command, env=environ, capture_output=True, check=True).stdout


def test_two_processes_without_torch_give_the_same_bytes_whatever_the_environment(tmp_path: Path):
    folders = [tmp_path / "one", tmp_path / "two"]

    outputs = [
        in_a_process(*BURST, "--compare", "fcfs,fcfs:max-running-requests=2", "--out", str(folder), hash_seed=seed)
        for folder, seed in zip(folders, ("1", "2"), strict=True)
    ]

    assert outputs[0] == outputs[1]
    for name in ("simulation.txt", "simulation.json", "simulation.svg"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    assert (folders[0] / "simulation.txt").read_bytes() == outputs[0]


def simulated(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, dict[str, object]]:
    assert run_simulate([*argv, "--json"]) == 0
    results: dict[str, dict[str, object]] = json.loads(capsys.readouterr().out)["results"]
    return results


def test_another_seed_gives_another_run(capsys: pytest.CaptureFixture[str]):
    first, second = (simulated(capsys, *SMALL, "--seed", seed) for seed in ("0", "1"))

    assert first["fcfs"]["ttft_s"] != second["fcfs"]["ttft_s"]


@pytest.mark.parametrize("trace", sorted(SHAPES))
def test_every_generated_trace_runs_to_its_end(trace: str, capsys: pytest.CaptureFixture[str]):
    result = simulated(capsys, "--trace", trace, "--num-requests", "6")["fcfs"]

    assert (result["requests"], result["finished"], result["refused"]) == (6, 6, 0)


def test_each_setting_of_a_comparison_has_its_flags_over_those_given(capsys: pytest.CaptureFixture[str]):
    compare = "fcfs,fcfs:max-running-requests=2,chunked-prefill-size=512:snapshot-slots=9"

    results = simulated(capsys, *BURST, "--max-running-requests", "3", "--compare", compare)

    assert list(results) == compare.split(",")
    settings = [result["settings"] for result in results.values()]
    assert [one["max_running_requests"] for one in settings] == [3, 2, 3]  # type: ignore[index]
    assert [one["chunked_prefill_size"] for one in settings] == [2048, 2048, 512]  # type: ignore[index]
    assert [one["snapshot_slots"] for one in settings] == [None, None, 9]  # type: ignore[index]
    assert results["fcfs"]["duration_s"] != results["fcfs:max-running-requests=2"]["duration_s"]


def test_a_setting_of_a_comparison_may_hold_a_json_object(capsys: pytest.CaptureFixture[str]):
    parameters = '{"threshold": 64, "next_prompt_estimate": 8}'
    compare = f"lpm,fcfs:radix-eviction-policy=tlru:radix-eviction-policy-config={parameters}"

    results = simulated(capsys, *BURST, "--compare", compare)

    assert [one["settings"]["radix_eviction_policy_config"] for one in results.values()] == [None, parameters]  # type: ignore[index]


def test_a_file_of_requests_is_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "requests.jsonl"
    rows = [{"timestamp": 1000 * n, "input_length": 600, "output_length": 3, "hash_ids": [0, n + 1]} for n in range(4)]
    file.write_text("\n".join(map(json.dumps, rows)))

    result = simulated(capsys, "--trace", str(file), "--device-model", "cpu")["fcfs"]

    assert (result["finished"], result["prompt_tokens"], result["output_tokens"]) == (4, 2400, 12)


def test_a_picture_alone_is_written_where_svg_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run_simulate([*SMALL, "--svg", str(tmp_path / "picture.svg")]) == 0

    assert (tmp_path / "picture.svg").read_text().startswith("<svg ")
    assert "not run on hardware" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["--trace", "nonsense"], "--trace"),
        (["--device-model", "nonsense"], "--device-model"),
        (["--compare", "nonsense"], "--compare.*nonsense"),
        (["--compare", "fcfs,"], "--compare"),
        (["--compare", "fcfs,fcfs"], "--compare"),
        (["--compare", "fcfs:port=3"], "--compare.*port"),
        (["--compare", "fcfs:max-running-requests=0"], "--compare.*max-running-requests"),
        (["--compare", "fcfs:radix-eviction-policy=best"], "--compare.*radix-eviction-policy"),
        (["--compare", ""], "--compare: a setting is empty"),
        (["--compare", ",lpm"], "--compare: a setting is empty"),
        (["--compare", "placement=best"], "--compare: placement: expected one of turns, grid"),
        (["--compare", "placement=grid:disable-radix-cache=true"], "--compare: placement"),
        (["--host-cache-gb", "1e-3"], "--host-cache-gb"),
        (["--host-cache-gb", "1e30"], "--host-cache-gb"),
        (["--num-requests", "0"], "--num-requests"),
        (["--load", "0"], "--load"),
        (["--load", "nan"], "--load"),
        (["--seed", "x"], "--seed"),
        (["--port", "3"], "--port"),
        (["--schedule-policy", "nonsense"], "--schedule-policy"),
        (["--max-running-requests", "100000"], "--max-running-requests"),
        (["--radix-eviction-policy-config", "{"], "--radix-eviction-policy-config"),
        (["--radix-eviction-policy-config", "[]"], "--radix-eviction-policy-config"),
        (["--radix-eviction-policy-config", '{"threshold": "x"}'], "--radix-eviction-policy-config"),
        ([*SMALL, "--svg", "/does/not/exist/a.svg"], "--svg"),
        ([*SMALL, "--out", "/dev/null/folder"], "--out"),
    ],
)
def test_a_wrong_argument_is_named(argv: list[str], name: str):
    with pytest.raises(ConfigError, match=name):
        run_simulate(argv)


def test_a_wrong_argument_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]):
    assert main(["simulate", "--trace", "nonsense"]) == 2

    assert capsys.readouterr().err.startswith("trnrt: --trace: 'nonsense'")
