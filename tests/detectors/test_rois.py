"""Which boxes the second stage learns from: by hand, then properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torchvision.ops import box_iou

from rankdet.detectors.assign import Assignment
from rankdet.detectors.rois import choose_rois, roi_assigner
from rankdet.detectors.rpn import Proposals
from rankdet.losses.labels import BACKGROUND, IGNORED
from rankdet.structures import Predictions, Target

OBJECT = [10.0, 10, 30, 30]
CLOSE = [10.0, 10, 30, 28]  # IoU 0.9
HALF = [10.0, 10, 30, 20]  # IoU 0.5: just an object
LESS = [10.0, 10, 30, 19]  # IoU 0.45: background
FAR = [40.0, 40, 60, 60]
UNIT = [0.0, 0, 1, 1]


def make_target(
    boxes: Sequence[Sequence[float]], ignored: Sequence[bool] = (), image_id: int = 1
) -> Target:
    flags = torch.zeros(len(boxes), dtype=torch.bool)
    flags[: len(ignored)] = torch.tensor(ignored, dtype=torch.bool)
    corners = torch.tensor(boxes, dtype=torch.float32).view(-1, 4)
    ones = torch.ones(len(boxes))
    return Target(corners, torch.arange(len(boxes)), flags, ones, image_id, (64, 64))


def make_proposals(*images: Sequence[Sequence[float]]) -> Proposals:
    most = max(len(boxes) for boxes in images)
    filled = [[*boxes, *[UNIT] * (most - len(boxes))] for boxes in images]
    is_padding = torch.tensor([[row >= len(boxes) for row in range(most)] for boxes in images])
    return Proposals(torch.tensor(filled).view(len(images), most, 4), is_padding)


def rows(rois: Proposals, image: int = 0) -> list[list[float]]:
    """The RoIs of an image without padding."""
    return rois.boxes[image][~rois.is_padding[image]].tolist()


def assignment(rois: Proposals, targets: Sequence[Target]) -> Assignment:
    """What the criterion makes of the RoIs."""
    shape = rois.is_padding.shape
    stage = Predictions(
        "roi",
        torch.zeros(*shape, 9),
        torch.zeros(*shape, 4),
        rois.boxes,
        shape[1:],
        rois.is_padding,
    )
    return roi_assigner()(stage, targets)


# By hand


def test_all_positives_and_the_objects_own_boxes_are_kept_before_any_negative() -> None:
    proposals = make_proposals([FAR, CLOSE, LESS, HALF])
    chosen = choose_rois(proposals, [make_target([OBJECT])], 4)
    assert sorted(rows(chosen)[:3]) == sorted([OBJECT, CLOSE, HALF])
    assert rows(chosen)[3] in (FAR, LESS)


def test_there_is_no_quota_of_positives() -> None:
    proposals = make_proposals([CLOSE, HALF, FAR])
    chosen = choose_rois(proposals, [make_target([OBJECT])], 3)
    assert sorted(rows(chosen)) == sorted([OBJECT, CLOSE, HALF])


def test_more_positives_than_rois_are_a_random_choice_of_them() -> None:
    proposals = make_proposals([CLOSE, HALF, FAR])
    seen = set()
    for image_id in range(30):
        chosen = choose_rois(proposals, [make_target([OBJECT], image_id=image_id)], 1)
        seen.add(tuple(rows(chosen)[0]))
    assert seen == {tuple(OBJECT), tuple(CLOSE), tuple(HALF)}


def test_fewer_candidates_than_rois_are_all_taken() -> None:
    proposals = make_proposals([FAR, CLOSE])
    chosen = choose_rois(proposals, [make_target([OBJECT])], 100)
    assert sorted(rows(chosen)) == sorted([OBJECT, CLOSE, FAR])
    assert chosen.is_padding.shape == (1, 3)


def test_images_with_fewer_are_padded_at_their_end_with_a_box_that_has_sides() -> None:
    proposals = make_proposals([FAR], [FAR, CLOSE, HALF])
    targets = [make_target([]), make_target([OBJECT])]
    chosen = choose_rois(proposals, targets, 100)
    assert chosen.is_padding.tolist() == [[False, True, True, True], [False] * 4]
    assert chosen.boxes[0].tolist() == [FAR, UNIT, UNIT, UNIT]
    assert (assignment(chosen, targets).labels[0] == IGNORED).tolist() == [False, True, True, True]


def test_without_objects_the_negatives_are_chosen_alike() -> None:
    proposals = make_proposals([FAR, CLOSE, HALF, LESS])
    seen = {
        tuple(map(tuple, sorted(rows(choose_rois(proposals, [make_target([], (), number)], 2)))))
        for number in range(30)
    }
    assert len(seen) == 6  # every pair


def test_an_ignored_object_is_no_candidate_and_what_lies_on_it_is_not_drawn() -> None:
    inside = [12.0, 12, 20, 20]  # wholly in it, though its IoU is small
    proposals = make_proposals([CLOSE, inside, FAR, LESS])
    target = make_target([OBJECT], [True])
    assert rows(choose_rois(proposals, [target], 100)) == [FAR]


def test_an_object_beside_an_ignored_one_is_chosen() -> None:
    proposals = make_proposals([FAR])
    target = make_target([OBJECT, FAR], [True, False])
    chosen = choose_rois(proposals, [target], 100)
    assert rows(chosen) == [FAR, FAR]  # the proposal and the object itself
    assert assignment(chosen, [target]).labels[0, :2].tolist() == [1, 1]


def test_no_image_has_no_rois() -> None:
    nothing = Proposals(torch.zeros(0, 3, 4), torch.zeros(0, 3, dtype=torch.bool))
    chosen = choose_rois(nothing, [], 5)
    assert chosen.boxes.shape == (0, 3, 4)


def test_an_object_that_no_roi_overlaps_enough_has_none() -> None:
    stage = Proposals(torch.tensor([[LESS, FAR]]), torch.zeros(1, 2, dtype=torch.bool))
    found = assignment(stage, [make_target([OBJECT])])
    assert found.labels.tolist() == [[BACKGROUND, BACKGROUND]]


# Properties


def random_problem(seed: int, num_images: int = 3) -> tuple[Proposals, list[Target]]:
    generator = torch.Generator().manual_seed(seed)

    def boxes(number: int) -> Tensor:
        corners = 40 * torch.rand(number, 2, generator=generator)
        return torch.cat(
            [corners, corners + 4 + 20 * torch.rand(number, 2, generator=generator)], 1
        )

    targets = []
    for image in range(num_images):
        objects = boxes(image + 1)
        flags = torch.rand(len(objects), generator=generator) < 0.3
        targets.append(make_target(objects.tolist(), flags.tolist(), image_id=100 * seed + image))
    around = torch.stack([boxes(60) for _ in range(num_images)])
    return Proposals(around, torch.rand(num_images, 60, generator=generator) < 0.1), targets


@pytest.mark.parametrize("seed", range(4))
def test_the_choice_is_what_the_rules_say(seed: int) -> None:
    proposals, targets = random_problem(seed)
    for num_rois in (1, 7, 30, 200):
        chosen = choose_rois(proposals, targets, num_rois)
        labels = assignment(chosen, targets).labels
        for image, target in enumerate(targets):
            is_roi = ~chosen.is_padding[image]
            objects = target.boxes[~target.is_ignored]
            candidates = torch.cat([proposals.boxes[image][~proposals.is_padding[image]], objects])
            overlap = torch.cat([box_iou(candidates, objects), torch.zeros(len(candidates), 1)], 1)
            num_positives = int((overlap.amax(1) >= 0.5).sum())
            assert int((labels[image] >= 0).sum()) == min(num_rois, num_positives)
            assert (labels[image][is_roi] != IGNORED).all()  # nothing on ignored objects
            known = {tuple(row) for row in candidates.tolist()}
            assert {tuple(row) for row in chosen.boxes[image][is_roi].tolist()} <= known
            assert int(is_roi.sum()) <= num_rois


def test_the_choice_of_an_image_does_not_depend_on_the_batch() -> None:
    proposals, targets = random_problem(9)
    together = choose_rois(proposals, targets, 20)
    for image, target in enumerate(targets):
        one = Proposals(proposals.boxes[image : image + 1], proposals.is_padding[image : image + 1])
        assert rows(choose_rois(one, [target], 20)) == rows(together, image)


def test_no_gradient_flows_through_the_boxes() -> None:
    proposals, targets = random_problem(2)
    boxes = proposals.boxes.requires_grad_()
    assert not choose_rois(Proposals(boxes, proposals.is_padding), targets, 20).boxes.requires_grad


def test_the_choice_is_another_in_every_epoch() -> None:
    proposals, targets = random_problem(9)
    first, again, second = (
        choose_rois(proposals, [replace(target, draw=draw) for target in targets], 20)
        for draw in (1, 1, 2)
    )
    for image in range(len(targets)):
        assert rows(first, image) == rows(again, image)
        assert sorted(rows(first, image)) != sorted(rows(second, image))


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(4))
def test_a_gpu_chooses_the_same(seed: int) -> None:
    proposals, targets = random_problem(seed)
    there = Proposals(proposals.boxes.cuda(), proposals.is_padding.cuda())
    for num_rois in (7, 30, 200):
        expected = choose_rois(proposals, targets, num_rois)
        found = choose_rois(there, [target.to("cuda") for target in targets], num_rois)
        assert found.boxes.is_cuda
        assert torch.equal(found.boxes.cpu(), expected.boxes)
        assert torch.equal(found.is_padding.cpu(), expected.is_padding)
