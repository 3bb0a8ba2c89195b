"""The O(P) work between the two passes over the scores, in one launch: errors, weights, the loss.

It is steps.py and weights.py once more. ap_triton.py says what knots, places and bins are, and what
the arrays have. Lengths and distances are measured in widths of the step, 2 delta.

From the top down, for the knot at each place:

    counts_above      how many negatives are at or above it
    distances_above   how far above it they are, all together

Positive i has b_i negatives above it: the distances above its lower knot less those above its
upper one, because a negative is worth its distance from the lower knot, but 1 at most.

From the bottom up, at each place, what is added to the update of the negatives above:

    bends             to its slope: the weight of a positive at its lower knot, the weight less at
                      its upper one
    jumps             to its height: all of the weight for the Heaviside step, else next to nothing

Knots are rounded up to float32. By how much is known ("excess"), and made good: in b_i, and by the
jumps. Counts, distances and errors are sums of terms of one sign that run from the side where they
are small, in float64: a small error next to a large batch keeps its digits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankdet.losses.ap_triton import (
    COUNT_SHIFT,
    HEIGHTS,
    IS_IN_RAMP,
    KNOT_AT_PLACE,
    KNOTS,
    LOWER_PLACES,
    NUM_BELOW_LOWER,
    NUM_BELOW_UPPER,
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
    UPPER_PLACES,
    num_positives_of,
    part,
)
from rankdet.losses.ap_triton_knots import knot_at

# Numbers for each positive that `weigh_kernel` puts where histograms were; and one more.
NUM_SCRATCH_PARTS = 11


@triton.jit
def _join_upper(upper_count, upper_distance, upper_length, count, distance, length):
    """Two runs of bins as one, the upper run first: how many scores, their distance from the run's
    lower end in all, and its length. Scores of the upper run are farther by the lower's length."""
    return (
        upper_count + count,
        upper_distance + upper_count * length + distance,
        upper_length + length,
    )


