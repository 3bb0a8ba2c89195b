"""Plots of a training's rows: losses, rates, validation, and where the time goes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rankdet.report.axes import description, line_look, percent_axis, plain_numbers
from rankdet.report.reading import ReportRun
from rankdet.report.svg import SERIES, Drawing

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

Values = npt.NDArray[np.float64]

PARTS = ("data", "forward", "loss", "backward", "step")  # of a step's time
_HEIGHT = 270
_MOST_POINTS = 400  # of a line: one per pixel
_FEWEST_FOR_MEAN = 20  # rows; a shorter curve is shown as it is
_MEAN_SHARE = 25  # the running mean covers this part of all rows
_LARGEST = 1e30  # what is beyond has no place on an axis
_DECADES = 30  # largest value over the typical one from which an axis is logarithmic


@dataclass(frozen=True)
class _Curve:
    """What a plot of training_curves shows; kind is that of the rows."""

    title: str
    kind: str
    field: str
    axis: str
    is_percent: bool = False
    is_noisy: bool = False
    may_be_log: bool = False


_CURVES = (
    _Curve("Class loss", "step", "class_loss", "class loss", is_noisy=True, may_be_log=True),
    _Curve("Box loss", "step", "box_loss", "box loss", is_noisy=True, may_be_log=True),
    _Curve("Batch AP", "step", "batch_ap", "AP of the batch in %", True, is_noisy=True),
    _Curve("Validation AP", "evaluation", "AP", "AP in %", is_percent=True),
    _Curve("Validation AP50", "evaluation", "AP50", "AP50 in %", is_percent=True),
    _Curve("Learning rate", "step", "learning_rate", "learning rate"),
    _Curve(
        *("Gradient norm", "step", "gradient_norm", "norm of the gradient"),
        is_noisy=True,
        may_be_log=True,
    ),
    _Curve("Images per second", "step", "images_per_second", "images per second", is_noisy=True),
)


def training_curves(runs: Sequence[ReportRun]) -> dict[str, str | None]:
    """A plot over the steps by its title, one line per run; None where no run has the number."""
    return {curve.title: _curve_plot(curve, runs) for curve in _CURVES}


def _curve_plot(curve: _Curve, runs: Sequence[ReportRun]) -> str | None:
    lines = [number_series(run.rows, curve.kind, curve.field) for run in runs]
    drawn = np.concatenate([values for _, values in lines]) if lines else np.empty(0)
    drawn = drawn[np.isfinite(drawn)]
    if not drawn.size or (curve.kind == "evaluation" and not _has_line(lines)):
        return None
    window = _window(max(len(steps) for steps, _ in lines)) if curve.is_noisy else 1
    with Drawing(_HEIGHT, description(curve.title, runs)) as drawing:
        note = f" (bold: mean of {window} values)" if window > 1 else ""
        axes = drawing.axes(f"training step{note}", curve.axis)
        has_markers = curve.kind == "evaluation"
        present = [index for index, (_, values) in enumerate(lines) if np.isfinite(values).any()]
        handles = [_draw_line(axes, index, *lines[index], window, has_markers) for index in present]
        _set_value_range(axes, curve, drawn)
        _set_step_range(axes, runs)
        if len(runs) > 1:
            drawing.legend(handles, [runs[index].label for index in present])
    return drawing.svg


def _has_line(lines: Sequence[tuple[Values, Values]]) -> bool:
    """Whether a run was evaluated more than once: a lone last value is among the metrics."""
    return any(np.isfinite(values).sum() > 1 for _, values in lines)


def _draw_line(
    axes: Axes, index: int, steps: Values, values: Values, window: int, has_markers: bool
) -> Artist:
    """Draw the line of a run, faint with its running mean on top if it has one."""
    colour, style, marker = line_look(index)
    x, y = envelope(steps, values)
    if window > 1:
        axes.plot(x, y, color=colour, alpha=0.3, linewidth=0.8)
        places = evenly_chosen(len(steps))
        x, y = steps[places], running_mean(values, window, places)
    (line,) = axes.plot(x, y, color=colour, linestyle=style, linewidth=1.8)
    is_marked = np.isfinite(y) if has_markers and len(y) <= 40 else is_alone(y)
    if is_marked.any():
        line.set_marker(marker)
        line.set_markersize(5)
        line.set_markevery(np.flatnonzero(is_marked).tolist())
    return line


def number_series(
    rows: Iterable[Mapping[str, Any]], kind: str, field: str
) -> tuple[Values, Values]:
    """Steps, ascending, and the values there of one field; what is not a number is NaN.

    >>> rows = [{"kind": "step", "step": 2, "x": None}, {"kind": "step", "step": 1, "x": 5}]
    >>> number_series(rows, "step", "x")
    (array([1., 2.]), array([ 5., nan]))
    """
    pairs = [
        (_number(row.get("step")), _number(row.get(field)))
        for row in rows
        if row.get("kind") == kind
    ]
    table = np.array(
        sorted((pair for pair in pairs if math.isfinite(pair[0])), key=lambda pair: pair[0])
    )
    table = table.reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _number(value: object) -> float:
    """The value as a float, or NaN where it is no number or too large to be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LARGEST:
        return math.nan
    return float(value)


