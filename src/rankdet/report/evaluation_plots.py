"""Plots of an evaluation: curves, bars per class, mistakes, and scores against IoU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rankdet.report import wording
from rankdet.report.axes import description, line_look, percent_axis, plain_numbers
from rankdet.report.contents import ERROR_KINDS
from rankdet.report.reading import ReportRun
from rankdet.report.svg import INK, SERIES, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize

Values = npt.NDArray[np.float64]

RECALLS = np.linspace(0.0, 100.0, 101)  # in percent
_DARK, _LIGHT = "#010101", "#ffffff"  # on shades, which are the same on every paper
_MOST_NAMED_CURVES = 8
_MOST_CURVES = 100  # faint ones: of more classes some are shown, evenly chosen; the mean is of all
_MOST_BARS = 30  # classes; of more, the best and the worst are shown
MOST_VALUES = 4  # runs up to which the bars of classes have their numbers; more are too dense
_MOST_COUNTS = 12  # classes up to which the confusion matrix shows its numbers
_MOST_NAMES = 18  # classes that the sides of the confusion matrix name


def interpolated_precision(curve: Mapping[str, Sequence[float]]) -> Values:
    """The highest precision at each of 101 recalls or above it, all in percent; 0 beyond the last.

    >>> values = interpolated_precision({"recall": [50.0, 50.0, 100.0], "precision": [100, 50, 66]})
    >>> values[[0, 50, 51, 100]]
    array([100., 100.,  66.,  66.])
    """
    recall, precision = (np.asarray(curve[name], float) for name in ("recall", "precision"))
    highest = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    return highest[np.searchsorted(recall, RECALLS)]


def mean_precision(run: ReportRun) -> Values | None:
    """The mean over the classes that have objects; None if none has."""
    curves = [interpolated_precision(curve) for curve in run.results["curves"] if curve]
    return np.mean(curves, axis=0) if curves else None


def precision_recall(run: ReportRun) -> str | None:
    """A line of precision over recall per class, and their mean; names for up to 8 classes."""
    mean = mean_precision(run)
    if mean is None:
        return None
    pairs = zip(run.results["classes"], run.results["curves"], strict=True)
    named = [(row["name"], interpolated_precision(curve)) for row, curve in pairs if curve]
    has_names = len(named) <= _MOST_NAMED_CURVES
    num_classes = len(named)
    named = named[:: -(-num_classes // _MOST_CURVES)]
    with Drawing(300, f"Precision over recall of each class: {run.label}") as drawing:
        axes = _precision_axes(drawing)
        handles, labels = [], []
        for index, (name, values) in enumerate(named):
            style: dict[str, Any] = {"color": INK, "alpha": 0.25, "linewidth": 0.8}
            if has_names:
                style = _line_style(index) | {"linewidth": 1.5}
            handles += axes.plot(*_corners(*_reached(values)), **style)
            labels.append(name)
        if not has_names:
            handles, labels = handles[:1], ["one class"]
        if num_classes > 1:
            colour = INK if has_names else SERIES[0]
            handles += axes.plot(*_corners(RECALLS, mean), color=colour, linewidth=2.6)
            labels.append(f"mean of {num_classes} classes")
        drawing.legend(handles, labels, longest=24)
    return drawing.svg


def precision_recall_mean(runs: Sequence[ReportRun]) -> str | None:
    """A line per run: the mean over its classes of the precision over recall."""
    means = [mean_precision(run) for run in runs]
    if all(mean is None for mean in means):
        return None
    with Drawing(300, description("Precision over recall, mean of the classes", runs)) as drawing:
        axes = _precision_axes(drawing)
        lines = {
            runs[index].label: axes.plot(*_corners(RECALLS, mean), **_line_style(index))[0]
            for index, mean in enumerate(means)
            if mean is not None
        }
        if len(runs) > 1:
            drawing.legend(list(lines.values()), list(lines))
    return drawing.svg


def _precision_axes(drawing: Drawing) -> Axes:
    axes = drawing.axes("recall in %", "interpolated precision in %")
    percent_axis(axes, "x")
    percent_axis(axes, "y")
    return axes


def _line_style(index: int) -> dict[str, Any]:
    colour, style, _ = line_look(index)
    return {"color": colour, "linestyle": style, "linewidth": 1.8}


def _reached(values: Values) -> tuple[Values, Values]:
    """Recalls and precisions up to the highest recall that detections reach; at least one."""
    num_reached = max(1, int(np.count_nonzero(values)))
    return RECALLS[:num_reached], values[:num_reached]


def _corners(x: Values, y: Values) -> tuple[Values, Values]:
    """The line without points in the middle of a level stretch."""
    is_level = (y[1:-1] == y[:-2]) & (y[1:-1] == y[2:])
    kept = np.concatenate([[True], ~is_level, [True]])[: len(x)]
    return x[kept], y[kept]


def class_bars(runs: Sequence[ReportRun]) -> str | None:
    """AP50 of each class as bars, grouped by run and sorted by the first one's.

    Of more than 30 classes, the best 15 and the worst 15 are shown. With up to 4 runs, the number
    stands behind each bar, and the threshold of the class at the right.
    """
    tables = [{row["name"]: row for row in run.results["classes"]} for run in runs]
    every_name = dict.fromkeys(name for table in tables for name in table)
    names = sorted(every_name, key=lambda name: -_ap50(tables[0].get(name)))
    if all(_ap50(table.get(name)) < 0 for table in tables for name in names):
        return None
    shown = _ends(names)
    row_height = max(16, 6 + len(runs) * (13 if len(runs) <= MOST_VALUES else 7))
    with Drawing(50 + row_height * len(shown), description("AP50 per class", runs)) as drawing:
        axes = drawing.axes("AP50 in %", "")
        handles = [
            _draw_class_bars(axes, shown, table, index, len(runs))
            for index, table in enumerate(tables)
        ]
        between = f"({len(names) - _MOST_BARS} between)"
        labels = [drawing.name(name, 20) if name else between for name in shown]
        _set_bar_rows(axes, labels)
        percent_axis(axes, "x")
        if len(runs) <= MOST_VALUES:
            _write_thresholds(axes, shown, tables)
        if len(runs) > 1:
            drawing.legend(handles, [run.label for run in runs])
    return drawing.svg


def _ends(names: Sequence[str]) -> list[str | None]:
    """All names, or of too many the first and the last, with None where some are left out."""
    half = _MOST_BARS // 2
    return list(names) if len(names) <= _MOST_BARS else [*names[:half], None, *names[-half:]]


def _ap50(row: Mapping[str, Any] | None) -> float:
    """AP50 in percent; -1 where there is none."""
    return -1.0 if row is None or row["ap50"] is None else float(row["ap50"])


def _draw_class_bars(
    axes: Axes, names: Sequence[str | None], table: Mapping[str, Any], index: int, num_runs: int
) -> Any:
    """Draw the bars of one run, each with its number; gives the legend's handle."""
    rows = _bar_places(len(names), index, num_runs)
    values = [_ap50(table.get(name)) if name is not None else -1.0 for name in names]
    bars = axes.barh(
        rows, np.maximum(values, 0), height=0.94 * 0.8 / num_runs, color=SERIES[index % len(SERIES)]
    )
    for row, name, value in zip(rows, names, values, strict=True):
        if name is not None and num_runs <= MOST_VALUES:
            text = f"{value:.1f}" if value >= 0 else "n/a"
            axes.text(max(value, 0) + 1, row, text, va="center", fontsize=10)
    return bars


