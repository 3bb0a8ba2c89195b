"""Focal loss in Triton: one pass over the scores forward, one backward, for CUDA tensors.

    _sum_tiles     reads the scores: of each tile, the sum of the losses and how many positives
    _add_tiles     adds up the tiles
    _write_tiles   reads the scores, writes the gradient, scaled, in their dtype

focal.py is the judge, and says what the loss is. Its y is -score at a positive and score at a
negative. What is wrong, a score that is not finite or a label, makes the tile's sum NaN, and so the
value and `scale`, with which every gradient is multiplied. Nothing waits for the host. Numbers are
added in a fixed order, so that the same inputs give the same bits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

from rankdet.losses.focal import plain_focal_loss
from rankdet.losses.fused import divide_up, on_device_of
from rankdet.losses.labels import IGNORED

IGNORED_LABEL = tl.constexpr(IGNORED)

# Scores of a tile, and the warps that share it (benchmarks/NOTES.md).
_BLOCK = 4096
_NUM_WARPS = 8
# Tiles whose sums are added at once.
_NUM_ADDED = 4096


@triton.jit
def _find_tile(num_scores, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """The program's tile: its start, places in it (BLOCK / GROUP, GROUP), and which exist."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    place = tl.arange(0, BLOCK // GROUP)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    return start, place, place < tl.minimum(num_scores - start, BLOCK).to(tl.int32)


