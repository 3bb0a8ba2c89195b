from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from rankdet.errors import RankdetError
from rankdet.metrics.coco import METRICS, evaluate_coco, ground_truth, results
from rankdet.metrics.voc import evaluate_voc
from rankdet.structures import Detections, Target

SMALL, LARGE, AWAY = (0, 0, 10, 10), (0, 0, 200, 200), (300, 300, 310, 310)
Objects = Callable[..., Target]
Found = Callable[..., Detections]


def test_the_numbers_of_a_scene_worked_out_by_hand(objects: Objects, found: Found) -> None:
    # Cats: a small one found with IoU 1 and a large one found with IoU 0.75 in image 0; a false
    # detection with the best score in image 1. Precision at the two: 1/2, 2/3, so 2/3 throughout.
    # From IoU 0.8 on only the small one is found: precision 1/2 up to recall 0.5, 51 of 101
    # recalls (0, 0.01, ..., 0.5). Dogs: one, not found. Birds: none.
    targets = [objects((0, SMALL), (0, LARGE)), objects((1, LARGE))]
    detections = [
        found((0, 0.8, SMALL), (0, 0.7, (0, 0, 200, 150))),
        found((0, 0.9, AWAY)),
    ]
    evaluation = evaluate_coco(detections, targets, ["cat", "dog", "bird"])
    cat, dog, bird = evaluation.classes
    # Thresholds 0.5 to 0.75 are six, 0.8 to 0.95 four.
    strict = 100 * 51 / 101 / 2
    assert cat.ap50 == pytest.approx(100 * 2 / 3)
    assert cat.ap75 == pytest.approx(100 * 2 / 3)
    assert cat.ap == pytest.approx((6 * 100 * 2 / 3 + 4 * strict) / 10)
    assert cat.ap50_11point is None
    assert (dog.ap, dog.ap50, dog.ap75) == (0, 0, 0)
    assert (bird.ap, bird.ap50, bird.ap75) == (None, None, None)
    assert [row.num_objects for row in evaluation.classes] == [2, 1, 0]
    assert [row.num_detections for row in evaluation.classes] == [3, 0, 0]

    metrics = evaluation.metrics
    assert metrics["AP"] == pytest.approx(cat.ap / 2)
    assert metrics["AP50"] == pytest.approx(cat.ap50 / 2)
    # Small: the false one (area 100) has the better score; the large ones are ignored. Medium:
    # no objects. Large: the cat alone among the cats, with its detection of area 30,000.
    assert metrics["AP_small"] == pytest.approx(50)
    assert metrics["AP_medium"] is None
    assert metrics["AP_large"] == pytest.approx(100 * 0.6 / 2)
    assert metrics["AR_1"] == pytest.approx(50 / 2)  # the best of each image: the small cat
    assert metrics["AR_100"] == pytest.approx((0.6 * 100 + 0.4 * 50) / 2)
    assert tuple(metrics) == METRICS
    assert evaluation.protocol == "coco"
    assert evaluation.notes == ("1 of 3 classes have no objects (not in the mean): bird.",)

    # Best F1 by VOC's matching: 0.7 with 2 of 3 right and 2 of 2 found.
    assert cat.threshold == pytest.approx(0.7)
    assert (cat.precision, cat.recall, cat.f1) == pytest.approx((200 / 3, 100, 80))
    assert evaluation.curves[0] is not None
    assert evaluation.curves[2] is None
    content = evaluation.to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_ids_are_counted_from_1_and_ignored_objects_are_crowds(objects: Objects) -> None:
    target = objects((1, (10, 20, 40, 60)), (0, SMALL), ignored=[1])
    target.areas[0] = 777.0  # that of a mask
    content = ground_truth([objects(), target, target], ["cat", "dog"])
    assert [image["id"] for image in content["images"]] == [1, 2, 3]
    assert content["images"][0] == {"id": 1, "height": 400, "width": 500}
    assert content["categories"] == [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    assert [annotation["id"] for annotation in content["annotations"]] == [1, 2, 3, 4]
    assert [annotation["image_id"] for annotation in content["annotations"]] == [2, 2, 3, 3]
    assert content["annotations"][0] == {
        "id": 1,
        "image_id": 2,
        "category_id": 2,
        "bbox": [10, 20, 30, 40],
        "area": 777,
        "iscrowd": 0,
    }
    assert content["annotations"][1]["iscrowd"] == 1


def test_results_have_the_same_ids(found: Found) -> None:
    assert results([found(), found((1, 0.5, (10, 20, 40, 60)))]) == [
        {"image_id": 2, "category_id": 2, "bbox": [10, 20, 30, 40], "score": 0.5}
    ]


def test_without_detections_everything_is_zero(objects: Objects, found: Found) -> None:
    targets = [objects((0, SMALL), (0, (0, 0, 50, 50)), (0, LARGE)), objects()]
    evaluation = evaluate_coco([found(), found()], targets, ["cat"])
    assert set(evaluation.metrics.values()) == {0}
    assert evaluation.classes[0].ap == 0


def test_without_objects_nothing_is_available(objects: Objects, found: Found) -> None:
    for targets in ([objects()], [objects((0, SMALL), ignored=[0])]):
        evaluation = evaluate_coco([found((0, 0.5, SMALL))], targets, ["cat", "dog"])
        assert evaluation.metrics == dict.fromkeys(METRICS)
        assert [row.ap for row in evaluation.classes] == [None, None]
    assert evaluate_coco([], [], ["cat"]).metrics == dict.fromkeys(METRICS)


def test_a_box_that_is_not_finite_does_not_reach_the_evaluator(
    objects: Objects, found: Found
) -> None:
    with pytest.raises(ValueError, match="expected finite boxes"):
        evaluate_coco([found((0, 0.5, (0, 0, 1, float("nan"))))], [objects((0, SMALL))], ["cat"])


def test_a_note_says_when_the_limit_of_detections_is_reached(
    objects: Objects, found: Found
) -> None:
    targets = [objects((0, SMALL))] * 3
    three = found(*[(0, 0.5, SMALL)] * 3)
    detections = [three, found((0, 0.5, SMALL)), three]
    (note,) = evaluate_coco(detections, targets, ["cat"], max_detections=3).notes
    assert note.startswith("2 of 3 images have 3 detections, the most that are kept")
    assert evaluate_coco(detections, targets, ["cat"], max_detections=4).notes == ()
    assert evaluate_coco(detections, targets, ["cat"]).notes == ()


def test_a_note_says_when_coco_leaves_out_detections(objects: Objects, found: Found) -> None:
    targets = [objects((0, SMALL))] * 2
    detections = [
        found(*[(0, 0.5, SMALL)] * 101),
        found(*[(0, 0.5, SMALL)] * 60, *[(1, 0.5, SMALL)] * 60),
    ]
    notes = evaluate_coco(detections, targets, ["cat", "dog"], max_detections=300).notes
    assert "1 of 2 images have more than 100 detections of a class" in notes[0]
    assert "dog" in notes[1]


def test_nothing_is_printed(
    objects: Objects, found: Found, capfd: pytest.CaptureFixture[str]
) -> None:
    evaluate_coco([found((0, 0.5, SMALL))], [objects((0, SMALL))], ["cat"])
    assert capfd.readouterr() == ("", "")


def test_without_the_package_the_error_says_what_to_install(
    objects: Objects, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(RankdetError, match="pip install faster-coco-eval"):
        evaluate_coco([found()], [objects((0, SMALL))], ["cat"])


# ---- Random scenes against pycocotools


def random_scene(seed: int, num_scores: int, num_detections: int) -> tuple[Any, Any, int]:
    """Sides around 32 and 96, the borders between COCO's sizes; equal scores; crowds."""
    rng = np.random.default_rng(seed)
    num_classes = int(rng.integers(1, 4))
    sides = np.array([8, 31, 32, 33, 95, 96, 97, 150])

    def boxes(count: int) -> torch.Tensor:
        corner = rng.integers(0, 4, (count, 2)) * rng.choice([1, 8, 40])
        return torch.tensor(np.hstack([corner, corner + rng.choice(sides, (count, 2))])).float()

    detections, targets = [], []
    for _ in range(rng.integers(1, 5)):
        count = int(rng.integers(0, 6))
        own = boxes(count)
        labels = torch.tensor(rng.integers(0, num_classes, count))
        # Some areas are those of masks: smaller than the box, or exactly on a border.
        areas = (own[:, 2:] - own[:, :2]).prod(1)
        masks = torch.tensor(rng.choice([0, 512, 1024, 9216], count)).float()
        areas = torch.where(masks > 0, masks, areas)
        is_ignored = torch.tensor(rng.random(count) < 0.25)
        targets.append(Target(own, labels, is_ignored, areas, 0, (300, 300)))
        extra = int(rng.integers(0, num_detections + 1))
        near = own[torch.tensor(rng.integers(0, count, 2 * count), dtype=torch.int64)]
        near = near + torch.tensor(rng.integers(0, 4, near.shape)).float()
        all_boxes = torch.cat([near, boxes(extra)])
        labels = torch.tensor(rng.integers(0, num_classes, len(all_boxes)))
        scores = torch.tensor(rng.integers(0, num_scores, len(all_boxes))).float() / num_scores
        detections.append(Detections(all_boxes, scores, labels))
    return detections, targets, num_classes


def by_pycocotools(
    detections: list[Detections], targets: list[Target], num_classes: int
) -> tuple[list[float], np.ndarray]:
    """(the twelve numbers, precision (T, R, K)), with ids of other kinds than ours."""
    annotations, rows = [], []
    for i, (found, target) in enumerate(zip(detections, targets, strict=True)):
        for j in range(len(target)):
            x1, y1, x2, y2 = target.boxes[j].tolist()
            annotations.append(
                {
                    "id": 1000 * (i + 1) + j,
                    "image_id": 10 * i,
                    "category_id": 7 * int(target.labels[j]),
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": float(target.areas[j]),
                    "iscrowd": int(target.is_ignored[j]),
                }
            )
        for j in range(len(found)):
            x1, y1, x2, y2 = found.boxes[j].tolist()
            rows.append(
                {
                    "id": len(rows) + 1,
                    "image_id": 10 * i,
                    "category_id": 7 * int(found.labels[j]),
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": (x2 - x1) * (y2 - y1),
                    "iscrowd": 0,
                    "score": float(found.scores[j]),
                }
            )
    truth, given = COCO(), COCO()
    common = {
        "images": [{"id": 10 * i} for i in range(len(targets))],
        "categories": [{"id": 7 * k} for k in range(num_classes)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        for coco, content in ((truth, annotations), (given, rows)):
            coco.dataset = {**common, "annotations": content}
            coco.createIndex()
        judge = COCOeval(truth, given, "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return judge.stats.tolist(), judge.eval["precision"][:, :, :, 0, 2]


def check_against_pycocotools(seed: int, num_scores: int, num_detections: int) -> None:
    detections, targets, num_classes = random_scene(seed, num_scores, num_detections)
    stats, precision = by_pycocotools(detections, targets, num_classes)
    evaluation = evaluate_coco(detections, targets, [str(k) for k in range(num_classes)])

    def percent(value: float) -> Any:
        return None if value == -1 else pytest.approx(100 * value, abs=1e-9)

    for name, value in zip(METRICS, stats, strict=True):
        assert evaluation.metrics[name] == percent(value), name
    for label, result in enumerate(evaluation.classes):
        assert result.ap == percent(precision[:, :, label].mean())
        assert result.ap50 == percent(precision[0, :, label].mean())
        assert result.ap75 == percent(precision[5, :, label].mean())
    # The thresholds are VOC's.
    voc = evaluate_voc(detections, targets, [str(k) for k in range(num_classes)])
    assert evaluation.thresholds == voc.thresholds
    assert evaluation.curves == voc.curves


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([2, 5, 1000]))
def test_it_equals_pycocotools(seed: int, num_scores: int) -> None:
    check_against_pycocotools(seed, num_scores, num_detections=12)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([5, 1000]))
def test_it_equals_pycocotools_with_more_than_100_detections(seed: int, num_scores: int) -> None:
    check_against_pycocotools(seed, num_scores, num_detections=400)
