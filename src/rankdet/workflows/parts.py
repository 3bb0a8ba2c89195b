"""Everything that a training needs, made from its settings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from rankdet import build
from rankdet.config import Config, DataConfig, TrainingConfig
from rankdet.config.effects import (
    settings_without_effect,
    square_evaluation,
    training_name,
    validation_name,
)
from rankdet.data.dataset import DetectionDataset
from rankdet.data.fingerprint import fingerprint
from rankdet.data.loading.held import HeldLoader
from rankdet.data.loading.loader import Loader
from rankdet.data.loading.workers import make_ready
from rankdet.data.reading.choice import choose_splits
from rankdet.detectors.criterion import Criterion
from rankdet.detectors.detector import Detector, freeze
from rankdet.engine.distributed import ALONE, Processes
from rankdet.engine.train import StepSettings
from rankdet.errors import ConfigError, DataError, counted
from rankdet.progress import progress
from rankdet.provenance import provenance
from rankdet.workflows.initial import load_initial_weights
from rankdet.workflows.opening import (
    divided,
    has_objects,
    notes_on_left_out,
    open_with_progress,
)
from rankdet.workflows.run import RunRecord


@dataclass(frozen=True)
class Parts:
    """The objects of a training."""

    config: Config
    record: RunRecord
    detector: Detector
    criterion: Criterion
    optimizer: torch.optim.Optimizer
    loader: Loader | HeldLoader
    validation: DetectionDataset | None
    step_settings: StepSettings

    @property
    def activation(self) -> str:
        return self.record.activation

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about data and weights."""
        return self.record.notes

    @property
    def device(self) -> torch.device:
        return self.step_settings.device

    @property
    def has_own_statistics(self) -> bool:
        """Whether batch norms keep statistics of the images that this process alone has seen."""
        return any(build.has_statistics(layer) for layer in self.detector.modules())

    @property
    def steps_per_epoch(self) -> int:
        return len(self.loader) // self.config.training.accumulate


def prepare(
    config: Config,
    device_name: str | None,
    *,
    has_checkpoint: bool = False,
    processes: Processes = ALONE,
) -> Parts:
    """The parts of a training; initial weights are read unless a checkpoint will replace them.

    processes: of which this one trains its part. Process 0 alone reads initial weights: the others
    get its weights before the first step (`Processes.wrapped`).
    """
    device = build.device(device_name)
    given, config = config, square_evaluation(_with_splits(config))
    is_shared = not processes.is_alone
    loss = build.class_loss(
        config.loss, synchronize=is_shared, rank_locally=config.training.rank_locally
    )
    if not config.data.hold:
        make_ready(config.data.workers)
    train, validation, notes = _open_data(config)
    torch.manual_seed(config.seed)
    detector = build.detector(config.detector, len(train.classes), loss.activation)
    if not has_checkpoint and processes.is_first:
        notes.append(
            load_initial_weights(detector, config.detector, train.classes, loss.activation)
        )
    freeze(detector, build.num_frozen_stages(config.detector))
    if is_shared:
        notes += _share_norms(detector, config, device, processes.world_size)
    detector = build.placed(detector, config.training, device)
    if config.training.compile:
        for part in detector.compilable_parts:
            part.compile()
    with _holding(config, train) as on_image:
        loader = build.training_loader(
            config,
            train,
            device=device,
            on_image=on_image,
            rank=processes.rank,
            world_size=processes.world_size,
        )
    notes += (
        *_detector_notes(given, config),
        *_accumulation_notes(config),
        *_schedule_notes(config.training),
        *_process_notes(config, processes),
    )
    return Parts(
        config=config,
        record=_record(config, train, validation, loss.activation, notes),
        detector=detector,
        criterion=build.criterion(config, loss, synchronize=is_shared).to(device),
        optimizer=build.optimizer(config, detector),
        loader=loader,
        validation=validation,
        step_settings=_step_settings(config.training, device),
    )


def _step_settings(config: TrainingConfig, device: torch.device) -> StepSettings:
    return StepSettings(
        device=device,
        precision=build.precision(config, device),
        channels_last=build.is_channels_last(config, device),
        clip_norm=config.clip_norm,
        accumulate=config.accumulate,
        log_every=config.log_every,
    )


def _with_splits(config: Config) -> Config:
    """The settings with the names of both splits, where the data's own names tell them."""
    data = config.data
    if not data.path:
        raise ConfigError("data.path: expected a data set. Name it: `rankdet train DATA ...`.")
    if data.path == "synthetic" and data.classes is not None:
        raise ConfigError(
            "data.classes: the embedded data have classes of their own. Leave out --classes."
        )
    if data.train_split is not None:
        return config
    train_split, val_split = choose_splits(data.path, data.format)
    if data.hold_out is None:
        data = replace(data, val_split=data.val_split or val_split)
    return replace(config, data=replace(data, train_split=train_split))


