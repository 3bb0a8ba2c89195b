"""The region proposal network: proposals and samples by hand, then against torchvision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection.rpn import RegionProposalNetwork as PeerNetwork
from torchvision.ops import box_iou

from rankdet.boxes import encode_boxes
from rankdet.data.randomness import SampleKey
from rankdet.detectors.assign import IoUAssigner
from rankdet.detectors.rpn import (
    BOX_WEIGHTS,
    ObjectnessLoss,
    Proposals,
    SampledAnchors,
    objectness_loss,
    propose,
)
from rankdet.losses.labels import BACKGROUND, IGNORED
from rankdet.structures import Predictions, Target

SIZE = (64, 64)


def make_stage(
    boxes: Sequence[Sequence[float]], scores: Sequence[float], levels: tuple[int, ...] = ()
) -> Predictions:
    """A stage that says exactly these boxes and scores of one image."""
    wanted = torch.tensor(boxes).view(1, -1, 4)
    anchors = torch.tensor([20.0, 20, 40, 40]).repeat(len(scores), 1)
    return Predictions(
        "rpn",
        torch.tensor(scores).view(1, -1, 1),
        encode_boxes(wanted, anchors, BOX_WEIGHTS),
        anchors,
        levels or (len(scores),),
    )


def found(proposals: Proposals, image: int = 0) -> list[list[float]]:
    boxes = proposals.boxes[image][~proposals.is_padding[image]]
    return (boxes * 100).round().div(100).tolist()


def proposed(stage: Predictions, size: tuple[int, int] = SIZE, **settings: Any) -> Proposals:
    usual = {"num_candidates": 100, "num_proposals": 100}
    return propose(stage, [size] * len(stage.logits), **(usual | settings))


LEFT, RIGHT, LOW = [0.0, 0, 20, 20], [30.0, 0, 50, 20], [0.0, 40, 20, 60]


def test_proposals_come_best_first() -> None:
    stage = make_stage([LEFT, RIGHT, LOW], [-3.0, 2.0, 0.5])
    assert found(proposed(stage)) == [RIGHT, LOW, LEFT]


def test_repeats_within_a_level_are_dropped_and_between_levels_kept() -> None:
    close = [0.0, 0, 20, 19]
    stage = make_stage([LEFT, close, LOW], [1.0, 2.0, 0.5])
    assert found(proposed(stage)) == [close, LOW]
    stage = make_stage([LEFT, close, LOW], [1.0, 2.0, 0.5], (1, 2))
    assert found(proposed(stage)) == [close, LEFT, LOW]
    assert found(proposed(stage, nms_iou=0.99)) == [close, LEFT, LOW]


def test_a_repeat_has_an_iou_of_more_than_the_threshold() -> None:
    less = [0.0, 0, 20, 13]  # 0.65 of it
    assert len(found(proposed(make_stage([LEFT, less], [1.0, 0.0])))) == 2
    assert len(found(proposed(make_stage([LEFT, less], [1.0, 0.0]), nms_iou=0.6))) == 1


def test_images_do_not_suppress_each_other() -> None:
    one = make_stage([LEFT, RIGHT], [1.0, 2.0])
    stage = Predictions(
        "rpn", one.logits.repeat(3, 1, 1), one.deltas.repeat(3, 1, 1), one.anchors, (2,)
    )
    proposals = proposed(stage)
    assert [found(proposals, image) for image in range(3)] == [[RIGHT, LEFT]] * 3


def test_candidates_are_limited_at_each_level_and_proposals_in_each_image() -> None:
    stage = make_stage([LEFT, RIGHT, LOW], [1.0, 2.0, 3.0], (2, 1))
    assert found(proposed(stage, num_candidates=1)) == [LOW, RIGHT]
    assert found(proposed(stage, num_proposals=1)) == [LOW]
    assert proposed(stage, num_proposals=1).is_padding.shape == (1, 1)


def test_boxes_are_clipped_to_each_image_and_those_outside_are_none() -> None:
    outside = [50.0, 50, 60, 60]
    one = make_stage([LEFT, outside], [1.0, 2.0])
    stage = Predictions(
        "rpn", one.logits.repeat(2, 1, 1), one.deltas.repeat(2, 1, 1), one.anchors, (2,)
    )
    proposals = propose(stage, [(64, 64), (10, 40)], num_candidates=9, num_proposals=9)
    assert found(proposals, 0) == [outside, LEFT]
    assert found(proposals, 1) == [[0, 0, 20, 10]]
    assert proposals.is_padding.tolist() == [[False, False], [False, True]]
    assert proposals.boxes[1, 1].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_no_proposals(wrong: float) -> None:
    for name in ("logits", "deltas"):
        stage = make_stage([LEFT, RIGHT, LOW], [1.0, 2.0, 3.0])
        getattr(stage, name)[0, 1] = wrong
        proposals = proposed(stage)
        assert [box for box in found(proposals) if box in (LOW, LEFT)] == [LOW, LEFT]
        assert proposals.boxes.isfinite().all()
        assert RIGHT not in found(proposals)


def test_without_any_there_is_one_place_of_padding() -> None:
    stage = make_stage([LEFT], [math.nan])
    proposals = proposed(stage)
    assert proposals.is_padding.tolist() == [[True]]
    assert proposals.boxes.tolist() == [[[0, 0, 1, 1]]]


def test_no_gradient_flows_through_proposals() -> None:
    stage = make_stage([LEFT, RIGHT], [1.0, 2.0])
    stage.deltas.requires_grad_()
    stage.logits.requires_grad_()
    assert not proposed(stage).boxes.requires_grad


@pytest.mark.parametrize("number", [40, 400])  # torchvision suppresses many in another way
def test_proposals_are_those_of_torchvision(number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    levels = (number, number // 2, 10)
    corners = 50 * torch.rand(sum(levels), 2, generator=generator)
    anchors = torch.cat([corners, corners + 20], dim=1)
    logits = torch.randn(2, sum(levels), 1, generator=generator)
    deltas = 0.5 * torch.randn(2, sum(levels), 4, generator=generator)
    counts = {"training": 1000, "testing": number // 2}
    kept = {"training": 1000, "testing": 60}
    peer = PeerNetwork(None, None, 0.7, 0.3, 256, 0.5, counts, kept, 0.7).eval()
    sizes = [(64, 64), (50, 60)]
    boxes = peer.box_coder.decode(deltas.flatten(0, 1), [anchors, anchors]).view(2, -1, 4)
    expected, _ = peer.filter_proposals(boxes, logits.flatten(), sizes, list(levels))
    stage = Predictions("rpn", logits, deltas, anchors, levels)
    proposals = propose(stage, sizes, num_candidates=number // 2, num_proposals=60)
    for image in range(2):
        ours = proposals.boxes[image][~proposals.is_padding[image]]
        torch.testing.assert_close(ours, expected[image], atol=1e-4, rtol=1e-5)


# The anchors that it learns from


def grid(number: int, stride: float, side: float) -> Tensor:
    steps = stride * torch.arange(float(number))
    corners = torch.cartesian_prod(steps, steps)
    return torch.cat([corners, corners + side], dim=1)


ANCHORS = torch.cat([grid(16, 4, 10), grid(16, 4, 20)])


def make_target(boxes: Sequence[Sequence[float]], image_id: int = 1) -> Target:
    corners = torch.tensor(boxes, dtype=torch.float32).view(-1, 4)
    number = len(corners)
    no = torch.zeros(number, dtype=torch.bool)
    return Target(corners, 3 + torch.arange(number), no, torch.ones(number), image_id, SIZE)


TARGETS = [
    make_target([[8, 8, 18, 18.5], [20, 21, 40, 40], [0, 40, 20, 60]], 1),
    make_target([], 2),
    make_target([[9.5, 9.5, 21, 20]], 3),
]


def stage_of(targets: Sequence[Target]) -> Predictions:
    shape = (len(targets), len(ANCHORS))
    return Predictions("rpn", torch.zeros(*shape, 1), torch.zeros(*shape, 4), ANCHORS, (512,))


def test_positives_are_one_class_whatever_the_object() -> None:
    assignment = SampledAnchors()(stage_of(TARGETS), TARGETS)
    assert set(assignment.labels.unique().tolist()) == {0, BACKGROUND, IGNORED}


def test_a_sample_has_its_size_and_all_positives_where_they_are_few() -> None:
    assignment = SampledAnchors()(stage_of(TARGETS), TARGETS)
    whole = IoUAssigner(0.7, 0.3)(stage_of(TARGETS), TARGETS)
    assert ((assignment.labels != IGNORED).sum(dim=1) == 256).all()
    assert torch.equal(assignment.labels >= 0, whole.labels >= 0)
    is_sampled = assignment.labels == BACKGROUND
    assert (whole.labels[is_sampled] == BACKGROUND).all()


def test_an_object_has_its_best_anchor_even_below_the_threshold() -> None:
    target = make_target([[30, 30, 34, 34]])
    assert box_iou(target.boxes, ANCHORS).max() < 0.7
    assert (SampledAnchors()(stage_of([target]), [target]).labels >= 0).any()


def test_objects_are_at_most_half_of_the_sample_and_chosen_at_random() -> None:
    whole = IoUAssigner(0.7, 0.3)(stage_of(TARGETS), TARGETS)
    num_all = int((whole.labels[0] >= 0).sum())
    assert num_all > 2
    assigner = SampledAnchors(num_samples=4)
    chosen = set()
    for image_id in range(20):
        target = make_target(TARGETS[0].boxes.tolist(), image_id)
        assignment = assigner(stage_of([target]), [target])
        is_positive = assignment.labels[0] >= 0
        assert int(is_positive.sum()) == 2
        assert int((assignment.labels[0] == BACKGROUND).sum()) == 2
        assert (whole.labels[0][is_positive] >= 0).all()
        assert torch.equal(assignment.matched_index[0] >= 0, is_positive)
        assert torch.equal(assignment.quality[0] > 0, is_positive)
        chosen |= set(is_positive.nonzero().flatten().tolist())
    assert len(chosen) == num_all


def test_fewer_anchors_than_samples_are_all_taken() -> None:
    assignment = SampledAnchors(num_samples=5000)(stage_of(TARGETS), TARGETS)
    whole = IoUAssigner(0.7, 0.3)(stage_of(TARGETS), TARGETS)
    assert torch.equal(assignment.labels, whole.labels.clamp(max=0))
    assert torch.equal(assignment.matched_index, whole.matched_index)


def test_an_image_is_sampled_alike_in_any_batch() -> None:
    together = SampledAnchors()(stage_of(TARGETS), TARGETS).labels
    for image, target in enumerate(TARGETS):
        alone = SampledAnchors()(stage_of([target]), [target]).labels
        assert torch.equal(alone[0], together[image])
    other = make_target(TARGETS[0].boxes.tolist(), 7)
    assert not torch.equal(SampledAnchors()(stage_of([other]), [other]).labels[0], together[0])


def test_an_image_is_sampled_anew_in_every_epoch() -> None:
    samples = [
        SampledAnchors()(stage_of(targets), targets).labels
        for epoch in (0, 1, 1)
        for targets in [
            [replace(t, draw=SampleKey(5, epoch, t.image_id).draw) for t in TARGETS],
        ]
    ]
    assert torch.equal(samples[1], samples[2])
    for one, other in zip(samples[0], samples[1], strict=True):
        is_common = (one == BACKGROUND) & (other == BACKGROUND)
        assert 64 < is_common.sum() < 192  # of 256 among 512, half of them by chance


def test_no_image_has_no_sample() -> None:
    assert SampledAnchors()(stage_of([]), []).labels.shape == (0, 512)


# Its class loss


def with_gradient(
    loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    value = loss(leaf, labels)
    value.backward()
    return value.detach(), leaf.grad


def test_the_objectness_loss_is_the_mean_of_binary_cross_entropy() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(2, 50, 1, generator=generator).double()
    labels = torch.randint(IGNORED, 1, (2, 50), generator=generator)

    def judge(logits: Tensor, labels: Tensor) -> Tensor:
        is_counted = labels != IGNORED
        goals = (labels[is_counted] >= 0).double()
        return F.binary_cross_entropy_with_logits(logits.squeeze(2)[is_counted], goals)

    expected = with_gradient(judge, logits, labels)
    torch.testing.assert_close(with_gradient(objectness_loss, logits, labels), expected)
    torch.testing.assert_close(ObjectnessLoss()(logits, labels), expected[0])


def test_the_objectness_loss_of_nothing_is_0_and_connected() -> None:
    for shape in ((0, 5, 1), (2, 5, 1)):
        labels = torch.full(shape[:2], IGNORED)
        value, gradient = with_gradient(objectness_loss, torch.full(shape, math.nan), labels)
        assert value == 0
        assert torch.equal(gradient, torch.zeros(shape))


def test_the_objectness_loss_tells_of_scores_that_are_not_finite() -> None:
    logits = torch.tensor([[1.0], [math.nan]])
    labels = torch.tensor([0, BACKGROUND])
    with pytest.raises(FloatingPointError, match="logits: 1 of 2 scores are not finite"):
        objectness_loss(logits, labels)
    assert ObjectnessLoss(check_finite=False)(logits, labels).isnan()


# On a GPU


@pytest.mark.gpu
def test_a_gpu_proposes_and_samples_the_same() -> None:
    generator = torch.Generator().manual_seed(8)
    shape = (len(TARGETS), len(ANCHORS))
    stage = Predictions(
        "rpn",
        torch.randn(*shape, 1, generator=generator),
        0.3 * torch.randn(*shape, 4, generator=generator),
        ANCHORS,
        (256, 256),
    )
    there = replace(
        stage,
        logits=stage.logits.cuda(),
        deltas=stage.deltas.cuda(),
        anchors=stage.anchors.cuda(),
    )
    expected, found_there = proposed(stage), proposed(there)
    assert torch.equal(found_there.is_padding.cpu(), expected.is_padding)
    torch.testing.assert_close(found_there.boxes.cpu(), expected.boxes, atol=1e-3, rtol=1e-5)
    sample = SampledAnchors()(stage, TARGETS)
    sample_there = SampledAnchors()(there, [target.to("cuda") for target in TARGETS])
    assert torch.equal(sample_there.labels.cpu(), sample.labels)
    assert torch.equal(sample_there.matched_index.cpu(), sample.matched_index)
