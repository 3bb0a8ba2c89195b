"""Forward, loss and backward on one batch, without a step: what memory is measured of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rankdet.config import Config
from rankdet.detectors.assign import IoUAssigner
from rankdet.detectors.criterion import Criterion, Losses
from rankdet.structures import Predictions, Target
from rankdet.workflows.parts import Parts


def single_step(parts: Parts, batch: Any, criterion: Callable[..., Losses]) -> None:
    """As in a training, up to the gradients, which are dropped again."""
    criterion(outputs(parts, batch), batch.targets).total.backward()
    parts.detector.zero_grad(set_to_none=True)


def outputs(parts: Parts, batch: Any) -> list[Predictions]:
    """What the detector says about a batch on its device, in training mode and precision."""
    settings = parts.step_settings
    images = batch.images
    if settings.channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    parts.detector.train()
    with torch.autocast(
        settings.device.type, settings.precision, enabled=settings.precision is not None
    ):
        stages: list[Predictions] = parts.detector(images, batch.targets)
    return stages


def loss_on_outputs(
    parts: Parts, batch: Any, class_loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[], None]:
    """Forward and backward of the class loss alone, on logits that are there already."""
    with torch.no_grad():
        stages = outputs(parts, batch)
        labels = parts.criterion(stages, batch.targets).assignments[-1].labels
    logits = stages[-1].logits.requires_grad_()

    def run() -> None:
        class_loss(logits, labels).backward()
        logits.grad = None

    return run


def outputs_added_up(stages: Sequence[Predictions], targets: Sequence[Target]) -> Losses:
    """No loss: the sum of all outputs, so that the network's backward pass has its full work."""
    parts = {
        "class": [stage.logits.sum(dtype=torch.float32) for stage in stages],
        "box": [stage.deltas.sum(dtype=torch.float32) for stage in stages],
    }
    return Losses({name: torch.stack(sums).sum() for name, sums in parts.items()}, [])


def class_loss_removed(config: Config) -> Criterion:
    """The criterion of a training whose class loss is the sum of the scores."""
    return Criterion(
        IoUAssigner(config.detector.positive_iou, config.detector.negative_iou),
        _sum,
        box_weights=config.detector.box_weights,
        box_weight=config.loss.box_weight,
    )


def _sum(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.sum(dtype=torch.float32)
