"""What the positives alone determine, in one launch: their order, the knots, the grid, the table.

ap_triton.py says what knots, places, bins and cells are, and what the arrays have. All programs
order the positives, each a few of them. The rest is a chain of short steps over some thousand
knots, which is no work for many programs: the one that is last to finish does it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankdet.losses.ap_triton import (
    CELLS_PER_SCORE,
    COUNT_SHIFT,
    KNOT_AT_PLACE,
    KNOTS,
    KNOTS_AT_PLACES,
    LEAST_OFFSET_BITS,
    LOWER_PLACES,
    LOWEST,
    MOST_IN_CELL,
    MOST_OFFSET_BITS,
    NUM_BELOW_LOWER,
    NUM_BELOW_UPPER,
    NUM_HISTOGRAMS,
    NUM_KNOTS,
    NUM_ORDERED,
    OFFSET_UNIT,
    OWN_KNOTS,
    POSITIVES,
    UPPER_PLACES,
    cell_of,
    from_order,
    num_below,
    num_halvings_for,
    num_positives_of,
    part,
    to_order,
)


@triton.jit
def round_up(value):
    """The lowest float32 that is not below a float64."""
    nearest = value.to(tl.float32)
    above = from_order(to_order(nearest) + 1)
    return tl.where(nearest.to(tl.float64) < value, above, nearest)


@triton.jit
def knot_at(score, SHIFT: tl.constexpr):
    """The knot that a positive has at score + SHIFT.

    Rounded up to float32, it is the lowest score that is not below the true knot, so that all
    float32 scores lie on the side of it on which they lie of the true one. What rounding moved it
    by is made good in ap_triton_middle.py.
    """
    if SHIFT == 0:
        return score
    else:
        return round_up(score.to(tl.float64) + SHIFT)


@triton.jit
def _plan_histograms(num_places, room, most_histograms, num_programs, scores_per_program):
    """How many histograms there are, and where the count begins in their entries.

    There is room for as many as fit with the most knots that there can be, one for each place. An
    entry has a count in its upper bits and a sum of offsets in the lower ones, so that one atomic
    addition does both. Where many programs share a histogram, because there are many knots, and 64
    bits are too few, an entry has a second number for the count: then the shift is 0.
    """
    num_histograms = tl.minimum(tl.maximum(room // (num_places + 1), 1), most_histograms)
    most = ((num_programs + num_histograms - 1) // num_histograms) * scores_per_program
    count_bits = 1
    while (most >> count_bits) > 0:
        count_bits += 1
    # The sum of `most` offsets has as many bits more than an offset as `most` has.
    offset_bits = tl.minimum(64 - 2 * count_bits, MOST_OFFSET_BITS)
    count_shift = offset_bits + count_bits
    if offset_bits < LEAST_OFFSET_BITS:
        num_histograms = tl.minimum(tl.maximum(room // (2 * (num_places + 1)), 1), most_histograms)
        count_shift = 0
        offset_bits = tl.zeros_like(offset_bits) + MOST_OFFSET_BITS
    return num_histograms, count_shift, offset_bits


@triton.jit
def lay_knots_kernel(
    header, keys, floats, indices, table, histograms, capacity, room, most_histograms, num_programs,
    scores_per_program, DELTA: tl.constexpr, IS_SORTED: tl.constexpr, NUM_CELLS: tl.constexpr,
    BLOCK: tl.constexpr, OTHERS: tl.constexpr, SEARCHED: tl.constexpr,
):  # fmt: skip
    """Stores positives, knots, their places, grid and table, and what the histograms are like.

    All programs order the positives, unless they are sorted, and set to zero the table and the
    histograms as far as they may be used; the one that is last to finish does the rest.
    num_programs and scores_per_program are those of `bin_negatives_kernel`.
    """
    pid, num_workers = tl.program_id(0), tl.num_programs(0)
    num_positives = num_positives_of(header, capacity)
    num_places = num_positives * (2 if DELTA > 0 else 1)
    for start in range(pid * BLOCK, num_positives, num_workers * BLOCK):
        _order_positives(
            keys, floats, start, num_positives, capacity, DELTA, IS_SORTED, BLOCK, OTHERS
        )
    num_histograms, count_shift, offset_bits = _plan_histograms(
        num_places.to(tl.int64), room, most_histograms, num_programs, scores_per_program
    )
    size = num_histograms * (num_places + 1) * tl.where(count_shift == 0, 2, 1)
    for start in range(pid * SEARCHED, NUM_CELLS, num_workers * SEARCHED):
        cell = start + tl.arange(0, SEARCHED)
        tl.store(table + cell, tl.zeros([SEARCHED], tl.int32), mask=cell < NUM_CELLS)
    for cleared in range(pid * SEARCHED, size, num_workers * SEARCHED):
        entry_index = cleared + tl.arange(0, SEARCHED)
        tl.store(histograms + entry_index, tl.zeros([SEARCHED], tl.int64), mask=entry_index < size)
    # All threads of the program have stored, then it says so. Who is told that all others have
    # said so sees what they stored: that is what the order of memory "acq_rel" is for.
    tl.debug_barrier()
    num_ordered = tl.atomic_add(header + NUM_ORDERED, 1, sem="acq_rel")
    if num_ordered == num_workers - 1:
        tl.store(header + NUM_HISTOGRAMS, num_histograms)
        tl.store(header + COUNT_SHIFT, count_shift)
        tl.store(floats + OFFSET_UNIT, (1 << offset_bits).to(tl.float32))
        # A step reads what other threads of the program stored in the step before: barriers.
        _place_knots(floats, indices, num_positives, capacity, DELTA, SEARCHED)
        tl.debug_barrier()
        num_knots = drop_equal_knots(floats, indices, num_places, capacity, SEARCHED)
        tl.store(header + NUM_KNOTS, num_knots.to(tl.int64))
        tl.debug_barrier()
        most_in_cell = lay_grid(floats, table, num_knots, capacity, NUM_CELLS, SEARCHED)
        tl.store(header + MOST_IN_CELL, most_in_cell.to(tl.int64))


@triton.jit
def _load_keys(keys, start, num_positives, SIZE: tl.constexpr):
    """A run of keys, above all others where there is none."""
    index = start + tl.arange(0, SIZE)
    return tl.load(keys + index, mask=index < num_positives, other=0x7F7FFFFFFFFFFFFF)


@triton.jit
def _order_positives(
    keys, floats, start, num_positives, capacity, DELTA: tl.constexpr, IS_SORTED: tl.constexpr,
    BLOCK: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """Stores a block of positives, and their knots, where they stand in ascending order.

    The rank of a positive is the number of smaller keys. To count them is O(P^2), and the fastest
    way on a GPU as long as P is some thousands.
    """
    index = start + tl.arange(0, BLOCK)
    is_used = index < num_positives
    key = _load_keys(keys, start, num_positives, BLOCK)
    rank = index
    if not IS_SORTED:
        is_smaller = tl.zeros([BLOCK, OTHERS], tl.int32)
        for first in range(0, num_positives, OTHERS):
            other = _load_keys(keys, first, num_positives, OTHERS)
            is_smaller += (other[None, :] < key[:, None]).to(tl.int32)
        rank = tl.sum(is_smaller, 1)
    score = from_order((key >> 32).to(tl.int32))
    tl.store(part(floats, POSITIVES, capacity) + rank, score, mask=is_used)
    lower_knots = part(floats, OWN_KNOTS, capacity)
    tl.store(lower_knots + rank, knot_at(score, -DELTA), mask=is_used)
    tl.store(lower_knots + capacity + rank, knot_at(score, DELTA), mask=is_used)


@triton.jit
def _place_knots(
    floats, indices, num_positives, capacity, DELTA: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Stores all knots, lower and upper, at their places, and these; and the numbers of positives
    below them.

    Lower knots are in order, as the positives are, and upper ones too. So the place of a knot is
    its index among its own kind, and how many of the other kind come before it.
    """
    positives, lower_knots = part(floats, POSITIVES, capacity), part(floats, OWN_KNOTS, capacity)
    upper_knots, knots = lower_knots + capacity, part(floats, KNOTS_AT_PLACES, capacity)
    num_halvings = num_halvings_for(num_positives)
    for start in range(0, num_positives, BLOCK):
        index = start + tl.arange(0, BLOCK)
        is_used = index < num_positives
        lower = tl.load(lower_knots + index, mask=is_used, other=0.0)
        below = num_below(positives, num_positives, num_halvings, lower, False)
        tl.store(indices + NUM_BELOW_LOWER * capacity + index, below, mask=is_used)
        place = index
        if DELTA > 0:
            # Of equal knots the lower ones of positives come first: no score lies between them.
            place += num_below(upper_knots, num_positives, num_halvings, lower, False)
            upper = tl.load(upper_knots + index, mask=is_used, other=0.0)
            below = num_below(positives, num_positives, num_halvings, upper, False)
            tl.store(indices + NUM_BELOW_UPPER * capacity + index, below, mask=is_used)
            upper_place = index + num_below(lower_knots, num_positives, num_halvings, upper, True)
            tl.store(indices + UPPER_PLACES * capacity + index, upper_place, mask=is_used)
            tl.store(knots + upper_place, upper, mask=is_used)
        tl.store(indices + LOWER_PLACES * capacity + index, place, mask=is_used)
        tl.store(knots + place, lower, mask=is_used)


