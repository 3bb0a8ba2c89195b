"""Corners of AP-loss that do not depend on the dtype of the scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor

from rankdet.losses import BACKGROUND, IGNORED, ap_loss, ap_loss_reference, binary_ap_loss
from rankdet.losses.steps import PiecewiseStep

TARGET_TYPES = [torch.bool, torch.int64, torch.uint8, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("step", ["piecewise", "heaviside", "sigmoid"])
def test_what_ignored_entries_hold_does_not_change_a_bit_in_float64_either(
    step: str, with_gradient: Callable[..., tuple[Tensor, Tensor]]
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 3, generator=generator, dtype=torch.float64) * 0.1 - 4.6
    labels = torch.randint(-2, 3, (200,), generator=generator)
    expected = with_gradient(ap_loss, logits, labels, step=step)
    for garbage in (math.nan, math.inf, -math.inf, 1e300, 0.0):
        filled = torch.where((labels == IGNORED)[:, None], garbage, logits)
        value, gradient = with_gradient(ap_loss, filled, labels, step=step)
        assert torch.equal(value, expected[0])
        assert torch.equal(gradient, expected[1])


def test_no_classes_at_all_give_0() -> None:
    for shape in ((4, 0), (2, 3, 0), (0, 0)):
        logits = torch.zeros(shape, requires_grad=True)
        loss = ap_loss(logits, torch.full(shape[:-1], BACKGROUND))
        loss.backward()
        assert loss.item() == 0


def test_binary_ap_loss_speaks_of_the_scores_as_the_caller_sees_them() -> None:
    scores = torch.zeros(2, 3)
    scores[1, 2] = math.nan
    targets = torch.tensor([[1, 0, 0], [0, 0, 0]])
    with pytest.raises(FloatingPointError, match=r"scores: 1 of 6 .* index \(1, 2\): nan"):
        binary_ap_loss(scores, targets)
    assert binary_ap_loss(scores, targets, check_finite=False).isnan()
    mask = torch.ones(2, 3, dtype=torch.bool)
    mask[1, 2] = False
    assert binary_ap_loss(scores, targets, mask=mask).isfinite()


def test_binary_targets_count_only_where_the_mask_does() -> None:
    scores, mask = torch.tensor([1.0, 0.0, 2.0]), torch.tensor([True, True, False])
    targets = torch.tensor([1, 0, -1])
    assert binary_ap_loss(scores, targets, mask=mask, delta=0.25).item() == 0
    with pytest.raises(ValueError, match="targets: expected 0 or 1, got -1"):
        binary_ap_loss(scores, targets)
    with pytest.raises(ValueError, match=r"targets: expected 0 or 1, got 0\.5"):
        binary_ap_loss(scores, torch.tensor([1.0, 0.0, 0.5]))
    same = [binary_ap_loss(scores, torch.tensor([0, 1, 0]).to(kind)) for kind in TARGET_TYPES]
    assert len({loss.item() for loss in same}) == 1
    assert same[0] > 0


def test_a_compiled_binary_ap_loss_is_nan_for_a_target_of_2() -> None:
    compiled = torch.compile(binary_ap_loss, backend="aot_eager", fullgraph=True)
    scores = torch.tensor([1.0, 0.0, 2.0], requires_grad=True)
    assert compiled(scores, torch.tensor([1, 0, 0])).item() == pytest.approx(0.5)
    assert compiled(scores, torch.tensor([1, 0, 2])).isnan()


@pytest.mark.parametrize("offset", [0.0, 300.0, -1e6])
@pytest.mark.parametrize("delta", [1e-6, 1e-3, 1.0])
def test_counts_of_the_step_stay_between_none_and_all(offset: float, delta: float) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        positives = torch.randn(30, generator=generator) * 2 * delta + offset
        positives = positives.double().sort().values
        negatives = (torch.randn(500, generator=generator) * 2 * delta + offset).double()
        step = PiecewiseStep(positives, delta)
        bins = torch.bucketize(negatives, step.knots, right=True)
        counts = torch.bincount(bins, minlength=len(step.knots) + 1)
        sums = torch.bincount(bins, weights=negatives, minlength=len(step.knots) + 1)
        above = step.above(counts, sums)
        at_or_above = (negatives[:, None] > positives - delta).sum(0)
        fully_above = (negatives[:, None] >= positives + delta).sum(0)
        assert (above >= fully_above).all()
        assert (above <= at_or_above).all()


def test_the_reference_does_not_hide_what_is_wrong() -> None:
    targets = torch.tensor([1, 0, 0])
    for wrong in (math.nan, math.inf, -math.inf):
        scores = torch.tensor([0.0, wrong, 1.0])
        value, update = ap_loss_reference(scores, targets)
        assert value.isnan()
        assert update.isnan().all()
        mask = torch.tensor([True, False, True])
        value, update = ap_loss_reference(scores, targets, mask=mask)
        assert value.item() == 0.5
        assert update.tolist() == [-0.5, 0, 0.5]
    with pytest.raises(ValueError, match="targets: expected 0 or 1, got 2"):
        ap_loss_reference(torch.zeros(2), torch.tensor([1, 2]))
    for delta in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="delta: expected > 0"):
            ap_loss_reference(torch.zeros(2), torch.tensor([1, 0]), delta=delta)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6))
def test_a_small_delta_gives_the_ap_of_scikit_learn_where_nothing_is_tied(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randperm(60, generator=generator).float() / 7
    targets = (torch.rand(60, generator=generator) < 0.3).long()
    targets[0] = 1
    loss = binary_ap_loss(scores, targets, delta=1e-3, interpolate=False)
    assert loss.item() == pytest.approx(1 - average_precision_score(targets, scores), rel=1e-6)
