"""By which names clients may ask for the served model, on every dialect that takes one."""

from typing import Any

import pytest
from attrs import evolve

from stages.errors import NotFound
from stages.ingress.dialect import Dialect
from stages.ingress.dialects import find_dialects
from tests.stages.ingress.dialects.kit import MODEL, call_of
from tests.stages.ingress.dialects.test_unavailable import BODIES

ALIASED = evolve(MODEL, aliases=("claude-*", "gpt-4o"))
COUNT = {key: value for key, value in BODIES["anthropic_messages"].items() if key != "max_tokens"}
NAMED: dict[str, dict[str, Any]] = {
    name: body
    for name, body in {**BODIES, "anthropic_count_tokens": COUNT, "tokenize": {"prompt": "hi"}}.items()
    if name != "sglang_generate"
}
DIALECTS = [dialect for dialect in find_dialects() if dialect.name in NAMED]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_model_answers_to_its_other_names_and_to_no_others(dialect: Dialect) -> None:
    body = NAMED[dialect.name]
    for name in ("glm", "/models/glm", "claude-haiku-4-5-20251001", "claude-", "gpt-4o"):
        dialect.parse(call_of({**body, "model": name}), ALIASED)
    for name in ("claude", "Claude-haiku", "gpt-4o-mini", "my-claude-haiku", "*"):
        with pytest.raises(NotFound):
            dialect.parse(call_of({**body, "model": name}), ALIASED)
    with pytest.raises(NotFound):
        dialect.parse(call_of({**body, "model": "claude-haiku-4-5-20251001"}), MODEL)
