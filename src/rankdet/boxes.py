"""Boxes relative to anchors, coded as torchvision and Detectron2 do; pure functions of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# A predicted side is at most 62.5 times its anchor's: exp of a bad prediction must not overflow.
_LONGEST_LOG_RATIO = math.log(1000 / 16)


def encode_boxes(boxes: Tensor, anchors: Tensor, weights: Sequence[float]) -> Tensor:
    """Deltas (..., 4) that `decode_boxes` turns into the boxes again.

    dx = weight_x (box's centre - anchor's centre) / anchor's width, dw = weight_w log(box's width /
    anchor's width), and the same for y and the height. float32, or float64 for float64 inputs.

    Args:
        boxes: (..., 4), xyxy, with sides > 0.
        anchors: (..., 4), xyxy, with sides > 0; broadcast against the boxes.
        weights: four numbers for dx, dy, dw, dh, 1 / standard deviation: (10, 10, 5, 5) divides the
            deltas by (0.1, 0.1, 0.2, 0.2).

    >>> box, anchor = torch.tensor([2.0, 2.0, 6.0, 10.0]), torch.tensor([0.0, 0.0, 4.0, 8.0])
    >>> encode_boxes(box, anchor, (10, 10, 5, 5))
    tensor([5.0000, 2.5000, 0.0000, 0.0000])
    """
    centres, sides = _centres_and_sides(_widened(boxes))
    anchor_centres, anchor_sides = _centres_and_sides(_widened(anchors))
    weight_x, weight_y, weight_w, weight_h = weights
    shift = (centres - anchor_centres) / anchor_sides
    log_ratio = torch.log(sides / anchor_sides)
    shift_x, shift_y = shift.unbind(-1)
    log_w, log_h = log_ratio.unbind(-1)
    return torch.stack(
        (weight_x * shift_x, weight_y * shift_y, weight_w * log_w, weight_h * log_h), dim=-1
    )


def decode_boxes(deltas: Tensor, anchors: Tensor, weights: Sequence[float]) -> Tensor:
    """Boxes (..., 4), xyxy, that stand at `deltas` from their anchors; see `encode_boxes`.

    A side is at most 1000 / 16 times the anchor's. float32 for narrower deltas: bfloat16 would
    round a coordinate of 500 to multiples of 2 pixels.

    >>> decode_boxes(torch.tensor([5.0, 2.5, 0, 0]), torch.tensor([0.0, 0, 4, 8]), (10, 10, 5, 5))
    tensor([ 2.,  2.,  6., 10.])
    """
    centres, sides = _centres_and_sides(_widened(anchors))
    dx, dy, dw, dh = _widened(deltas).unbind(-1)
    weight_x, weight_y, weight_w, weight_h = weights
    shift = torch.stack((dx / weight_x, dy / weight_y), dim=-1)
    log_ratio = torch.stack((dw / weight_w, dh / weight_h), dim=-1).clamp(max=_LONGEST_LOG_RATIO)
    centres = shift * sides + centres
    half_sides = 0.5 * (log_ratio.exp() * sides)
    return torch.cat((centres - half_sides, centres + half_sides), dim=-1)


def clip_boxes(boxes: Tensor, sizes: Tensor) -> Tensor:
    """The part of each box that lies inside of its image.

    Args:
        boxes: (B, D, 4), xyxy.
        sizes: (B, 2), height and width of each image.

    >>> clip_boxes(torch.tensor([[[-5.0, 5.0, 50.0, 50.0]]]), torch.tensor([[20, 30]]))
    tensor([[[ 0.,  5., 30., 20.]]])
    """
    limits = sizes.flip(-1).repeat(1, 2).unsqueeze(1).to(boxes)  # width, height, width, height
    return boxes.clamp(min=0).minimum(limits)


def _centres_and_sides(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """(..., 2) each: x and y of the centres, width and height."""
    sides = boxes[..., 2:] - boxes[..., :2]
    return boxes[..., :2] + 0.5 * sides, sides


def _widened(tensor: Tensor) -> Tensor:
    """The tensor in float32, or float64 where it is that already."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
