"""AP-loss and AUC-loss once more, pair by pair in float64: what the fast paths are checked against.

Unlike `ap_loss_reference` it takes the scores in pieces, so that it can be asked about more scores
than fit into memory as float64; the work is O(P N), so there must be few positives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankdet.losses.ap_reference import soft_step
from rankdet.losses.labels import IGNORED

_PIECE = 1 << 24  # entries at a time


@dataclass(frozen=True)
class Ranking:
    """The exact loss and, of each of the P positives, score, flat place, update and weight.

    The update of a negative with score n is the sum over the positives of weight * f(n - score).
    """

    value: Tensor
    scores: Tensor
    index: Tensor
    update: Tensor
    weight: Tensor
    step: str
    delta: float

    def update_of(self, scores: Tensor) -> Tensor:
        """The update of negatives with these scores, of any shape."""
        update = torch.zeros_like(scores, dtype=torch.float64)
        for positive, weight in zip(self.scores, self.weight, strict=True):
            update += weight * soft_step(scores.double() - positive, self.step, self.delta)
        return update


def rank(
    loss: str, logits: Tensor, labels: Tensor, mask: Tensor | None, step: str, delta: float
) -> Ranking:
    """The exact ranking of "ap_loss" (interpolated) or "auc_loss".

    >>> result = rank("ap_loss", torch.tensor([[0.0, 2.0]]), torch.tensor([0]), None,
    ...               "piecewise", 1.0)
    >>> result.value.item(), result.update.tolist(), result.update_of(torch.tensor([2.0])).tolist()
    (0.5, [-0.5], [0.5])
    """
    num_classes = logits.shape[1]
    rows = (labels >= 0).nonzero()[:, 0]
    columns = labels[rows]
    if mask is not None:
        is_counted = mask[rows, columns]
        rows, columns = rows[is_counted], columns[is_counted]
    scores = torch.stack([logits[row, column] for row, column in zip(rows, columns, strict=True)])
    scores, order = scores.double().sort()

    above_N = torch.zeros_like(scores)
    num_negatives = 0
    for piece, is_negative, _ in pieces(logits, labels, mask):
        negatives = piece[is_negative].double()
        num_negatives += len(negatives)
        for number, positive in enumerate(scores):
            above_N[number] += soft_step(negatives - positive, step, delta).sum()

    if loss == "auc_loss":
        error = above_N / num_negatives
        weight = torch.full_like(error, 1 / num_negatives)
    else:
        above_P = soft_step(scores - scores.unsqueeze(1), step, delta)
        above_P.fill_diagonal_(1)
        error = (above_N / (above_P.sum(1) + above_N)).cummin(0).values
        weight = torch.where(above_N > 0, error / above_N, 0.0)
    num_positives = len(scores)
    return Ranking(
        error.mean(),
        scores,
        (rows * num_classes + columns)[order],
        -error / num_positives,
        weight / num_positives,
        step,
        delta,
    )


def pieces(
    logits: Tensor, labels: Tensor, mask: Tensor | None
) -> Iterator[tuple[Tensor, Tensor, slice]]:
    """The logits piece by piece, with bool tensors of where the negatives are, and the rows."""
    num_rows, num_classes = logits.shape
    columns = torch.arange(num_classes, device=logits.device)
    height = max(1, _PIECE // num_classes)
    for start in range(0, num_rows, height):
        rows = slice(start, start + height)
        label = labels[rows].unsqueeze(1)
        is_negative = (label != columns) & (label != IGNORED)
        yield logits[rows], is_negative if mask is None else is_negative & mask[rows], rows
