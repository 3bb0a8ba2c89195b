from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdet.metrics.voc import evaluate_voc
from rankdet.structures import Detections, Target

BOX, AWAY = (0, 0, 10, 10), (50, 50, 60, 60)
CLASSES = ("cat", "dog", "bird")
Objects = Callable[..., Target]
Found = Callable[..., Detections]
Scene = tuple[list[Detections], list[Target]]


@pytest.fixture
def scene(objects: Objects, found: Found) -> Scene:
    """Cats: three that count, in images 0, 0 and 2, and a difficult one in image 1. A dog in
    image 1, looked for in image 3. No bird, but a detection of one."""
    targets = [
        objects((0, BOX), (0, (20, 0, 30, 10))),
        objects((0, BOX), (1, BOX), ignored=[0]),
        objects((0, BOX)),
        objects(),
    ]
    detections = [
        found((0, 0.9, BOX), (0, 0.8, (0, 0, 10, 9)), (0, 0.5, AWAY)),  # true, duplicate, false
        found((0, 0.7, BOX), (0, 0.65, BOX)),  # both on the difficult cat: not counted
        found((0, 0.6, (0, 0, 10, 5))),  # IoU exactly 0.5
        found((1, 0.9, BOX), (2, 0.3, BOX)),
    ]
    return detections, targets


def test_the_numbers_of_a_scene_worked_out_by_hand(scene: Scene) -> None:
    evaluation = evaluate_voc(*scene, CLASSES)
    cat, dog, bird = evaluation.classes
    # IoU 0.5: T F T F, precisions 1 and 2/3 at recalls 1/3 and 2/3.
    assert cat.ap50 == pytest.approx(100 * (1 + 2 / 3) / 3)
    assert cat.ap50_11point == pytest.approx(100 * (4 * 1 + 3 * 2 / 3) / 11)
    # The other nine thresholds: T F F F.
    assert cat.ap75 == pytest.approx(100 / 3)
    assert cat.ap == pytest.approx(100 * (5 / 9 + 9 / 3) / 10)
    # F1 of the scores 0.9, 0.8, 0.6, 0.5: 2/4, 2/5, 4/6, 4/7.
    assert cat.threshold == pytest.approx(0.6)
    assert (cat.precision, cat.recall, cat.f1) == pytest.approx((200 / 3, 200 / 3, 200 / 3))
    assert (cat.num_objects, cat.num_detections) == (3, 6)

    assert (dog.ap, dog.ap50, dog.ap75, dog.ap50_11point) == (0, 0, 0, 0)
    assert (dog.num_objects, dog.num_detections) == (1, 1)
    assert (dog.threshold, dog.precision, dog.recall, dog.f1) == (None, None, None, None)
    assert (bird.ap, bird.ap50, bird.ap75, bird.ap50_11point, bird.threshold) == (None,) * 5
    assert (bird.num_objects, bird.num_detections) == (0, 1)

    # Means over cat and dog: the class without objects is not among them.
    for name, value in (
        ("AP", cat.ap),
        ("AP50", cat.ap50),
        ("AP75", cat.ap75),
        ("AP50_11point", cat.ap50_11point),
    ):
        assert value is not None
        assert evaluation.metrics[name] == pytest.approx(value / 2)
    assert list(evaluation.metrics) == ["AP", "AP50", "AP75", "AP50_11point"]
    assert evaluation.protocol == "voc"
    assert evaluation.notes == ("1 of 3 classes have no objects (not in the mean): bird.",)
    assert evaluation.thresholds == (cat.threshold, None, None)


def test_the_curve_of_a_scene_worked_out_by_hand(scene: Scene) -> None:
    cat, dog, bird = evaluate_voc(*scene, CLASSES).curves
    assert cat is not None
    assert cat.score == pytest.approx((0.9, 0.8, 0.6, 0.5))
    assert cat.recall == pytest.approx((33.333, 33.333, 66.667, 66.667))
    assert cat.precision == pytest.approx((100, 50, 66.667, 50))
    assert dog is not None
    assert (dog.recall, dog.precision) == ((0.0,), (0.0,))
    assert bird is None


