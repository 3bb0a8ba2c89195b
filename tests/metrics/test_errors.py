"""Kinds of mistakes: by hand, then sums and a plain reference for random detections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdet.metrics.errors import KINDS, NOT_KEPT, STATES, Verdicts, error_counts, judge_errors
from rankdet.metrics.evaluation import Evaluation
from rankdet.metrics.matching import match, paired_iou
from rankdet.metrics.thresholds import usual_thresholds
from rankdet.metrics.voc import evaluate_voc
from rankdet.structures import Detections, Target

BOX = (0, 0, 10, 10)
HALF = (0, 0, 10, 5)  # IoU 0.5 with BOX
BELOW_HALF = (0, 0, 10, 4.9)
TENTH = (0, 0, 10, 1)  # IoU 0.1
BELOW_TENTH = (0, 0, 10, 0.9)
FAR = (50, 50, 60, 60)
Objects = Callable[..., Target]
Found = Callable[..., Detections]


def kinds(verdicts: Verdicts) -> list[str]:
    return ["-" if kind == NOT_KEPT else KINDS[kind] for kind in verdicts.kinds]


def states(verdicts: Verdicts) -> list[str]:
    return [STATES[state] for state in verdicts.states]


def judged(detections: Detections, target: Target, *thresholds: float) -> Verdicts:
    return judge_errors([detections], [target], thresholds or (0.0, 0.0))


# Each kind


@pytest.mark.parametrize(
    ("label", "box", "expected"),
    [
        (0, BOX, "correct"),
        (0, HALF, "correct"),
        (0, BELOW_HALF, "localisation"),
        (0, TENTH, "localisation"),
        (0, BELOW_TENTH, "background"),
        (0, FAR, "background"),
        (1, BOX, "class"),
        (1, HALF, "class"),
        (1, BELOW_HALF, "background"),
    ],
)
def test_a_detection_alone_is_judged_by_class_and_overlap(
    objects: Objects, found: Found, label: int, box: tuple[float, ...], expected: str
) -> None:
    verdicts = judged(found((label, 0.9, box)), objects((0, BOX)))
    assert kinds(verdicts) == [expected]
    assert states(verdicts) == ["found" if expected == "correct" else "missed"]


def test_the_worse_of_two_detections_of_an_object_is_a_duplicate(
    objects: Objects, found: Found
) -> None:
    detections = found((0, 0.7, BOX), (0, 0.9, HALF), (0, 0.8, BELOW_HALF))
    verdicts = judged(detections, objects((0, BOX)))
    assert kinds(verdicts) == ["duplicate", "correct", "localisation"]
    assert states(verdicts) == ["found"]


def test_half_of_the_object_is_enough_for_a_duplicate(objects: Objects, found: Found) -> None:
    verdicts = judged(found((0, 0.9, BOX), (0, 0.8, HALF)), objects((0, BOX)))
    assert kinds(verdicts) == ["correct", "duplicate"]


def test_objects_of_other_images_do_not_matter(objects: Objects, found: Found) -> None:
    detections = [found((0, 0.9, BOX)), found((0, 0.8, BOX), (1, 0.7, BOX)), found()]
    targets = [objects(), objects((0, FAR)), objects((0, BOX), (1, BOX))]
    verdicts = judge_errors(detections, targets, [0.0, 0.0])
    assert kinds(verdicts) == ["background"] * 3
    assert states(verdicts) == ["missed"] * 3
    assert verdicts.images.tolist() == [0, 1, 1]
    assert verdicts.object_images.tolist() == [1, 2, 2]


# Precedence


def test_a_duplicate_on_an_object_of_another_class_stays_a_duplicate(
    objects: Objects, found: Found
) -> None:
    target = objects((0, BOX), (1, BOX))
    verdicts = judged(found((0, 0.9, BOX), (0, 0.8, BOX)), target)
    assert kinds(verdicts) == ["correct", "duplicate"]


def test_a_poor_place_goes_before_a_wrong_class(objects: Objects, found: Found) -> None:
    target = objects((0, BELOW_HALF), (1, BOX))
    assert kinds(judged(found((0, 0.9, BOX)), target)) == ["localisation"]
    target = objects((0, BELOW_TENTH), (1, BOX))
    assert kinds(judged(found((0, 0.9, BOX)), target)) == ["class"]


def test_a_detection_whose_object_is_taken_is_a_duplicate_though_another_is_free(
    objects: Objects, found: Found
) -> None:
    """VOC's matching knows only the object with the highest IoU."""
    target = objects((0, BOX), (0, (0, 0, 10, 8)))
    verdicts = judged(found((0, 0.9, BOX), (0, 0.8, (0, 0, 10, 9.5))), target)
    assert kinds(verdicts) == ["correct", "duplicate"]
    assert states(verdicts) == ["found", "missed"]


# Ignored objects


def test_a_detection_on_an_ignored_object_is_uncounted(objects: Objects, found: Found) -> None:
    verdicts = judged(found((0, 0.9, BOX), (0, 0.8, HALF)), objects((0, BOX), ignored=[0]))
    assert kinds(verdicts) == ["uncounted", "uncounted"]
    assert states(verdicts) == ["ignored"]


