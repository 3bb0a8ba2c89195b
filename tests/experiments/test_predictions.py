"""Predictions as boxes: whose they are, that no pixel is kept, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdet.experiments import evidence, predictions
from rankdet.experiments.experiment import Request, reproduce
from rankdet.experiments.figures import BLUE, GREY, VERMILION
from rankdet.experiments.predictions import EXPERIMENT
from rankdet.experiments.record import read_record

IMAGE = {
    "image": "2008_000001",
    "width": 40,
    "height": 30,
    "objects": [{"box": [0.0, 0.0, 10.0, 20.0], "class": "cat"}],
    "ignored": [],
    "detections": [
        {"box": [1.0, 1.0, 11.0, 21.0], "class": "cat", "score": 0.9},
        {"box": [5.0, 5.0, 9.0, 9.0], "class": "dog", "score": 0.25},
    ],
}


@pytest.mark.parametrize("seed", [0, 3])
def test_the_training_is_that_of_the_longest_schedule(seed: int, tmp_path: Path) -> None:
    request = Request("voc320", tmp_path, voc="VOC2012", seed=seed)
    (row,) = EXPERIMENT.plan(request)
    rows = {one.key: one for one in evidence.RETINANET_LONGEST.plan(request)}
    assert row.trainings == rows[f"longest: AP-Loss: seed {seed}"].trainings
    assert not row.is_outcome  # the run itself is needed


def test_a_record_has_boxes_inside_their_images_and_no_pixels(tmp_path: Path) -> None:
    reproduce(EXPERIMENT, Request("smoke", tmp_path, device="cpu"))
    file = tmp_path / "predictions.json"
    result = read_record(file)["rows"]["AP-Loss"]["result"]
    assert result["images"]
    for one in result["images"]:
        assert one.keys() == IMAGE.keys()
        assert one["image"] == Path(one["image"]).stem  # no folder of anybody's machine
        assert len(one["objects"]) >= 2
        for thing in [*one["objects"], *one["detections"]]:
            left, top, right, bottom = thing["box"]
            assert 0 <= left < right <= one["width"]
            assert 0 <= top < bottom <= one["height"]
    assert "jpeg" not in file.read_text(encoding="utf-8")


def test_the_table_has_a_line_for_each_image(hand_made: Callable[..., dict[str, Any]]) -> None:
    empty = {**IMAGE, "image": "2008_000002", "objects": [], "detections": []}
    result = {"run": "a-run", "metrics": {"AP": 41.6}, "images": [IMAGE, empty]}
    lines = EXPERIMENT.markdown(hand_made("predictions", ["AP-Loss"], {"AP-Loss": result}))
    assert "| 2008_000001 | cat | cat 0.90, dog 0.25 |" in lines.splitlines()
    assert "| 2008_000002 | – | – |" in lines.splitlines()
    assert "- Of the detector on all images: AP 41.6." in lines.splitlines()


def test_a_class_that_no_object_of_the_image_has_stands_out(
    hand_made: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(predictions, "save_figure", lambda drawn, path: kept.append(drawn))
    result = {"run": "a-run", "metrics": {}, "images": [IMAGE] * 5}
    record = hand_made("predictions", ["AP-Loss"], {"AP-Loss": result})
    EXPERIMENT.figure(record, Path("figure.png"))
    assert len(kept[0].axes) == 8  # two lines of four
    texts = {text.get_text(): text.get_color() for text in kept[0].axes[4].texts}
    assert texts == {"cat": GREY, "cat 0.90": BLUE, "dog 0.25": VERMILION}
    assert not kept[0].axes[5].texts


def test_a_class_of_a_difficult_object_is_not_wrong(
    hand_made: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(predictions, "save_figure", lambda drawn, path: kept.append(drawn))
    result = {"run": "a-run", "metrics": {}, "images": [{**IMAGE, "ignored": ["dog"]}]}
    EXPERIMENT.figure(hand_made("predictions", ["AP-Loss"], {"AP-Loss": result}), Path("a.png"))
    texts = {text.get_text(): text.get_color() for text in kept[0].axes[0].texts}
    assert texts == {"cat": GREY, "cat 0.90": BLUE, "dog 0.25": BLUE}


def test_before_it_was_run_the_page_says_so(hand_made: Callable[..., dict[str, Any]]) -> None:
    record = hand_made("predictions", ["AP-Loss"], {})
    assert "not run" in EXPERIMENT.markdown(record)
