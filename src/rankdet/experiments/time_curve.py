"""Time of the AP-loss and of the whole iteration over a training: fig_time_cost_curve.

Our loss trains; at some of the steps the paper's loop is run on the same logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import (
    BLUE,
    GREY,
    VERMILION,
    begin_at_zero,
    count_in_wholes,
    label_axes,
    new_figure,
    save_figure,
)
from rankdet.experiments.paper import paper
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.scales import Training, base_config, with_changes
from rankdet.experiments.tables import markdown_table, missing_text, page

KEY = "AP-Loss"
_BATCH_SIZE = 8  # the paper's, on one GPU
_EVERY = {"smoke": 1, "tiny": 20, "voc320": 50, "paper": 1000}  # steps between two measurements
_MOST_STEPS = {"smoke": 3, "tiny": 600, "voc320": 3000, "paper": None}
_SHOWN = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)  # of the training, in the table

_NOTES = (
    "Loss: forward and backward of the class loss alone, the median of three runs on the logits of "
    "the step (of one run for the loop), after one that is not counted. Iteration: data, forward, "
    "losses, backward and step of that training step, which had our loss; with the loop: the same "
    "less our loss's time, plus the loop's.",
    "The loop: Algorithm 1 in float32 with the paper's strategies (only negatives that are not "
    "trivial; all negatives of a positive at once), `rankdet.experiments.paper_loop`.",
)


def notes() -> list[str]:
    """What a reader of the numbers has to know, and what the paper says."""
    said = paper()["statements"]["fig_time_cost_curve"]
    return [
        *_NOTES,
        f"Paper, on {said['machine']} at {said['batch_size']} images: the time of AP-loss falls to "
        f"{said['loss_seconds']} s within {said['reached_after_iterations']:,} iterations and "
        f"stays there; about {said['share_of_iteration']} of the whole iteration.",
    ]


def row_config(request: Request) -> Config:
    """The settings of the training."""
    base = base_config(request, Training())
    config = replace(
        base,
        data=replace(base.data, val_split=None),
        training=replace(
            base.training,
            batch_size=_BATCH_SIZE,
            accumulate=1,
            log_every=_EVERY[request.scale],
            max_steps=_MOST_STEPS[request.scale],
        ),
    )
    return with_changes(request, config)


def plan(request: Request) -> list[Row]:
    """One training."""
    config = row_config(request)
    run = partial(_result, config, request)
    return [Row(key=KEY, settings={"config": to_dict(config)}, run=run)]


def _result(config: Config, request: Request) -> dict[str, Any]:
    from contextlib import closing

    from rankdet import build
    from rankdet.experiments.loss_times import Keeping, seconds_of
    from rankdet.experiments.paper_loop import delta_of, nontrivial_negatives, paper_ap_loss
    from rankdet.experiments.short_training import steps_of
    from rankdet.experiments.single_step import single_step
    from rankdet.workflows.parts import prepare

    parts = prepare(config, request.device)
    loss, delta = build.class_loss(config.loss), delta_of(config.loss)
    criterion = Keeping(parts.criterion, 1)
    points = []
    with closing(parts.loader):
        batch = next(iter(parts.loader.epoch(0))).to(parts.device)
        single_step(parts, batch, parts.criterion)  # what is done once is no step's time
        for position, report in steps_of(
            parts.detector, criterion, parts, name="AP-loss", config=config
        ):
            if not report.is_measured:
                continue
            snapshot = criterion.snapshots[-1]
            iteration, ours = sum(report.seconds.values()), seconds_of(loss, snapshot)
            loop = seconds_of(partial(paper_ap_loss, delta=delta), snapshot, rounds=1)
            points.append(
                {
                    "step": position.step,
                    "loss_seconds": ours,
                    "loop_seconds": loop,
                    "iteration_seconds": iteration,
                    "iteration_with_loop_seconds": iteration - ours + loop,
                    "positives": int((snapshot.labels >= 0).sum()),
                    "nontrivial_negatives": int(
                        nontrivial_negatives(snapshot.logits, snapshot.labels, delta).sum()
                    ),
                    "ap_loss": report.losses["class"],
                }
            )
    return {"points": points}


def shown_points(points: Sequence[Record]) -> list[Record]:
    """Those at the beginning, at the end and at some parts between, each once.

    >>> [point["step"] for point in shown_points([{"step": step} for step in range(1, 101)])]
    [1, 6, 11, 26, 51, 100]
    """
    places = sorted({round(part * (len(points) - 1)) for part in _SHOWN})
    return [points[place] for place in places]


def markdown(record: Record) -> str:
    """Milliseconds at some of the steps."""
    result = results_of(record).get(KEY)
    heading = ["iteration", "our loss, ms", "paper's loop, ms", "loop / ours"]
    heading += ["whole iteration, ms", "with the loop, ms", "positives", "non-trivial negatives"]
    rows = []
    for point in shown_points(result["points"]) if result else []:
        ours, loop = point["loss_seconds"], point["loop_seconds"]
        rows.append(
            [
                f"{point['step']:,}",
                f"{1e3 * ours:,.2f}",
                f"{1e3 * loop:,.2f}",
                f"{loop / ours:,.1f}",
                f"{1e3 * point['iteration_seconds']:,.1f}",
                f"{1e3 * point['iteration_with_loop_seconds']:,.1f}",
                f"{point['positives']:,}",
                f"{point['nontrivial_negatives']:,}",
            ]
        )
    body = [markdown_table(heading, rows)] if result else [missing_text(record, KEY)]
    return page(record, SUMMARY, body, notes())


def figure(record: Record, path: Path) -> None:
    """Left: times over the training. Right: the negatives that are not trivial."""
    result = results_of(record).get(KEY)
    points = result["points"] if result else []
    steps = [point["step"] for point in points]
    picture = new_figure(10, 4)
    left, right = picture.subplots(1, 2)
    for name, colour, style, words in (
        ("loss_seconds", BLUE, "-", "our AP-loss"),
        ("iteration_seconds", BLUE, "--", "iteration with it"),
        ("loop_seconds", VERMILION, "-", "the paper's loop"),
        ("iteration_with_loop_seconds", VERMILION, "--", "iteration with it"),
    ):
        values = [1e3 * point[name] for point in points]
        left.plot(steps, values, color=colour, linestyle=style, label=words)
    right.plot(steps, [point["nontrivial_negatives"] for point in points], color=GREY)
    if points:
        left.set_yscale("log")
        left.legend(frameon=False, fontsize=8)
    begin_at_zero(right)
    for axis in (left.xaxis, right.xaxis, right.yaxis):
        count_in_wholes(axis)
    label_axes(left, "Time", "iteration", "milliseconds")
    label_axes(right, "Negatives within delta of the lowest positive", "iteration", "negatives")
    save_figure(picture, path)


SUMMARY = "time of the AP-loss and of the whole iteration over a training, ours and the paper's"
EXPERIMENT = Experiment(
    name="time-curve",
    summary=SUMMARY,
    labels=("fig_time_cost_curve",),
    plan=plan,
    markdown=markdown,
    figure=figure,
    has_trainings=False,
)
