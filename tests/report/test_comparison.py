"""Runs side by side: differences, settings, and warnings where a comparison is not fair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdet.report.comparison import (
    Cell,
    class_rows,
    differing_settings,
    flat_settings,
    metric_rows,
    warnings,
)
from rankdet.report.reading import ReportRun


def run(label: str = "a", **changes: Any) -> ReportRun:
    """A run with the least that a comparison looks at; a change is a part of the results."""
    results: dict[str, Any] = {
        "protocol": "voc",
        "metrics": {"AP50": 50.0, "AP": 30.0},
        "classes": [{"name": "cat", "ap50": 60.0}, {"name": "dog", "ap50": 40.0}],
        "data": {"path": "photos", "split": "val", "num_images": 9, "fingerprint": "f1"},
        "config": {
            "data": {"size": 160},
            "detector": {"backbone": "small", "weights": "none"},
            "loss": {"name": "ap"},
            "training": {"epochs": 30, "max_steps": None, "batch_size": 16},
            "evaluation": {"fixed_size": 160, "flip": False},
            "seed": 0,
        },
        "training": {"data": {"train": {"split": "t", "num_images": 99, "fingerprint": "f2"}}},
    }
    return ReportRun(label, Path(label), "ap", results | changes, [])


def with_setting(section: str, name: str, value: Any) -> ReportRun:
    config = run().results["config"]
    return run("b", config=config | {section: config[section] | {name: value}})


def test_differences_are_to_the_first_run() -> None:
    runs = [run(), run("b", metrics={"AP50": 51.5}), run("c", metrics={"AP50": None, "AP": 29.0})]
    first, second = metric_rows(runs)
    assert first.name == "AP50"
    assert first.cells == (Cell(50.0, None), Cell(51.5, 1.5), Cell(None, None))
    assert second.cells == (Cell(30.0, None), Cell(None, None), Cell(29.0, -1.0))


def test_a_number_that_the_first_run_lacks_has_no_difference() -> None:
    rows = metric_rows([run("a", metrics={}), run("b", metrics={"AR_1": 20.0})])
    assert rows[0].cells == (Cell(None, None), Cell(20.0, None))


def test_classes_are_matched_by_their_names() -> None:
    other = [
        {"name": "dog", "ap50": 45.0},
        {"name": "cat", "ap50": None},
        {"name": "cow", "ap50": 1.0},
    ]
    rows = class_rows([run(), run("b", classes=other)])
    assert [row.name for row in rows] == ["cat", "dog", "cow"]
    assert rows[0].cells == (Cell(60.0, None), Cell(None, None))
    assert rows[1].cells == (Cell(40.0, None), Cell(45.0, 5.0))
    assert rows[2].cells == (Cell(None, None), Cell(1.0, None))


def test_only_settings_that_differ_are_listed() -> None:
    runs = [run(), with_setting("training", "epochs", 12), with_setting("loss", "extra", [1, 2])]
    assert differing_settings(runs) == [
        ("training.epochs", ["30", "12", "30"]),
        ("loss.extra", ["not set", "not set", "1, 2"]),
    ]
    assert differing_settings([run(), run("b")]) == []


def test_settings_of_settings_are_flat() -> None:
    config = {"loss": {"settings": {"delta": 0.1 + 0.2, "x": {}}}, "flip": True, "a": [{"b": None}]}
    assert flat_settings(config) == {
        "loss.settings.delta": "0.3",
        "loss.settings.x": "none",
        "flip": "true",
        "a": "b: null",
    }


def test_like_runs_give_no_warning() -> None:
    assert warnings([run()]) == []
    assert warnings([run(), run("b", metrics={"AP50": 1.0})]) == []
    assert warnings([run(), with_setting("loss", "name", "focal")]) == []


def data(**changes: Any) -> ReportRun:
    return run("b", data=run().results["data"] | changes)


def trained_on(**changes: Any) -> ReportRun:
    split = run().results["training"]["data"]["train"] | changes
    return run("b", training={"data": {"train": split}})


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (data(fingerprint="f9"), ["evaluated on different data", "a: val, 9 images"]),
        (run("b", protocol="coco"), ["different protocols", "a: VOC; b: COCO"]),
        (run("b", classes=[{"name": "cat", "ap50": 1.0}]), ["not in all runs: dog"]),
        (trained_on(fingerprint="f9"), ["trained on different data", "a: t, 99 images"]),
        (run("b", training=None), ["trained on different data", "b: not recorded"]),
        (with_setting("training", "epochs", 12), ["length of the training", "b: 12 epochs"]),
        (with_setting("training", "max_steps", 60), ["b: 30 epochs, at most 60 steps"]),
        (with_setting("training", "batch_size", 8), ["images in a step", "a: 16; b: 8"]),
        (with_setting("data", "size", 320), ["size of the training images", "a: 160; b: 320"]),
        (with_setting("evaluation", "fixed_size", 320), ["a: 160 x 160; b: 320 x 320"]),
        (with_setting("evaluation", "flip", True), ["mirrored"]),
        (with_setting("detector", "backbone", "resnet50"), ["backbones differ"]),
        (with_setting("detector", "weights", "imagenet"), ["began with different weights"]),
        (run("b", config=run().results["config"] | {"seed": 1}), ["seeds differ", "a: 0; b: 1"]),
    ],
)
def test_each_unfair_difference_gives_one_warning(other: ReportRun, words: list[str]) -> None:
    (warning,) = warnings([run(), other])
    for word in words:
        assert word in warning


def test_the_same_data_under_another_name_is_the_same() -> None:
    assert warnings([run(), data(path="elsewhere", split="test")]) == []
    assert warnings([run(), trained_on(split="other")]) == []


def test_without_fingerprints_the_splits_decide() -> None:
    runs = [run(data=run().results["data"] | {"fingerprint": None}), data(fingerprint=None)]
    assert warnings(runs) == []
    runs[1] = data(fingerprint=None, num_images=8)
    assert len(warnings(runs)) == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"fixed_size": None, "shorter": 600, "longest": 1000}, "600 to 1000"),
        ({"fixed_size": None, "scales": [400, 500]}, "sides 400, 500"),
    ],
)
def test_the_evaluated_size_is_named_as_it_was_set(settings: dict[str, Any], text: str) -> None:
    config = run().results["config"]
    evaluation = config["evaluation"] | settings
    (warning,) = warnings([run(), run("b", config=config | {"evaluation": evaluation})])
    assert f"b: {text}" in warning


def test_real_runs_with_other_seeds_are_warned_about(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    from rankdet.report.reading import read_report_runs

    runs = read_report_runs([make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1)])
    assert [warning.partition(" (")[0] for warning in warnings(runs)] == ["The seeds differ"]
