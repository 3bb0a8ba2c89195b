"""Several processes of one training: parts without images or objects, and numbers gone wrong."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from rankdet.bench.faults.fault import BrokenBuild, Fault, Outcome, Trial
from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.processes import Ended
from rankdet.bench.faults.training import train_arguments
from rankdet.bench.faults.watching import saved_step
from rankdet.bench.faults.worlds import all_ended, start_world
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.write import write_dataset
from rankdet.detectors.criterion import Criterion, Losses
from rankdet.detectors.retinanet import RetinaNet
from rankdet.engine import train as engine
from rankdet.engine.checkpoint import checkpoint_name, load_checkpoint, newest_checkpoint
from rankdet.errors import RankdetError
from rankdet.structures import Predictions
from rankdet.workflows import train as workflow
from rankdet.workflows.run import CHECKPOINTS

_WORLD, _WORLD_QUICK = 4, 3
_BATCH_SIZES = (2, 3, 6)  # over four processes: empty parts, then uneven ones
_STEPS, _STEPS_QUICK = 100, 3  # of each
_COMPARED_STEP, _TOLERANCE = 10, 1e-4  # with one process, relative to the largest weight of a layer
_SECONDS, _SECONDS_BROKEN = 300.0, 20.0
_NUM_IMAGES, _WITHOUT_OBJECTS = 12, 5
_BAD_STEP = 3  # in which a number is spoilt


# Empty parts


def try_empty_ranks(trial: Trial) -> Outcome:
    """Train with fewer images than processes; all must end with the same weights."""
    data = _data_with_empty_images(trial.folder / "data")
    outcome = Outcome()
    worst = 0.0
    for batch_size in _BATCH_SIZES if not trial.is_quick else _BATCH_SIZES[:1]:
        problem, difference = _trained_together(trial, data, batch_size)
        outcome.add(problem and f"batches of {batch_size}: {problem}")
        worst = max(worst, difference)
        trial.advance()
    num_steps = min(_COMPARED_STEP, trial.count(_STEPS, _STEPS_QUICK))
    outcome.worst = f"{worst:.0e} from one process after {num_steps} steps"
    return outcome


def _data_with_empty_images(data: Path) -> Path:
    """Images, of which some have no object."""
    splits = {name: SyntheticDataset(name, _NUM_IMAGES, size=64) for name in ("train", "val")}
    write_dataset(splits, data, "yolo")
    for file in sorted((data / "labels" / "train").iterdir())[:_WITHOUT_OBJECTS]:
        file.write_text("")
    return data


def _trained_together(trial: Trial, data: Path, batch_size: int) -> tuple[str | None, float]:
    """(what went wrong, how far the weights are from those of one process)."""
    run, alone, told = (trial.folder / f"{name}-{batch_size}" for name in ("run", "alone", "told"))
    told.mkdir()
    num_steps = trial.count(_STEPS, _STEPS_QUICK)
    compared = min(_COMPARED_STEP, num_steps)
    world = start_world(
        trial.server,
        trial.count(_WORLD, _WORLD_QUICK),
        *_arguments(run, data, batch_size, num_steps, save_every=compared),
        patches=[Patch(tell_weights, (str(told),)), *trial.patches],
    )
    try:
        ended = all_ended(world, _SECONDS_BROKEN if trial.is_broken else _SECONDS)
    except RankdetError as error:
        return str(error), 0.0
    if problem := _problem_of_ends(ended, 0):
        return problem, 0.0
    if len(set(_told_weights(told))) != 1:
        return "the processes ended with different weights", 0.0
    trial.server.rankdet(*_arguments(alone, data, batch_size, compared, compared)).wait()
    difference = _difference(run, alone, compared)
    problem = f"{difference:.0e} from one process" if difference > _TOLERANCE else None
    return problem, difference


def _arguments(
    run: Path, data: Path, batch_size: int, num_steps: int, save_every: int
) -> list[str]:
    arguments = train_arguments(run, epochs=1000, save_every=save_every)
    arguments[1] = str(data)
    settings = {
        "training.max_steps": num_steps,
        "training.keep_checkpoints": 1000,
        "evaluation.every": 0,
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    splits = ("--train-split", "train", "--val-split", "val")
    return [*arguments, *splits, "--batch-size", str(batch_size), *options]


def _problem_of_ends(ended: Sequence[Ended], status: int) -> str | None:
    for rank, end in enumerate(ended):
        if end.status != status:
            return f"process {rank} ended with {end.status}: {end.last_line}"
    return None


def _told_weights(folder: Path) -> list[str]:
    return [file.read_text() for file in sorted(folder.iterdir())]


def _difference(run: Path, other: Path, step: int) -> float:
    """The largest difference of two checkpoints' weights, relative to the largest of its tensor."""
    name = checkpoint_name(step)
    first = load_checkpoint(run / CHECKPOINTS / name).weights
    second = load_checkpoint(other / CHECKPOINTS / name).weights
    return max(
        float((first[key] - tensor).abs().max() / tensor.abs().max().clamp(min=1e-3))
        for key, tensor in second.items()
        if tensor.is_floating_point()
    )


# Numbers that are not finite


