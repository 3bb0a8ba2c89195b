"""AP-loss by the loop of the paper, as it was made to be run: the opponent of measurements.

Algorithm 1 with the strategies of section 3.4.4: float32, only negatives that can have an error
(x_j > min x_i - delta) are looked at, and for one positive after the other all of them at once.
`rankdet.losses.ap_loss_reference` is the same in float64, and judges it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankdet.config import LossConfig
from rankdet.losses.labels import counted_entries, positive_entries


def paper_ap_loss(logits: Tensor, labels: Tensor, delta: float = 1.0) -> Tensor:
    """1 - interpolated AP with the piecewise step: a scalar whose gradient is the paper's update.

    Args:
        logits: (R, K) or (B, A, K), raw scores.
        labels: (R,) or (B, A) integers: the class's column 0..K-1, BACKGROUND or IGNORED.
        delta: half the width of the step.

    >>> logits = torch.tensor([[0.0], [2.0]], requires_grad=True)
    >>> loss = paper_ap_loss(logits, torch.tensor([0, -1]))
    >>> loss.backward()
    >>> loss.item(), logits.grad.flatten().tolist()
    (0.5, [-0.5, 0.5])
    """
    value: Tensor = _PaperLoop.apply(logits, labels, delta)
    return value


def delta_of(loss: LossConfig) -> float:
    """The half width of the step in the settings of a loss; the paper's 1 where they name none.

    >>> delta_of(LossConfig("ap")), delta_of(LossConfig("ap", {"delta": 2}))
    (1.0, 2.0)
    """
    return float(loss.settings.get("delta", 1.0))


def nontrivial_negatives(logits: Tensor, labels: Tensor, delta: float = 1.0) -> Tensor:
    """Bool of the logits' shape: negatives that stand less than delta below the lowest positive.

    The others have an error of 0 with every positive (line 5 of Algorithm 1). Without positives
    there is none.
    """
    is_positive = positive_entries(labels, logits.shape[-1])
    is_negative = counted_entries(labels, None, logits.shape[-1]) & ~is_positive
    lowest = logits.float().masked_fill(~is_positive, float("inf")).amin()
    return is_negative & (logits > lowest - delta)


class _PaperLoop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, delta: float) -> Tensor:
        value, update = _loop(logits, labels, delta)
        ctx.save_for_backward(update)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (update,) = ctx.saved_tensors
        return update * gradient, None, None


@torch.no_grad()
def _loop(logits: Tensor, labels: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """The loss, and the update of the logits' shape and dtype."""
    is_positive = positive_entries(labels, logits.shape[-1])
    is_relevant = nontrivial_negatives(logits, labels, delta)
    positives, negatives = logits[is_positive].float(), logits[is_relevant].float()
    update = torch.zeros_like(logits)
    if not len(positives):
        return update.sum(dtype=torch.float32), update
    errors = torch.zeros_like(positives)
    update_of_negatives = torch.zeros_like(negatives)
    smallest_error = float("inf")
    for i in positives.argsort().tolist():  # ascending scores
        above_positives = ((positives - positives[i]) / (2 * delta) + 0.5).clamp_(0, 1)
        above_negatives = ((negatives - positives[i]) / (2 * delta) + 0.5).clamp_(0, 1)
        # The positive itself counts 1, and its own step is 1/2.
        rank = above_positives.sum() + 0.5 + above_negatives.sum()
        error_of_negatives = above_negatives.div_(rank)
        error = float(error_of_negatives.sum())  # an accelerator is waited for, as in the paper's
        if error <= smallest_error:
            smallest_error = error
        else:  # interpolated: precision does not fall towards higher scores
            error_of_negatives *= smallest_error / error
        errors[i] = smallest_error
        update_of_negatives += error_of_negatives
    update[is_positive] = (-errors / len(positives)).to(update.dtype)
    update[is_relevant] = (update_of_negatives / len(positives)).to(update.dtype)
    return errors.mean(), update