def test_an_evaluation_survives_json(scene: Scene) -> None:
    content = evaluate_voc(*scene, CLASSES).to_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["classes"][2]["ap"] is None
    assert content["curves"][2] is None


def test_without_detections_everything_is_zero(objects: Objects, found: Found) -> None:
    evaluation = evaluate_voc([found(), found()], [objects((0, BOX)), objects()], ["cat"])
    assert set(evaluation.metrics.values()) == {0}
    assert evaluation.thresholds == (None,)


def test_a_note_says_when_the_limit_of_detections_is_reached(
    objects: Objects, found: Found
) -> None:
    targets = [objects((0, BOX))] * 2
    detections = [found(*[(0, 0.5, BOX)] * 3), found((0, 0.5, BOX))]
    (note,) = evaluate_voc(detections, targets, ["cat"], max_detections=3).notes
    assert note.startswith("1 of 2 images have 3 detections, the most that are kept")
    assert evaluate_voc(detections, targets, ["cat"], max_detections=4).notes == ()


def test_without_objects_nothing_is_available(objects: Objects, found: Found) -> None:
    for targets in ([objects()], [objects((0, BOX), ignored=[0])]):
        evaluation = evaluate_voc([found((0, 0.5, BOX))], targets, ["cat"])
        assert set(evaluation.metrics.values()) == {None}
    assert set(evaluate_voc([], [], ["cat"]).metrics.values()) == {None}


def test_detections_that_are_not_finite_are_refused(objects: Objects, found: Found) -> None:
    with pytest.raises(ValueError, match="finite scores"):
        evaluate_voc([found((0, float("nan"), BOX))], [objects((0, BOX))], ["cat"])


def test_of_equal_scores_the_earlier_image_counts_first(objects: Objects, found: Found) -> None:
    targets = [objects((0, BOX)), objects()]
    detections = [found((0, 0.5, BOX)), found((0, 0.5, BOX))]
    assert evaluate_voc(detections, targets, ["cat"]).metrics["AP50"] == pytest.approx(100)
    turned = evaluate_voc(detections[::-1], targets[::-1], ["cat"])
    assert turned.metrics["AP50"] == pytest.approx(50)


# ---- Random scenes against the definition, line by line


def random_scene(seed: int, num_scores: int) -> tuple[list[Detections], list[Target], int]:
    """Boxes on a coarse grid: equal IoUs, IoUs on the thresholds, and equal scores are common."""
    rng = np.random.default_rng(seed)
    num_classes = int(rng.integers(1, 4))

    def boxes(count: int) -> torch.Tensor:
        corner = rng.integers(0, 3, (count, 2))
        return torch.tensor(np.hstack([corner, corner + rng.integers(3, 7, (count, 2))])).float()

    detections, targets = [], []
    for _ in range(rng.integers(1, 5)):
        count = int(rng.integers(0, 5))
        labels = torch.tensor(rng.integers(0, num_classes, count))
        is_ignored = torch.tensor(rng.random(count) < 0.25)
        targets.append(Target(boxes(count), labels, is_ignored, torch.ones(count), 7, (9, 9)))
        count = int(rng.integers(0, 9))
        scores = torch.tensor(rng.integers(0, num_scores, count)).float() / num_scores
        labels = torch.tensor(rng.integers(0, num_classes, count))
        detections.append(Detections(boxes(count), scores, labels))
    return detections, targets, num_classes


def inclusive_iou(box: list[float], other: list[float]) -> Fraction:
    """The development kit's IoU, of pixels counted from 1 with both ends included, exact."""
    a = [int(box[0]) + 1, int(box[1]) + 1, int(box[2]), int(box[3])]
    b = [int(other[0]) + 1, int(other[1]) + 1, int(other[2]), int(other[3])]
    width = min(a[2], b[2]) - max(a[0], b[0]) + 1
    height = min(a[3], b[3]) - max(a[1], b[1]) + 1
    if width <= 0 or height <= 0:
        return Fraction(0)
    area_a = (a[2] - a[0] + 1) * (a[3] - a[1] + 1)
    area_b = (b[2] - b[0] + 1) * (b[3] - b[1] + 1)
    return Fraction(width * height, area_a + area_b - width * height)


