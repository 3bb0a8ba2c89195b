"""The kernels of the matching: by hand, and bit by bit what plain torch assigns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rankdet.detectors.assign import Assignment, IoUAssigner
from rankdet.losses import BACKGROUND, IGNORED
from rankdet.structures import Predictions, Target

SIDE = 64.0


def make_target(boxes: Tensor, labels: Sequence[int], ignored: Sequence[int] = ()) -> Target:
    is_ignored = torch.zeros(len(boxes), dtype=torch.bool)
    is_ignored[list(ignored)] = True
    areas = torch.ones(len(boxes))
    return Target(boxes, torch.tensor(labels, dtype=torch.int64), is_ignored, areas, 1, (64, 64))


def assign(
    anchors: Tensor,
    targets: Sequence[Target],
    device: str,
    *,
    positive: float = 0.5,
    negative: float = 0.4,
    block: int = 16,
    **settings: bool,
) -> Assignment:
    """What the kernels assign, on the CPU again."""
    from rankdet.detectors import assign_triton

    moved = [target.to(device) for target in targets]
    found = assign_triton.assign(
        anchors.to(device), moved, positive, negative, block=block, **settings
    )
    return Assignment(*(tensor.cpu() for tensor in found))


def draw_boxes(number: int, generator: torch.Generator, *, is_coarse: bool) -> Tensor:
    """Boxes with sides > 0; coarse ones are tied and at thresholds often."""
    if is_coarse:
        corners = torch.randint(6, (number, 2), generator=generator)
        extents = torch.randint(1, 6, (number, 2), generator=generator)
        return torch.cat([corners, corners + extents], dim=1).float()
    corners = torch.rand(number, 2, generator=generator) * SIDE
    extents = torch.rand(number, 2, generator=generator) * SIDE / 2 + 0.1
    return torch.cat([corners, corners + extents], dim=1)


def draw_case(seed: int, counts: Sequence[int], *, is_coarse: bool) -> tuple[Tensor, list[Target]]:
    """Anchors, and targets with so many objects, a third of them ignored."""
    generator = torch.Generator().manual_seed(seed)
    targets = []
    for count in counts:
        boxes = draw_boxes(count, generator, is_coarse=is_coarse)
        labels = torch.randint(20, (count,), generator=generator).tolist()
        ignored = (torch.rand(count, generator=generator) < 1 / 3).nonzero()[:, 0].tolist()
        targets.append(make_target(boxes, labels, ignored))
    return draw_boxes(75, generator, is_coarse=is_coarse), targets


def assert_same(found: Assignment, expected: Assignment) -> None:
    for name in ("labels", "matched_index", "quality"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype
        assert torch.equal(one, other), name


def test_an_anchor_is_object_ignored_or_background(kernel_device: str) -> None:
    anchors = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 4.5], [20, 0, 30, 10], [50, 50, 60, 60]])
    objects = torch.tensor([[0.0, 0, 10, 9], [48, 48, 62, 62]])
    found = assign(anchors, [make_target(objects, [7, 3], ignored=[1])], kernel_device)
    assert found.labels.tolist() == [[7, 7, BACKGROUND, IGNORED]]
    assert found.matched_index.tolist() == [[0, 0, -1, -1]]
    assert found.quality[0].tolist() == pytest.approx([0.9, 0.5, 0, 0])


def test_the_best_anchors_of_an_object_count_over_all_programs(kernel_device: str) -> None:
    """The object's best are the first and the last anchor, tied, far apart; others overlap less."""
    anchors = torch.tensor([[0.0, 0, 1, 10]] + [[0.0, 0, 0.5, 10]] * 30 + [[9.0, 0, 10, 10]])
    target = make_target(torch.tensor([[0.0, 0, 10, 10]]), [4])
    found = assign(anchors, [target], kernel_device, block=8)
    assert found.labels.tolist() == [[4] + [BACKGROUND] * 30 + [4]]


