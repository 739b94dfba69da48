"""Tiny checkpoints on disk, our weights and the reference of each, once a session and regime."""

from pathlib import Path

import pytest
import torch
from attrs import frozen

from graphs.config import Config
from graphs.parameters import Weights
from graphs.weights import load_weights
from tests.graphs import tiny

REGIMES = {"dense": 1024, "sparse": 16}


@frozen(eq=False)
class Model:
    """One checkpoint folder, read by us and by the reference."""

    folder: Path
    config: Config
    weights: Weights
    reference: tiny.Reference


@pytest.fixture(scope="session", params=list(REGIMES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A tiny model whose selection takes everything (dense) or four groups of four (sparse)."""
    folder = tmp_path_factory.mktemp(request.param)
    config = tiny.write(folder, seed=3, index_topk=REGIMES[request.param])
    weights = load_weights(folder, config, torch.float32)
    return Model(folder, config, weights, tiny.Reference(folder))
