"""Cutting a batch into blocks, and finding what in a block is no negative.

The shapes here are always logits (R, K), labels (R,), mask None or (R, K).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rankdet.losses.labels import BACKGROUND, IGNORED, counted_entries, positive_entries


def row_blocks(
    logits: Tensor, labels: Tensor, mask: Tensor | None, size: int
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor | None]]:
    """Blocks of rows with about `size` entries: the rows, and logits, labels and mask of them."""
    num_rows = max(1, size // max(1, logits.shape[1]))
    for start in range(0, logits.shape[0], num_rows):
        rows = slice(start, start + num_rows)
        yield rows, logits[rows], labels[rows], None if mask is None else mask[rows]


def negative_entries(labels: Tensor, mask: Tensor | None, num_classes: int) -> Tensor:
    """(R, K) bool: the entries that are counted and no positives.

    >>> negative_entries(torch.tensor([1, IGNORED]), None, num_classes=2)
    tensor([[ True, False],
            [False, False]])
    """
    counted = counted_entries(labels, mask, num_classes)
    return counted & ~positive_entries(labels, num_classes)


def excluded_entries(labels: Tensor, mask: Tensor | None, num_classes: int) -> Tensor:
    """Flat places, (E,) int64, of what is no negative: positives, ignored anchors, masked.

    >>> excluded_entries(torch.tensor([1, BACKGROUND, IGNORED]), None, num_classes=2)
    tensor([1, 4, 5])
    """
    if mask is not None:
        return (~negative_entries(labels, mask, num_classes)).flatten().nonzero()[:, 0]
    rows = (labels != BACKGROUND).nonzero()[:, 0]  # few, so the rest costs nothing
    labels = labels[rows].long()
    is_positive = (labels >= 0) & (labels < num_classes)
    positives = rows[is_positive] * num_classes + labels[is_positive]
    columns = torch.arange(num_classes, device=labels.device)
    ignored = (rows[labels == IGNORED, None] * num_classes + columns).flatten()
    return torch.cat([positives, ignored])
