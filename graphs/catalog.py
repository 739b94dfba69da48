"""Settings and variants -> keys (what the scheduler may ask for) and bodies (what is compiled to serve them).

A key is a whole step; a body is half a layer of one kind, with rows and pages left open, so a handful of bodies serves
every layer of every key. The attention halves differ between prefill and decode; in the feed-forward halves tokens do
not meet, so one serves both. A prefill of T tokens runs its bodies over blocks of 64.
"""

import importlib
import pkgutil
from itertools import product
from typing import Literal

from attrs import evolve, frozen

import graphs.variants
from graphs.config import Config
from graphs.keys import EditKind, Family, GraphKey
from graphs.layers.kda import CHUNK_TOKENS
from graphs.layers.mla_dsa import Regime, regime_of
from graphs.settings import GraphSettings
from graphs.variant import Variant

BLOCK_TOKENS = CHUNK_TOKENS
Attention = Literal["kda", "dsa"]
Mlp = Literal["dense", "moe"]
EndingPart = Literal["mask", "adjust", "score"]
Part = Attention | Mlp | Literal["threshold", "draw"] | EndingPart
ENDING_PARTS: tuple[EndingPart, ...] = ("mask", "adjust", "score")
_URGENCY = ("decode", "mlp-dense", "mlp-moe-few", "threshold", "draw", "mask", "adjust", "mlp-moe-crowded", "prefill")


@frozen
class Body:
    """One thing to compile: half a layer or a part of the ending, over ranges of rows (of tokens, if mlp) and pages."""

    name: str
    part: Part
    rows: tuple[int, int]
    family: Family = "decode"
    regime: Regime = "dense"
    pages: tuple[int, int] = (1, 1)

    def joined(self, other: "Body") -> "Body":
        """Return this body over the ranges of both."""
        return evolve(self, rows=_hull(self.rows, other.rows), pages=_hull(self.pages, other.pages))


def variants() -> dict[str, Variant]:
    """Return every variant by name: the VARIANT of each file in graphs/variants."""
    names = sorted(module.name for module in pkgutil.iter_modules(graphs.variants.__path__))
    found = [importlib.import_module(f"graphs.variants.{name}").VARIANT for name in names]
    return {variant.name: variant for variant in found}


def keys(settings: GraphSettings) -> list[GraphKey]:
    """Return every key the settings allow."""
    buckets = settings.buckets
    families: dict[Family, tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...]]] = {
        "decode": (buckets.batch, (1,), (False,)),
        "prefill": (buckets.prefill_batch, buckets.tokens, (False, True)),
    }
    return [
        GraphKey(family, rows, tokens, pages, variant, *edit, is_scored)
        for family, (batch, chunks, scored) in families.items()
        for rows, tokens, pages, variant, edit, is_scored in product(
            batch, chunks, buckets.pages, variants(), edit_shapes(settings), scored
        )
    ]


def edit_shapes(settings: GraphSettings) -> list[tuple[EditKind, int]]:
    """Return every way the settings let logits be edited, and the number K of tokens it adjusts; ("", 0) is not."""
    found: list[tuple[EditKind, int]] = [("", 0)]
    if settings.takes_mask:
        found.append(("masked", 0))
    for size in settings.adjust_tokens:
        found.append(("adjusted", size))
        if settings.takes_mask:
            found.append(("masked_adjusted", size))
    return found


def attention_body(config: Config, settings: GraphSettings, key: GraphKey, attention: Attention) -> Body:
    """Return the body of an attention half in steps of `key`, over that key's size alone."""
    rows = (key.batch, key.batch)
    if attention == "kda":
        return Body(f"{key.family}-kda", "kda", rows, key.family, "dense", (key.pages, key.pages))
    regime = regime_of(config, key.pages * settings.page_size_tokens)
    return Body(f"{key.family}-dsa-{regime}", "dsa", rows, key.family, regime, (key.pages, key.pages))


def mlp_body(config: Config, key: GraphKey, mlp: Mlp) -> Body:
    """Return the body of a feed-forward half in steps of `key`, over that key's number of tokens alone."""
    tokens = key.batch * (BLOCK_TOKENS if key.family == "prefill" else 1)
    if mlp == "dense":
        return Body("mlp-dense", "dense", (tokens, tokens))
    return Body(f"mlp-moe-{'crowded' if is_crowded(config, tokens) else 'few'}", "moe", (tokens, tokens))


def is_crowded(config: Config, num_tokens: int) -> bool:
    """Return whether a step over num_tokens reads every expert, as graphs.layers.moe chooses by shape."""
    return num_tokens * config.num_experts_per_token >= config.num_experts


def bodies(config: Config, settings: GraphSettings) -> list[Body]:
    """Return what to compile for every key, most wanted first: one stream, then many, prompts, long contexts."""
    found: dict[str, Body] = {}
    shapes = {(key.family, key.batch, key.pages): key for key in keys(settings)}
    for key, kind in product(shapes.values(), dict.fromkeys(config.layer_kinds)):
        halves = (attention_body(config, settings, key, kind.attention), mlp_body(config, key, kind.mlp))
        for body in halves:
            found[body.name] = body.joined(found.get(body.name, body))
    batches = {*settings.buckets.batch, *settings.buckets.prefill_batch}
    rows_of_any = (min(batches), max(batches))
    parts: list[Part] = ["threshold", "draw"]
    if settings.takes_mask:
        parts.append("mask")
    if settings.adjust_tokens:
        parts.append("adjust")
    endings = [Body(part, part, rows_of_any) for part in parts]
    # Few requests score their prompt, and it costs little beside the head: last of all.
    return [*sorted([*found.values(), *endings], key=_urgency), Body("score", "score", (BLOCK_TOKENS, BLOCK_TOKENS))]


def _hull(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return min(a[0], b[0]), max(a[1], b[1])


def _urgency(body: Body) -> tuple[bool, int]:
    return body.regime == "sparse", next(rank for rank, prefix in enumerate(_URGENCY) if body.name.startswith(prefix))
