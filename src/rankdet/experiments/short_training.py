"""A training on one screen, for studies that change what `rankdet train` cannot change.

Forward, loss, backward and step are those of `rankdet.engine.train`; there are no checkpoints and
no evaluation, so that a training which is ended begins again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn

from rankdet import build
from rankdet.config import Config
from rankdet.detectors.criterion import batch_average_precision
from rankdet.engine.train import Criterion, Position, Report, training_steps
from rankdet.errors import TrainingError
from rankdet.progress import progress
from rankdet.workflows.parts import Parts
from rankdet.workflows.train import count_steps, learning_rate_of


@dataclass
class Curve:
    """What each step of a training came to.

    ap_losses: 1 - AP of the batch before the step, None where it has no objects; class_losses: what
    was minimised. error: why the training ended early, "" if it did not.
    """

    ap_losses: list[float | None] = field(default_factory=list)
    class_losses: list[float] = field(default_factory=list)
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        digits = 6  # more than a figure shows; a curve may have 100,000 steps
        return {
            "ap_losses": [None if x is None else round(x, digits) for x in self.ap_losses],
            "class_losses": [round(x, digits) for x in self.class_losses],
            "error": self.error,
        }


def train_curve(
    detector: nn.Module, criterion: Criterion, parts: Parts, *, name: str, config: Config
) -> Curve:
    """Train the detector with the data and settings of `parts`; every step is measured.

    detector: `parts.detector`, alone or within another module. config: whose `training` says how
    long. A number that is not finite ends the curve.
    """
    curve = Curve()
    try:
        for _, report in steps_of(detector, criterion, parts, name=name, config=config):
            assert report.batch_ap is not None
            is_known = math.isfinite(report.batch_ap)
            curve.ap_losses.append(1 - report.batch_ap if is_known else None)
            curve.class_losses.append(report.losses["class"])
    except TrainingError as error:
        curve.error = str(error)
    return curve


def steps_of(
    detector: nn.Module, criterion: Criterion, parts: Parts, *, name: str, config: Config
) -> Iterator[tuple[Position, Report]]:
    """The steps of a training, with a bar; see `train_curve`."""
    training = config.training
    num_steps = count_steps(training, parts.steps_per_epoch)
    steps = training_steps(
        detector,
        criterion,
        build.optimizer(config, detector),
        parts.loader,
        learning_rate=learning_rate_of(training, parts.steps_per_epoch, num_steps),
        average_precision=partial(batch_average_precision, activation=parts.activation),
        settings=parts.step_settings,
        num_epochs=training.epochs,
    )
    with closing(steps), progress(name) as meter:
        meter.expect(num_steps * training.batch_size)
        for position, report in steps:
            yield position, report
            meter.advance(report.num_images)
            if position.step == num_steps:
                break
