"""The page of results: of records made by hand, and the committed one of those committed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdet.errors import ConfigError, RankdetError
from rankdet.experiments import scales
from rankdet.experiments.arms import run_folder
from rankdet.experiments.comparison import LOSSES
from rankdet.experiments.evaluations import read_evaluations
from rankdet.experiments.experiment import Request, reproduce
from rankdet.experiments.items import EXPERIMENTS, experiment
from rankdet.experiments.record import changed_settings, read_record
from rankdet.experiments.results_page import (
    ITEMS,
    PAGE_MARK,
    PART_BEGIN,
    PART_END,
    command_of,
    read_introduction,
    read_records,
    readme_part,
    results_page,
    with_part,
)
from rankdet.experiments.seeds import has_seed, number_of_seeds

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "results" / "voc320"
# The page of each folder of records.
PAGES = {"voc320": "results.md", "light-cpu": "results-light.md"}
MARKED = f"above\n\n{PART_BEGIN}\nold\n{PART_END}\n\nbelow\n"


@pytest.fixture
def record_of(hand_made: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """As `hand_made`, of the scale of the page, and with what a page says of the rows."""

    def record(item: str, results: dict[str, Any], plan: list[str] | None = None) -> dict[str, Any]:
        made = hand_made(item, plan or list(results), results)
        made |= {"rankdet_reproduction": 1}
        made["request"] |= {"scale": "voc320", "voc": "some/where/VOC2012"}
        for row in made["rows"].values():
            row["settings"] = {
                "config": {
                    "data": {"path": "some/where/VOC2012"},
                    "loss": {"name": "ap"},
                    "training": {"learning_rate": 0.01, "epochs": 8, "batch_size": 32},
                }
            }
            row["provenance"] = {
                "command": f"rankdet reproduce {item} --scale voc320",
                "commit": "0123456789ab",
                "machine": "a machine",
            }
        return made

    return record


@pytest.mark.parametrize(
    "file",
    [file for name in PAGES for file in sorted((ROOT / "results" / name).glob("*.json"))],
    ids=lambda file: f"{file.parent.name}-{file.stem}",
)
def test_the_committed_records_can_be_gone_on_with(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they were run with is what the experiments would run now; no row is run here."""
    for one in file.parent.glob("*.json"):  # all: some choose the learning rates of others
        shutil.copy(one, tmp_path)
    record = read_record(file)
    rows = record["rows"]
    first = next(filter(has_seed, rows), next(iter(rows)))  # others mean further seeds, too
    backbone = rows[first]["settings"]["config"]["detector"]["weights"]
    monkeypatch.setattr(scales, "_weights", lambda request, name: backbone)
    asked = {name: record["request"][name] for name in ("voc", "weights", "seed")}
    settings = changed_settings(record["request"]["changes"])  # their order does not matter
    changes = tuple(f"{key}={value}" for key, value in reversed(settings.items()))
    monkeypatch.setattr("rankdet.experiments.experiment._finished", lambda *_: pytest.fail("run"))
    item = experiment(file.stem)
    seeds = number_of_seeds(record) if item.usual_seeds else None
    request = Request("voc320", tmp_path, **asked, changes=changes, rows=(first,), seeds=seeds)
    gone_on = reproduce(item, request)
    assert gone_on["rows"] == record["rows"]
    if not item.has_trainings:
        return
    names = {row.key: run_folder(row.trainings[0], request).name for row in item.plan(request)}
    runs = {key: row["result"]["run"] for key, row in record["rows"].items()}
    assert runs == {key: names[key] for key in runs}  # so that runs are found, too


def training(ap: float) -> dict[str, Any]:
    """What came of a training; AP50 is 30 and AP75 is 1 above AP."""
    return {
        "metrics": {"AP": ap, "AP50": ap + 30, "AP75": ap + 1},
        "curve": [],
    }


