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
The plain functions here are torch in float64, for any device and dtype. kernels_cpu.py has the fast
ones for the CPU; what `fused.can_read` says yes to goes to kernels_triton.py, which waits for
nothing: on CUDA the host waits once, for the number of positives (twice with a mask).
"""

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op, get_ctx

from rankdet.losses import fused, kernels_cpu
from rankdet.losses.blocks import negative_entries, row_blocks

# Entries that an accelerator takes at once: the temporary tensors are bounded.
_BLOCK = 1 << 24


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
    if fused.can_read(logits):
        from rankdet.losses import kernels_triton

        return kernels_triton.bin_negatives(logits, labels, mask, knots, with_sums)
    return plain_bin_negatives(logits, labels, mask, knots, with_sums)


def plain_bin_negatives(
    logits: Tensor, labels: Tensor, mask: Tensor | None, knots: Tensor, with_sums: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What `bin_negatives` says, in plain torch: block by block, a search for every score."""
    num_bins = len(knots) + 1
    counts = torch.zeros(num_bins, dtype=torch.int64, device=logits.device)
    sums = torch.zeros(num_bins, dtype=torch.float64, device=logits.device)
    num_wrong = torch.zeros((), dtype=torch.int64, device=logits.device)
    for _, block, block_labels, block_mask in row_blocks(logits, labels, mask, _BLOCK):
        negative = negative_entries(block_labels, block_mask, logits.shape[1])
        scores = block.double()
        is_finite = torch.isfinite(scores)
        num_wrong += (negative & ~is_finite).sum()
        used = negative & is_finite
        bins = torch.bucketize(torch.where(used, scores, float("-inf")), knots, right=True)
        counts.index_add_(0, bins.flatten(), negative.flatten().long())
        if with_sums:
            sums.index_add_(0, bins.flatten(), torch.where(used, scores, 0.0).flatten())
    sums[0] = 0
    return counts, sums, num_wrong


bin_negatives.register_kernel("cpu")(kernels_cpu.bin_negatives)


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
    state = (scale, logits, labels, mask, knots, intercepts, slopes, index, update)
    if fused.can_read(logits):
        from rankdet.losses import kernels_triton

        return kernels_triton.write_update(*state)
    return plain_write_update(*state)


def plain_write_update(
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
    """What `write_update` says, in plain torch."""
    intercepts, slopes = intercepts * scale, slopes * scale
    gradient = torch.empty_like(logits)
    for rows, block, block_labels, block_mask in row_blocks(logits, labels, mask, _BLOCK):
        negative = negative_entries(block_labels, block_mask, logits.shape[1])
        scores = torch.where(negative, block.double(), 0.0)
        bins = torch.bucketize(scores, knots, right=True)
        written = intercepts[bins] + slopes[bins] * scores
        gradient[rows] = torch.where(negative, written, 0.0).to(logits.dtype)
    gradient.view(-1)[index] = (update * scale).to(logits.dtype)
    return gradient


write_update.register_kernel("cpu")(kernels_cpu.write_update)


@write_update.register_fake
def _(scale: Tensor, logits: Tensor, *state: Tensor | None) -> Tensor:
    return torch.empty_like(logits)


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
