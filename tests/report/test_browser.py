"""The report in a real browser: what a reader sees, on a phone and on a desk, in both themes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdet.data.checking import view
from rankdet.report.page import write_report

_LINES = Path(__file__).with_name("survey.js").read_text(encoding="utf-8").splitlines()
SURVEY = "\n".join(line for line in _LINES if not line.startswith("//"))  # a function
PHONE, DESK, PAPER = 390, 1440, 703  # pixels; paper is A4 within its margins
SMALLEST, SMALLEST_ON_PAPER = 9, 8  # pixels of a font; 8 are six points
PLAIN_NUMBERS = str.maketrans({"−": "-", "±": None, ",": None})
# Lets long tables have their full height: texts below their edge could not be looked at.
UNROLL = """for (const element of document.querySelectorAll("*"))
    if (["auto", "scroll"].includes(getComputedStyle(element).overflowY))
        element.style.maxHeight = "none";"""
EXAMPLES: dict[str, list[dict[str, Any]]] = {  # the options of `make_run` for each run of a page
    "one": [{}],
    "several": [{"loss": "ap"}, {"loss": "focal", "seed": 1}, {"loss": "ohem", "seed": 2}],
    "many-classes": [{"num_classes": 80, "protocol": "coco"}],
    "hostile": [{"is_hostile": True}, {"is_hostile": True, "seed": 1, "loss": "auc"}],
    "old": [
        {"is_old": True, "has_metrics": False},
        {"seed": 1, "changes": {"pictures": []}, "has_metrics": False},
    ],
    "poor": [{"num_classes": 1, "is_torn": True, "num_steps": 10}],
}


@pytest.fixture(scope="module")
def report(
    tmp_path_factory: pytest.TempPathFactory, make_run: Callable[..., Path]
) -> Callable[[str], Path]:
    """The page of one of the examples, which is written when it is first asked for."""
    folder = tmp_path_factory.mktemp("pages")

    def page(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            label = '<b data-hostile="' if name == "hostile" else name
            runs = [
                make_run(folder / f"{label} {number}", **options)
                for number, options in enumerate(EXAMPLES[name])
            ]
            write_report(runs, path)
        return path

    return page


def survey(page: Any, path: Path, width: int, words: str, smallest: int = SMALLEST) -> list[str]:
    """All that is wrong with the page as it is, as sentences that begin with these words."""
    page.evaluate(UNROLL)
    height = page.evaluate("document.scrollingElement.scrollHeight")
    page.resize(width, height)  # all is in the window, and so it is found by its place
    found = page.evaluate(f"({SURVEY})({width}, {smallest})")
    # Asked for after all images: what the page fetches late is among them.
    fetched = {url[:99] for url in page.requests() if url != path.as_uri()}
    found["fetched"] = [url for url in fetched if not url.startswith("data:")]
    found["console"] = page.complaints()
    return [
        f"{width} px {words}: {kind}: {text}" for kind, texts in found.items() for text in texts
    ]


def check(found: list[str]) -> None:
    """Fail with all that was found: pytest would show the beginning alone."""
    if found:
        pytest.fail("\n".join([f"{len(found)} faults:", *found[:60]]), pytrace=False)


def faults(browser: Any, path: Path) -> list[str]:
    """What is wrong on a phone and on a desk, light and dark; a line for each."""
    found = []
    for width in (PHONE, DESK):
        page = browser.open(path, width=width)
        for scheme in ("light", "dark"):
            page.emulate(scheme)
            found += survey(page, path, width, scheme)
    return found


class SortableTable:
    """A table of the page that a reader can sort; its heading is one row of buttons."""

    def __init__(self, page: Any, selector: str) -> None:
        self.page = page
        self.selector = selector
        self._element = f"document.querySelector({json.dumps(selector)})"
        self._buttons = f"[...{self._element}.querySelectorAll('thead th button')]"

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return self.page.evaluate(f"{self._buttons}.map(button => button.textContent.trim())")

    @property
    def orders(self) -> list[str]:
        """What each column says of itself: "ascending", "descending" or "none"."""
        order = "button.closest('th').getAttribute('aria-sort')"
        return self.page.evaluate(f"{self._buttons}.map(button => {order})")

    def button(self, position: int) -> str:
        """The selector of the button of a column."""
        return f"{self.selector} thead th:nth-child({position + 1}) button"

    def texts(self, position: int) -> list[str]:
        """Of a column, without the row of the whole."""
        cells = f"[...{self._element}.tBodies[0].rows].map(row => row.cells[{position}])"
        return self.page.evaluate(f"{cells}.map(cell => cell.textContent.trim())")

    def is_sorted(self, position: int, order: str) -> bool:
        """Whether the numbers of a column are in order, and what is not available comes last."""
        firsts = [text.split()[0] if text else "n/a" for text in self.texts(position)]
        known = [text for text in firsts if text != "n/a"]
        numbers = [float(text.translate(PLAIN_NUMBERS)) for text in known]
        is_last = firsts[len(known) :] == ["n/a"] * (len(firsts) - len(known))
        return is_last and numbers == sorted(numbers, reverse=order == "descending")


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_is_sound_on_a_phone_and_on_a_desk_in_both_themes(
    browser: Any, report: Callable[[str], Path], name: str
) -> None:
    check(faults(browser, report(name)))


def test_the_page_of_a_data_set_is_sound_as_well(browser: Any, tmp_path: Path) -> None:
    sections = view.synthetic_sections(split_names=["val"], wanted=(), count=4, seed=0)
    path = tmp_path / "view.html"
    path.write_bytes(view.render_page(sections, "synthetic", ()))

    check(faults(browser, path))


def test_hostile_names_are_shown_as_they_are(
    browser: Any, report: Callable[[str], Path], hostile_names: tuple[str, ...]
) -> None:
    table = SortableTable(browser.open(report("hostile")), "table.classes")

    names = table.texts(0)

    assert "<script>window.hacked = 1</script>" in names
    assert "{{ 7 * 7 }} {% raw %} ${7 * 7}" in names
    assert len(names) == len(hostile_names)


@pytest.mark.parametrize(
    ("name", "selector", "columns"),
    [
        ("many-classes", "table.classes", {"Objects", "AP50", "Threshold", "F1"}),
        ("several", "#metrics-table", {"AP", "AP50", "AP75"}),
        ("several", "#class-comparison", {"several 0 (ap)", "difference"}),
    ],
)
def test_a_click_on_a_heading_sorts_by_its_numbers_and_another_one_turns_them_round(
    browser: Any, report: Callable[[str], Path], name: str, selector: str, columns: set[str]
) -> None:
    page = browser.open(report(name))
    table = SortableTable(page, selector)
    before = table.texts(0)
    names = table.names
    assert columns <= set(names)

    for position, title in list(enumerate(names))[1:]:
        orders = []
        for _ in range(2):
            page.click(table.button(position))
            orders.append(table.orders[position])
            assert table.is_sorted(position, orders[-1]), (title, orders)
            assert table.orders.count("none") == len(names) - 1, "no other column is sorted"
        assert set(orders) == {"ascending", "descending"}, title

    page.click(table.button(0))
    assert table.orders[0] == "ascending"
    assert set(table.texts(0)) == set(before), "rows are moved, not lost"
    assert len(table.texts(0)) == len(before)
    assert page.complaints() == []


def test_every_table_of_classes_can_be_sorted(browser: Any, report: Callable[[str], Path]) -> None:
    page = browser.open(report("several"))

    tables = "[...document.querySelectorAll('table.sortable')]"
    without = f"{tables}.filter(table => !table.querySelector('thead button')).length"

    assert page.evaluate(f"{tables}.length") == 8  # metrics, comparison; classes and errors by run
    assert page.evaluate(without) == 0


def test_rows_stay_together_when_they_are_sorted(
    browser: Any, report: Callable[[str], Path]
) -> None:
    page = browser.open(report("one"))
    table = SortableTable(page, "table.classes")
    position = table.names.index("AP50")
    pairs = dict(zip(table.texts(0), table.texts(position), strict=True))

    page.click(table.button(position))

    assert dict(zip(table.texts(0), table.texts(position), strict=True)) == pairs
    assert table.texts(0) != list(pairs)


@pytest.mark.parametrize("key", ["Enter", " "])
def test_tables_are_sorted_by_keyboard(
    browser: Any, report: Callable[[str], Path], key: str
) -> None:
    page = browser.open(report("one"))
    table = SortableTable(page, "table.classes")
    position = table.names.index("AP50")
    page.evaluate(f"document.querySelector({json.dumps(table.button(position - 1))}).focus()")
    page.press("Tab")

    page.press(key)
    first = table.orders[position]
    assert first == "descending", "the best first"
    assert table.is_sorted(position, first)
    page.press(key)

    assert table.orders[position] == "ascending"
    assert table.is_sorted(position, "ascending")


def test_the_dark_theme_is_dark(browser: Any, report: Callable[[str], Path]) -> None:
    brightness = (
        "(() => { const [red, green, blue] = getComputedStyle(document.body)"
        ".backgroundColor.match(/\\d+/g).map(Number); return (red + green + blue) / 3 })()"
    )
    page = browser.open(report("one"), scheme="light")
    assert page.evaluate(brightness) > 230
    page.emulate("dark")
    assert page.evaluate(brightness) < 60


@pytest.mark.parametrize("name", ["several", "many-classes"])
def test_print_is_sound_and_on_white_whatever_the_theme(
    browser: Any, report: Callable[[str], Path], name: str
) -> None:
    page = browser.open(report(name), width=PAPER, scheme="dark", media="print")

    check(survey(page, report(name), PAPER, "dark print", SMALLEST_ON_PAPER))


def test_print_shows_what_is_folded_on_the_screen(
    browser: Any, report: Callable[[str], Path]
) -> None:
    page = browser.open(report("several"), width=PAPER, media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")

    folded = "[...document.querySelectorAll('details > :not(summary)')]"
    assert page.evaluate(f"{folded}.length") > 0
    assert page.evaluate(f"{folded}.filter(part => !part.checkVisibility()).length") == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") in (
        *("rgb(255, 255, 255)", "rgba(0, 0, 0, 0)"),
    )
    assert page.pdf().startswith(b"%PDF")


def test_all_content_is_there_without_scripts(browser: Any, report: Callable[[str], Path]) -> None:
    content = (
        "[document.querySelectorAll('svg, img, tr, figure').length, [...document"
        ".querySelectorAll('h1, h2, h3, td, figcaption')].map(part => part.textContent.trim())]"
    )
    with_scripts = browser.open(report("several")).evaluate(content)
    page = browser.open(report("several"), has_scripts=False)

    assert page.evaluate(content) == with_scripts
    hidden = "[...document.querySelectorAll('h2, figure, tr')].filter(part => !part.closest("
    hidden += "'details:not([open])') && !part.checkVisibility()).map(part => part.textContent)"
    assert page.evaluate(hidden) == []
    page.click("summary")
    assert page.evaluate("document.querySelector('details[open]') !== null")
