"""The smoothed AP-loss: by hand, against plain autograd, against finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankdet.losses import BACKGROUND, IGNORED, SmoothAPLoss, ap_loss, smooth_ap_loss


def dense_smooth_ap(scores: Tensor, labels: Tensor, delta: float) -> Tensor:
    """The formula of appendix A2 by plain torch: all pairs at once, autograd for the gradient."""
    positives, negatives = scores[labels == 0].flatten(), scores[labels == BACKGROUND].flatten()
    above_N = torch.sigmoid((negatives - positives[:, None]) / delta).sum(1)
    others = 1 - torch.eye(len(positives), dtype=scores.dtype)
    above_P = (torch.sigmoid((positives - positives[:, None]) / delta) * others).sum(1)
    return (above_N / (1 + above_P + above_N)).mean()


def test_a_tied_pair_costs_a_third() -> None:
    # b = S(0) = 1/2 and a = 1, so 1/2 / (3/2); d/dn = a S'(0) / r^2 = 1/4 / (9/4) = 1/9.
    scores = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    loss = smooth_ap_loss(scores, torch.tensor([0, BACKGROUND]))
    loss.backward()
    assert loss.item() == pytest.approx(1 / 3)
    assert scores.grad is not None
    assert scores.grad.flatten().tolist() == pytest.approx([-1 / 9, 1 / 9])


def test_in_log_space_the_tied_pair_costs_minus_log_two_thirds() -> None:
    scores = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    loss = smooth_ap_loss(scores, torch.tensor([0, BACKGROUND]), log_space=True, epsilon=1e-12)
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(2 / 3))
    assert scores.grad is not None
    assert scores.grad.flatten().tolist() == pytest.approx([-1 / 6, 1 / 6])  # 1/9 / (2/3)


def test_the_three_sample_problem_of_appendix_a2_has_the_value_of_its_formula() -> None:
    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    one, two = 2.0, 1.0  # theta
    scores = torch.tensor([[0.0], [one], [-3 * one + two]], dtype=torch.float64)
    first = sigmoid(-one) / (1 + sigmoid(-one) + sigmoid(two - 4 * one))
    second = sigmoid(3 * one - two) / (1 + sigmoid(4 * one - two) + sigmoid(3 * one - two))
    loss = smooth_ap_loss(scores, torch.tensor([BACKGROUND, 0, 0]))
    assert loss.item() == pytest.approx((first + second) / 2)


@given(
    st.integers(0, 10**6),
    st.sampled_from([0.05, 0.25, 1.0, 4.0]),
    st.integers(1, 30),
    st.integers(1, 300),
)
@settings(max_examples=80, deadline=None)
def test_value_and_gradient_equal_plain_autograd_on_all_pairs(
    seed: int, delta: float, num_positives: int, num_negatives: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randn(num_positives + num_negatives, 1, generator=generator) * 2
    scores = draws.double().requires_grad_()
    labels = torch.tensor([0] * num_positives + [BACKGROUND] * num_negatives)
    loss, expected = (
        smooth_ap_loss(scores, labels, delta=delta),
        dense_smooth_ap(scores, labels, delta),
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    (ours,) = torch.autograd.grad(loss, scores)
    (theirs,) = torch.autograd.grad(expected, scores)
    assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("log_space", [False, True])
def test_the_gradient_agrees_with_finite_differences(log_space: bool) -> None:
    torch.manual_seed(0)
    scores = torch.randn(30, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(-2, 3, (30,))
    assert torch.autograd.gradcheck(
        lambda values: smooth_ap_loss(values, labels, delta=0.5, log_space=log_space), (scores,)
    )


def test_the_value_is_that_of_ap_loss_by_sigmoids_but_the_way_down_is_another() -> None:
    torch.manual_seed(1)
    scores = torch.randn(50, 2, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(-1, 2, (50,))
    smooth = smooth_ap_loss(scores, labels, delta=0.5)
    driven = ap_loss(scores, labels, delta=0.5, step="sigmoid", interpolate=False)
    assert smooth.item() == pytest.approx(driven.item(), rel=1e-12)
    (derivative,) = torch.autograd.grad(smooth, scores)
    (update,) = torch.autograd.grad(driven, scores)
    assert not torch.allclose(derivative, update, rtol=0.1)


@pytest.mark.parametrize("log_space", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_edge_cases_have_a_finite_value_and_a_connected_graph(
    dtype: torch.dtype, log_space: bool
) -> None:
    for labels in ([0, 0], [BACKGROUND] * 2, [IGNORED] * 2, [0, IGNORED]):
        scores = torch.tensor([[1.0], [2.0]], dtype=dtype, requires_grad=True)
        loss = smooth_ap_loss(scores, torch.tensor(labels), log_space=log_space)
        loss.backward()
        assert loss.item() == pytest.approx(0, abs=1e-5)  # -log(1 + epsilon) in log space
        assert scores.grad is not None
        assert scores.grad.abs().max() < 1e-6
    empty = torch.empty(0, 3, dtype=dtype, requires_grad=True)
    smooth_ap_loss(empty, torch.empty(0, dtype=torch.int64), log_space=log_space).backward()


def test_ignored_entries_are_not_read_and_others_that_are_not_finite_are_an_error() -> None:
    torch.manual_seed(2)
    scores, labels = torch.randn(20, 2), torch.randint(0, 2, (20,))
    labels[3], labels[5:15] = IGNORED, BACKGROUND
    expected = smooth_ap_loss(scores, labels)
    scores[3] = math.inf
    assert torch.equal(smooth_ap_loss(scores, labels), expected)
    scores[4] = math.nan
    with pytest.raises(FloatingPointError, match="2 of 38 scores are not finite"):
        smooth_ap_loss(scores, labels)
    scores.requires_grad_()
    loss = smooth_ap_loss(scores, labels, check_finite=False)
    loss.backward()
    assert loss.isnan()
    assert scores.grad is not None
    assert torch.equal(scores.grad.isnan().any(1), labels != IGNORED)


def test_images_are_ranked_alone_in_scope_image() -> None:
    torch.manual_seed(3)
    logits, labels = torch.randn(3, 20, 2), torch.randint(-1, 2, (3, 20))
    labels[1] = BACKGROUND
    expected = (smooth_ap_loss(logits[0], labels[0]) + smooth_ap_loss(logits[2], labels[2])) / 2
    assert smooth_ap_loss(logits, labels, scope="image").item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"delta": 0.0}, "delta: expected > 0"),
        ({"epsilon": 0.0}, "epsilon: expected > 0, got 0.0"),
        ({"scope": "class"}, "scope: expected 'batch', 'image' or .*, got 'class'"),
    ],
)
def test_wrong_settings_are_refused(setting: dict[str, float | str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        smooth_ap_loss(torch.zeros(2, 1), torch.tensor([0, -1]), **setting)  # type: ignore[arg-type]


def test_the_module_is_the_function_with_its_settings() -> None:
    torch.manual_seed(4)
    logits, labels = torch.randn(9, 2), torch.randint(-1, 2, (9,))
    module = SmoothAPLoss(delta=0.5, log_space=True, epsilon=1e-3)
    expected = smooth_ap_loss(logits, labels, delta=0.5, log_space=True, epsilon=1e-3)
    assert torch.equal(module(logits, labels), expected)
    assert "delta=0.5" in repr(module)


@pytest.mark.parametrize("delta", [1e-3, 1e-2])
def test_scores_far_apart_in_units_of_delta_neither_overflow_nor_turn_into_nan(
    delta: float,
) -> None:
    torch.manual_seed(5)
    scores = (torch.randn(40, 1, dtype=torch.float64) * 3).requires_grad_()
    labels = torch.tensor([0] * 10 + [BACKGROUND] * 30)
    loss, expected = (
        smooth_ap_loss(scores, labels, delta=delta),
        dense_smooth_ap(scores, labels, delta),
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    (ours,) = torch.autograd.grad(loss, scores)
    (theirs,) = torch.autograd.grad(expected, scores)
    assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-12)
    tied = torch.zeros(3, 1, dtype=torch.float64)
    tied[2] = 2.0  # 2000 deltas above a pair of tied scores
    tied.requires_grad_()
    smooth_ap_loss(tied, torch.tensor([0, BACKGROUND, BACKGROUND]), delta=delta).backward()
    assert tied.grad is not None
    assert tied.grad.isfinite().all()
    assert tied.grad[0] < 0


@pytest.mark.slow
def test_five_million_scores_stay_within_bounded_memory() -> None:
    from rankdet.bench.losses import extra_memory

    used = extra_memory("smooth_ap_loss", ("half-trained", 600, 8 * 32_736, 20), 0, "cpu")
    assert used < 3


def test_without_positives_a_broken_score_makes_all_nan_too() -> None:
    logits = torch.tensor([[1.0], [math.nan], [0.0]], requires_grad=True)
    labels = torch.full((3,), BACKGROUND)
    (gradient,) = torch.autograd.grad(smooth_ap_loss(logits, labels, check_finite=False), logits)
    assert gradient.isnan().all()
