"""The objects of many images in one tensor come back as they were."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from rankdet.data.objects import pack_objects, unpack_objects
from rankdet.structures import Target


def target_of(count: int, size: tuple[int, int] = (20, 30)) -> Target:
    rows = torch.arange(count, dtype=torch.float32)
    return Target(
        boxes=torch.stack([rows, rows + 0.1, rows + 5, rows + 7], dim=1),
        labels=torch.arange(count) + 1,
        is_ignored=torch.arange(count) % 2 == 1,
        areas=rows / 3,
        image_id=70 + count,
        size=size,
    )


@pytest.mark.parametrize("counts", [[], [0], [0, 0], [2], [1, 0, 3]])
def test_packed_objects_come_back_unchanged(counts: list[int]) -> None:
    targets = [target_of(count) for count in counts]
    objects = pack_objects(targets)
    assert objects.shape == (sum(counts), 7)
    assert objects.dtype == torch.float32
    again = unpack_objects(
        objects, counts, [target.image_id for target in targets], [(20, 30)] * len(targets)
    )
    assert len(again) == len(targets)
    for one, other in zip(targets, again, strict=True):
        assert_close(vars(other), vars(one), rtol=0, atol=0)


def test_large_labels_survive_packing() -> None:
    target = dataclasses.replace(target_of(1), labels=torch.tensor([2**24 - 1]))
    (again,) = unpack_objects(pack_objects([target]), [1], [1], [(20, 30)])
    assert again.labels.item() == 2**24 - 1
