"""Scores of anchors against their overlap: by hand, and against a plain double loop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rankdet.metrics.anchor_scores import AnchorScores
from rankdet.structures import Predictions, Target

BOX = (0, 0, 10, 10)
Objects = Callable[..., Target]
SIZES = torch.tensor([[400, 500]])


def outputs(logits: Tensor, anchors: Any) -> Predictions:
    boxes = torch.tensor(anchors, dtype=torch.float32).reshape(-1, 4)
    return Predictions("", logits, torch.zeros(*logits.shape[:2], 4), boxes, (len(boxes),))


def logit(score: float) -> float:
    return math.log(score / (1 - score))


def cells(scores: AnchorScores) -> list[list[int]]:
    content = scores.to_dict()
    assert content.keys() == {"num_images", "num_anchors", "bins", "cells"}
    assert content["bins"] == 100
    assert content["num_anchors"] == sum(count for _, _, count in content["cells"])
    return content["cells"]  # type: ignore[no-any-return]


def test_overlap_and_score_worked_out_by_hand(objects: Objects) -> None:
    anchors = [BOX, (0, 0, 10, 5), (0, 0, 10, 2.55), (50, 50, 60, 60)]
    logits = torch.tensor([[[9.0, logit(0.005)], [9, logit(0.505)], [9, 99], [9, -99]]])
    scores = AnchorScores("sigmoid")
    scores.add(outputs(logits, anchors), [objects((1, BOX))], SIZES)
    # IoU 1 in the last bin, 0.5, 0.255 and 0; scores 0.005, 0.505, 1 in the last bin, and 0.
    assert cells(scores) == [[0, 0, 1], [25, 99, 1], [50, 50, 1], [99, 0, 1]]
    assert scores.to_dict()["num_images"] == 1


def test_the_class_is_that_of_the_object_that_overlaps_most(objects: Objects) -> None:
    target = objects((0, (0, 0, 10, 6)), (1, BOX))
    logits = torch.tensor([[[logit(0.155), logit(0.855)]]])
    scores = AnchorScores("sigmoid")
    scores.add(outputs(logits, [(0, 0, 10, 9.05)]), [target], SIZES)
    assert cells(scores) == [[90, 85, 1]]


def test_of_equal_overlaps_the_first_object_counts_even_without_overlap(objects: Objects) -> None:
    logits = torch.tensor([[[logit(0.155), logit(0.855)]] * 2])
    anchors = [BOX, (50, 50, 60, 60)]
    for target, expected in (
        (objects((0, BOX), (1, BOX)), [[0, 15, 1], [99, 15, 1]]),
        (objects((1, BOX), (0, BOX)), [[0, 85, 1], [99, 85, 1]]),
    ):
        scores = AnchorScores("sigmoid")
        scores.add(outputs(logits, anchors), [target], SIZES)
        assert cells(scores) == expected


def test_the_background_of_a_softmax_is_column_0(objects: Objects) -> None:
    logits = torch.tensor([[[0.0, 99.0, math.log(3), 0.0]]])  # class 1 in column 2
    logits[0, 0, 1] = -99
    scores = AnchorScores("softmax")
    scores.add(outputs(logits, [BOX]), [objects((1, BOX))], SIZES)
    assert cells(scores) == [[99, 60, 1]]  # 3 / (1 + 0 + 3 + 1)


def test_ignored_objects_and_images_without_others_are_left_out(objects: Objects) -> None:
    logits = torch.tensor([[[logit(0.155), logit(0.855)]]]).repeat(3, 1, 1)
    targets = [
        objects((1, BOX), (0, (0, 0, 10, 5.05)), ignored=[0]),
        objects((1, BOX), ignored=[0]),
        objects(),
    ]
    scores = AnchorScores("sigmoid")
    scores.add(outputs(logits, [BOX]), targets, SIZES.repeat(3, 1))
    assert cells(scores) == [[50, 15, 1]]
    assert scores.to_dict()["num_images"] == 1


def test_anchors_wholly_in_the_padding_are_left_out(objects: Objects) -> None:
    anchors = [
        *[(-5, -5, 3, 3), (19.5, 0, 30, 9), (0, 9.5, 9, 30)],  # partly inside of 20 x 10 pixels
        *[(20, 0, 30, 9), (0, 10, 9, 30), (25, 25, 30, 30)],  # wholly in the padding
    ]
    scores = AnchorScores("sigmoid")
    scores.add(
        outputs(torch.zeros(1, 6, 1), anchors), [objects((0, BOX))], torch.tensor([[10, 20]])
    )
    assert scores.to_dict()["num_anchors"] == 3


def test_the_size_is_that_of_each_image(objects: Objects) -> None:
    scores = AnchorScores("sigmoid")
    sizes = torch.tensor([[10, 20], [20, 10]])
    anchors = [(12, 0, 15, 5), (0, 0, 5, 5)]
    scores.add(outputs(torch.zeros(2, 2, 1), anchors), [objects((0, BOX))] * 2, sizes)
    assert scores.to_dict()["num_anchors"] == 3
    assert scores.to_dict()["num_images"] == 2


def test_without_images_there_is_nothing() -> None:
    expected = {"num_images": 0, "num_anchors": 0, "bins": 100, "cells": []}
    assert AnchorScores("sigmoid").to_dict() == expected


def test_another_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 'sigmoid' or 'softmax', got 'tanh'"):
        AnchorScores("tanh")


def random_batch(activation: str, seed: int) -> tuple[Predictions, list[Target], Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def boxes(count: int) -> Tensor:
        low = 40 * torch.rand(count, 2, generator=generator)
        return torch.cat([low, low + 2 + 30 * torch.rand(count, 2, generator=generator)], dim=1)

    num_classes, num_anchors = 3, 40
    num_logits = num_classes + (activation == "softmax")
    targets = []
    for count in (4, 0, 1):
        labels = torch.randint(0, num_classes, (count,), generator=generator)
        ignored = torch.rand(count, generator=generator) < 0.3
        targets.append(Target(boxes(count), labels, ignored, torch.ones(count), 0, (60, 60)))
    logits = 3 * torch.randn(3, num_anchors, num_logits, generator=generator)
    sizes = torch.tensor([[60, 60], [50, 30], [30, 50]])
    return outputs(logits, boxes(num_anchors).tolist()), targets, sizes


def bin_of(value: Tensor) -> int:
    return min(int(value * 100), 99)


def loop(stage: Predictions, targets: list[Target], sizes: Tensor, activation: str) -> Counter[Any]:
    """Each anchor and each object in turn."""
    result: Counter[Any] = Counter()
    for logits, target, (height, width) in zip(stage.logits, targets, sizes.tolist(), strict=True):
        for anchor, of_anchor in zip(stage.anchors, logits, strict=True):
            best, label = torch.tensor(-1.0), None
            for box, c, is_ignored in zip(
                target.boxes, target.labels, target.is_ignored, strict=True
            ):
                sides = torch.minimum(anchor[2:], box[2:]) - torch.maximum(anchor[:2], box[:2])
                shared = sides.clamp(min=0).prod()
                union = (anchor[2:] - anchor[:2]).prod() + (box[2:] - box[:2]).prod() - shared
                if not is_ignored and shared / union > best:
                    best, label = shared / union, int(c)
            if label is None or anchor[0] >= width or anchor[1] >= height:
                continue
            if activation == "sigmoid":
                score = of_anchor[label].sigmoid()
            else:
                score = of_anchor.softmax(dim=0)[label + 1]
            result[bin_of(best), bin_of(score)] += 1
    return result


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
@pytest.mark.parametrize("pairs_at_once", [1, 7, 10**6])
def test_counts_are_those_of_the_double_loop(activation: str, pairs_at_once: int) -> None:
    scores, expected = AnchorScores(activation, pairs_at_once=pairs_at_once), Counter[Any]()
    num_images = 0
    for seed in range(4):
        batch = random_batch(activation, seed)
        scores.add(*batch)
        expected += loop(*batch, activation)
        num_images += sum(not bool(target.is_ignored.all()) for target in batch[1])
    assert len(expected) > 50
    assert cells(scores) == [[i, j, count] for (i, j), count in sorted(expected.items())]
    assert scores.to_dict()["num_images"] == num_images


def test_bfloat16_outputs_are_counted_too(objects: Objects) -> None:
    logits = torch.full((1, 1, 1), 2.0, dtype=torch.bfloat16)
    scores = AnchorScores("sigmoid")
    scores.add(outputs(logits, [BOX]), [objects((0, BOX))], SIZES)
    assert cells(scores) == [[99, 88, 1]]


@pytest.mark.gpu
def test_outputs_on_a_gpu_are_counted_there() -> None:
    stage, targets, sizes = random_batch("softmax", 0)
    moved = Predictions("", stage.logits.cuda(), stage.deltas, stage.anchors.cuda(), (40,))
    scores = AnchorScores("softmax")
    scores.add(moved, targets, sizes)
    assert scores.counts is not None
    assert scores.counts.is_cuda
    assert scores.to_dict()["num_anchors"] > 0


def test_each_image_may_have_its_own_anchors_and_padding_does_not_count(objects: Objects) -> None:
    anchors = torch.tensor([[BOX, (0, 0, 10, 5)], [(50, 50, 60, 60), BOX]], dtype=torch.float32)
    logits = torch.tensor([[[logit(0.155)], [logit(0.255)]], [[logit(0.355)], [logit(0.455)]]])
    is_padding = torch.tensor([[False, False], [False, True]])
    stage = Predictions("", logits, torch.zeros(2, 2, 4), anchors, (2,), is_padding)
    scores = AnchorScores("sigmoid")
    scores.add(stage, [objects((0, BOX))] * 2, SIZES.repeat(2, 1))
    assert cells(scores) == [[0, 35, 1], [50, 25, 1], [99, 15, 1]]
