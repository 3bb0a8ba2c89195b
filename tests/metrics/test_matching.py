from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from rankdet.metrics import matching
from rankdet.metrics.matching import IOU_THRESHOLDS, Matches, match, paired_iou
from rankdet.structures import Detections, Target

BOX = (0, 0, 10, 10)
Objects = Callable[..., Target]
Found = Callable[..., Detections]


def fates(matches: Matches, label: int = 0, threshold: int = 0) -> str:
    """T, F, and - for "not counted", best first."""
    rows = slice(matches.offsets[label], matches.offsets[label + 1])
    signs = np.where(matches.is_true[threshold, rows], "T", "F")
    return "".join(np.where(matches.is_counted[threshold, rows], signs, "-"))


def test_the_thresholds_are_the_nearest_numbers_to_the_decimal_fractions() -> None:
    assert IOU_THRESHOLDS == (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


def test_the_second_detection_of_an_object_is_false(objects: Objects, found: Found) -> None:
    # The better score claims, not the better box and not the first of the list.
    detections = [found((0, 0.8, BOX), (0, 0.9, (0, 0, 10, 9)))]
    matches = match(detections, [objects((0, BOX))], 1)
    assert matches.scores.tolist() == pytest.approx([0.9, 0.8])
    assert fates(matches) == "TF"
    assert fates(matches, threshold=-1) == "FT"  # at 0.95 the first one's 0.9 is too little


def test_an_iou_equal_to_the_threshold_is_enough(objects: Objects, found: Found) -> None:
    # 60 of 100 pixels: 0.6, the third threshold.
    matches = match([found((0, 0.9, (0, 0, 10, 6)))], [objects((0, BOX))], 1)
    assert [fates(matches, threshold=i) for i in range(4)] == ["T", "T", "T", "F"]


def test_detections_on_an_ignored_object_do_not_count(objects: Objects, found: Found) -> None:
    detections = [found((0, 0.9, BOX), (0, 0.8, BOX), (0, 0.7, (0, 0, 10, 4)))]
    matches = match(detections, [objects((0, BOX), ignored=[0])], 1)
    assert fates(matches) == "--F"
    assert not matches.is_true.any()
    assert matches.num_objects.tolist() == [0]
    scores, is_true = matches.of_class(0)
    assert scores.tolist() == pytest.approx([0.7])
    assert is_true.tolist() == [False]


def test_an_ignored_object_takes_the_detection_that_fits_it_best(
    objects: Objects, found: Found
) -> None:
    # IoU 0.8 with the ignored object, 0.7 with the other: it belongs to the ignored one.
    target = objects((0, (0, 0, 10, 7)), (0, (0, 0, 10, 8)), ignored=[1])
    detection = found((0, 0.9, (0, 0, 10, 10)))
    assert fates(match([detection], [target], 1)) == "-"
    # At a threshold that neither reaches it is false.
    assert fates(match([detection], [target], 1, thresholds=[0.85])) == "F"


def test_a_detection_does_not_fall_back_on_its_second_best_object(
    objects: Objects, found: Found
) -> None:
    # Both are nearest to the first object; the second overlaps with IoU 0.8 but stays unfound.
    target = objects((0, BOX), (0, (0, 0, 10, 8)))
    assert fates(match([found((0, 0.9, BOX), (0, 0.8, BOX))], [target], 1)) == "TF"


def test_of_equally_near_objects_the_first_is_taken(objects: Objects, found: Found) -> None:
    same = [(0, BOX), (0, BOX)]
    assert fates(match([found((0, 0.9, BOX))], [objects(*same, ignored=[0])], 1)) == "-"
    assert fates(match([found((0, 0.9, BOX))], [objects(*same, ignored=[1])], 1)) == "T"
    # The other one is never found.
    assert fates(match([found((0, 0.9, BOX), (0, 0.8, BOX))], [objects(*same)], 1)) == "TF"


def test_an_object_belongs_to_its_class_and_image(objects: Objects, found: Found) -> None:
    targets = [objects((1, BOX)), objects((0, BOX)), objects()]
    detections = [found((0, 0.9, BOX)), found((1, 0.8, BOX)), found((0, 0.7, BOX), (1, 0.6, BOX))]
    matches = match(detections, targets, 3)
    assert [fates(matches, label) for label in range(3)] == ["FF", "FF", ""]
    assert matches.num_objects.tolist() == [1, 1, 0]
    assert [matches.num_detections(label) for label in range(3)] == [2, 2, 0]


def test_equal_scores_stand_in_the_order_of_images_and_then_of_the_list(
    objects: Objects, found: Found
) -> None:
    away = (100, 100, 110, 110)
    targets = [objects((0, BOX)), objects((0, BOX))]
    detections = [found((0, 0.5, away), (0, 0.5, BOX)), found((0, 0.5, BOX), (0, 0.6, away))]
    assert fates(match(detections, targets, 1)) == "FFTT"


def test_only_detections_without_objects_and_the_reverse(objects: Objects, found: Found) -> None:
    assert fates(match([found((0, 0.9, BOX))], [objects()], 1)) == "F"
    matches = match([found()], [objects((0, BOX))], 1)
    assert fates(matches) == ""
    assert matches.num_objects.tolist() == [1]


def test_no_images_at_all() -> None:
    matches = match([], [], 2)
    assert matches.offsets.tolist() == [0, 0, 0]
    assert matches.num_objects.tolist() == [0, 0]


def test_boxes_without_area_overlap_nothing(objects: Objects, found: Found) -> None:
    point = (5, 5, 5, 5)
    assert fates(match([found((0, 0.9, point))], [objects((0, BOX), (0, point))], 1)) == "F"


def test_boxes_that_do_not_meet_overlap_nothing() -> None:
    # Both differences are negative: their product must not become an area.
    apart = np.array([[0.0, 0.0, 10.0, 10.0]]), np.array([[20.0, 20.0, 30.0, 30.0]])
    assert paired_iou(*apart).tolist() == [0.0]


def test_dtype_device_and_gradient_do_not_matter(objects: Objects, found: Found) -> None:
    one = found((0, 0.5, BOX), (0, 0.25, BOX))
    half = Detections(one.boxes.half().requires_grad_(), one.scores.bfloat16(), one.labels.int())
    assert fates(match([half, one], [objects((0, BOX)), objects((0, BOX))], 1)) == "TTFF"


@pytest.mark.parametrize("most_pairs", [1, 2, 7, 50])
def test_the_size_of_the_parts_changes_nothing(
    most_pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    targets, detections = [], []
    for _ in range(5):
        corner = torch.randint(0, 6, (12, 2), generator=generator).float()
        boxes = torch.cat([corner, corner + 5], dim=1)
        labels = torch.randint(0, 2, (12,), generator=generator)
        ignored = torch.rand(12, generator=generator) < 0.2
        targets.append(Target(boxes, labels, ignored, torch.full((12,), 25.0), 0, (20, 20)))
        order = torch.randperm(12, generator=generator)
        scores = torch.rand(12, generator=generator)
        detections.append(Detections(boxes[order], scores, labels.roll(1)))
    whole = match(detections, targets, 2)
    sizes = []

    def watched(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
        sizes.append(len(boxes))
        return paired_iou(boxes, others)

    monkeypatch.setattr(matching, "_MOST_PAIRS", most_pairs)
    monkeypatch.setattr(matching, "paired_iou", watched)
    parts = match(detections, targets, 2)
    assert max(sizes) <= most_pairs + 12  # one detection's pairs are not parted
    assert whole.is_true.any()
    assert np.array_equal(whole.is_true, parts.is_true)
    assert np.array_equal(whole.is_counted, parts.is_counted)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["box", "score", "object", "area"])
def test_numbers_that_are_not_finite_are_refused(
    value: float, where: str, objects: Objects, found: Found
) -> None:
    detections = [found((0, 0.5, BOX)), found((0, 0.5, BOX))]
    targets = [objects((0, BOX)), objects((0, BOX))]
    spoilt = {
        "box": detections[1].boxes,
        "score": detections[1].scores,
        "object": targets[1].boxes,
        "area": targets[1].areas,
    }[where]
    spoilt.view(-1)[-1] = value
    with pytest.raises(ValueError, match=r"of image 1 .*expected finite .*\(1 such in all\)"):
        match(detections, targets, 1)


def test_swapped_corners_are_refused(objects: Objects, found: Found) -> None:
    for box in ((10, 0, 0, 10), (0, 10, 10, 0)):
        with pytest.raises(ValueError, match=r"detections of image 0 .*x1 <= x2"):
            match([found((0, 0.5, box))], [objects()], 1)
        with pytest.raises(ValueError, match=r"targets of image 0 .*x1 <= x2"):
            match([found()], [objects((0, box))], 1)


@pytest.mark.parametrize("label", [-1, 2])
def test_unknown_labels_are_refused(label: int, objects: Objects, found: Found) -> None:
    rule = f"expected labels from 0 to 1, got {label}"
    with pytest.raises(ValueError, match=rf"detections of image 0 .*{rule}"):
        match([found((label, 0.5, BOX))], [objects()], 2)
    with pytest.raises(ValueError, match=rf"targets of image 0 .*{rule}"):
        match([found()], [objects((label, BOX))], 2)


def test_every_image_needs_detections(objects: Objects, found: Found) -> None:
    with pytest.raises(ValueError, match="got 1 for 2 images"):
        match([found()], [objects(), objects()], 1)


def test_columns_of_different_lengths_are_refused(objects: Objects, found: Found) -> None:
    one, target = found((0, 0.5, BOX)), objects((0, BOX))
    for bad in (
        Detections(one.boxes, torch.ones(2), one.labels),
        Detections(one.boxes[:0], one.scores, one.labels),
        Detections(torch.ones(1, 5), one.scores, one.labels),
    ):
        with pytest.raises(ValueError, match="detections of image 0: expected boxes"):
            match([bad], [target], 1)
    short = Target(target.boxes, target.labels, target.is_ignored, torch.ones(0), 0, (9, 9))
    with pytest.raises(ValueError, match="targets of image 0: expected boxes"):
        match([one], [short], 1)


def test_matches_say_where_a_detection_stands_and_which_object_it_has(
    objects: Objects, found: Found
) -> None:
    detections = [found((1, 0.2, BOX), (0, 0.3, BOX)), found((0, 0.9, (0, 0, 10, 5)))]
    targets = [objects((1, (0, 0, 10, 8))), objects((1, BOX), (0, (50, 50, 60, 60)), (0, BOX))]
    matches = match(detections, targets, 2)
    assert matches.rows.tolist() == [2, 1, 0]  # by class, then best first
    assert matches.owner.tolist() == [3, -1, 0]
    assert matches.overlap.tolist() == [0.5, 0.0, 0.8]
