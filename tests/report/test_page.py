"""The page: what stands on it, that it is whole and safe, and that a bad file never breaks it."""

from __future__ import annotations

import base64
import copy
import hashlib
import itertools
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankdet.errors import RankdetError
from rankdet.report import page as pages
from rankdet.report import plots
from rankdet.report.contents import checked_results
from rankdet.report.fields import FieldError
from rankdet.report.page import MARK, headline, render, write_report
from rankdet.report.reading import ReportRun, read_report_runs
from rankdet.report.templates import source

Make = Callable[..., Path]
VOID = {"meta", "img", "br", "input", "hr", "link"}


class Page(HTMLParser):
    """The elements of a page, with their text; AssertionError where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []  # (tag, text)
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open:
            self.texts.append((self._open[-1], data.strip()))

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def words(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]

    def all_text(self) -> str:
        return " ".join(text for tag, text in self.texts if tag not in ("style", "script"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, make_run: Make) -> Path:
    """Runs: ap and focal on the same data; old without the new parts; hostile."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "ap")
    make_run(folder / "focal", loss="focal", seed=1)
    make_run(folder / "old", is_old=True, has_metrics=False)
    make_run(folder / "hostile", is_hostile=True)
    return folder


def read(folder: Path, *names: str) -> list[ReportRun]:
    return read_report_runs([folder / name for name in names])


@pytest.fixture(scope="module")
def one(folder: Path) -> str:
    return render(read(folder, "ap"))


@pytest.fixture(scope="module")
def two(folder: Path) -> str:
    with pytest.MonkeyPatch.context() as patch:
        remove_plots(patch)
        return render(read(folder, "ap", "focal"))


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    remove_plots(monkeypatch)


def remove_plots(patch: pytest.MonkeyPatch) -> None:
    """Plots take most of the time; where they are not the point, there are none."""
    for name in plots.__all__:
        patch.setattr(plots, name, lambda *_: None)
    patch.setattr(plots, "training_curves", lambda _: {})


def test_the_headline_numbers_stand_on_top(one: str, folder: Path) -> None:
    (run,) = read(folder, "ap")
    page = Page(one)
    assert page.words("h1") == ["AP-loss on synthetic"]
    values = [f"{run.results['metrics'][name]:.1f}" for name in ("AP50", "AP", "AP75")]
    assert page.words("dd")[:3] == values
    assert headline(run) == "AP50 {}, AP {}, AP75 {}".format(*values)


def test_the_loss_is_said_once(folder: Path, make_run: Make, no_plots: None) -> None:
    make_run(folder / "mine", loss="focal")
    make_run(folder / "focal-2", loss="focal")
    titles = {"mine": ["mine", "focal loss"], "focal-2": ["focal-2"], "focal": ["focal loss"]}
    for name, words in titles.items():
        page = Page(render(read(folder, name)))
        assert page.words("h1") == [": ".join(words) + " on synthetic"]
        assert page.words("h3")[0] == words[0]


def test_facts_that_differ_stand_by_run_and_the_others_once(folder: Path, no_plots: None) -> None:
    first, second = read(folder, "ap", "focal")
    first.results["training"]["wall_time_seconds"] = 7.5
    page = Page(render([first, second]))
    assert page.words("dd").count("64") == 1  # images
    assert "Training 7.5 s 3 min 08 s" in page.all_text()
    alone = Page(render([first])).words("dd")
    assert {"7.5 s", "64", "VOC"} <= set(alone)


def test_one_run_shows_its_other_metrics_with_the_headline(folder: Path, no_plots: None) -> None:
    (run,) = read(folder, "ap")
    text = Page(render([run])).all_text()
    assert f"AP50_11point {run.results['metrics']['AP50_11point']:.1f}" in text


def test_differences_of_the_headline_stand_in_the_cards(two: str, folder: Path) -> None:
    before, after = (run.results["metrics"]["AP50"] for run in read(folder, "ap", "focal"))
    difference = f"{after - before:+.1f}".replace("-", "−")
    assert f"AP50 {difference} against AP-loss" in Page(two).all_text()


