"""Training runs through the served maths: gradients equal the reference's and reach every tensor they should."""

import torch
import torch.nn.functional as F

from graphs.config import Config
from graphs.models.glm5_next import sequence_forward
from graphs.parameters import PREFIX, fuse, init_weights
from graphs.weights import Checkpoint
from tests.graphs.conftest import Model
from tests.graphs.tiny import config_json, random_tokens

# Chosen by the router or the indexer, which select and are not differentiated through; and parts of the indexer that
# only scoring reads.
SELECTION_ONLY = ("e_score_correction_bias", "k_norm.weight", "k_norm.bias", "index_kpool_compress_ape")
JOINED_SELECTION = ("indexer.wk.weight", "indexer.wq_b.weight", "weights_proj.weight", "compress_gate")


def test_gradients_equal_the_reference(model: Model) -> None:
    tokens = torch.stack([random_tokens(70, seed=seed) for seed in (50, 51)])
    checkpoint = Checkpoint(model.folder)
    named = {name: checkpoint.tensor(name).requires_grad_() for name in checkpoint.names()}
    ours, _ = sequence_forward(model.config, fuse(model.config, named.__getitem__), tokens)
    F.cross_entropy(ours[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    reference = model.reference.model
    reference.zero_grad()
    h = reference.model.language_model(input_ids=tokens, use_cache=False).last_hidden_state
    theirs = reference.lm_head(h)
    F.cross_entropy(theirs[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    layers = reference.model.language_model.layers
    pairs = {
        "lm_head.weight": reference.lm_head.weight,
        f"{PREFIX}embed_tokens.weight": reference.model.language_model.embed_tokens.weight,
        f"{PREFIX}layers.0.self_attn.k_proj.weight": layers[0].self_attn.k_proj.weight,
        f"{PREFIX}layers.0.self_attn.A_log": layers[0].self_attn.forget_gate.A_log,
        f"{PREFIX}layers.0.hc_attn_fn": layers[0].attn_hc.fn,
        f"{PREFIX}layers.1.self_attn.kv_b_proj.weight": layers[1].self_attn.kv_b_proj.weight,
        f"{PREFIX}layers.2.self_attn.dt_bias": layers[2].self_attn.forget_gate.dt_bias,
        f"{PREFIX}layers.2.mlp.gate.weight": layers[2].mlp.gate.weight,
        f"{PREFIX}layers.3.self_attn.q_b_proj.weight": layers[3].self_attn.q_b_proj.weight,
    }
    for name, parameter in pairs.items():
        wanted, found = parameter.grad, named[name].grad
        assert wanted is not None
        assert found is not None
        assert (found - wanted).abs().max() <= 2e-4 * wanted.abs().max(), name


def test_every_tensor_that_shapes_the_output_gets_a_finite_gradient() -> None:
    config = Config.from_json(config_json())
    named = {name: tensor.requires_grad_() for name, tensor in init_weights(config, 0).items()}
    tokens = torch.stack([random_tokens(66, seed=seed) for seed in range(4)])
    logits, drafts = sequence_forward(config, fuse(config, named.__getitem__), tokens)
    assert drafts is not None
    (logits.square().mean() + drafts.square().mean()).backward()
    for name, tensor in named.items():
        if name.endswith(SELECTION_ONLY):
            assert tensor.grad is None, name
            continue
        assert tensor.grad is not None, name
        assert torch.isfinite(tensor.grad).all(), name
        assert bool(tensor.grad.any()) != name.endswith(JOINED_SELECTION), name
