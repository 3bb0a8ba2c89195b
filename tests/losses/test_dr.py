"""DR loss: by hand, and against softmax over the chosen entries."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rankdet.losses import dr_loss
from rankdet.losses.labels import BACKGROUND, IGNORED

Problem = Callable[..., tuple[Tensor, Tensor]]
Column = Callable[..., Tensor]
WithGradient = Callable[..., tuple[Tensor, Tensor]]
Targets = Callable[[Tensor, int], Tensor]
LOG2, LOG3 = math.log(2), math.log(3)


# By hand: sigmoid(log 3) = 3/4.


def test_dr_loss_is_the_smooth_hinge_of_the_gap_between_mean_probabilities(column: Column) -> None:
    # Positive 3/4, negatives 1/4: the gap is 1/4 - 3/4 + 1/2 = 0.
    value = dr_loss(column(LOG3, -LOG3, -LOG3), torch.tensor([0, -1, -1]))
    assert value.item() == pytest.approx(4 / 6 * LOG2)


def test_dr_loss_weighs_low_positives_and_high_negatives_more(column: Column) -> None:
    # With this temperature probabilities that differ by 1/2 weigh 3 : 1.
    temperature = 0.5 / LOG3
    value = dr_loss(
        column(LOG3, -LOG3, LOG3, -LOG3),
        torch.tensor([0, 0, -1, -1]),
        positive_temperature=temperature,
        negative_temperature=temperature,
        margin=0.25,
        smoothness=2.0,
        weight=3.0,
    )
    assert value.item() == pytest.approx(3 / 2 * math.log1p(math.exp(2 * (5 / 8 - 3 / 8 + 0.25))))


def test_dr_loss_of_one_kind_of_entries_stands_against_one_or_zero(column: Column) -> None:
    no_positives = dr_loss(column(LOG3), torch.tensor([BACKGROUND]))
    assert no_positives.item() == pytest.approx(4 / 6 * math.log1p(math.exp(6 * (0.75 - 1 + 0.5))))
    no_negatives = dr_loss(column(LOG3), torch.tensor([0]))
    assert no_negatives.item() == pytest.approx(4 / 6 * math.log1p(math.exp(6 * (0 - 0.75 + 0.5))))


# An independent judge.


def test_dr_loss_agrees_with_softmax_over_chosen_entries(
    mixed_problem: Problem, with_gradient: WithGradient, dense_targets: Targets
) -> None:
    logits, labels = mixed_problem(4, 2, 100)
    is_positive = dense_targets(labels, 3).bool()
    is_negative = (labels != IGNORED).unsqueeze(-1) & ~is_positive

    def judge(logits: Tensor) -> Tensor:
        positives, negatives = logits[is_positive].sigmoid(), logits[is_negative].sigmoid()
        hard_positive = (F.softmax(-positives, 0) * positives).sum()
        hard_negative = (F.softmax(negatives * math.log(3.5) / 0.1, 0) * negatives).sum()
        return 4 * torch.log(1 + torch.exp(6 * (hard_negative - hard_positive + 0.5))) / 6

    ours = with_gradient(dr_loss, logits, labels)
    torch.testing.assert_close(ours, with_gradient(judge, logits))


# Settings.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"margin": math.nan}, r"margin: expected a finite number, got nan"),
        ({"positive_temperature": 0.0}, r"positive_temperature: expected .*> 0, got 0\.0"),
        ({"negative_temperature": -1}, r"negative_temperature: expected .*> 0, got -1"),
        ({"smoothness": 0}, r"smoothness: expected a finite number > 0, got 0"),
        ({"weight": math.inf}, r"weight: expected a finite number > 0, got inf"),
    ],
)
def test_wrong_settings_are_refused_with_expected_and_got(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dr_loss(torch.zeros(2, 3), torch.tensor([0, -1]), **settings)
