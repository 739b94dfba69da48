"""What the grammar stage follows, what a mask costs, and what becomes of hostile grammars.

    python scripts/bench_grammar.py coverage --suite FOLDER    folder of JSON-Schema-Test-Suite files, of draft 4
    python scripts/bench_grammar.py walks --suite FOLDER       2,000 random answers, each checked by jsonschema
    python scripts/bench_grammar.py masks --tokenizer FILE     compile and mask times, batch 32
    python scripts/bench_grammar.py steps --tokenizer FILE     masks of 32 rows a step through the whole stage
    python scripts/bench_grammar.py hostile --tokenizer FILE   through the whole stage, beside a task that ticks

Each prints a table in Markdown. Times are of this process's clock on whatever machine it runs.
"""

import argparse
import decimal
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import trio
from hostile_grammars import HOSTILE
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parent.parent))

from stages.channels import open_mailbox
from stages.errors import InvalidRequest
from stages.grammar.engines import Engines, open_engines
from stages.grammar.guide import open_guide
from stages.grammar.matchers.port import GrammarRefused, Matcher, Source
from stages.grammar.pool import CompiledGrammar
from stages.grammar.sources import constraint_source
from stages.grammar.stage import run_grammar
from stages.messages import (
    ChoiceKey,
    CompileGrammar,
    FillMasks,
    Rules,
    Sampling,
    Submit,
    TextForm,
    TextGrammar,
    Tool,
    ToolGrammar,
)
from stages.settings import GrammarSettings

DEMO = Path(__file__).parent.parent / "trnrt" / "models" / "demo_files"
END = "<|endoftext|>"
NUM_WALKS = 2000
MAX_WALK_TOKENS = 400
MAX_KEYS_PERMUTED = 4
PUNCTUATION = re.compile(rb'[\s"{}\[\],:0-9.\-]+|true|false|null')

CLOSED = {"additionalProperties": False}
ADDRESS = {"type": "object", "properties": {"street": {"type": "string"}, "zip": {"type": "integer"}}, **CLOSED}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}, "home": ADDRESS},
    "required": ["name", "age"],
    **CLOSED,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "number"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3},
            },
            "required": ["value"],
            **CLOSED,
        }
    },
}
# Schemas as clients send them, beside the suite's, which are made to be odd.
REAL: dict[str, Any] = {
    "plain object": PERSON,
    "recursive": TREE,
    "list with bounds": {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 3},
    "bounded strings": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 5}, "maxItems": 4},
    "union": {"anyOf": [PERSON, {"type": "null"}, {"type": "string", "maxLength": 8}]},
    "enum": {
        "type": "object",
        "properties": {"k": {"type": "string", "enum": ["a", "b/c", "é"]}},
        "required": ["k"],
        **CLOSED,
    },
    "open object": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 4},
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]+$"},
    "loose pattern": {"type": "string", "pattern": "a[bc]", "maxLength": 9},
    "formats": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "at": {"type": "string", "format": "date-time"},
            "id": {"type": "string", "format": "uuid"},
            "host": {"type": "string", "format": "ipv4"},
        },
        "required": ["day", "at", "id", "host"],
        **CLOSED,
    },
    "numbers": {"type": "array", "items": {"type": "number", "minimum": -1.5, "maximum": 99.25}, "maxItems": 4},
    "multiples": {
        "type": "array",
        "items": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 999},
        "maxItems": 4,
    },
    "tagged union": {
        "oneOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": k}, "n": {"type": t}},
                "required": ["kind", "n"],
                **CLOSED,
            }
            for k, t in (("a", "integer"), ("b", "boolean"))
        ]
    },
    "both of two": {"allOf": [{"type": "integer", "minimum": 10}, {"maximum": 30}]},
    "pattern keys": {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, **CLOSED, "maxProperties": 3},
    "tuple": {
        "type": "array",
        "items": [{"type": "integer"}, {"type": "boolean"}],
        "additionalItems": False,
        "minItems": 2,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["coverage", "walks", "masks", "steps", "hostile"])
    parser.add_argument("--suite", type=Path)
    parser.add_argument("--tokenizer", type=Path, default=DEMO)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    engines = _engines(options.tokenizer)
    if options.part == "coverage":
        coverage(engines, options.tokenizer, options.suite)
    elif options.part == "walks":
        walks(engines, options.suite, random.Random(options.seed))
    elif options.part == "masks":
        masks(engines, random.Random(options.seed))
    elif options.part == "steps":
        trio.run(steps, options.tokenizer, engines, random.Random(options.seed))
    else:
        trio.run(hostile, options.tokenizer, engines)


