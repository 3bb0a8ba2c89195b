"""Blocks of a batch, and what in them is no negative."""

from __future__ import annotations

import pytest
import torch

from rankdet.losses.blocks import excluded_entries, negative_entries, row_blocks
from rankdet.losses.labels import BACKGROUND, IGNORED

LABELS = torch.tensor([1, 0, BACKGROUND, IGNORED])
MASK = torch.tensor([[True, True], [True, False], [True, True], [True, True]])


def test_excluded_entries_are_positives_ignored_anchors_and_masked() -> None:
    assert sorted(excluded_entries(LABELS, None, 2).tolist()) == [1, 2, 6, 7]
    assert sorted(excluded_entries(LABELS, MASK, 2).tolist()) == [1, 2, 3, 6, 7]
    assert excluded_entries(torch.tensor([-1, -1]), None, 2).tolist() == []


@pytest.mark.parametrize("mask", [None, MASK])
def test_negative_entries_are_all_others(mask: torch.Tensor | None) -> None:
    is_negative = torch.ones(8, dtype=torch.bool)
    is_negative[excluded_entries(LABELS, mask, 2)] = False
    assert torch.equal(negative_entries(LABELS, mask, 2).flatten(), is_negative)


def test_labels_that_mean_nothing_are_neither_excluded_nor_out_of_range() -> None:
    assert excluded_entries(torch.tensor([5, -7, 0]), None, 2).tolist() == [4]


@pytest.mark.parametrize(("size", "num_rows"), [(1, 1), (6, 2), (7, 2), (100, 10)])
def test_blocks_cover_all_rows_once(size: int, num_rows: int) -> None:
    logits, labels = torch.arange(30).view(10, 3), torch.arange(10)
    for mask in (None, logits > 4):
        blocks = list(row_blocks(logits, labels, mask, size))
        assert len(blocks[0][1]) == num_rows
        for part, whole in ((1, logits), (2, labels), (3, mask)):
            if whole is not None:
                assert torch.equal(torch.cat([block[part] for block in blocks]), whole)
        assert all(torch.equal(logits[rows], block) for rows, block, _, _ in blocks)
    assert list(row_blocks(logits[:0], labels[:0], None, size)) == []
