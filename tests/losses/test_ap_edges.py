"""Corners of AP-loss that do not depend on the dtype of the scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rankdet.losses import BACKGROUND, IGNORED, ap_loss, binary_ap_loss


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
