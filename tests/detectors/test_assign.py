"""Which anchor is which object: by hand, by a slow loop, and by torchvision's Matcher."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models.detection._utils import Matcher
from torchvision.ops import box_iou

from rankdet.detectors.assign import Assignment, IoUAssigner, matched_boxes
from rankdet.losses import BACKGROUND, IGNORED
from rankdet.structures import Predictions, Target

Box = Sequence[float]


def make_target(
    boxes: Sequence[Box] | Tensor, labels: Sequence[int] | None = None, ignored: Sequence[int] = ()
) -> Target:
    """A target whose object i has class i unless told; `ignored` are rows."""
    boxes = torch.as_tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    is_ignored = torch.zeros(len(boxes), dtype=torch.bool)
    is_ignored[list(ignored)] = True
    return Target(
        boxes=boxes,
        labels=torch.tensor(range(len(boxes)) if labels is None else labels, dtype=torch.int64),
        is_ignored=is_ignored,
        areas=torch.ones(len(boxes)),
        image_id=1,
        size=(100, 100),
    )


def make_predictions(anchors: Sequence[Box] | Tensor, num_images: int) -> Predictions:
    anchors = torch.as_tensor(anchors, dtype=torch.float32).reshape(-1, 4)
    shape = (num_images, len(anchors))
    return Predictions(
        "box", torch.zeros(*shape, 20), torch.zeros(*shape, 4), anchors, (len(anchors),)
    )


def assign(
    anchors: Sequence[Box] | Tensor, *targets: Target, **settings: float | int
) -> Assignment:
    return IoUAssigner(**settings)(make_predictions(anchors, len(targets)), targets)


def strip(width: float, left: float = 0.0) -> list[float]:
    """A box 10 high: in an object [0, 0, 10, 10] its IoU is width / 10."""
    return [left, 0.0, left + width, 10.0]


OBJECT = strip(10)
ELSEWHERE = [50.0, 50.0, 60.0, 60.0]


def slow_assign(anchors: Tensor, target: Target, positive: float, negative: float) -> list[list]:
    """labels, matched_index and quality of one image, one anchor and object at a time."""
    iou = box_iou(target.boxes, anchors)
    areas = (anchors[:, 2] - anchors[:, 0]) * (anchors[:, 3] - anchors[:, 1])
    objects = [g for g in range(len(target)) if not target.is_ignored[g]]
    best_of_object = {g: max(iou[g].tolist()) for g in objects}
    labels, matched, quality = [], [], []
    for a in range(len(anchors)):
        best, own = 0.0, -1
        for g in objects:
            if iou[g, a] > best:
                best, own = iou[g, a].item(), g
        is_positive = best >= positive
        for g in objects:
            if iou[g, a] == best_of_object[g] and iou[g, a] > 0:
                is_positive = True
        label = IGNORED if best >= negative else BACKGROUND
        for g in range(len(target)):
            if target.is_ignored[g]:
                corner = torch.maximum(anchors[a, :2], target.boxes[g, :2])
                sides = (torch.minimum(anchors[a, 2:], target.boxes[g, 2:]) - corner).clamp(min=0)
                if iou[g, a] >= negative or sides.prod() / areas[a] >= positive:
                    label = IGNORED
        labels.append(int(target.labels[own]) if is_positive else label)
        matched.append(own if is_positive else -1)
        quality.append(best if is_positive else 0.0)
    return [labels, matched, quality]


def test_an_anchor_on_an_object_has_its_class() -> None:
    result = assign([OBJECT, ELSEWHERE], make_target([OBJECT], labels=[7]))
    assert result.labels.tolist() == [[7, BACKGROUND]]
    assert result.matched_index.tolist() == [[0, -1]]
    assert result.quality.tolist() == [[1.0, 0.0]]


def test_the_dtypes_are_those_of_the_class() -> None:
    for target in (make_target([OBJECT]), make_target([])):
        result = assign([OBJECT], target)
        assert result.labels.dtype == result.matched_index.dtype == torch.int64
        assert result.quality.dtype == torch.float32


@pytest.mark.parametrize(
    ("width", "label"),
    [(6, 3), (5, 3), (4.9, IGNORED), (4, IGNORED), (3.9, BACKGROUND), (0.1, BACKGROUND)],
)
def test_the_iou_decides_and_the_thresholds_belong_to_the_upper_side(
    width: float, label: int
) -> None:
    # The second anchor is the object's best, so the first has only its own IoU.
    result = assign([strip(width), OBJECT], make_target([OBJECT], labels=[3]))
    assert result.labels.tolist() == [[label, 3]]
    assert result.quality[0, 0].item() == pytest.approx(width / 10 if label == 3 else 0)
    assert result.matched_index.tolist() == [[0 if label == 3 else -1, 0]]


def test_the_thresholds_can_be_chosen() -> None:
    anchors = [strip(6.9), strip(2.9), strip(3.0), OBJECT]
    result = assign(anchors, make_target([OBJECT]), positive_iou=0.7, negative_iou=0.3)
    assert result.labels.tolist() == [[IGNORED, BACKGROUND, IGNORED, 0]]


@pytest.mark.parametrize(
    ("positive", "negative"), [(0.4, 0.5), (0.5, 0.0), (1.1, 0.4), (0.0, 0.0), (0.5, -1.0)]
)
def test_thresholds_out_of_order_are_refused(positive: float, negative: float) -> None:
    with pytest.raises(ValueError, match="0 < negative_iou <= positive_iou <= 1, got"):
        IoUAssigner(positive, negative)


def test_an_objects_best_anchors_are_positive_however_small_the_overlap() -> None:
    anchors = [strip(1), strip(0.5), strip(1, left=9)]  # the first and the last are tied
    result = assign(anchors, make_target([OBJECT], labels=[4]))
    assert result.labels.tolist() == [[4, BACKGROUND, 4]]
    assert result.quality[0].tolist() == pytest.approx([0.1, 0, 0.1])


def test_an_object_that_no_anchor_touches_makes_nothing_positive() -> None:
    result = assign([OBJECT, strip(3)], make_target([ELSEWHERE]))
    assert result.labels.tolist() == [[BACKGROUND, BACKGROUND]]
    assert result.matched_index.tolist() == [[-1, -1]]


def test_an_object_without_area_makes_nothing_positive() -> None:
    result = assign([OBJECT], make_target([[5, 5, 5, 8]]))
    assert result.labels.tolist() == [[BACKGROUND]]


def test_the_best_anchor_of_one_object_can_belong_to_another() -> None:
    small = [8.0, 0.0, 12.0, 10.0]  # the anchor is its best, but overlaps the large one more
    result = assign([strip(10)], make_target([small, [0, 0, 8, 10]], labels=[5, 6]))
    assert result.labels.tolist() == [[6]]
    assert result.matched_index.tolist() == [[1]]
    assert result.quality[0, 0].item() == pytest.approx(0.8)


def test_a_best_anchor_can_be_below_the_thresholds_for_its_own_object() -> None:
    objects = [[0, 0, 10, 10], [9, 0, 100, 10]]
    anchors = [[0, 0, 10, 10], [7, 0, 13, 10]]  # the second: IoU 3/13 and 4/93
    result = assign(anchors, make_target(objects))
    assert result.labels.tolist() == [[0, 0]]
    assert result.quality[0].tolist() == pytest.approx([1, 3 / 13])


def test_of_two_equal_objects_the_first_counts() -> None:
    result = assign([OBJECT], make_target([ELSEWHERE, OBJECT, OBJECT], labels=[1, 2, 3]))
    assert result.labels.tolist() == [[2]]
    assert result.matched_index.tolist() == [[1]]


def test_images_do_not_see_each_others_objects() -> None:
    anchors = [OBJECT, ELSEWHERE]
    result = assign(
        anchors,
        make_target([ELSEWHERE], labels=[1]),
        make_target([]),
        make_target([ELSEWHERE, OBJECT, strip(9)], labels=[2, 3, 4]),
    )
    assert result.labels.tolist() == [[BACKGROUND, 1], [BACKGROUND, BACKGROUND], [3, 2]]
    assert result.matched_index.tolist() == [[-1, 0], [-1, -1], [1, 0]]


def test_the_filling_of_short_images_is_no_object() -> None:
    # An anchor at the origin would touch a filling that counted as a box there.
    anchors = [[0, 0, 1, 1], ELSEWHERE]
    result = assign(anchors, make_target([ELSEWHERE]), make_target([ELSEWHERE] * 5))
    assert result.labels.tolist() == [[BACKGROUND, 0], [BACKGROUND, 0]]


@pytest.mark.parametrize("num_images", [0, 1, 3])
def test_without_any_object_all_is_background(num_images: int) -> None:
    result = assign([OBJECT, ELSEWHERE], *[make_target([])] * num_images)
    assert result.labels.tolist() == [[BACKGROUND] * 2] * num_images
    assert result.matched_index.tolist() == [[-1] * 2] * num_images
    assert result.quality.tolist() == [[0.0] * 2] * num_images
    assert result.labels.shape == (num_images, 2)


def test_a_target_for_each_image_is_asked_for() -> None:
    with pytest.raises(ValueError, match="expected 2, one for each image, got 1"):
        IoUAssigner()(make_predictions([OBJECT], 2), [make_target([OBJECT])])


@pytest.mark.parametrize("width", [4.0, 7.0, 10.0])
def test_an_anchor_with_enough_iou_with_an_ignored_object_is_ignored(width: float) -> None:
    # The anchor holds the object, so that only width / 10 of the anchor lies in it.
    result = assign([OBJECT, ELSEWHERE], make_target([strip(width)], ignored=[0]))
    assert result.labels.tolist() == [[IGNORED, BACKGROUND]]
    assert result.matched_index.tolist() == [[-1, -1]]
    assert result.quality.tolist() == [[0.0, 0.0]]


def test_an_anchor_with_less_iou_with_an_ignored_object_is_background() -> None:
    result = assign([OBJECT], make_target([strip(3.9)], ignored=[0]))
    assert result.labels.tolist() == [[BACKGROUND]]


@pytest.mark.parametrize(("left", "label"), [(6, IGNORED), (95, IGNORED), (95.1, BACKGROUND)])
def test_an_anchor_that_lies_by_half_in_an_ignored_crowd_is_ignored(
    left: float, label: int
) -> None:
    crowd = [0, 0, 100, 100]
    result = assign([[left, 0, left + 10, 10]], make_target([crowd], ignored=[0]))
    assert result.labels.tolist() == [[label]]


def test_the_part_in_a_crowd_is_compared_with_positive_iou() -> None:
    crowd, anchor = [0, 0, 100, 100], [94, 0, 104, 10]  # six tenths of it
    for positive, label in ((0.6, IGNORED), (0.7, BACKGROUND)):
        target = make_target([crowd], ignored=[0])
        assert assign([anchor], target, positive_iou=positive).labels.tolist() == [[label]]


def test_an_ignored_object_takes_no_anchor_from_an_object() -> None:
    # The ignored one comes first and overlaps more.
    target = make_target([OBJECT, strip(8)], labels=[1, 2], ignored=[0])
    result = assign([OBJECT], target)
    assert result.labels.tolist() == [[2]]
    assert result.matched_index.tolist() == [[1]]
    assert result.quality[0, 0].item() == pytest.approx(0.8)


def test_ignored_objects_of_one_image_ignore_nothing_in_another() -> None:
    result = assign([OBJECT], make_target([OBJECT], ignored=[0]), make_target([ELSEWHERE]))
    assert result.labels.tolist() == [[IGNORED], [BACKGROUND]]


def random_case(seed: int, ignored: bool, num_anchors: int = 40) -> tuple[Tensor, list[Target]]:
    """Anchors and targets on a coarse grid, so that ties and exact thresholds are common."""
    generator = torch.Generator().manual_seed(seed)

    def draw(highest: int, *shape: int) -> Tensor:
        return torch.randint(highest, shape, generator=generator)

    def boxes(number: int) -> Tensor:
        corner = draw(6, number, 2)
        return torch.cat((corner, corner + 1 + draw(5, number, 2)), dim=1).float()

    targets = []
    for _ in range(3):
        number = int(draw(6, 1))
        rows = [row for row in range(number) if ignored and draw(3, 1) == 0]
        targets.append(make_target(boxes(number), draw(20, number).tolist(), ignored=rows))
    return boxes(num_anchors), targets


@given(seed=st.integers(0, 10**6), thresholds=st.sampled_from([(0.5, 0.4), (0.7, 0.3), (0.5, 0.5)]))
@settings(max_examples=40, deadline=None)
def test_the_result_is_that_of_a_slow_loop(seed: int, thresholds: tuple[float, float]) -> None:
    anchors, targets = random_case(seed, ignored=True, num_anchors=20)
    result = IoUAssigner(*thresholds)(make_predictions(anchors, 3), targets)
    for image, target in enumerate(targets):
        labels, matched, quality = slow_assign(anchors, target, *thresholds)
        assert result.labels[image].tolist() == labels
        assert result.matched_index[image].tolist() == matched
        assert result.quality[image].tolist() == quality


@given(seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_without_ignored_objects_torchvision_assigns_the_same(seed: int) -> None:
    anchors, targets = random_case(seed, ignored=False)
    matcher = Matcher(0.5, 0.4, allow_low_quality_matches=True)
    for target in targets:
        # torchvision ties all anchors with an object that none of them touches; we do not.
        is_touched = box_iou(target.boxes, anchors).amax(1) > 0
        target = target.select(is_touched)
        expected = torch.full((len(anchors),), BACKGROUND)
        if len(target):
            expected = matcher(box_iou(target.boxes, anchors))
        result = IoUAssigner()(make_predictions(anchors, 1), [target])
        is_positive = expected >= 0
        assert torch.equal(result.matched_index[0], torch.where(is_positive, expected, -1))
        classes = torch.where(is_positive, -3, expected)
        classes[is_positive] = target.labels[expected[is_positive]]
        assert torch.equal(result.labels[0], classes)


@pytest.mark.parametrize("pairs_at_once", [1, 15, 100, 451])
def test_blocks_of_anchors_change_no_bit(pairs_at_once: int) -> None:
    for seed in range(5):
        anchors, targets = random_case(seed, ignored=True)
        anchors = anchors + 0.1 * torch.rand(anchors.shape)
        whole = assign(anchors, *targets)
        blocks = assign(anchors, *targets, pairs_at_once=pairs_at_once)
        assert torch.equal(whole.labels, blocks.labels)
        assert torch.equal(whole.matched_index, blocks.matched_index)
        assert torch.equal(whole.quality, blocks.quality)


def test_no_more_pairs_than_asked_for_are_looked_at_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rankdet.detectors import assign as module

    sizes = []
    original = module._intersections

    def watched(boxes: Tensor, anchors: Tensor) -> Tensor:
        result = original(boxes, anchors)
        sizes.append(result.numel())
        return result

    monkeypatch.setattr(module, "_intersections", watched)
    anchors, targets = torch.rand(100, 4), [make_target(torch.rand(30, 4)), make_target([])]
    anchors[:, 2:] += 1
    assign(anchors, *targets, pairs_at_once=600)
    assert max(sizes) == 600
    assert len(sizes) == 10 + 9  # two passes; the first block is made once
    sizes.clear()
    assign(anchors, *targets)
    assert sizes == [6000]


def test_more_objects_than_pairs_at_once_still_work() -> None:
    target = make_target([OBJECT] * 20)
    result = assign([OBJECT, ELSEWHERE], target, pairs_at_once=5)
    assert result.labels.tolist() == [[0, BACKGROUND]]


def test_an_empty_anchor_is_background() -> None:
    empty = [3.0, 3.0, 3.0, 3.0]
    target = make_target([empty, OBJECT, OBJECT], ignored=[2])
    result = assign([empty, OBJECT], target, make_target([]))
    assert result.labels.tolist() == [[BACKGROUND, 1], [BACKGROUND, BACKGROUND]]
    assert result.quality.isfinite().all()


def test_the_assignment_has_no_gradient() -> None:
    anchors = torch.tensor([OBJECT], requires_grad=True)
    result = IoUAssigner()(make_predictions(anchors, 1), [make_target([OBJECT])])
    assert not result.quality.requires_grad


def test_matched_boxes_are_those_of_the_objects_and_elsewhere_the_anchors() -> None:
    anchors = [ELSEWHERE, strip(9), strip(10)]
    targets = [make_target([ELSEWHERE, strip(8)]), make_target([strip(10)]), make_target([])]
    assignment = assign(anchors, *targets)
    boxes = matched_boxes(assignment, targets, torch.tensor(anchors))
    assert boxes.tolist() == [
        [ELSEWHERE, strip(8), strip(8)],
        [ELSEWHERE, strip(10), strip(10)],
        anchors,
    ]
    nothing = [make_target([])] * 2
    assignment = assign(anchors, *nothing)
    assert matched_boxes(assignment, nothing, torch.tensor(anchors)).tolist() == [anchors] * 2


@pytest.mark.gpu
def test_a_gpu_assigns_the_same() -> None:
    for seed in range(5):
        anchors, targets = random_case(seed, ignored=True)
        expected = assign(anchors, *targets)
        result = assign(anchors.cuda(), *(target.to("cuda") for target in targets))
        assert result.labels.is_cuda
        assert torch.equal(result.labels.cpu(), expected.labels)
        assert torch.equal(result.matched_index.cpu(), expected.matched_index)
        torch.testing.assert_close(result.quality.cpu(), expected.quality)


# Anchors of each image


def own_stage(anchors: Tensor, is_padding: Tensor | None = None) -> Predictions:
    shape = anchors.shape[:2]
    return Predictions(
        "roi", torch.zeros(*shape, 20), torch.zeros(*shape, 4), anchors, (shape[1],), is_padding
    )


def random_anchors(num_images: int, number: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    corners = 60 * torch.rand(num_images, number, 2, generator=generator)
    sides = 2 + 30 * torch.rand(num_images, number, 2, generator=generator)
    return torch.cat([corners, corners + sides], dim=2)


@pytest.mark.parametrize("pairs_at_once", [2**24, 50])
def test_images_may_have_anchors_of_their_own(pairs_at_once: int) -> None:
    anchors = random_anchors(3, 40)
    targets = [
        make_target(anchors[0, :4] + 1, ignored=[1]),
        make_target([]),
        make_target(anchors[2, :2]),
    ]
    together = IoUAssigner(pairs_at_once=pairs_at_once)(own_stage(anchors), targets)
    for image, target in enumerate(targets):
        alone = assign(anchors[image], target)
        for name, expected in vars(alone).items():
            assert torch.equal(getattr(together, name)[image], expected[0]), name


def test_padding_is_ignored_and_never_the_best_of_an_object() -> None:
    anchors = torch.tensor([[OBJECT, strip(3), ELSEWHERE]])
    is_padding = torch.tensor([[True, False, False]])
    found = IoUAssigner()(own_stage(anchors, is_padding), [make_target([OBJECT])])
    assert found.labels.tolist() == [[IGNORED, 0, BACKGROUND]]
    assert found.matched_index.tolist() == [[-1, 0, -1]]
    assert found.quality[0].tolist() == pytest.approx([0, 0.3, 0])


def test_padding_is_ignored_where_there_are_no_objects_and_no_images() -> None:
    anchors = torch.tensor([[OBJECT, ELSEWHERE]])
    stage = own_stage(anchors, torch.tensor([[False, True]]))
    assert IoUAssigner()(stage, [make_target([])]).labels.tolist() == [[BACKGROUND, IGNORED]]
    assert IoUAssigner()(stage.select(slice(0)), []).labels.shape == (0, 2)


def test_the_best_anchor_of_an_object_can_be_left_to_the_thresholds() -> None:
    settings = {"positive_iou": 0.5, "negative_iou": 0.5}
    anchors = [strip(4), ELSEWHERE]
    assert assign(anchors, make_target([OBJECT]), **settings).labels.tolist() == [[0, BACKGROUND]]
    strict = assign(anchors, make_target([OBJECT]), **settings, is_best_positive=False)
    assert strict.labels.tolist() == [[BACKGROUND, BACKGROUND]]
    assert strict.matched_index.tolist() == [[-1, -1]]
    both = assign([strip(5), strip(6)], make_target([OBJECT]), **settings, is_best_positive=False)
    assert both.labels.tolist() == [[0, 0]]
