"""Whether constrained output holds, on a started server with the shipped model, asked at temperature 1.

    python -m trnrt --port 30000 --structured-outputs --penalties
    python scripts/bench_constrained.py answers --port 30000 --suite FOLDER    2,000 whole answers
    python scripts/bench_constrained.py calls --port 30000                     500 answers of calls that must be made
    python scripts/bench_constrained.py hostile --port 30000                   hostile grammars beside plain streams

FOLDER holds files of the JSON Schema test suite, of draft 4. jsonschema checks every answer and every call; each prints
what it counted, and every fault as it is found. The model knows nothing of schemas: it is pushed by logit_bias towards
this or that kind of value, so that answers are not all numbers, which are what it would say most often.
"""

import argparse
import http.client
import json
import os
import random
import re
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pydantic_core
from bench_grammar import REAL
from constrained_client import Answer, Ask, ask
from hostile_grammars import HOSTILE
from http_load import Stream
from tokenizers import Tokenizer

DEMO = Path(__file__).parent.parent / "trnrt" / "models" / "demo_files"
NUM_AT_ONCE = 24
PROGRESS = 100
# The APIs that take a schema for text, and whether they may think before it.
WAYS = [("chat", False), ("chat", True), ("completions", False), ("generate", False), ("responses", True)]
WAYS += [("responses", False), ("messages", False), ("messages", True)]
PUSHES = {"": 0.0, "{": 3.0, "[": 3.0, '"': 3.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["answers", "calls", "hostile"])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} at the start")
    if options.part == "answers":
        answers(options.port, options.suite, options.count or 2000, options.seed)
    elif options.part == "calls":
        calls(options.port, options.count or 500, options.seed)
    else:
        hostile(options.port, options.count or 6)
    print(f"load average {os.getloadavg()[0]:.1f} at the end")


# ---------------------------------------------------------------------------------------------------------------------
# Answers
# ---------------------------------------------------------------------------------------------------------------------


def answers(port: int, folder: Path, num_whole: int, seed: int) -> None:
    """Print how many answers broke their schema, until num_whole came to their end."""
    schemas = [("suite", case["schema"]) for file in sorted(folder.glob("**/*.json")) for case in _cases(file)]
    schemas += [("like clients'", schema) for schema in REAL.values()] * 3
    biases = [_biases(opening, weight) for opening, weight in PUSHES.items()]
    counts, kinds, refused = Counter[str](), Counter[str](), set[str]()

    def one(index: int) -> None:
        chance = random.Random(seed * 1_000_003 + index)
        origin, schema = chance.choice(schemas)
        if json.dumps(schema) in refused:
            return
        api, thinks = chance.choice(WAYS)
        asked = Ask(api, chance.random() < 0.5, thinks, index, 160, biases=chance.choice(biases), schema=schema)
        answer = ask(port, asked)
        way = f"{api}{', thinking' if thinks else ''}{', streamed' if asked.stream else ''}"
        if answer.refusal is not None:
            if "Failed to compile json grammar" not in answer.refusal:
                counts["failed"] += 1
                print(f"failed: {way} {json.dumps(schema)[:200]}: {answer.refusal}", flush=True)
                return
            refused.add(json.dumps(schema))
            return
        fault = _fault(schema, answer, jsonschema.Draft4Validator if origin == "suite" else jsonschema.Draft7Validator)
        counts["whole" if answer.is_whole else "cut"] += 1
        counts[f"whole, {origin}"] += answer.is_whole
        kinds[way] += answer.is_whole
        kinds[f"a {_kind(answer.text)}"] += answer.is_whole
        if fault is not None:
            counts["wrong"] += 1
            print(f"wrong: {way} {json.dumps(schema)[:200]} <- {answer.text[:200]!r}: {fault}", flush=True)

    _until(one, counts, num_whole)
    print(f"{len({json.dumps(schema) for _, schema in schemas})} schemas, {len(refused)} refused by name")
    print(_counted(counts))
    print(_counted(kinds))