@triton.jit
def _join_lower(lower_slope, lower_height, lower_length, slope, height, length):
    """Two runs of places as one, the lower run first: the slope after its last knot, the height
    there, and its length from the knot before its first one."""
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
    header, keys, floats, indices, histograms, value, capacity, WEIGHTS: tl.constexpr,
    DELTA: tl.constexpr, BINS: tl.constexpr, HISTOGRAMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores the loss (value, a float32 scalar), the update of the positives, heights and slopes.

    All programs add up the histograms; the one that is last to finish does the rest, as in
    `lay_knots_kernel`. WEIGHTS is a name in weights.py, which has the same formulas.
    """
    num_positives = num_positives_of(header, capacity)
    num_places = num_positives * (2 if DELTA > 0 else 1)
    num_knots = tl.load(header + NUM_KNOTS).to(tl.int32)
    counts = keys + capacity  # of the negatives in the bins; sums: of their offsets
    sums = counts + 2 * capacity + 1
    _sum_histograms(header, histograms, counts, sums, num_knots + 1, BINS, HISTOGRAMS)
    tl.debug_barrier()
    num_summed = tl.atomic_add(header + NUM_SUMMED, 1, sem="acq_rel")
    if num_summed == tl.num_programs(0) - 1:
        # Histograms have been read, and their memory is free: five arrays of (2 capacity,), one
        # number for each place, and `prefix`, (capacity + 1,).
        counts_above = histograms.to(tl.pointer_type(tl.float64), bitcast=True)
        distances_above, lengths = counts_above + 2 * capacity, counts_above + 4 * capacity
        bends, jumps = counts_above + 6 * capacity, counts_above + 8 * capacity
        prefix = counts_above + 10 * capacity
        if DELTA > 0:
            _mark_ramps(floats, indices, num_positives, capacity, BLOCK)
            tl.debug_barrier()
        _negatives_above_knots(
            floats, indices, counts, sums, counts_above, distances_above, lengths, num_places,
            capacity, DELTA, BLOCK,
        )  # fmt: skip
        if DELTA > 0:
            _sum_positives(part(floats, POSITIVES, capacity), prefix, num_positives, DELTA, BLOCK)
        tl.debug_barrier()
        loss = _weigh_positives(
            header, floats, indices, counts_above, distances_above, bends, jumps, prefix,
            num_positives, capacity, WEIGHTS, DELTA, BLOCK,
        )  # fmt: skip
        is_wrong = (tl.load(header + NUM_WRONG) > 0) | (tl.load(header + NUM_WRONG_LABELS) > 0)
        is_wrong = is_wrong | (tl.load(header + NUM_POSITIVES) > capacity)
        poison = tl.where(is_wrong, float("nan"), 0.0)
        tl.store(floats + POISON, poison)
        tl.store(value, loss.to(tl.float32) + poison)
        tl.debug_barrier()
        _lay_profile(floats, indices, lengths, bends, jumps, num_places, capacity, DELTA, BLOCK)


@triton.jit
def _sum_histograms(header, histograms, counts, sums, num_bins, BINS: tl.constexpr,
                    HISTOGRAMS: tl.constexpr):  # fmt: skip
    """Stores the counts of the bins, and the sums of their offsets, of all histograms together."""
    num_histograms = tl.load(header + NUM_HISTOGRAMS).to(tl.int32)
    count_shift = tl.load(header + COUNT_SHIFT)
    for start in range(tl.program_id(0) * BINS, num_bins, tl.num_programs(0) * BINS):
        bins = start + tl.arange(0, BINS)
        count, total = add_histograms(
            histograms, bins, num_bins, num_histograms, count_shift, BINS, HISTOGRAMS
        )
        tl.store(counts + bins, count, mask=bins < num_bins)
        tl.store(sums + bins, total, mask=bins < num_bins)


@triton.jit
def add_histograms(histograms, bins, num_bins, num_histograms, count_shift, BINS: tl.constexpr,
                   HISTOGRAMS: tl.constexpr):  # fmt: skip
    """int64 counts of some bins, and sums of their offsets, of all histograms together."""
    count = tl.zeros([BINS], tl.int64)
    total = tl.zeros([BINS], tl.int64)
    for first in range(0, num_histograms, HISTOGRAMS):
        histogram = first + tl.arange(0, HISTOGRAMS)
        is_used = (histogram[:, None] < num_histograms) & (bins[None, :] < num_bins)
        entry_index = histogram.to(tl.int64)[:, None] * num_bins + bins[None, :]
        if count_shift > 0:
            entry = tl.load(histograms + entry_index, mask=is_used, other=0)
            lower_bits = (tl.full([], 1, tl.int64) << count_shift) - 1
            total += tl.sum(entry & lower_bits, 0)
            # The sign bit is a bit of the count.
            upper_bits = (tl.full([], 1, tl.int64) << (64 - count_shift)) - 1
            count += tl.sum((entry >> count_shift) & upper_bits, 0)
        else:
            total += tl.sum(tl.load(histograms + 2 * entry_index, mask=is_used, other=0), 0)
            count += tl.sum(tl.load(histograms + 2 * entry_index + 1, mask=is_used, other=0), 0)
    return count, total


@triton.jit
def _mark_ramps(floats, indices, num_positives, capacity, BLOCK: tl.constexpr):
    """Stores for each place whether the scores between it and the next lie in a ramp: 1 or 0."""
    is_in_ramp = part(floats, IS_IN_RAMP, capacity)
    for start in range(0, num_positives, BLOCK):
        index = start + tl.arange(0, BLOCK)
        is_used = index < num_positives
        lower = tl.load(indices + LOWER_PLACES * capacity + index, mask=is_used, other=0)
        upper = tl.load(indices + UPPER_PLACES * capacity + index, mask=is_used, other=0)
        tl.store(is_in_ramp + lower, tl.full([BLOCK], 1.0, tl.float32), mask=is_used)
        # Of the knots up to the upper one, `upper - index` open a ramp and `index + 1` close one.
        tl.store(is_in_ramp + upper, (upper > 2 * index + 1).to(tl.float32), mask=is_used)


@triton.jit
def _negatives_above_knots(
    floats, indices, counts, sums, counts_above, distances_above, lengths, num_places, capacity,
    DELTA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores counts_above and distances_above, from the top down, and lengths.

    A length is from the knot at a place to that at the next; 0 outside of all ramps, where it plays
    no part and can be huge. `carried` is what all blocks of places before this one add up to.
    """
    knots, is_in_ramp = part(floats, KNOTS, capacity), part(floats, IS_IN_RAMP, capacity)
    knot_at_place = indices + KNOT_AT_PLACE * capacity
    offset_unit = tl.load(floats + OFFSET_UNIT).to(tl.float64)
    carried_count = tl.full([], 0.0, tl.float64)
    carried_distance = tl.full([], 0.0, tl.float64)
    for start in range(0, num_places, BLOCK):
        lane = tl.arange(0, BLOCK)
        place = num_places - 1 - start - lane
        is_used = place >= 0
        has_next = is_used & (place < num_places - 1)
        knot = tl.load(knot_at_place + place, mask=is_used, other=0)
        next_knot = tl.load(knot_at_place + place + 1, mask=has_next, other=-1)
        is_last_equal = is_used & (knot != next_knot)  # of equal knots, one has the bin above
        count = tl.load(counts + knot + 1, mask=is_last_equal, other=0).to(tl.float64)
        if DELTA > 0:
            distance = tl.load(sums + knot + 1, mask=is_last_equal, other=0).to(tl.float64)
            low = tl.load(knots + knot, mask=has_next, other=0.0)
            high = tl.load(knots + next_knot, mask=has_next, other=0.0)
            is_inside = tl.load(is_in_ramp + place, mask=has_next, other=0.0) > 0
            is_inside = is_inside & (high < float("inf"))
            length = (high.to(tl.float64) - low.to(tl.float64)) * (0.5 / DELTA)
            length = tl.where(is_inside, length, 0.0)
            tl.store(lengths + place, length, mask=is_used)
            count, distance, length = tl.associative_scan(
                (count, distance / offset_unit, length), 0, _join_upper
            )
            distance += carried_distance + carried_count * length
            tl.store(distances_above + place, distance, mask=is_used)
            is_end = is_used & (lane == tl.minimum(BLOCK, num_places - start) - 1)
            carried_distance = tl.sum(tl.where(is_end, distance, 0.0))
        else:
            count = tl.associative_scan(count, 0, _sum)
        count += carried_count
        tl.store(counts_above + place, count, mask=is_used)
        carried_count = tl.max(tl.where(is_used, count, 0.0))