def test_scores_of_all_runs_have_one_scale(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_plots(monkeypatch)
    scales = []
    monkeypatch.setattr(plots, "score_against_iou", lambda _, scale: scales.append(scale))
    runs = read(folder, "ap", "focal", "old")
    render(runs)
    cells = [cell for run in runs[:2] for cell in run.results["anchors"]["cells"]]
    assert scales == [max(count for _, _, count in cells)] * 3


def test_every_section_is_there_and_in_the_contents(one: str, two: str) -> None:
    names = ["summary", "pictures", "classes", "curves", "score-iou", "errors", "training"]
    for text, expected in (
        (one, [*names, "settings", "provenance"]),
        (two, ["summary", "comparison", *names[1:], "settings", "provenance"]),
    ):
        page = Page(text)
        assert [heading["id"] for heading in page.of("h2")] == expected
        assert [link["href"] for link in page.of("a")] == [f"#{name}" for name in expected]
        assert [section["aria-labelledby"] for section in page.of("section")] == expected


@pytest.mark.parametrize("name", ["one", "two"])
def test_headings_are_in_order_and_ids_are_unique(
    name: str, request: pytest.FixtureRequest
) -> None:
    page = Page(request.getfixturevalue(name))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)


def test_the_page_needs_nothing_else(one: str) -> None:
    page = Page(one)
    places = [
        attributes[name]
        for _, attributes in page.elements
        for name in ("src", "href", "srcset", "data", "action")
        if name in attributes
    ]
    assert len(places) > 25
    assert [place for place in places if not place.startswith(("#", "data:image/"))] == []
    assert "@import" not in one
    assert re.findall(r"url\((?!#)", one) == []


