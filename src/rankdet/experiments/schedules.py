"""Three lengths of a training: the ranking of losses may depend on it.

The learning rate falls to a tenth after 70 % and 90 % of the epochs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rankdet.config import Config

SHORT, LONG, LONGEST = "short", "long", "longest"


@dataclass(frozen=True)
class Schedule:
    """Epochs, and how many of them lie between two evaluations (0: one at the end alone)."""

    epochs: int
    every: int


_VOC320 = {SHORT: Schedule(6, 1), LONG: Schedule(18, 2), LONGEST: Schedule(54, 6)}


def schedules(scale: str, usual_epochs: int) -> dict[str, Schedule]:
    """All, by name. Elsewhere than at voc320, the long one has the usual epochs of the scale.

    >>> schedules("paper", 160)["short"].epochs
    53
    """
    if scale == "voc320":
        return _VOC320
    short = max(round(usual_epochs / 3), 1)
    every = max(short // 10, 1)
    return {
        SHORT: Schedule(short, every),
        LONG: Schedule(usual_epochs, 2 * every),
        LONGEST: Schedule(3 * usual_epochs, 6 * every),
    }


def with_schedule(config: Config, schedule: Schedule) -> Config:
    """The same training in another length."""
    epochs = schedule.epochs
    milestones = (round(0.7 * epochs, 2), round(0.9 * epochs, 2))
    return replace(
        config,
        training=replace(config.training, epochs=epochs, milestones=milestones),
        evaluation=replace(config.evaluation, every=schedule.every),
    )
