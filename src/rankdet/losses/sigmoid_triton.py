"""The passes over the scores for the sigmoid step in Triton: all P x N pairs, for CUDA tensors.

    sum_sigmoids           reads the scores: for each positive, sums over the negatives
    write_sigmoid_update   reads the scores, writes the gradient

The plain operators of sigmoid.py, in float64, are the judge. Here a pair is float32, and costs one
reciprocal and no exponential. With growth = exp((n - p) / k),

    S = growth / (1 + growth)        S' = S / (1 + growth) / k

The sorted positives are cut into tiles. In a tile that is narrow in units of k, growth is a product
exp((n - c) / k) exp((c - p) / k) with a centre c: the first factor serves a score for the whole
tile, the second a positive for all scores. In a wide tile it is computed for the pair, and the
factor of the positive is 1. Either way the exponent is kept in two float32, because an error in it
is a relative error of S, and a sum of many tiny S must be right too. Tiles of positives farther
than 40 k from a group of scores are not looked at: their pairs count 1, or nothing.

A growth of 0 gives exactly 0, and stands for what is no finite negative. A growth is at most
2**110, so that nothing overflows: S is 1 then, and k S' not quite 0 but less than 1e-28.

Sums have one order: the same inputs give the same bits. Nothing waits for the host.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad

from rankdet.losses.fused import divide_up, on_device_of
from rankdet.losses.labels import IGNORED

IGNORED_LABEL = tl.constexpr(IGNORED)
LN_2 = tl.constexpr(math.log(2))
# Times a factor of a narrow tile, at most exp(10), float32 holds 1 + 2**110 and its inverse, and
# the product of two 1 + 2**45. The sigmoid is 1 from 2**25 on.
MOST_DOUBLINGS = tl.constexpr(110.0)
MOST_DOUBLINGS_OF_TWO = tl.constexpr(45.0)
# An assembler instruction; the interpreter has none.
HAS_ASSEMBLER = tl.constexpr(not triton.knobs.runtime.interpret)
NUM_TOTALS = tl.constexpr(128)  # totals of tiles that are added at once

_HALF_WIDTH = 10.0  # of a narrow tile, in units of k
_FAR = 40.0
_PARTIAL_BYTES = 16 << 20
_LONGEST_CHUNK = 1 << 29  # places in a chunk are 32-bit


@triton.jit
def _reciprocal(x):
    """1 / x, to 1 unit in the last place."""
    if HAS_ASSEMBLER:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x


@triton.jit
def _growth(score, other, rate, rate_low, MOST: tl.constexpr):
    """exp((score - other) / k), where 1 / ln(2) / k = rate + rate_low; at most 2**MOST."""
    away = score - other
    back = away - score
    rest = (score - (away - back)) - (other + back)  # what rounding took from `away`
    doublings = away * rate
    rest = tl.fma(away, rate, -doublings) + (away * rate_low + rest * rate)
    rest = tl.where(tl.abs(doublings) < 150.0, rest, 0.0)  # else it may be inf - inf
    return tl.exp2(tl.minimum(doublings, MOST)) * (1.0 + rest * LN_2)


@triton.jit
def _read(logits, labels, mask, start, row, column, place, num_left, NUM_CLASSES: tl.constexpr):
    """Scores as float32 at start + place, which are negatives, and which of them are finite.

    start, row, column: where the chunk starts, as a flat 64-bit place, and as row and column.
    place: 32-bit; places from num_left on do not exist.
    """
    is_inside = place < num_left
    score = tl.load(logits + start + place, mask=is_inside, other=0.0).to(tl.float32)
    from_row = (place + column).to(tl.uint32)
    rows = from_row // NUM_CLASSES
    label = tl.load(labels + row + rows, mask=is_inside, other=IGNORED_LABEL)
    if label.dtype != tl.int64:
        label = label.to(tl.int32)  # narrow ones do not hold every class, nor unsigned ones -2
    is_negative = is_inside & (label != IGNORED_LABEL)
    is_negative &= label != (from_row - rows * NUM_CLASSES).to(tl.int32)
    if mask is not None:
        is_negative &= tl.load(mask + start + place, mask=is_inside, other=0) != 0
    return score, is_negative, is_negative & (tl.abs(score) < float("inf"))


@triton.jit
def _sum_group(
    logits, labels, mask, start, row, column, first, num_left,
    factor, centre, positives, rate, rate_low,
    NUM_CLASSES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr, IS_NARROW: tl.constexpr,
):  # fmt: skip
    """Sums of S and k S', divided by the factors, over the parts of a group: (BLOCK_P, BLOCK_N)."""
    sums = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    slopes = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
    for part in range(PARTS):
        place = first + part * BLOCK_N + tl.arange(0, BLOCK_N)
        score, _, is_used = _read(
            logits, labels, mask, start, row, column, place, num_left, NUM_CLASSES
        )
        if IS_NARROW:
            growth = _growth(score, centre, rate, rate_low, MOST_DOUBLINGS)
            growth = tl.where(is_used, growth, 0.0)[None, :]
            inverse = _reciprocal(tl.fma(factor[:, None], growth, 1.0))
        else:  # loaded here, to spare the registers of the usual case
            other = tl.load(positives + tl.arange(0, BLOCK_P))[:, None]
            growth = _growth(score[None, :], other, rate, rate_low, MOST_DOUBLINGS)
            growth = tl.where(is_used[None, :], growth, 0.0)
            inverse = _reciprocal(1.0 + growth)
        sigmoid = growth * inverse
        sums += sigmoid
        slopes += sigmoid * inverse
    return sums, slopes


