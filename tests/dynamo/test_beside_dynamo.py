"""Differences from Dynamo's preprocessor are those that docs/PARSERS.md tells, and transformers is with us."""

import os

import pytest

from tests.dynamo.differences import CAUSES, Compared, compare_all, judgement

# What each template of these tests but one does not read; Dynamo and we put it before the text.
REASONING = ("reasoning", "reasoning last", "reasoning and a call")


@pytest.fixture(scope="module")
def compared() -> Compared:
    python = os.environ.get("TRNRT_DYNAMO_PYTHON")
    if python is None:
        pytest.skip("TRNRT_DYNAMO_PYTHON names no Python that has ai-dynamo-runtime (docs/PARSERS.md)")
    return compare_all(python)


def test_every_difference_has_a_cause_and_every_cause_is_found(compared: Compared) -> None:
    unexplained = [(each.kind, each.case.model, each.case.name) for each in compared.differences if each.cause is None]
    assert not unexplained
    assert {each.cause for each in compared.differences} == set(CAUSES)


def test_transformers_has_our_prompt_wherever_it_has_one_and_we_do_not_say_otherwise(compared: Compared) -> None:
    wrong = [
        (each.case.model, each.case.name, judgement(each.case))
        for each in compared.differences
        if each.kind == "prompts" and each.cause is not None and not each.cause.departs
        # transformers drops reasoning a template does not read, and a template that takes parts shows it no texts.
        if each.case.name not in REASONING and each.case.model != "gemma parts"
        if judgement(each.case) not in ("ours", "none")
    ]
    assert not wrong
