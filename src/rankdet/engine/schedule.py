"""The learning rate of every step: pure functions of the step's number."""

from __future__ import annotations

import math
from collections.abc import Sequence


def learning_rate_factor(
    step: int,
    *,
    schedule: str,
    num_steps: int,
    steps_per_epoch: int,
    milestones: Sequence[float] = (),
    decay: float = 0.1,
    warmup_steps: int = 0,
    warmup_start: float = 1 / 3,
) -> float:
    """What the learning rate is multiplied by in a step, counted from 0.

    Both schedules begin with a linear warm-up from warmup_start to 1 over warmup_steps. "steps":
    times decay from each milestone on, counted in epochs. "one_cycle": along a cosine from 1 at the
    end of the warm-up to 0 at num_steps.

    >>> paper = dict(schedule="steps", num_steps=160_000, steps_per_epoch=1000,
    ...              milestones=(110, 140), warmup_steps=500)
    >>> [round(learning_rate_factor(step, **paper), 3) for step in (0, 250, 500, 110_000, 140_000)]
    [0.333, 0.667, 1.0, 0.1, 0.01]
    """
    if step < 0:
        raise ValueError(f"expected a step of at least 0, got {step}")
    factor = 1.0
    if step < warmup_steps:
        factor = warmup_start + (1 - warmup_start) * step / warmup_steps
    if schedule == "steps":
        # Rounded: 1.1 epochs of 50 steps are 55 steps, not 55.00000000000001.
        num_reached = sum(step >= round(epoch * steps_per_epoch) for epoch in milestones)
        return factor * decay**num_reached
    if schedule == "one_cycle":
        return factor * _cosine(step, warmup_steps, num_steps)
    raise ValueError(f'expected the schedule "steps" or "one_cycle", got {schedule!r}')


def scaled_learning_rate(learning_rate: float, batch_size: int, reference_batch_size: int) -> float:
    """The learning rate of another batch size: in proportion to the number of images.

    >>> scaled_learning_rate(0.001, batch_size=8, reference_batch_size=16)
    0.0005
    """
    return learning_rate * batch_size / reference_batch_size


def _cosine(step: int, first: int, last: int) -> float:
    """1 up to the step `first`, then down along half a cosine to 0 at `last` and after it."""
    if step <= first:
        return 1.0
    if step >= last:
        return 0.0
    return 0.5 * (1 + math.cos(math.pi * (step - first) / (last - first)))
