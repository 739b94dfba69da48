"""Small layers: what the clamp, the router, the streams' mixing and the group selection promise."""

import torch

from graphs.config import Config
from graphs.layers import mhc, moe
from graphs.layers.mla_dsa import regime_of, select_groups, visible_sparse
from graphs.parameters import fuse, init_weights
from tests.graphs.tiny import config_json, random_tensors

CONFIG = Config.from_json(config_json())
WEIGHTS = fuse(CONFIG, random_tensors(CONFIG, 0).__getitem__)
SMALL = Config.from_json(config_json(index_topk=8))


def test_swiglu_clamps_the_gate_above_and_the_value_on_both_sides() -> None:
    gate_up = torch.tensor([[50.0, -50.0, 1.0, 1.0, 3.0, 3.0, 50.0, -50.0]])
    gate, _ = gate_up.chunk(2, -1)
    expected = torch.nn.functional.silu(gate.clamp(max=10.0)) * torch.tensor([[3.0, 3.0, 10.0, -10.0]])
    torch.testing.assert_close(moe.swiglu(gate_up, 10.0), expected)


def test_equal_scores_choose_the_lowest_experts() -> None:
    w = {"router": torch.zeros(8, 64), "router_bias": torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0])}
    chosen, weights = moe.route(CONFIG, w, torch.randn(3, 64))
    assert chosen.tolist() == [[2, 5]] * 3
    torch.testing.assert_close(weights, torch.full((3, 2), 1.25))


def test_the_correction_bias_chooses_but_does_not_weigh() -> None:
    w = {"router": torch.randn(8, 64), "router_bias": torch.tensor([9.0, 9.0] + [0.0] * 6)}
    x = torch.randn(5, 64)
    chosen, weights = moe.route(CONFIG, w, x)
    scores = torch.sigmoid(x @ w["router"].t()).gather(1, chosen)
    assert (chosen.sort().values == torch.tensor([0, 1])).all()
    torch.testing.assert_close(weights, 2.5 * scores / scores.sum(1, keepdim=True))


def test_gathered_experts_equal_dense_experts() -> None:
    w = WEIGHTS.layers[2]
    x = torch.randn(7, 64, generator=torch.Generator().manual_seed(2))
    chosen, weights = moe.route(CONFIG, w, x)
    dense = moe.experts_dense(CONFIG, w, x, chosen, weights)
    torch.testing.assert_close(moe.experts_gathered(CONFIG, w, x, chosen, weights), dense, atol=1e-5, rtol=1e-5)


def test_streams_are_mixed_by_a_doubly_stochastic_matrix() -> None:
    w = WEIGHTS.layers[0]
    streams = torch.randn(2, 3, 4, 64, generator=torch.Generator().manual_seed(3))
    x, post, comb = mhc.collapse(CONFIG, w, "hc_attn", streams)
    assert x.shape == (2, 3, 64)
    torch.testing.assert_close(comb.sum(0), torch.ones(4, 6), atol=1e-5, rtol=0)
    torch.testing.assert_close(comb.sum(1), torch.ones(4, 6), atol=1e-2, rtol=0)
    y = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(4))
    after = mhc.expand(streams, y, post, comb)
    token = streams[1, 0]
    expected = post[:, 3, None] * y[1, 0] + comb[:, :, 3].t() @ token
    torch.testing.assert_close(after[1, 0], expected)


def test_equal_scores_select_the_lowest_groups() -> None:
    chosen, real = select_groups(SMALL, torch.zeros(1, 6), torch.tensor([5]))
    assert chosen.tolist() == [[0, 1]]
    assert real.all()


def test_incomplete_groups_are_never_selected() -> None:
    scores = torch.tensor([[-3.0, -2.0, 9.0, 9.0]])
    chosen, real = select_groups(SMALL, scores, torch.tensor([1]))
    assert chosen[0, 0] == 0
    assert real.tolist() == [[True, False]]


def test_a_query_sees_its_best_groups_and_the_open_tail() -> None:
    scores = torch.tensor([[[1.0, 3.0, 2.0, 9.0]]])
    visible = visible_sparse(SMALL, scores, torch.tensor([[13]]), 16)
    assert visible[0, 0].nonzero().flatten().tolist() == [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]


def test_a_query_that_closes_its_group_must_win_like_any_other() -> None:
    scores = torch.tensor([[[5.0, 4.0, 1.0]]])
    visible = visible_sparse(SMALL, scores, torch.tensor([[11]]), 12)
    assert visible[0, 0].nonzero().flatten().tolist() == list(range(8))


def test_the_dense_regime_ends_where_a_group_would_be_left_out() -> None:
    assert regime_of(SMALL, 8 + 3) == "dense"
    assert regime_of(SMALL, 8 + 4) == "sparse"


def test_initial_weights_depend_on_the_seed_alone() -> None:
    first, again, other = init_weights(CONFIG, 1), init_weights(CONFIG, 1), init_weights(CONFIG, 2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])
