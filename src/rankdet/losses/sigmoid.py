"""The passes over the scores for the sigmoid step, which has no knots: O(P N) in bounded memory.

Pairs are taken in tiles of some positives x some negatives. For S(x) = 1 / (1 + exp(-x / k)), pairs
below -40 k are smaller than 5e-18 and left out; pairs above 40 k count as 1.
The functions here are plain torch in float64, for any device and dtype; what `fused.can_read` says
yes to goes to sigmoid_triton.py. On CUDA the number of positives is asked for once, when they are
found: the work is P x N pairs, milliseconds, against which that wait is little. The fused passes
wait for nothing.
The shapes here are always logits (R, K), labels (R,), mask None or (R, K), all contiguous.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from rankdet.losses import fused
from rankdet.losses.blocks import negative_entries, row_blocks
from rankdet.losses.kernels import refuse_second_derivative
from rankdet.losses.labels import BACKGROUND

_TILE = (64, 1024)  # positives x scores at a time: 512 KiB of float64, to stay in the cache
_BLOCK = 1 << 20  # scores looked at together
_FAR = 40.0
_PAIRS = 1 << 20  # of positives, at a time, where no tiles are cut: 8 MiB of float64


@custom_op(
    "rankdet::sum_sigmoids",
    mutates_args=(),
    schema="(Tensor logits, Tensor labels, Tensor? mask, Tensor positives, float delta)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)
def sum_sigmoids(
    logits: Tensor, labels: Tensor, mask: Tensor | None, positives: Tensor, delta: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums over the negatives n of S(n - p_i) and of its derivative S'(n - p_i).

    Args:
        positives: (P,) float64, ascending.
        delta: the k of the sigmoid.

    Returns:
        sums: (P,) float64 sums of S.
        derivatives: (P,) float64 sums of S'.
        num_negatives: int64 scalar.
        num_wrong: int64 scalar, how many negatives are NaN or infinite (they are left out).
    """
    if fused.can_read(logits):
        from rankdet.losses import sigmoid_triton

        return sigmoid_triton.sum_sigmoids(logits, labels, mask, positives, delta)
    sums, derivatives = torch.zeros_like(positives), torch.zeros_like(positives)
    num_negatives = torch.zeros((), dtype=torch.int64, device=logits.device)
    num_wrong = torch.zeros_like(num_negatives)
    for scores, places in _negatives(logits, labels, mask):
        num_negatives += places.numel()
        num_wrong += places.numel() - scores.numel()
        for part, num_below, near in _tiles(scores, positives, delta):
            sums[:num_below] += part.numel()
            for some in near:
                odds = _odds(part, positives[some], delta)
                sigmoids = (1 + odds).reciprocal_()
                sums[some] += sigmoids.sum(1)
                # S' = S (1 - S) / k, and 1 - S = odds * S without cancellation
                derivatives[some] += odds.mul_(sigmoids).mul_(sigmoids).sum(1) / delta
    return sums, derivatives, num_negatives, num_wrong


