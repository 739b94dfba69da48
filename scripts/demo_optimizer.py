"""The optimizer of the shipped model: Muon for matrices, Adam for the rest, over parameters stacked by shape.

Parameters of one shape live in one tensor [n, *shape], so that a step is a few large operations instead of thousands
of small ones. `Parameters.named` gives back every tensor by its checkpoint name.
"""

import math
from collections.abc import Mapping

import torch
from attrs import define
from torch import Tensor

MIN_MUON_SIDE = 32
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_ROUNDS = 5
MUON_MOMENTUM = 0.95
ADAM_BETAS = (0.9, 0.98)
ADAM_EPS = 1e-8

# By the end of a tensor's name: not matrices in Muon's sense, or better off with a steadier step.
ADAM_SCALE = {"embed_tokens.weight": 1.0, "lm_head.weight": 1.0, "_fn": 0.3, "mlp.gate.weight": 0.3}
FIXED = ("e_score_correction_bias",)


@define(eq=False)
class Group:
    """One stack [n, *shape] of parameters with its optimizer state."""

    names: list[str]
    value: Tensor
    muon: bool
    scale: float
    first: Tensor
    second: Tensor


class Parameters:
    """All tensors of the model as stacks, updated in place."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """Stack tensors of one shape and one way of training."""
        grouped: dict[tuple[object, ...], list[str]] = {}
        self.fixed = {name: tensor for name, tensor in tensors.items() if name.endswith(FIXED)}
        for name, tensor in tensors.items():
            if name not in self.fixed:
                grouped.setdefault((*_treatment(name, tensor), tensor.shape), []).append(name)
        self.groups: list[Group] = []
        for (muon, scale, _), names in grouped.items():
            value = torch.stack([tensors[name] for name in names]).requires_grad_()
            zero = torch.zeros_like(value)
            second = torch.zeros(0) if muon else torch.zeros_like(value)
            self.groups.append(Group(names, value, bool(muon), float(str(scale)), zero, second))

    def named(self) -> dict[str, Tensor]:
        """Return every tensor by name, connected to its stack for gradients."""
        out = dict(self.fixed)
        for group in self.groups:
            out.update(zip(group.names, group.value.unbind(0), strict=True))
        return out

    @torch.no_grad()
    def step(self, count: int, muon_rate: float, adam_rate: float, max_norm: float) -> float:
        """Apply the gradients as update number `count` (from 1), clear them and return their norm."""
        gradients = [(group, group.value.grad) for group in self.groups if group.value.grad is not None]
        norm = math.sqrt(sum(gradient.square().sum().item() for _, gradient in gradients))
        shrink = min(1.0, max_norm / (norm + 1e-9))
        for group, unclipped in gradients:
            gradient = unclipped * shrink
            if group.muon:
                _muon(group, gradient, muon_rate * group.scale)
            else:
                _adam(group, gradient, adam_rate * group.scale, count)
            group.value.grad = None
        return norm

    def state(self) -> dict[str, object]:
        """Return everything needed to continue later."""
        return {"groups": [(g.names, g.value.detach(), g.first, g.second) for g in self.groups], "fixed": self.fixed}

    @torch.no_grad()
    def load(self, state: dict[str, object]) -> None:
        """Continue from an earlier `state`."""
        saved = state["groups"]
        assert isinstance(saved, list)
        for group, (names, value, first, second) in zip(self.groups, saved, strict=True):
            if group.names != names:
                raise ValueError("the checkpoint is of another model")
            group.value.copy_(value)
            group.first.copy_(first)
            group.second.copy_(second)


def _treatment(name: str, tensor: Tensor) -> tuple[bool, float]:
    """Return whether Muon trains a tensor, and the factor on its learning rate."""
    for end, scale in ADAM_SCALE.items():
        if name.endswith(end):
            return False, scale
    if tensor.dim() == 2 and min(tensor.shape) >= MIN_MUON_SIDE:
        rows, columns = tensor.shape
        return True, math.sqrt(max(1.0, rows / columns))
    return False, 1.0


def _muon(group: Group, gradient: Tensor, rate: float) -> None:
    group.first.lerp_(gradient, 1 - MUON_MOMENTUM)
    update = gradient.lerp(group.first, MUON_MOMENTUM)
    group.value.sub_(orthogonalise(update), alpha=rate)


def _adam(group: Group, gradient: Tensor, rate: float, count: int) -> None:
    beta1, beta2 = ADAM_BETAS
    group.first.lerp_(gradient, 1 - beta1)
    group.second.lerp_(gradient.square(), 1 - beta2)
    root = (group.second / (1 - beta2**count)).sqrt_().add_(ADAM_EPS)
    group.value.addcdiv_(group.first, root, value=-rate / (1 - beta1**count))


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return matrices [n, R, C] with singular values pushed to about 1 (Newton-Schulz, quintic)."""
    a, b, c = NEWTON_SCHULZ
    tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NEWTON_SCHULZ_ROUNDS):
        gram: Tensor = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(-2, -1) if tall else x
