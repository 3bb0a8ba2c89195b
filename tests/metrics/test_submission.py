from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch
from pycocotools.coco import COCO

from rankdet.errors import RankdetError
from rankdet.metrics.submission import coco_results, voc_files
from rankdet.structures import Detections

Found = Callable[..., Detections]
FOLDER = "results/VOC2012/Main"


def test_the_files_for_the_voc_server(found: Found) -> None:
    # The whole of a 500 x 375 image is 1 1 500 375 there.
    detections = [
        found((0, 0.75, (0, 0, 500, 375)), (1, 0.5, (9.5, 19.25, 30, 40))),
        found(),
        found((0, 0.25, (1, 2, 3, 4))),
    ]
    names = ["2008_000001", "2008_000002", "2008_000003"]
    assert voc_files(detections, names, ["cat", "dog", "bird"]) == {
        f"{FOLDER}/comp4_det_test_cat.txt": (
            b"2008_000001 0.75 1.000 1.000 500.000 375.000\n"
            b"2008_000003 0.25 2.000 3.000 3.000 4.000\n"
        ),
        f"{FOLDER}/comp4_det_test_dog.txt": b"2008_000001 0.5 10.500 20.250 30.000 40.000\n",
        f"{FOLDER}/comp4_det_test_bird.txt": b"",
    }


def test_competition_split_and_year_can_be_chosen(found: Found) -> None:
    files = voc_files([], [], ["cat"], competition="comp3", split="val", year="VOC2007")
    assert files == {"results/VOC2007/Main/comp3_det_val_cat.txt": b""}


def test_scores_keep_their_order_however_near_or_small(found: Found) -> None:
    one = np.float32(1)
    scores = [float(np.nextafter(one, np.float32(0))), float(one), 1.5e-30, 1e-30]
    content = voc_files([found(*[(0, s, (0, 0, 1, 1)) for s in scores])], ["a"], ["cat"])
    lines = content[f"{FOLDER}/comp4_det_test_cat.txt"].decode().splitlines()
    written = [np.float32(line.split()[1]) for line in lines]
    assert written == [np.float32(score) for score in scores]


@pytest.mark.parametrize(
    "name", ["traffic light", "../../etc/passwd", "a/b", "a\\b", "..", "/", "a\nb", "a\0b", "猫"]
)
def test_no_class_leaves_the_folder(name: str, found: Found) -> None:
    (path,) = voc_files([], [], [name])
    assert str(PurePosixPath(path).parent) == FOLDER
    file = PurePosixPath(path).name
    assert file.isascii()
    assert file.isprintable()
    assert not set(file) & set(" /\\")


def test_classes_that_look_alike_have_different_files() -> None:
    names = ["a b", "a_b", "a%20b", "a/b", "ab"]
    assert len(voc_files([], [], names)) == len(names)


@pytest.mark.parametrize("name", ["a b", "a\tb", "a\nb", ""])
def test_names_that_would_break_a_line_are_refused(name: str, found: Found) -> None:
    with pytest.raises(RankdetError, match="without spaces"):
        voc_files([found()], [name], ["cat"])


def test_the_file_for_the_coco_server(found: Found) -> None:
    detections = [found((1, 0.5, (10, 20, 40, 60)), (0, 0.25, (0, 0, 1, 1))), found()]
    content = coco_results(detections, [397133, 0], [1, 90])
    assert json.loads(content) == [
        {"image_id": 397133, "category_id": 90, "bbox": [10, 20, 30, 40], "score": 0.5},
        {"image_id": 397133, "category_id": 1, "bbox": [0, 0, 1, 1], "score": 0.25},
    ]
    assert coco_results([], [], [1]) == b"[]\n"


def test_pycocotools_reads_the_file(found: Found) -> None:
    truth = COCO()
    truth.dataset = {"images": [{"id": 12}], "categories": [{"id": 7}], "annotations": []}
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        rows = json.loads(coco_results([found((0, 0.5, (1, 2, 4, 6)))], [12], [7]))
        (annotation,) = truth.loadRes(rows).loadAnns(1)
    assert annotation["bbox"] == [1, 2, 3, 4]
    assert annotation["area"] == 12


def test_a_score_keeps_all_of_its_digits(found: Found) -> None:
    (row,) = json.loads(coco_results([found((0, 1 / 3, (0, 0, 1, 1)))], [1], [1]))
    assert torch.tensor(row["score"], dtype=torch.float32) == torch.tensor(1 / 3)


def test_ids_that_repeat_are_refused(found: Found) -> None:
    with pytest.raises(RankdetError, match="more than once"):
        coco_results([found(), found()], [3, 3], [1])


def test_every_image_needs_a_name_or_id(found: Found) -> None:
    with pytest.raises(ValueError, match="expected 1 names or ids of images, got 2"):
        voc_files([found()], ["a", "b"], ["cat"])
    with pytest.raises(ValueError, match="expected 1 names or ids of images, got 0"):
        coco_results([found()], [], [1])


def test_numbers_that_are_not_finite_are_refused(found: Found) -> None:
    spoilt = found((0, float("nan"), (0, 0, 1, 1)))
    with pytest.raises(ValueError, match="expected finite scores"):
        coco_results([spoilt], [1], [1])
    with pytest.raises(ValueError, match="expected finite scores"):
        voc_files([spoilt], ["a"], ["cat"])


def test_unknown_labels_are_refused(found: Found) -> None:
    with pytest.raises(ValueError, match="expected labels from 0 to 0"):
        coco_results([found((1, 0.5, (0, 0, 1, 1)))], [1], [1])
    with pytest.raises(ValueError, match="expected labels from 0 to 0"):
        voc_files([found((-1, 0.5, (0, 0, 1, 1)))], ["a"], ["cat"])
