"""The evaluation's plots show each number at its place, for few and for many classes."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from rankdet.report import plots
from rankdet.report.evaluation_plots import (
    highest_count,
    interpolated_precision,
    mean_precision,
)
from rankdet.report.reading import ReportRun

Results = dict[str, Any]
PLOTS_OF_ONE = (plots.precision_recall, plots.score_against_iou, plots.confusion)
PLOTS_OF_ALL = (plots.precision_recall_mean, plots.class_bars, plots.error_bars)
RAMP = {"score": [0.9, 0.5], "recall": [50.0, 100.0], "precision": [100.0, 40.0]}
LATE = {"score": [0.9, 0.8, 0.1], "recall": [20.0, 40.0, 60.0], "precision": [50.0, 80.0, 20.0]}


def run_of(label: str = "ap", **results: Any) -> ReportRun:
    return ReportRun(label, Path("results.json"), "ap", results, [])


def classes(**ap50: float | None) -> list[Results]:
    return [{"name": name, "ap50": value, "threshold": 0.25} for name, value in ap50.items()]


def with_curves(*curves: Results | None, label: str = "ap") -> ReportRun:
    rows = classes(**{f"class {place}": 50.0 for place in range(len(curves))})
    return run_of(label, classes=rows, curves=list(curves))


def parsed(svg: str | None) -> ElementTree.Element:
    assert svg is not None
    return ElementTree.fromstring(svg)


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter("text")]


def drawn(root: ElementTree.Element, colour: str) -> list[np.ndarray[Any, Any]]:
    """The points of every path in the colour that lies inside the axes."""
    return [
        np.array(re.findall(r"[ML] (\S+) (\S+)", path.attrib["d"]), float)
        for path in root.iter("path")
        if f"var(--{colour})" in path.get("style", "") and "clip-path" in path.attrib
    ]


def scale(root: ElementTree.Element, axis: int, values: Sequence[float]) -> Callable[[Any], Any]:
    """What turns places on an axis into values, where its grid lines have these values."""
    grid = [line for line in drawn(root, "grid") if line[0][axis] == line[1][axis]]
    assert len(grid) == len(values)
    fit = np.polyfit([line[0][axis] for line in grid], values, 1)
    return lambda places: np.polyval(fit, places)


def curve_values(root: ElementTree.Element, colour: str) -> list[np.ndarray[Any, Any]]:
    """The recalls and precisions of each line in the colour."""
    to_x, to_y = (scale(root, axis, range(0, 101, 20)) for axis in (0, 1))
    return [np.stack([to_x(x), to_y(y)], axis=1) for x, y in (p.T for p in drawn(root, colour))]


def bars(root: ElementTree.Element, colour: str, ticks: Sequence[float]) -> list[float]:
    """The lengths of the horizontal bars in the colour, from the top down."""
    to_x = scale(root, 0, ticks)
    areas = sorted(drawn(root, colour), key=lambda points: points[:, 1].min())
    return [float(np.ptp(to_x(points[:, 0]))) for points in areas]


def picture(root: ElementTree.Element) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The heat map's pixels (height, width, RGBA), and the matrix that puts them in place."""
    (image,) = [image for image in root.iter("image") if "pixelated" in image.get("style", "")]
    content = base64.b64decode(image.attrib["href"].removeprefix("data:image/png;base64,"))
    numbers = re.findall(r"-?[\d.]+", image.attrib["transform"])
    return np.array(Image.open(io.BytesIO(content))), np.array(numbers, float).reshape(3, 2).T


def test_interpolated_precision_by_hand() -> None:
    values = interpolated_precision(LATE)
    assert values[[0, 20, 40, 41, 60, 61, 100]].tolist() == [80, 80, 80, 20, 20, 0, 0]
    assert interpolated_precision({"recall": [], "precision": []}).tolist() == [0] * 101


def test_the_mean_counts_classes_with_objects_alone() -> None:
    mean = mean_precision(with_curves(RAMP, None, {"score": [], "recall": [], "precision": []}))
    assert mean is not None
    assert mean[[0, 50, 51, 100]].tolist() == [50, 50, 20, 20]
    assert mean_precision(with_curves(None)) is None


