"""The kernels of the box loss: by hand, and as close to float64 as plain torch is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rankdet.detectors.assign import Assignment
from rankdet.detectors.criterion import plain_box_loss
from rankdet.structures import Predictions, Target

WEIGHTS = (10.0, 8.0, 5.0, 4.0)


def make_target(boxes: Sequence[Sequence[float]] | Tensor) -> Target:
    boxes = torch.as_tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    number = len(boxes)
    nothing = torch.zeros(number, dtype=torch.bool)
    return Target(
        boxes, torch.zeros(number, dtype=torch.int64), nothing, torch.ones(number), 1, (64, 64)
    )


def make_case(
    seed: int = 0, num_anchors: int = 37, dtype: torch.dtype = torch.float32
) -> tuple[Predictions, Assignment, list[Target]]:
    """Deltas of three images, the second without objects; half of the anchors are positive."""
    generator = torch.Generator().manual_seed(seed)

    def boxes(number: int) -> Tensor:
        corners = torch.rand(number, 2, generator=generator) * 50
        return torch.cat(
            [corners, corners + torch.rand(number, 2, generator=generator) * 30 + 1], 1
        )

    targets = [make_target(boxes(number)) for number in (3, 0, 5)]
    index = torch.stack(
        [
            torch.randint(len(target), (num_anchors,), generator=generator)
            if len(target)
            else torch.full((num_anchors,), -1)
            for target in targets
        ]
    )
    is_positive = (torch.rand(3, num_anchors, generator=generator) < 0.5) & (index >= 0)
    labels = torch.where(is_positive, 3, -1 - (torch.arange(num_anchors) % 2))
    deltas = torch.randn(3, num_anchors, 4, generator=generator) * 3
    deltas[~is_positive] = math.nan  # must not be read
    anchors = boxes(num_anchors)
    stage = Predictions("", torch.zeros(3, num_anchors, 1), deltas.to(dtype), anchors, (37,))
    assignment = Assignment(labels, torch.where(is_positive, index, -1), is_positive.float())
    return stage, assignment, targets


def fused(
    stage: Predictions,
    assignment: Assignment,
    targets: Sequence[Target],
    device: str,
    *,
    weights: Sequence[float] = WEIGHTS,
    beta: float = 1.0,
    block: int = 16,
    incoming: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The loss and the gradient of the deltas by the kernels, on the CPU again."""
    from rankdet.detectors import box_loss_triton

    deltas = stage.deltas.detach().to(device).requires_grad_()
    moved = dataclasses.replace(stage, deltas=deltas, anchors=stage.anchors.to(device))
    there = Assignment(*(tensor.to(device) for tensor in vars(assignment).values()))
    objects = [target.to(device) for target in targets]
    loss = box_loss_triton.box_loss(moved, there, objects, weights, beta, block=block)
    (incoming * loss).backward()
    assert deltas.grad is not None
    assert deltas.grad.dtype == stage.deltas.dtype
    return loss.detach().cpu(), deltas.grad.cpu()