def _open_data(
    config: Config,
) -> tuple[DetectionDataset, DetectionDataset | None, list[str]]:
    """The data to train on, those to evaluate on, and notes about both."""
    settings = config.data
    assert settings.train_split is not None
    whole = _open_annotated(settings, settings.train_split, None)
    notes = notes_on_left_out(settings.train_split, whole)
    train, validation = (whole, None) if settings.hold_out is None else divided(whole, settings)
    if not has_objects(train):
        raise DataError(
            "expected objects to train on",
            file=settings.path,
            field="split",
            value=training_name(settings),
            detail=f"None of its {len(train)} images has one of the classes.",
            hint="Look at the annotations with `rankdet check`.",
        )
    if validation is not None:
        notes.append(
            f"{settings.train_split}: {len(validation)} of {counted(len(whole), 'image')} held out "
            "of the training to evaluate on, by the names of the files."
        )
    elif settings.val_split is None:
        notes.append("There is no split to evaluate on (--val-split or --hold-out): no AP.")
    else:
        validation = _open_annotated(settings, settings.val_split, train.classes)
        notes += notes_on_left_out(settings.val_split, validation)
    if settings.val_split == settings.train_split:
        notes.append(
            f"{settings.val_split}: the images to evaluate on are those to train on, so that the "
            "numbers say nothing about other images."
        )
    if validation is not None and not has_objects(validation):
        notes.append(f"{validation_name(settings)}: there are no objects in the split: no AP.")
    return train, validation, notes


def _open_annotated(
    settings: DataConfig, split: str, classes: tuple[str, ...] | None
) -> DetectionDataset:
    dataset = open_with_progress(settings, split, classes)
    if not dataset.is_annotated:
        raise DataError(
            "expected a split with annotations",
            file=settings.path,
            field="split",
            value=split,
            hint="Give another one with --train-split or --val-split.",
        )
    return dataset


@contextlib.contextmanager
def _holding(config: Config, dataset: DetectionDataset) -> Iterator[Callable[[], None] | None]:
    """Shows how far the images are that the device is to hold."""
    if not config.data.hold:
        yield None
        return
    with progress("Loading onto the device") as meter:
        meter.expect(len(dataset))
        yield meter.advance


def _detector_notes(given: Config, config: Config) -> tuple[str, ...]:
    """About settings that mean something else for this detector than one might expect."""
    notes = []
    detector = config.detector
    if idle := settings_without_effect(detector):
        named = ", ".join(f"detector.{name}" for name in idle)
        notes.append(
            f"Without effect for {detector.name} with backbone {detector.backbone}: {named}."
        )
    if config.evaluation.fixed_size != given.evaluation.fixed_size:
        side = config.evaluation.fixed_size
        notes.append(
            f"SSD is evaluated as it is trained, at {side} x {side} pixels "
            "(evaluation.fixed_size); evaluation.scales keeps the shape of the images."
        )
    return tuple(notes)


def _accumulation_notes(config: Config) -> tuple[str, ...]:
    settings = config.training
    if settings.accumulate == 1:
        return ()
    return (
        f"Gradients of {settings.accumulate} micro-batches are accumulated: the loss ranks the "
        f"{settings.batch_size // settings.accumulate} images of each alone, not all "
        f"{settings.batch_size} together.",
    )


def _schedule_notes(settings: TrainingConfig) -> tuple[str, ...]:
    """About times of the schedule that the training does not reach, however many steps it has."""
    late = [time for time in settings.milestones if time >= settings.epochs]
    if settings.schedule != "steps" or not late:
        return ()
    times = ", ".join(f"{time:g}" for time in late)
    return (
        f"The learning rate does not fall at {times} (training.milestones, in epochs): the "
        f"training ends at {settings.epochs}. --epochs moves the milestones along, --set "
        "training.epochs does not.",
    )


def _share_norms(
    detector: Detector, config: Config, device: torch.device, world_size: int
) -> tuple[str, ...]:
    """Let batch norms see the images of all processes, where that is possible; else a note."""
    if not any(map(build.has_statistics, detector.modules())):
        return ()
    if device.type != "cuda":  # torch has no such layer for other devices
        return (
            "Batch norms see the images of each process alone (on a GPU: of all), and the "
            "statistics of process 0 are kept: the weights will differ from those of one process. "
            "For the same, set detector.norm=group.",
        )
    num_images = config.training.batch_size // config.training.accumulate
    if num_images < world_size:
        raise ConfigError(
            f"training.batch_size: {num_images} images at a time for {world_size} processes, and "
            "batch norm needs one for each. Give a larger --batch-size, fewer processes, or set "
            "detector.norm=group."
        )
    build.synchronized_norms(detector)
    return ()


def _process_notes(config: Config, processes: Processes) -> tuple[str, ...]:
    if processes.is_alone:
        return ()
    count = processes.world_size
    who = "1 process has" if count == 1 else f"{count} processes share"
    num_images = config.training.batch_size
    scope = config.loss.settings.get("scope", "batch")
    if config.training.rank_locally or scope != "batch":
        how = "ranking losses rank the images of each process alone, and are averaged"
    else:
        how = "the loss is that of all of them together"
    return (f"{who} the {counted(num_images, 'image')} of a step; {how}.",)


def _record(
    config: Config,
    train: DetectionDataset,
    validation: DetectionDataset | None,
    activation: str,
    notes: list[str],
) -> RunRecord:
    name = validation_name(config.data)
    return RunRecord(
        config=config,
        classes=train.classes,
        category_ids=train.category_ids,
        activation=activation,
        data={
            "train": _identity(training_name(config.data), train),
            "val": None if validation is None else _identity(name, validation),
        },
        provenance=provenance(seed=config.seed),
        notes=tuple(notes),
    )


def _identity(split: str | None, dataset: DetectionDataset) -> dict[str, object]:
    return {"split": split, "num_images": len(dataset), "fingerprint": fingerprint(dataset)}
