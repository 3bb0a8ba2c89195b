"""Times of losses on logits that trainings really had."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankdet.detectors.criterion import Losses
from rankdet.structures import Predictions, Target

ClassLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Snapshot:
    """logits (B, A, C) of one step of a training, and labels (B, A)."""

    logits: Tensor
    labels: Tensor


class Keeping:
    """A criterion that keeps the logits and labels of its last calls."""

    def __init__(self, criterion: Callable[..., Losses], num_kept: int) -> None:
        self.criterion = criterion
        self.snapshots: deque[Snapshot] = deque(maxlen=num_kept)

    def __call__(self, stages: Sequence[Predictions], targets: Sequence[Target]) -> Losses:
        losses = self.criterion(stages, targets)
        labels = losses.assignments[-1].labels
        self.snapshots.append(Snapshot(stages[-1].logits.detach(), labels))
        return losses


def first_images(snapshots: Sequence[Snapshot], num_images: int) -> list[Snapshot]:
    """Batches of so many images from those of the snapshots, in their order; the rest is left out.

    >>> three = Snapshot(torch.zeros(3, 5, 1), torch.zeros(3, 5))
    >>> [tuple(one.logits.shape) for one in first_images([three, three], 2)]
    [(2, 5, 1), (2, 5, 1), (2, 5, 1)]
    """
    logits = torch.cat([snapshot.logits for snapshot in snapshots]).split(num_images)
    labels = torch.cat([snapshot.labels for snapshot in snapshots]).split(num_images)
    batches = [Snapshot(*pair) for pair in zip(logits, labels, strict=True)]
    return [batch for batch in batches if len(batch.labels) == num_images]


def seconds_of(loss: ClassLoss, snapshot: Snapshot, *, rounds: int = 3) -> float:
    """Median seconds of the loss, forward and backward, after one round that is not counted.

    A device has finished before each moment is taken.
    """
    times = []
    for _ in range(rounds + 1):
        logits = snapshot.logits.detach().requires_grad_()
        start = now(logits.device)
        loss(logits, snapshot.labels).backward()
        times.append(now(logits.device) - start)
    return statistics.median(times[1:])


def now(device: torch.device) -> float:
    """The clock, in seconds, when the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