def _cases(file: Path) -> list[Any]:
    return list(json.loads(file.read_text()))


def _fault(schema: Any, answer: Answer, checker: Any) -> str | None:
    """Return what is wrong with an answer; of one that was cut off only what came can be."""
    if not answer.is_whole:
        try:
            pydantic_core.from_json(answer.text, allow_partial="trailing-strings") if answer.text.strip() else None
        except ValueError as error:
            # A number that is cut off is no number yet, and it knows no others.
            return None if re.search(r"[-+.eE]$", answer.text) else f"no beginning of JSON: {error}"
        return None
    # In decimal: 0.7252 is a multiple of 0.0001, whatever binary fractions make of it.
    number = Decimal if "multipleOf" in json.dumps(schema) else float
    try:
        exact, value = (json.loads(each, parse_float=number) for each in (json.dumps(schema), answer.text))
        checker(exact, format_checker=checker.FORMAT_CHECKER).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).splitlines()[0]
    return None


def _kind(text: str) -> str:
    first = text.strip()[:1]
    return {"{": "object", "[": "array", '"': "string"}.get(first, "number" if first in "-0123456789" else "literal")


def _biases(opening: str, weight: float) -> dict[str, float]:
    """Return a push of tokens of JSON's marks, most of those that begin with `opening`."""
    vocabulary = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    pieces = {
        token: vocabulary.decode([token], skip_special_tokens=False) for token in range(vocabulary.get_vocab_size())
    }
    marks = {token: piece for token, piece in pieces.items() if re.fullmatch(r'["{}\[\],:]+', piece)}
    pushed = {
        token: (4.0 if set(piece) & set("]}") else 2.0) + weight * piece.startswith(opening)
        for token, piece in marks.items()
    }
    blank = {token: -4.0 for token, piece in pieces.items() if piece and not piece.strip()}
    return {str(token): value for token, value in (pushed | blank).items()}


# ---------------------------------------------------------------------------------------------------------------------
# Calls
# ---------------------------------------------------------------------------------------------------------------------


def calls(port: int, num_whole: int, seed: int) -> None:
    """Print how many answers of calls that must be made were not made as their tools say, until num_whole ended."""
    biases = _biases("", 0.0)
    counts, kinds = Counter[str](), Counter[str]()

    def one(index: int) -> None:
        chance = random.Random(seed * 1_000_003 + index)
        tools = tuple(_random_tool(chance, at) for at in range(chance.randint(1, 3)))
        named = chance.choice(tools)["name"] if chance.random() < 0.4 else None
        api = chance.choice(["chat", "responses", "messages"])
        asked = Ask(
            api,
            stream=chance.random() < 0.5,
            thinks=chance.random() < 0.3,
            seed=index,
            max_tokens=400,
            text="What is the weather in Paris?",
            biases=biases,
            tools=tools,
            named=named,
            is_parallel=chance.random() < 0.5,
        )
        answer = ask(port, asked)
        way = f"{api}, {'named' if named else 'required'}{', parallel' if asked.is_parallel else ''}"
        way += ", streamed" if asked.stream else ""
        fault = answer.refusal or _call_fault(asked, answer)
        counts["whole" if answer.is_whole else "cut"] += 1
        counts["calls"] += len(answer.calls)
        kinds[way] += answer.is_whole
        if fault is not None:
            counts["wrong"] += 1
            print(f"wrong: {way} {json.dumps(tools)[:600]} <- {answer}: {fault}", flush=True)

    _until(one, counts, num_whole)
    print(_counted(counts))
    print(_counted(kinds))