@pytest.mark.parametrize("label", [0, 1])
def test_an_ignored_object_makes_no_mistake_of_place_or_class(
    objects: Objects, found: Found, label: int
) -> None:
    box = BELOW_HALF if label == 0 else BOX
    verdicts = judged(found((label, 0.9, box)), objects((0, BOX), ignored=[0]))
    assert kinds(verdicts) == ["background"]


def test_an_object_beside_an_ignored_one_that_overlaps_more_still_counts(
    objects: Objects, found: Found
) -> None:
    # IoU 0.49 with the ignored object, and 0.3 with the other.
    target = objects((0, (0, 0, 10, 4.9)), (0, (0, 0, 10, 3)), ignored=[0])
    assert kinds(judged(found((0, 0.9, BOX)), target)) == ["localisation"]


# Thresholds


def test_each_class_has_its_threshold_and_a_score_equal_to_it_is_kept(
    objects: Objects, found: Found
) -> None:
    detections = found((0, 0.5, BOX), (0, 0.25, BOX), (1, 0.5, FAR), (1, 0.75, FAR))
    verdicts = judged(detections, objects((0, BOX)), 0.5, 0.6)
    assert kinds(verdicts) == ["correct", "-", "-", "background"]


def test_an_object_whose_detection_is_below_the_threshold_is_missed(
    objects: Objects, found: Found
) -> None:
    verdicts = judged(found((0, 0.4, BOX)), objects((0, BOX)), 0.5)
    assert kinds(verdicts) == ["-"]
    assert states(verdicts) == ["missed"]


def test_a_detection_of_low_score_on_an_ignored_object_is_not_kept(
    objects: Objects, found: Found
) -> None:
    assert kinds(judged(found((0, 0.4, BOX)), objects((0, BOX), ignored=[0]), 0.5)) == ["-"]


def test_a_threshold_found_in_float32_scores_keeps_its_own_detection(
    objects: Objects, found: Found
) -> None:
    detections = found((0, 0.1, BOX))
    threshold = detections.scores[0].item()
    assert threshold != 0.1
    assert kinds(judged(detections, objects((0, BOX)), threshold)) == ["correct"]


# Counts


def test_counts_by_hand(objects: Objects, found: Found) -> None:
    detections = [
        found((0, 0.9, BOX), (0, 0.8, BOX), (1, 0.7, BOX), (1, 0.1, FAR)),
        found((1, 0.9, BELOW_HALF), (1, 0.8, FAR), (0, 0.7, FAR), (0, 0.6, (20, 0, 30, 10))),
    ]
    targets = [
        objects((0, BOX), (0, FAR)),
        objects((1, BOX), (0, (20, 0, 30, 10)), ignored=[1]),
    ]
    verdicts = judge_errors(detections, targets, [0.5, 0.5])
    assert error_counts(verdicts, ["a", "b"]) == {
        "iou": 0.5,
        "lower_iou": 0.1,
        "num_objects": 3,
        "num_detections": 6,
        "correct": 1,
        "localisation": 1,
        "duplicate": 1,
        "class": 1,
        "background": 2,
        "missed": 2,
        "classes": [
            {
                "name": "a",
                "correct": 1,
                "localisation": 0,
                "duplicate": 1,
                "class": 0,
                "background": 1,
                "missed": 1,
            },
            {
                "name": "b",
                "correct": 0,
                "localisation": 1,
                "duplicate": 0,
                "class": 1,
                "background": 1,
                "missed": 1,
            },
        ],
    }


@pytest.mark.parametrize("num_images", [0, 1, 3])
def test_nothing_at_all_gives_zeros(objects: Objects, found: Found, num_images: int) -> None:
    verdicts = judge_errors([found()] * num_images, [objects()] * num_images, [0.5])
    counts = error_counts(verdicts, ["a"])
    assert counts["num_objects"] == counts["num_detections"] == 0
    assert set(counts["classes"][0].values()) == {"a", 0}


# Random images

edges = st.integers(0, 5)


@st.composite
def images(draw: st.DrawFn) -> tuple[list[Detections], list[Target], list[float]]:
    """Boxes on a small grid, so that many overlap or are equal; scores with many equals."""

    def boxes(count: int) -> torch.Tensor:
        corners = [[draw(edges), draw(edges)] for _ in range(count)]
        sides = [[draw(st.integers(1, 4)), draw(st.integers(1, 4))] for _ in range(count)]
        low, side = (torch.tensor(rows).reshape(-1, 2).float() for rows in (corners, sides))
        return torch.cat([low, low + side], dim=1)

    def labels(count: int) -> torch.Tensor:
        return torch.tensor([draw(st.integers(0, 2)) for _ in range(count)], dtype=torch.int64)

    detections, targets = [], []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(0, 6))
        ignored = torch.tensor([draw(st.integers(0, 4)) == 0 for _ in range(count)]).bool()
        box, label = boxes(count), labels(count)
        targets.append(Target(box, label, ignored, torch.ones(count), 0, (9, 9)))
        count = draw(st.integers(0, 8))
        scores = torch.tensor([draw(st.integers(1, 9)) / 10 for _ in range(count)])
        detections.append(Detections(boxes(count), scores.float(), labels(count)))
    thresholds = [draw(st.sampled_from([0.0, 0.3, 0.5])) for _ in range(3)]
    return detections, targets, thresholds


