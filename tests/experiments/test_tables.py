"""Tables and figures of records that were made by hand: the right number in the right cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankdet.experiments.benchmarks import inference_of
from rankdet.experiments.experiment import Experiment, Request
from rankdet.experiments.items import EXPERIMENTS, experiment
from rankdet.experiments.tables import (
    Cell,
    comparison_table,
    markdown_table,
    missing_text,
    origin,
    page,
)

COMMIT, MACHINE = "0123456789ab", "a machine"


def record_of(
    item: Experiment,
    results: dict[str, Any],
    *,
    plan: list[str] | None = None,
    errors: tuple[str, ...] = (),
    scale: str = "voc320",
) -> dict[str, Any]:
    """A record with these results; what is in the plan and has none was not run yet."""
    provenance = {"commit": COMMIT, "machine": MACHINE}
    config = {
        "data": {"path": "VOC2012"},
        "detector": {"backbone": "resnet101", "rois": 512},
        "loss": {"name": "ap"},
        "training": {
            "epochs": 12,
            "max_steps": None,
            "batch_size": 16,
            "accumulate": 1,
            "learning_rate": 0.02,
            "reference_batch_size": 32,
        },
        "evaluation": {"fixed_size": 320, "shorter": 600, "longest": 1000},
    }
    common = {"settings": {"config": config}, "seconds": 10.0, "provenance": provenance}
    rows: dict[str, Any] = {key: {"result": value, **common} for key, value in results.items()}
    rows |= {key: {"error": "not finite", **common} for key in errors}
    return {
        "rankdet_reproduction": 1,
        "item": item.name,
        "labels": list(item.labels),
        "request": {"scale": scale, "seed": 4},
        "plan": plan if plan is not None else list(rows),
        "rows": rows,
    }


def training(ap: float, ap50: float, ap75: float, **others: Any) -> dict[str, Any]:
    return {
        "run": "a-run",
        "metrics": {"AP": ap, "AP50": ap50, "AP75": ap75},
        "classes": {"cat": 70.25, "dog": None},
        "curve": [
            {"step": 5, "epoch": 1, "AP": ap / 2, "AP50": ap50 / 2},
            {"step": 10, "epoch": 2, "AP": ap, "AP50": ap50},
        ],
        "inference": {
            "network_images_per_second": 40.0,
            "images_per_second": 20.0,
            "batch_size": 32,
            "images": "320 x 320",
            "precision": "float32",
            "machine": "a GPU",
        },
        "training": {"counts": {"roi.boxes_per_image": 511.5, "roi.positives_per_image": 30.25}},
        **others,
    }


def lines_of(item: Experiment, record: dict[str, Any], tmp_path: Path) -> list[str]:
    """The lines of the page; its figure can be drawn, too."""
    item.figure(record, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    return item.markdown(record).splitlines()


def test_a_table_has_the_paper_s_numbers_beside_ours(tmp_path: Path) -> None:
    item = experiment("delta")
    results = {"0.25": training(1.25, 20.0, 3.0), "1": training(2.0, 19.0, 3.0)}
    record = record_of(item, results, plan=["0.25", "0.5", "1", "2", "4"], errors=("4",))
    lines = lines_of(item, record, tmp_path)
    assert "| delta | AP | paper | AP50 | paper | AP75 | paper |" in lines
    assert "| 0.25 | 1.2 | 50.2 | **20.0** | 80.7 | 3.0 | 53.6 |" in lines
    assert "| 0.5 | not run | 51.3 | not run | 81.6 | not run | 55.4 |" in lines
    assert "| 1 | **2.0** | **53.1** | 19.0 | 82.3 | 3.0 | **58.1** |" in lines
    assert "| 2 | not run | 52.8 | not run | **82.6** | not run | 57.2 |" in lines
    assert "| 4 | failed | 50.5 | failed | 80.2 | failed | 54.7 |" in lines
    assert "- **Not run yet: 0.5, 2. Failed: 4.**" in lines


def test_changes_of_the_user_stand_below_the_table() -> None:
    record = {
        "rows": {},
        "plan": [],
        "labels": [],
        "request": {"scale": "tiny", "seed": 0, "changes": ["data.size=96"]},
    }
    assert "Scale tiny, `--set data.size=96`, seed 0," in origin(record)


def test_changes_of_the_user_stand_beside_what_is_said_of_the_scale(tmp_path: Path) -> None:
    record = record_of(experiment("delta"), {"1": training(1, 2, 3)})
    record["request"]["changes"] = ["data.size=96", "data.workers=2"]
    note = "- **Changed, whatever the scale has: `--set data.size=96`, `--set data.workers=2`.**"
    lines = lines_of(experiment("delta"), record, tmp_path)
    assert lines.index(note) == 1 + next(i for i, line in enumerate(lines) if "- Scale " in line)


def test_a_page_says_where_its_numbers_come_from(tmp_path: Path) -> None:
    item = experiment("delta")
    lines = lines_of(item, record_of(item, {"1": training(1, 2, 3)}), tmp_path)
    assert lines[0].startswith("# delta: ")
    assert any(line.startswith("- Scale voc320: ") for line in lines)
    assert lines[-1] == (
        "In the paper: `voc-smoothing`. Scale voc320, seed 4, commit 0123456789ab, a machine, "
        "10 s for 1 of 1 rows."
    )


def test_seconds_of_a_training_that_rows_share_count_once(tmp_path: Path) -> None:
    item = experiment("delta")
    results = {"1": training(1, 2, 3), "2": training(1, 2, 3)}  # of the same run
    results["4"] = training(1, 2, 3, run="another-run")
    lines = lines_of(item, record_of(item, results), tmp_path)
    assert lines[-1].endswith("20 s for 3 of 3 rows.")


def test_rows_of_different_commits_are_told() -> None:
    keys = ["long: AP-Loss: seed 0", "long: AP-Loss: seed 1", "long: Focal Loss: seed 0"]
    record = record_of(experiment("evidence-retinanet"), dict.fromkeys(keys, training(1, 2, 3)))
    assert "different commits" not in page(record, "a title", [])
    record["rows"][keys[2]] = {"provenance": {"commit": "fedcba987654", "machine": MACHINE}}
    told = "0123456789ab: long: AP-Loss; fedcba987654: long: Focal Loss."
    assert f"of different commits stand beside each other. {told}" in page(record, "a title", [])


def test_columns_of_groups_are_those_of_the_paper(tmp_path: Path) -> None:
    item = experiment("batch-size")
    record = record_of(item, {"Focal-Loss: 2": training(10, 20, 30)}, plan=["Focal-Loss: 2"])
    lines = lines_of(item, record, tmp_path)
    row = "| 2 | 10.0 | 51.1 | 20.0 | 80.5 | 30.0 | 55.0 | – | 53.0 | – | 81.7 | – | 57.8 |"
    assert row in lines


def test_a_test_set_on_a_server_has_no_number(tmp_path: Path) -> None:
    item = experiment("ghm-dr")
    row = "RetinaNet500+GHM-C"
    results = {
        f"VOC2007: {row}": training(10, 20, 30),
        f"VOC2012: {row}": {**training(1, 2, 3), "metrics": None, "submission": "files"},
    }
    lines = lines_of(item, record_of(item, results, scale="paper"), tmp_path)
    assert any(
        line.startswith(f"| {row} | 10.0 | 54.6 | 20.0 | 81.7 | 30.0 | 60.1 | server | 80.9 |")
        for line in lines
    )
    assert any("VOC2012 test has no public annotations" in line for line in lines)


def test_columns_of_both_years_are_said_to_be_the_same_where_they_are(tmp_path: Path) -> None:
    item = experiment("ghm-dr")
    results = {f"{year}: RetinaNet500+GHM-C": training(1, 2, 3) for year in ("VOC2007", "VOC2012")}
    lines = lines_of(item, record_of(item, results), tmp_path)
    same = "- VOC2007 and VOC2012, as the paper has them, are the same here: train of --voc, tested"
    assert f"{same} on its val." in lines


def test_a_benchmark_has_other_methods_and_our_classes(tmp_path: Path) -> None:
    item = experiment("benchmark-voc07")
    lines = lines_of(item, record_of(item, {"AP-loss500": training(40, 70.5, 45)}), tmp_path)
    assert any(line.startswith("| RefineDet512 | VGG-16 | paper | 81.8 | 88.7 |") for line in lines)
    ours = next(line for line in lines if line.startswith("| **AP-loss500** |"))
    cells = [cell.strip() for cell in ours.strip("|").split("|")]
    heading = next(line for line in lines if line.startswith("| method |"))
    names = [cell.strip() for cell in heading.strip("|").split("|")]
    values = dict(zip(names, cells, strict=True))
    assert (values["by"], values["backbone"], values["AP50"]) == ("ours", "resnet101", "70.5")
    assert (values["cat"], values["dog"], values["tv"]) == ("70.2", "n/a", "–")
    # 40 images in a second are 25 ms for each; the paper has 11 on its machine.
    assert "| AP-loss500 | 40.0 | 25.0 | 20.0 | 32 | 320 x 320 | float32 | a GPU |" in lines
    assert any(
        line.startswith("| paper | 11 | 91 | – | – | 500 | – | one NVidia TitanX GPU |")
        for line in lines
    )
    assert any("those of + keep the aspect" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "images"),
    [
        ({"fixed_size": 320}, "320 x 320"),
        ({}, "500"),
        ({"scales": [400, 500], "flip": True}, "400, 500 mirrored, too"),
    ],
)
def test_a_speed_is_kept_with_what_it_depends_on(changes: dict[str, Any], images: str) -> None:
    evaluation = {"batch_size": 8, "fixed_size": None, "shorter": 500, "scales": [], "flip": False}
    results = {
        "inference": {"images_per_second": 20.0},
        "config": {"evaluation": {**evaluation, **changes}},
        "provenance": {"machine": "a GPU"},
    }
    assert inference_of(results) == {
        "images_per_second": 20.0,
        "batch_size": 8,
        "images": images,
        "precision": "float32",
        "machine": "a GPU",
    }


def test_the_fine_tuned_detector_stands_below_the_paper_s(tmp_path: Path) -> None:
    item = experiment("coco-to-voc")
    keys = [f"{group}: {data}" for group in ("Single-Scale", "Multi-Scale") for data in ("VOC07",)]
    results = {key: training(50, 80 + number, 60) for number, key in enumerate(keys)}
    plan = [*keys, "Single-Scale: VOC12", "Multi-Scale: VOC12"]
    lines = lines_of(item, record_of(item, results, plan=plan), tmp_path)
    place = lines.index("| Single-Scale: Ours | ResNet-101 | paper | 86.2 | 87.2 |")
    assert lines[place + 1] == "| **Single-Scale: AP-loss** | resnet101 | ours | 80.0 | not run |"
    assert "| **Multi-Scale: AP-loss** | resnet101 | ours | 81.0 | not run |" in lines


def test_curves_are_tables_over_epochs(tmp_path: Path) -> None:
    item = experiment("curves-retinanet")
    key = "RetinaNet + PASCAL VOC: AP-Loss"
    lines = lines_of(item, record_of(item, {key: training(30, 50, 40)}), tmp_path)
    assert "| epoch | CE-Loss + OHEM | Focal Loss | AUC-Loss | AP-Loss |" in lines
    assert "| 1 | – | – | – | 25.0 |" in lines
    assert "| 2 | – | – | – | 50.0 |" in lines


def test_the_regions_that_were_used_are_told(tmp_path: Path) -> None:
    item = experiment("rois")
    results = {"Faster: 512": training(50.125, 80, 55)}
    lines = lines_of(item, record_of(item, results, scale="tiny"), tmp_path)
    assert any(line.startswith("| 512 | 50.12 | **54.09** |") for line in lines)
    assert "| Faster: 512 | 512 | 511.5 | 30.2 |" in lines
    assert "- At this scale, 8 times fewer regions than the rows say." in lines
    assert any(
        line.startswith("- Learning rates, for the images of a step: 0.01 for ap. `rates-faster-rc")
        for line in lines
    )


def test_the_table_of_robustness_has_the_paper_s_columns(tmp_path: Path) -> None:
    item = experiment("robustness")
    names = ("original", "black", "random", "flip", "adversarial", "noise")
    result = {
        "perturbations": [
            {"name": name, "metrics": {"AP50": 60.0 + number}} for number, name in enumerate(names)
        ],
        "deepfool": {"norm_255": 12.5, "success_rate": 90.0, "num_attacked": 20},
        "data": {"num_images": 500, "num_objects": 1234},
        "settings": {"limit": 500, "deepfool_objects": 100},
        "patch": {"split": "train", "num_images": 2000, "settings": {"steps": 300}},
    }
    lines = lines_of(item, record_of(item, {"AP-Loss": result}), tmp_path)
    assert any(
        line.startswith("| AP-Loss | 60.0 | **82.3** | 61.0 | **65.2** | 62.0 | **65.2** |")
        and line.endswith("| 12.5 | **16.4** |")
        for line in lines
    )
    assert any("AP-Loss 90.0 % of 20" in line for line in lines)
    assert any(
        "of the same sample, Original too: the first 500 images, 1,234 objects" in line
        and "300 steps" in line
        and "the first 100 detected objects" in line
        for line in lines
    )


def test_few_objects_may_be_next_to_their_threshold_and_the_page_says_so(tmp_path: Path) -> None:
    item = experiment("robustness")
    result = {
        "perturbations": [{"name": "original", "metrics": {"AP50": 60.0}}],
        "deepfool": {"norm_255": 0.001, "success_rate": 100.0, "num_attacked": 1},
        "data": {"num_images": 2, "num_objects": 3},
        "settings": {"limit": 2, "deepfool_objects": 1},
        "patch": {"split": "train", "num_images": 16, "settings": {"steps": 1}},
    }
    lines = lines_of(item, record_of(item, {"AP-Loss": result}), tmp_path)
    assert any("may be next to nothing. Of fewer than 20 objects" in line for line in lines)


def test_detectors_without_an_object_to_attack_are_said_to_have_none(tmp_path: Path) -> None:
    item = experiment("robustness")
    result = {
        "perturbations": [{"name": "original", "metrics": {"AP50": 6.0}}],
        "deepfool": {"norm_255": None, "success_rate": None, "num_attacked": 0},
        "data": {"num_images": 2, "num_objects": 3},
        "settings": {"limit": 2, "deepfool_objects": 1},
        "patch": {"split": "train", "num_images": 16, "settings": {"steps": 1}},
    }
    text = "\n".join(lines_of(item, record_of(item, {"AP-Loss": result}), tmp_path))
    assert "of those attacked: AP-Loss none to attack." in text
    assert "no object has an anchor box that predicts its class" in text
    assert "% of 0" not in text
    assert "at its threshold already" not in text


@pytest.mark.parametrize("item", EXPERIMENTS, ids=lambda item: item.name)
def test_rows_that_failed_are_not_shown_as_waiting(item: Experiment, tmp_path: Path) -> None:
    settings = {row.key: row.settings for row in item.plan(Request("smoke", tmp_path))}
    record = record_of(item, {}, errors=tuple(settings), scale="smoke")
    for key, row in record["rows"].items():
        row["settings"] = settings[key]
    lines = item.markdown(record).splitlines()
    assert not any("not run" in line for line in lines)
    tables = [line for line in lines if line.startswith("| ") or line == "failed"]
    assert any("failed" in line for line in tables)


def test_what_stands_in_place_of_a_number() -> None:
    rows = {
        "a": {"result": {"metrics": {"AP": 1.0}}},
        "b": {"error": "x"},
        "c": {"result": {"metrics": None, "submission": "files"}},
        "d": {"result": {"metrics": None}},
    }
    record = {"rows": rows, "plan": ["a", "b", "c", "d", "e"]}
    texts = {key: missing_text(record, key) for key in "abcdef"}
    assert texts == {
        "a": "",
        "b": "failed",
        "c": "server",
        "d": "no labels",
        "e": "not run",
        "f": "–",
    }


def test_an_empty_record_is_a_table_of_what_is_missing(tmp_path: Path) -> None:
    for name in ("delta", "benchmark-coco", "coco-to-voc", "curves-ssd", "rois", "robustness"):
        item = experiment(name)
        lines = lines_of(item, record_of(item, {}, plan=["a row"]), tmp_path)
        assert "- **Not run yet: a row.**" in lines


def test_nothing_is_bold_where_all_are_equal_or_there_is_one() -> None:
    cells = {("a", "x"): Cell(1.0), ("b", "x"): Cell(1.0), ("a", "y"): Cell(2.0)}
    assert "**" not in comparison_table("row", ["a", "b"], ["x", "y"], cells)


def test_what_is_shown_decides_what_is_bold() -> None:
    values = {"x": (0.01, 0.02, 0.0), "y": (0.251, 0.249, 0.1)}
    cells = {
        (row, column): Cell(value)
        for column, of_rows in values.items()
        for row, value in zip("abc", of_rows, strict=True)
    }
    lines = comparison_table("row", list("abc"), list(values), cells, decimals=1).splitlines()
    assert lines[2:] == ["| a | 0.0 | **0.3** |", "| b | 0.0 | 0.2 |", "| c | 0.0 | 0.1 |"]
    lines = comparison_table("row", list("abc"), list(values), cells, decimals=2).splitlines()
    assert lines[2:] == [
        *("| a | 0.01 | **0.25** |", "| b | **0.02** | **0.25** |", "| c | 0.00 | 0.10 |")
    ]


@pytest.mark.parametrize(
    ("body", "is_told"),
    [
        (["words", "| a | **1.5** |"], True),
        (["| a | **1.50** ± 0.10 |"], True),
        (["| **a method** | 1.5 |", "**1.5**"], False),
    ],
)
def test_a_page_with_bold_numbers_says_what_bold_means(body: list[str], is_told: bool) -> None:
    text = page(record_of(experiment("delta"), {}), "a title", body)
    assert ("\n- Bold: the best number of its column.\n" in text) == is_told


def test_the_paper_s_column_is_left_out_where_it_has_no_number() -> None:
    text = comparison_table("row", ["a"], ["x", "y"], {("a", "x"): Cell(1, 2), ("a", "y"): Cell(3)})
    assert text.splitlines()[0] == "| row | x | paper | y |"


def test_a_markdown_table_has_a_rule_below_its_heading() -> None:
    assert markdown_table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | ---: |\n| 1 | 2 |"


@pytest.mark.parametrize("rows", [{}, {"a": {"error": "x", "seconds": 1.0}}])
def test_the_origin_of_a_record_without_numbers_can_be_told(rows: dict[str, Any]) -> None:
    record = {"rows": rows, "request": {"scale": "tiny", "seed": 0}, "labels": [], "plan": ["a"]}
    assert "In the paper: none. Scale tiny" in origin(record)
