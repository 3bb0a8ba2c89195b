"""Convergence of three optimisations of the AP-loss: the paper's figure fig-convergence_curve.

The detector is trained without its box loss; each step's AP-loss is that of its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.experiments.arms import trained
from rankdet.experiments.experiment import Experiment, Request, Row
from rankdet.experiments.figures import count_in_wholes, label_axes, new_figure, save_figure
from rankdet.experiments.optimisations import (
    MEASURE,
    OPTIMISATIONS,
    smoothed,
    study_config,
    summary_of,
)
from rankdet.experiments.paper import paper
from rankdet.experiments.record import Record, results_of
from rankdet.experiments.scales import with_changes
from rankdet.experiments.tables import markdown_table, missing_text, number, page

_WINDOW = 0.02  # of all steps, over which the curves of the figure are smoothed
_NOTES = (
    MEASURE,
    "Box regression is off. Initial and final values are means over the first and the last tenth "
    "of the steps; the training loss is what each optimisation itself lowers.",
)


def notes() -> list[str]:
    """What a reader of the numbers has to know, and what the paper says."""
    said = paper()["statements"]["fig-convergence_curve"]
    return [
        *_NOTES,
        "Paper: the approximate gradient does not even converge; the structured hinge loss "
        f"converges slowly and stabilizes near {said['hinge_final_ap_loss']}, significantly worse "
        "than the error-driven update.",
    ]


def plan(request: Request) -> list[Row]:
    """A training for each optimisation."""
    rows = []
    for name in OPTIMISATIONS:
        config = with_changes(request, study_config(request, name))
        rows.append(
            Row(
                key=name,
                settings={"config": to_dict(config)},
                run=partial(_result, config, request),
                trainings=(config,),
            )
        )
    return rows


def _result(config: Config, request: Request) -> dict[str, Any]:
    from rankdet.engine.records import read_metrics
    from rankdet.workflows.run import METRICS_FILE

    folder = trained(config, request)
    return {"run": folder.name, **curve_of(read_metrics(folder / METRICS_FILE))}


def curve_of(rows: Sequence[Record]) -> dict[str, Any]:
    """The values of every step from the rows of a metrics file, and where they begin and end.

    batch_ap in percent, None where a batch has no objects.

    >>> first = {"kind": "step", "step": 1, "batch_ap": 50.0, "class_loss": 2.0}
    >>> curve = curve_of([first, {**first, "step": 2, "batch_ap": 100.0}])
    >>> curve["ap_losses"], curve["final_ap_loss"]
    ([0.5, 0.0], 0.0)
    """
    steps = [row for row in rows if row["kind"] == "step"]
    ap_losses = [
        None if row["batch_ap"] is None else round(1 - row["batch_ap"] / 100, 6) for row in steps
    ]
    return {
        **summary_of(ap_losses),
        "steps": [row["step"] for row in steps],
        "ap_losses": ap_losses,
        "class_losses": [row["class_loss"] for row in steps],
    }


def markdown(record: Record) -> str:
    """Initial and final AP-loss of each optimisation."""
    results = results_of(record)
    rows = []
    for name, optimisation in OPTIMISATIONS.items():
        result = results.get(name)
        if result is None:
            rows.append([optimisation.words, missing_text(record, name), "", "", ""])
            continue
        rows.append(
            [
                optimisation.words,
                number(result["initial_ap_loss"], 3),
                number(result["final_ap_loss"], 3),
                "yes" if result["has_converged"] else "no",
                number(result["class_losses"][-1], 3),
            ]
        )
    heading = ["optimisation", "initial AP-loss", "final AP-loss", "fell by 5 %", "training loss"]
    return page(record, SUMMARY, [markdown_table(heading, rows)], notes())


def figure(record: Record, path: Path) -> None:
    """Left: the AP-loss of all. Right: what each minimises."""
    picture = new_figure(10, 4)
    left, right = picture.subplots(1, 2)
    for name, result in results_of(record).items():
        optimisation = OPTIMISATIONS[name]
        window = max(1, round(_WINDOW * len(result["steps"])))
        line = {"color": optimisation.colour, "label": optimisation.words}
        for axes, values in ((left, result["ap_losses"]), (right, result["class_losses"])):
            known = [float("nan") if value is None else value for value in values]
            axes.plot(result["steps"], known, color=optimisation.colour, alpha=0.15, linewidth=0.6)
            means = [float("nan") if mean is None else mean for mean in smoothed(values, window)]
            axes.plot(result["steps"], means, **line)
    left.set_ylim(0, 1.02)
    for axes in (left, right):
        count_in_wholes(axes.xaxis)
    label_axes(left, "AP-loss of the batch (exact)", "iteration", "1 - AP")
    label_axes(right, "What is minimised", "iteration", "training loss")
    if left.lines:
        left.legend(frameon=False, fontsize=8)
    save_figure(picture, path)


SUMMARY = "AP-loss against iteration for three ways to optimise it, without box regression"
EXPERIMENT = Experiment(
    name="convergence",
    summary=SUMMARY,
    labels=("fig-convergence_curve",),
    plan=plan,
    markdown=markdown,
    figure=figure,
)
