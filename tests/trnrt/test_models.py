"""Every card names parts that exist."""

import importlib
import pkgutil

import pytest

from stages.detokenizer.parsers.loading import load_reasoning_parser, load_tool_parser
from stages.prompt.templates import load_template
from trnrt import models
from trnrt.models.card import ModelCard

CARDS = [module.name for module in pkgutil.iter_modules(models.__path__) if not module.ispkg and module.name != "card"]


@pytest.mark.parametrize("name", CARDS)
def test_a_cards_template_and_parsers_exist(name: str) -> None:
    card = importlib.import_module(f"trnrt.models.{name}").CARD
    assert isinstance(card, ModelCard)
    load_template(card.template)
    if card.reasoning_parser is not None:
        load_reasoning_parser(card.reasoning_parser)
    if card.tool_call_parser is not None:
        load_tool_parser(card.tool_call_parser)


def test_there_are_cards() -> None:
    assert {"glm_5_3_flash", "demo"} <= set(CARDS)
