"""The matching of `IoUAssigner` on a GPU: two passes over the anchors in place of some thirty.

Objects of all images stand one after the other; those of image b are the rows starts[b] to
starts[b + 1]. The arithmetic is that of assign.py, operation by operation, and gives the same bits:
divisions are rounded correctly, and products are not fused with sums. Nothing depends on the order
in which programs run: the maximum over an object's anchors is one of integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankdet.losses.fused import divide_up, on_device_of
from rankdet.losses.labels import BACKGROUND, IGNORED
from rankdet.structures import Target

_BLOCK = 512  # anchors of a program
_BACKGROUND = tl.constexpr(BACKGROUND)
_IGNORED = tl.constexpr(IGNORED)


def assign(
    anchors: Tensor,
    targets: Sequence[Target],
    positive_iou: float,
    negative_iou: float,
    *,
    is_best_positive: bool = True,
    block: int = _BLOCK,
) -> tuple[Tensor, Tensor, Tensor]:
    """labels, matched_index and quality of `Assignment`, each (B, A); at least one object."""
    boxes = torch.cat([target.boxes for target in targets])
    classes = torch.cat([target.labels for target in targets])
    is_ignored = torch.cat([target.is_ignored for target in targets])
    starts = starts_of(targets, anchors.device)
    shape, device = (len(targets), len(anchors)), anchors.device
    labels = torch.empty(shape, dtype=torch.int64, device=device)
    matched_index = torch.empty(shape, dtype=torch.int64, device=device)
    quality = torch.empty(shape, dtype=torch.float32, device=device)
    # No IoU is 2: where it stays, no anchor is the best of the object.
    none = 0.0 if is_best_positive else 2.0
    best_of_object = torch.full((len(boxes),), none, dtype=torch.float32, device=device)

    anchors = anchors.contiguous()
    objects = (boxes, starts, best_of_object)
    grid = (divide_up(len(anchors), block), len(targets))
    with on_device_of(anchors):
        _find_best_of_objects[grid](
            anchors, *objects, len(anchors), BLOCK=block, enable_fp_fusion=False
        )
        _assign[grid](
            anchors,
            *objects,
            is_ignored,
            classes,
            labels,
            matched_index,
            quality,
            len(anchors),
            positive_iou,
            negative_iou,
            BLOCK=block,
            enable_fp_fusion=False,
        )
    return labels, matched_index, quality


def starts_of(targets: Sequence[Target], device: torch.device) -> Tensor:
    """(B + 1,) int32: where the objects of each image begin among those of all."""
    counts = torch.tensor([0, *accumulate(len(target) for target in targets)], dtype=torch.int32)
    return counts.to(device, non_blocking=True)  # so few bytes are copied without a wait


@triton.jit
def _load_anchors(anchors, number, is_there):
    """The edges of a block of anchors, and their areas."""
    left = tl.load(anchors + number * 4, is_there, 0.0)
    top = tl.load(anchors + number * 4 + 1, is_there, 0.0)
    right = tl.load(anchors + number * 4 + 2, is_there, 0.0)
    bottom = tl.load(anchors + number * 4 + 3, is_there, 0.0)
    return left, top, right, bottom, (right - left) * (bottom - top)


@triton.jit
def _overlap(boxes, row, left, top, right, bottom, area):
    """What an object shares with each anchor, and their IoU, which is 0 where they share nothing.

    Two empty boxes have NaN in assign.py, which like 0 is above no threshold.
    """
    box_left = tl.load(boxes + row * 4)
    box_top = tl.load(boxes + row * 4 + 1)
    box_right = tl.load(boxes + row * 4 + 2)
    box_bottom = tl.load(boxes + row * 4 + 3)
    width = tl.minimum(box_right, right) - tl.maximum(box_left, left)
    height = tl.minimum(box_bottom, bottom) - tl.maximum(box_top, top)
    shared = tl.maximum(width, 0.0) * tl.maximum(height, 0.0)
    union = ((box_right - box_left) * (box_bottom - box_top) + area) - shared
    return shared, _divided(shared, union)


@triton.jit
def _divided(shared, whole):
    """The quotient, rounded correctly; 0 where nothing is shared, even of nothing."""
    return tl.div_rn(shared, tl.where(shared > 0, whole, 1.0))


@triton.jit
def _find_best_of_objects(anchors, boxes, starts, best_of_object, num_anchors, BLOCK: tl.constexpr):
    """Raise best_of_object to the best IoU of each object with the anchors of this program."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left, top, right, bottom, area = _load_anchors(anchors, number, number < num_anchors)
    image = tl.program_id(1)
    row = tl.load(starts + image)
    end = tl.load(starts + image + 1)
    while row < end:
        _, iou = _overlap(boxes, row, left, top, right, bottom, area)
        best = tl.max(iou, 0)
        # Floats that are not negative have the order of their bits.
        place = (best_of_object + row).to(tl.pointer_type(tl.int32), bitcast=True)
        tl.atomic_max(place, best.to(tl.int32, bitcast=True), mask=best > 0)
        row += 1


@triton.jit
def _assign(
    anchors,
    boxes,
    starts,
    best_of_object,
    is_ignored,
    classes,
    labels,
    matched_index,
    quality,
    num_anchors,
    positive_iou,
    negative_iou,
    BLOCK: tl.constexpr,
):
    """Write what each anchor of this program is in one image."""
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_there = number < num_anchors
    left, top, right, bottom, area = _load_anchors(anchors, number, is_there)
    image = tl.program_id(1)
    start = tl.load(starts + image)
    best = tl.zeros([BLOCK], tl.float32)
    index = tl.zeros([BLOCK], tl.int32)
    is_best_of_object = tl.zeros([BLOCK], tl.int1)
    is_on_ignored = tl.zeros([BLOCK], tl.int1)
    row = start
    end = tl.load(starts + image + 1)
    while row < end:
        shared, iou = _overlap(boxes, row, left, top, right, bottom, area)
        is_no_object = tl.load(is_ignored + row)
        is_on = (iou >= negative_iou) | (_divided(shared, area) >= positive_iou)
        is_on_ignored = is_on_ignored | (is_on & is_no_object)
        iou = tl.where(is_no_object, 0.0, iou)
        is_best_of_object = is_best_of_object | ((iou > 0) & (iou == tl.load(best_of_object + row)))
        is_better = iou > best  # of equals the first counts
        index = tl.where(is_better, row - start, index)
        best = tl.where(is_better, iou, best)
        row += 1

    is_positive = (best >= positive_iou) | is_best_of_object
    is_neither = (best >= negative_iou) | is_on_ignored
    label = tl.load(classes + start + index, is_positive, 0).to(tl.int64)
    label = tl.where(is_positive, label, tl.where(is_neither, _IGNORED, _BACKGROUND))
    place = image.to(tl.int64) * num_anchors + number
    tl.store(labels + place, label, is_there)
    tl.store(matched_index + place, tl.where(is_positive, index, -1).to(tl.int64), is_there)
    tl.store(quality + place, tl.where(is_positive, best, 0.0), is_there)
