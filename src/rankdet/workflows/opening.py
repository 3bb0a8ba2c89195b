"""Splits of the user's data, opened so that the user sees how far it is and what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankdet import build
from rankdet.config import DataConfig
from rankdet.data.dataset import DetectionDataset
from rankdet.data.hold_out import divide
from rankdet.errors import DataError, counted
from rankdet.progress import progress


def open_with_progress(
    config: DataConfig, split: str, classes: Sequence[str] | None = None
) -> DetectionDataset:
    """A split of the data, with these classes (those of a trained detector) or its own."""
    with progress(f"Reading {split}") as meter:
        return build.open_split(
            config, split, classes=classes, on_start=meter.expect, on_image=meter.advance
        )


def divided(
    dataset: DetectionDataset, config: DataConfig
) -> tuple[DetectionDataset, DetectionDataset]:
    """The images of the training split to train on, and those that data.hold_out holds out."""
    assert config.hold_out is not None
    if len(dataset) < 2:
        raise DataError(
            "expected two images or more, to train on some and hold out the others",
            file=config.path,
            field="data.hold_out",
            value=config.hold_out,
            detail=f"{config.train_split} has {counted(len(dataset), 'image')}.",
            hint="Leave out --hold-out, or name a split to evaluate on with --val-split.",
        )
    return divide(dataset, config.hold_out)


def refuse_moved(path: str, command: str) -> None:
    """DataError if a run's data are not where they were; command: how to say where they are now."""
    if path != "synthetic" and not Path(path).exists():
        raise DataError(
            "the data that the run was trained with are not there any more",
            file=path,
            hint=f"If they were moved, say where they are now: `{command}`.",
        )


def has_objects(dataset: DetectionDataset) -> bool:
    """Whether there is anything to learn or to find; objects that are ignored do not count."""
    return any(
        not bool(dataset.target(index).is_ignored.all())  # of none: all
        for index in range(len(dataset))
    )


def notes_on_left_out(split: str, dataset: DetectionDataset) -> list[str]:
    """A sentence if some of the user's data cannot be used: it must not go unnoticed."""
    findings = getattr(dataset, "findings", None)
    if findings is None:  # the embedded set has no faults
        return []
    num_images, num_objects = findings.images.dropped.total(), findings.objects.dropped.total()
    if not num_images and not num_objects:
        return []
    return [
        f"{split}: {counted(num_images, 'image')} and {counted(num_objects, 'object')} cannot be "
        "used and are left out; `rankdet check` says why."
    ]
