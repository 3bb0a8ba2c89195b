"""The structured hinge loss: by hand, against all rankings, against finite differences."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankdet.losses import BACKGROUND, IGNORED, HingeAPLoss, ap_loss, hinge_ap_loss
from rankdet.losses.hinge_ap import _from_key, _inner_points, _to_key


def problem(positives: list[float], negatives: list[float]) -> tuple[Tensor, Tensor]:
    """One column of float64 scores that require grad, positives first, and their labels."""
    scores = torch.tensor(positives + negatives, dtype=torch.float64)[:, None].requires_grad_()
    return scores, torch.tensor([0] * len(positives) + [BACKGROUND] * len(negatives))


def largest_over_all_rankings(positives: list[float], negatives: list[float]) -> float:
    """The definition: 1 - AP(R) + F(R) - F(perfect), the largest over every permutation R."""
    pairs = len(positives) * len(negatives)
    items = [("positive", p) for p in positives] + [("negative", n) for n in negatives]
    perfect = sum(p - n for p in positives for n in negatives) / pairs
    largest = -math.inf
    for ranking in itertools.permutations(items):
        precisions, worth, num_positives = [], 0.0, 0
        for place, (kind, score) in enumerate(ranking):
            below = ranking[place + 1 :]
            if kind == "positive":
                num_positives += 1
                precisions.append(num_positives / (place + 1))
                worth += sum(score - other for side, other in below if side == "negative")
            else:
                worth -= sum(other - score for side, other in below if side == "positive")
        loss = 1 - sum(precisions) / len(positives)
        largest = max(largest, loss + worth / pairs - perfect)
    return largest


def test_one_tied_pair_costs_the_lost_half_of_precision_and_pulls_with_weight_two() -> None:
    # The negative above: 1 - AP = 1/2, and the scores add 2 (n - p) = 0. Below: 0.
    scores, labels = problem([0.0], [0.0])
    loss = hinge_ap_loss(scores, labels)
    loss.backward()
    assert loss.item() == pytest.approx(0.5)
    assert scores.grad is not None
    assert scores.grad.flatten().tolist() == pytest.approx([-2.0, 2.0])


def test_a_margin_of_a_quarter_makes_the_loss_of_one_pair_zero() -> None:
    # Above, the pair gives 1/2 + 2 (n - p): zero at p - n = 1/4, and 1/10 at p - n = 0.2.
    for margin, expected in ((0.25, 0.0), (0.3, 0.0), (0.2, 0.1)):
        scores, labels = problem([margin], [0.0])
        assert hinge_ap_loss(scores, labels).item() == pytest.approx(expected, abs=1e-12)


def test_tied_negatives_share_the_update() -> None:
    # p = 0.1, three negatives at 0, scale 2/3. c negatives above give c/(1+c) - c/15:
    # 0, 13/30, 16/30, 33/60: so c = 3. With p = 0.2, c/(1+c) - 2c/15: 11/30, 12/30, 21/60: c = 2.
    scores, labels = problem([0.2], [0.0, 0.0, 0.0])
    loss = hinge_ap_loss(scores, labels)
    loss.backward()
    assert loss.item() == pytest.approx(0.4)
    assert scores.grad is not None
    # Two of three pass, each for 2/3: the positive gets -4/3, each negative 4/9.
    assert scores.grad.flatten().tolist() == pytest.approx([-4 / 3, 4 / 9, 4 / 9, 4 / 9])


@pytest.mark.parametrize("case", range(60))
def test_the_value_is_the_largest_over_all_rankings(case: int) -> None:
    generator = torch.Generator().manual_seed(case)
    num_positives = case % 3 + 1
    num_negatives = int(torch.randint(1, 7 - num_positives, (), generator=generator))
    scale = (0.05, 0.3, 1.0, 3.0)[case % 4]
    draws = torch.randn(num_positives + num_negatives, generator=generator) * scale
    if case % 5 == 0:
        draws = draws.round()  # ties
    positives, negatives = draws[:num_positives].tolist(), draws[num_positives:].tolist()
    scores, labels = problem(positives, negatives)
    expected = largest_over_all_rankings(positives, negatives)
    assert hinge_ap_loss(scores, labels).item() == pytest.approx(expected, abs=1e-9)
    assert hinge_ap_loss(scores.float(), labels).item() == pytest.approx(expected, abs=1e-6)


def dense_hinge(scores: Tensor, labels: Tensor) -> Tensor:
    """The same by trying all places for every negative: O(P N), differentiable (Yue et al.)."""
    positives = scores[labels == 0].flatten().sort(descending=True).values
    negatives = scores[labels == BACKGROUND].flatten().sort(descending=True).values
    rank = torch.arange(1.0, len(positives) + 1, dtype=torch.float64)[:, None]
    number = torch.arange(1.0, len(negatives) + 1, dtype=torch.float64)
    gain = rank / ((rank + number - 1) * (rank + number)) / len(positives)
    pairs = len(positives) * len(negatives)
    gain = gain + 2 / pairs * (negatives - positives[:, None])
    sums = torch.nn.functional.pad(gain.flip(0).cumsum(0), (0, 0, 1, 0))
    return sums.amax(0).sum()


@pytest.mark.parametrize("case", range(40))
def test_value_and_gradient_equal_the_dense_computation(case: int) -> None:
    torch.manual_seed(case)
    num_positives, num_negatives = 1 + 7 * case % 60, 1 + 37 * case % 900
    positives = (torch.randn(num_positives) * 1.5).tolist()
    negatives = (torch.randn(num_negatives) - (case % 4)).tolist()
    scores, labels = problem(positives, negatives)
    (ours,) = torch.autograd.grad(hinge_ap_loss(scores, labels), scores)
    (dense,) = torch.autograd.grad(dense_hinge(scores, labels), scores)
    expected = dense_hinge(scores, labels).item()
    assert hinge_ap_loss(scores, labels).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert torch.allclose(ours, dense, atol=1e-12)


def test_the_gradient_agrees_with_finite_differences() -> None:
    torch.manual_seed(0)
    scores, labels = torch.randn(30, 3, dtype=torch.float64), torch.randint(-2, 3, (30,))
    assert torch.autograd.gradcheck(
        lambda values: hinge_ap_loss(values, labels), (scores.requires_grad_(),), eps=1e-7
    )


@given(st.integers(0, 10**6), st.sampled_from(["normal", "tied", "wide"]))
@settings(max_examples=60, deadline=None)
def test_the_value_is_at_least_the_ap_loss_and_the_update_adds_up_to_zero(
    seed: int, kind: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(40, 2, generator=generator)
    scores = {"normal": scores, "tied": scores.round(), "wide": scores * 1e6}[kind]
    labels = torch.randint(-2, 2, (40,), generator=generator)
    scores.requires_grad_()
    loss = hinge_ap_loss(scores, labels)
    loss.backward()
    lower = ap_loss(scores.detach(), labels, step="heaviside", interpolate=False)
    assert loss >= lower - 1e-6
    assert scores.grad is not None
    assert scores.grad.sum().abs() < 1e-5
    assert (scores.grad[labels == IGNORED] == 0).all()


def test_it_is_convex_in_the_scores() -> None:
    torch.manual_seed(1)
    labels = torch.randint(-1, 2, (20,))
    for _ in range(20):
        one, other = torch.randn(2, 20, 2, dtype=torch.float64)
        middle = hinge_ap_loss((one + other) / 2, labels)
        assert middle <= (hinge_ap_loss(one, labels) + hinge_ap_loss(other, labels)) / 2 + 1e-9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_edge_cases_have_a_finite_value_and_a_connected_graph(dtype: torch.dtype) -> None:
    for labels in ([0, 0], [BACKGROUND] * 2, [IGNORED] * 2, [0, IGNORED]):
        scores = torch.tensor([[1.0], [2.0]], dtype=dtype, requires_grad=True)
        loss = hinge_ap_loss(scores, torch.tensor(labels))
        loss.backward()
        assert loss.item() == 0
        assert scores.grad is not None
        assert not scores.grad.any()
    empty = torch.empty(0, 3, dtype=dtype, requires_grad=True)
    hinge_ap_loss(empty, torch.empty(0, dtype=torch.int64)).backward()


def test_images_are_ranked_alone_in_scope_image_and_masked_entries_are_not_read() -> None:
    torch.manual_seed(2)
    logits, labels = torch.randn(3, 20, 2), torch.randint(-1, 2, (3, 20))
    labels[1] = BACKGROUND
    expected = (hinge_ap_loss(logits[0], labels[0]) + hinge_ap_loss(logits[2], labels[2])) / 2
    assert hinge_ap_loss(logits, labels, scope="image").item() == pytest.approx(expected.item())
    mask = torch.ones_like(logits, dtype=torch.bool)
    mask[0, 0] = False
    without = hinge_ap_loss(logits[0, 1:], labels[0, 1:])
    logits[0, 0] = math.nan
    assert torch.equal(hinge_ap_loss(logits[0], labels[0], mask=mask[0]), without)


def test_scores_that_are_not_finite_raise_or_give_nan() -> None:
    scores, labels = torch.tensor([[1.0], [math.nan]], requires_grad=True), torch.tensor([0, -1])
    with pytest.raises(FloatingPointError, match="1 of 2 scores are not finite"):
        hinge_ap_loss(scores, labels)
    loss = hinge_ap_loss(scores, labels, check_finite=False)
    loss.backward()
    assert loss.isnan()
    assert scores.grad is not None
    assert scores.grad.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keys_keep_the_order_of_scores_and_lead_back_to_them(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    scores = torch.tensor([-largest, -1.5, -1e-40, 0.0, 1e-40, 1.0, largest], dtype=dtype)
    keys = _to_key(scores)
    assert (keys.diff() > 0).all()
    assert torch.equal(_from_key(keys, dtype), scores)
    assert int(_to_key(torch.nextafter(scores[5], scores[6]))) == int(keys[5]) + 1


def test_inner_points_lie_strictly_inside_and_do_not_overflow() -> None:
    low = torch.tensor([0, 5, -(2**62), -9])
    high = torch.tensor([2, 100, 2**62, 3])
    points = _inner_points(low, high)
    assert ((points > low[:, None]) & (points < high[:, None])).all()
    assert (points.diff(dim=1) >= 0).all()
    widths = torch.cat([low[:, None], points, high[:, None]], 1).double().diff(dim=1)
    assert (widths.amax(1) <= (high.double() - low.double()) / 8 + 8).all()


def test_the_module_is_the_function_with_its_settings() -> None:
    torch.manual_seed(3)
    logits, labels = torch.randn(2, 9, 2), torch.randint(-1, 2, (2, 9))
    module = HingeAPLoss(scope="image")
    assert torch.equal(module(logits, labels), hinge_ap_loss(logits, labels, scope="image"))
    assert module.num_logits(7) == 7
    assert module.activation == "sigmoid"
    assert "scope='image'" in repr(module)


def test_at_a_margin_of_exactly_a_quarter_nothing_is_pulled() -> None:
    # Both places of the negative cost 0; it rises only where that is worse.
    scores, labels = problem([0.25], [0.0])
    loss = hinge_ap_loss(scores, labels)
    loss.backward()
    assert loss.item() == 0
    assert scores.grad is not None
    assert scores.grad.flatten().tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_up_to_the_largest_float_are_placed_rightly(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    scores = torch.tensor([[0.0], [0.0], [-largest]], dtype=dtype, requires_grad=True)
    loss = hinge_ap_loss(scores, torch.tensor([0, BACKGROUND, BACKGROUND]))
    loss.backward()
    assert loss.item() == pytest.approx(0.5)  # the tied negative rises, the other does not
    assert scores.grad is not None
    assert scores.grad.flatten().tolist() == [-1, 1, 0]


@pytest.mark.slow
def test_five_million_scores_stay_within_bounded_memory() -> None:
    from rankdet.bench.losses import extra_memory

    used = extra_memory("hinge_ap_loss", ("half-trained", 600, 8 * 32_736, 20), 0, "cpu")
    assert used < 2
