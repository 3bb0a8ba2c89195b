"""The passes over the scores: the custom operators on which every ranking loss here is built.

With a piecewise linear step, the update of a negative is a piecewise linear function of its score,
whose corners ("knots") are given by the positives alone. So the negatives enter a loss only by how
many fall between two knots and by their sum, and their update is one multiply-add per score:

    find_positives(logits, labels)           -> scores and places of the P positives
    bin_negatives(logits, labels, knots)     -> counts, sums per bin               reads N scores
    ... O(P) in plain torch, see error_driven.py ...
    write_update(logits, labels, knots, ...) -> the gradient                       reads N, writes N

Bin b of Q knots holds the scores x with knots[b - 1] <= x < knots[b]; bin 0 lies below all knots.
The shapes here are always logits (R, K), labels (R,), mask None or (R, K), all contiguous.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, get_ctx

from rankdet.losses.labels import BACKGROUND, IGNORED, counted_entries, positive_entries
from rankdet.losses.lookup import BinLookup, score_range

# Elements of a block. Its working copies (float64 scores, int32 bins) have to stay in the cache;
# smaller blocks lose more to the call overhead of torch (benchmarks/NOTES.md).
_CPU_BLOCK = 1 << 17
_ACCELERATOR_BLOCK = 1 << 24


def excluded_entries(labels: Tensor, mask: Tensor | None, num_classes: int) -> Tensor:
    """Flat places, (E,) int64, of what is no negative: positives, ignored anchors, masked."""
    if mask is not None:
        counted = counted_entries(labels, mask, num_classes)
        return (~counted | positive_entries(labels, num_classes)).flatten().nonzero()[:, 0]
    rows = (labels != BACKGROUND).nonzero()[:, 0]  # few, so the rest costs nothing
    if len(rows) == 0:
        return rows
    labels = labels[rows].long()
    is_positive = (labels >= 0) & (labels < num_classes)
    positives = rows[is_positive] * num_classes + labels[is_positive]
    columns = torch.arange(num_classes, device=labels.device)
    ignored = (rows[labels == IGNORED, None] * num_classes + columns).flatten()
    return torch.cat([positives, ignored])


@custom_op(
    "rankdet::find_positives",
    mutates_args=(),
    schema="(Tensor logits, Tensor labels, Tensor? mask) -> (Tensor, Tensor)",
)
def find_positives(logits: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The positives: scores (P,) float64 and flat places (P,) int64, in order of place."""
    num_classes = logits.shape[1]
    rows = ((labels >= 0) & (labels < num_classes)).nonzero()[:, 0]
    index = rows * num_classes + labels[rows]
    if mask is not None:
        index = index[mask.reshape(-1)[index]]
    return logits.reshape(-1)[index].double(), index


