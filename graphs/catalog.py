"""Settings and variants -> keys (what the scheduler may ask for) and bodies (what is compiled to serve them).

A key is a whole step; a body is one layer kind's share of it, with rows and pages left open, so a handful of bodies
serves every layer of every key. A prefill of T tokens runs its bodies over blocks of 64.
"""

import importlib
import pkgutil
from itertools import product
from typing import Literal

from attrs import evolve, frozen

import graphs.variants
from graphs.config import Config, LayerKind
from graphs.keys import Family, GraphKey
from graphs.layers.kda import CHUNK_TOKENS
from graphs.layers.mla_dsa import Regime, regime_of
from graphs.settings import GraphSettings
from graphs.variant import Variant

BLOCK_TOKENS = CHUNK_TOKENS
BodyFamily = Literal["prefill", "decode", "threshold", "draw"]


@frozen
class Body:
    """One thing to compile: a layer kind in a family and regime, or a sampling part; rows and pages are ranges."""

    name: str
    family: BodyFamily
    rows: tuple[int, int]
    kind: LayerKind | None = None
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
    decode = product(buckets.batch, (1,), buckets.pages, variants())
    prefill = product(buckets.prefill_batch, buckets.tokens, buckets.pages, variants())
    return [GraphKey("decode", *shape) for shape in decode] + [GraphKey("prefill", *shape) for shape in prefill]


def body_name(config: Config, settings: GraphSettings, family: Family, kind: LayerKind, rows: int, pages: int) -> str:
    """Return the name of the body that runs layers of `kind` in steps of rows [B] and pages a row [P]."""
    parts: list[str] = [family, *kind]
    if kind.attention == "dsa":
        parts.append(regime_of(config, pages * settings.page_size_tokens))
    if kind.mlp == "moe":
        parts.append("crowded" if _is_crowded(config, family, rows) else "few")
    return "-".join(parts)


def bodies(config: Config, settings: GraphSettings) -> list[Body]:
    """Return what to compile for every key, most wanted first."""
    found: dict[str, Body] = {}
    buckets = settings.buckets
    steps: list[tuple[Family, int]] = [("decode", rows) for rows in buckets.batch]
    steps += [("prefill", rows) for rows in buckets.prefill_batch]
    for (family, rows), kind, pages in product(steps, dict.fromkeys(config.layer_kinds), buckets.pages):
        name = body_name(config, settings, family, kind, rows, pages)
        is_sparse = kind.attention == "dsa" and regime_of(config, pages * settings.page_size_tokens) == "sparse"
        body = Body(name, family, (rows, rows), kind, "sparse" if is_sparse else "dense", (pages, pages))
        found[name] = body.joined(found.get(name, body))
    batches = {*buckets.batch, *buckets.prefill_batch}
    rows_of_any = (min(batches), max(batches))
    sampling = [Body("threshold", "threshold", rows_of_any), Body("draw", "draw", rows_of_any)]
    return sorted([*found.values(), *sampling], key=_urgency)


def _hull(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return min(a[0], b[0]), max(a[1], b[1])


def _is_crowded(config: Config, family: Family, rows: int) -> bool:
    # As graphs.layers.moe chooses: the choice is part of the graph.
    tokens = rows * (BLOCK_TOKENS if family == "prefill" else 1)
    return tokens * config.num_experts_per_token >= config.num_experts


def _urgency(body: Body) -> tuple[bool, int]:
    # One stream first, drawing included, then prompts, then many streams; long contexts come last.
    if body.kind is None:
        rank = 1
    elif body.family == "prefill":
        rank = 2
    else:
        rank = 3 if body.name.endswith("crowded") else 0
    return body.regime == "sparse", rank