def test_a_curve_of_precision_ends_where_recall_does() -> None:
    root = parsed(plots.precision_recall(with_curves(LATE)))
    (line,) = curve_values(root, "series-1")
    assert line == pytest.approx(np.array([(0, 80), (40, 80), (41, 20), (60, 20)]), abs=0.2)
    assert {"recall in %", "interpolated precision in %", "class 0"} <= set(texts(root))
    assert not drawn(root, "ink")  # one class is its own mean


def test_up_to_8_classes_are_named_and_the_mean_is_bold() -> None:
    root = parsed(plots.precision_recall(with_curves(*[RAMP] * 7, LATE, None)))
    shown = texts(root)
    assert [text for text in shown if text.startswith("class")] == [f"class {i}" for i in range(8)]
    assert "mean of 8 classes" in shown
    assert len({path.tobytes() for n in range(1, 9) for path in drawn(root, f"series-{n}")}) == 2
    (mean,) = curve_values(root, "ink")
    assert mean[0] == pytest.approx([0, (7 * 100 + 80) / 8], abs=0.3)
    assert mean[-1] == pytest.approx([100, 35], abs=0.3)


def test_more_classes_are_faint_lines_without_names() -> None:
    root = parsed(plots.precision_recall(with_curves(*[RAMP] * 9)))
    assert [text for text in texts(root) if "class" in text] == ["one class", "mean of 9 classes"]
    assert len(drawn(root, "ink")) == 9
    faint = [path for path in root.iter("path") if "stroke-opacity: 0.25" in path.get("style", "")]
    assert len(faint) == 10  # and the legend's
    assert len(drawn(root, "series-1")) == 1


def test_of_very_many_classes_some_are_drawn_but_the_mean_is_of_all() -> None:
    svg = plots.precision_recall(with_curves(*[RAMP, *[LATE] * 999]))
    root = parsed(svg)
    assert "mean of 1000 classes" in texts(root)
    assert len(drawn(root, "ink")) == 100
    assert curve_values(root, "series-1")[0][0, 1] == pytest.approx(80.02, abs=0.2)


def test_the_mean_of_each_run_is_a_line() -> None:
    runs = [with_curves(RAMP, label="one"), with_curves(None), with_curves(LATE, label="three")]
    root = parsed(plots.precision_recall_mean(runs))
    assert {"one", "three", "recall in %"} <= set(texts(root))
    assert "ap" not in texts(root)
    assert curve_values(root, "series-1")[0][-1] == pytest.approx([100, 40], abs=0.2)
    assert curve_values(root, "series-3")[0][-1] == pytest.approx([100, 0], abs=0.2)
    assert not drawn(root, "series-2")


def test_bars_of_classes_are_as_long_as_ap50_and_sorted_by_the_first_run() -> None:
    first = run_of("one", classes=classes(low=10.0, high=90.0, none=None))
    second = run_of("two", classes=classes(high=30.0, low=60.0, other=75.0))
    root = parsed(plots.class_bars([first, second]))
    ticks = range(0, 101, 20)
    assert bars(root, "series-1", ticks) == pytest.approx([90, 10, 0, 0], abs=0.3)
    assert bars(root, "series-2", ticks) == pytest.approx([30, 60, 0, 75], abs=0.3)
    shown = texts(root)
    assert [text for text in shown if text in {"low", "high", "none", "other"}] == [
        *("high", "low", "none", "other")
    ]
    assert {"AP50 in %", "90.0", "10.0", "30.0", "60.0", "75.0", "n/a", "one", "two"} <= set(shown)


def heights(root: ElementTree.Element, pattern: str) -> dict[str, float]:
    """Where the texts that are as the pattern stand, from the top down."""
    return {
        element.text: float(element.attrib["y"])
        for element in root.iter("text")
        if element.text and re.fullmatch(pattern, element.text)
    }


