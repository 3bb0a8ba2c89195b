"""Which class is taken for which: by hand, then sums and a plain reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdet.metrics import matching
from rankdet.metrics.confusion import confusion_counts
from rankdet.metrics.errors import CORRECT, MISSED, UNCOUNTED, judge_errors
from rankdet.metrics.matching import paired_iou
from rankdet.structures import Detections, Target

BOX = (0, 0, 10, 10)
NEAR = (0, 0, 10, 8)
HALF = (0, 0, 10, 5)
FAR = (50, 50, 60, 60)
Objects = Callable[..., Target]
Found = Callable[..., Detections]


def counts(detections: Detections, target: Target, num_classes: int = 2) -> list[list[int]]:
    verdicts = judge_errors([detections], [target], [0.1] * num_classes)
    content = confusion_counts(verdicts)
    assert content["iou"] == 0.5
    assert content.keys() == {"iou", "counts"}
    return content["counts"]  # type: ignore[no-any-return]


def test_a_correct_detection_stands_on_the_diagonal(objects: Objects, found: Found) -> None:
    assert counts(found((1, 0.9, BOX)), objects((1, BOX))) == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_row_is_the_true_and_column_the_detected_class(objects: Objects, found: Found) -> None:
    assert counts(found((1, 0.9, HALF)), objects((0, BOX))) == [[0, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_background_is_the_last_row_and_missed_the_last_column(
    objects: Objects, found: Found
) -> None:
    assert counts(found((1, 0.9, FAR)), objects((0, BOX))) == [[0, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_one_class_has_two_rows(objects: Objects, found: Found) -> None:
    detections = found((0, 0.9, BOX), (0, 0.8, BOX))
    assert counts(detections, objects((0, BOX), (0, FAR)), 1) == [[1, 1], [1, 0]]


def test_a_duplicate_and_a_poor_place_are_background(objects: Objects, found: Found) -> None:
    detections = found((0, 0.9, BOX), (0, 0.8, BOX), (0, 0.7, (0, 0, 10, 4)))
    assert counts(detections, objects((0, BOX))) == [[1, 0, 0], [0, 0, 0], [2, 0, 0]]


def test_an_object_with_a_correct_detection_is_not_free(objects: Objects, found: Found) -> None:
    detections = found((1, 0.9, BOX), (0, 0.8, BOX))  # the better one has the wrong class
    assert counts(detections, objects((0, BOX))) == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_the_better_score_takes_the_object_not_the_better_place(
    objects: Objects, found: Found
) -> None:
    detections = found((1, 0.8, BOX), (2, 0.9, NEAR))
    found_counts = counts(detections, objects((0, BOX)), 3)
    assert found_counts[0] == [0, 0, 1, 0]
    assert found_counts[3] == [0, 1, 0, 0]


def test_of_free_objects_the_one_that_overlaps_most_is_taken(
    objects: Objects, found: Found
) -> None:
    target = objects((0, NEAR), (1, BOX))
    assert counts(found((2, 0.9, BOX)), target, 3)[:2] == [[0, 0, 0, 1], [0, 0, 1, 0]]


def test_the_second_choice_is_taken_where_the_first_is_gone(objects: Objects, found: Found) -> None:
    target = objects((0, BOX), (1, NEAR))
    detections = found((2, 0.9, BOX), (2, 0.8, BOX))
    assert counts(detections, target, 3)[:2] == [[0, 0, 1, 0], [0, 0, 1, 0]]


def test_of_equal_overlaps_the_first_object_is_taken(objects: Objects, found: Found) -> None:
    assert counts(found((2, 0.9, BOX)), objects((1, BOX), (0, BOX)), 3)[0] == [0, 0, 0, 1]


def test_a_free_object_of_the_own_class_is_no_confusion(objects: Objects, found: Found) -> None:
    """VOC's matching calls the second one a duplicate, though it overlaps the free object."""
    target = objects((0, BOX), (0, NEAR))
    detections = found((0, 0.9, BOX), (0, 0.8, (0, 0, 10, 9.5)))
    assert counts(detections, target) == [[1, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_ignored_objects_and_detections_on_them_stand_nowhere(
    objects: Objects, found: Found
) -> None:
    detections = found((0, 0.9, BOX), (1, 0.8, BOX))
    assert counts(detections, objects((0, BOX), ignored=[0])) == [[0, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_detections_below_the_threshold_stand_nowhere(objects: Objects, found: Found) -> None:
    assert counts(found((0, 0.05, BOX)), objects((0, BOX))) == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]


def test_images_do_not_meet(objects: Objects, found: Found) -> None:
    verdicts = judge_errors([found((1, 0.9, BOX)), found()], [objects(), objects((0, BOX))], [0, 0])
    assert confusion_counts(verdicts)["counts"] == [[0, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_nothing_gives_zeros(objects: Objects, found: Found) -> None:
    assert counts(found(), objects(), 1) == [[0, 0], [0, 0]]
    assert confusion_counts(judge_errors([], [], [0.1]))["counts"] == [[0, 0], [0, 0]]


def reference(
    detections: list[Detections], targets: list[Target], thresholds: list[float]
) -> list[list[int]]:
    """The definition read aloud; what is correct comes from the verdicts."""
    verdicts = judge_errors(detections, targets, thresholds)
    last = len(thresholds)
    table = [[0] * (last + 1) for _ in range(last + 1)]
    is_free = (verdicts.states == MISSED).tolist()
    for label in verdicts.labels[verdicts.kinds == CORRECT]:
        table[label][label] += 1
    for d in sorted(range(len(verdicts.labels)), key=lambda d: -verdicts.scores[d]):
        if not CORRECT < verdicts.kinds[d] < UNCOUNTED:
            continue
        best, highest = None, 0.0
        for g in range(len(is_free)):
            is_other = verdicts.object_labels[g] != verdicts.labels[d]
            if not is_free[g] or not is_other or verdicts.object_images[g] != verdicts.images[d]:
                continue
            overlap = paired_iou(verdicts.boxes[d : d + 1], verdicts.object_boxes[g : g + 1])[0]
            if overlap >= 0.5 and overlap > highest:
                best, highest = g, overlap
        row = last if best is None else verdicts.object_labels[best]
        table[row][verdicts.labels[d]] += 1
        if best is not None:
            is_free[best] = False
    for g, is_missed in enumerate(is_free):
        table[verdicts.object_labels[g]][last] += is_missed
    return table


@st.composite
def images(draw: st.DrawFn) -> tuple[list[Detections], list[Target], list[float]]:
    """Large boxes on a small grid: many overlap by half and more."""
    seed = draw(st.integers(0, 2**32))
    generator = torch.Generator().manual_seed(seed)

    def number(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=generator)

    detections, targets = [], []
    for _ in range(draw(st.integers(1, 3))):
        boxes = []
        for count in (draw(st.integers(0, 6)), draw(st.integers(0, 8))):
            corners = number(3, count, 2).float()
            boxes.append(torch.cat([corners, corners + 3 + number(3, count, 2)], dim=1))
        count = len(boxes[0])
        targets.append(
            Target(boxes[0], number(3, count), number(5, count) == 0, torch.ones(count), 0, (9, 9))
        )
        count = len(boxes[1])
        detections.append(Detections(boxes[1], (1 + number(9, count)) / 10, number(3, count)))
    return detections, targets, [0.0, 0.3, 0.5]


@settings(deadline=None)
@given(images())
def test_counts_are_those_of_the_plain_reference(
    case: tuple[list[Detections], list[Target], list[float]],
) -> None:
    assert confusion_counts(judge_errors(*case))["counts"] == reference(*case)


@settings(deadline=None)
@given(images())
def test_rows_are_objects_and_columns_are_detections(
    case: tuple[list[Detections], list[Target], list[float]],
) -> None:
    verdicts = judge_errors(*case)
    table = torch.tensor(confusion_counts(verdicts)["counts"])
    for label in range(3):
        is_object = (verdicts.object_labels == label) & (verdicts.states <= MISSED)
        assert table[label].sum() == is_object.sum()
        is_kept = (verdicts.kinds >= CORRECT) & (verdicts.kinds < UNCOUNTED)
        assert table[:, label].sum() == (is_kept & (verdicts.labels == label)).sum()
    assert table[3, 3] == 0
    assert (table >= 0).all()


def test_the_size_of_the_parts_changes_nothing(
    objects: Objects, found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = objects((0, BOX), (1, NEAR), (0, HALF))
    detections = found((2, 0.7, BOX), (2, 0.9, BOX), (1, 0.8, HALF), (2, 0.6, NEAR))
    whole = counts(detections, target, 3)
    monkeypatch.setattr(matching, "_MOST_PAIRS", 1)
    assert counts(detections, target, 3) == whole