def seeds(schedule: str, values: dict[str, list[float]]) -> dict[str, Any]:
    """The rows of `evidence`: AP of each seed, by loss."""
    return {
        f"{schedule}: {name}: seed {seed}": training(ap)
        for name, many in values.items()
        for seed, ap in enumerate(many)
    }


def headings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def test_sections_have_the_order_of_the_page_and_one_title(record_of: Any) -> None:
    records = {
        name: record_of(name, {"1": training(30)}) for name in ("losses-voc", "delta", "rates-ssd")
    }
    evidence = record_of("evidence-ssd", seeds("short", {"AP-Loss": [30]}))
    lines = headings(results_page({**records, "evidence-ssd": evidence}))
    titles = [f"## {name}: {experiment(name).summary}" for name in ("rates-ssd", "evidence-ssd")]
    assert lines == [
        "# Results at the scale voc320",
        "## Goals",
        *titles,
        "### Short schedule: 8 epochs",
        "### Long schedule",
        f"## delta: {experiment('delta').summary}",
        f"## losses-voc: {experiment('losses-voc').summary}",  # not of the page: after all others
        "## Not run",
    ]


def test_the_page_knows_its_items() -> None:
    assert set(ITEMS) <= {item.name for item in EXPERIMENTS}
    assert len(set(ITEMS)) == len(ITEMS) == 32


def test_seconds_are_told_by_the_time_of_a_step_alone(record_of: Any) -> None:
    rows = seeds("long", {"AP-Loss": [30, 31], "Focal Loss": [31], "AUC-Loss": [1]})
    curves = {0: [(2, 40), (4, 50), (8, 61)], 1: [(2, 40), (4, 49), (6, 55)]}
    for name, points in (("AP-Loss: seed 0", curves[0]), ("AP-Loss: seed 1", curves[1])):
        curve = [{"epoch": epoch, "AP50": value} for epoch, value in points]
        rows[f"long: {name}"]["curve"] = curve
    steps = {"step_seconds": 0.25, "loss_seconds": 0.01, "step_images": 10, "epoch_images": 100}
    times = record_of("time-share", {"AP-Loss": steps, "Focal Loss": steps})
    evidence = record_of("evidence-retinanet", rows)
    text = results_page({"evidence-retinanet": evidence, "time-share": times})
    lines = text.partition("\n## time-share")[0].splitlines()
    aims = "seconds until AP50 50 | seconds until AP50 60"
    assert f"| schedule and loss | seconds of an epoch | {aims} |" in lines
    # 2.5 s an epoch; 50 after 4 and 6 epochs, 60 after 8 in one of them.
    assert "| long: AP-Loss | 2.50 | 12 | 20 |" in lines
    assert not any(line.startswith(("| long: Focal", "| long: AUC")) for line in lines)
    assert "Alone on the machine" not in results_page({"evidence-retinanet": evidence})


def test_a_section_has_table_figure_and_commands(record_of: Any) -> None:
    text = results_page({"delta": record_of("delta", {"1": training(30.25)}, ["1", "2"])})
    section = text.partition("## delta: ")[2].partition("\n## ")[0]
    assert "| 1 | 30.2 | **53.1** | 60.2 |" in section
    assert "- **Not run yet: 2.**" in section
    assert f"![{experiment('delta').summary}](pictures/voc320/delta.png)" in section
    command = "rankdet reproduce delta --scale voc320 --voc VOC2012 --seed 0"
    assert section.endswith(f"and its commit):\n\n```text\n{command}\n```\n")


def test_the_introduction_says_where_all_rows_come_from(record_of: Any) -> None:
    delta, sigmoid = (record_of(name, {"1": training(30)}) for name in ("delta", "sigmoid"))
    sigmoid["rows"]["1"]["provenance"] |= {"commit": None, "machine": "another"}
    text = results_page({"delta": delta, "sigmoid": sigmoid})
    introduction = text.partition("\n## ")[0]
    assert "Data: VOC2012. Machine: a machine; another. Commit: 0123456789ab." in introduction
    assert introduction.startswith(f"{PAGE_MARK}: ")


