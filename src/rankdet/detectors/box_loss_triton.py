"""The box loss of criterion.py on a GPU: the labels are read twice, the gradient written once.

The rows of a (B, A) batch are numbered through: row = image * A + anchor. Only where a row is
positive are its delta, its anchor and its object's box read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from rankdet.detectors.assign import Assignment
from rankdet.detectors.assign_triton import starts_of
from rankdet.losses.fused import divide_up, on_device_of
from rankdet.structures import Predictions, Target

_BLOCK = 256  # rows of a program
_PARTIAL_BLOCK = 1024  # partial sums that are added at a time


def box_loss(
    predictions: Predictions,
    assignment: Assignment,
    targets: Sequence[Target],
    weights: Sequence[float],
    beta: float,
    *,
    block: int = _BLOCK,
) -> Tensor:
    """The scalar of `rankdet.detectors.criterion.box_loss`; at least one anchor and image."""
    loss: Tensor = _BoxLoss.apply(
        predictions.deltas,
        assignment.labels.contiguous(),
        assignment.matched_index.contiguous(),
        torch.cat([target.boxes for target in targets]),
        starts_of(targets, predictions.deltas.device),
        predictions.anchors.contiguous(),
        (*weights, beta),
        block,
    )
    return loss


class _BoxLoss(torch.autograd.Function):
    """The loss of deltas (B, A, 4); settings: the four weights of the coding, and beta."""

    @staticmethod
    def forward(
        ctx: Any,
        deltas: Tensor,
        labels: Tensor,
        matched_index: Tensor,
        boxes: Tensor,
        starts: Tensor,
        anchors: Tensor,
        settings: tuple[float, ...],
        block: int,
    ) -> Tensor:
        num_rows = labels.numel()
        num_programs = divide_up(num_rows, block)
        sums = torch.empty(num_programs, dtype=torch.float32, device=deltas.device)
        counts = torch.empty(num_programs, dtype=torch.int32, device=deltas.device)
        outcome = torch.empty(2, dtype=torch.float32, device=deltas.device)
        inputs = (deltas.contiguous(), labels, matched_index, boxes, starts, anchors)
        numbers = (num_rows, len(anchors), *map(float, settings))
        with on_device_of(deltas):
            _sum_losses[(num_programs,)](
                *inputs, sums, counts, *numbers, BLOCK=block, enable_fp_fusion=False
            )
            _finish[(1,)](
                sums, counts, outcome, num_programs, BLOCK=_PARTIAL_BLOCK, enable_fp_fusion=False
            )
        loss, divisor = outcome.unbind()
        ctx.save_for_backward(*inputs, divisor)
        ctx.numbers, ctx.block = numbers, block
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, divisor = ctx.saved_tensors
        gradient = torch.empty_like(inputs[0])
        with on_device_of(gradient):
            _write_gradient[(divide_up(ctx.numbers[0], ctx.block),)](
                *inputs,
                incoming,
                divisor,
                gradient,
                *ctx.numbers,
                BLOCK=ctx.block,
                enable_fp_fusion=False,
            )
        return gradient, *(None,) * 7


@triton.jit
def _differences(
    deltas,
    labels,
    matched_index,
    boxes,
    starts,
    anchors,
    num_rows,
    num_anchors,
    weight_x,
    weight_y,
    weight_w,
    weight_h,
    BLOCK: tl.constexpr,
):
    """Of a block of rows (BLOCK, 4): delta - goal, or 0; if positive; and the deltas' places.

    The columns are x, y, w, h: a column's axis is 0 for x and w, 1 for y and h.
    """
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_positive = tl.load(labels + row, row < num_rows, -1) >= 0
    index = tl.load(matched_index + row, is_positive, -1)
    # Without an object, the anchor is its own: as in criterion.py, its goal is 0.
    has_object = (index >= 0)[:, None]
    anchor = (row % num_anchors)[:, None]
    box = (tl.load(starts + row // num_anchors, index >= 0, 0) + index)[:, None]
    column = tl.arange(0, 4)[None, :]
    axis = column % 2

    anchor_low = tl.load(anchors + anchor * 4 + axis, is_positive[:, None], 0.0)
    anchor_high = tl.load(anchors + anchor * 4 + axis + 2, is_positive[:, None], 1.0)
    low = tl.load(boxes + box * 4 + axis, has_object, 0.0)
    high = tl.load(boxes + box * 4 + axis + 2, has_object, 1.0)
    low = tl.where(has_object, low, anchor_low)
    high = tl.where(has_object, high, anchor_high)

    anchor_side = anchor_high - anchor_low
    side = high - low
    shift = tl.div_rn((low + 0.5 * side) - (anchor_low + 0.5 * anchor_side), anchor_side)
    goal = tl.where(column < 2, shift, tl.log(tl.div_rn(side, anchor_side)))
    weight = tl.where(axis == 0, weight_x, weight_y)
    weight = tl.where(column < 2, weight, tl.where(axis == 0, weight_w, weight_h))
    place = row[:, None] * 4 + column
    delta = tl.load(deltas + place, is_positive[:, None], 0.0).to(tl.float32)
    return tl.where(is_positive[:, None], delta - weight * goal, 0.0), is_positive, place


@triton.jit
def _sum_losses(
    deltas,
    labels,
    matched_index,
    boxes,
    starts,
    anchors,
    sums,
    counts,
    num_rows,
    num_anchors,
    weight_x,
    weight_y,
    weight_w,
    weight_h,
    beta,
    BLOCK: tl.constexpr,
):
    """Write the sum of smooth L1, and the number of positives, of this program's rows."""
    difference, is_positive, _ = _differences(
        deltas,
        labels,
        matched_index,
        boxes,
        starts,
        anchors,
        num_rows,
        num_anchors,
        weight_x,
        weight_y,
        weight_w,
        weight_h,
        BLOCK,
    )
    size = tl.abs(difference)
    square = 0.5 * size * size / tl.where(beta > 0, beta, 1.0)
    loss = tl.where(size < beta, square, size - 0.5 * beta)
    tl.store(sums + tl.program_id(0), tl.sum(tl.sum(loss, 1), 0))
    tl.store(counts + tl.program_id(0), tl.sum(is_positive.to(tl.int32), 0))