@pytest.mark.parametrize("num_runs", [1, 2, 4])
def test_the_threshold_of_a_class_stands_beside_its_bar(num_runs: int) -> None:
    runs = [
        run_of(
            f"run {n}",
            classes=[
                {"name": "a", "ap50": 40.0 + n, "threshold": 0.12345 + n / 10},
                {"name": "b", "ap50": 30.0 + n, "threshold": None},
            ],
        )
        for n in range(num_runs)
    ]
    root = parsed(plots.class_bars(runs))
    assert "threshold" in texts(root)
    beside = heights(root, r"0\.\d+")
    assert list(beside) == ["0.123", "0.223", "0.323", "0.423"][:num_runs]
    assert list(beside.values()) == pytest.approx(list(heights(root, r"4\d\.0").values()))


def test_a_class_that_a_run_lacks_has_no_threshold_there() -> None:
    row = {"name": "a", "ap50": 40.0, "threshold": 0.5}
    runs = [run_of("one", classes=[row]), run_of("two", classes=[row | {"name": "b"}])]
    assert texts(parsed(plots.class_bars(runs))).count("0.500") == 2


def test_of_many_classes_the_best_and_the_worst_are_shown() -> None:
    rows = classes(**{f"c{place}": float(place) for place in range(80)})
    root = parsed(plots.class_bars([run_of(classes=rows)]))
    names = [text for text in texts(root) if re.fullmatch(r"c\d+|\(.*", text)]
    expected = [*(f"c{n}" for n in range(79, 64, -1)), "(50 between)"]
    assert names == [*expected, *(f"c{n}" for n in range(14, -1, -1))]
    lengths = bars(root, "series-1", range(0, 101, 20))
    assert lengths[:2] == pytest.approx([79, 78], abs=0.3)
    assert lengths[-2:] == pytest.approx([1, 0], abs=0.3)


def test_many_runs_leave_out_the_numbers_beside_the_bars() -> None:
    runs = [run_of(f"run {n}", classes=classes(a=12.3)) for n in range(5)]
    assert texts(parsed(plots.class_bars(runs[:4]))).count("12.3") == 4
    assert not {"12.3", "threshold", "0.250"} & set(texts(parsed(plots.class_bars(runs))))


def errors(*counts: int) -> Results:
    kinds = ("correct", "localisation", "duplicate", "class", "background", "missed")
    values = dict(zip(kinds, counts, strict=True))
    return values | {"num_detections": sum(counts[:5]), "num_objects": counts[0] + counts[5]}


def test_errors_are_bars_with_counts_and_shares() -> None:
    first = run_of("one", errors=errors(50, 20, 5, 15, 10, 150))
    runs = [first, run_of("two", errors=None), run_of("three", errors=errors(0, 0, 0, 0, 0, 100))]
    root = parsed(plots.error_bars(runs))
    ticks = (0, 50, 100, 150)
    assert bars(root, "series-1", ticks) == pytest.approx([50, 20, 5, 15, 10, 150], abs=0.6)
    assert bars(root, "series-3", ticks) == pytest.approx([0, 0, 0, 0, 0, 100], abs=0.6)
    shown = texts(root)
    assert {"50 (50 %)", "20 (20 %)", "150 (75 %)", "100 (100 %)", "0"} <= set(shown)
    assert {"one", "three", "number of detections (missed: of objects)"} <= set(shown)
    assert "two" not in shown
    kinds = ["correct", "localisation", "duplicate", "class", "background", "missed"]
    assert [text for text in shown if text in kinds] == kinds


def test_a_small_share_is_not_said_to_be_0() -> None:
    shown = texts(parsed(plots.error_bars([run_of(errors=errors(997, 0, 3, 0, 0, 1))])))
    assert {"3 (<1 %)", "0 (0 %)", "997 (100 %)"} <= set(shown)


