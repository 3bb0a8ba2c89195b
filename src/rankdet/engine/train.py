"""The training loop: forward, loss, backward, step.

`training_steps` yields after every step of the optimiser. What else belongs to a training (records,
checkpoints, evaluation, stopping) is done by whoever iterates over it, between two steps.
Where several processes train together, each has its part of every batch; all of them take the same
steps, and all stop if one cannot go on.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankdet.engine.distributed import ALONE, Processes
from rankdet.errors import TrainingError
from rankdet.structures import Predictions, Target

_NUM_IMAGES = "the number of images"
_COUNT = "the number of {}"


@dataclass(frozen=True)
class Position:
    """How far a training is: whole epochs, micro-batches of the next one, and optimiser steps."""

    epoch: int = 0
    batch: int = 0
    step: int = 0


@dataclass(frozen=True)
class StepSettings:
    """How a step is done. precision: of autocast; None: without it. log_every: see `Report`."""

    device: torch.device
    precision: torch.dtype | None = None
    channels_last: bool = False
    clip_norm: float | None = None
    accumulate: int = 1
    log_every: int = 10


@dataclass(frozen=True)
class Report:
    """What a step came to. losses: the parts, as the mean over the micro-batches (and processes).

    num_images: of all processes. counts: the mean over these images of what the criterion counted,
    such as the RoIs that a two-stage detector learned from.

    In every log_every-th step also: batch_ap, the average precision of the ranking in the batch (of
    the last micro-batch; NaN without positives), and seconds, the time of each part of the step.
    """

    losses: dict[str, float]
    gradient_norm: float
    learning_rate: float
    num_images: int
    batch_ap: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        """Whether this is one of the log_every-th steps."""
        return bool(self.seconds)


class TrainingBatch(Protocol):
    """What a loader gives; see `rankdet.data.loading.collate.Batch`."""

    @property
    def images(self) -> Tensor: ...

    @property
    def targets(self) -> list[Target]: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TrainingBatch: ...

    def __len__(self) -> int: ...


class TrainingLoader(Protocol):
    """The same micro-batches for the same epoch, from any of them on."""

    def __len__(self) -> int: ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Any]: ...


class CriterionOutput(Protocol):
    """What a criterion gives; see `rankdet.detectors.criterion.Losses`."""

    @property
    def parts(self) -> dict[str, Tensor]: ...

    @property
    def total(self) -> Tensor: ...

    @property
    def assignments(self) -> Sequence[Any]: ...

    @property
    def counts(self) -> dict[str, Tensor]: ...


Criterion = Callable[[list[Predictions], Sequence[Target]], CriterionOutput]
# (logits, labels) -> the average precision of a ranking
AveragePrecision = Callable[[Tensor, Tensor], Tensor]


def training_steps(
    detector: nn.Module,
    criterion: Criterion,
    optimizer: torch.optim.Optimizer,
    loader: TrainingLoader,
    *,
    learning_rate: Callable[[int], float],
    average_precision: AveragePrecision,
    settings: StepSettings,
    num_epochs: int,
    start: Position | None = None,
    processes: Processes = ALONE,
) -> Generator[tuple[Position, Report]]:
    """Train, and give the position reached and a report after every step.

    learning_rate: of the step with this number, from 0. start: where an earlier training ended.
    Micro-batches at the end of an epoch that do not fill a step are left out. detector: as
    `processes` has wrapped it, and loader: of the part of this process. What the loader raises in
    one process, all raise (`Processes.together`), before the step.
    """
    position = start or Position()
    size = settings.accumulate
    steps_per_epoch = len(loader) // size
    while position.epoch < num_epochs:
        batches = loader.epoch(position.epoch, position.batch)
        for number in range(position.batch // size, steps_per_epoch):
            watch = Stopwatch(settings, is_on=position.step % settings.log_every == 0)
            with watch.part("data"), _few_threads(settings.device), processes.together():
                micro_batches = list(itertools.islice(batches, size))
            rate = learning_rate(position.step)
            for group in optimizer.param_groups:
                group["lr"] = rate
            report = training_step(
                detector,
                criterion,
                optimizer,
                micro_batches,
                settings,
                average_precision,
                watch,
                processes,
            )
            is_last = number + 1 == steps_per_epoch
            position = Position(
                epoch=position.epoch + is_last,
                batch=0 if is_last else (number + 1) * size,
                step=position.step + 1,
            )
            yield position, report
        with processes.together():
            for _ in batches:  # the rest, or the loader would end its workers
                pass


@contextmanager
def _few_threads(device: torch.device) -> Iterator[None]:
    """One thread for what the host makes of a batch that is held on a GPU: drawn numbers and boxes.

    These are few; to wake other threads takes longer, above all where trainings share the cores.
    """
    if device.type != "cuda":
        yield
        return
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def training_step(
    detector: nn.Module,
    criterion: Criterion,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[TrainingBatch],
    settings: StepSettings,
    average_precision: AveragePrecision,
    watch: Stopwatch,
    processes: Processes = ALONE,
) -> Report:
    """One step of the optimiser; the gradient is the mean over the micro-batches.

    A TrainingError that names the files, before any weight changes, if a number is not finite: in
    all processes, whichever has it.
    """
    if not detector.training:  # going through hundreds of layers takes the host a while
        detector.train()
    optimizer.zero_grad(set_to_none=True)
    parts: list[dict[str, Tensor]] = []
    counts: list[dict[str, Tensor]] = []
    soundness: list[Tensor] = []
    for number, batch in enumerate(batches, start=1):
        with _collecting_gradients(detector, is_last=number == len(batches)):
            with watch.part("forward"):
                moved = batch.to(settings.device, non_blocking=True)
                with torch.autocast(
                    settings.device.type, settings.precision, enabled=settings.precision is not None
                ):
                    stages = detector(_images(moved, settings), moved.targets)
            soundness += [stage.logits.detach().sum(dtype=torch.float32) for stage in stages]
            with watch.part("loss"):
                try:
                    losses = criterion(stages, moved.targets)
                except FloatingPointError as error:  # where the loss itself looks at the scores
                    raise _not_finite(str(error), _names(batches)) from error
            # Threads of its own would only cost autograd the time to wake them: one device.
            with watch.part("backward"), torch.autograd.set_multithreading_enabled(False):
                (losses.total / len(batches)).backward()
        parts.append({name: part.detach() for name, part in losses.parts.items()})
        counts.append(losses.counts)
    batch_ap = None
    if watch.is_on:
        batch_ap = average_precision(stages[-1].logits, losses.assignments[-1].labels).item()
    with watch.part("step"):
        parameters = _parameters(optimizer)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if settings.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, settings.clip_norm, norm)
        num_images = sum(map(len, batches))
        names, numbers = _to_check(parts, counts, soundness, norm, num_images)
        numbers = _averaged(numbers, processes)  # not finite if those of any process are not
        values = dict(zip(names, _step_if_finite(optimizer, numbers), strict=True))
        for name, value in values.items():
            if not math.isfinite(value):
                raise _not_finite_anywhere(f"{name} = {value}", _names(batches), processes)
    return Report(
        losses={name: values[f"the {name} loss"] for name in parts[0]},
        gradient_norm=values["the norm of the gradient"],
        learning_rate=optimizer.param_groups[0]["lr"],
        num_images=round(values[_NUM_IMAGES] * processes.world_size),
        batch_ap=batch_ap,
        seconds=watch.seconds,
        counts=_per_image(counts[0], values),
    )


def _per_image(names: Iterable[str], values: dict[str, float]) -> dict[str, float]:
    """What was counted in all images together, for each of them; 0 without images."""
    num_images = values[_NUM_IMAGES] or 1
    return {name: values[_COUNT.format(name)] / num_images for name in names}


def _collecting_gradients(detector: nn.Module, is_last: bool) -> AbstractContextManager[None]:
    """Processes exchange their gradients in the backward pass of the last micro-batch alone."""
    if isinstance(detector, DistributedDataParallel) and not is_last:
        return detector.no_sync()
    return nullcontext()


def _images(batch: TrainingBatch, settings: StepSettings) -> Tensor:
    if settings.channels_last:
        return batch.images.contiguous(memory_format=torch.channels_last)
    return batch.images


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Those with a gradient. The optimiser has a list; to walk through a network takes longer."""
    every = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [parameter for parameter in every if parameter.grad is not None]


