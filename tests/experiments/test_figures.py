"""Pictures of comparisons and sheets, by what stands in them."""

from __future__ import annotations

import base64
import io
import itertools
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rankdet.experiments import robustness, sheets
from rankdet.experiments.comparison import LOSSES, Comparison, Variant
from rankdet.experiments.figures import begin_at_zero, count_in_wholes, new_figure
from rankdet.experiments.record import Record


def record_of(results: dict[str, dict[str, Any]]) -> Record:
    rows = {
        key: {"settings": {}, "result": result, "seconds": 1.0} for key, result in results.items()
    }
    record: Record = {"item": "figures", "plan": list(results), "rows": rows}
    return record


def drawn_by(comparison: Comparison, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure of a record in which every variant has AP 40, 41, ..."""
    kept: list[Any] = []
    module = "rankdet.experiments.comparison"
    monkeypatch.setattr(f"{module}.save_figure", lambda figure, path: kept.append(figure))
    results = {
        variant.key: {"metrics": {"AP": 40.0 + number}}
        for number, variant in enumerate(comparison.variants)
    }
    comparison.figure(record_of(results), Path("unused.png"))
    return kept[0]


def comparison_of(rows: list[str], groups: tuple[str, ...] = ("",)) -> Comparison:
    variants = tuple(Variant(row, group=group, metrics=("AP",)) for group in groups for row in rows)
    return Comparison("a title", "what differs", variants)


def test_rows_that_are_numbers_are_joined_by_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    (axes,) = drawn_by(comparison_of(["0.5", "1", "2"]), monkeypatch).axes
    ours = axes.lines[0]
    assert (ours.get_linestyle(), list(ours.get_ydata())) == ("-", [40.0, 41.0, 42.0])
    assert not axes.patches


def test_categories_are_bars_beside_each_other_and_nothing_joins_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comparison = comparison_of(["Focal Loss", "AP-Loss"], groups=("VOC", "COCO"))
    (axes,) = drawn_by(comparison, monkeypatch).axes
    assert [bar.get_height() for bar in axes.patches] == [40.0, 41.0, 42.0, 43.0]
    assert all(line.get_linestyle() == "None" for line in axes.lines)
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches)
    assert all(right < left for (_, right), (left, _) in itertools.pairwise(edges))


@pytest.mark.parametrize("rows", [["1", "2"], ["No", "Yes"]])
def test_means_over_seeds_have_lines_of_one_deviation(
    rows: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    module = "rankdet.experiments.comparison"
    monkeypatch.setattr(f"{module}.save_figure", lambda figure, path: kept.append(figure))
    keys = [rows[0], f"{rows[0]}: seed 1", f"{rows[0]}: seed 2", rows[1]]
    results = {
        key: {"metrics": {"AP": value}}
        for key, value in zip(keys, (10.0, 12.0, 14.0, 20.0), strict=True)
    }
    comparison_of(rows).figure(record_of(results), Path("unused.png"))
    (axes,) = kept[0].axes
    (bars,) = axes.collections
    lowest_and_highest = [segment[:, 1].tolist() for segment in bars.get_segments()]
    assert lowest_and_highest == [[10.0, 14.0], [20.0, 20.0]]  # 12 ± 2; one seed has no deviation


def test_the_legend_names_the_paper_where_it_has_numbers_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (legend,) = drawn_by(comparison_of(["1", "2"]), monkeypatch).legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours"]


@pytest.mark.parametrize("values", [[7.9, 8.0], [0.0, 0.0], []])
def test_axes_from_zero_have_room_above_what_is_drawn(values: list[float]) -> None:
    axes = new_figure(3, 3).subplots()
    axes.plot(values, "o-")
    begin_at_zero(axes)
    bottom, top = axes.get_ylim()
    assert bottom == 0
    assert top > 1.05 * max(values, default=0.0)


@pytest.mark.parametrize("steps", [[1], [1, 2, 3], [20, 600], list(range(50, 3001, 50))])
def test_what_is_counted_has_ticks_at_whole_numbers(steps: list[int]) -> None:
    axes = new_figure(3, 3).subplots()
    axes.plot(steps, steps)
    count_in_wholes(axes.xaxis)
    ticks = axes.get_xticks().tolist()
    assert ticks
    assert all(tick == round(tick) for tick in ticks)


def test_the_names_of_losses_stand_below_the_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(robustness, "save_figure", lambda figure, path: kept.append(figure))
    robustness.figure(record_of({}), Path("unused.png"))
    (drawn,) = kept
    drawn.canvas.draw()
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == list(LOSSES)
    lowest = min(axes.get_tightbbox().y0 for axes in drawn.axes)
    assert legend.get_window_extent().y1 <= lowest


def jpeg(width: int, height: int) -> dict[str, str]:
    stream = io.BytesIO()
    Image.new("RGB", (width, height), (200, 0, 0)).save(stream, "JPEG")
    return {"image": "a.jpg", "jpeg": base64.b64encode(stream.getvalue()).decode()}


@pytest.mark.parametrize("sizes", [[(320, 240)] * 5, [(320, 320)], [(320, 100), (100, 320)] * 4])
def test_a_sheet_is_filled_by_its_pictures(sizes: list[tuple[int, int]], tmp_path: Path) -> None:
    result = {"pictures": [jpeg(*size) for size in sizes]}
    sheets.figure(record_of({"Focal Loss": result, "AP-Loss": result}), tmp_path / "sheet.png")
    pixels = Image.open(tmp_path / "sheet.png").convert("RGB")
    is_red = pixels.point(lambda value: 255 * (value > 120)).getcolors()
    share = {colour: number for number, colour in is_red}[255, 0, 0]
    assert share / (pixels.width * pixels.height) > 0.6


def test_a_sheet_without_pictures_is_an_empty_one(tmp_path: Path) -> None:
    sheets.figure(record_of({}), tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").is_file()
