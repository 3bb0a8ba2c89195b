"""The O(P) work between the two passes over the scores, in one launch; see ap_triton.py.

Lengths are measured in widths of the step, 2 delta, as in steps.py. All sums have terms of one
sign, and run from the side where they are small, in float64: a small error next to a large batch
keeps its digits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankdet.losses.ap_triton import (
    COUNT_SHIFT,
    HEIGHTS,
    KNOTS,
    NUM_HISTOGRAMS,
    NUM_KNOTS,
    NUM_NEGATIVES,
    NUM_POSITIVES,
    NUM_SUMMED,
    NUM_WRONG,
    NUM_WRONG_LABELS,
    OFFSET_UNIT,
    POISON,
    POSITIVES,
    SLOPES,
    UPDATE,
    knot_at,
    num_positives_of,
    part,
)


@triton.jit
def _join_upper(upper_number, upper_distance, upper_length, number, distance, length):
    """Runs of bins, the upper one first: how many scores, their distance from the run's lower end
    in all, and its length."""
    return (
        upper_number + number,
        upper_distance + upper_number * length + distance,
        upper_length + length,
    )


@triton.jit
def _join_lower(lower_slope, lower_height, lower_length, slope, height, length):
    """Runs of knots, the lower one first: the slope after its last knot, the height there, and its
    length from the knot before its first one."""
    return (
        lower_slope + slope,
        lower_height + lower_slope * length + height,
        lower_length + length,
    )


@triton.jit
def _sum(left, right):
    return left + right


@triton.jit
def _least(left, right):
    return tl.minimum(left, right)


@triton.jit
def weigh_kernel(
    header, keys, floats, places, histograms, value, capacity, WEIGHTS: tl.constexpr,
    DELTA: tl.constexpr, BINS: tl.constexpr, HISTOGRAMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss (value, a float32 scalar), the update of the positives, heights and slopes.

    All programs add up the histograms; the one that is last to finish does the rest. WEIGHTS is a
    name in weights.py, which has the same formulas.
    """
    num_positives = num_positives_of(header, capacity)
    num_places = num_positives * (2 if DELTA > 0 else 1)
    num_knots = tl.load(header + NUM_KNOTS).to(tl.int32)
    counts = keys + capacity
    sums = counts + 2 * capacity + 1
    _sum_histograms(header, histograms, counts, sums, num_knots + 1, BINS, HISTOGRAMS)
    tl.debug_barrier()
    num_summed = tl.atomic_add(header + NUM_SUMMED, 1, sem="acq_rel")
    if num_summed == tl.num_programs(0) - 1:
        # Where histograms were: they have been read.
        numbers = histograms.to(tl.pointer_type(tl.float64), bitcast=True)
        distances, lengths = numbers + 2 * capacity, numbers + 4 * capacity
        bends, jumps = numbers + 6 * capacity, numbers + 8 * capacity
        prefix = numbers + 10 * capacity
        if DELTA > 0:
            _mark_ramps(floats, places, num_positives, capacity, BLOCK)
            tl.debug_barrier()
        _scores_above_knots(
            floats, places, counts, sums, numbers, distances, lengths, num_places, capacity, DELTA,
            BLOCK,
        )  # fmt: skip
        if DELTA > 0:
            _sum_positives(part(floats, POSITIVES, capacity), prefix, num_positives, DELTA, BLOCK)
        tl.debug_barrier()
        loss = _weigh_positives(
            header, floats, places, numbers, distances, bends, jumps, prefix, num_positives,
            capacity, WEIGHTS, DELTA, BLOCK,
        )  # fmt: skip
        is_wrong = (tl.load(header + NUM_WRONG) > 0) | (tl.load(header + NUM_WRONG_LABELS) > 0)
        is_wrong = is_wrong | (tl.load(header + NUM_POSITIVES) > capacity)
        poison = tl.where(is_wrong, float("nan"), 0.0)
        tl.store(floats + POISON, poison)
        tl.store(value, loss.to(tl.float32) + poison)
        tl.debug_barrier()
        _lay_profile(floats, places, lengths, bends, jumps, num_places, capacity, DELTA, BLOCK)