def test_the_bars_of_a_group_come_in_the_order_of_the_runs() -> None:
    parts = {"errors": errors(5, 4, 3, 2, 1, 6), "classes": classes(a=50.0, b=20.0)}
    runs = [run_of("one", **parts), run_of("two", **parts)]
    for svg in (plots.error_bars(runs), plots.class_bars(runs)):
        root = parsed(svg)
        tops = sorted(
            (area[:, 1].min(), number)
            for number in (1, 2)
            for area in drawn(root, f"series-{number}")
        )
        assert [number for _, number in tops] == [1, 2] * (len(tops) // 2)


def anchors(*cells: tuple[int, int, int], bins: int = 100) -> ReportRun:
    total = sum(count for _, _, count in cells)
    content = {"bins": bins, "num_anchors": total, "num_images": 1, "cells": list(map(list, cells))}
    return run_of(anchors=content)


def test_scores_against_iou_lie_at_their_place_and_empty_cells_are_clear() -> None:
    root = parsed(plots.score_against_iou(anchors((0, 0, 1000), (99, 1, 1), (2, 97, 30))))
    pixels, matrix = picture(root)
    assert pixels.shape == (100, 100, 4)
    rows, columns = np.nonzero(pixels[..., 3])
    x, y = matrix @ np.stack([columns + 0.5, rows + 0.5, np.ones(3)])
    ious, scores = (
        scale(root, axis, np.linspace(0, 1, 6))(places) for axis, places in enumerate((x, y))
    )
    shades = pixels[rows, columns, 1]
    found = sorted(zip(ious.round(3), scores.round(3), shades.tolist(), strict=True))
    assert [place[:2] for place in found] == [(0.005, 0.005), (0.025, 0.975), (0.995, 0.015)]
    many, some, one = (place[2] for place in found)
    assert one + 40 < some < many - 40  # 30 of 1000 is half way on a logarithmic scale
    assert {
        *("IoU of the anchor with its matched object", "score of the object's class"),
        *("number of anchors", "1", "10", "100", "1,000", "0.0", "1.0"),
    } <= set(texts(root))


def test_a_shade_means_the_same_in_plots_with_one_scale() -> None:
    few, many = anchors((5, 5, 3)), anchors((5, 5, 3000))
    highest = highest_count([few, many, run_of(anchors=None)])
    assert highest == 3000

    def shade(run: ReportRun, scale: float) -> list[int]:
        pixels, _ = picture(parsed(plots.score_against_iou(run, scale)))
        (colour,) = pixels[pixels[..., 3] > 0].tolist()
        return colour

    assert shade(few, highest) != shade(many, highest)
    assert shade(few, highest) != shade(few, 0.0)
    assert shade(many, highest) == shade(many, 0.0)


def test_a_single_anchor_is_shown() -> None:
    root = parsed(plots.score_against_iou(anchors((1, 0, 1), bins=2)))
    assert np.count_nonzero(picture(root)[0][..., 3]) == 1
    assert len(list(root.iter("image"))) == 2  # the other is the colour bar, not 256 areas


def confused(counts: Sequence[Sequence[int]], *names: str) -> ReportRun:
    return run_of(
        classes=[{"name": name} for name in names], confusion={"iou": 0.5, "counts": counts}
    )


def test_confusion_is_shaded_by_the_share_of_the_row_and_numbered() -> None:
    run = confused([[8, 2, 90], [0, 0, 0], [7, 0, 0]], "cat", "dog")
    root = parsed(plots.confusion(run))
    pixels, matrix = picture(root)
    assert (matrix[[0, 1], [0, 1]] > 0).all()  # the first row is at the top
    assert (pixels[..., 3] > 0).tolist() == [
        [True, True, True],
        [False, False, False],
        [True, False, False],
    ]
    shades = pixels[..., 1].astype(int)
    assert shades[2, 0] > shades[0, 2] > shades[0, 0] > shades[0, 1]  # 100, 90, 8 and 2 %
    shown = texts(root)
    assert [text for text in shown if text in {"8", "2", "90", "7"}] == ["8", "2", "90", "7"]
    assert shown[:10].count("missed") == 1
    assert shown.count("cat") == shown.count("dog") == 2
    assert {"background", "missed", "true class", "detected class"} <= set(shown)
    assert "share of the row in %" in shown


def test_rows_of_the_confusion_are_true_classes() -> None:
    root = parsed(plots.confusion(confused([[1, 0, 0], [0, 0, 5], [0, 0, 0]], "cat", "dog")))
    (missed,) = [text for text in root.iter("text") if text.text == "5"]
    heights = {
        text.text: float(text.attrib["y"])
        for text in root.iter("text")
        if "rotate" not in text.get("transform", "")
    }
    places = {
        text.text: float(text.attrib["transform"].split()[0].removeprefix("translate("))
        for text in root.iter("text")
        if text.get("transform", "").startswith("translate(")
    }
    assert float(missed.attrib["y"]) == pytest.approx(heights["dog"], abs=3)
    assert float(missed.attrib["x"]) == pytest.approx(places["missed"], abs=6)


def test_numbers_in_cells_contrast_with_their_shade() -> None:
    run = confused([[1, 99, 0], [0, 0, 0], [0, 0, 0]], "cat", "dog")
    styles = {text.text: text.attrib["style"] for text in parsed(plots.confusion(run)).iter("text")}
    assert "fill: #ffffff" in styles["1"]
    assert "fill: #010101" in styles["99"]


@pytest.mark.parametrize(("num_classes", "has_numbers"), [(12, True), (13, False), (80, False)])
def test_confusion_of_many_classes_stays_readable(num_classes: int, has_numbers: bool) -> None:
    counts = 777 * np.eye(num_classes + 1, dtype=int)
    counts[-1, -1] = 0
    names = [f"c{place}" for place in range(num_classes)]
    svg = plots.confusion(confused(counts.tolist(), *names))
    shown = texts(parsed(svg))
    assert shown.count("777") == (num_classes if has_numbers else 0)
    assert 10 <= sum(text in names for text in shown) / 2 <= 18
    assert {"c0", "background", "missed"} <= set(shown)
    assert svg is not None
    assert len(svg) < 30_000


def test_no_name_is_too_near_to_that_of_the_end() -> None:
    counts = np.eye(84, dtype=int).tolist()
    shown = texts(parsed(plots.confusion(confused(counts, *(f"c{n}" for n in range(83))))))
    assert {"c70", "c75", "background"} <= set(shown)
    assert "c80" not in shown


def test_nothing_to_draw_gives_none() -> None:
    nothing: Results = {"classes": classes(a=None), "curves": [None], "errors": None}
    nothing |= {"anchors": None, "confusion": {"iou": 0.5, "counts": [[0, 0], [0, 0]]}}
    for one in PLOTS_OF_ONE:
        assert one(run_of(**nothing)) is None
    for several in PLOTS_OF_ALL:
        assert several([run_of(**nothing)]) is None
        assert several([]) is None
    assert plots.confusion(run_of(**nothing | {"confusion": None})) is None
    assert plots.score_against_iou(anchors()) is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("num_classes", [1, 80])
def test_plots_of_whole_results_are_small_themeable_and_repeatable(
    make_results: Callable[..., Results], num_classes: int
) -> None:
    runs = [run_of(f"run {n}", **make_results(num_classes=num_classes, seed=n)) for n in range(2)]
    svgs = [one(run) for one in PLOTS_OF_ONE for run in runs]
    svgs += [several(runs) for several in PLOTS_OF_ALL]
    ids: list[str] = []
    for svg in svgs:
        root = parsed(svg)
        assert len(svg or "") < 150_000
        colours = set(re.findall('#[0-9a-f]{6}(?=[;"])', svg or ""))
        assert colours <= {"#ffffff", "#010101"}  # numbers on shades
        assert min(map(float, re.findall(r"font-size: ([\d.]+)px", svg or ""))) >= 10
        assert (root.get("viewBox") or "").startswith("0 0 400 ")
        ids += [element.attrib["id"] for element in root.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    assert svgs[-3:] == [several(runs) for several in PLOTS_OF_ALL]


@pytest.mark.filterwarnings("error")
def test_hostile_names_come_out_literally(
    make_results: Callable[..., Results], hostile_names: tuple[str, ...]
) -> None:
    runs = [run_of(name, **make_results(is_hostile=True)) for name in hostile_names[:4]]
    for svg in (plots.class_bars(runs), plots.confusion(runs[0]), plots.error_bars(runs)):
        shown = texts(parsed(svg))
        assert any(text.startswith("<script>win") for text in shown)
        assert any(text.startswith('"><img src') for text in shown)
        assert "onerror=" not in re.sub(r">[^<]*<|\"[^\"]*\"", "", svg or "")
    assert any(text.startswith("$_{$ not") for text in texts(parsed(plots.confusion(runs[0]))))
