"""The course of trainings over their epochs: when an aim is reached, and who is ahead meanwhile.

Works on the results of trainings by the names of their losses, several for each: one of each seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rankdet.experiments.tables import NO_NUMBER, difference_text, markdown_table

AIMS = (50, 60)  # AP50 whose epochs are told
_COMPARED = ("AP", "AP50")

Result = Mapping[str, Any]


def reached(result: Result, aim: float) -> float | None:
    """Epochs until AP50 is at least `aim` in an evaluation; None if it never is."""
    for point in result["curve"]:
        if (point.get("AP50") or 0.0) >= aim:
            epoch: float = point["epoch"]
            return epoch
    return None


def epochs_until(results: Sequence[Result], aim: float) -> list[float]:
    """Epochs until AP50 is at least `aim`, of the results that reach it."""
    found = [reached(result, aim) for result in results]
    return [epochs for epochs in found if epochs is not None]


def values_by_epoch(results: Sequence[Result], metric: str) -> dict[float, list[float]]:
    """What the evaluations on the way have of a metric, by epoch; those without it are passed."""
    found: dict[float, list[float]] = {}
    for result in results:
        for point in result["curve"]:
            if point.get(metric) is not None:
                found.setdefault(point["epoch"], []).append(point[metric])
    return dict(sorted(found.items()))


def epochs_table(results: Mapping[str, Sequence[Result]]) -> str:
    """For each loss, the mean epochs until the aims, over the seeds that reach them."""
    rows = []
    for name, of_loss in results.items():
        cells = [name]
        for aim in AIMS:
            epochs = epochs_until(of_loss, aim)
            some = f" ({len(epochs)} of {len(of_loss)})" if 0 < len(epochs) < len(of_loss) else ""
            cells.append(f"{fmean(epochs):.1f}{some}" if epochs else NO_NUMBER)
        rows.append(cells)
    return markdown_table(["training loss", *(f"epochs until AP50 {aim}" for aim in AIMS)], rows)


def lead_table(results: Mapping[str, Sequence[Result]], ours: str) -> str | None:
    """By how much a loss is ahead of each other one after each evaluation; None without a course.

    Means over the seeds that have the evaluation, with half the 95 % interval of the difference
    where there are several.
    """
    others = [name for name, of_loss in results.items() if name != ours and of_loss]
    columns = [(other, metric) for other in others for metric in _COMPARED]
    mine = {metric: values_by_epoch(results[ours], metric) for metric in _COMPARED}
    theirs = {(other, metric): values_by_epoch(results[other], metric) for other, metric in columns}
    rows = []
    for epoch in mine[_COMPARED[0]]:
        cells = [
            difference_text(mine[metric].get(epoch, []), theirs[other, metric].get(epoch, []), 1)
            for other, metric in columns
        ]
        if set(cells) - {NO_NUMBER}:
            rows.append([f"{epoch:g}", *cells])
    if len(rows) < 2:
        return None
    return markdown_table(["epochs", *(f"{other}: {metric}" for other, metric in columns)], rows)