@triton.jit
def _sum_histograms(header, histograms, counts, sums, num_bins, BINS: tl.constexpr,
                    HISTOGRAMS: tl.constexpr):  # fmt: skip
    """counts and sums: (Q + 1,) int64, of all histograms together."""
    num_histograms = tl.load(header + NUM_HISTOGRAMS).to(tl.int32)
    count_shift = tl.load(header + COUNT_SHIFT)
    for start in range(tl.program_id(0) * BINS, num_bins, tl.num_programs(0) * BINS):
        bins = start + tl.arange(0, BINS)
        count = tl.zeros([BINS], tl.int64)
        total = tl.zeros([BINS], tl.int64)
        for first in range(0, num_histograms, HISTOGRAMS):
            number = first + tl.arange(0, HISTOGRAMS)
            is_used = (number[:, None] < num_histograms) & (bins[None, :] < num_bins)
            place = number.to(tl.int64)[:, None] * num_bins + bins[None, :]
            if count_shift > 0:
                entry = tl.load(histograms + place, mask=is_used, other=0)
                lower_bits = (tl.full([], 1, tl.int64) << count_shift) - 1
                total += tl.sum(entry & lower_bits, 0)
                # The sign bit is a bit of the count.
                upper_bits = (tl.full([], 1, tl.int64) << (64 - count_shift)) - 1
                count += tl.sum((entry >> count_shift) & upper_bits, 0)
            else:
                total += tl.sum(tl.load(histograms + 2 * place, mask=is_used, other=0), 0)
                count += tl.sum(tl.load(histograms + 2 * place + 1, mask=is_used, other=0), 0)
        tl.store(counts + bins, count, mask=bins < num_bins)
        tl.store(sums + bins, total, mask=bins < num_bins)


@triton.jit
def _mark_ramps(floats, places, num_positives, capacity, BLOCK: tl.constexpr):
    """Stores, for each place of a knot, whether the scores above it lie in a ramp: 1 or 0."""
    is_open = part(floats, HEIGHTS, capacity)
    for start in range(0, num_positives, BLOCK):
        index = start + tl.arange(0, BLOCK)
        is_used = index < num_positives
        lower = tl.load(places + index, mask=is_used, other=0)
        upper = tl.load(places + capacity + index, mask=is_used, other=0)
        tl.store(is_open + lower, tl.full([BLOCK], 1.0, tl.float32), mask=is_used)
        # Of the knots up to the upper one, `upper - index` open a ramp and `index + 1` close one.
        tl.store(is_open + upper, (upper > 2 * index + 1).to(tl.float32), mask=is_used)