def _bar_places(num_rows: int, index: int, num_runs: int) -> Values:
    """Where the middles of a run's bars are, in rows that the bars of all runs fill to 0.8."""
    return np.arange(num_rows, dtype=np.float64) - 0.4 + 0.8 / num_runs * (index + 0.5)


def _write_thresholds(
    axes: Axes, names: Sequence[str | None], tables: Sequence[Mapping[str, Any]]
) -> None:
    """Write the threshold of each bar in a column at the right.

    Its distance is in points: the layout, which changes the width of the axes, then leaves it room.
    """
    place: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontsize": 10}
    axes.annotate("threshold", (1, 1), (58, 2), xycoords="axes fraction", va="bottom", **place)
    rows = axes.get_yaxis_transform()
    for index, table in enumerate(tables):
        middles = _bar_places(len(names), index, len(tables))
        for middle, name in zip(middles, names, strict=True):
            row = None if name is None else table.get(name)
            if row is not None and row["threshold"] is not None:
                text = wording.threshold(row["threshold"])
                axes.annotate(text, (1, middle), (58, 0), xycoords=rows, va="center", **place)


def _set_bar_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Name the rows of horizontal bars from the top down."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)


def error_bars(runs: Sequence[ReportRun]) -> str | None:
    """How many detections are right, wrong in which way, and how many objects were missed.

    Beside each bar: the number, and its share of all detections (missed: of all objects).
    """
    shown = {index: run for index, run in enumerate(runs) if run.results.get("errors")}
    if not shown:
        return None
    height = 0.8 / len(shown)
    longest = (
        max(run.results["errors"][kind] for run in shown.values() for kind in ERROR_KINDS) or 1
    )
    figure_height = 60 + len(ERROR_KINDS) * max(24, 8 + 13 * len(shown))
    with Drawing(figure_height, description("Detections by outcome", runs)) as drawing:
        axes = drawing.axes("number of detections (missed: of objects)", "")
        handles: list[Any] = []
        for index, run in shown.items():
            errors = run.results["errors"]
            rows = np.arange(len(ERROR_KINDS)) - 0.4 + height * (len(handles) + 0.5)
            counts = [errors[kind] for kind in ERROR_KINDS]
            colour = SERIES[index % len(SERIES)]
            handles.append(axes.barh(rows, counts, height=0.9 * height, color=colour))
            for row, kind, count in zip(rows, ERROR_KINDS, counts, strict=True):
                whole = errors["num_objects" if kind == "missed" else "num_detections"]
                share = f" ({_whole_percent(100 * count / whole)} %)" if whole else ""
                text = f"{count:,}{share}"
                axes.text(count + 0.012 * longest, row, text, va="center", fontsize=10)
        _set_bar_rows(axes, ERROR_KINDS)
        axes.set_xlim(0, 1.32 * longest)
        axes.locator_params(axis="x", nbins=5, integer=True)
        plain_numbers(axes, "x")
        if len(runs) > 1:
            drawing.legend(handles, [run.label for run in shown.values()])
    return drawing.svg


