"""One card per served model: architecture, template, parsers."""

import importlib
import pkgutil

from stages.errors import CheckpointError
from trnrt.models.card import ModelCard


def card_for(model_type: str) -> ModelCard:
    """Return a card for a config.json's model_type; raises CheckpointError when no file of this folder has one."""
    card = find_card(model_type)
    if card is None:
        known = ", ".join(sorted(_cards()))
        raise CheckpointError(f"config.json: model_type {model_type!r} is not served; known: {known}")
    return card


def find_card(model_type: str) -> ModelCard | None:
    """Return a card for a config.json's model_type, None when no file of this folder has one."""
    return _cards().get(model_type)


def _cards() -> dict[str, ModelCard]:
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return {module.CARD.architecture: module.CARD for module in modules if hasattr(module, "CARD")}
