"""Time of a training step with each of the four losses, and the loss's share of it.

Each loss trains RetinaNet for some steps, alone on the machine, as `rankdet train` would. What a
step takes says how many seconds an epoch has, wherever several trainings shared the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rankdet.config import Config
from rankdet.experiments.comparison import COLOURS, LOSSES
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import GREY, begin_at_zero, label_axes, new_figure, save_figure
from rankdet.experiments.losses import measured_rows
from rankdet.experiments.paper import paper
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.tables import NO_NUMBER, markdown_table, missing_text, page

SUMMARY = "time of a training step with each of four losses, and the loss's share of it"
# Steps that are not timed, in which the network may be compiled; then steps that are.
_NUM_STEPS = {"smoke": (1, 2), "tiny": (5, 20), "voc320": (50, 100), "paper": (50, 100)}

_NOTES = (
    "Step: data, forward, losses, backward and step, the mean over steps of a training that "
    "nothing interrupts. Class loss: its forward and backward by themselves on the logits of the "
    "last of these steps, the median of three runs after one that is not counted.",
    "One process; the times hold if nothing else ran on the machine. An epoch is without "
    "evaluation and checkpoints.",
)


def notes() -> list[str]:
    """What a reader of the numbers has to know, and what the paper says."""
    said = paper()["statements"]["fig_time_cost_curve"]
    return [
        *_NOTES,
        f"Paper, at {said['batch_size']} images: AP-loss takes about {said['share_of_iteration']} "
        "of the whole iteration.",
    ]


def plan(request: Request) -> list[Row]:
    """A row for each loss."""
    num_steps = sum(_NUM_STEPS[request.scale])
    # In one part, so that the loss that is timed is that of the whole step.
    return measured_rows(request, _result, max_steps=num_steps, log_every=num_steps, accumulate=1)


def _result(config: Config, request: Request) -> dict[str, Any]:
    """Seconds of a step and of the class loss, and how many images a step and an epoch have."""
    from contextlib import closing

    from rankdet import build
    from rankdet.experiments.loss_times import Keeping, now, seconds_of
    from rankdet.experiments.short_training import steps_of
    from rankdet.workflows.parts import prepare
    from rankdet.workflows.train import count_steps

    parts = prepare(config, request.device)
    num_steps = count_steps(config.training, parts.steps_per_epoch)
    num_before = min(_NUM_STEPS[request.scale][0], num_steps // 2)  # of small data or a --set
    criterion = Keeping(parts.criterion, 1)
    with closing(parts.loader):
        start = now(parts.device)
        for position, _ in steps_of(
            parts.detector, criterion, parts, name=config.loss.name, config=config
        ):
            if position.step == num_before:
                start = now(parts.device)
        end = now(parts.device)
    batch_size = config.training.batch_size
    return {
        "step_seconds": (end - start) / (num_steps - num_before),
        "loss_seconds": seconds_of(build.class_loss(config.loss), criterion.snapshots[-1]),
        "step_images": batch_size,
        "epoch_images": parts.steps_per_epoch * batch_size,
    }


def epoch_seconds(result: Any) -> float:
    """Of an epoch of the training that a result is of.

    >>> epoch_seconds({"step_seconds": 0.5, "step_images": 32, "epoch_images": 320})
    5.0
    """
    return float(result["step_seconds"]) * result["epoch_images"] / result["step_images"]


def markdown(record: Record) -> str:
    """Milliseconds of step and loss, the share, and what follows for an epoch."""
    rows = []
    for name in LOSSES:
        if text := missing_text(record, name):
            rows.append([name, text, *[NO_NUMBER] * 4])
            continue
        result = results_of(record)[name]
        step, loss = result["step_seconds"], result["loss_seconds"]
        rows.append(
            [
                name,
                f"{1e3 * step:,.1f}",
                f"{1e3 * loss:,.2f}",
                f"{100 * loss / step:.1f} %",
                f"{result['step_images'] / step:,.0f}",
                f"{epoch_seconds(result):,.1f}",
            ]
        )
    heading = ["training loss", "ms of a step", "ms of the class loss", "share"]
    heading += ["images per second", "seconds of an epoch"]
    return page(record, SUMMARY, [markdown_table(heading, rows)], notes())


def figure(record: Record, path: Path) -> None:
    """A bar for each loss: the step, and in colour the class loss's part of it."""
    results = results_of(record)
    drawn = new_figure(6, 3.2)
    axes = drawn.subplots()
    steps = [1e3 * result["step_seconds"] for result in results.values()]
    axes.bar(range(len(steps)), steps, color=GREY, label="whole step")
    for place, (name, result) in enumerate(results.items()):
        axes.bar(place, 1e3 * result["loss_seconds"], color=COLOURS[LOSSES[name]])
    axes.set_xticks(range(len(results)), list(results))
    begin_at_zero(axes)
    label_axes(axes, "whole step (grey) and class loss", "", "milliseconds")
    save_figure(drawn, path)


EXPERIMENT = Experiment("time-share", SUMMARY, (), plan, markdown, figure, has_trainings=False)