def iou(box: torch.Tensor, other: torch.Tensor) -> float:
    return float(paired_iou(box[None].double().numpy(), other[None].double().numpy())[0])


def reference(
    detections: list[Detections], targets: list[Target], thresholds: list[float]
) -> tuple[list[str], list[str]]:
    """The definition read aloud, one detection after the other."""
    kinds, states = [], []
    for found, target in zip(detections, targets, strict=True):
        owners: dict[int, int] = {}
        of_image = ["-"] * len(found)
        objects = range(len(target))
        for d in sorted(range(len(found)), key=lambda d: -found.scores[d].item()):
            label = found.labels[d].item()
            if found.scores[d].item() < thresholds[label]:
                continue
            overlaps = [iou(found.boxes[d], target.boxes[g]) for g in objects]
            own = [g for g in objects if target.labels[g] == label]
            counted = [g for g in objects if not target.is_ignored[g]]
            best = max(own, key=lambda g: overlaps[g], default=None)
            if best is not None and overlaps[best] >= 0.5:
                if target.is_ignored[best]:
                    of_image[d] = "uncounted"
                elif best in owners:
                    of_image[d] = "duplicate"
                else:
                    owners[best] = d
                    of_image[d] = "correct"
            elif any(overlaps[g] >= 0.1 for g in own if g in counted):
                of_image[d] = "localisation"
            elif any(overlaps[g] >= 0.5 for g in counted):
                of_image[d] = "class"
            else:
                of_image[d] = "background"
        kinds += of_image
        states += [
            "ignored" if target.is_ignored[g] else "found" if g in owners else "missed"
            for g in objects
        ]
    return kinds, states


@settings(deadline=None)
@given(images())
def test_verdicts_are_those_of_the_plain_reference(
    case: tuple[list[Detections], list[Target], list[float]],
) -> None:
    verdicts = judge_errors(*case)
    assert (kinds(verdicts), states(verdicts)) == reference(*case)


@settings(deadline=None)
@given(images())
def test_the_sums_hold(case: tuple[list[Detections], list[Target], list[float]]) -> None:
    detections, targets, thresholds = case
    verdicts = judge_errors(detections, targets, thresholds)
    counts = error_counts(verdicts, "abc")
    num_objects = sum(int((~target.is_ignored).sum()) for target in targets)
    assert counts["correct"] + counts["missed"] == counts["num_objects"] == num_objects
    assert sum(counts[kind] for kind in KINDS[:5]) == counts["num_detections"]
    for name in (*KINDS[:5], "missed"):
        assert counts[name] == sum(row[name] for row in counts["classes"])
    for label, row in enumerate(counts["classes"]):
        of_class = Counter(
            kind
            for kind, other in zip(kinds(verdicts), verdicts.labels, strict=True)
            if other == label
        )
        assert all(row[kind] == of_class[kind] for kind in KINDS[:5])


@settings(deadline=None)
@given(images())
def test_precision_and_recall_are_those_of_the_evaluation(
    case: tuple[list[Detections], list[Target], list[float]],
) -> None:
    detections, targets, _ = case
    evaluation: Evaluation = evaluate_voc(detections, targets, "abc")
    thresholds = usual_thresholds(evaluation.thresholds, 0.01)
    counts = error_counts(judge_errors(detections, targets, thresholds), "abc")
    for result, row in zip(evaluation.classes, counts["classes"], strict=True):
        if result.threshold is None:
            assert row["correct"] == 0
            continue
        num_kept = sum(row[kind] for kind in KINDS[:5])
        assert 100 * row["correct"] / num_kept == pytest.approx(result.precision)
        assert 100 * row["correct"] / (row["correct"] + row["missed"]) == pytest.approx(
            result.recall
        )


def test_verdicts_stand_in_the_order_of_the_images_lists(objects: Objects, found: Found) -> None:
    """Not in that of the matching, which is by class and score."""
    detections = [found((1, 0.2, FAR), (0, 0.9, BOX)), found((0, 0.5, BOX))]
    verdicts = judge_errors(detections, [objects((0, BOX)), objects((0, BOX))], [0.0, 0.0])
    assert verdicts.scores.tolist() == pytest.approx([0.2, 0.9, 0.5])
    assert verdicts.labels.tolist() == [1, 0, 0]
    assert verdicts.boxes[0].tolist() == list(FAR)
    assert kinds(verdicts) == ["background", "correct", "correct"]
    assert verdicts.is_wrong.tolist() == [True, False, False]
    matches = match(detections, [objects((0, BOX)), objects((0, BOX))], 2)
    assert np.array_equal(matches.rows, [1, 2, 0])
