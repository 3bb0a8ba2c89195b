"""The objects of many images as one tensor: sent, copied and pinned at once.

A row is box, area, label and is_ignored. Labels are exact: float32 holds every integer up to
2 ** 24.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rankdet.structures import Target


def object_rows(boxes: Tensor, labels: Tensor, is_ignored: Tensor, areas: Tensor) -> Tensor:
    """(M, 7) float32 of what a `Target` holds of M objects."""
    return torch.cat([boxes, torch.stack([areas, labels, is_ignored], dim=1)], dim=1)


def pack_objects(targets: Sequence[Target]) -> Tensor:
    """(M, 7) float32: the objects of all images, in order."""
    tables = [
        object_rows(target.boxes, target.labels, target.is_ignored, target.areas)
        for target in targets
    ]
    return torch.cat(tables) if tables else torch.zeros(0, 7)


def unpack_objects(
    objects: Tensor,
    counts: Sequence[int],
    image_ids: Sequence[int],
    sizes: Sequence[tuple[int, int]],
    draws: Sequence[int] | None = None,
) -> list[Target]:
    """The targets whose objects were put together; counts: objects of each image.

    The other sequences have what `Target` holds of each image; draws of None are 0.
    """
    if not counts:
        return []
    columns = (
        objects[:, :4].contiguous(),
        objects[:, 5].long(),
        objects[:, 6].bool(),
        objects[:, 4].contiguous(),
    )
    parts = zip(*(column.split(list(counts)) for column in columns), strict=True)
    draws = [0] * len(counts) if draws is None else draws
    return [
        Target(boxes, labels, is_ignored, areas, image_id, size, draw)
        for (boxes, labels, is_ignored, areas), image_id, size, draw in zip(
            parts, image_ids, sizes, draws, strict=True
        )
    ]
