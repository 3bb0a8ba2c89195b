"""The two passes over the scores on the CPU: block by block, in buffers that stay in the cache.

The same results as the plain operators of kernels.py, which has the arguments. A block whose scores
lie in one bin needs no look-up, and of one with few scores above the first knot only those are
looked at; `BinLookup` does the rest.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rankdet.losses.blocks import excluded_entries, row_blocks
from rankdet.losses.lookup import BinLookup, score_range

# Entries of a block. Its working copies (float64 scores, int32 bins) have to stay in the cache;
# smaller blocks lose more to the call overhead of torch (benchmarks/NOTES.md).
_BLOCK = 1 << 17


def bin_negatives(
    logits: Tensor, labels: Tensor, mask: Tensor | None, knots: Tensor, with_sums: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Counts (Q + 1,), sums (Q + 1,) and the number of negatives that are not finite."""
    counts = torch.zeros(len(knots) + 1, dtype=torch.int64)
    sums = torch.zeros(len(knots) + 1, dtype=torch.float64)
    num_wrong = 0
    lookup = BinLookup(knots)
    for _, block, block_labels, block_mask in row_blocks(logits, labels, mask, _BLOCK):
        excluded = excluded_entries(block_labels, block_mask, logits.shape[1])
        scores = lookup.load(block)
        num_negatives = len(scores) - len(excluded)
        lowest, highest = score_range(scores, excluded)  # leaves -inf at the excluded places
        only_bin = lookup.only_bin(lowest, highest)
        if only_bin is not None:
            counts[only_bin] += num_negatives
            if with_sums and only_bin > 0:
                sums[only_bin] += scores.index_fill_(0, excluded, 0).sum()
            continue
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            is_wrong = ~torch.isfinite(scores)
            num_wrong += int(is_wrong.sum()) - len(excluded)
            scores.masked_fill_(is_wrong, -math.inf)
        above, bins = lookup.find(scores)
        if above is not None:
            scores = scores[above]
        found = torch.bincount(bins, minlength=len(counts))
        found[0] += num_negatives - found.sum()  # what stands below the first knot
        counts += found
        if with_sums:
            sums += torch.bincount(bins, weights=scores, minlength=len(sums))
    sums[0] = 0
    return counts, sums, torch.tensor(num_wrong)


def write_update(
    scale: Tensor,
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    knots: Tensor,
    intercepts: Tensor,
    slopes: Tensor,
    index: Tensor,
    update: Tensor,
) -> Tensor:
    """The gradient, of the logits' shape and dtype."""
    intercepts, slopes = intercepts * scale, slopes * scale
    is_constant = not bool(slopes.any())  # heaviside: one look-up instead of two
    is_wrong = bool(intercepts[0].isnan())
    gradient = torch.empty_like(logits)
    lookup = BinLookup(knots)
    for rows, block, block_labels, block_mask in row_blocks(logits, labels, mask, _BLOCK):
        excluded = excluded_entries(block_labels, block_mask, logits.shape[1])
        scores, target = lookup.load(block), gradient[rows].view(-1)
        only_bin = lookup.only_bin(*score_range(scores, excluded))
        if is_wrong:
            target.fill_(math.nan)
        elif only_bin is not None:
            target.copy_(scores.mul_(slopes[only_bin]).add_(intercepts[only_bin]))
        else:
            above, bins = lookup.find(scores)
            written = intercepts.index_select(0, bins)
            if not is_constant:
                scores = scores if above is None else scores[above]
                written.addcmul_(scores, slopes.index_select(0, bins))
            if above is None:
                target.copy_(written)
            else:
                target.zero_()[above] = written.to(target.dtype)
        target.index_fill_(0, excluded, 0)
    gradient.view(-1)[index] = (update * scale).to(logits.dtype)
    return gradient