def _engines(tokenizer: Path) -> Engines:
    size = max(Tokenizer.from_file(str(_file(tokenizer))).get_vocab().values()) + 1
    vocab_size = -(-size // 128) * 128
    engines = open_engines(str(tokenizer), vocab_size, frozenset())
    eos = engines.tokens.added[END]
    return open_engines(str(tokenizer), vocab_size, frozenset({eos}))


def _file(tokenizer: Path) -> Path:
    return tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer


# ---------------------------------------------------------------------------------------------------------------------
# Coverage
# ---------------------------------------------------------------------------------------------------------------------


def coverage(engines: Engines, tokenizer: Path, suite: Path) -> None:
    """Print for each keyword of the suite what three ways to follow it make of its instances."""
    encode = Tokenizer.from_file(str(_file(tokenizer))).encode_batch_fast
    ways: dict[str, Callable[[Any], Callable[[], Matcher]]] = {
        "ours": lambda schema: _ours(engines, schema),
        "llguidance": lambda schema: _plain(engines, "llguidance", schema),
        "xgrammar": lambda schema: _plain(engines, "xgrammar", schema),
    }
    totals: dict[str, Counter[str]] = {way: Counter() for way in ways}
    print("| keyword | " + " | ".join(f"{way}: right, let through, kept out, refused" for way in ways) + " |")
    print("|---" * (1 + len(ways)) + "|")
    for keyword, cases in _suite(suite):
        counts = {way: Counter[str]() for way in ways}
        for case in cases:
            for way, start in ways.items():
                counts[way] += _judge(case, start, encode)
        for way in ways:
            totals[way] += counts[way]
        print(f"| {keyword} | " + " | ".join(_counted(counts[way]) for way in ways) + " |")
    print("| **all** | " + " | ".join(_counted(totals[way]) for way in ways) + " |")


def _judge(case: Any, way: Callable[[Any], Callable[[], Matcher]], encode: Any) -> Counter[str]:
    try:
        start = way(case["schema"])
    except (InvalidRequest, GrammarRefused):
        return Counter(refused=len(case["tests"]))
    counts: Counter[str] = Counter()
    for test in case["tests"]:
        texts = [json.dumps(data, ensure_ascii=False) for data in _orders(test["data"])]
        is_taken = any(_accepts(start(), encoding.ids) for encoding in encode(texts, add_special_tokens=False))
        counts["right" if is_taken == test["valid"] else "through" if is_taken else "kept"] += 1
    return counts


def _counted(counts: "Counter[str]") -> str:
    return ", ".join(str(counts[name]) for name in ("right", "through", "kept", "refused"))


def _ours(engines: Engines, schema: Any) -> Callable[[], Matcher]:
    return _start(engines, constraint_source(TextGrammar("json_schema", json.dumps(schema)), engines.tokens))


def _plain(engines: Engines, engine: Any, schema: Any) -> Callable[[], Matcher]:
    return _start(engines, Source(engine, "json_schema", json.dumps(schema)))


def _start(engines: Engines, source: Source) -> Callable[[], Matcher]:
    engine = engines.of(source)
    return engine.load(source, engine.compile(source)).start


def _accepts(matcher: Matcher, token_ids: list[int]) -> bool:
    return all(matcher.accept(token_id) for token_id in token_ids) and matcher.is_complete


def _orders(data: Any) -> Iterator[Any]:
    """Yield a value with its keys in every order: a grammar takes them in one, which none of the tests is about."""
    if not isinstance(data, dict) or len(data) > MAX_KEYS_PERMUTED:
        yield data
        return
    for keys in permutations(data):
        yield {key: data[key] for key in keys}


def _suite(folder: Path) -> Iterator[tuple[str, list[Any]]]:
    for file in sorted([*folder.glob("*.json"), *folder.glob("optional/*.json")]):
        yield file.stem, json.loads(file.read_text())


# ---------------------------------------------------------------------------------------------------------------------
# Random answers
# ---------------------------------------------------------------------------------------------------------------------


def walks(engines: Engines, suite: Path, chance: random.Random) -> None:
    """Print how many of NUM_WALKS random answers do not follow their schema, by where the schema is from."""
    decimal.getcontext().prec = 2 * MAX_WALK_TOKENS
    schemas = [("suite", case["schema"]) for _, cases in _suite(suite) for case in cases]
    starts = []
    for origin, schema in schemas + [("real", schema) for schema in REAL.values()] * 5:
        try:
            starts.append((origin, schema, _ours(engines, schema)))
        except (InvalidRequest, GrammarRefused):
            continue
    counts: Counter[str] = Counter()
    while counts["whole"] < NUM_WALKS:
        origin, schema, start = starts[counts["begun"] % len(starts)]
        counts["begun"] += 1
        walked = _walk(engines, start(), chance)
        if walked is None:
            continue
        counts["whole"] += 1
        counts[origin] += 1
        text = engines.vocabulary.text(walked)
        checker = jsonschema.Draft4Validator if origin == "suite" else jsonschema.Draft7Validator
        try:
            # In decimal: 0.7252 is a multiple of 0.0001, whatever binary fractions make of it.
            number = Decimal if "multipleOf" in json.dumps(schema) else float
            exact, value = (json.loads(each, parse_float=number) for each in (json.dumps(schema), text))
            checker(exact, format_checker=checker.FORMAT_CHECKER).validate(value)
        except (ValueError, jsonschema.ValidationError) as error:
            counts["wrong"] += 1
            print(f"wrong: {json.dumps(schema)[:200]} <- {text[:200]!r}: {str(error).splitlines()[0]}")
    print(f"{counts['begun']} begun, {counts['whole']} whole ({counts['suite']} of the suite's schemas, ", end="")
    print(f"{counts['real']} of {len(REAL)} others), {counts['wrong']} wrong")


def _walk(engines: Engines, matcher: Matcher, chance: random.Random) -> list[int] | None:
    """Return a random answer, or None where it is not over in time; punctuation is likelier, or none ever were."""
    words, size = np.zeros(engines.tokens.num_words, np.int32), len(engines.tokens.pieces)
    walked: list[int] = []
    for _ in range(MAX_WALK_TOKENS):
        matcher.fill(words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:size])
        allowed = allowed[~np.isin(allowed, sorted(engines.tokens.eos_ids))]
        if matcher.is_complete and (not len(allowed) or chance.random() < 0.2):
            return walked
        if len(allowed) > 20 and chance.random() < 0.6:
            marks = [int(i) for i in allowed if PUNCTUATION.fullmatch(engines.tokens.pieces[i])]
            allowed = np.array(marks) if marks else allowed
        walked.append(int(chance.choice(allowed)))
        if not matcher.accept(walked[-1]):
            raise AssertionError(f"an allowed token was refused: {walked}")
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Times
# ---------------------------------------------------------------------------------------------------------------------