@sum_sigmoids.register_fake
def _(
    logits: Tensor, labels: Tensor, mask: Tensor | None, positives: Tensor, delta: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count = logits.new_empty((), dtype=torch.int64)
    return (
        torch.empty_like(positives),
        torch.empty_like(positives),
        count,
        torch.empty_like(count),
    )


def sum_sigmoids_of_positives(positives: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """Sums over all positives p_k, i itself included, of S(p_k - p_i) and S'(p_k - p_i): (P,)."""
    if positives.device.type != "cpu":
        return _sum_all_pairs(positives, delta)
    labels = torch.full_like(positives, BACKGROUND, dtype=torch.int64)
    sums, derivatives, _, _ = sum_sigmoids(positives[:, None], labels, None, positives, delta)
    return sums, derivatives


def _sum_all_pairs(positives: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """What `sum_sigmoids_of_positives` says, without questions to the device."""
    sums, derivatives = torch.zeros_like(positives), torch.zeros_like(positives)
    num_rows = max(1, _PAIRS // max(1, len(positives)))
    for start in range(0, len(positives), num_rows):
        rows = slice(start, start + num_rows)
        away = (positives - positives[rows, None]) / delta
        sigmoids = away.sigmoid()
        sums[rows] = sigmoids.sum(1)
        derivatives[rows] = (sigmoids * away.neg_().sigmoid_()).sum(1) / delta
    return sums, derivatives


_UPDATE_ARGUMENTS = (
    "Tensor logits, Tensor labels, Tensor? mask, Tensor positives, Tensor weights, float delta, "
    "bool derivative, Tensor index, Tensor update"
)


@custom_op(
    "rankdet::write_sigmoid_update",
    mutates_args=(),
    schema=f"(Tensor scale, {_UPDATE_ARGUMENTS}) -> Tensor",
)
def write_sigmoid_update(
    scale: Tensor,
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    positives: Tensor,
    weights: Tensor,
    delta: float,
    derivative: bool,
    index: Tensor,
    update: Tensor,
) -> Tensor:
    """The gradient, of the logits' shape and dtype: scale * update for positives,
    scale * sum_i weights_i S(n - p_i) for a negative n, 0 for ignored entries.

    Args:
        weights: (P,) float64 for positives in ascending order; NaN makes the gradient NaN.
        derivative: takes S' in place of S.
        index, update: (P,) places and updates of the positives.
    """
    if fused.can_read(logits):
        from rankdet.losses import sigmoid_triton

        return sigmoid_triton.write_sigmoid_update(
            scale, logits, labels, mask, positives, weights, delta, derivative, index, update
        )
    weights = weights * scale
    total_before = torch.nn.functional.pad(weights.cumsum(0), (1, 0))
    gradient = torch.zeros_like(logits)
    flat = gradient.view(-1)
    for scores, places in _negatives(logits, labels, mask):
        if bool((total_before[-1] * scale).isnan()):  # also where there are no weights
            flat[places] = float("nan")
            continue
        start = 0
        for part, num_below, near in _tiles(scores, positives, delta):
            written = torch.zeros_like(part)
            if not derivative:
                written += total_before[num_below]
            for some in near:
                odds = _odds(part, positives[some], delta)
                sigmoids = (1 + odds).reciprocal_()
                if derivative:
                    sigmoids.mul_(sigmoids).mul_(odds).div_(delta)
                written += weights[some] @ sigmoids
            flat[places[start : start + part.numel()]] = written.to(flat.dtype)
            start += part.numel()
    flat[index] = (update * scale).to(flat.dtype)
    return gradient


@write_sigmoid_update.register_fake
def _(scale: Tensor, logits: Tensor, *state: Any) -> Tensor:
    return torch.empty_like(logits)


@custom_op(
    "rankdet::attach_sigmoid_update",
    mutates_args=(),
    schema=f"(Tensor value, {_UPDATE_ARGUMENTS}) -> Tensor",
)
def attach_sigmoid_update(
    value: Tensor,
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    positives: Tensor,
    weights: Tensor,
    delta: float,
    derivative: bool,
    index: Tensor,
    update: Tensor,
) -> Tensor:
    """The value itself; backward hands `write_sigmoid_update` to the logits."""
    return value.clone()


@attach_sigmoid_update.register_fake
def _(value: Tensor, *state: Any) -> Tensor:
    return torch.empty_like(value)


def _keep_state(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, delta, derivative, index, update = inputs[1:]
    ctx.save_for_backward(*tensors, index, update)
    ctx.delta, ctx.derivative = delta, derivative


def _give_update(ctx: Any, grad_value: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, index, update = ctx.saved_tensors
    gradient = write_sigmoid_update(grad_value, *tensors, ctx.delta, ctx.derivative, index, update)
    return (None, gradient, *([None] * 8))


attach_sigmoid_update.register_autograd(_give_update, setup_context=_keep_state)
write_sigmoid_update.register_autograd(refuse_second_derivative)


def _negatives(
    logits: Tensor, labels: Tensor, mask: Tensor | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of negatives: finite scores (m,) float64, and flat places (n,), those of the finite
    scores first."""
    num_classes = logits.shape[1]
    for rows, block, block_labels, block_mask in row_blocks(logits, labels, mask, _BLOCK):
        is_negative = negative_entries(block_labels, block_mask, num_classes).flatten()
        scores = block.flatten()
        is_finite = torch.isfinite(scores)
        finite = (is_negative & is_finite).nonzero()[:, 0]
        others = (is_negative & ~is_finite).nonzero()[:, 0]
        first = rows.start * num_classes
        yield scores[finite].double(), torch.cat([finite, others]) + first


def _tiles(
    scores: Tensor, positives: Tensor, delta: float
) -> Iterator[tuple[Tensor, int, list[slice]]]:
    """Parts of the scores in order, each with what it has to do with the positives.

    Yields the part, how many positives lie so far below it that all pairs count 1, and slices of
    the positives after those that are not so far above it that all pairs count 0.
    """
    num_positives, num_scores = _TILE
    for part in scores.split(num_scores) if len(scores) else ():
        ends = torch.stack([part.min() - _FAR * delta, part.max() + _FAR * delta])
        first, last = torch.searchsorted(positives, ends).tolist()
        starts = range(first, last, num_positives)
        yield part, first, [slice(start, min(start + num_positives, last)) for start in starts]


def _odds(scores: Tensor, positives: Tensor, delta: float) -> Tensor:
    """(P, n) exp((p_i - n_j) / delta), so that S(n_j - p_i) = 1 / (1 + odds).

    As a product of two vectors this costs no exponential for a pair, unless they would overflow.
    """
    ends = torch.stack([scores.min(), scores.max(), positives[0], positives[-1]]).tolist()
    if max(ends) - min(ends) > 600 * delta:
        return ((positives[:, None] - scores) / delta).clamp_(max=700).exp_()
    centre = (max(ends) + min(ends)) / 2
    return torch.outer(((positives - centre) / delta).exp_(), ((centre - scores) / delta).exp_())