def try_not_finite(trial: Trial) -> Outcome:
    """Spoil a number of one process: all stop together, before a weight has changed."""
    outcome = Outcome()
    longest = 0.0
    variants = [
        (what, value, rank)
        for what in ("gradient", "scores", "loss")
        for value in ("nan", "inf")
        for rank in (1, 0)
    ]
    count = 1 if trial.is_broken else trial.count(len(variants), 2)
    for what, value, rank in variants[:: len(variants) // count][:count]:
        name = f"{value} in the {what} of process {rank}"
        folder = trial.folder / name.replace(" ", "-")
        problem, seconds = _spoilt(trial, folder, what, value, rank)
        longest = max(longest, seconds)
        outcome.add(problem and f"{name}: {problem}")
        trial.advance()
    outcome.worst = f"all had stopped {longest:.1f} s after the first"
    return outcome


def _spoilt(
    trial: Trial, folder: Path, what: str, value: str, rank: int
) -> tuple[str | None, float]:
    """(what went wrong, seconds between the ends of the first and of the last process)."""
    run, told = folder / "run", folder / "told"
    told.mkdir(parents=True)
    world = start_world(
        trial.server,
        2,
        *train_arguments(run, epochs=2, save_every=1),
        patches=[
            Patch(spoil, (what, value, rank, _BAD_STEP)),
            Patch(tell_weights, (str(told),)),
            *trial.patches,
        ],
    )
    try:
        ended = all_ended(world, _SECONDS_BROKEN if trial.is_broken else _SECONDS)
    except RankdetError as error:
        return str(error), 0.0
    seconds = abs(ended[0].seconds - ended[1].seconds)
    return _problem_after_spoilt(run, told, ended), seconds


def _problem_after_spoilt(run: Path, told: Path, ended: Sequence[Ended]) -> str | None:
    weights = _told_weights(told)
    newest = newest_checkpoint(run / CHECKPOINTS)
    if newest is None or saved_step(run) != _BAD_STEP - 1:
        return f"the last good checkpoint is not there: {ended[0].last_line}"
    if weights != [_hash(load_checkpoint(newest).weights)] * len(ended):
        return "the bad step has changed weights"
    if problem := _problem_of_ends(ended, 1):
        return problem
    text = ended[0].output
    if "a number is not finite" not in text or newest.name not in text:
        return f"it is not told: {ended[0].last_line}"
    named = text.partition("Its images: ")[2].partition(". ")[0].split(", ")
    if len(named) != 2:  # the batch: an image of each process
        return f"the images of the batch are not named: {ended[0].last_line}"
    return None


# Patches


def tell_weights(folder: str) -> None:
    """Write a hash of this process's weights into a file, however its training ends."""
    original = workflow._go

    def go(out: Path, parts: Any, *arguments: Any) -> None:
        try:
            original(out, parts, *arguments)
        finally:
            file = Path(folder) / os.environ["RANK"]
            file.write_text(_hash(parts.detector.state_dict()))

    mock.patch("rankdet.workflows.train._go", go).start()


def _hash(weights: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def spoil(what: str, value: str, rank: int, step: int) -> None:
    """Spoil the scores, the loss or the gradient of one process in this step."""
    if os.environ["RANK"] != str(rank):
        return
    bad = float(value)
    forward, judged = RetinaNet.forward, Criterion.forward
    calls = {"forward": 0}

    def is_now(module: nn.Module) -> bool:
        return module.training and calls["forward"] == step

    def detect(detector: RetinaNet, *arguments: Any, **named: Any) -> list[Predictions]:
        calls["forward"] += detector.training
        stages = forward(detector, *arguments, **named)
        if is_now(detector) and what == "scores":
            logits = stages[-1].logits
            mark = torch.zeros_like(logits)
            mark.view(-1)[0] = bad
            stages[-1] = replace(stages[-1], logits=logits + mark)
        if is_now(detector) and what == "gradient":
            stages[-1].deltas.register_hook(lambda gradient: gradient + bad)
        return stages

    def judge(criterion: Criterion, *arguments: Any) -> Losses:
        losses = judged(criterion, *arguments)
        if calls["forward"] == step and what == "loss":
            losses.parts["box"] = losses.parts["box"] * bad
        return losses

    mock.patch.object(RetinaNet, "forward", detect).start()
    mock.patch.object(Criterion, "forward", judge).start()


def skip_backward_of_empty_parts() -> None:
    """Leave out the backward pass where there is no image, as if nothing could come of it."""
    step = engine.training_step
    backward: Callable[..., None] = Tensor.backward
    state = {"is_empty": False}

    def training_step(*arguments: Any, **options: Any) -> Any:
        state["is_empty"] = not any(len(batch) for batch in arguments[3])
        return step(*arguments, **options)

    def backward_unless_empty(tensor: Tensor, *arguments: Any, **options: Any) -> None:
        if not state["is_empty"]:
            backward(tensor, *arguments, **options)

    mock.patch("rankdet.engine.train.training_step", training_step).start()
    mock.patch.object(Tensor, "backward", backward_unless_empty).start()


def step_anyway() -> None:
    """Step whatever the numbers are."""

    def take_step(optimizer: torch.optim.Optimizer, numbers: Tensor) -> list[float]:
        optimizer.step()
        return [1.0] * len(numbers)

    mock.patch("rankdet.engine.train._step_if_finite", take_step).start()


EMPTY_RANKS = Fault(
    name="empty",
    title="processes without images or objects, 300 steps of 4: bit-identical weights",
    try_it=try_empty_ranks,
    broken=(
        BrokenBuild("no backward pass without images", (Patch(skip_backward_of_empty_parts),)),
    ),
    tries=(len(_BATCH_SIZES), 1),
)
NOT_FINITE = Fault(
    name="nan",
    title="NaN or inf in one process: all stop together, no weight changed, files named",
    try_it=try_not_finite,
    broken=(BrokenBuild("numbers are not looked at", (Patch(step_anyway),)),),
    tries=(12, 2),
)