def running_mean(values: Values, window: int, places: npt.NDArray[np.int64]) -> Values:
    """At each place the mean of the `window` (odd) values around it that are there; gaps stay.

    >>> running_mean(np.array([1.0, 2.0, 6.0, np.nan, 8.0]), 3, np.arange(5))
    array([1.5, 3. , 4. , nan, 8. ])
    """
    means = np.full(len(places), np.nan)
    for index, place in enumerate(places):
        if np.isfinite(values[place]):
            means[index] = np.nanmean(values[max(0, place - window // 2) : place + window // 2 + 1])
    return means


def envelope(x: Values, y: Values) -> tuple[Values, Values]:
    """At most about 400 of the points: of neighbours, the lowest and the highest."""
    if len(x) <= _MOST_POINTS:
        return x, y
    kept = []
    for part in np.array_split(np.arange(len(x)), _MOST_POINTS // 2):
        finite = part[np.isfinite(y[part])]
        kept += (
            sorted({finite[np.argmin(y[finite])], finite[np.argmax(y[finite])]})
            if finite.size
            else [part[0]]
        )
    return x[kept], y[kept]


def evenly_chosen(num_points: int) -> npt.NDArray[np.int64]:
    """The places of at most 400 points, with the first and the last."""
    chosen = np.linspace(0, num_points - 1, min(num_points, _MOST_POINTS))
    return chosen.astype(np.int64)


def is_alone(values: Values) -> npt.NDArray[np.bool_]:
    """Which values have no neighbour that a line could join them to.

    >>> is_alone(np.array([1.0, np.nan, 2.0, 3.0, np.nan]))
    array([ True, False, False, False, False])
    """
    is_there = np.isfinite(values)
    before, after = np.append(False, is_there[:-1]), np.append(is_there[1:], False)
    alone: npt.NDArray[np.bool_] = is_there & ~before[: len(values)] & ~after[: len(values)]
    return alone


def _window(num_rows: int) -> int:
    """The odd number of rows that the running mean covers; 1 where there are too few."""
    return 1 if num_rows < _FEWEST_FOR_MEAN else max(5, num_rows // _MEAN_SHARE // 2 * 2 + 1)


def _set_value_range(axes: Axes, curve: _Curve, values: Values) -> None:
    """Percent from 0 to 100, all else from 0, or on a logarithmic scale if it spans decades."""
    lowest, highest = float(values.min()), float(values.max())
    if curve.is_percent:
        percent_axis(axes, "y")
    elif curve.may_be_log and lowest > 0 and highest > _DECADES * float(np.median(values)):
        axes.set_yscale("log")
        plain_numbers(axes, "y")
    else:
        axes.set_ylim(min(0.0, 1.05 * lowest), 1.05 * highest if highest > 0 else 1.0)
        axes.locator_params(axis="y", nbins=6)
        plain_numbers(axes, "y")


def _set_step_range(axes: Axes, runs: Sequence[ReportRun]) -> None:
    """From 0 to the last step of any run, in every plot; whole steps are labelled, and few."""
    from matplotlib.ticker import MaxNLocator

    last = max((_number(row.get("step")) for run in runs for row in run.rows), default=1.0)
    axes.set_xlim(0, 1.02 * last if last > 0 else 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def iteration_time(runs: Sequence[ReportRun]) -> str | None:
    """Bars of the mean time per step, one per run, made of the parts of a step.

    The first row is left out where there are others: it holds what happens only once.
    """
    times = [(run, mean_parts(run.rows)) for run in runs]
    shown = [(run, parts) for run, parts in times if parts is not None]
    if not shown:
        return None
    totals = [sum(parts) for _, parts in shown]
    with Drawing(70 + 44 * len(shown), description("Time per step", runs)) as drawing:
        axes = drawing.axes("time per step in ms", "")
        for row, (_, parts) in enumerate(shown):
            _draw_parts(axes, row, parts, max(totals))
        axes.set_yticks(range(len(shown)), [drawing.name(run.label, 20) for run, _ in shown])
        axes.set_ylim(len(shown) - 0.4, -0.75)
        axes.set_xlim(0, 1.22 * max(totals) or 1.0)
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        plain_numbers(axes, "x")
        handles, labels = axes.get_legend_handles_labels()
        drawing.legend(handles, labels)
    return drawing.svg


def _draw_parts(axes: Axes, row: int, parts: Sequence[float], longest: float) -> None:
    """Draw one bar with its total behind it and, where there is room, its parts' times above."""
    start = 0.0
    for name, colour, milliseconds in zip(PARTS, SERIES, parts, strict=False):
        label = name if row == 0 else None
        axes.barh(row, milliseconds, left=start, height=0.5, color=colour, label=label)
        if milliseconds > 0.1 * longest:
            middle = start + milliseconds / 2
            text = milliseconds_text(milliseconds)
            axes.text(middle, row - 0.29, text, ha="center", va="bottom", fontsize=10)
        start += milliseconds
    axes.text(start + 0.015 * longest, row, f"{milliseconds_text(start)} ms", va="center")


def mean_parts(rows: Iterable[Mapping[str, Any]]) -> list[float] | None:
    """The mean milliseconds of each part of a step; None if no row has them."""
    measured = [
        [_number(row["seconds"].get(part)) for part in PARTS]
        for row in rows
        if row.get("kind") == "step" and isinstance(row.get("seconds"), Mapping)
    ]
    table = np.array(measured[1:] or measured).reshape(-1, len(PARTS))
    if not np.isfinite(table).any():
        return None
    counts = np.isfinite(table).sum(axis=0)
    return [float(value) for value in 1000 * np.nansum(table, axis=0) / np.maximum(counts, 1)]


def milliseconds_text(value: float) -> str:
    """
    >>> milliseconds_text(0.0123), milliseconds_text(7.25), milliseconds_text(1234.5)
    ('0.012', '7.2', '1,234')
    """
    return f"{value:.2g}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
