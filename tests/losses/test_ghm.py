"""GHM loss: by hand, running counts, and against a loop over bins."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rankdet.losses import GHMLoss, ghm_loss
from rankdet.losses.labels import BACKGROUND, IGNORED

Problem = Callable[..., tuple[Tensor, Tensor]]
Column = Callable[..., Tensor]
WithGradient = Callable[..., tuple[Tensor, Tensor]]
Targets = Callable[[Tensor, int], Tensor]
LOG2, LOG3 = math.log(2), math.log(3)


# By hand: sigmoid(log 3) = 3/4.


def test_ghm_loss_weighs_each_filled_bin_the_same(column: Column) -> None:
    # Gradient norms 3/4 and three times 1/4; two bins.
    logits = column(LOG3, -LOG3, -LOG3, LOG3)
    labels = torch.tensor([-1, -1, -1, 0])
    value = ghm_loss(logits, labels, bins=2)
    weights = 4 / (1 * 2), 4 / (3 * 2)
    by_hand = (weights[0] * math.log(4) + 3 * weights[1] * math.log(4 / 3)) / 4
    assert value.item() == pytest.approx(by_hand)


def test_ghm_loss_counts_only_bins_that_are_not_empty(column: Column) -> None:
    value = ghm_loss(column(0.0, 0.0), torch.tensor([-1, 0]), bins=30)
    assert value.item() == pytest.approx(LOG2)


def test_the_last_bin_of_ghm_loss_includes_one(column: Column) -> None:
    counts = torch.zeros(4)
    ghm_loss(
        column(1000.0, -1000.0, 1000.0), torch.tensor([-1, -1, 0]), bins=4, running_counts=counts
    )
    assert counts.tolist() == [2.0, 0.0, 0.0, 1.0]


def test_ghm_loss_moves_the_running_counts_of_filled_bins_only(column: Column) -> None:
    counts = torch.zeros(2)
    logits, labels = column(LOG3, -LOG3, -LOG3, -LOG3), torch.full((4,), BACKGROUND)
    first = ghm_loss(logits, labels, bins=2, momentum=0.75, running_counts=counts)
    assert counts.tolist() == [0.75, 0.25]
    assert first.item() == pytest.approx((math.log(4) / 0.25 + 3 * math.log(4 / 3) / 0.75) / 2)
    second = ghm_loss(logits[:1], labels[:1], bins=2, momentum=0.75, running_counts=counts)
    assert counts.tolist() == [0.75, 0.75 * 0.25 + 0.25]
    assert second.item() == pytest.approx(math.log(4) / 0.4375)


@pytest.mark.slow
def test_ghm_loss_counts_beyond_the_integers_of_float32() -> None:
    counts = torch.zeros(2, dtype=torch.float64)
    size = 2**24 + 3
    labels = torch.full((size,), BACKGROUND)
    ghm_loss(torch.full((size, 1), -5.0), labels, bins=2, running_counts=counts)
    assert counts.tolist() == [size, 0.0]


# An independent judge.


@pytest.mark.parametrize("bins", [1, 2, 10, 30])
def test_ghm_loss_agrees_with_a_loop_over_bins(
    bins: int, mixed_problem: Problem, with_gradient: WithGradient, dense_targets: Targets
) -> None:
    logits, labels = mixed_problem(3, 300)
    is_counted = labels != IGNORED
    targets = dense_targets(labels, 3)[is_counted]

    def judge(logits: Tensor) -> Tensor:
        scores = logits[is_counted]
        norm = (scores.detach().sigmoid() - targets).abs()
        weights = torch.zeros_like(norm)
        members = [
            (norm >= k / bins) & ((norm < (k + 1) / bins) | (k == bins - 1)) for k in range(bins)
        ]
        for member in members:
            if member.any():
                weights[member] = norm.numel() / member.sum()
        weights /= sum(bool(member.any()) for member in members)
        total = F.binary_cross_entropy_with_logits(scores, targets, weights, reduction="sum")
        return total / norm.numel()

    ours = with_gradient(ghm_loss, logits, labels, bins=bins)
    torch.testing.assert_close(ours, with_gradient(judge, logits))


# Settings and the module.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bins": 0}, r"bins: expected an integer >= 1, got 0"),
        ({"bins": 2.5}, r"bins: expected an integer >= 1, got 2\.5"),
        ({"momentum": 1.0}, r"momentum: expected .* not including, 1, got 1\.0"),
        ({"momentum": -0.1}, r"momentum: expected a number from 0 .*, got -0\.1"),
        ({"momentum": 0.5}, r"running_counts: expected .*\(30,\) for .*0\.5, got None"),
        (
            {"running_counts": torch.zeros(3)},
            r"running_counts: expected .*\(30,\), got .*torch\.float32 of shape \(3,\)",
        ),
        (
            {"running_counts": torch.zeros(30, dtype=torch.int64)},
            r"running_counts: expected float32 or float64 .*, got .*torch\.int64",
        ),
    ],
)
def test_wrong_settings_are_refused_with_expected_and_got(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ghm_loss(torch.zeros(2, 3), torch.tensor([0, -1]), **settings)


def test_the_ghm_module_keeps_running_counts_and_leaves_them_alone_in_evaluation(
    mixed_problem: Problem,
) -> None:
    logits, labels = mixed_problem(17, 50)
    loss = GHMLoss()
    assert (loss.bins, loss.momentum) == (30, 0.75)
    judge_counts = torch.zeros(30)
    settings = {"bins": 30, "momentum": 0.75, "running_counts": judge_counts}
    for _ in range(3):
        assert torch.equal(loss(logits, labels), ghm_loss(logits, labels, **settings))
    assert torch.equal(loss.state_dict()["running_counts"], judge_counts)
    loss.eval()
    assert torch.equal(loss(logits, labels), ghm_loss(logits, labels, **settings))
    assert not torch.equal(loss.running_counts, judge_counts)


@pytest.mark.parametrize("settings", [{"bins": 0}, {"bins": -4}, {"momentum": 1.0}])
def test_the_ghm_module_refuses_wrong_settings_at_once(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"expected .*got"):
        GHMLoss(**settings)