TOOLS = tuple(
    Tool(
        f"tool_{n}",
        {},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(8)}, "required": ["p0"]},
    )
    for n in range(16)
)
TIMED: dict[str, Any] = {
    **{name: TextGrammar("json_schema", json.dumps(schema)) for name, schema in REAL.items()},
    "any object": TextGrammar("json_object"),
    "regex": TextGrammar("regex", r"[A-Z][a-z]+( [a-z]+){3,30}\."),
    "choice of 1,000": TextGrammar("choice", json.dumps([f"option {n}" for n in range(1000)])),
    "EBNF": TextGrammar("ebnf", 'root ::= sum\nsum ::= term ("+" term)*\nterm ::= [0-9]+ | "(" sum ")"'),
    "16 tools, one required": ToolGrammar(TOOLS, True, tuple(tool.name for tool in TOOLS)),
}
BATCH = 32
NUM_STEPS = 150


def masks(engines: Engines, chance: random.Random) -> None:
    """Print CPU times of compiles and masks of each constraint, and of a batch of all."""
    print("| constraint | engine | compile ms | mask mean us | p99 us |\n|---|---|---:|---:|---:|")
    starts: dict[str, Callable[[], Matcher]] = {}
    engines.warm()
    for name, constraint in TIMED.items():
        begun_s = time.thread_time()
        source = constraint_source(constraint, engines.tokens)
        engines.of(source).compile(source)
        compile_ms = 1e3 * (time.thread_time() - begun_s)
        starts[name] = _start(engines, source)
        times_s = _timed_walk(engines, starts[name], chance)
        print(
            f"| {name} | {source.engine} | {compile_ms:.1f} | {1e6 * np.mean(times_s):.0f} | "
            f"{1e6 * np.percentile(times_s, 99):.0f} |"
        )
    rows = [_Row(engines, starts[name], chance) for _, name in zip(range(BATCH), [*starts] * BATCH, strict=False)]
    steps_s = []
    for _ in range(NUM_STEPS):
        begun_s = time.thread_time()
        for row in rows:
            row.fill()
        steps_s.append(time.thread_time() - begun_s)
        for row in rows:
            row.move()
    mean_ms, p99_ms = 1e3 * np.mean(steps_s), 1e3 * np.percentile(steps_s, 99)
    print(f"\nbatch {BATCH} of these, {engines.tokens.vocab_size} tokens: {mean_ms:.2f} ms a step, p99 {p99_ms:.2f}")


