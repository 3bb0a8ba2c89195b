"""Targets: moved and selected, all fields together."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rankdet.structures import Target

FIELDS = ("boxes", "labels", "is_ignored", "areas")


@pytest.fixture
def target() -> Target:
    return Target(
        boxes=torch.tensor([[0.0, 0, 1, 1], [0, 0, 2, 2], [0, 0, 3, 3]]),
        labels=torch.tensor([4, 5, 6]),
        is_ignored=torch.tensor([False, True, False]),
        areas=torch.tensor([1.0, 4, 9]),
        image_id=17,
        size=(30, 40),
    )


@pytest.mark.parametrize(
    "keep", [torch.tensor([True, False, True]), torch.tensor([0, 2])], ids=["mask", "indices"]
)
def test_selecting_picks_the_same_objects_of_every_field(target, keep):
    chosen = target.select(keep)
    assert len(chosen) == 2
    assert chosen.boxes.tolist() == [[0, 0, 1, 1], [0, 0, 3, 3]]
    assert chosen.labels.tolist() == [4, 6]
    assert chosen.is_ignored.tolist() == [False, False]
    assert chosen.areas.tolist() == [1, 9]
    assert (chosen.image_id, chosen.size) == (17, (30, 40))


def test_selecting_can_change_the_order_and_repeat(target):
    assert target.select(torch.tensor([2, 0, 0])).labels.tolist() == [6, 4, 4]


def test_selecting_nothing_keeps_shapes_and_types(target):
    empty = target.select(torch.zeros(3, dtype=torch.bool))
    assert len(empty) == 0
    assert empty.boxes.shape == (0, 4)
    for name in FIELDS:
        assert getattr(empty, name).dtype == getattr(target, name).dtype


def test_moving_moves_every_tensor_and_leaves_the_rest(target):
    moved = target.to("meta")
    assert all(getattr(moved, name).device.type == "meta" for name in FIELDS)
    assert all(getattr(target, name).device.type == "cpu" for name in FIELDS)
    assert (moved.image_id, moved.size) == (17, (30, 40))


def test_a_target_cannot_be_changed_by_accident(target):
    with pytest.raises(dataclasses.FrozenInstanceError):
        target.labels = target.labels