def _whole_percent(value: float) -> str:
    """Without digits behind the point, and never 0 for what is there."""
    return "<1" if 0 < value < 0.5 else f"{value:.0f}"


def highest_count(runs: Sequence[ReportRun]) -> float:
    """The most anchors in a cell of any run: with it a shade means the same in all plots."""
    cells = [cell for run in runs for cell in (run.results.get("anchors") or {}).get("cells", [])]
    return max((float(count) for _, _, count in cells), default=0.0)


def score_against_iou(run: ReportRun, highest: float = 0.0) -> str | None:
    """How many anchors have which IoU with their object and which score: the paper's figure.

    highest: the end of the scale, if the run itself has no more in a cell.
    """
    anchors = run.results.get("anchors")
    if not anchors or not anchors["cells"]:
        return None
    counts = np.zeros((anchors["bins"], anchors["bins"]))
    for iou, score, count in anchors["cells"]:
        counts[score, iou] += count
    with Drawing(330, f"Score against IoU of the anchors: {run.label}") as drawing:
        from matplotlib.colors import LogNorm

        scale = LogNorm(1, max(10.0, highest, counts.max()))
        axes = drawing.axes(
            "IoU of the anchor with its matched object", "score of the object's class"
        )
        _heat_map(axes, counts, scale, extent=(0, 1, 0, 1), origin="lower")
        axes.set(xlim=(0, 1), ylim=(0, 1))
        _colour_bar(drawing, axes, scale, "number of anchors", "right")
    return drawing.svg


def confusion(run: ReportRun) -> str | None:
    """What the objects of each class were detected as, shaded by the share of the row."""
    content = run.results.get("confusion")
    if not content or not np.any(content["counts"]):
        return None
    counts = np.array(content["counts"], float)
    totals = counts.sum(axis=1, keepdims=True)
    shares = 100 * counts / np.maximum(totals, 1)
    num_classes = len(counts) - 1
    with Drawing(430, f"Confusion of classes: {run.label}") as drawing:
        from matplotlib.colors import Normalize

        scale = Normalize(0, 100)
        axes = drawing.axes("detected class", "true class")
        _heat_map(axes, shares, scale)
        names = [row["name"] for row in run.results["classes"]]
        _name_sides(drawing, axes, names)
        axes.grid(False)
        if num_classes <= _MOST_COUNTS:
            _write_counts(axes, counts, shares, scale)
        _colour_bar(drawing, axes, scale, "share of the row in %", "top")
    return drawing.svg


def _name_sides(drawing: Drawing, axes: Axes, names: Sequence[str]) -> None:
    """Name rows and columns: all, or of many evenly chosen ones, and always the ends."""
    stride = -(-len(names) // _MOST_NAMES)
    chosen = list(range(0, len(names), stride))
    if stride > 1 and len(names) - chosen[-1] < stride:
        chosen.pop()  # too near to the end's own name
    places = [*chosen, len(names)]
    shown = [drawing.name(names[place], 14) for place in chosen]
    axes.set_yticks(places, [*shown, "background"])
    axes.set_xticks(places, [*shown, "missed"], rotation=90)


def _write_counts(axes: Axes, counts: Values, shares: Values, scale: Normalize) -> None:
    """Write the number into each cell that has one, dark on light shades and light on dark."""
    colours = _shades()
    for (row, column), count in np.ndenumerate(counts):
        if count:
            red, green, blue, _ = colours(scale(shares[row, column]))
            is_light = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 > 0.18
            colour = _DARK if is_light else _LIGHT
            style: dict[str, Any] = {
                "ha": "center",
                "va": "center",
                "fontsize": 10,
                "color": colour,
            }
            axes.text(column, row, f"{count:.0f}", **style)


def _heat_map(axes: Axes, values: Values, scale: Normalize, **place: Any) -> None:
    """Draw the values as a small picture, one pixel each; zeros are left out."""
    shown = np.ma.masked_equal(values, 0)
    axes.imshow(
        shown, cmap=_shades(), norm=scale, interpolation="none", aspect="auto", zorder=1, **place
    )


def _colour_bar(drawing: Drawing, axes: Axes, scale: Normalize, label: str, location: str) -> None:
    """Say beside the axes, or on top of them, which shade stands for what."""
    from matplotlib.cm import ScalarMappable

    bar = drawing.figure.colorbar(
        ScalarMappable(scale, _shades()), ax=axes, label=label, location=location
    )
    bar.outline.set_visible(False)
    plain_numbers(bar.ax, "x" if location == "top" else "y")


def _shades() -> Colormap:
    """Viridis without its ends, which white and black paper would swallow."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps["viridis"](np.linspace(0.2, 0.88, 256)))