class _Row:
    """A choice in its grammar, begun again when it ends; fill is a guide's whole work for a mask."""

    def __init__(self, engines: Engines, start: Callable[[], Matcher], chance: random.Random) -> None:
        self.engines, self.start, self.chance = engines, start, chance
        self.token_ids: list[int] = []
        self.begin()

    def begin(self) -> None:
        order = _submit(CompiledGrammar(TextGrammar("json_object"), _Template(self.start)), self.engines.tokens.eos_ids)
        self.order, self.guide = order, open_guide(order, self.engines.tokens, None, self.start())
        self.token_ids = []

    def fill(self) -> None:
        self.guide.accept(self.token_ids)
        self.allowed = self.guide.allowed()

    def move(self) -> None:
        assert self.allowed.words is not None
        bits = np.flatnonzero(np.unpackbits(self.allowed.words.view(np.uint8), bitorder="little"))
        self.token_ids = [int(self.chance.choice(bits))]
        if self.token_ids[0] in self.engines.tokens.eos_ids:
            self.begin()


class _Template:
    size_bytes = 0

    def __init__(self, start: Callable[[], Matcher]) -> None:
        self.start = start


def _timed_walk(engines: Engines, start: Callable[[], Matcher], chance: random.Random) -> list[float]:
    row, times_s = _Row(engines, start, chance), []
    for _ in range(NUM_STEPS):
        begun_s = time.thread_time()
        row.fill()
        times_s.append(time.thread_time() - begun_s)
        row.move()
    return times_s