@triton.jit
def _sum_positives(positives, prefix, num_positives, DELTA: tl.constexpr, BLOCK: tl.constexpr):
    """Stores in prefix[i], for i from 0 to P, how far the lowest i positives are above the first
    of them, all together."""
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
    header, floats, indices, counts_above, distances_above, bends, jumps, prefix, num_positives,
    capacity, WEIGHTS: tl.constexpr, DELTA: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss. Stores the update of the positives, and how much the slope (bends) and the height
    (jumps) of the negatives' update change at each place."""
    num_negatives = tl.maximum(tl.load(header + NUM_NEGATIVES), 1).to(tl.float64)
    share = 1.0 / tl.maximum(num_positives, 1).to(tl.float64)
    loss = tl.full([], 0.0, tl.float64)
    least = tl.full([], float("inf"), tl.float64)
    for start in range(0, num_positives, BLOCK):
        index = start + tl.arange(0, BLOCK)
        is_used = index < num_positives
        positives_above, negatives_above, lower_excess, upper_excess = _scores_above(
            index, is_used, floats, indices, counts_above, distances_above, prefix, num_positives,
            capacity, DELTA,
        )  # fmt: skip
        rank = tl.where(is_used, positives_above + negatives_above, 1.0)
        if WEIGHTS == "auc":
            error = negatives_above / num_negatives
            weight = tl.zeros_like(error) + 1.0 / num_negatives
        elif WEIGHTS == "ap":
            error = negatives_above / rank
            weight = 1.0 / rank
        else:  # interpolated: the least error of this positive and of those below it
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
            lower = tl.load(indices + LOWER_PLACES * capacity + index, mask=is_used, other=0)
            upper = tl.load(indices + UPPER_PLACES * capacity + index, mask=is_used, other=0)
            tl.store(bends + lower, weight, mask=is_used)
            tl.store(jumps + lower, weight * lower_excess, mask=is_used)
            tl.store(bends + upper, -weight, mask=is_used)
            tl.store(jumps + upper, -weight * upper_excess, mask=is_used)
        else:
            tl.store(jumps + index, weight, mask=is_used)
    return loss