def test_the_best_anchor_of_an_object_can_be_left_to_the_thresholds(kernel_device: str) -> None:
    anchors, targets = draw_case(3, (3, 0, 2), is_coarse=True)
    found = assign(anchors, targets, kernel_device, block=8, is_best_positive=False)
    expected = IoUAssigner(is_best_positive=False).assign_plainly(anchors, targets)
    assert_same(found, expected)
    assert not torch.equal(expected.labels, IoUAssigner().assign_plainly(anchors, targets).labels)


def test_of_equal_objects_the_first_counts_and_rows_are_those_of_the_image(
    kernel_device: str,
) -> None:
    anchors = torch.tensor([[0.0, 0, 10, 10]])
    filling = make_target(torch.tensor([[20.0, 20, 30, 30]] * 3), [0, 1, 2])
    twice = make_target(torch.tensor([[50.0, 50, 60, 60], [0, 0, 10, 10], [0, 0, 10, 10]]), [5] * 3)
    found = assign(anchors, [filling, twice], kernel_device)
    assert found.labels.tolist() == [[BACKGROUND], [5]]
    assert found.matched_index.tolist() == [[-1], [1]]


def test_empty_boxes_and_anchors_are_nothing(kernel_device: str) -> None:
    empty = torch.tensor([[3.0, 3, 3, 3]])
    anchors = torch.cat([empty, torch.tensor([[0.0, 0, 10, 10]])])
    target = make_target(torch.cat([empty, empty]), [1, 2], ignored=[1])
    found = assign(anchors, [target], kernel_device)
    assert found.labels.tolist() == [[BACKGROUND, BACKGROUND]]
    assert found.quality.tolist() == [[0, 0]]


@pytest.mark.parametrize("is_coarse", [True, False])
@pytest.mark.parametrize("thresholds", [(0.5, 0.4), (0.7, 0.3), (0.5, 0.5)])
@pytest.mark.parametrize(("block", "counts"), [(16, (3, 0, 9)), (128, (5,)), (32, (0, 0, 1, 2))])
def test_every_bit_is_that_of_plain_torch(
    is_coarse: bool,
    thresholds: tuple[float, float],
    block: int,
    counts: Sequence[int],
    kernel_device: str,
) -> None:
    positive, negative = thresholds
    for seed in range(2):
        anchors, targets = draw_case(seed, counts, is_coarse=is_coarse)
        found = assign(
            anchors, targets, kernel_device, positive=positive, negative=negative, block=block
        )
        assert_same(found, IoUAssigner(positive, negative).assign_plainly(anchors, targets))


def test_the_assigner_takes_the_kernels_where_they_can_read(
    kernel_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankdet.detectors import assign as module

    asked = []

    def can_read(tensor: Tensor) -> bool:
        asked.append(tensor.dtype)
        return True

    monkeypatch.setattr(module, "can_read", can_read)
    monkeypatch.setattr(IoUAssigner, "assign_plainly", None)
    anchors, targets = draw_case(0, (3, 0, 2), is_coarse=True)
    anchors = anchors.to(kernel_device)
    shape = (len(targets), len(anchors))
    stage = Predictions("", torch.zeros(*shape, 20), torch.zeros(*shape, 4), anchors, (75,))
    found = IoUAssigner(0.7, 0.3)(stage, [target.to(kernel_device) for target in targets])
    monkeypatch.undo()
    expected = IoUAssigner(0.7, 0.3).assign_plainly(anchors.cpu(), targets)
    assert_same(Assignment(*(tensor.cpu() for tensor in vars(found).values())), expected)
    assert asked == [torch.float32]


@pytest.mark.gpu
def test_the_same_bits_come_out_of_every_run_on_a_gpu() -> None:
    anchors, targets = draw_case(0, (30, 2, 100), is_coarse=True)
    anchors = anchors.repeat(200, 1)
    first = assign(anchors, targets, "cuda", block=128)
    assert_same(first, IoUAssigner().assign_plainly(anchors, targets))
    for _ in range(20):
        assert_same(assign(anchors, targets, "cuda", block=128), first)
