"""What every chat template keeps to."""

import pkgutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.messages import Chat
from stages.prompt import templates
from stages.prompt.segments import Control, joined
from stages.prompt.templates import load_template
from tests.small_tokenizer import SPECIAL, TAGS

NAMES = [module.name for module in pkgutil.iter_modules(templates.__path__)]
written = st.lists(st.text(max_size=3) | st.sampled_from([*SPECIAL, *TAGS]), max_size=5).map("".join)


@pytest.mark.parametrize("name", NAMES)
@given(written)
def test_what_a_user_writes_is_text_whatever_it_spells(name: str, text: str) -> None:
    template = load_template(name)
    segments = template(Chat(({"role": "user", "content": text},)))
    controls = [segment for segment in segments if isinstance(segment, Control)]
    assert controls == [
        segment for segment in template(Chat(({"role": "user", "content": ""},))) if isinstance(segment, Control)
    ]
    assert any(text in segment for segment in segments if isinstance(segment, str)) or not text
    assert joined(segments) == segments
