"""Distributional ranking loss, DR loss (Qian et al., CVPR 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rankdet.losses.collectives import (
    eager_where_synchronized,
    global_sum,
    largest,
    own_group,
    summed,
)
from rankdet.losses.entries import read_entries, softplus
from rankdet.losses.labels import require
from rankdet.losses.module import ClassLoss


@eager_where_synchronized
def dr_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    margin: float = 0.5,
    positive_temperature: float = 1.0,
    negative_temperature: float = 0.1 / math.log(3.5),
    smoothness: float = 6.0,
    weight: float = 4.0,
    mask: Tensor | None = None,
    check_finite: bool | None = None,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Distributional ranking loss (Qian et al., CVPR 2020) with its fixed setting as default.

    With p = sigmoid(logits), the hardest positives and negatives are found by distributions
    q over the positives, softmax(-p / positive_temperature), and over the negatives,
    softmax(p / negative_temperature), of the whole batch:

        P_pos = sum of q p over positives,  P_neg = sum of q p over negatives
        loss = weight / smoothness * log(1 + exp(smoothness * (P_neg - P_pos + margin)))

    P_pos is 1 without positives and P_neg is 0 without negatives. The gradient flows through q.

    Args:
        logits, labels, mask, check_finite: as in `focal_loss`.
        margin: how far P_pos should stand above P_neg.
        positive_temperature, negative_temperature, smoothness, weight: above 0.
        synchronize, process_group: as in `ap_loss`; the distributions are then over the entries of
            all processes.

    >>> dr_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))  # 4 / 6 * log(1 + e^3)
    tensor(2.0324)
    """
    require(math.isfinite(margin), "margin", "a finite number", margin)
    for name, value in (
        ("positive_temperature", positive_temperature),
        ("negative_temperature", negative_temperature),
        ("smoothness", smoothness),
        ("weight", weight),
    ):
        require(0 < value < math.inf, name, "a finite number > 0", value)
    group = own_group(synchronize, process_group)
    scores, is_positive, is_counted, soundness = read_entries(
        logits, labels, mask, check_finite, group
    )
    soundness = summed(soundness, group).clamp(max=1)
    probability = torch.sigmoid(scores)
    is_negative = is_counted & ~is_positive
    hard_positive = _softmax_mean(probability, is_positive, -positive_temperature, 1.0, group)
    hard_negative = _softmax_mean(probability, is_negative, negative_temperature, 0.0, group)
    gap = hard_negative - hard_positive + margin
    return weight / smoothness * softplus(smoothness * gap) * soundness


def _softmax_mean(
    probability: Tensor,
    is_member: Tensor,
    temperature: float,
    without_members: float,
    group: ProcessGroup | None,
) -> Tensor:
    """Mean of the members' probabilities weighted by their softmax(probability / temperature).

    A scalar. Written out, because a softmax over one long axis runs on a single core, is NaN
    without members, and ends at the process.
    """
    exponent = torch.where(is_member, probability / temperature, -math.inf)
    none = exponent.new_full((), -math.inf)
    highest = largest(exponent.detach().amax() if exponent.numel() else none, group)
    has_members = highest != none
    weights = torch.exp(exponent - torch.where(has_members, highest, 0.0))
    sums = global_sum(torch.stack([(weights * probability).sum(), weights.sum()]), group)
    mean = sums[0] / torch.where(has_members, sums[1], 1.0)
    return torch.where(has_members, mean, without_members)


class DRLoss(ClassLoss):
    """`dr_loss` with its settings.

    >>> DRLoss()(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
    tensor(2.0324)
    """

    def __init__(
        self,
        margin: float = 0.5,
        positive_temperature: float = 1.0,
        negative_temperature: float = 0.1 / math.log(3.5),
        smoothness: float = 6.0,
        weight: float = 4.0,
        check_finite: bool | None = None,
        *,
        synchronize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(synchronize, process_group)
        self.margin = margin
        self.positive_temperature = positive_temperature
        self.negative_temperature = negative_temperature
        self.smoothness = smoothness
        self.weight = weight
        self.check_finite = check_finite

    def forward(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        return dr_loss(
            logits,
            labels,
            margin=self.margin,
            positive_temperature=self.positive_temperature,
            negative_temperature=self.negative_temperature,
            smoothness=self.smoothness,
            weight=self.weight,
            mask=mask,
            check_finite=self.check_finite,
            synchronize=self.synchronize,
            process_group=self.process_group,
        )