def _submit(grammar: Any, stops: frozenset[int]) -> Submit:
    mailbox, _ = open_mailbox(1, 1)
    return Submit(
        key=ChoiceKey("bench", 0),
        prompt_ids=(1,),
        sampling=Sampling(),
        seed=0,
        max_new_tokens=1,
        min_new_tokens=0,
        stop_token_ids=stops,
        stop=(),
        form=TextForm(),
        in_reasoning=False,
        logprobs=False,
        num_top_logprobs=0,
        mailbox=mailbox,
        rules=Rules(grammar=grammar),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Steps
# ---------------------------------------------------------------------------------------------------------------------

# The schemas of a batch whose masks are dear, and of one as clients send it most.
DEAR = ("bounded strings", "loose pattern", "formats", "numbers")
USUAL = ("plain object", "tagged union", "16 tools, one required", "open object")


async def steps(tokenizer: Path, engines: Engines, chance: random.Random) -> None:
    """Print how long BATCH rows wait for their masks, from the order to the last mask, through the whole stage."""
    settings = GrammarSettings(str(tokenizer), engines.tokens.vocab_size, engines.tokens.eos_ids)
    inbox_send, inbox = trio.open_memory_channel[Any](1000)
    filled_send, filled = trio.open_memory_channel[Any](1000)
    print(
        f"| {BATCH} rows of | masks p50 ms | p90 ms | p99 ms | CPU of the process, mean ms |\n|---|---:|---:|---:|---:|"
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(run_grammar, settings, inbox, filled_send.send_nowait)
        bench = _Bench(inbox_send, filled, engines)
        for kind, names in (("the usual", USUAL), ("the dear", DEAR), ("all", tuple(TIMED))):
            grammars = [await bench.compile(TIMED[name]) for name in names]
            waits_s, cpu_s = await bench.step([grammars[row % len(grammars)] for row in range(BATCH)], chance)
            p50, p90, p99 = (1e3 * float(value) for value in np.percentile(waits_s, [50, 90, 99]))
            print(f"| {kind} | {p50:.2f} | {p90:.2f} | {p99:.2f} | {1e3 * cpu_s / NUM_STEPS:.2f} |", flush=True)
        nursery.cancel_scope.cancel()


# ---------------------------------------------------------------------------------------------------------------------
# Hostile grammars
# ---------------------------------------------------------------------------------------------------------------------


TICK_S = 0.002


async def hostile(tokenizer: Path, engines: Engines) -> None:
    """Print what became of each hostile grammar and how long others waited meanwhile."""
    encode = Tokenizer.from_file(str(_file(tokenizer))).encode
    settings = GrammarSettings(str(tokenizer), engines.tokens.vocab_size, engines.tokens.eos_ids, num_workers=1)
    inbox_send, inbox = trio.open_memory_channel[Any](1000)
    filled_send, filled = trio.open_memory_channel[Any](1000)
    gaps = _Gaps()
    async with trio.open_nursery() as nursery:
        await nursery.start(run_grammar, settings, inbox, filled_send.send_nowait)
        nursery.start_soon(gaps.tick)
        bench = _Bench(inbox_send, filled, engines)
        healthy = await bench.compile(TextGrammar("json_schema", json.dumps(PERSON)))
        print("| grammar | compile ms | what came of it | slowest mask ms | another's ms | loop waited at most ms |")
        print("|---|---:|---|---:|---:|---:|")
        for name, (field, grammar_text, text) in HOSTILE.items():
            constraint = TextGrammar(field, grammar_text)
            gaps.worst_s = 0.0
            begun_s = time.perf_counter()
            outcome = await bench.compile(constraint)
            compile_ms = 1e3 * (time.perf_counter() - begun_s)
            told, slowest_ms, other_ms = str(outcome)[:110], 0.0, 0.0
            if not isinstance(outcome, Exception):
                token_ids = encode(text, add_special_tokens=False).ids
                told, slowest_ms, other_ms = await bench.follow(outcome, token_ids, healthy)
            times = f"{slowest_ms:.1f} | {other_ms:.1f} | {1e3 * gaps.worst_s:.1f}"
            print(f"| {name} | {compile_ms:.0f} | {told} | {times} |", flush=True)
        nursery.cancel_scope.cancel()


class _Gaps:
    worst_s = 0.0

    async def tick(self) -> None:
        while True:
            begun_s = time.perf_counter()
            await trio.sleep(TICK_S)
            self.worst_s = max(self.worst_s, time.perf_counter() - begun_s - TICK_S)


class _Bench:
    """A client of the stage that asks for masks of a hostile choice and of a healthy one at once."""

    def __init__(self, inbox: Any, filled: Any, engines: Engines) -> None:
        self.inbox, self.filled, self.engines = inbox, filled, engines

    async def compile(self, constraint: Any) -> Any:
        reply, answer = trio.open_memory_channel[Any](1)
        self.inbox.send_nowait(CompileGrammar(constraint, reply))
        return await answer.receive()

    async def step(self, grammars: list[Any], chance: random.Random) -> tuple[list[float], float]:
        """Return how long each of NUM_STEPS steps waited for all its masks, and the CPU time of all of it."""
        orders = {row: _submit(grammar, self.engines.tokens.eos_ids) for row, grammar in enumerate(grammars)}
        news: dict[int, tuple[int, ...]] = dict.fromkeys(orders, ())
        waits_s, cpu_s = [], 0.0
        for _ in range(NUM_STEPS):
            cpu_begun_s, begun_s = time.process_time(), time.perf_counter()
            self.inbox.send_nowait(FillMasks(tuple((orders[row], news[row]) for row in orders)))
            masks: dict[int, Any] = {}
            while len(masks) < len(orders):
                masks |= {id(each.submit): each for each in (await self.filled.receive()).masks}
            waits_s.append(time.perf_counter() - begun_s)
            cpu_s += time.process_time() - cpu_begun_s
            for row, order in orders.items():
                mask = masks[id(order)]
                bits = np.flatnonzero(np.unpackbits(mask.allowed.view(np.uint8), bitorder="little"))
                news[row] = (int(chance.choice(bits)),)
                if news[row][0] in self.engines.tokens.eos_ids:
                    orders[row], news[row] = _submit(grammars[row], self.engines.tokens.eos_ids), ()
        return waits_s, cpu_s

    async def follow(self, grammar: Any, token_ids: list[int], healthy: Any) -> tuple[str, float, float]:
        ends = self.engines.tokens.eos_ids
        order, slowest_ms, other_ms = _submit(grammar, ends), 0.0, 0.0
        for index in range(len(token_ids) + 1):
            other = _submit(healthy, ends)
            begun_s = time.perf_counter()
            self.inbox.send_nowait(
                FillMasks(((order, tuple(token_ids[index - 1 : index] if index else ())), (other, ())))
            )
            mask, waiting = None, {id(order), id(other)}
            while waiting:
                for each in (await self.filled.receive()).masks:
                    waiting.discard(id(each.submit))
                    taken_ms = 1e3 * (time.perf_counter() - begun_s)
                    if each.submit is order:
                        mask, slowest_ms = each, max(slowest_ms, taken_ms)
                    else:
                        other_ms = max(other_ms, taken_ms)
            assert mask is not None
            if mask.error is not None:
                return f"ended after {index} tokens: {mask.error}"[:110], slowest_ms, other_ms
            bits = np.unpackbits(mask.allowed.view(np.uint8), bitorder="little")
            if index < len(token_ids) and not bits[token_ids[index]]:
                return f"followed for {index} tokens", slowest_ms, other_ms
        return f"followed for {len(token_ids)} tokens", slowest_ms, other_ms


if __name__ == "__main__":
    main()
