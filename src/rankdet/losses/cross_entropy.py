"""Softmax cross-entropy over all boxes, as the second stage of Faster R-CNN trains with."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from rankdet.losses.collectives import (
    eager_where_synchronized,
    global_mean,
    own_group,
    raised_by_all,
)
from rankdet.losses.entries import soundness_factor, working_dtype
from rankdet.losses.labels import IGNORED, check_inputs, require
from rankdet.losses.module import ClassLoss


@eager_where_synchronized
def cross_entropy_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    mask: Tensor | None = None,
    check_finite: bool | None = None,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Softmax cross-entropy, the mean over all boxes that are not ignored: a scalar.

    Background boxes count like objects: there is no mining, and nothing is weighted. It is what
    Faster R-CNN's second stage trains with (Girshick 2015), the paper's baseline in appendix A4.3.
    0 where no box counts.

    Args:
        logits: (R, K + 1) or (B, A, K + 1): column 0 is background, class c is column c + 1.
        labels: (R,) or (B, A) integers: 0..K-1, BACKGROUND or IGNORED, as for every other loss.
        mask: None, or bool of the logits' shape. A column that is False is left out of its box's
            softmax; a box whose own target column is False is ignored.
        check_finite, synchronize, process_group: as in `focal_loss`.

    >>> logits = torch.tensor([[0.0, 0.0], [9.0, 9.0], [5.0, 0.0]])
    >>> cross_entropy_loss(logits, torch.tensor([0, -1, -2]))  # 2 log 2 / 2
    tensor(0.6931)
    """
    group = own_group(synchronize, process_group)
    if group is None:
        return _own_cross_entropy_loss(logits, labels, mask, check_finite)[0]
    with raised_by_all(group, logits.device):
        value, number = _own_cross_entropy_loss(logits, labels, mask, check_finite)
    return global_mean(value, number, group)


def _own_cross_entropy_loss(
    logits: Tensor, labels: Tensor, mask: Tensor | None, check_finite: bool | None
) -> tuple[Tensor, Tensor]:
    """`cross_entropy_loss` of this process alone, and the number of boxes that count."""
    loss, is_counted, soundness = softmax_losses(logits, labels, mask, check_finite)
    number = is_counted.sum()
    total = torch.where(is_counted, loss, 0.0).sum()
    return total / number.clamp(min=1) * soundness, number


def softmax_losses(
    logits: Tensor, labels: Tensor, mask: Tensor | None, check_finite: bool | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Each box's cross-entropy (R,) or (B, A), which of them count, and the soundness ().

    The losses of boxes that do not count are finite numbers without meaning.
    """
    columns = logits.shape[-1] if logits.ndim else 1  # check_inputs refuses ndim 0
    require(columns > 0, "logits", "K + 1 columns, background first", tuple(logits.shape))
    num_classes = columns - 1
    check_inputs(logits, labels, mask, num_classes=num_classes)
    labels = labels.long()
    target = (labels + 1).clamp(0, num_classes).unsqueeze(-1)
    is_counted = labels != IGNORED
    if mask is not None:
        is_counted = is_counted & mask.gather(-1, target).squeeze(-1)

    has_score = is_counted.unsqueeze(-1).expand(logits.shape)
    if mask is not None:
        has_score = has_score & mask
    scores = torch.where(has_score, logits, 0.0).to(working_dtype(logits))
    soundness = soundness_factor(logits, labels, scores, has_score, check_finite, num_classes)
    if mask is not None:
        # Only in boxes that count, where the target's column is left: no row is all -inf.
        scores = scores.masked_fill(is_counted.unsqueeze(-1) & ~mask, -math.inf)
    loss = -F.log_softmax(scores, dim=-1).gather(-1, target).squeeze(-1)
    return loss, is_counted, soundness


class CrossEntropyLoss(ClassLoss):
    """`cross_entropy_loss` with its settings, for a head with K + 1 columns.

    >>> CrossEntropyLoss().num_logits(20)
    21
    """

    activation = "softmax"

    def __init__(
        self,
        check_finite: bool | None = None,
        *,
        synchronize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(synchronize, process_group)
        self.check_finite = check_finite

    def forward(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        return cross_entropy_loss(
            logits,
            labels,
            mask=mask,
            check_finite=self.check_finite,
            synchronize=self.synchronize,
            process_group=self.process_group,
        )