def slow_ranking(scene: Scene, label: int, threshold: Fraction) -> tuple[list[bool], int]:
    """True and false positives of a class, best first, and the number of objects."""
    detections, targets = scene
    entries = [
        (-score, image, position)
        for image, found in enumerate(detections)
        for position, score in enumerate(found.scores.tolist())
        if found.labels[position] == label
    ]
    claimed: set[tuple[int, int]] = set()
    is_true = []
    for _, image, position in sorted(entries):
        target = targets[image]
        best, best_iou = None, Fraction(-1)
        for i in range(len(target)):
            if target.labels[i] != label:
                continue
            box = detections[image].boxes[position].tolist()
            iou = inclusive_iou(box, target.boxes[i].tolist())
            if iou > best_iou:
                best, best_iou = i, iou
        if best is None or best_iou < threshold:
            is_true.append(False)
        elif target.is_ignored[best]:
            continue
        else:
            is_true.append((image, best) not in claimed)
            claimed.add((image, best))
    num_objects = sum(
        int(((target.labels == label) & ~target.is_ignored).sum()) for target in targets
    )
    return is_true, num_objects


def slow_average_precision(is_true: list[bool], num_objects: int) -> float:
    """The area under the envelope: each object's highest precision at its recall or above."""
    points, tp = [], 0
    for rank, flag in enumerate(is_true, start=1):
        tp += flag
        points.append((tp, tp / rank))
    heights = (
        max((p for n, p in points if n >= needed), default=0)
        for needed in range(1, num_objects + 1)
    )
    return sum(heights) / num_objects


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([2, 5, 1000]))
def test_it_equals_a_slow_loop_after_the_definition(seed: int, num_scores: int) -> None:
    detections, targets, num_classes = random_scene(seed, num_scores)
    evaluation = evaluate_voc(detections, targets, [str(k) for k in range(num_classes)])
    for label, result in enumerate(evaluation.classes):
        averages = []
        for twentieth in range(10, 20):
            ranking = slow_ranking((detections, targets), label, Fraction(twentieth, 20))
            if ranking[1]:
                averages.append(100 * slow_average_precision(*ranking))
        if not averages:
            assert result.ap is None
            continue
        assert result.ap50 == pytest.approx(averages[0], abs=1e-9)
        assert result.ap75 == pytest.approx(averages[5], abs=1e-9)
        assert result.ap == pytest.approx(sum(averages) / 10, abs=1e-9)
    known = [result.ap for result in evaluation.classes if result.ap is not None]
    assert evaluation.metrics["AP"] == (pytest.approx(np.mean(known)) if known else None)


# ---- What must not matter


def shuffled(count: int, seed: int) -> torch.Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def distinct_scores(seed: int) -> tuple[list[Detections], list[Target], list[str]]:
    detections, targets, num_classes = random_scene(seed, 1000)
    count = sum(len(found) for found in detections)
    scores = iter((shuffled(count, seed) + 1) / (count + 1))
    detections = [
        dataclasses.replace(found, scores=torch.tensor([float(next(scores)) for _ in found.labels]))
        for found in detections
    ]
    return detections, targets, [str(k) for k in range(num_classes)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_the_order_of_images_and_detections_does_not_matter(seed: int) -> None:
    detections, targets, classes = distinct_scores(seed)
    order = list(range(len(targets)))
    random.Random(seed).shuffle(order)
    mixed = [detections[i].select(shuffled(len(detections[i]), seed)) for i in order]
    turned = evaluate_voc(mixed, [targets[i] for i in order], classes)
    assert turned == evaluate_voc(detections, targets, classes)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_only_the_order_of_the_scores_matters(seed: int) -> None:
    detections, targets, classes = distinct_scores(seed)
    evaluation = evaluate_voc(detections, targets, classes)
    moved = [dataclasses.replace(found, scores=found.scores * 8 - 100) for found in detections]
    other = evaluate_voc(moved, targets, classes)
    assert other.metrics == evaluation.metrics
    for before, after in zip(evaluation.classes, other.classes, strict=True):
        assert dataclasses.replace(after, threshold=before.threshold) == before
        if before.threshold is not None:
            assert after.threshold == pytest.approx(before.threshold * 8 - 100, rel=1e-5)
