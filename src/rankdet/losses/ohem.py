"""Softmax cross-entropy with online hard example mining, as SSD trains with."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rankdet.losses.collectives import (
    eager_where_synchronized,
    global_mean,
    own_group,
    raised_by_all,
)
from rankdet.losses.cross_entropy import softmax_losses
from rankdet.losses.labels import BACKGROUND, require
from rankdet.losses.module import ClassLoss
from rankdet.losses.sampling import hardest_negatives


@eager_where_synchronized
def ohem_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    negative_ratio: float = 3.0,
    mask: Tensor | None = None,
    check_finite: bool | None = None,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Softmax cross-entropy over positives and the hardest background anchors, as in SSD.

    Online hard example mining (Liu et al., ECCV 2016): all positive anchors count, and of each
    image's background anchors the negative_ratio x (positives of the image) of highest loss,
    rounded down. The sum is divided by max(1, positive anchors of the batch). An image without
    positives adds nothing.

    Args:
        logits: (R, K + 1) scores of one image, or (B, A, K + 1): column 0 is background, class c is
            column c + 1.
        labels: (R,) or (B, A) integers: 0..K-1, BACKGROUND or IGNORED, as for every other loss.
        negative_ratio: background anchors for each positive, 0 or more.
        mask: None, or bool of the logits' shape. A column that is False is left out of its anchor's
            softmax; an anchor whose own target column is False is ignored.
        check_finite, synchronize, process_group: as in `focal_loss`.

    >>> logits = torch.tensor([[0.0, 0.0], [0.0, 0.0], [9.0, 0.0]])
    >>> ohem_loss(logits, torch.tensor([0, -1, -1]), negative_ratio=1.0)  # 2 log 2
    tensor(1.3863)
    """
    group = own_group(synchronize, process_group)
    if group is None:
        return _own_ohem_loss(logits, labels, negative_ratio, mask, check_finite)[0]
    with raised_by_all(group, logits.device):
        value, num_positives = _own_ohem_loss(logits, labels, negative_ratio, mask, check_finite)
    return global_mean(value, num_positives, group)


def _own_ohem_loss(
    logits: Tensor,
    labels: Tensor,
    negative_ratio: float,
    mask: Tensor | None,
    check_finite: bool | None,
) -> tuple[Tensor, Tensor]:
    """`ohem_loss` of this process alone, and its number of positive anchors."""
    is_ratio = 0 <= negative_ratio < math.inf
    require(is_ratio, "negative_ratio", "a finite number >= 0", negative_ratio)
    loss, is_counted, soundness = softmax_losses(logits, labels, mask, check_finite)
    labels = labels.long()
    is_positive = is_counted & (labels >= 0)
    is_background = is_counted & (labels == BACKGROUND)
    is_chosen = is_positive | hardest_negatives(
        loss.detach(), is_positive, is_background, ratio=negative_ratio
    )
    num_positives = is_positive.sum()
    total = torch.where(is_chosen, loss, 0.0).sum()
    return total / num_positives.clamp(min=1) * soundness, num_positives


class OHEMLoss(ClassLoss):
    """`ohem_loss` with its settings, a softmax loss, for a head with K + 1 columns.

    >>> OHEMLoss().num_logits(20)
    21
    """

    activation = "softmax"

    def __init__(
        self,
        negative_ratio: float = 3.0,
        check_finite: bool | None = None,
        *,
        synchronize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(synchronize, process_group)
        self.negative_ratio = negative_ratio
        self.check_finite = check_finite

    def forward(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        return ohem_loss(
            logits,
            labels,
            negative_ratio=self.negative_ratio,
            mask=mask,
            check_finite=self.check_finite,
            synchronize=self.synchronize,
            process_group=self.process_group,
        )