@triton.jit
def _finish(sums, counts, outcome, num_sums, BLOCK: tl.constexpr):
    """Write the loss, and what it was divided by: 4 x (positives), at least 1."""
    total = tl.zeros([BLOCK], tl.float64)
    count = tl.zeros([BLOCK], tl.int64)
    first = 0
    while first < num_sums:
        number = first + tl.arange(0, BLOCK)
        total += tl.load(sums + number, number < num_sums, 0.0).to(tl.float64)
        count += tl.load(counts + number, number < num_sums, 0).to(tl.int64)
        first += BLOCK
    divisor = tl.maximum(4 * tl.sum(count, 0), 1).to(tl.float64)
    tl.store(outcome, (tl.sum(total, 0) / divisor).to(tl.float32))
    tl.store(outcome + 1, divisor.to(tl.float32))


@triton.jit
def _write_gradient(
    deltas,
    labels,
    matched_index,
    boxes,
    starts,
    anchors,
    incoming,
    divisor,
    gradient,
    num_rows,
    num_anchors,
    weight_x,
    weight_y,
    weight_w,
    weight_h,
    beta,
    BLOCK: tl.constexpr,
):
    """Write the gradient of this program's deltas: 0 where a row is not positive."""
    difference, _, place = _differences(
        deltas,
        labels,
        matched_index,
        boxes,
        starts,
        anchors,
        num_rows,
        num_anchors,
        weight_x,
        weight_y,
        weight_w,
        weight_h,
        BLOCK,
    )
    scale = tl.div_rn(tl.load(incoming).to(tl.float32), tl.load(divisor))
    sign = tl.where(difference > 0, 1.0, tl.where(difference < 0, -1.0, 0.0))
    # The slope of NaN is NaN, not 0: what is wrong with the deltas must show.
    slope = tl.where(tl.abs(difference) >= beta, sign, difference / tl.where(beta > 0, beta, 1.0))
    is_there = place // 4 < num_rows  # place is 64-bit; 4 * num_rows would not be
    tl.store(gradient + place, (scale * slope).to(gradient.dtype.element_ty), is_there)
