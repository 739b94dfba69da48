"""One card per served model: architecture, template, parsers."""

import importlib
import pkgutil

from stages.errors import CheckpointError
from trnrt.models.card import ModelCard


def card_for(model_type: str) -> ModelCard:
    """Return a card for a config.json's model_type; raises CheckpointError when no file of this folder has one."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    cards: dict[str, ModelCard] = {
        module.CARD.architecture: module.CARD for module in modules if hasattr(module, "CARD")
    }
    if model_type not in cards:
        known = ", ".join(sorted(cards))
        raise CheckpointError(f"config.json: model_type {model_type!r} is not served; known: {known}")
    return cards[model_type]
