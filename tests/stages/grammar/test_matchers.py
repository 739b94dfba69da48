"""What every engine's matchers do: one suite over both."""

import json
from random import Random

import pytest

from stages.grammar.matchers.llguidance import HEAD
from stages.grammar.matchers.port import GrammarRefused, Source
from tests.small_tokenizer import ids, tag
from tests.stages.grammar.small import EOS, accepts, begin, engines, next_ids, random_walk

PLAIN = json.dumps(
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"enum": ["sun"], "type": "string"},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    }
)
CALL = f"<[{tag('<tool_call>')}]>"
SOURCES = {
    "xgrammar schema": Source("xgrammar", "json_schema", PLAIN),
    "xgrammar compact": Source("xgrammar", "compact_json_schema", PLAIN),
    "xgrammar ebnf": Source("xgrammar", "ebnf", 'root ::= "a" [b-d]* ("x" | "yz")'),
    "xgrammar tag": Source(
        "xgrammar",
        "structural_tag",
        json.dumps(
            {
                "type": "structural_tag",
                "format": {
                    "type": "sequence",
                    "elements": [
                        {"type": "token", "token": tag("<tool_call>")},
                        {"type": "const_string", "value": "go"},
                    ],
                },
            }
        ),
    ),
    "llguidance schema": Source("llguidance", "json_schema", PLAIN),
    "llguidance compact": Source("llguidance", "compact_json_schema", PLAIN),
    "llguidance regex": Source("llguidance", "regex", "a[b-d]*(x|yz)"),
    "llguidance lark": Source("llguidance", "lark", f'{HEAD}\nstart: {CALL} "go"'),
}
SENTENCES = {
    "schema": ('{"city": "Paris", "days": 3}', '{"city": "Paris"}'),
    "compact": ('{"city":"Paris","days":3}', '{"city": "Paris", "days": 3}'),
    "ebnf": ("abcx", "abc"),
    "regex": ("abcx", "abc"),
    "tag": ("<tool_call>go", "go"),
    "lark": ("<tool_call>go", "go"),
}
EVERY = pytest.mark.parametrize("name", SOURCES)


@EVERY
def test_a_sentence_is_accepted_and_ends_complete_and_another_text_does_not(name: str) -> None:
    right, wrong = SENTENCES[name.split()[1]]
    assert accepts(SOURCES[name], right)
    assert not accepts(SOURCES[name], wrong)


@EVERY
def test_a_mask_allows_exactly_the_tokens_that_are_accepted(name: str) -> None:
    random = Random(0)
    for _ in range(5):
        matcher = begin(SOURCES[name])
        for _ in range(12):
            allowed = set(next_ids(matcher))
            text_ids = set(range(len(engines().tokens.pieces))) - engines().tokens.eos_ids
            assert {token_id for token_id in text_ids if matcher.fork().accept(token_id)} == allowed
            if not allowed:
                assert matcher.is_complete
                break
            assert matcher.accept(random.choice(sorted(allowed)))


@EVERY
def test_a_refused_token_leaves_the_matcher_where_it_was(name: str) -> None:
    matcher = begin(SOURCES[name])
    allowed = next_ids(matcher)
    refused = next(token_id for token_id in range(len(engines().tokens.pieces)) if token_id not in allowed)
    assert not matcher.accept(refused)
    assert next_ids(matcher) == allowed


@EVERY
def test_rollback_takes_back_tokens_one_by_one_and_all_at_once(name: str) -> None:
    matcher, random = begin(SOURCES[name]), Random(1)
    states, walked = [next_ids(matcher)], []
    while len(walked) < 8 and states[-1]:
        walked.append(random.choice(states[-1]))
        assert matcher.accept(walked[-1])
        states.append(next_ids(matcher))
    matcher.rollback(1)
    assert next_ids(matcher) == states[-2]
    assert matcher.accept(walked[-1])
    matcher.rollback(len(walked))
    assert next_ids(matcher) == states[0]
    assert all(matcher.accept(token_id) for token_id in walked)
    assert next_ids(matcher) == states[-1]


@EVERY
def test_a_fork_goes_its_own_way(name: str) -> None:
    matcher = begin(SOURCES[name])
    before = next_ids(matcher)
    fork = matcher.fork()
    assert fork.accept(before[0])
    assert next_ids(matcher) == before


@EVERY
def test_no_mask_allows_an_added_token_as_text(name: str) -> None:
    tokens, random = engines().tokens, Random(2)
    added = set(tokens.added.values()) - {tag("<tool_call>")}
    for _ in range(5):
        matcher = begin(SOURCES[name])
        for _ in range(20):
            allowed = next_ids(matcher)
            assert not set(allowed) & added
            if not allowed:
                break
            assert matcher.accept(random.choice(allowed))


@EVERY
def test_a_template_starts_as_often_as_one_likes(name: str) -> None:
    engine = engines().of(SOURCES[name])
    template = engine.load(SOURCES[name], engine.compile(SOURCES[name]))
    first, second = template.start(), template.start()
    assert first.accept(next_ids(first)[0])
    assert next_ids(second) == next_ids(template.start())
    assert template.size_bytes > 0


@pytest.mark.parametrize(
    "source",
    [
        Source("xgrammar", "ebnf", "root ::= missing"),
        Source("xgrammar", "structural_tag", '{"type": "structural_tag", "format": {"type": "nothing"}}'),
        Source("llguidance", "regex", "("),
        Source("llguidance", "regex", r"(a)\1"),
        Source("llguidance", "json_schema", '{"not": {}, "x-guidance": {"lenient": true}}'),
        Source("llguidance", "json_schema", '{"type": "string", "pattern": "(?=a)"}'),
    ],
)
def test_what_an_engine_cannot_follow_is_refused_in_words(source: Source) -> None:
    with pytest.raises(GrammarRefused, match=r"\w+ "):
        engines().of(source).compile(source)


def test_a_key_has_one_spelling_so_a_declared_one_cannot_come_as_an_undeclared_one() -> None:
    source = Source("llguidance", "json_schema", '{"properties": {"a": {"type": "integer"}}}')
    assert accepts(source, '{"a": 1}')
    assert accepts(source, '{"b": "x"}')
    assert not accepts(source, '{"\\u0061": "x"}')


def test_walks_of_a_schema_are_json_that_follows_it() -> None:
    random, num_whole = Random(3), 0
    for name in ("xgrammar schema", "llguidance schema"):
        for _ in range(10):
            walked = random_walk(begin(SOURCES[name]), random)
            if walked is not None:
                value = json.loads(engines().vocabulary.text(walked))
                assert isinstance(value["city"], str)
                assert isinstance(value["days"], int)
                num_whole += 1
    assert num_whole
    assert EOS not in ids("{}")