def _call_fault(asked: Ask, answer: Answer) -> str | None:
    parameters = {tool["name"]: tool["parameters"] for tool in asked.tools if asked.named in (None, tool["name"])}
    if answer.is_whole and not answer.calls:
        return "there is no call"
    if len(answer.calls) > 1 and (asked.named is not None or not asked.is_parallel):
        return f"there are {len(answer.calls)} calls"
    if answer.text:
        return f"there is text: {answer.text!r}"
    # The last call of an answer that was cut off may be half a call.
    for name, arguments in answer.calls if answer.is_whole else answer.calls[:-1]:
        if name not in parameters:
            return f"no tool is called {name!r}"
        try:
            jsonschema.Draft202012Validator(parameters[name]).validate(json.loads(arguments))
        except (ValueError, jsonschema.ValidationError) as error:
            return str(error).splitlines()[0]
    return None


def _random_tool(chance: random.Random, at: int) -> dict[str, Any]:
    names = chance.sample(["city", "days", "unit", "when", "who", "from_date", "tags", "näme"], chance.randint(0, 4))
    properties = {name: _random_value(chance, 0) for name in names}
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [name for name in names if chance.random() < 0.6]:
        parameters["required"] = required
    if chance.random() < 0.7 or not properties:
        parameters["additionalProperties"] = False
    tool = {"name": f"{chance.choice(['get', 'set', 'find'])}_{at}", "parameters": parameters}
    return tool | ({"strict": True} if chance.random() < 0.3 else {})