@triton.jit
def _read_tile(
    logits,
    labels,
    mask,
    num_scores,
    NUM_CLASSES: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The tile's scores as float32; which are counted, and positives; which labels are wrong."""
    start, place, is_inside = _find_tile(num_scores, GROUP, BLOCK)
    score = tl.load(logits + start + place, mask=is_inside, other=0.0).to(tl.float32)
    # 64 bits only for the start of the tile: a division is dear, that of unsigned numbers less so.
    first = tl.arange(0, BLOCK // GROUP)[:, None] * GROUP
    has_row = first < tl.minimum(num_scores - start, BLOCK).to(tl.int32)
    from_first_row = (first + (start % NUM_CLASSES).to(tl.int32)).to(tl.uint32)
    row = from_first_row // NUM_CLASSES
    column = (from_first_row - row * NUM_CLASSES).to(tl.int32) + tl.arange(0, GROUP)[None, :]
    label = tl.load(labels + start // NUM_CLASSES + row, mask=has_row)
    if label.dtype != tl.int64:
        label = label.to(tl.int32)  # narrow ones do not hold every class, nor unsigned ones -2
    label = tl.where(has_row, label, IGNORED_LABEL)
    is_wrong = (label < IGNORED_LABEL) | (label >= NUM_CLASSES)
    is_counted = label != IGNORED_LABEL
    if mask is not None:
        is_counted &= tl.load(mask + start + place, mask=is_inside, other=0) != 0
    return score, is_counted, is_counted & (label.to(tl.int32) == column), is_wrong


@triton.jit
def _log1p(x):
    """log(1 + x) for x from 0 to 1, to 2e-7 of itself.

    A polynomial of least relative error: log2 of the hardware is exact to 2e-7 of 1 only, and most
    scores of a detector have a loss far below 1.
    """
    result = 0.005232690692264505
    result = result * x - 0.02950522890039942
    result = result * x + 0.07822594429881416
    result = result * x - 0.13663246040861354
    result = result * x + 0.1910600742555972
    result = result * x - 0.24842982585998344
    result = result * x + 0.333190968968901
    result = result * x - 0.4999949314926428
    return (result * x + 1.0) * x


@triton.jit
def _judge(y, gamma, POWER: tl.constexpr):
    """softplus(y), sigmoid(y), sigmoid(-y) and sigmoid(y)^gamma; finite for every finite y.

    POWER is gamma where that is 0, 1 or 2, which need no logarithm, and else None.
    """
    small = tl.exp(-tl.abs(y))
    inverse = 1.0 / (1.0 + small)
    is_above = y >= 0
    log = _log1p(small)
    softplus = tl.maximum(y, 0.0) + log
    sigmoid = tl.where(is_above, inverse, small * inverse)
    opposite = tl.where(is_above, small * inverse, inverse)
    if POWER == 0:
        focus = tl.full(y.shape, 1.0, tl.float32)
    elif POWER == 1:
        focus = sigmoid
    elif POWER == 2:
        focus = sigmoid * sigmoid
    else:
        focus = tl.exp(gamma * (tl.minimum(y, 0.0) - log))
    return softplus, sigmoid, opposite, focus


@triton.jit
def _sum_tiles(
    tile_sums,
    tile_counts,
    logits,
    labels,
    mask,
    num_scores,
    gamma,
    positive_weight,
    negative_weight,
    NUM_CLASSES: tl.constexpr,
    GROUP: tl.constexpr,
    POWER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    score, is_counted, is_positive, is_wrong = _read_tile(
        logits, labels, mask, num_scores, NUM_CLASSES, GROUP, BLOCK
    )
    softplus, _, _, focus = _judge(tl.where(is_positive, -score, score), gamma, POWER)
    loss = softplus * focus * tl.where(is_positive, positive_weight, negative_weight)
    loss = tl.where(tl.abs(score) < float("inf"), loss, float("nan"))
    loss = tl.where(is_wrong, float("nan"), tl.where(is_counted, loss, 0.0))
    tl.store(tile_sums + tl.program_id(0), tl.sum(loss))
    tl.store(tile_counts + tl.program_id(0), tl.sum(is_positive.to(tl.int32)))


@triton.jit(do_not_specialize=["num_tiles"])
def _add_tiles(
    value,
    scale,
    tile_sums,
    tile_counts,
    num_tiles,
    NUM_ROUNDS: tl.constexpr,
    NUM_ADDED: tl.constexpr,
):
    total = tl.zeros((NUM_ADDED,), tl.float64)
    count = tl.zeros((NUM_ADDED,), tl.int64)
    tile = tl.arange(0, NUM_ADDED)
    for _ in range(NUM_ROUNDS):
        total += tl.load(tile_sums + tile, mask=tile < num_tiles, other=0.0)
        count += tl.load(tile_counts + tile, mask=tile < num_tiles, other=0)
        tile += NUM_ADDED
    total_loss = tl.sum(total)
    normaliser = tl.maximum(tl.sum(count), 1).to(tl.float64)
    tl.store(value, total_loss / normaliser)
    is_right = total_loss == total_loss
    tl.store(scale, tl.where(is_right, 1.0 / normaliser, float("nan")))


@triton.jit
def _write_tiles(
    gradient,
    grad_value,
    scale,
    logits,
    labels,
    mask,
    num_scores,
    gamma,
    positive_weight,
    negative_weight,
    NUM_CLASSES: tl.constexpr,
    GROUP: tl.constexpr,
    POWER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    factor = tl.load(grad_value) * tl.load(scale)
    score, is_counted, is_positive, _ = _read_tile(
        logits, labels, mask, num_scores, NUM_CLASSES, GROUP, BLOCK
    )
    softplus, sigmoid, opposite, focus = _judge(tl.where(is_positive, -score, score), gamma, POWER)
    # d/dy of softplus(y) sigmoid(y)^gamma. The largest softplus times gamma would be infinite.
    slope = sigmoid
    if POWER != 0:
        slope += gamma * (softplus * opposite)
    slope *= focus * tl.where(is_positive, -positive_weight * factor, negative_weight * factor)
    start, place, is_inside = _find_tile(num_scores, GROUP, BLOCK)
    slope = tl.where(is_counted, slope, 0.0).to(gradient.dtype.element_ty)
    tl.store(gradient + start + place, slope, mask=is_inside)


def mean_loss(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    gamma: float,
    alpha: float | None,
    block: int = _BLOCK,
    num_warps: int = _NUM_WARPS,
) -> tuple[Tensor, Tensor]:
    """The loss and, for `write_gradient`, 1 / max(1, positives), or NaN: float32 scalars.

    Args:
        logits: not empty; `fused.can_read` says which.
        block: scores of a tile, a power of 2.
    """
    logits, labels, mask = _as_read(logits, labels, mask)
    num_tiles = divide_up(logits.numel(), block)
    tile_sums = logits.new_empty(num_tiles, dtype=torch.float32)
    tile_counts = logits.new_empty(num_tiles, dtype=torch.int32)
    value, scale = (logits.new_empty((), dtype=torch.float32) for _ in range(2))
    with on_device_of(logits):
        _sum_tiles[(num_tiles,)](
            tile_sums,
            tile_counts,
            logits,
            labels,
            mask,
            *_settings(logits, gamma, alpha),
            BLOCK=block,
            num_warps=num_warps,
        )
        _add_tiles[(1,)](
            value,
            scale,
            tile_sums,
            tile_counts,
            num_tiles,
            divide_up(num_tiles, _NUM_ADDED),
            _NUM_ADDED,
            num_warps=8,
        )
    return value, scale


def write_gradient(
    grad_value: Tensor,
    scale: Tensor,
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    gamma: float,
    alpha: float | None,
    block: int = _BLOCK,
    num_warps: int = _NUM_WARPS,
) -> Tensor:
    """The gradient, of the logits' shape and dtype, 0 at ignored entries.

    Args:
        grad_value: float32 scalar, the gradient that comes in from behind the loss.
        scale: what `mean_loss` returned.
    """
    logits, labels, mask = _as_read(logits, labels, mask)
    gradient = torch.empty_like(logits)
    with on_device_of(logits):
        _write_tiles[(divide_up(logits.numel(), block),)](
            gradient,
            grad_value,
            scale,
            logits,
            labels,
            mask,
            *_settings(logits, gamma, alpha),
            BLOCK=block,
            num_warps=num_warps,
        )
    return gradient


def _as_read(
    logits: Tensor, labels: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The inputs as the kernels read them: contiguous."""
    return logits.contiguous(), labels.contiguous(), None if mask is None else mask.contiguous()


def _settings(logits: Tensor, gamma: float, alpha: float | None) -> tuple[Any, ...]:
    """The kernels' arguments from num_scores to POWER."""
    num_classes = logits.shape[-1]
    # A group is scores of one anchor that a thread reads at once, at most 16 bytes of them: they
    # share the look at the label, which costs a third of the instructions else.
    group = math.gcd(num_classes, 16 // logits.element_size())
    positive_weight, negative_weight = (1.0, 1.0) if alpha is None else (alpha, 1.0 - alpha)
    power = int(gamma) if gamma in (0, 1, 2) else None
    weights = float(positive_weight), float(negative_weight)
    return logits.numel(), float(gamma), *weights, num_classes, group, power


def fused_focal_loss(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    gamma: float,
    alpha: float | None,
    block: int = _BLOCK,
    num_warps: int = _NUM_WARPS,
) -> Tensor:
    """`focal_loss` of inputs that are checked and not empty: a float32 scalar."""
    if torch.compiler.is_compiling():
        value: Tensor = _mean_loss_operator(logits, labels, mask, gamma, alpha)[0]
        return value
    result: Tensor = _Focal.apply(logits, labels, mask, gamma, alpha, block, num_warps)
    return result


class _Focal(torch.autograd.Function):
    """The two passes, for autograd; an operator, as below, would cost the host far more."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, mask: Tensor | None, *settings: Any
    ) -> Tensor:
        value, scale = mean_loss(logits, labels, mask, *settings)
        ctx.save_for_backward(logits, labels, mask, scale)
        ctx.settings = settings
        return value

    @staticmethod
    def backward(ctx: Any, grad_value: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, mask, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: the gradient needs a graph of its own
            gamma, alpha, *_ = ctx.settings
            value = plain_focal_loss(logits, labels, gamma, alpha, mask, check_finite=False)
            (gradient,) = torch.autograd.grad(value, logits, grad_value, create_graph=True)
        else:
            gradient = write_gradient(grad_value, scale, logits, labels, mask, *ctx.settings)
        return gradient, *(None,) * 6


# torch.compile cannot look into kernels that are launched so. It gets them as operators.
_ARGUMENTS = "Tensor logits, Tensor labels, Tensor? mask, float gamma, float? alpha"
_mean_loss_operator = custom_op(
    "rankdet::mean_focal_loss",
    mean_loss,
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)",
)
_write_gradient_operator = custom_op(
    "rankdet::write_focal_gradient",
    write_gradient,
    mutates_args=(),
    schema=f"(Tensor grad_value, Tensor scale, {_ARGUMENTS}) -> Tensor",
)


@_mean_loss_operator.register_fake
def _(logits: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    value = logits.new_empty((), dtype=torch.float32)
    return value, torch.empty_like(value)


@_write_gradient_operator.register_fake
def _(grad_value: Tensor, scale: Tensor, logits: Tensor, *inputs: Any) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _keep_state(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, labels, mask, *ctx.settings = inputs
    ctx.save_for_backward(logits, labels, mask, output[1])


def _give_gradient(ctx: Any, grad_value: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    logits, labels, mask, scale = ctx.saved_tensors
    gradient = _write_gradient_operator(grad_value, scale, logits, labels, mask, *ctx.settings)
    return gradient, *(None,) * 4


_mean_loss_operator.register_autograd(_give_gradient, setup_context=_keep_state)