def plain(
    stage: Predictions,
    assignment: Assignment,
    targets: Sequence[Target],
    dtype: torch.dtype,
    *,
    weights: Sequence[float] = WEIGHTS,
    beta: float = 1.0,
    incoming: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The same by torch, computed in `dtype`."""
    deltas = stage.deltas.detach().to(dtype, copy=True).requires_grad_()
    moved = dataclasses.replace(stage, deltas=deltas, anchors=stage.anchors.to(dtype))
    objects = [dataclasses.replace(target, boxes=target.boxes.to(dtype)) for target in targets]
    loss = plain_box_loss(moved, assignment, objects, weights, beta)
    (incoming * loss).backward()
    assert deltas.grad is not None
    return loss.detach(), deltas.grad


def error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


def test_the_loss_of_one_positive_is_as_worked_out_by_hand(kernel_device: str) -> None:
    # The box is shifted by half of the anchor's width and not in y, twice as wide, half as high.
    anchors = torch.tensor([[0.0, 0, 8, 8], [20, 20, 40, 60]])
    target = make_target([[20.0, 30, 60, 50]])
    goals = [10 * 0.5, 8 * 0.0, 5 * math.log(2.0), 4 * math.log(0.5)]
    deltas = torch.zeros(1, 2, 4)
    deltas[0, 1] = torch.tensor(goals) + torch.tensor([0.5, -3.0, 0.0, 2.0])
    stage = Predictions("", torch.zeros(1, 2, 1), deltas, anchors, (2,))
    assignment = Assignment(torch.tensor([[-1, 0]]), torch.tensor([[-1, 0]]), torch.zeros(1, 2))
    loss, gradient = fused(stage, assignment, [target], kernel_device, incoming=8.0)
    assert loss.item() == pytest.approx((0.125 + 2.5 + 0 + 1.5) / 4, rel=1e-5)
    assert gradient[0, 0].tolist() == [0, 0, 0, 0]
    assert gradient[0, 1].tolist() == pytest.approx([1.0, -2.0, 0, 2.0], abs=1e-5)


@pytest.mark.parametrize("beta", [1.0, 0.11, 0.0])
@pytest.mark.parametrize("block", [16, 128])
def test_loss_and_gradient_are_those_of_plain_torch(
    beta: float, block: int, kernel_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankdet.detectors import box_loss_triton

    monkeypatch.setattr(box_loss_triton, "_PARTIAL_BLOCK", 4)  # several rounds of adding up
    for seed in range(3):
        case = make_case(seed)
        found = fused(*case, kernel_device, beta=beta, block=block, incoming=3.0)
        reference = plain(*case, torch.float64, beta=beta, incoming=3.0)
        usual = plain(*case, torch.float32, beta=beta, incoming=3.0)
        assert found[0].dtype == torch.float32
        for one, other, exact in zip(found, usual, reference, strict=True):
            assert error(one, exact) <= max(2 * error(other, exact), 2e-7)
        assert torch.equal(found[1] == 0, reference[1] == 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_deltas_are_judged_in_float32(dtype: torch.dtype, kernel_device: str) -> None:
    case = make_case(dtype=dtype)
    loss, gradient = fused(*case, kernel_device)
    expected, expected_gradient = plain(*case, torch.float64)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    # Triton's interpreter cuts off where a GPU rounds.
    torch.testing.assert_close(
        gradient.double(), expected_gradient, rtol=2 * torch.finfo(dtype).eps, atol=0
    )


def test_without_positives_loss_and_gradient_are_0(kernel_device: str) -> None:
    stage, assignment, targets = make_case()
    nothing = dataclasses.replace(
        assignment,
        labels=assignment.labels.clamp(max=-1),
        matched_index=torch.full_like(assignment.matched_index, -1),
    )
    for objects in (targets, [make_target([])] * 3):
        loss, gradient = fused(stage, nothing, objects, kernel_device)
        assert loss.item() == 0
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_a_positive_without_an_object_is_drawn_to_its_anchor(kernel_device: str) -> None:
    stage, assignment, targets = make_case()
    index = assignment.matched_index.clone()
    index[0] = -1
    lost = dataclasses.replace(assignment, matched_index=index)
    loss, gradient = fused(stage, lost, targets, kernel_device)
    expected, expected_gradient = plain(stage, lost, targets, torch.float64)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_delta_of_a_positive_that_is_not_finite_is_seen(value: float, kernel_device: str) -> None:
    stage, assignment, targets = make_case()
    image, anchor = (assignment.labels >= 0).nonzero()[0].tolist()
    stage.deltas[image, anchor, 2] = value
    loss, gradient = fused(stage, assignment, targets, kernel_device)
    assert not loss.isfinite()
    assert bool(gradient[image, anchor, 2].isnan()) == math.isnan(value)
    assert gradient.isnan().sum() <= 1


def test_deltas_need_not_be_contiguous(kernel_device: str) -> None:
    stage, assignment, targets = make_case()
    turned = stage.deltas.transpose(0, 2).contiguous().transpose(0, 2)
    loss, gradient = fused(
        dataclasses.replace(stage, deltas=turned), assignment, targets, kernel_device
    )
    expected, expected_gradient = fused(stage, assignment, targets, kernel_device)
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, expected_gradient)


def test_the_criterion_takes_the_kernels_where_they_can_read(
    kernel_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rankdet.detectors import criterion

    stage, assignment, targets = make_case()
    expected, _ = fused(stage, assignment, targets, kernel_device, beta=0.3)
    there = dataclasses.replace(
        stage, deltas=stage.deltas.to(kernel_device), anchors=stage.anchors.to(kernel_device)
    )
    moved = Assignment(*(tensor.to(kernel_device) for tensor in vars(assignment).values()))
    objects = [target.to(kernel_device) for target in targets]
    monkeypatch.setattr(criterion, "can_read", lambda tensor: True)
    monkeypatch.setattr(criterion, "plain_box_loss", None)
    assert torch.allclose(criterion.box_loss(there, moved, objects, WEIGHTS, 0.3).cpu(), expected)