@triton.jit
def _scores_above(
    index, is_used, floats, indices, counts_above, distances_above, prefix, num_positives, capacity,
    DELTA: tl.constexpr,
):  # fmt: skip
    """a_i and b_i, that is how many positives and negatives stand above positive i, as the step
    counts them; and how far its knots, rounded up to float32, are above the true ones."""
    num_below = tl.load(indices + NUM_BELOW_LOWER * capacity + index, mask=is_used, other=0)
    if DELTA > 0:
        positives = part(floats, POSITIVES, capacity)
        first = tl.load(positives).to(tl.float64)
        rounded = tl.load(positives + index, mask=is_used, other=0.0)
        score = rounded.to(tl.float64)
        nums_below_upper = indices + NUM_BELOW_UPPER * capacity
        num_below_upper = tl.load(nums_below_upper + index, mask=is_used, other=0)
        # Positives between its knots count by their distance from the lower one.
        inside = tl.load(prefix + num_below_upper, mask=is_used, other=0.0)
        inside -= tl.load(prefix + num_below, mask=is_used, other=0.0)
        num_inside = (num_below_upper - num_below).to(tl.float64)
        inside -= num_inside * ((score - first) * (0.5 / DELTA) - 0.5)
        # The sum has f(0) = 1/2 for i itself, which counts 1.
        positives_above = (num_positives - num_below_upper) + inside + 0.5

        lower = tl.load(indices + LOWER_PLACES * capacity + index, mask=is_used, other=0)
        upper = tl.load(indices + UPPER_PLACES * capacity + index, mask=is_used, other=0)
        highest = knot_at(rounded, DELTA).to(tl.float64)  # infinite at float32's upper end
        lower_excess = knot_at(rounded, -DELTA).to(tl.float64) - (score - DELTA)
        upper_excess = tl.where(highest < float("inf"), highest - (score + DELTA), 0.0)
        lower_excess *= 0.5 / DELTA
        upper_excess *= 0.5 / DELTA
        count = tl.load(counts_above + lower, mask=is_used, other=0.0)
        beyond = tl.load(counts_above + upper, mask=is_used, other=0.0)
        above = tl.load(distances_above + lower, mask=is_used, other=0.0) + count * lower_excess
        above -= tl.load(distances_above + upper, mask=is_used, other=0.0) + beyond * upper_excess
        # Whatever was rounded: those above the upper knot count 1, those above the lower 1 at most.
        negatives_above = tl.minimum(tl.maximum(above, beyond), count)
    else:
        positives_above = (num_positives - num_below).to(tl.float64)
        negatives_above = tl.load(counts_above + index, mask=is_used, other=0.0)
        lower_excess = tl.zeros_like(negatives_above)
        upper_excess = tl.zeros_like(negatives_above)
    return positives_above, negatives_above, lower_excess, upper_excess


@triton.jit
def _lay_profile(
    floats, indices, lengths, bends, jumps, num_places, capacity, DELTA: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores heights and slopes: bin b has heights[b] + slopes[b] * (score - its lower knot).

    A slope is 0 where no ramp is open: there weights that were added and taken away leave a rest.
    """
    heights, slopes = part(floats, HEIGHTS, capacity), part(floats, SLOPES, capacity)
    knot_at_place = indices + KNOT_AT_PLACE * capacity
    carried_slope = tl.full([], 0.0, tl.float64)
    carried_height = tl.full([], 0.0, tl.float64)
    for start in range(0, num_places, BLOCK):
        lane = tl.arange(0, BLOCK)
        place = start + lane
        is_used = place < num_places
        is_end = is_used & (lane == tl.minimum(BLOCK, num_places - start) - 1)
        knot = tl.load(knot_at_place + place, mask=is_used, other=0)
        next_knot = tl.load(knot_at_place + place + 1, mask=place < num_places - 1, other=-1)
        is_last_equal = is_used & (knot != next_knot)  # the sum up to it has all equal knots
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