def _to_check(
    parts: list[dict[str, Tensor]],
    counts: list[dict[str, Tensor]],
    soundness: list[Tensor],
    norm: Tensor,
    num_images: int,
) -> tuple[list[str], Tensor]:
    """Everything that must be finite: its names, and the numbers on the device.

    The number of images and what the criterion counted go the same way, since the processes put
    these numbers together.
    """
    tensors = {"the sum of the class scores": torch.stack(soundness).sum()}
    for name in parts[0]:
        tensors[f"the {name} loss"] = torch.stack([part[name] for part in parts]).mean()
    tensors["the norm of the gradient"] = norm
    tensors[_NUM_IMAGES] = torch.full_like(norm, num_images)
    for name in counts[0]:
        tensors[_COUNT.format(name)] = torch.stack([count[name] for count in counts]).sum()
    return list(tensors), torch.stack([tensor.float() for tensor in tensors.values()])


def _averaged(numbers: Tensor, processes: Processes) -> Tensor:
    if processes.is_alone:
        return numbers
    return processes.summed(numbers) / processes.world_size


def _step_if_finite(optimizer: torch.optim.Optimizer, numbers: Tensor) -> list[float]:
    """Step unless one of the numbers is not finite; gives them. The host waits here, once.

    A fused optimiser asks the device whether to step, as under a GradScaler: its work is queued
    before the wait, and the device need not wait for the host.
    """
    values: list[float]
    if all(group.get("fused") for group in optimizer.param_groups):
        is_new = not optimizer.state
        optimizer.found_inf = (~numbers.isfinite()).any().float()  # type: ignore[attr-defined]
        optimizer.step()
        # It would decide about steps of others, too.
        del optimizer.found_inf  # type: ignore[attr-defined]
        values = numbers.tolist()
        if is_new and not all(map(math.isfinite, values)):
            optimizer.state.clear()  # a momentum that was not computed is whatever memory holds
        return values
    values = numbers.tolist()
    if all(map(math.isfinite, values)):
        optimizer.step()
    return values


def _names(batches: Sequence[TrainingBatch]) -> list[str]:
    return [name for batch in batches for name in batch.names]


def _not_finite_anywhere(what: str, names: list[str], processes: Processes) -> TrainingError:
    """The error of all processes: the first names the images of all, the others are brief."""
    told = processes.gathered(json.dumps(names).encode())
    if not processes.is_first:
        return TrainingError(f"process {processes.rank} stops with the others: {what}")
    return _not_finite(what, [name for part in told for name in json.loads(part)])


def _not_finite(what: str, names: list[str]) -> TrainingError:
    return TrainingError(
        f"a number is not finite: {what.rstrip('.')}. No weight was changed in this step. "
        f"Its images: {', '.join(names)}. "
        "Lower the learning rate, or the limit of the gradient (training.clip_norm)."
    )


class Stopwatch:
    """Seconds of each part of a step; when on, a device finishes its work at each end."""

    def __init__(self, settings: StepSettings, is_on: bool) -> None:
        self.is_on = is_on
        self.device = settings.device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        start = self._now()
        yield
        if self.is_on:
            self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - start

    def _now(self) -> float:
        if self.is_on and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