def test_the_introduction_names_settings_that_a_user_has_changed(record_of: Any) -> None:
    delta = record_of("delta", {"1": training(30)})
    delta["request"]["changes"] = ["data.size=64"]
    text = results_page({"delta": delta}).partition("\n## ")[0]
    assert "Not as the scale has it in some records: data.size=64." in text


def test_what_has_no_record_is_listed(record_of: Any) -> None:
    text = results_page({"delta": record_of("delta", {"1": training(30)})})
    listed = text.partition("## Not run\n\n")[2].splitlines()
    others = [item.name for item in EXPERIMENTS if item.name not in ITEMS]
    names = [name for name in (*ITEMS, *others) if name != "delta"]
    assert set(names) | {"delta"} == {item.name for item in EXPERIMENTS}
    assert listed == [f"- `{name}`: {experiment(name).summary}" for name in names]


def test_a_page_of_all_items_lists_none(record_of: Any) -> None:
    names = [*ITEMS, *(item.name for item in EXPERIMENTS if item.name not in ITEMS)]
    text = results_page({name: record_of(name, {}, ["a row"]) for name in reversed(names)})
    assert "Not run\n" not in text
    assert [line.split(":")[0] for line in headings(text) if line.startswith("## ")] == [
        "## Goals",
        *(f"## {name}" for name in names),
    ]


def test_the_page_begins_with_the_words_of_the_folder(record_of: Any, tmp_path: Path) -> None:
    assert read_introduction(tmp_path).startswith("# Results at the scale voc320\n")
    text = "\n# Mine\r\n\r\nWhat I found.\r\n"
    (tmp_path / "introduction.md").write_bytes(text.encode("utf-8-sig"))  # as editors on Windows do
    records = {"delta": record_of("delta", {"1": training(30)})}
    lines = results_page(records, introduction=read_introduction(tmp_path)).splitlines()
    assert lines[2:5] == ["# Mine", "", "What I found."]


@pytest.mark.parametrize("words", ["", "No title.", "## Too low"])
def test_an_introduction_without_a_title_is_told(tmp_path: Path, words: str) -> None:
    (tmp_path / "introduction.md").write_text(words)
    with pytest.raises(ConfigError, match=r"introduction\.md: .*expected the title of the page"):
        read_introduction(tmp_path)


def test_an_introduction_that_is_a_folder_or_leads_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "introduction.md").mkdir()
    with pytest.raises(ConfigError, match=r"introduction\.md: this is a folder: .*Move it away"):
        read_introduction(tmp_path)
    (tmp_path / "introduction.md").rmdir()
    (tmp_path / "introduction.md").symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"introduction\.md"):
        read_introduction(tmp_path)


def test_a_page_of_another_network_has_no_goals(record_of: Any) -> None:
    record = record_of("evidence-retinanet", seeds("long", {"AP-Loss": [30, 31]}))
    assert "## Goals" in headings(results_page({"evidence-retinanet": record}))
    record["request"]["changes"] = ["detector.backbone=mobilenet_v2"]
    assert "## Goals" not in headings(results_page({"evidence-retinanet": record}))


def test_a_page_of_nothing_says_so() -> None:
    text = results_page({})
    assert "Nothing was run at the scale `voc320` yet." in text
    assert all(f"- `{name}`: " in text for name in ITEMS)
    assert "](pictures/" not in text


def test_an_item_that_shows_its_figure_itself_has_it_once(record_of: Any) -> None:
    result = {"run": "a-run", "metrics": {}, "pictures": []}
    text = results_page({"pictures": record_of("pictures", {"AP-Loss": result})}, pictures="here")
    assert re.findall(r"!\[[^]]+\]\(([^)]+)\)", text) == ["here/pictures.png"]