def test_only_our_script_may_run(one: str) -> None:
    page = Page(one)
    (policy,) = [meta["content"] for meta in page.of("meta") if "http-equiv" in meta]
    (script,) = re.findall(r"<script>(.*?)</script>", one, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert f"script-src 'sha256-{digest}';" in policy
    assert "'unsafe-eval'" not in policy


def test_the_mark_stands_at_the_start(one: str) -> None:
    assert MARK in one[:1000]
    assert one.lstrip().startswith("<!DOCTYPE html>")
    assert '<html lang="en">' in one[:200]


def test_the_same_runs_give_the_same_page(folder: Path, two: str, no_plots: None) -> None:
    assert render(read(folder, "ap", "focal")) == two


def test_all_plots_are_on_the_page(one: str) -> None:
    described = [svg["aria-label"] for svg in Page(one).of("svg") if "aria-label" in svg]
    for name in (
        *("Class loss", "Box loss", "Batch AP", "Validation AP50", "Learning rate"),
        *("Gradient norm", "Images per second", "Time per step", "Precision over recall"),
        *("AP50 per class", "Detections by outcome", "Score against IoU", "Confusion of classes"),
    ):
        assert any(text.startswith(name) for text in described), name


def test_a_class_has_its_row(one: str, folder: Path) -> None:
    (run,) = read(folder, "ap")
    row = run.results["classes"][0]
    table = one[one.index('<table class="sortable classes">') :]
    (cells,) = re.findall(r'<th scope="row">disc</th>(.*?)</tr>', table[: table.index("</table>")])
    found = re.findall(r'data-value="([^"]*)">([^<]*)<', cells)
    names = ("num_objects", "num_detections", "ap50", "ap", "ap75", "threshold")
    names += ("precision", "recall", "f1")
    assert [float(value) for value, _ in found] == [row[name] for name in names]
    assert found[2][1] == f"{row['ap50']:.1f}"


def test_what_is_not_available_is_so_for_sorting_too(one: str) -> None:
    table = one[one.index('<table class="sortable classes">') :]
    (cells,) = re.findall(r'<th scope="row">cross</th>(.*?)</tr>', table[: table.index("</table>")])
    assert re.findall(r'data-value="([^"]*)">([^<]*)<', cells)[2:] == [("", "n/a")] * 7


def test_pictures_stand_in_their_groups(one: str) -> None:
    titles = ["Samples", "Best", "Worst: confident mistakes", "Missed"]
    places = [one.index(f"<h3>{title}</h3>") for title in titles]
    places.append(one.index('id="classes"'))
    counts = [one[start:end].count("<img ") for start, end in itertools.pairwise(places)]
    assert counts == [8, 3, 3, 2]


def test_times_are_given_with_their_shares(folder: Path, no_plots: None) -> None:
    (run,) = read(folder, "ap")
    seconds = {"data": 0.010, "forward": 0.020, "loss": 0.0, "backward": 0.069, "step": 0.001}
    rows = [{"kind": "step", "step": step, "seconds": seconds} for step in (1, 2)]
    text = render([ReportRun(run.label, run.path, run.loss, run.results, rows)])
    (row,) = re.findall(r'<th scope="row">backward</th>(.*?)</tr>', text)
    assert re.findall(">([^<]+)</td>", row) == ["69.0 ms", "69.0 %"]
    assert ">100.0 ms</td>" in text


def test_errors_are_counted_and_explained(one: str, folder: Path) -> None:
    errors = read(folder, "ap")[0].results["errors"]
    (row,) = re.findall(r'<th scope="row">localisation<br>(.*?)</tr>', one)
    share = 100 * errors["localisation"] / errors["num_detections"]
    assert "the box fits badly" in row
    assert re.findall(">([^<]+)</td>", row) == [str(errors["localisation"]), f"{share:.1f} %"]


def test_pairs_of_confused_classes_are_listed(folder: Path, no_plots: None) -> None:
    (run,) = read(folder, "ap")
    counts = [[0] * 7 for _ in range(7)]
    counts[0][1], counts[2][0], counts[3][3], counts[6][1], counts[1][6] = 4, 9, 50, 60, 70
    results = run.results | {"confusion": {"iou": 0.5, "counts": counts}}
    page = Page(render([ReportRun("a", run.path, "ap", results, [])]))
    text = page.all_text()
    assert "triangle taken for disc: 9 disc taken for ring: 4" in text
    assert text.count("taken for") == 2


def test_runs_stand_side_by_side_with_their_differences(two: str, folder: Path) -> None:
    first, second = read(folder, "ap", "focal")
    before, after = (run.results["metrics"]["AP50"] for run in (first, second))
    table = two[two.index('id="metrics-table"') :]
    rows = re.findall(r'<th scope="row">(\w+)</th>(.*?)</tr>', table[: table.index("</table>")])
    assert [name for name, _ in rows] == ["ap", "focal"]
    difference = f"{after - before:+.1f}".replace("-", "−")
    assert f">{before:.1f} <span" in rows[0][1]
    assert re.search(
        rf">{after:.1f} <span class=\"difference \w+\">{re.escape(difference)}<", rows[1][1]
    )
    assert re.findall(r"difference \w+\">([^<]*)<", rows[0][1]) == [""] * 4


def test_the_bars_of_classes_say_what_stands_beside_them(
    make_run: Make, tmp_path: Path, no_plots: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "class_bars", lambda _: "<svg></svg>")
    paths = [make_run(tmp_path / f"run {n}") for n in range(5)]
    words = "One bar per class and run, with the threshold that prediction uses."
    assert words in render(read_report_runs(paths[:4]))
    assert "One bar per class and run." in render(read_report_runs(paths))


def test_only_settings_that_differ_are_in_the_comparison(two: str) -> None:
    start = two.index("<h3>What differs</h3>")
    table = two[start : two.index("</table>", start)]
    names = set(re.findall("<code>([^<]+)</code>", table))
    assert names == {"loss.name", "loss.settings", "loss.settings.delta", "seed"}


def test_a_note_of_several_runs_stands_once(folder: Path, no_plots: None) -> None:
    first, second = read(folder, "ap", "focal")
    second = ReportRun("b", second.path, "focal", second.results | {"notes": ["same", "own"]}, [])
    first = ReportRun("a", first.path, "ap", first.results | {"notes": ["same"]}, [])
    text = Page(render([first, second])).all_text()
    assert "same b: own" in text
    assert "b: same" not in text  # all have it
    assert "a: same" not in Page(render([first])).all_text()


def test_an_unfair_comparison_is_warned_about(two: str) -> None:
    assert "The seeds differ (ap: 0; focal: 1)." in Page(two).all_text()


def test_the_same_images_stand_one_above_the_other(two: str) -> None:
    _, *groups = two[: two.index("best, worst and missed")].split('<div class="group">')
    assert len(groups) == 8
    for group in groups:
        assert re.findall("<strong>([^<]+)</strong>", group) == ["ap", "focal"]
        names = re.findall(r'<span class="quiet">(synthetic/val/\d+)</span>', group)
        assert len(names) == 2
        assert len(set(names)) == 1


def test_runs_on_other_data_are_not_put_beside_each_other(
    make_run: Make, folder: Path, tmp_path: Path, no_plots: None
) -> None:
    (run,) = read(folder, "ap")
    data = run.results["data"] | {"fingerprint": "other"}
    make_run(tmp_path / "b", changes={"data": data})
    text = render(read_report_runs([folder / "ap", tmp_path / "b"]))
    assert "no sample images in common" in text
    assert "evaluated on different data" in text
    assert '<div class="group">' not in text


def test_what_an_older_file_lacks_is_said(folder: Path) -> None:
    text = " ".join(render(read(folder, "old")).split())
    for what in ("pictures are", "kinds of errors are", "confusion of classes is", "anchors are"):
        assert re.search(f"{what} not recorded: run <code>rankdet evaluate RUN</code>", text), what
    assert "there is no metrics.jsonl beside the results" in text
    Page(text)


def test_an_evaluation_without_pictures_says_so(
    make_run: Make, tmp_path: Path, no_plots: None
) -> None:
    text = render(read_report_runs([make_run(tmp_path, changes={"pictures": []})]))
    assert "no pictures: the evaluation was told to keep none" in text
    assert "pictures are not recorded" not in text


def test_an_older_run_can_stand_beside_a_new_one(folder: Path, no_plots: None) -> None:
    for names in (("old", "ap"), ("ap", "old")):
        text = render(read(folder, *names))
        assert "old: pictures are not recorded" in " ".join(text.split())
        Page(text)


def test_hostile_names_make_no_elements(folder: Path) -> None:
    text = render(read(folder, "hostile"), title="<script>window.hacked = 1</script>")
    page = Page(text)
    assert len(page.of("script")) == 1
    assert len(page.of("style")) == 1
    for tag, attributes in page.elements:
        assert "data-hostile" not in attributes
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert tag not in ("b", "textarea", "iframe", "object")
    assert "<script>window.hacked = 1</script>" in page.words("h1")


def test_the_title_can_be_given(folder: Path, no_plots: None) -> None:
    page = Page(render(read(folder, "ap"), title="Ours & theirs"))
    assert page.words("h1") == ["Ours & theirs"]
    assert page.words("title")[0].startswith("Ours & theirs")


def test_coco_has_its_twelve_numbers_explained(
    make_run: Make, tmp_path: Path, no_plots: None
) -> None:
    page = Page(render(read_report_runs([make_run(tmp_path, protocol="coco")])))
    explained = page.words("dt")
    for name in ("AP", "AP50", "AP75", "AP_small", "AR_1", "AR_100", "AR_large"):
        assert name in explained
    assert "11point" not in page.all_text()


def test_a_table_of_many_classes_scrolls(make_run: Make, tmp_path: Path, no_plots: None) -> None:
    assert 'class="scroll long"' in render(
        read_report_runs([make_run(tmp_path / "many", num_classes=80)])
    )
    assert 'class="scroll long"' not in render(read_report_runs([make_run(tmp_path / "few")]))


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG defines it."""

    def luminance(colour: str) -> float:
        code = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = [int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_told_from_the_paper_in_light_dark_and_print() -> None:
    themes = re.findall(r":root \{(.*?)\}", source("style.css"), re.DOTALL)
    assert len(themes) == 3
    for theme in themes:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]+);", theme))
        paper = colours["paper"]
        for name in ("ink", "quiet", "link", "better", "worst"):
            assert contrast(colours[name], paper) >= 4.5, name
        series = [colours[f"series-{number}"] for number in range(1, 9)]
        assert len(set(series)) == 8
        for colour in series:
            assert contrast(colour, paper) >= 3, colour


def test_the_script_cannot_end_its_element() -> None:
    assert "</" not in source("script.js")


def test_a_report_is_written_whole(folder: Path, tmp_path: Path, no_plots: None) -> None:
    out = tmp_path / "new" / "page.html"
    (run,) = write_report([folder / "ap"], out, title="A title")
    assert run.label == "ap"
    assert "A title" in out.read_text(encoding="utf-8")
    write_report([folder / "ap"], out)  # one of ours is replaced
    assert "A title" not in out.read_text(encoding="utf-8")


def test_a_foreign_file_is_not_replaced(folder: Path, tmp_path: Path, no_plots: None) -> None:
    out = tmp_path / "page.html"
    out.write_text("my own page")
    with pytest.raises(RankdetError, match="was not written by this command"):
        write_report([folder / "ap"], out)
    assert out.read_text() == "my own page"
    write_report([folder / "ap"], out, is_forced=True)
    assert MARK in out.read_text(encoding="utf-8")


# --- A file that somebody changed: a page, or one error that names the place ---

STRANGE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(0, 300),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["<script>", "\ud800", "voc", "coco", "x" * 5000, 1e308, -1, 0, [], {}, 10**30]
    ),
    st.lists(st.integers(-1, 5), max_size=4),
    st.dictionaries(st.text(max_size=5), st.integers(0, 3), max_size=3),
)


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value; of long lists, that of some."""
    if path:
        yield path
    if isinstance(content, dict):
        for name in content:
            yield from places(content[name], (*path, name))
    elif isinstance(content, list):
        for index in {0, 1, len(content) // 2, len(content) - 1} & set(range(len(content))):
            yield from places(content[index], (*path, index))


@st.composite
def damaged(draw: st.DrawFn, content: Any, sites: list[tuple[Any, ...]]) -> Any:
    """The content with one to three values replaced or taken out."""
    result = copy.deepcopy(content)
    for path in draw(st.lists(st.sampled_from(sites), min_size=1, max_size=3)):
        parent = result
        try:
            for key in path[:-1]:
                parent = parent[key]
            if draw(st.booleans()):
                parent[path[-1]] = draw(STRANGE)
            else:
                del parent[path[-1]]
        except (KeyError, IndexError, TypeError):  # an earlier change took the place away
            continue
    return result


def page_of(content: Any) -> str | None:
    """The page, or None where the content is refused."""
    try:
        results = checked_results(content)
    except FieldError:
        return None
    return render([ReportRun("run", Path("results.json"), "ap", results, [])])


@pytest.fixture(scope="module")
def content(make_results: Callable[..., Any]) -> Any:
    content = make_results(num_classes=4)
    content["pictures"] = content["pictures"][-2:]
    content["anchors"]["cells"] = content["anchors"]["cells"][:20]
    return content


@given(data=st.data())
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_damaged_file_gives_a_whole_page_or_an_error(
    data: st.DataObject, content: Any, no_plots: None
) -> None:
    text = page_of(data.draw(damaged(content, list(places(content)))))
    if text is not None:
        Page(text)
        text.encode("utf-8")


@pytest.mark.slow
@given(data=st.data())
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_the_plots_of_a_damaged_file_are_whole_too(data: st.DataObject, content: Any) -> None:
    text = page_of(data.draw(damaged(content, list(places(content)))))
    if text is not None:
        Page(text)
        text.encode("utf-8")


def test_the_damage_is_sometimes_harmless_and_sometimes_not(content: Any, no_plots: None) -> None:
    assert page_of(content) is not None
    assert page_of(content | {"notes": ["<script>"]}) is not None
    assert page_of(content | {"notes": 3}) is None
    assert pages.MARK in (page_of(content) or "")
