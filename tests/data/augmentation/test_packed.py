"""Targets and images held together: what comes out of the package is what was put in."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from rankdet.data.augmentation.packed import (
    pack_targets,
    padded_images,
    to_device,
    unpack_targets,
)
from rankdet.structures import Target


def make_target(image_id: int, num_objects: int, size: tuple[int, int] = (6, 8)) -> Target:
    """Numbers that tell the images and objects apart."""
    numbers = torch.arange(num_objects)
    boxes = torch.tensor([0.5, 1.0, 2.5, 3.0]) + 10 * image_id + numbers[:, None]
    return Target(
        boxes=boxes,
        labels=100 * image_id + numbers,
        is_ignored=numbers % 2 == 1,
        areas=boxes[:, 0] / 4,
        image_id=image_id,
        size=size,
    )


def assert_same(found: Target, expected: Target) -> None:
    assert_close(vars(found), vars(expected), rtol=0, atol=0)


def test_targets_come_out_as_they_went_in() -> None:
    targets = [make_target(3, 2), make_target(1, 0), make_target(7, 3, size=(9, 4))]
    packed = pack_targets(targets)
    assert len(packed) == 3
    assert packed.rows.tolist() == [0, 0, 2, 2, 2]
    for found, expected in zip(unpack_targets(packed), targets, strict=True):
        assert_same(found, expected)


def test_targets_without_any_object_can_be_packed() -> None:
    targets = [make_target(3, 0), make_target(1, 0)]
    for found, expected in zip(unpack_targets(pack_targets(targets)), targets, strict=True):
        assert_same(found, expected)


def test_no_targets_can_be_packed() -> None:
    assert unpack_targets(pack_targets([])) == []


def test_select_keeps_the_images_that_lose_all_objects() -> None:
    packed = pack_targets([make_target(0, 1), make_target(1, 2), make_target(2, 1)])
    kept = packed.select(torch.tensor([True, False, False, True]))
    assert kept.counts.tolist() == [1, 0, 1]
    assert kept.rows.tolist() == [0, 2]
    assert [len(target) for target in unpack_targets(kept)] == [1, 0, 1]


def test_take_picks_images_in_the_order_asked_for_and_again() -> None:
    targets = [make_target(index, num_objects) for index, num_objects in enumerate((2, 0, 3, 1))]
    order = [2, 3, 1, 2, 0]
    taken = pack_targets(targets).take(order)
    assert taken.rows.tolist() == [0, 0, 0, 1, 3, 3, 3, 4, 4]
    for found, index in zip(unpack_targets(taken), order, strict=True):
        assert_same(found, targets[index])


def test_padded_images_stand_in_the_upper_left_corner() -> None:
    first = torch.full((3, 2, 4), 7, dtype=torch.uint8)
    second = torch.full((3, 3, 1), 9, dtype=torch.uint8)
    padded = padded_images([first, second])
    assert padded.pixels.shape == (2, 3, 3, 4)
    assert padded.sizes.tolist() == [[2, 4], [3, 1]]
    assert torch.equal(padded.pixels[0, :, :2], first)
    assert torch.equal(padded.pixels[1, :, :, :1], second)


@pytest.mark.gpu
def test_targets_reach_the_gpu_unchanged() -> None:
    targets = [make_target(3, 2), make_target(1, 0)]
    found = unpack_targets(pack_targets(targets), "cuda")
    assert all(target.boxes.is_cuda for target in found)
    for target, expected in zip(found, targets, strict=True):
        assert_same(target.to("cpu"), expected)
    assert to_device(torch.ones(2), "cuda").is_cuda