def test_the_command_has_the_seeds_and_changes_of_the_record(record_of: Any) -> None:
    record = record_of("evidence-ssd", seeds("short", {"AP-Loss": [1, 2], "AUC-Loss": [1, 2]}))
    record["request"]["changes"] = ["data.hold=true"]
    assert command_of(record) == (
        "rankdet reproduce evidence-ssd --scale voc320 --voc VOC2012 --seed 0 --seeds 2 "
        "--set data.hold=true"
    )
    assert f"```text\n{command_of(record)}\n```\n" in results_page({"evidence-ssd": record})


def test_the_part_has_every_loss_and_the_difference_to_the_best_other(record_of: Any) -> None:
    values = {"CE-Loss + OHEM": [31.0, 33.0], "Focal Loss": [20.0], "AP-Loss": [30.0, 32.0]}
    results = seeds("short", values)
    plan = [*results, "short: AUC-Loss: seed 0", "long: AP-Loss: seed 0"]
    lines = readme_part({"evidence-ssd": record_of("evidence-ssd", results, plan)}).splitlines()
    assert lines[0] == "**SSD, short schedule: 8 epochs**"
    rows = [line for line in lines if line.startswith("|")]
    assert rows == [
        "| training loss | seeds | AP | AP50 | AP75 |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| CE-Loss + OHEM | 2 | **32.00** ± 1.41 | **62.00** ± 1.41 | **33.00** ± 1.41 |",
        "| Focal Loss | 1 | 20.00 | 50.00 | 21.00 |",
        "| AUC-Loss | 0 of 1 | – | – | – |",
        "| AP-Loss | 2 | 31.00 ± 1.41 | 61.00 ± 1.41 | 32.00 ± 1.41 |",
    ]
    # Welch: t(0.975, 2) * sqrt(2 / 2 + 2 / 2) = 4.3027 * sqrt(2) = 6.08
    best = "(CE-Loss + OHEM)"
    assert f"AP-Loss less the best other loss: AP -1.00 ± 6.08 {best}, AP50 -1.00" in lines[9]
    assert lines[-1] == "Data: VOC2012. Machine: a machine. Commit: 0123456789ab."
    assert not any("long schedule" in line for line in lines)


def test_the_best_other_loss_is_that_of_each_metric(record_of: Any) -> None:
    values = dict(zip(LOSSES, ([20.0], [21.0], [22.0], [25.0]), strict=True))
    record = record_of("evidence-retinanet", seeds("long", values))
    record["rows"]["long: Focal Loss: seed 0"]["result"]["metrics"]["AP75"] = 30.0
    text = readme_part({"evidence-retinanet": record})
    assert "**RetinaNet, long schedule: 8 epochs**" in text
    differences = "AP +3.00 (AUC-Loss), AP50 +3.00 (AUC-Loss), AP75 -4.00 (Focal Loss)."
    assert f"AP-Loss less the best other loss: {differences}" in text


def test_the_part_says_whose_learning_rate_lies_at_the_edge(record_of: Any) -> None:
    rates = record_of("rates-retinanet", {f"AP-Loss: {rate}": training(rate) for rate in (1, 2, 3)})
    for rate in (1, 2, 3):
        config = {"loss": {"name": "ap"}, "training": {"learning_rate": rate}}
        rates["rows"][f"AP-Loss: {rate}"]["settings"] = {"config": config}
    evidence = record_of("evidence-retinanet", seeds("short", {"AP-Loss": [30]}))
    records = {"rates-retinanet": rates, "evidence-retinanet": evidence}
    edge = "At the edge of the learning rates that were tried: AP-Loss."
    assert edge in readme_part(records).splitlines()
    rates["rows"]["AP-Loss: 2"]["result"] = training(9)
    assert "At the edge" not in readme_part(records)


@pytest.mark.parametrize("values", [{"AP-Loss": [1.0]}, {"AUC-Loss": [1.0]}])
def test_one_loss_alone_has_no_difference(record_of: Any, values: dict[str, list[float]]) -> None:
    text = readme_part({"evidence-ssd": record_of("evidence-ssd", seeds("short", values))})
    assert "| 1.00 | 31.00 | 2.00 |" in text
    assert "less the best other" not in text


