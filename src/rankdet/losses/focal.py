"""Focal loss (Lin et al., ICCV 2017), and binary cross-entropy as its special case."""

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
from rankdet.losses.entries import either, read_entries, softplus
from rankdet.losses.fused import can_read
from rankdet.losses.labels import (
    check_inputs,
    counted_entries,
    num_positives,
    raise_if_not_finite,
    require,
)
from rankdet.losses.module import ClassLoss


@eager_where_synchronized
def focal_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    gamma: float = 2.0,
    alpha: float | None = 0.25,
    mask: Tensor | None = None,
    check_finite: bool | None = None,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Sigmoid focal loss (Lin et al., ICCV 2017), summed and divided by the number of positives.

    With p_t the probability sigmoid gives to the entry's target (p at a positive, 1 - p elsewhere)
    and alpha_t = alpha at a positive, 1 - alpha elsewhere:

        loss = sum over entries of -alpha_t (1 - p_t)^gamma log(p_t)  /  max(1, positive entries)

    Args:
        logits: (R, K) or (B, A, K) scores of any floating point dtype.
        labels: (R,) or (B, A) integers: 0..K-1, BACKGROUND or IGNORED.
        gamma: 0 or more; 0 with alpha None is binary cross-entropy.
        alpha: 0..1, the weight of positives against 1 - alpha, or None for no weights.
        mask: None, or bool of the logits' shape; False marks an entry as ignored.
        check_finite: True raises FloatingPointError on non-finite scores, False returns NaN; None
            checks on the CPU.
        synchronize, process_group: as in `ap_loss`; the sum and the number of positives are then
            those of all processes.

    >>> focal_loss(torch.tensor([[0.0]]), torch.tensor([0]))  # 0.25 * 0.5^2 * log 2
    tensor(0.0433)
    """
    require(0 <= gamma < math.inf, "gamma", "a finite number >= 0", gamma)
    require(alpha is None or 0 <= alpha <= 1, "alpha", "a number from 0 to 1, or None", alpha)
    group = own_group(synchronize, process_group)
    if group is None:
        return _own_focal_loss(logits, labels, gamma, alpha, mask, check_finite)
    with raised_by_all(group, logits.device):
        value = _own_focal_loss(logits, labels, gamma, alpha, mask, check_finite)
    return global_mean(value, num_positives(labels, mask, logits.shape[-1]), group)


def _own_focal_loss(
    logits: Tensor,
    labels: Tensor,
    gamma: float,
    alpha: float | None,
    mask: Tensor | None,
    check_finite: bool | None,
) -> Tensor:
    """`focal_loss` of this process alone."""
    if not can_read(logits):
        return plain_focal_loss(logits, labels, gamma, alpha, mask, check_finite)
    from rankdet.losses.focal_triton import fused_focal_loss  # needs Triton, which not all have

    check_inputs(logits, labels, mask)
    value = fused_focal_loss(logits, labels, mask, gamma, alpha)
    if check_finite and bool(value.isnan()):  # by a score, or else by a label
        is_counted = counted_entries(labels, mask, logits.shape[-1])
        raise_if_not_finite(logits.detach(), is_counted)
    return value


def plain_focal_loss(
    logits: Tensor,
    labels: Tensor,
    gamma: float,
    alpha: float | None,
    mask: Tensor | None,
    check_finite: bool | None,
) -> Tensor:
    """`focal_loss` by torch operations, on any device: float32, or float64 for float64 logits."""
    scores, is_positive, _, soundness = read_entries(logits, labels, mask, check_finite)
    signed = scores * either(is_positive, -1.0, 1.0, scores)
    loss = softplus(signed)
    if gamma > 0:
        # (1 - p_t)^gamma = sigmoid(y)^gamma = exp(gamma * log sigmoid(y)): unlike a power of the
        # sigmoid, it has a finite derivative where the sigmoid rounds to 0 and gamma is below 1.
        loss = loss * torch.exp(gamma * (signed - loss))
    if alpha is not None:
        loss = loss * either(is_positive, alpha, 1 - alpha, loss)
    return loss.sum() / is_positive.count_nonzero().clamp(min=1) * soundness


class FocalLoss(ClassLoss):
    """`focal_loss` with its settings.

    >>> FocalLoss()(torch.tensor([[0.0]]), torch.tensor([0]))
    tensor(0.0433)
    """

    def __init__(
        self,
        gamma: float = 2.0,
        alpha: float | None = 0.25,
        check_finite: bool | None = None,
        *,
        synchronize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(synchronize, process_group)
        self.gamma = gamma
        self.alpha = alpha
        self.check_finite = check_finite

    def forward(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        return focal_loss(
            logits,
            labels,
            gamma=self.gamma,
            alpha=self.alpha,
            mask=mask,
            check_finite=self.check_finite,
            synchronize=self.synchronize,
            process_group=self.process_group,
        )
