"""A figure becomes an element for a page: themeable, self-contained, and with literal names."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import pytest

from rankdet.report.svg import GRID, INK, SERIES, Drawing, display_width, printable_name

EXAMPLE = """
from rankdet.report.svg import Drawing
with Drawing(200, "An example") as drawing:
    (line,) = drawing.axes("recall in %", "precision").plot([0, 100], [3, 7], marker="o")
    drawing.legend([line], ["the line"])
print(drawing.svg)
"""


def example(*names: str, description: str = "An example") -> str:
    """A plot with a line per name."""
    with Drawing(200, description) as drawing:
        axes = drawing.axes("recall in %", "precision")
        lines = [
            axes.plot([0, 1], [0, place], color=SERIES[place], marker="o")[0]
            for place, _ in enumerate(names)
        ]
        if names:
            drawing.legend(lines, names)
    return drawing.svg


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter("text")]


@pytest.fixture
def changed_settings() -> Iterator[None]:
    """Settings of matplotlib as a user's own file may make them."""
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "text.usetex": True}):
        yield


def test_the_element_takes_the_size_of_its_container_and_says_what_it_shows() -> None:
    svg = example(description='PR of "a" <b>')
    root = parsed(svg)
    assert svg.startswith("<svg ")
    assert root.attrib == {
        "viewBox": "0 0 400 200",
        "class": "plot",
        "role": "img",
        "aria-label": 'PR of "a" <b>',
        "style": "stroke-linejoin: round; stroke-linecap: butt",
    }


def test_nothing_of_a_file_of_its_own_is_left() -> None:
    tags = {element.tag for element in parsed(example("a")).iter()}
    assert tags == {"svg", "g", "defs", "path", "use", "text", "clipPath", "rect"}
    for part in ("<?xml", "<!DOCTYPE", "xlink", "xmlns", "matplotlib", "font-family", "http"):
        assert part not in example("a")


def test_every_colour_is_one_of_the_page() -> None:
    svg = example(*"abcdefgh")
    used = set(re.findall(r"(?:fill|stroke): ([^;\"]+)", svg))
    series = {f"var(--series-{number})" for number in range(1, 9)}
    assert used == series | {"none", "var(--ink)", "var(--grid)"}
    assert not re.search('#[0-9a-fA-F]{3,8}[;"]', svg)
    assert all("fill: var(--ink)" in text.get("style", "") for text in parsed(svg).iter("text"))


def test_each_stand_in_is_a_colour_of_its_own() -> None:
    assert len({INK, GRID, *SERIES}) == 10


def test_ids_are_all_used_and_belong_to_one_figure() -> None:
    both = [example("a"), example("b")]
    ids = [re.findall(r'\bid="([^"]+)"', svg) for svg in both]
    for svg, own in zip(both, ids, strict=True):
        references = re.findall(r'(?:href="#|url\(#)([^")]+)', svg)
        assert set(references) == set(own)
        assert len(own) == len(set(own)) > 2
    assert not set(ids[0]) & set(ids[1])


def test_descriptions_alone_make_ids_differ() -> None:
    ids = [re.findall(r'\bid="([^"]+)"', example(description=text)) for text in ("one", "two")]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])


def test_names_are_literal(hostile_names: tuple[str, ...]) -> None:
    for name in ("_private", "$x_1$", "a\\b", "$\\frac{$", "Q0", "none", *hostile_names):
        svg = example(name)
        assert printable_name(name, 40) in texts(svg)
        assert "data-hostile>" not in svg
        assert "<script" not in svg


def test_a_name_that_looks_like_a_stand_in_stays_what_it_is() -> None:
    assert texts(example("Q1", "Q0"))[-2:] == ["Q1", "Q0"]


@pytest.mark.filterwarnings("error")
def test_letters_that_no_font_has_give_no_warning() -> None:
    assert "字🦄 \u0e01" in texts(example("字🦄 \u0e01"))


@pytest.mark.parametrize(
    ("name", "longest", "expected"),
    [
        ("short", 5, "short"),
        ("too long", 5, "too…"),
        ("toolong", 5, "tool…"),
        ("字字字字", 8, "字字字字"),
        ("字字字字", 7, "字字字…"),
        ("two\nlines\t and", 20, "two lines and"),
        ("\x00\x1b\ud83d\uffff", 20, "\ufffd" * 4),
        ("", 5, ""),
    ],
)
def test_a_name_fits_on_one_line(name: str, longest: int, expected: str) -> None:
    shown = printable_name(name, longest)
    assert shown == expected
    assert display_width(shown) <= longest


def test_combining_marks_do_not_make_a_name_endless() -> None:
    assert len(printable_name("a" + "\u0301" * 5000, 10)) <= 21


def test_a_legend_makes_the_figure_higher_by_its_rows() -> None:
    heights = [
        float(parsed(example(*names)).get("viewBox", "").split()[3])
        for names in ((), ("a", "b"), ("a" * 40, "b" * 40))
    ]
    assert heights[0] == 200
    assert heights[1] == pytest.approx(200 + 10 + 16.5)
    assert heights[2] == pytest.approx(200 + 10 + 2 * 16.5)


def test_text_is_large_enough_for_a_phone() -> None:
    sizes = re.findall(r"font-size: ([\d.]+)px", example("a"))
    assert min(map(float, sizes)) >= 10


def test_settings_of_matplotlib_neither_count_nor_change(changed_settings: None) -> None:
    before = dict(matplotlib.rcParams)
    inside = example("$a")
    assert dict(matplotlib.rcParams) == before
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        assert inside == example("$a")


def test_an_error_within_comes_out_and_leaves_the_settings_alone() -> None:
    before = dict(matplotlib.rcParams)
    with pytest.raises(ZeroDivisionError), Drawing(200, "x") as drawing:
        drawing.axes("x", str(1 / 0))
    assert drawing.svg == ""
    assert dict(matplotlib.rcParams) == before


def run_example(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )


def test_the_same_figure_gives_the_same_bytes_in_another_process() -> None:
    first, second = (
        run_example(EXAMPLE, PYTHONHASHSEED=seed, TZ=zone, PYTHONIOENCODING="utf-8")
        for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo"))
    )
    assert first.stdout == second.stdout
    assert len(first.stdout) > 1000


def test_nothing_is_said_where_no_cache_can_be_written(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("not a folder")
    places = {"HOME": str(occupied / "home"), "MPLCONFIGDIR": str(occupied / "settings")}
    code = f"{EXAMPLE}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = run_example(code, PYTHONIOENCODING="utf-8", **places)
    assert done.stderr == ""
    modules = set(json.loads(done.stdout.splitlines()[-1]))
    assert not {"torch", "torchvision", "matplotlib.pyplot"} & modules
