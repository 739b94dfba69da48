"""Feed-forward parts: the clamped SwiGLU and the mixture of experts around it."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from graphs.config import Config


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """Return silu(min(gate, limit)) * clamp(up, -limit, limit) of gate | up [.., 2I]."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


def mlp(config: Config, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the dense (or shared) feed-forward of x [.., D]."""
    return F.linear(swiglu(F.linear(x, w["gate_up"]), config.swiglu_limit), w["down"])


def route(config: Config, w: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return chosen experts [N, k] and their fp32 weights [N, k] for x [N, D]; ties go to the lowest expert."""
    scores = torch.sigmoid(F.linear(x.float(), w["router"]))
    # A stable sort, not topk: topk leaves the order of equal scores to the implementation.
    order = torch.sort(scores + w["router_bias"], dim=-1, descending=True, stable=True).indices
    chosen = order[:, : config.num_experts_per_token]
    weights = scores.gather(1, chosen)
    if config.norm_topk_prob:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return chosen, weights * config.routed_scaling_factor


def experts_dense(config: Config, w: Mapping[str, Tensor], x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Return sum of weighted experts [N, D], every expert run on every row of x [N, D]."""
    up, down = w["experts_gate_up"], w["experts_down"]
    num_experts = config.num_experts
    hidden = swiglu(torch.bmm(x.expand(num_experts, -1, -1), up.transpose(1, 2)), config.swiglu_limit)
    table = torch.zeros_like(weights[:, :1]).expand(-1, num_experts).scatter(1, chosen, weights)
    out = torch.bmm(hidden, down.transpose(1, 2))
    return (out * table.t().unsqueeze(2).to(out.dtype)).sum(0)


def experts_gathered(config: Config, w: Mapping[str, Tensor], x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Return sum of weighted experts [N, D], only the chosen experts' matrices read."""
    num_rows, per_row = chosen.shape[0], config.num_experts_per_token
    flat = chosen.flatten()
    rows = x.unsqueeze(1).expand(-1, per_row, -1).reshape(num_rows * per_row, -1, 1)
    hidden = swiglu(torch.bmm(w["experts_gate_up"][flat], rows).squeeze(2), config.swiglu_limit)
    out = torch.bmm(w["experts_down"][flat], hidden.unsqueeze(2)).view(num_rows, per_row, -1)
    return (out * weights.unsqueeze(2).to(out.dtype)).sum(1)


def moe(config: Config, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return routed experts plus the shared expert of x [B, T, D]."""
    flat = x.flatten(0, 1)
    chosen, weights = route(config, w, flat)
    # Static by shape: with enough rows nearly every expert is read anyway and one batched product is quicker.
    crowded = flat.shape[0] * config.num_experts_per_token >= config.num_experts
    routed = (experts_dense if crowded else experts_gathered)(config, w, flat, chosen, weights)
    return routed.view_as(x) + mlp(config, w, x)


def feed_forward(config: Config, kind: str, w: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the feed-forward part of kind dense or moe of x [B, T, D]."""
    return moe(config, w, x) if kind == "moe" else mlp(config, w, x)
