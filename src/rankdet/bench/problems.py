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
    draw_on: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Problem:
    """A batch of `num_anchors` x `num_classes` normal scores, some of them of positives.

    Drawn on the CPU, a batch is the same on every device; `draw_on` another device, which has other
    random numbers, is for batches that would take the CPU seconds.
    """
    generator = torch.Generator(draw_on).manual_seed(seed)
    (positive_mean, positive_deviation), (mean, deviation) = REGIMES[regime]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=draw_on)

    logits = normal(num_anchors, num_classes) * deviation + mean
    anchors = torch.randperm(num_anchors, generator=generator, device=draw_on)[:num_positives]
    classes = torch.randint(num_classes, (num_positives,), generator=generator, device=draw_on)
    logits[anchors, classes] = normal(num_positives) * positive_deviation + positive_mean
    labels = torch.full((num_anchors,), BACKGROUND, device=draw_on)
    labels[anchors] = classes
    logits = logits.to(dtype)
    targets = torch.zeros_like(logits)
    targets[anchors, classes] = 1
    return Problem(logits.to(device).requires_grad_(), labels.to(device), targets.to(device))
