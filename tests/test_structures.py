"""Targets: moved and selected, all fields together."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rankdet.structures import Predictions, Target

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


@pytest.mark.parametrize("is_own", [False, True])
def test_predictions_of_some_images_have_their_own_anchors(is_own: bool) -> None:
    numbers = torch.arange(3.0)
    anchors = numbers.view(3, 1, 1).expand(3, 2, 4) if is_own else torch.zeros(2, 4)
    padding = torch.tensor([[False, True]] * 3) if is_own else None
    logits, deltas = numbers.view(3, 1, 1).expand(3, 2, 5), numbers.view(3, 1, 1).expand(3, 2, 4)
    stage = Predictions("x", logits, deltas, anchors, (2,), padding)
    assert stage.has_own_anchors is is_own
    chosen = stage.select(slice(1, 3))
    assert chosen.logits[:, 0, 0].tolist() == chosen.deltas[:, 0, 0].tolist() == [1, 2]
    assert (chosen.name, chosen.level_sizes) == ("x", (2,))
    if is_own:
        assert chosen.anchors[:, 0, 0].tolist() == [1, 2]
        assert chosen.is_padding is not None
        assert chosen.is_padding.shape == (2, 2)
    else:
        assert chosen.anchors is anchors
        assert chosen.is_padding is None
