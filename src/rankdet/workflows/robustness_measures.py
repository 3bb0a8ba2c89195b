"""How a detector in memory does on perturbed images, and how small an attack on it can be."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rankdet import build
from rankdet.config import Config, EvaluationConfig
from rankdet.data.dataset import DetectionDataset
from rankdet.data.loading.collate import Batch
from rankdet.data.loading.loader import Loader, make_loader
from rankdet.engine.detect import Detected
from rankdet.metrics.evaluation import Evaluation
from rankdet.metrics.thresholds import usual_thresholds
from rankdet.progress import progress
from rankdet.robustness.adversarial import PatchSettings, train_patch
from rankdet.robustness.corruptions import SEVERITIES
from rankdet.robustness.deepfool import Fooled, deepfool, midway_thresholds
from rankdet.robustness.perturbed import Perturbation, PerturbedDataset
from rankdet.robustness.suite import ORIGINAL, Selection, corruption, perturbation
from rankdet.workflows.evaluate import detect_dataset, judge


@dataclass(frozen=True)
class Subject:
    """A detector on its device, and how it is evaluated; see `evaluate_dataset`."""

    detector: nn.Module
    config: Config
    activation: str
    device: torch.device


@dataclass(frozen=True)
class Measured:
    """How good the detections in one set of images are. severity: of a corruption, else None."""

    name: str
    severity: int | None
    dataset: DetectionDataset
    detected: Detected
    evaluation: Evaluation


@dataclass(frozen=True)
class Measures:
    """All sets of images, the first of them the original one, and the attack; None: not asked."""

    images: tuple[Measured, ...]
    fooled: Fooled | None
    thresholds: tuple[float, ...]


def measure(
    subject: Subject,
    dataset: DetectionDataset,
    selection: Selection,
    *,
    seed: int,
    patch: Tensor | None = None,
    deepfool_objects: int | None = None,
) -> Measures:
    """What the selection asks for, on the images of an annotated data set with objects.

    seed: of the perturbations. patch: for the adversarial one. deepfool_objects: attack the first
    so many detected objects; None: all. The thresholds are those with the best F1 on the original
    images.
    """
    original = _measured(subject, dataset, ORIGINAL)
    images = [original]
    for name in selection.perturbations:
        perturbed = PerturbedDataset(dataset, perturbation(name, patch), seed)
        images.append(_measured(subject, perturbed, name))
    for name, severity in itertools.product(selection.corruptions, SEVERITIES):
        change: Perturbation = corruption(name, severity)
        perturbed = PerturbedDataset(dataset, change, seed)
        images.append(_measured(subject, perturbed, name, severity))
    thresholds = usual_thresholds(
        original.evaluation.thresholds, subject.config.evaluation.score_threshold
    )
    fooled = None
    if selection.has_deepfool:
        midway = midway_thresholds(thresholds, original.detected.detections)
        fooled = fool(subject, dataset, midway, deepfool_objects)
    return Measures(tuple(images), fooled, thresholds)


def _measured(
    subject: Subject, dataset: DetectionDataset, name: str, severity: int | None = None
) -> Measured:
    with progress(f"Detecting: {name}{'' if severity is None else f' {severity}'}") as meter:
        meter.expect(len(dataset))
        detected = detect_dataset(
            subject.detector,
            dataset,
            subject.config,
            activation=subject.activation,
            device=subject.device,
            on_batch=meter.advance,
        )
    assert detected is not None  # nobody stops it
    evaluation = judge(detected.detections, dataset, subject.config)
    return Measured(name, severity, dataset, detected, evaluation)


def fool(
    subject: Subject,
    dataset: DetectionDataset,
    thresholds: tuple[float, ...],
    max_objects: int | None,
) -> Fooled:
    """DeepFool on the detected objects of the data set, at the size of the first view."""
    views = build.evaluation_views(
        single_view(subject.config.evaluation),
        dataset,
        device=subject.device,
        workers=subject.config.data.workers,
    )
    loader = views[0].loader
    assert isinstance(loader, Loader)
    # Not all of them will be detected: then the bar ends before its end.
    targets = (dataset.target(index) for index in range(len(dataset)))
    num_objects = sum(int((~target.is_ignored).sum()) for target in targets)
    with closing(loader), progress("DeepFool", "objects") as meter:
        meter.expect(num_objects if max_objects is None else min(max_objects, num_objects))
        return deepfool(
            subject.detector,
            loader.epoch(0),
            activation=subject.activation,
            thresholds=thresholds,
            box_weights=subject.config.detector.box_weights,
            max_objects=max_objects,
            on_objects=meter.advance,
        )


def make_patch(subject: Subject, dataset: DetectionDataset, settings: PatchSettings) -> Tensor:
    """A patch (3, side, side) trained on the images of the data set, in the size of evaluation."""
    config = subject.config
    batch_size = min(config.training.batch_size // config.training.accumulate, len(dataset))
    view = single_view(config.evaluation)
    ((transform, _),) = build.evaluation_transforms(view)
    loader = make_loader(
        dataset,
        transform,
        batch_size=batch_size,
        seed=settings.seed,
        size=(view.fixed_size, view.fixed_size) if view.fixed_size else None,
        num_workers=config.data.workers,
        pin_memory=subject.device.type == "cuda",
    )
    # Of the last stage, as in training; the loss itself is not asked for anything.
    assigner = build.criterion(config, build.class_loss(config.loss)).assigner
    with closing(loader), progress("Training the patch") as meter:
        meter.expect(settings.steps * batch_size)
        return train_patch(
            subject.detector,
            assigner,
            subject.activation,
            _endless(loader),
            settings,
            on_step=lambda num_images, _: meter.advance(num_images),
        )


def _endless(loader: Loader) -> Iterator[Batch]:
    for epoch in itertools.count():
        yield from loader.epoch(epoch)


def single_view(config: EvaluationConfig) -> EvaluationConfig:
    """The settings with one size and no mirrored images: attacks go through one view."""
    return replace(config, flip=False, scales=())
