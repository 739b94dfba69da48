"""One card per served model: architecture, template, parsers."""

import importlib
import pkgutil

from stages.errors import CheckpointError
from trnrt.models.card import ModelCard


def card_for(model_type: str) -> ModelCard:
    """Return the card of a config.json's model_type; raises CheckpointError when no file of this folder has it."""
    cards: list[ModelCard] = [
        card
        for module in pkgutil.iter_modules(__path__)
        if (card := getattr(importlib.import_module(f"{__name__}.{module.name}"), "CARD", None)) is not None
    ]
    for found in cards:
        if found.model_type == model_type:
            return found
    known = ", ".join(sorted(found.model_type for found in cards))
    raise CheckpointError(f"config.json: model_type {model_type!r} is not served; known: {known}")
