"""Boxes as deltas and back: by hand, as properties, and against torchvision's BoxCoder."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models.detection._utils import BoxCoder

from rankdet.boxes import clip_boxes, decode_boxes, encode_boxes

PAPER = (10.0, 10.0, 5.0, 5.0)
UNIT = (1.0, 1.0, 1.0, 1.0)
FOUR_DIFFERENT = (2.0, 3.0, 5.0, 7.0)


def random_boxes(num_boxes: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = 500 * torch.rand(num_boxes, 2, generator=generator, dtype=dtype)
    sides = 1 + 200 * torch.rand(num_boxes, 2, generator=generator, dtype=dtype)
    return torch.cat((corner, corner + sides), dim=1)


def test_a_box_is_coded_as_worked_out_by_hand() -> None:
    anchor = torch.tensor([[0.0, 0.0, 10.0, 20.0]])  # centre (5, 10)
    box = torch.tensor([[6.0, 4.0, 26.0, 14.0]])  # centre (16, 9), 20 x 10
    deltas = encode_boxes(box, anchor, PAPER)
    expected = torch.tensor([[10 * 1.1, 10 * -0.05, 5 * math.log(2), 5 * math.log(0.5)]])
    torch.testing.assert_close(deltas, expected)


def test_deltas_of_zero_are_the_anchor() -> None:
    anchors = random_boxes(5, seed=0)
    torch.testing.assert_close(decode_boxes(torch.zeros(5, 4), anchors, PAPER), anchors)


def test_each_delta_has_its_own_weight() -> None:
    anchor = torch.tensor([[0.0, 0.0, 10.0, 20.0]])
    box = torch.tensor([[6.0, 4.0, 26.0, 14.0]])
    ratio = encode_boxes(box, anchor, FOUR_DIFFERENT) / encode_boxes(box, anchor, UNIT)
    torch.testing.assert_close(ratio, torch.tensor([FOUR_DIFFERENT]))


@pytest.mark.parametrize("weights", [PAPER, UNIT, FOUR_DIFFERENT])
def test_coding_is_that_of_torchvision(weights: tuple[float, float, float, float]) -> None:
    boxes, anchors = random_boxes(200, seed=1), random_boxes(200, seed=2)
    coder = BoxCoder(weights)
    torch.testing.assert_close(
        encode_boxes(boxes, anchors, weights), coder.encode_single(boxes, anchors)
    )
    deltas = 10 * torch.randn(200, 4, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(
        decode_boxes(deltas, anchors, weights), coder.decode_single(deltas, anchors)
    )


@given(seed=st.integers(0, 10**6), weights=st.sampled_from([PAPER, UNIT, FOUR_DIFFERENT]))
@settings(max_examples=25, deadline=None)
def test_decoding_undoes_encoding(seed: int, weights: tuple[float, ...]) -> None:
    boxes = random_boxes(20, seed, torch.float64)
    anchors = random_boxes(20, seed + 1, torch.float64)
    # Within the limit of 1000 / 16 for a side: random sides are 1 to 201.
    is_near = (boxes[:, 2:] - boxes[:, :2]) / (anchors[:, 2:] - anchors[:, :2]) < 62
    boxes, anchors = boxes[is_near.all(1)], anchors[is_near.all(1)]
    again = decode_boxes(encode_boxes(boxes, anchors, weights), anchors, weights)
    assert again.dtype == torch.float64
    torch.testing.assert_close(again, boxes)


@pytest.mark.parametrize("weights", [PAPER, UNIT])
def test_a_side_is_at_most_62_and_a_half_times_its_anchors(weights: tuple[float, ...]) -> None:
    anchor = torch.tensor([[0.0, 0.0, 16.0, 8.0]])
    box = decode_boxes(torch.tensor([[0.0, 0.0, 1000.0, torch.inf]]), anchor, weights)
    torch.testing.assert_close(box, torch.tensor([[-492.0, -246.0, 508.0, 254.0]]))


def test_a_side_can_become_as_small_as_it_likes() -> None:
    anchor = torch.tensor([[0.0, 0.0, 16.0, 8.0]])
    box = decode_boxes(torch.tensor([[0.0, 0.0, -20.0, -torch.inf]]), anchor, UNIT)
    torch.testing.assert_close(box[0, 2] - box[0, 0], torch.tensor(0.0), atol=1e-6, rtol=0)
    assert box[0, 3] == box[0, 1] == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_deltas_are_decoded_in_float32(dtype: torch.dtype) -> None:
    anchors = random_boxes(50, seed=4)
    deltas = torch.randn(50, 4, generator=torch.Generator().manual_seed(5)).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        boxes = decode_boxes(deltas, anchors, PAPER)
    assert boxes.dtype == torch.float32
    assert torch.equal(boxes, decode_boxes(deltas.float(), anchors, PAPER))


def test_boxes_of_several_images_are_coded_against_the_same_anchors() -> None:
    anchors, boxes = random_boxes(6, seed=6), random_boxes(12, seed=7).reshape(2, 6, 4)
    together = encode_boxes(boxes, anchors, PAPER)
    assert torch.equal(together[1], encode_boxes(boxes[1], anchors, PAPER))
    assert torch.equal(
        decode_boxes(together, anchors, PAPER)[1], decode_boxes(together[1], anchors, PAPER)
    )


def test_no_boxes_are_no_deltas() -> None:
    assert encode_boxes(torch.zeros(0, 4), torch.zeros(0, 4), PAPER).shape == (0, 4)
    assert decode_boxes(torch.zeros(2, 0, 4), torch.zeros(0, 4), PAPER).shape == (2, 0, 4)


def test_decoding_is_differentiable() -> None:
    deltas = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    anchors = torch.tensor([[0.0, 0.0, 10.0, 20.0]], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda d: decode_boxes(d, anchors, PAPER), (deltas,))


def test_a_box_is_clipped_to_its_own_image() -> None:
    box = [-3.0, 4.0, 70.0, 90.0]
    clipped = clip_boxes(torch.tensor([[box], [box]]), torch.tensor([[80, 60], [50, 100]]))
    assert clipped.tolist() == [[[0, 4, 60, 80]], [[0, 4, 70, 50]]]


def test_a_box_beside_its_image_has_no_area_left() -> None:
    boxes = torch.tensor([[[70.0, 4.0, 80.0, 9.0], [-9.0, 4.0, -5.0, 9.0]]])
    clipped = clip_boxes(boxes, torch.tensor([[50, 60]]))
    assert clipped.tolist() == [[[60, 4, 60, 9], [0, 4, 0, 9]]]