@triton.jit(do_not_specialize=["num_scores", "num_tiles", "num_folds"])
def sum_kernel(
    logits, labels, mask, factors, positives, centres, partial_sums, partial_counts,
    num_scores, num_tiles, num_folds, rate, rate_low, far,
    NUM_CLASSES: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """One tile of positives against one chunk of scores.

    A chunk is num_folds x ROUNDS groups of PARTS x BLOCK_N scores. Sums are kept for each place in
    a part: over a group, over a fold (float32), and over the chunk (float64), so that none of them
    has many terms.

    partial_sums: (chunks, 2, num_tiles * BLOCK_P) float64, sums of S and of k S'.
    partial_counts: (chunks, 2) int64, negatives, and those that are not finite.
    """
    GROUP: tl.constexpr = PARTS * BLOCK_N
    tile = tl.program_id(0) % num_tiles
    chunk = (tl.program_id(0) // num_tiles).to(tl.int64)
    start = chunk * num_folds * (ROUNDS * GROUP)
    row = start // NUM_CLASSES
    column = (start - row * NUM_CLASSES).to(tl.int32)
    chunk_size = num_folds * (ROUNDS * GROUP)
    num_left = tl.minimum(num_scores - start, chunk_size.to(tl.int64)).to(tl.int32)

    place_in_tiles = tile * BLOCK_P + tl.arange(0, BLOCK_P)
    factor = tl.load(factors + place_in_tiles)
    centre = tl.load(centres + tile)
    tile_positives = positives + tile * BLOCK_P
    nearest_below = tl.load(tile_positives) - far
    nearest_above = tl.load(tile_positives + BLOCK_P - 1) + far

    sums = tl.zeros([BLOCK_P], tl.float64)
    slopes = tl.zeros([BLOCK_P], tl.float64)
    num_above = tl.zeros([], tl.int64)
    num_negatives = tl.zeros([], tl.int64)
    num_finite = tl.zeros([], tl.int64)
    for fold in range(num_folds):
        fold_sums = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
        fold_slopes = tl.zeros([BLOCK_P, BLOCK_N], tl.float32)
        for round in range(ROUNDS):
            first = (fold * ROUNDS + round) * GROUP
            place = first + tl.arange(0, GROUP)
            # Bounds of all scores, whatever they are, are good enough and cost less.
            score = tl.load(logits + start + place, mask=place < num_left, other=float("nan"))
            score = score.to(tl.float32)
            is_finite = tl.abs(score) < float("inf")
            lowest = tl.min(tl.where(is_finite, score, float("inf")))
            highest = tl.max(tl.where(is_finite, score, -float("inf")))
            is_above = (lowest > nearest_above) & (highest >= lowest)
            if (tile == 0) | is_above:
                _all, is_negative, is_used = _read(
                    logits, labels, mask, start, row, column, place, num_left, NUM_CLASSES
                )
                num_used = tl.sum(is_used.to(tl.int32)).to(tl.int64)
                num_negatives += tl.sum(is_negative.to(tl.int32)).to(tl.int64)
                num_finite += num_used
                num_above += tl.where(is_above, num_used, 0)
            if (highest >= nearest_below) & (is_above == 0):
                if centre == centre:
                    group_sums, group_slopes = _sum_group(
                        logits, labels, mask, start, row, column, first, num_left,
                        factor, centre, tile_positives, rate, rate_low,
                        NUM_CLASSES, BLOCK_P, BLOCK_N, PARTS, True,
                    )  # fmt: skip
                else:
                    group_sums, group_slopes = _sum_group(
                        logits, labels, mask, start, row, column, first, num_left,
                        factor, centre, tile_positives, rate, rate_low,
                        NUM_CLASSES, BLOCK_P, BLOCK_N, PARTS, False,
                    )  # fmt: skip
                fold_sums += group_sums
                fold_slopes += group_slopes
        sums += tl.sum(fold_sums, 1).to(tl.float64)
        slopes += tl.sum(fold_slopes, 1).to(tl.float64)

    target = partial_sums + chunk * 2 * num_tiles * BLOCK_P + place_in_tiles
    tl.store(target, sums * factor + num_above.to(tl.float64))
    tl.store(target + num_tiles * BLOCK_P, slopes * factor)
    if tile == 0:
        tl.store(partial_counts + chunk * 2, num_negatives)
        tl.store(partial_counts + chunk * 2 + 1, num_negatives - num_finite)


@triton.jit
def _num_below(positives, num_positives, num_halvings, bound, INCLUSIVE: tl.constexpr):
    """How many of the sorted positives are below the bound, or at it if inclusive."""
    low = 0
    high = num_positives
    for _ in range(num_halvings):
        middle = (low + high) // 2
        value = tl.load(positives + middle, mask=low < high, other=float("inf"))
        if INCLUSIVE:
            is_below = (low < high) & (value <= bound)
        else:
            is_below = (low < high) & (value < bound)
        low = tl.where(is_below, middle + 1, low)
        high = tl.where(is_below, high, middle)
    return low


@triton.jit
def _weigh_narrow(
    score, centre, factors, weights, rate, rate_low,
    DERIVATIVE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """Sums over a narrow tile of weights x S, or x k S'; `weights` have the factors in them."""
    result = tl.zeros([BLOCK_N], tl.float32)
    if DERIVATIVE:
        growth = _growth(score, centre, rate, rate_low, MOST_DOUBLINGS)
        for first in range(0, BLOCK_P, UNROLL):
            for step in tl.static_range(UNROLL):
                inverse = _reciprocal(tl.fma(tl.load(factors + first + step), growth, 1.0))
                result += tl.load(weights + first + step) * inverse * inverse
    else:
        growth = _growth(score, centre, rate, rate_low, MOST_DOUBLINGS_OF_TWO)
        for first in range(0, BLOCK_P, UNROLL):
            for step in tl.static_range(0, UNROLL, 2):  # two pairs share a reciprocal
                one = tl.fma(tl.load(factors + first + step), growth, 1.0)
                other = tl.fma(tl.load(factors + first + step + 1), growth, 1.0)
                inverse = _reciprocal(one * other)
                both = tl.load(weights + first + step) * other
                both += tl.load(weights + first + step + 1) * one
                result += both * inverse
    return result * growth


@triton.jit
def _weigh_wide(
    score, positives, weights, rate, rate_low,
    DERIVATIVE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Sums over a wide tile of weights x S, or x k S'."""
    result = tl.zeros([BLOCK_N], tl.float32)
    for step in range(BLOCK_P):
        growth = _growth(score, tl.load(positives + step), rate, rate_low, MOST_DOUBLINGS)
        inverse = _reciprocal(1.0 + growth)
        sigmoid = growth * inverse
        if DERIVATIVE:
            sigmoid *= inverse
        result += tl.load(weights + step) * sigmoid
    return result


@triton.jit(do_not_specialize=["num_scores", "num_positives", "num_halvings"])
def write_kernel(
    logits, labels, mask, gradient, factors, positives, centres, weights, totals, last_factor,
    num_scores, num_positives, num_halvings, rate, rate_low, far,
    NUM_CLASSES: tl.constexpr, DERIVATIVE: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The gradient of BLOCK_N scores; 0 for all but negatives.

    weights: (num_tiles * BLOCK_P,) float32, times the factors.
    totals: (num_tiles,) float64, the sums of the weights alone.
    last_factor: float64 scalar for all negatives, NaN to make them NaN.
    """
    start = tl.program_id(0).to(tl.int64) * BLOCK_N
    row = start // NUM_CLASSES
    column = (start - row * NUM_CLASSES).to(tl.int32)
    place = tl.arange(0, BLOCK_N)
    num_left = tl.minimum(num_scores - start, BLOCK_N).to(tl.int32)
    score, is_negative, is_used = _read(
        logits, labels, mask, start, row, column, place, num_left, NUM_CLASSES
    )
    lowest = tl.min(tl.where(is_used, score, float("inf")))
    highest = tl.max(tl.where(is_used, score, -float("inf")))
    score = tl.where(is_used, score, highest)
    is_any = highest >= lowest
    num_below = _num_below(positives, num_positives, num_halvings, lowest - far, False)
    num_reached = _num_below(positives, num_positives, num_halvings, highest + far, True)
    first_tile = tl.where(is_any, num_below // BLOCK_P, 0)
    last_tile = tl.where(is_any, (num_reached + BLOCK_P - 1) // BLOCK_P, 0)

    result = tl.zeros([BLOCK_N], tl.float64)
    if not DERIVATIVE:  # positives that are far below count 1
        for first in range(0, first_tile, NUM_TOTALS):
            tiles = first + tl.arange(0, NUM_TOTALS)
            result += tl.sum(tl.load(totals + tiles, mask=tiles < first_tile, other=0.0))
    for tile in range(first_tile, last_tile):
        centre = tl.load(centres + tile)
        first = tile * BLOCK_P
        if centre == centre:
            tile_sum = _weigh_narrow(
                score, centre, factors + first, weights + first, rate, rate_low,
                DERIVATIVE, BLOCK_P, BLOCK_N, UNROLL,
            )  # fmt: skip
        else:
            tile_sum = _weigh_wide(
                score, positives + first, weights + first, rate, rate_low,
                DERIVATIVE, BLOCK_P, BLOCK_N,
            )  # fmt: skip
        result += tile_sum.to(tl.float64)

    result = tl.where(is_used, result, 0.0) * tl.load(last_factor)
    result = tl.where(is_negative, result, 0.0).to(tl.float32)
    target = gradient + start + place
    tl.store(target, result.to(gradient.dtype.element_ty), mask=place < num_left)


class _Tiles(NamedTuple):
    """The sorted positives in tiles, the last one filled up with copies of the last positive."""

    factors: Tensor  # (T * size,) float32, exp((c - p) / k), or 1 in a wide tile
    positives: Tensor  # (T * size,) float32, the scores, which were float32 or less
    centres: Tensor  # (T,) float32, c, or NaN for a wide tile


def _cut(positives: Tensor, delta: float, size: int) -> _Tiles:
    num_tiles = divide_up(len(positives), size)
    last = len(positives) - 1
    index = torch.arange(num_tiles * size, device=positives.device).clamp_(max=last)
    tiles = positives[index].view(num_tiles, size)
    centres = ((tiles[:, 0] + tiles[:, -1]) / 2).float()
    exponents = (centres.double()[:, None] - tiles) / delta
    is_wide = exponents.abs().amax(1) > _HALF_WIDTH
    factors = torch.where(is_wide[:, None], 0.0, exponents).exp().float()
    centres = torch.where(is_wide, float("nan"), centres)
    return _Tiles(factors.view(-1), tiles.float().view(-1), centres)


def _widths(delta: float) -> tuple[float, float, float]:
    """Doublings per unit of score, in two parts that are float32, and how far is far."""
    exact = min(1 / math.log(2) / delta, 1e38)
    rate = torch.tensor(exact, dtype=torch.float32).item()
    return rate, exact - rate, min(_FAR * delta, 1e38)


def sum_sigmoids(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    positives: Tensor,
    delta: float,
    *,
    block_positives: int = 32,
    block_scores: int = 128,
    parts: int = 8,
    rounds: int = 8,
    num_warps: int = 4,
    partial_bytes: int = _PARTIAL_BYTES,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `sigmoid.sum_sigmoids` says, for float16, bfloat16 and float32 logits.

    Args:
        block_positives, block_scores: pairs at a time; parts, rounds: see `sum_kernel`.
        partial_bytes: what the partial sums may take, if one for each positive fits.
    """
    num_positives, num_scores = len(positives), logits.numel()
    if num_scores == 0:
        counts = torch.zeros(2, dtype=torch.int64, device=logits.device)
        zeros = torch.zeros_like(positives)
        return zeros, zeros.clone(), counts[0].clone(), counts[1].clone()
    tiles = _cut(positives if num_positives else positives.new_zeros(1), delta, block_positives)
    num_tiles = len(tiles.centres)
    fold = block_scores * parts * rounds
    most_chunks = max(1, partial_bytes // (16 * len(tiles.positives)))
    most_chunks = max(most_chunks, divide_up(num_scores, _LONGEST_CHUNK))
    num_folds = divide_up(divide_up(num_scores, fold), most_chunks)
    num_chunks = divide_up(num_scores, fold * num_folds)
    sums = positives.new_empty(num_chunks, 2, len(tiles.positives))
    counts = torch.empty(num_chunks, 2, dtype=torch.int64, device=logits.device)
    with on_device_of(logits):
        sum_kernel[(num_chunks * num_tiles,)](
            logits, labels, mask, *tiles, sums, counts,
            num_scores, num_tiles, num_folds, *_widths(delta),
            NUM_CLASSES=logits.shape[1], BLOCK_P=block_positives, BLOCK_N=block_scores,
            PARTS=parts, ROUNDS=rounds, num_warps=num_warps,
        )  # fmt: skip
    above, slopes = sums.sum(0)[:, :num_positives].unbind()
    num_negatives, num_wrong = counts.sum(0).unbind()
    # An operator may not return two views of one tensor.
    return above.clone(), slopes / delta, num_negatives.clone(), num_wrong.clone()


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
    *,
    block_positives: int = 32,
    block_scores: int = 1024,
    unroll: int = 8,
    num_warps: int = 4,
) -> Tensor:
    """What `sigmoid.write_sigmoid_update` says, for float16, bfloat16 and float32 logits."""
    gradient = torch.empty_like(logits)
    if logits.numel() == 0:
        return gradient
    if len(positives) == 0:  # one without weight: the gradient is 0, or NaN if the scale is
        positives, weights = positives.new_zeros(1), weights.new_zeros(1)
    tiles = _cut(positives, delta, block_positives)
    weights = pad(weights * scale, (0, len(tiles.positives) - len(weights)))
    totals = weights.view(-1, block_positives).sum(1)
    is_wrong = totals.sum().isnan()
    last_factor = torch.where(is_wrong, float("nan"), 1.0).double() / (delta if derivative else 1.0)
    with on_device_of(logits):
        write_kernel[(divide_up(logits.numel(), block_scores),)](
            logits, labels, mask, gradient,
            *tiles, (weights * tiles.factors).float(), totals, last_factor,
            logits.numel(), len(positives), len(positives).bit_length(), *_widths(delta),
            NUM_CLASSES=logits.shape[1], DERIVATIVE=derivative,
            BLOCK_P=block_positives, BLOCK_N=block_scores, UNROLL=unroll, num_warps=num_warps,
        )  # fmt: skip
    gradient.view(-1)[index] = (update * scale).to(gradient.dtype)
    return gradient
