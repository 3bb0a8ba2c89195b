"""Detectors that were tested again: their files, and the table of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankdet.errors import RankdetError
from rankdet.experiments.evaluations import FOLDER, evaluations_part, read_evaluations
from rankdet.experiments.results_page import results_page

COMMITTED = Path(__file__).parents[2] / "results/voc320/evaluations/longest-ap-loss.json"


def evaluation(ap: float, **changes: Any) -> dict[str, Any]:
    """What `rankdet evaluate` writes, as far as the table needs it; AP50 is 30 above AP."""
    tested = {"fixed_size": 320, "scales": [], "shorter": 600, "flip": False, "batch_size": 8}
    return {
        "metrics": {"AP": ap, "AP50": ap + 30, "AP75": ap + 1},
        "classes": [{"name": "cat", "ap50": 80.0}, {"name": "dog", "ap50": None}],
        "config": {
            "detector": {"name": "retinanet", "backbone": "resnet50"},
            "loss": {"name": "ap"},
            "evaluation": {**tested, **changes},
        },
        "checkpoint": {"step": 90, "epoch": 54},
        "inference": {},
        "notes": [],
        "data": {"path": "VOC2012", "num_images": 2000, "num_objects": 4815},
        "provenance": {"commit": "0123456789ab", "machine": "a machine", "command": "evaluate x"},
    }


def test_the_table_has_a_row_for_each_file_and_marks_the_best() -> None:
    several = evaluation(40.5, fixed_size=None, scales=[256, 320], flip=True)
    lines = evaluations_part({"one": evaluation(40.0), "several": several}).splitlines()
    start = "retinanet, resnet50 | AP-Loss | 54"
    assert f"| `one` | {start} | 320 x 320 | 40.0 | 70.0 | 41.0 |" in lines
    images = "256, 320 mirrored, too"
    assert f"| `several` | {start} | {images} | **40.5** | **70.5** | **41.5** |" in lines


def test_the_classes_stand_beside_each_other() -> None:
    lines = evaluations_part({"one": evaluation(40.0), "two": evaluation(40.0)}).splitlines()
    assert "| class | `one` | `two` |" in lines
    assert "| cat | 80.0 | 80.0 |" in lines
    assert "| dog | n/a | n/a |" in lines


def test_it_says_where_the_numbers_come_from() -> None:
    text = evaluations_part({"one": evaluation(40.0)})
    assert "- `one`: step 90, commit 0123456789ab, a machine: `evaluate x`" in text


def test_it_says_what_the_files_say_about_their_numbers() -> None:
    noted = {**evaluation(40.0), "notes": ["7 of 9 images have 100 detections"]}
    assert "- `one`: 7 of 9 images have 100 detections" in evaluations_part({"one": noted})


def test_files_are_read_by_their_names(tmp_path: Path) -> None:
    assert read_evaluations(tmp_path) == {}
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "one.json").write_text(COMMITTED.read_text(encoding="utf-8"))
    (tmp_path / FOLDER / "notes.txt").write_text("not one of them")
    found = read_evaluations(tmp_path)
    assert list(found) == ["one"]
    assert found["one"]["metrics"] == json.loads(COMMITTED.read_text(encoding="utf-8"))["metrics"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"protocol": "coco"}, "protocol = coco: expected voc"),
        ({"metrics": None}, "metrics"),
        ({"rankdet_results": 2}, "rankdet_results"),
        ({"classes": []}, "classes"),
    ],
)
def test_a_file_of_another_kind_is_told_by_name(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    (tmp_path / FOLDER).mkdir()
    content = json.loads(COMMITTED.read_text(encoding="utf-8")) | change
    (tmp_path / FOLDER / "one.json").write_text(json.dumps(content))
    with pytest.raises(RankdetError, match=f"one.json.*{words}"):
        read_evaluations(tmp_path)


def test_the_page_has_them_after_the_experiments() -> None:
    text = results_page({}, {"one": evaluation(40.0)})
    assert "Images of val in the folder: 2,000." in text
    assert text.index("## evaluations: ") < text.index("## Not run")
