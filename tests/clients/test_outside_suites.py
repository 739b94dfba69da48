"""lm-eval and LangChain's standard tests against a started `python -m trnrt` process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from tests.clients.outside import MODEL, folder_of, json_lines, run, told
from tests.clients.process import started
from trnrt.served import DEMO_FILES

HERE = Path(__file__).parent
ROWS = [("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Japan", "Tokyo")]
TASKS: dict[str, dict[str, Any]] = {
    "capitals_said": {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 24, "temperature": 0},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    },
    "capitals_chosen": {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{choices.index(answer)}}",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    },
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    flags = ("--device-mode", "eager", "--max-running-requests", "8", "--structured-outputs", "--penalties")
    with started(*flags) as server:
        yield server.url


@pytest.fixture(scope="module")
def exact_url() -> Iterator[str]:
    with started("--device-mode", "eager", "--dtype", "float32", "--max-running-requests", "8") as server:
        yield server.url


def write_tasks(folder: Path) -> Path:
    folder.mkdir()
    choices = [answer for _, answer in ROWS]
    docs = [
        {"question": f"The capital of {country} is", "answer": answer, "choices": choices} for country, answer in ROWS
    ]
    data = folder / "capitals.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    for name, more in TASKS.items():
        task = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "doc_to_text": "{{question}}",
            "metadata": {"version": 1},
            **more,
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML
    return folder


def evaluate(task: str, url: str, home: Path) -> Any:
    """Run one task of lm-eval's over the completions API."""
    where = f"model={MODEL},base_url={url}/v1/completions,tokenizer={DEMO_FILES},num_concurrent=4,max_retries=1"
    flags = ["--model", "local-completions", "--model_args", where, "--tasks", task, "--log_samples"]
    files = ["--include_path", write_tasks(home / "tasks"), "--output_path", home / "out"]
    offline = {"HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none"}
    return run([folder_of("lm-eval") / "lm-eval/bin/lm-eval", "run", *flags, *files], home, **offline)


def results_of(home: Path, task: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The scores of a task, and its samples."""
    (scores,) = home.glob("out/*/results_*.json")
    (samples,) = home.glob(f"out/*/samples_{task}_*.jsonl")
    table: dict[str, Any] = json.loads(scores.read_text())["results"][task]
    return table, [json.loads(line) for line in samples.read_text().splitlines()]


def test_lm_evals_generation_is_what_the_completions_api_says(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder_of("lm-eval")
    url = request.getfixturevalue("url")
    done = evaluate("capitals_said", url, tmp_path)
    assert done.returncode == 0, told(done)
    scores, samples = results_of(tmp_path, "capitals_said")
    assert 0 <= scores["exact_match,none"] <= 1
    assert len(samples) == len(ROWS)
    for sample in samples:
        body = {"prompt": sample["doc"]["question"], "max_tokens": 24, "temperature": 0, "stop": ["\n", "."]}
        said = httpx.post(url + "/v1/completions", json=body, timeout=60).json()["choices"][0]["text"]
        assert sample["resps"] == [[said]]


def test_lm_evals_likelihoods_are_those_of_its_own_transformers_backend(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = folder_of("lm-eval")
    url = request.getfixturevalue("exact_url")
    pairs = [(f"The capital of {country} is", f" {answer}") for country, _ in ROWS for _, answer in ROWS]
    # A first token alone, several tokens a character, and more than one chunk of prefill.
    pairs += [("", "Once upon a time"), ("Rain is", " 🧑‍🚀 한글"), ("The cat and the dog. " * 60, "The cat sat down.")]
    done = run(
        [folder / "lm-eval/bin/python", HERE / "lm_eval_likelihoods.py", url, MODEL, DEMO_FILES],
        tmp_path,
        stdin=json.dumps(pairs),
        HF_HUB_OFFLINE="1",
        OPENAI_API_KEY="none",
    )
    assert done.returncode == 0, told(done)
    (result,) = json_lines(done.stdout)
    assert len(result["served"]) == len(result["expected"]) == len(pairs)
    for pair, (ours, is_greedy), (theirs, expected) in zip(pairs, result["served"], result["expected"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3), pair
        assert is_greedy == expected, pair
    assert any(is_greedy for _, is_greedy in result["served"])


def test_lm_evals_task_of_choices_is_scored(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder_of("lm-eval")
    url = request.getfixturevalue("exact_url")
    done = evaluate("capitals_chosen", url, tmp_path)
    assert done.returncode == 0, told(done)
    scores, samples = results_of(tmp_path, "capitals_chosen")
    assert scores["acc,none"] == sum(sample["acc"] for sample in samples) / len(ROWS) > 0
    for sample in samples:
        likelihoods = [float(choice[0][0]) for choice in sample["resps"]]
        assert len(likelihoods) == len(ROWS)
        assert all(value < 0 for value in likelihoods)
        assert len(set(likelihoods)) > 1


def serves(url: str, body: dict[str, Any]) -> bool:
    """Whether the chat API takes what `body` adds; what it does not serve it refuses by name."""
    ask = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **body}
    reply = httpx.post(url + "/v1/chat/completions", json=ask, timeout=60)
    assert reply.status_code in (200, 400), reply.text
    return reply.status_code == 200


def blanks() -> list[str]:
    """The ids of the tokens that are nothing but white space."""
    vocabulary = Tokenizer.from_file(str(DEMO_FILES / "tokenizer.json"))
    texts = {n: vocabulary.decode([n], skip_special_tokens=False) for n in range(vocabulary.get_vocab_size())}
    return [str(token_id) for token_id, text in texts.items() if text and not text.strip()]


def test_langchains_standard_tests_pass(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = folder_of("langchain")
    url = request.getfixturevalue("url")
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    served = {
        "tool_choice": serves(url, {"tools": [tool], "tool_choice": "required"}),
        "structured_output": serves(url, {"response_format": form}),
    }
    loops = [
        "asyncio_mode=auto",
        "asyncio_default_test_loop_scope=session",
        "asyncio_default_fixture_loop_scope=session",
    ]
    options = [part for loop in loops for part in ("-o", loop)]
    suite = tmp_path / "test_langchain_standard.py"
    suite.write_text((HERE / "langchain_standard.py").read_text())
    names = ",".join(name for name, is_served in served.items() if is_served)
    python = folder / "langchain/bin/python"
    done = run(
        [python, "-m", "pytest", *options, "-q", "-p", "no:cacheprovider", suite],
        tmp_path / "home",
        TRNRT_URL=url,
        TRNRT_SERVES=names,
        TRNRT_BLANKS=",".join(blanks() if served["structured_output"] else ()),
    )
    assert done.returncode == 0, told(done)
    assert " passed" in done.stdout