def test_retinanet_stands_before_ssd(record_of: Any) -> None:
    records = {
        name: record_of(name, seeds("short", {"AP-Loss": [1.0]}))
        for name in ("evidence-ssd", "evidence-retinanet")
    }
    assert re.findall(r"\*\*(\w+), ", readme_part(records)) == ["RetinaNet", "SSD"]


def test_a_part_without_numbers_says_so(record_of: Any) -> None:
    waiting = record_of("evidence-ssd", {}, ["short: AP-Loss: seed 0"])
    for records in ({}, {"evidence-ssd": waiting}, {"delta": record_of("delta", {})}):
        assert readme_part(records) == "Nothing was run at the scale `voc320` yet."


def test_a_part_stands_between_its_marks() -> None:
    text = with_part(MARKED, "new")
    assert text == MARKED.replace("old", "new")
    assert with_part(text, "new") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        MARKED.replace(PART_BEGIN, ""),
        MARKED.replace(PART_END, ""),
        f"{PART_END}\n{PART_BEGIN}\n",
        f"{PART_BEGIN}\nmine\n{PART_BEGIN}\n{PART_END}\n",
        f"{PART_BEGIN}\n{PART_END}\nmine\n{PART_END}\n",
    ],
)
def test_missing_marks_are_told(text: str) -> None:
    with pytest.raises(ConfigError, match=r"page\.md: the lines <!-- .* are not there"):
        with_part(text, "new", "page.md")


def test_line_ends_stay_as_they_are() -> None:
    text = f"mine\r\n{PART_BEGIN}\r\nold\r\n{PART_END}\r\nmine, too\n"
    expected = f"mine\r\n{PART_BEGIN}\r\nnew\r\nlines\r\n{PART_END}\r\nmine, too\n"
    assert with_part(text, "new\nlines") == expected


def test_records_are_read_by_their_items(record_of: Any, tmp_path: Path) -> None:
    record = record_of("delta", {"1": training(30)})
    (tmp_path / "delta.json").write_text(json.dumps(record))
    (tmp_path / "delta.md").write_text("a table")
    assert read_records(tmp_path) == {"delta": record}
    assert read_records(tmp_path / "no-such-folder") == {}


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("delta", {"request": {"scale": "tiny"}}, "it is of the scale tiny, and the page is about"),
        ("dleta", {"item": "dleta"}, "there is no such experiment"),
        ("delta", {"rankdet_reproduction": 2}, "expected 1"),
        ("z", {}, "z.json: this is a record of delta: expected the name delta.json"),
    ],
)
def test_records_that_are_none_of_the_page_are_told(
    record_of: Any, tmp_path: Path, name: str, change: dict[str, Any], words: str
) -> None:
    record = record_of("delta", {})
    (tmp_path / f"{name}.json").write_text(json.dumps({**record, **change}))
    with pytest.raises(RankdetError, match=re.escape(words)):
        read_records(tmp_path)


@pytest.mark.parametrize(("name", "file"), PAGES.items())
def test_the_committed_pages_are_made_from_the_committed_records(name: str, file: str) -> None:
    folder = ROOT / "results" / name
    records = read_records(folder)
    page = results_page(
        records, read_evaluations(folder), f"pictures/{name}", read_introduction(folder)
    )
    assert (ROOT / "docs" / file).read_text(encoding="utf-8") == page, (
        f"run: rankdet reproduce page results/{name} --out docs/{file} (--readme README.md: voc320)"
    )
    pictures = (ROOT / "docs" / "pictures" / name).glob("*")
    assert {path.name for path in pictures} == {f"{name}.png" for name in records}


def test_the_committed_readme_has_the_part_of_the_committed_records() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == with_part(text, readme_part(read_records(COMMITTED)))
    assert text.count(PART_BEGIN) == text.count(PART_END) == 1