@find_positives.register_fake
def _(logits: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    num_positives = get_ctx().new_dynamic_size()
    return (
        logits.new_empty(num_positives, dtype=torch.float64),
        logits.new_empty(num_positives, dtype=torch.int64),
    )


@custom_op(
    "rankdet::bin_negatives",
    mutates_args=(),
    schema="(Tensor logits, Tensor labels, Tensor? mask, Tensor knots, bool with_sums)"
    " -> (Tensor, Tensor, Tensor)",
)
def bin_negatives(
    logits: Tensor, labels: Tensor, mask: Tensor | None, knots: Tensor, with_sums: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """How many negatives lie in each bin, and their sum: what the losses need of them.

    Args:
        knots: (Q,) float64, ascending.
        with_sums: False leaves the sums at 0, for losses that need the counts alone.

    Returns:
        counts: (Q + 1,) int64.
        sums: (Q + 1,) float64 sums of the scores; 0 for bin 0, which no loss looks at.
        num_wrong: int64 scalar, how many negatives are NaN or infinite (they are in bin 0).
    """
    num_bins = len(knots) + 1
    counts = torch.zeros(num_bins, dtype=torch.int64, device=logits.device)
    sums = torch.zeros(num_bins, dtype=torch.float64, device=logits.device)
    num_wrong = torch.zeros((), dtype=torch.int64, device=logits.device)
    for rows in row_blocks(logits, _ACCELERATOR_BLOCK):
        negative = _is_negative(logits[rows], labels[rows], None if mask is None else mask[rows])
        scores = logits[rows].double()
        is_finite = torch.isfinite(scores)
        num_wrong += (negative & ~is_finite).sum()
        used = negative & is_finite
        bins = torch.bucketize(torch.where(used, scores, float("-inf")), knots, right=True)
        counts.index_add_(0, bins.flatten(), negative.flatten().long())
        if with_sums:
            sums.index_add_(0, bins.flatten(), torch.where(used, scores, 0.0).flatten())
    sums[0] = 0
    return counts, sums, num_wrong


@bin_negatives.register_kernel("cpu")
def _(
    logits: Tensor, labels: Tensor, mask: Tensor | None, knots: Tensor, with_sums: bool
) -> tuple[Tensor, Tensor, Tensor]:
    counts = torch.zeros(len(knots) + 1, dtype=torch.int64)
    sums = torch.zeros(len(knots) + 1, dtype=torch.float64)
    num_wrong = 0
    lookup = BinLookup(knots)
    for rows in row_blocks(logits, _CPU_BLOCK):
        excluded = excluded_entries(
            labels[rows], None if mask is None else mask[rows], logits.shape[1]
        )
        scores = lookup.load(logits[rows].view(-1))
        num_negatives = scores.numel() - excluded.numel()
        lowest, highest = score_range(scores, excluded)
        only_bin = lookup.only_bin(lowest, highest)
        if only_bin is not None:
            counts[only_bin] += num_negatives
            if with_sums and only_bin > 0:
                sums[only_bin] += scores.index_fill_(0, excluded, 0).sum()
            continue
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            wrong = ~torch.isfinite(scores)
            num_wrong += int(wrong.sum()) - excluded.numel()
            scores.masked_fill_(wrong, float("-inf"))
        above, bins = lookup.find(scores)
        if above is not None:
            scores = scores[above]
        found = torch.bincount(bins, minlength=len(counts))
        found[0] = 0
        found[0] = num_negatives - found.sum()
        counts += found
        if with_sums:
            sums += torch.bincount(bins, weights=scores, minlength=len(sums))
    sums[0] = 0
    return counts, sums, torch.tensor(num_wrong)


@bin_negatives.register_fake
def _(
    logits: Tensor, labels: Tensor, mask: Tensor | None, knots: Tensor, with_sums: bool
) -> tuple[Tensor, Tensor, Tensor]:
    num_bins = knots.shape[0] + 1
    return (
        logits.new_empty(num_bins, dtype=torch.int64),
        logits.new_empty(num_bins, dtype=torch.float64),
        logits.new_empty((), dtype=torch.int64),
    )


_UPDATE_ARGUMENTS = (
    "Tensor logits, Tensor labels, Tensor? mask, Tensor knots, Tensor intercepts, Tensor slopes, "
    "Tensor index, Tensor update"
)


@custom_op(
    "rankdet::write_update",
    mutates_args=(),
    schema=f"(Tensor scale, {_UPDATE_ARGUMENTS}) -> Tensor",
)
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
    """The gradient, of the logits' shape and dtype: scale * update for positives,
    scale * (intercepts[b] + slopes[b] * score) for a negative in bin b, 0 for ignored entries.

    Args:
        scale: scalar, the gradient that comes in from behind the loss.
        knots: (Q,) float64, ascending.
        intercepts, slopes: (Q + 1,) float64; bin 0 is 0, or NaN if the whole gradient is to be NaN.
        index, update: (P,) places and updates of the positives.
    """
    intercepts, slopes = intercepts * scale, slopes * scale
    gradient = torch.empty_like(logits)
    for rows in row_blocks(logits, _ACCELERATOR_BLOCK):
        negative = _is_negative(logits[rows], labels[rows], None if mask is None else mask[rows])
        scores = torch.where(negative, logits[rows].double(), 0.0)
        bins = torch.bucketize(scores, knots, right=True)
        gradient[rows] = torch.where(negative, intercepts[bins] + slopes[bins] * scores, 0.0).to(
            logits.dtype
        )
    gradient.view(-1)[index] = (update * scale).to(logits.dtype)
    return gradient


@write_update.register_kernel("cpu")
def _(
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
    intercepts, slopes = intercepts * scale, slopes * scale
    is_constant = not bool(slopes.any())  # heaviside: one look-up instead of two
    gradient = torch.empty_like(logits)
    lookup = BinLookup(knots)
    for rows in row_blocks(logits, _CPU_BLOCK):
        excluded = excluded_entries(
            labels[rows], None if mask is None else mask[rows], logits.shape[1]
        )
        scores, target = lookup.load(logits[rows].view(-1)), gradient[rows].view(-1)
        only_bin = lookup.only_bin(*score_range(scores, excluded))
        if only_bin is not None:
            target.copy_(scores.mul_(slopes[only_bin]).add_(intercepts[only_bin]))
        elif bool(intercepts[0].isnan()):
            target.fill_(float("nan"))
        else:
            above, bins = lookup.find(scores)
            written = intercepts.index_select(0, bins)
            if above is not None:
                scores = scores[above]
            if not is_constant:
                written.addcmul_(scores, slopes.index_select(0, bins))
            if above is None:
                target.copy_(written)
            else:
                target.zero_()[above] = written.to(target.dtype)
        target.index_fill_(0, excluded, 0)
    gradient.view(-1)[index] = (update * scale).to(logits.dtype)
    return gradient


@write_update.register_fake
def _(
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
    return torch.empty_like(logits)


def row_blocks(logits: Tensor, block: int) -> list[slice]:
    """Slices of rows that hold about `block` elements each."""
    num_rows = max(1, block // max(1, logits.shape[1]))
    return [slice(start, start + num_rows) for start in range(0, logits.shape[0], num_rows)]


def _is_negative(logits: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
    num_classes = logits.shape[1]
    counted = counted_entries(labels, mask, num_classes)
    return counted & ~positive_entries(labels, num_classes)


@custom_op(
    "rankdet::attach_update",
    mutates_args=(),
    schema=f"(Tensor value, {_UPDATE_ARGUMENTS}) -> Tensor",
)
def attach_update(
    value: Tensor,
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    knots: Tensor,
    intercepts: Tensor,
    slopes: Tensor,
    index: Tensor,
    update: Tensor,
) -> Tensor:
    """The value itself; backward hands `write_update` to the logits in place of a derivative.

    So the gradient is written once, already scaled, in the logits' dtype, and nothing of its size
    is kept between forward and backward.
    """
    return value.clone()


@attach_update.register_fake
def _(value: Tensor, *state: Tensor | None) -> Tensor:
    return torch.empty_like(value)


def _keep_state(ctx: Any, inputs: tuple[Tensor | None, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _give_update(ctx: Any, grad_value: Tensor) -> tuple[Tensor | None, ...]:
    return (None, write_update(grad_value, *ctx.saved_tensors), *([None] * 7))


def refuse_second_derivative(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError(
        "ranking losses cannot be differentiated twice: their gradient is an update written by a "
        "kernel, without a graph of its own. Call backward without create_graph=True."
    )


attach_update.register_autograd(_give_update, setup_context=_keep_state)
write_update.register_autograd(refuse_second_derivative)