def _random_value(chance: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["enum", "string", "short", "integer", "bounded", "boolean", "number", "mixed"]
    kind = chance.choice(kinds + ["array", "object", "nullable"] * (depth < 2))
    inner = _random_value(chance, depth + 1) if kind in ("array", "object", "nullable") else {}
    least = chance.randint(-20, 20)
    return {
        "enum": {"type": "string", "enum": chance.sample(["Paris", "Rome", "a b", 'say "x"', "ü", "<x>"], 3)},
        "string": {"type": "string"},
        "short": {"type": "string", "minLength": chance.randint(0, 2), "maxLength": chance.randint(3, 9)},
        "integer": {"type": "integer"},
        "bounded": {"type": "integer", "minimum": least, "maximum": least + chance.randint(0, 300)},
        "boolean": {"type": "boolean"},
        "number": {"type": "number"},
        "mixed": {"enum": [1, "1", None, True, {"a": [1]}]},
        "array": {"type": "array", "items": inner, "minItems": chance.randint(0, 1), "maxItems": chance.randint(1, 3)},
        "object": {
            "type": "object",
            "properties": {"x": inner, "y": {"type": "integer"}},
            "required": chance.sample(["x", "y"], chance.randint(0, 2)),
            "additionalProperties": False,
        },
        "nullable": {"anyOf": [inner, {"type": "null"}]},
    }[kind]


# ---------------------------------------------------------------------------------------------------------------------
# Hostile grammars beside streams
# ---------------------------------------------------------------------------------------------------------------------

NUM_STREAMS = 4
ROUND_S = 10.0
GAP_ROOM_TOKENS = 4000


def hostile(port: int, num_rounds: int) -> None:
    """Print the gaps of streams alone, beside free answers, plain schemas and hostile grammars, in turns."""
    arms: dict[str, Iterator[tuple[str, bytes]]] = {
        "alone": iter(()),
        "free answers": _bodies(("free", ("regex", "")) for _ in range(1 << 20)),
        "plain": _bodies(_plain_schemas()),
        "hostile": _bodies((name, hostile[:2]) for _ in range(1000) for name, hostile in HOSTILE.items()),
    }
    gaps: dict[str, list[list[float]]] = {arm: [] for arm in arms}
    outcomes: dict[str, str] = {}
    for _ in range(num_rounds):
        for arm, bodies in arms.items():
            gaps[arm].append(_round(port, bodies, outcomes if arm == "hostile" else {}))
    print("| beside | gap p50 ms | p99 ms | of rounds | max ms |\n|---|---:|---:|---|---:|")
    for arm, rounds in gaps.items():
        p99s = [_ms(each, 99) for each in rounds]
        every = [gap for each in rounds for gap in each]
        spread = ", ".join(f"{value:.0f}" for value in p99s)
        print(f"| {arm} | {_ms(every, 50):.1f} | {_ms(every, 99):.1f} | {spread} | {1e3 * max(every):.0f} |")
    print("\n| hostile | what came of it |\n|---|---|")
    for name, outcome in outcomes.items():
        print(f"| {name} | {outcome} |")


def _ms(gaps_s: list[float], percent: int) -> float:
    return 1e3 * statistics.quantiles(gaps_s, n=100)[percent - 1]


def _round(port: int, bodies: Iterator[tuple[str, bytes]], outcomes: dict[str, str]) -> list[float]:
    """Return the gaps between the tokens of NUM_STREAMS streams while bodies are posted one after another."""
    url = f"http://127.0.0.1:{port}"
    streams = [Stream(url, [300 + index, 301, 302, 303], GAP_ROOM_TOKENS) for index in range(NUM_STREAMS)]
    is_over = threading.Event()
    threads = [threading.Thread(target=_read, args=(stream, is_over)) for stream in streams]
    for thread in threads:
        thread.start()
    while not all(stream.arrivals for stream in streams):
        time.sleep(0.01)
    begun_s = time.perf_counter()
    poster = threading.Thread(target=_post_all, args=(port, bodies, outcomes, begun_s + ROUND_S), daemon=True)
    poster.start()
    time.sleep(ROUND_S)
    is_over.set()
    for thread in threads:
        thread.join()
    for stream in streams:
        stream.socket.close()
    poster.join()
    ends_s = begun_s + ROUND_S
    times = [[at_s for at_s, _ in stream.arrivals if begun_s <= at_s <= ends_s] for stream in streams]
    return [later - earlier for each in times for earlier, later in pairwise(each)]


def _read(stream: Stream, is_over: threading.Event) -> None:
    while not is_over.is_set() and not stream.done:
        stream.read()


def _post_all(port: int, bodies: Iterator[tuple[str, bytes]], outcomes: dict[str, str], ends_s: float) -> None:
    while time.perf_counter() < ends_s and (named := next(bodies, None)) is not None:
        name, body = named
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        begun_s = time.perf_counter()
        connection.request("POST", "/generate", body)
        reply = connection.getresponse()
        said = reply.read()
        connection.close()
        what = json.loads(said)
        told = str(what["error"]["message"])[:90] if "error" in what else what["meta_info"]["finish_reason"]["type"]
        outcomes[name] = f"{reply.status} after {time.perf_counter() - begun_s:.2f} s: {told}"


def _bodies(grammars: Iterator[tuple[str, tuple[str, str]]]) -> Iterator[tuple[str, bytes]]:
    for name, (field, text) in grammars:
        params = {"max_new_tokens": 40, "temperature": 1.0, field: text}
        yield name, json.dumps({"text": "Answer:", "sampling_params": params}).encode()


def _plain_schemas() -> Iterator[tuple[str, tuple[str, str]]]:
    index = 0
    while True:
        index += 1
        schema = {"type": "array", "items": {"type": "integer", "maximum": index}, "minItems": 30, "maxItems": 30}
        yield "plain", ("json_schema", json.dumps(schema))


# ---------------------------------------------------------------------------------------------------------------------


def _until(one: Callable[[int], None], counts: "Counter[str]", num_whole: int) -> None:
    """Call `one` with 0, 1, ... from NUM_AT_ONCE threads until so many are whole; a fault in it ends all."""
    lock, numbers = threading.Lock(), iter(range(1 << 30))

    def work() -> None:
        while counts["whole"] < num_whole and not counts["broken"]:
            with lock:
                index = next(numbers)
            if index % PROGRESS == 0:
                print(f"so far: {_counted(counts)}", flush=True)
            try:
                one(index)
            except BaseException:
                counts["broken"] += 1
                raise

    with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
        for done in [pool.submit(work) for _ in range(NUM_AT_ONCE)]:
            done.result()


def _counted(counts: "Counter[str]") -> str:
    return "; ".join(f"{name} {number}" for name, number in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
