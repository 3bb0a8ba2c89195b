"""Focal loss: by hand, far from the boundary, and against torchvision."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss

from rankdet.losses import focal_loss
from rankdet.losses.labels import BACKGROUND, IGNORED

Problem = Callable[..., tuple[Tensor, Tensor]]
Column = Callable[..., Tensor]
WithGradient = Callable[..., tuple[Tensor, Tensor]]
Targets = Callable[[Tensor, int], Tensor]
LOG2, LOG3 = math.log(2), math.log(3)


# By hand: sigmoid(log 3) = 3/4.


def test_focal_loss_of_a_single_positive_is_alpha_times_the_modulated_log(column: Column) -> None:
    value = focal_loss(column(LOG3), torch.tensor([0]))
    assert value.item() == pytest.approx(0.25 * 0.25**2 * math.log(4 / 3))


def test_focal_loss_of_a_single_negative_is_weighted_by_one_minus_alpha(column: Column) -> None:
    value = focal_loss(column(LOG3), torch.tensor([BACKGROUND]))
    assert value.item() == pytest.approx(0.75 * 0.75**2 * math.log(4))


def test_focal_loss_is_divided_by_the_number_of_positives(column: Column) -> None:
    value = focal_loss(column(0.0, 0.0, 0.0), torch.tensor([0, 0, BACKGROUND]), gamma=1.0)
    assert value.item() == pytest.approx((2 * 0.25 + 0.75) * 0.5 * LOG2 / 2)


def test_a_positive_anchor_is_a_negative_in_the_columns_of_other_classes() -> None:
    logits = torch.tensor([[LOG3, -LOG3]], dtype=torch.float64)
    value = focal_loss(logits, torch.tensor([1]), gamma=0.0, alpha=None)
    assert value.item() == pytest.approx(2 * math.log(4))


def test_focal_loss_masks_single_entries_and_does_not_count_masked_positives() -> None:
    logits = torch.zeros(2, 2, dtype=torch.float64)
    mask = torch.tensor([[False, True], [True, True]])
    value = focal_loss(logits, torch.tensor([0, 1]), gamma=0.0, alpha=None, mask=mask)
    assert value.item() == pytest.approx(3 * LOG2 / 1)


# Far from the boundary.


def test_binary_cross_entropy_is_exact_far_from_the_boundary(column: Column) -> None:
    """-log sigmoid(-30) = 30 + log1p(exp(-30)): a softplus that is linear above 20 is not it."""
    value = focal_loss(column(-30.0), torch.tensor([0]), gamma=0.0, alpha=None)
    assert value.item() == 30 + math.log1p(math.exp(-30))
    assert value.item() != 30


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0])
def test_the_gradient_of_focal_loss_is_finite_where_the_sigmoid_rounds_to_zero(
    gamma: float, with_gradient: WithGradient
) -> None:
    logits = torch.tensor([[-300.0], [300.0], [300.0], [-300.0]])
    labels = torch.tensor([-1, 0, -1, 0])
    value, gradient = with_gradient(focal_loss, logits, labels, gamma=gamma)
    assert value.item() == pytest.approx((0.75 * 300 + 0.25 * 300) / 2)
    assert gradient.flatten().tolist() == pytest.approx([0, 0, 0.75 / 2, -0.25 / 2])


# Independent judges.


@pytest.mark.parametrize("alpha", [0.25, 0.6, None])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_focal_loss_agrees_with_torchvision(
    gamma: float,
    alpha: float | None,
    mixed_problem: Problem,
    with_gradient: WithGradient,
    dense_targets: Targets,
) -> None:
    logits, labels = mixed_problem(1, 3, 200, scale=5.0)
    is_counted = labels != IGNORED
    targets = dense_targets(labels, 3)

    def judge(logits: Tensor) -> Tensor:
        value = sigmoid_focal_loss(
            logits[is_counted],
            targets[is_counted],
            alpha=-1 if alpha is None else alpha,
            gamma=gamma,
            reduction="sum",
        )
        return value / int((labels >= 0).sum())

    ours = with_gradient(focal_loss, logits, labels, gamma=gamma, alpha=alpha)
    torch.testing.assert_close(ours, with_gradient(judge, logits), rtol=1e-10, atol=1e-12)


def test_focal_loss_without_focus_and_weights_is_binary_cross_entropy(
    mixed_problem: Problem, dense_targets: Targets
) -> None:
    logits, labels = mixed_problem(2, 100)
    labels = labels.clamp(min=BACKGROUND)
    value = focal_loss(logits, labels, gamma=0.0, alpha=None)
    judge = F.binary_cross_entropy_with_logits(logits, dense_targets(labels, 3), reduction="sum")
    torch.testing.assert_close(value, judge / (labels >= 0).sum())


# Settings.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": -1.0}, r"gamma: expected a finite number >= 0, got -1\.0"),
        ({"gamma": math.nan}, r"gamma: expected a finite number >= 0, got nan"),
        ({"gamma": math.inf}, r"gamma: expected a finite number >= 0, got inf"),
        ({"alpha": 1.5}, r"alpha: expected a number from 0 to 1, or None, got 1\.5"),
        ({"alpha": -1}, r"alpha: expected a number from 0 to 1, or None, got -1"),
    ],
)
def test_wrong_settings_are_refused_with_expected_and_got(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        focal_loss(torch.zeros(2, 3), torch.tensor([0, -1]), **settings)
