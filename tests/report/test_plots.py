"""The training's plots show each number at its place, with axes that say what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from rankdet.report import plots
from rankdet.report.reading import ReportRun
from rankdet.report.training_plots import envelope, evenly_chosen, number_series, running_mean

Rows = list[dict[str, Any]]
TITLES = [
    *("Class loss", "Box loss", "Batch AP", "Validation AP", "Validation AP50"),
    *("Learning rate", "Gradient norm", "Images per second"),
]


def run_of(rows: Rows, label: str = "ap") -> ReportRun:
    return ReportRun(label, Path("results.json"), "ap", {}, rows)


def steps(values: Sequence[object], field: str = "class_loss", first: int = 1) -> Rows:
    return [
        {"kind": "step", "step": first + place, field: value} for place, value in enumerate(values)
    ]


def plot(title: str, *all_rows: Rows) -> ElementTree.Element:
    runs = [run_of(rows, f"run {place}") for place, rows in enumerate(all_rows)]
    svg = plots.training_curves(runs)[title]
    assert svg is not None
    return ElementTree.fromstring(svg)


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter("text")]


def marks(root: ElementTree.Element, colour: str, tag: str = "path") -> list[ElementTree.Element]:
    """The elements in the colour, outside of definitions."""
    defined = {id(child) for element in root.iter("defs") for child in element.iter()}
    return [
        element
        for element in root.iter(tag)
        if f"var(--{colour})" in element.get("style", "") and id(element) not in defined
    ]


def points(path: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """The points of a path, one list for each part that is joined."""
    parts: list[list[tuple[float, float]]] = []
    for letter, x, y in re.findall(r"([ML]) (\S+) (\S+)", path.get("d", "")):
        if letter == "M":
            parts.append([])
        parts[-1].append((float(x), float(y)))
    return parts


def scales(root: ElementTree.Element) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """What turns places in the picture into x and y values: from the grid and its labels."""
    grid = [points(path)[0] for path in marks(root, "grid")]
    x_places = [first[0] for first, last in grid if first[0] == last[0]]
    y_places = [first[1] for first, last in grid if first[1] == last[1]]
    numbers = [text for text in root.iter("text") if re.fullmatch(r"[\d.,e-]+", text.text or "")]
    ends = ["text-anchor: middle", "text-anchor: end"]
    x_values, y_values = (
        [
            float((text.text or "").replace(",", ""))
            for text in numbers
            if end in text.attrib["style"]
        ]
        for end in ends
    )
    assert len(x_places) == len(x_values) >= 2
    assert len(y_places) == len(y_values) >= 2
    x_fit, y_fit = np.polyfit(x_places, x_values, 1), np.polyfit(y_places, y_values, 1)
    return (lambda x: float(np.polyval(x_fit, x)), lambda y: float(np.polyval(y_fit, y)))


def values_of(root: ElementTree.Element, colour: str) -> list[list[tuple[float, float]]]:
    """The data of the first line in the colour that is as long as it can be."""
    to_x, to_y = scales(root)
    line = max(
        marks(root, colour), key=lambda path: ("clip-path" in path.attrib, len(path.get("d", "")))
    )
    return [[(to_x(x), to_y(y)) for x, y in part] for part in points(line)]


def test_every_plot_has_its_axis_with_a_unit(make_rows: Callable[..., Rows]) -> None:
    drawn = plots.training_curves([run_of(make_rows())])
    assert list(drawn) == TITLES
    labels = [
        *("class loss", "box loss", "AP of the batch in %", "AP in %", "AP50 in %"),
        *("learning rate", "norm of the gradient", "images per second"),
    ]
    for label, svg in zip(labels, drawn.values(), strict=True):
        shown = texts(ElementTree.fromstring(svg or ""))
        assert label in shown
        assert any(text.startswith("training step") for text in shown)


def test_a_line_goes_through_its_values() -> None:
    root = plot("Class loss", steps([4.0, 1.0, 2.5]))
    (line,) = values_of(root, "series-1")
    assert np.array(line) == pytest.approx(np.array([(1, 4.0), (2, 1.0), (3, 2.5)]), abs=0.03)


def test_the_fields_are_not_mixed_up() -> None:
    fields = [
        *("class_loss", "box_loss", "batch_ap"),
        *("learning_rate", "gradient_norm", "images_per_second"),
    ]
    numbers = dict(zip(fields, (0.5, 0.6, 7.0, 0.002, 3.0, 44.0), strict=True))
    rows = [{"kind": "step", "step": step, **numbers} for step in (1, 2)]
    rows += [{"kind": "evaluation", "step": step, "AP": 30.0, "AP50": 50.0} for step in (1, 2)]
    expected = dict(zip(TITLES, (0.5, 0.6, 7.0, 30.0, 50.0, 0.002, 3.0, 44.0), strict=True))
    drawn = plots.training_curves([run_of(rows)])
    for title, number in expected.items():
        (line,) = values_of(ElementTree.fromstring(drawn[title] or ""), "series-1")
        assert [y for _, y in line] == pytest.approx([number] * 2, rel=0.01)


@pytest.mark.parametrize("title", ["Batch AP", "Validation AP", "Validation AP50"])
def test_percent_goes_from_0_to_100(make_rows: Callable[..., Rows], title: str) -> None:
    shown = texts(plot(title, make_rows(num_steps=160)))
    assert [text for text in shown if text in {"0", "20", "40", "60", "80", "100"}][-6:] == [
        *("0", "20", "40", "60", "80", "100")
    ]


@pytest.mark.parametrize("title", ["Class loss", "Learning rate", "Images per second"])
def test_other_axes_start_at_0(title: str) -> None:
    fields = ("class_loss", "learning_rate", "images_per_second")
    rows = [{"kind": "step", "step": step, **dict.fromkeys(fields, 40.0)} for step in (5, 6)]
    root = plot(title, rows)
    _, to_y = scales(root)
    bottom = max(y for path in marks(root, "ink") for part in points(path) for _, y in part)
    assert to_y(bottom) == pytest.approx(0, abs=0.3)


def test_all_plots_go_from_0_to_the_last_step_of_any_run() -> None:
    short = [{"kind": "evaluation", "step": step, "AP": 5.0} for step in (1, 2)]
    root = plot("Validation AP", short, [{"kind": "step", "step": 200, "class_loss": 1.0}])
    to_x, _ = scales(root)
    across = [x for path in marks(root, "grid") for part in points(path) for x, _ in part]
    assert to_x(min(across)) == pytest.approx(0, abs=0.5)
    assert to_x(max(across)) == pytest.approx(204, abs=0.5)


def test_a_loss_over_decades_gets_a_logarithmic_axis_with_plain_numbers() -> None:
    shown = texts(plot("Class loss", steps([5000.0, 40.0, 3.0, 0.2, 0.1, 0.1, 0.1])))
    assert {"0.1", "1", "10", "100", "1,000"} <= set(shown)
    assert not any("$" in text or "mathdefault" in text for text in shown)


def test_a_loss_that_reaches_0_keeps_a_linear_axis() -> None:
    shown = texts(plot("Class loss", steps([5000.0, 40.0, 3.0, 0.0, 0.1, 0.1, 0.1])))
    assert {"1,000", "2,000", "3,000", "4,000", "5,000"} <= set(shown)


def test_nulls_leave_gaps() -> None:
    root = plot("Class loss", steps([1.0, 2.0, None, None, 3.0, 1.0]))
    parts = values_of(root, "series-1")
    assert [[round(x) for x, _ in part] for part in parts] == [[1, 2], [5, 6]]


@pytest.mark.parametrize("value", [1e308, 10**400, float("inf"), "0.5", True])
def test_what_is_no_number_or_has_no_place_is_a_gap(value: object) -> None:
    parts = values_of(plot("Class loss", steps([1.0, 2.0, value, 3.0, 1.0])), "series-1")
    assert [[round(x) for x, _ in part] for part in parts] == [[1, 2], [4, 5]]


def test_a_single_value_is_a_point() -> None:
    root = plot("Class loss", steps([2.0], first=7))
    (point,) = marks(root, "series-1", "use")
    to_x, to_y = scales(root)
    assert to_x(float(point.attrib["x"])) == pytest.approx(7, abs=0.05)
    assert to_y(float(point.attrib["y"])) == pytest.approx(2, abs=0.02)


def test_a_value_between_gaps_is_a_point_and_joined_ones_are_not() -> None:
    root = plot("Class loss", steps([1.0, 2.0, None, 3.0, None]))
    assert len(marks(root, "series-1", "use")) == 1


def test_each_evaluation_is_a_point() -> None:
    rows = [{"kind": "evaluation", "step": step, "AP": 3.0} for step in (10, 20, 30)]
    assert len(marks(plot("Validation AP", rows), "series-1", "use")) == 3


def test_a_single_evaluation_is_no_curve() -> None:
    once = [{"kind": "evaluation", "step": 10, "AP": 3.0}]
    assert plots.training_curves([run_of(once), run_of(once, "b")])["Validation AP"] is None


def test_nothing_to_draw_gives_none() -> None:
    assert set(plots.training_curves([]).values()) == {None}
    assert set(plots.training_curves([run_of([])]).values()) == {None}
    drawn = plots.training_curves([run_of(steps([None, None])), run_of(steps([0.1], "box_loss"))])
    assert [title for title, svg in drawn.items() if svg] == ["Box loss"]


def test_noisy_curves_have_a_running_mean_and_say_over_how_many_rows() -> None:
    root = plot("Class loss", steps([1.0, 3.0] * 100))
    assert "training step (bold: mean of 9 values)" in texts(root)
    raw, bold = (path for path in marks(root, "series-1") if "clip-path" in path.attrib)
    assert "stroke-opacity: 0.3" in raw.attrib["style"]
    assert "opacity" not in bold.attrib["style"]
    _, to_y = scales(root)
    middle = [to_y(y) for _, y in points(bold)[0]][5:-5]
    assert all(1.8 < value < 2.2 for value in middle)


def test_few_rows_and_smooth_numbers_are_shown_as_they_are() -> None:
    for title, field, number in (
        ("Class loss", "class_loss", 19),
        ("Learning rate", "learning_rate", 90),
    ):
        root = plot(title, steps([1.0, 3.0] * number, field)[:number])
        assert "training step" in texts(root)
        assert len([path for path in marks(root, "series-1") if "clip-path" in path.attrib]) == 1


def test_the_running_mean_by_hand() -> None:
    values = np.array([0.0, 3.0, 6.0, np.nan, 1e30, 2.0, 4.0, 6.0])
    means = running_mean(values, 3, np.arange(8))
    expected = [1.5, 3.0, 4.5, np.nan, (1e30 + 2) / 2, (1e30 + 6) / 3, 4.0, 5.0]
    assert means == pytest.approx(np.array(expected), nan_ok=True)


def test_an_envelope_keeps_extremes_and_gaps() -> None:
    x = np.arange(10_000.0)
    y = np.sin(x)
    y[5_555], y[2_000:3_000] = -9.0, np.nan
    kept_x, kept_y = envelope(x, y)
    assert len(kept_x) <= 400
    assert (np.diff(kept_x) > 0).all()
    assert np.nanmin(kept_y) == -9.0
    assert np.nanmax(kept_y) == np.nanmax(y)
    assert np.isnan(kept_y).any()
    assert (y[kept_x.astype(int)][~np.isnan(kept_y)] == kept_y[~np.isnan(kept_y)]).all()


@pytest.mark.parametrize("number", [0, 1, 2, 400, 401, 12_345])
def test_chosen_points_are_few_with_both_ends(number: int) -> None:
    chosen = evenly_chosen(number)
    assert len(chosen) == min(number, 400)
    assert (np.diff(chosen) > 0).all()
    if number:
        assert (chosen[0], chosen[-1]) == (0, number - 1)


def test_rows_out_of_order_are_sorted() -> None:
    x, y = number_series([*steps([5.0], first=9), *steps([4.0], first=2)], "step", "class_loss")
    assert (x.tolist(), y.tolist()) == ([2, 9], [4, 5])


def test_tens_of_thousands_of_rows_stay_small() -> None:
    random = np.random.default_rng(0)
    rows = steps(random.uniform(0.1, 1, 30_000).tolist())
    svg = plots.training_curves([run_of(rows)])["Class loss"]
    assert svg is not None
    assert len(svg) < 40_000


def test_eight_runs_differ_in_colour_and_dashes_and_are_named() -> None:
    root = plot("Class loss", *(steps([1.0, 1.0 + run]) for run in range(8)))
    dashes = set()
    for number in range(1, 9):
        line = marks(root, f"series-{number}")[0]
        dashes.add(re.sub("stroke: [^;]+", "", line.attrib["style"]))
    assert len(dashes) == 8
    assert [text for text in texts(root) if text.startswith("run")] == [
        f"run {number}" for number in range(8)
    ]


def test_the_legend_is_below_the_axes() -> None:
    root = plot("Class loss", steps([1.0, 2.0]), steps([2.0, 1.0]))
    lowest = max(y for path in marks(root, "grid") for part in points(path) for _, y in part)
    names = [text for text in root.iter("text") if (text.text or "").startswith("run")]
    assert len(names) == 2
    assert all(float(text.attrib["y"]) > lowest + 20 for text in names)


def test_a_run_without_the_number_is_not_in_the_legend_and_keeps_its_colour() -> None:
    root = plot("Class loss", steps([1.0]), [], steps([2.0, 1.0]))
    assert [text for text in texts(root) if text.startswith("run")] == ["run 0", "run 2"]
    assert marks(root, "series-3")
    assert not marks(root, "series-2")


def timed(*all_seconds: dict[str, float | None]) -> Rows:
    return [
        {"kind": "step", "step": place, "seconds": seconds}
        for place, seconds in enumerate(all_seconds)
    ]


def bar_ends(root: ElementTree.Element) -> list[float]:
    """Where the parts of the bar of iteration_time begin and end in milliseconds, in pairs."""
    grid = [points(path)[0][0][0] for path in marks(root, "grid")]
    numbers = [text.text or "" for text in root.iter("text")][: len(grid)]
    fit = np.polyfit(grid, [float(number.replace(",", "")) for number in numbers], 1)
    ends = []
    for number in range(1, 6):
        for path in marks(root, f"series-{number}"):
            if "clip-path" in path.attrib:
                across = [x for x, _ in points(path)[0]]
                ends += [float(np.polyval(fit, x)) for x in (min(across), max(across))]
    return ends


def test_the_time_of_a_step_is_the_mean_without_the_first_row() -> None:
    parts = ("data", "forward", "loss", "backward", "step")
    rows = timed(
        dict.fromkeys(parts, 99.0),
        dict(zip(parts, (0.01, 0.10, 0.02, 0.30, 0.05), strict=True)),
        dict(zip(parts, (0.03, 0.20, 0.04, 0.30, None), strict=True)),
    )
    svg = plots.iteration_time([run_of(rows)])
    root = ElementTree.fromstring(svg or "")
    ends = [0, 20, 20, 170, 170, 200, 200, 500, 500, 550]
    assert bar_ends(root) == pytest.approx(ends, abs=2)
    shown = texts(root)
    assert "time per step in ms" in shown
    assert {"150", "300", "550 ms", "ap", *parts} <= set(shown)


def test_a_single_row_is_all_there_is() -> None:
    rows = timed(dict.fromkeys(("data", "forward", "loss", "backward", "step"), 0.1))
    root = ElementTree.fromstring(plots.iteration_time([run_of(rows)]) or "")
    assert bar_ends(root)[1::2] == pytest.approx([100, 200, 300, 400, 500], abs=2)


def test_runs_without_times_have_no_bar() -> None:
    assert plots.iteration_time([]) is None
    assert plots.iteration_time([run_of(steps([1.0]))]) is None
    assert plots.iteration_time([run_of(timed({"data": None}))]) is None
    both = plots.iteration_time([run_of([], "empty"), run_of(timed({"data": 0.1}), "timed")])
    shown = texts(ElementTree.fromstring(both or ""))
    assert "timed" in shown
    assert "empty" not in shown


def test_the_same_rows_give_the_same_bytes(make_rows: Callable[..., Rows]) -> None:
    runs = [run_of(make_rows(seed=seed, num_steps=80), f"run {seed}") for seed in range(2)]
    assert plots.training_curves(runs) == plots.training_curves(runs)
    assert plots.iteration_time(runs) == plots.iteration_time(runs)


def test_hostile_labels_come_out_literally(
    make_rows: Callable[..., Rows], hostile_names: tuple[str, ...]
) -> None:
    runs = [run_of(make_rows(num_steps=80), name) for name in hostile_names[:8]]
    for svg in (plots.training_curves(runs)["Class loss"], plots.iteration_time(runs)):
        shown = texts(ElementTree.fromstring(svg or ""))
        assert any(text.startswith("<script>window.") for text in shown)
        assert any(text.startswith("$_{$ not ") for text in shown)
