"""Made-up batches of a detector's scores, as they are at three moments of a training."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankdet.losses import BACKGROUND

# (mean, standard deviation) of the positives' and of the negatives' scores
REGIMES = {
    "initial": ((-4.6, 0.1), (-4.6, 0.1)),
    "half-trained": ((-1.5, 1.5), (-6.0, 1.0)),
    "trained": ((1.0, 1.0), (-6.0, 1.0)),
}


@dataclass(frozen=True)
class Problem:
    """A batch: logits (R, K) that require grad, compact labels (R,), dense 0 / 1 targets (R, K)."""

    logits: Tensor
    labels: Tensor
    targets: Tensor


def make_problem(
    regime: str,
    num_positives: int,
    num_anchors: int,
    num_classes: int,
    *,
    seed: int,
    device: str = "cpu",
) -> Problem:
    """A batch of `num_anchors` x `num_classes` normal scores, some of them of positives."""
    generator = torch.Generator().manual_seed(seed)
    (positive_mean, positive_deviation), (mean, deviation) = REGIMES[regime]
    logits = torch.randn(num_anchors, num_classes, generator=generator) * deviation + mean
    anchors = torch.randperm(num_anchors, generator=generator)[:num_positives]
    classes = torch.randint(num_classes, (num_positives,), generator=generator)
    scores = torch.randn(num_positives, generator=generator) * positive_deviation + positive_mean
    logits[anchors, classes] = scores
    labels = torch.full((num_anchors,), BACKGROUND)
    labels[anchors] = classes
    targets = torch.zeros_like(logits)
    targets[anchors, classes] = 1
    return Problem(logits.to(device).requires_grad_(), labels.to(device), targets.to(device))