@triton.jit
def _scores_above_knots(
    floats, places, counts, sums, numbers, distances, lengths, num_places, capacity,
    DELTA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """numbers, distances: of the negatives above the knot at each place, from the top down.

    lengths: from the knot at a place to the next; 0 outside of all ramps, where it plays no part.
    """
    knots, is_open = part(floats, KNOTS, capacity), part(floats, HEIGHTS, capacity)
    knot_of = places + 4 * capacity
    carried_number = tl.full([], 0.0, tl.float64)
    carried_distance = tl.full([], 0.0, tl.float64)
    for start in range(0, num_places, BLOCK):
        lane = tl.arange(0, BLOCK)
        place = num_places - 1 - start - lane
        is_used = place >= 0
        has_next = is_used & (place < num_places - 1)
        knot = tl.load(knot_of + place, mask=is_used, other=0)
        next_knot = tl.load(knot_of + place + 1, mask=has_next, other=-1)
        is_last_equal = is_used & (knot != next_knot)  # it has the bin above the knot
        number = tl.load(counts + knot + 1, mask=is_last_equal, other=0).to(tl.float64)
        if DELTA > 0:
            distance = tl.load(sums + knot + 1, mask=is_last_equal, other=0).to(tl.float64)
            low = tl.load(knots + knot, mask=has_next, other=0.0)
            high = tl.load(knots + next_knot, mask=has_next, other=0.0)
            is_inside = tl.load(is_open + place, mask=has_next, other=0.0) > 0
            is_inside = is_inside & (high < float("inf"))
            length = (high.to(tl.float64) - low.to(tl.float64)) * (0.5 / DELTA)
            length = tl.where(is_inside, length, 0.0)
            tl.store(lengths + place, length, mask=is_used)
            number, distance, length = tl.associative_scan(
                (number, distance / OFFSET_UNIT, length), 0, _join_upper
            )
            distance += carried_distance + carried_number * length
            tl.store(distances + place, distance, mask=is_used)
            is_end = is_used & (lane == tl.minimum(BLOCK, num_places - start) - 1)
            carried_distance = tl.sum(tl.where(is_end, distance, 0.0))
        else:
            number = tl.associative_scan(number, 0, _sum)
        number += carried_number
        tl.store(numbers + place, number, mask=is_used)
        carried_number = tl.max(tl.where(is_used, number, 0.0))


@triton.jit
def _sum_positives(positives, prefix, num_positives, DELTA: tl.constexpr, BLOCK: tl.constexpr):
    """prefix: (P + 1,) sums of the positives' distances from the lowest one."""
    first = tl.load(positives).to(tl.float64)
    carried = tl.full([], 0.0, tl.float64)
    tl.store(prefix, carried)
    for start in range(0, num_positives, BLOCK):
        index = start + tl.arange(0, BLOCK)
        is_used = index < num_positives
        score = tl.load(positives + index, mask=is_used, other=0.0).to(tl.float64)
        distance = tl.where(is_used, (score - first) * (0.5 / DELTA), 0.0)
        distance = tl.associative_scan(distance, 0, _sum) + carried
        tl.store(prefix + index + 1, distance, mask=is_used)
        carried = tl.max(distance)


@triton.jit
def _weigh_positives(
    header, floats, places, numbers, distances, bends, jumps, prefix, num_positives, capacity,
    WEIGHTS: tl.constexpr, DELTA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss. Stores the update of the positives, and how much the slope (bends) and the height
    (jumps) of the negatives' update change at each knot."""
    num_negatives = tl.maximum(tl.load(header + NUM_NEGATIVES), 1).to(tl.float64)
    share = 1.0 / tl.maximum(num_positives, 1).to(tl.float64)
    loss = tl.full([], 0.0, tl.float64)
    least = tl.full([], float("inf"), tl.float64)
    for start in range(0, num_positives, BLOCK):
        index = start + tl.arange(0, BLOCK)
        is_used = index < num_positives
        positives_above, negatives_above, lower_excess, upper_excess = _numbers_above(
            index, is_used, floats, places, numbers, distances, prefix, num_positives, capacity,
            DELTA,
        )  # fmt: skip
        rank = tl.where(is_used, positives_above + negatives_above, 1.0)
        if WEIGHTS == "auc":
            error = negatives_above / num_negatives
            weight = tl.zeros_like(error) + 1.0 / num_negatives
        elif WEIGHTS == "ap":
            error = negatives_above / rank
            weight = 1.0 / rank
        else:
            error = tl.where(is_used, negatives_above / rank, float("inf"))
            error = tl.minimum(tl.associative_scan(error, 0, _least), least)
            least = tl.min(error)
            has_above = is_used & (negatives_above > 0)
            weight = tl.where(has_above, error / tl.where(has_above, negatives_above, 1.0), 0.0)
        error = tl.where(is_used, error * share, 0.0)
        weight = weight * share
        loss += tl.sum(error)
        update = part(floats, UPDATE, capacity)
        tl.store(update + index, -error.to(tl.float32), mask=is_used)
        if DELTA > 0:
            lower = tl.load(places + index, mask=is_used, other=0)
            upper = tl.load(places + capacity + index, mask=is_used, other=0)
            tl.store(bends + lower, weight, mask=is_used)
            tl.store(jumps + lower, weight * lower_excess, mask=is_used)
            tl.store(bends + upper, -weight, mask=is_used)
            tl.store(jumps + upper, -weight * upper_excess, mask=is_used)
        else:
            tl.store(jumps + index, weight, mask=is_used)
    return loss


@triton.jit
def _numbers_above(
    index, is_used, floats, places, numbers, distances, prefix, num_positives, capacity,
    DELTA: tl.constexpr,
):  # fmt: skip
    """a_i and b_i of AP_LOSS: how many positives and negatives stand above positive i; and how far
    its knots, rounded to float32, stand above the true ones."""
    num_below = tl.load(places + 2 * capacity + index, mask=is_used, other=0)
    if DELTA > 0:
        positives = part(floats, POSITIVES, capacity)
        first = tl.load(positives).to(tl.float64)
        rounded = tl.load(positives + index, mask=is_used, other=0.0)
        score = rounded.to(tl.float64)
        num_below_upper = tl.load(places + 3 * capacity + index, mask=is_used, other=0)
        inside = tl.load(prefix + num_below_upper, mask=is_used, other=0.0)
        inside -= tl.load(prefix + num_below, mask=is_used, other=0.0)
        num_inside = (num_below_upper - num_below).to(tl.float64)
        inside -= num_inside * ((score - first) * (0.5 / DELTA) - 0.5)
        # The sum has f(0) = 1/2 for i itself, which counts 1.
        positives_above = (num_positives - num_below_upper) + inside + 0.5

        lower = tl.load(places + index, mask=is_used, other=0)
        upper = tl.load(places + capacity + index, mask=is_used, other=0)
        highest = knot_at(rounded, DELTA).to(tl.float64)
        lower_excess = knot_at(rounded, -DELTA).to(tl.float64) - (score - DELTA)
        upper_excess = tl.where(highest < float("inf"), highest - (score + DELTA), 0.0)
        lower_excess *= 0.5 / DELTA
        upper_excess *= 0.5 / DELTA
        number = tl.load(numbers + lower, mask=is_used, other=0.0)
        beyond = tl.load(numbers + upper, mask=is_used, other=0.0)
        above = tl.load(distances + lower, mask=is_used, other=0.0) + number * lower_excess
        above -= tl.load(distances + upper, mask=is_used, other=0.0) + beyond * upper_excess
        negatives_above = tl.minimum(tl.maximum(above, beyond), number)
    else:
        positives_above = (num_positives - num_below).to(tl.float64)
        negatives_above = tl.load(numbers + index, mask=is_used, other=0.0)
        lower_excess = tl.zeros_like(negatives_above)
        upper_excess = tl.zeros_like(negatives_above)
    return positives_above, negatives_above, lower_excess, upper_excess


@triton.jit
def _lay_profile(
    floats, places, lengths, bends, jumps, num_places, capacity, DELTA: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores heights and slopes: bin b has heights[b] + slopes[b] * (score - its lower knot)."""
    heights, slopes = part(floats, HEIGHTS, capacity), part(floats, SLOPES, capacity)
    knot_of = places + 4 * capacity
    carried_slope = tl.full([], 0.0, tl.float64)
    carried_height = tl.full([], 0.0, tl.float64)
    for start in range(0, num_places, BLOCK):
        lane = tl.arange(0, BLOCK)
        place = start + lane
        is_used = place < num_places
        is_end = is_used & (lane == tl.minimum(BLOCK, num_places - start) - 1)
        knot = tl.load(knot_of + place, mask=is_used, other=0)
        next_knot = tl.load(knot_of + place + 1, mask=place < num_places - 1, other=-1)
        is_last_equal = is_used & (knot != next_knot)
        height = tl.load(jumps + place, mask=is_used, other=0.0)
        if DELTA > 0:
            slope = tl.load(bends + place, mask=is_used, other=0.0)
            before = tl.load(lengths + place - 1, mask=is_used & (place > 0), other=0.0)
            slope, height, before = tl.associative_scan((slope, height, before), 0, _join_lower)
            height += carried_height + carried_slope * before
            slope += carried_slope
            carried_slope = tl.sum(tl.where(is_end, slope, 0.0))
            has_length = tl.load(lengths + place, mask=is_used, other=0.0) > 0
            slope = tl.where(has_length, slope * (0.5 / DELTA), 0.0)
            tl.store(slopes + knot + 1, slope.to(tl.float32), mask=is_last_equal)
        else:
            height = tl.associative_scan(height, 0, _sum) + carried_height
        carried_height = tl.sum(tl.where(is_end, height, 0.0))
        tl.store(heights + knot + 1, height.to(tl.float32), mask=is_last_equal)
