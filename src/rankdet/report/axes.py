"""What several plots share: how lines look, ranges, ticks and descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rankdet.report.reading import ReportRun
from rankdet.report.svg import LINE_STYLES, MARKERS, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def line_look(index: int) -> tuple[str, Any, str]:
    """Colour, line style and marker of the run or class at a place; eight are all different.

    >>> line_look(0)[0] == line_look(8)[0], line_look(0)[1] == line_look(8)[1]
    (True, False)
    """
    turn = index + index // len(SERIES)
    look = SERIES[index % len(SERIES)], LINE_STYLES[turn % len(LINE_STYLES)]
    return *look, MARKERS[turn % len(MARKERS)]


def percent_axis(axes: Axes, which: str) -> None:
    """Let the x or y axis go from 0 to 100, and a little beyond so that no line is cut."""
    axes.set(**{f"{which}lim": (0, 102), f"{which}ticks": range(0, 101, 20)})


def plain_numbers(axes: Axes, which: str) -> None:
    """Write the ticks of the x or y axis as plain numbers, without powers and offsets."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axis.set_minor_formatter(lambda *_: "")


def description(title: str, runs: Sequence[ReportRun]) -> str:
    """What a screen reader says of a plot."""
    return f"{title}: {', '.join(run.label for run in runs)}"