@triton.jit
def drop_equal_knots(floats, indices, num_places, capacity, BLOCK: tl.constexpr):
    """The number of different knots. Stores them, and which of them is at each place.

    No score lies between equal knots, but the search within a cell would have to pass all of them:
    in bfloat16 it took 8 or 9 steps (benchmarks/NOTES.md, version 5).
    """
    all_knots, knots = part(floats, KNOTS_AT_PLACES, capacity), part(floats, KNOTS, capacity)
    num_carried = tl.full([], 0, tl.int32)
    for start in range(0, num_places, BLOCK):
        place = start + tl.arange(0, BLOCK)
        is_used = place < num_places
        knot = tl.load(all_knots + place, mask=is_used, other=0.0)
        before = tl.load(all_knots + place - 1, mask=is_used & (place > 0), other=float("nan"))
        num_different = tl.cumsum((is_used & (knot != before)).to(tl.int32), 0) + num_carried
        # Equal ones store the same number at the same address.
        tl.store(knots + num_different - 1, knot, mask=is_used)
        tl.store(indices + KNOT_AT_PLACE * capacity + place, num_different - 1, mask=is_used)
        num_carried = tl.max(num_different)
    return num_carried


@triton.jit
def lay_grid(floats, table, num_knots, capacity, NUM_CELLS: tl.constexpr, BLOCK: tl.constexpr):
    """The number of knots in the fullest cell. Stores the lowest knot, how many cells there are to
    a unit of score, and the table."""
    knots = part(floats, KNOTS, capacity)
    lowest = float("inf")
    cells_per_score = 0.0  # all in one cell: serves always, since the search goes on in the cell
    if num_knots > 0:
        lowest = tl.load(knots)
        span = tl.load(knots + num_knots - 1) - lowest
        if (span > 0) & (span < float("inf")):
            cells_per_score = (NUM_CELLS - 1.0) / span
            if cells_per_score == float("inf"):
                cells_per_score = 0.0
    tl.store(floats + LOWEST, lowest)
    tl.store(floats + CELLS_PER_SCORE, cells_per_score)
    # The table is first how many knots lie in each cell, then how many lie in cells before it.
    for start in range(0, num_knots, BLOCK):
        index = start + tl.arange(0, BLOCK)
        is_used = index < num_knots
        knot = tl.load(knots + index, mask=is_used, other=0.0)
        cell = cell_of(knot, lowest, cells_per_score, NUM_CELLS)
        tl.atomic_add(table + cell, 1, mask=is_used, sem="relaxed")
    tl.debug_barrier()
    most = tl.full([], 0, tl.int32)
    num_before = tl.full([], 0, tl.int32)
    for start in range(0, NUM_CELLS, BLOCK):
        cell = start + tl.arange(0, BLOCK)
        # An atomic load: what atomic additions have done may not be in the nearest cache.
        num_inside = tl.atomic_add(table + cell, 0, mask=cell < NUM_CELLS, sem="relaxed")
        num_inside = tl.where(cell < NUM_CELLS, num_inside, 0)
        most = tl.maximum(most, tl.max(num_inside))
        up_to = tl.cumsum(num_inside, 0) + num_before
        tl.store(table + cell, up_to - num_inside, mask=cell < NUM_CELLS)
        num_before = tl.max(up_to)
    return most
