"""The MTP layer equals a composition of the reference's own modules, in prefill chunks, in drafts and in training."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from graphs.layers.mla_dsa import regime_of
from graphs.models import glm5_next
from graphs.models.glm5_next import sequence_forward
from graphs.parameters import layer_prefix
from graphs.weights import Checkpoint
from tests.graphs.conftest import Model
from tests.graphs.serving import Row, Server
from tests.graphs.tiny import random_tokens

TOLERANCE = {"atol": 2e-5, "rtol": 0.0}


class ReferenceDraft(torch.nn.Module):
    """The MTP layer composed of the reference's attention, experts and norms, with the checkpoint's tensors."""

    def __init__(self, model: Model) -> None:
        from transformers.models.glm5_next import modeling_glm5_next as reference

        super().__init__()
        config = model.reference.model.config.text_config
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = reference.Glm5NextTextRMSNorm(size, eps=eps)
        self.post_attention_layernorm = reference.Glm5NextTextRMSNorm(size, eps=eps)
        self.enorm = reference.Glm5NextTextRMSNorm(size, eps=eps)
        self.hnorm = reference.Glm5NextTextRMSNorm(size, eps=eps)
        self.final_norm = reference.Glm5NextTextRMSNorm(size, eps=eps)
        self.eh_proj = torch.nn.Linear(2 * size, size, bias=False)
        self.self_attn = reference.Glm5NextTextAttention(config, layer_idx=1)
        self.mlp = reference.Glm5NextTextMoE(config)
        self.load_state_dict(self.renamed(model))
        self.language_model = model.reference.model.model.language_model
        self.lm_head = model.reference.model.lm_head
        self.eval()

    @staticmethod
    def renamed(model: Model) -> dict[str, Tensor]:
        """Return the layer's stored tensors under the reference's module names, experts stacked."""
        checkpoint = Checkpoint(model.folder)
        prefix = layer_prefix(model.config.num_layers)
        stored = [name for name in checkpoint.names() if name.startswith(prefix)]
        tensors = {name.removeprefix(prefix): checkpoint.tensor(name) for name in stored}
        tensors["final_norm.weight"] = tensors.pop("shared_head.norm.weight")
        gate_up, down = [], []
        for expert in range(model.config.num_experts):
            parts = {part: tensors.pop(f"mlp.experts.{expert}.{part}_proj.weight") for part in ("gate", "up", "down")}
            gate_up.append(torch.cat([parts["gate"], parts["up"]]))
            down.append(parts["down"])
        return tensors | {"mlp.experts.gate_up_proj": torch.stack(gate_up), "mlp.experts.down_proj": torch.stack(down)}

    @torch.no_grad()
    def forward(self, h: Tensor, next_tokens: Tensor) -> Tensor:
        """Return y [B, T, D] of h [B, T, D] and next_tokens [B, T]."""
        token = self.enorm(self.language_model.embed_tokens(next_tokens))
        e = self.eh_proj(torch.cat([token, self.hnorm(h)], -1))
        everyone = torch.ones(e.shape[:2], dtype=torch.bool)
        e = e + self.self_attn(self.input_layernorm(e), attention_mask=everyone)[0]
        return torch.as_tensor(self.final_norm(e + self.mlp(self.post_attention_layernorm(e))))


@pytest.fixture(scope="module")
def draft(model: Model) -> ReferenceDraft:
    """The reference's MTP layer."""
    return ReferenceDraft(model)


class Drafter:
    """Runs the paged MTP layer for one row of a server."""

    def __init__(self, server: Server, row: Row) -> None:
        self.server, self.row, self.length = server, row, 0
        layer = server.state.mtp
        assert layer is not None
        assert server.weights.mtp is not None
        self.regime = regime_of(server.config, len(row.pages) * server.page_size)
        self.parts = (server.weights.top, server.weights.mtp, layer)

    def place(self) -> tuple[Tensor, Tensor, Tensor]:
        return torch.tensor([self.length]), torch.tensor([self.row.slot]), torch.tensor([self.row.pages])

    @torch.no_grad()
    def prefill(self, h: Tensor, next_tokens: Tensor) -> Tensor:
        """Prefill entries of h [T, D] and next_tokens [T], padded to 64s; return y [T, D]."""
        num = len(next_tokens)
        padding = -num % 64
        start, slots, pages = self.place()
        h = torch.nn.functional.pad(h, (0, 0, 0, padding), value=0.5)[None]
        tokens = torch.nn.functional.pad(next_tokens, (0, padding), value=9)[None]
        config = self.server.config
        y = glm5_next.mtp_prefill(config, self.regime, *self.parts, h, tokens, start, torch.tensor([num]), slots, pages)
        self.length += num
        return y[0, :num]

    @torch.no_grad()
    def draft(self, h: Tensor, next_token: Tensor) -> Tensor:
        """Draft from entry h [D] and next_token [1]; return y [D]."""
        start, slots, pages = self.place()
        y = glm5_next.mtp_draft(self.server.config, self.regime, *self.parts, h[None], next_token, start, slots, pages)
        self.length += 1
        return y[0]


@pytest.mark.parametrize("cuts", [[], [64], [4, 68], [100]])
def test_prefilled_and_drafted_entries_equal_the_reference(
    model: Model, draft: ReferenceDraft, cuts: list[int]
) -> None:
    tokens = random_tokens(140, seed=30)
    h = model.reference.hidden(tokens[None])
    expected = draft(h[:, :-1], tokens[None, 1:])[0]
    server = Server(model.config, model.weights)
    drafter = Drafter(server, server.admit())
    bounds = [0, *cuts, 130]
    for begin, end in pairwise(bounds):
        y = drafter.prefill(h[0, begin:end], tokens[begin + 1 : end + 1])
        torch.testing.assert_close(y, expected[begin:end], **TOLERANCE)
    for p in range(130, 139):
        y = drafter.draft(h[0, p], tokens[p + 1 : p + 2])
        torch.testing.assert_close(y, expected[p], **TOLERANCE)


def test_a_second_draft_step_reads_the_first_ones_output(model: Model, draft: ReferenceDraft) -> None:
    tokens = random_tokens(20, seed=31)
    h = model.reference.hidden(tokens[None])
    server = Server(model.config, model.weights)
    drafter = Drafter(server, server.admit())
    drafter.prefill(h[0, :18], tokens[1:19])
    first = drafter.draft(h[0, 18], tokens[19:])
    second = drafter.draft(first, torch.tensor([77]))
    chained = torch.cat([h[:, :19], first[None, None]], 1)
    expected = draft(chained, torch.cat([tokens[None, 1:], torch.tensor([[77]])], 1))[0]
    torch.testing.assert_close(second, expected[19], **TOLERANCE)


def test_training_sees_the_same_draft_logits(model: Model, draft: ReferenceDraft) -> None:
    tokens = torch.stack([random_tokens(101, seed=seed) for seed in (32, 33)])
    with torch.no_grad():
        _, ours = sequence_forward(model.config, model.weights, tokens)
        expected = draft.lm_head(draft(model.reference.hidden(tokens)[:, :-1], tokens[:, 1:]))
    assert ours is not None
    torch.testing.assert_close(ours, expected, **TOLERANCE)
