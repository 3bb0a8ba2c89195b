"""AP-loss and its kin in Triton: the passes over the scores, for CUDA tensors.

The algorithm is that of kernels.py, steps.py and weights.py, which are its judges in the tests. It
is cut into few launches, and nothing in it waits for the host: the number of positives is known to
the device alone, so that arrays are as large as it may become (`capacity`).

    find_positives    reads the labels: an unordered list of the positives
    lay_knots         orders the positives and their knots, and lays a grid over them
    bin_negatives     reads the scores: counts and sums of the negatives between knots
    weigh             O(P): errors, weights, the loss (ap_triton_middle.py)
    write_update      reads the scores, writes the gradient

Every result is the same bit by bit in every run, whatever order the device works in: what many
programs add up is integers (counts; offsets in fixed point), and the rest has a fixed order.

Scores are compared as float32, exactly: a knot p - delta, which is float64, is rounded up to the
next float32 t, and a float32 score x is at or above the knot if and only if x >= t.

DELTA is 0 for the Heaviside step: then a positive has one knot, its score, not two. Knots of
different positives can be equal, in half precision most are. So there are places of knots, one or
two for each positive, in order; and fewer knots, all different.

Arrays that several kernels share:

    header      (HEADER_SIZE,) int64: the scalars named below
    floats      float32, parts of it by `_part`: see there
    table       (cells,) int32: how many knots lie in cells of the grid before this one
    keys        (capacity,) int64, the unordered positives; then counts and sums, (2 capacity + 1,)
    places      int32: (capacity,) each: the place of a positive's lower knot and of its upper one,
                how many positives are below either; then (2 capacity,) the knot at each place
    histograms  (room,) int64; later memory for `weigh`
"""

from __future__ import annotations

import triton
import triton.language as tl

# header: what the device knows and the host does not
NUM_POSITIVES = tl.constexpr(0)
NUM_WRONG = tl.constexpr(1)  # counted scores that are NaN or infinite: 0, or some number
NUM_WRONG_LABELS = tl.constexpr(2)
NUM_NEGATIVES = tl.constexpr(3)  # counted for AUC only
MOST_IN_CELL = tl.constexpr(4)  # knots in a cell of the grid, at most
NUM_HISTOGRAMS = tl.constexpr(5)
COUNT_SHIFT = tl.constexpr(6)  # where the count begins in a histogram's entry; 0: it has its own
NUM_ORDERED = tl.constexpr(7)  # programs of `lay_knots` that have done their part
NUM_SUMMED = tl.constexpr(8)  # programs of `weigh`, likewise
NUM_KNOTS = tl.constexpr(9)
HEADER_SIZE = 16
# the first floats: how scores are mapped to cells, and what makes a wrong result NaN
LOWEST = tl.constexpr(0)
CELLS_PER_SCORE = tl.constexpr(1)
POISON = tl.constexpr(2)
# parts of floats, after these
POSITIVES = tl.constexpr(0)  # (capacity,) scores in ascending order
UPDATE = tl.constexpr(1)  # (capacity,) of the positives
KNOTS = tl.constexpr(2)  # (2 capacity,) ascending, all different
HEIGHTS = tl.constexpr(4)  # (2 capacity + 1,) for each bin: what the update is at its lower end.
# Before `weigh`: first the lower knots of the positives, (capacity,), and the upper ones; then, for
# each place of a knot, whether the scores above it lie in a ramp.
SLOPES = tl.constexpr(6)  # (2 capacity + 1,); before `weigh`: the knots at all places
NUM_PARTS = 8

IGNORED_LABEL = tl.constexpr(-2)
HOME_TRIALS = tl.constexpr(4)  # tiles of each program; see `bin_negatives_kernel`
# Bits of an offset in fixed point, whose unit is the step's width: it is as fine as float32 scores
# are at a distance of one width from 0.
OFFSET_BITS = tl.constexpr(24)
OFFSET_UNIT = tl.constexpr(float(1 << 24))


@triton.jit
def part(floats, number, capacity):
    """Where a part of `floats` begins; each is 4 longer than its name says."""
    return floats + 4 + number * (capacity + 4)


@triton.jit
def _to_order(score):
    """int32 in the order of float32 scores; neighbouring floats give neighbouring integers."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _from_order(order):
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _round_up(value):
    """The lowest float32 that is not below a float64."""
    nearest = value.to(tl.float32)
    above = _from_order(_to_order(nearest) + 1)
    return tl.where(nearest.to(tl.float64) < value, above, nearest)


@triton.jit
def _cell(score, lowest, cells_per_score, NUM_CELLS: tl.constexpr):
    """int32 cell of a score: a monotone function of it, rounding included."""
    place = (score - lowest) * cells_per_score
    return tl.minimum(tl.maximum(place, 0.0), NUM_CELLS - 1.0).to(tl.int32)


@triton.jit
def _find_bin(score, is_active, knots, table, lowest, cells_per_score, num_knots, num_halvings,
              NUM_CELLS: tl.constexpr):  # fmt: skip
    """int32: how many knots are not above the score, for scores that are above the first."""
    cell = _cell(score, lowest, cells_per_score, NUM_CELLS)
    bins = tl.load(table + cell, mask=is_active, other=0)
    for halving in range(num_halvings):
        candidate = bins + (1 << (num_halvings - 1 - halving))
        may = is_active & (candidate <= num_knots)
        knot = tl.load(knots + candidate - 1, mask=may, other=float("inf"))
        bins = tl.where(may & (knot <= score), candidate, bins)
    return bins


@triton.jit
def find_positives_kernel(
    logits, labels, mask, header, keys, num_rows, capacity,
    NUM_CLASSES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """keys: the score in the upper half, the row in the lower; in any order.

    Also counts the positives, however many there is room for, wrong labels and wrong scores.
    """
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(labels + rows, mask=rows < num_rows, other=-1).to(tl.int64)
    is_wrong = (label < IGNORED_LABEL) | (label >= NUM_CLASSES)
    is_positive = (label >= 0) & (label < NUM_CLASSES)
    place = rows * NUM_CLASSES + label
    if mask is not None:
        is_positive = is_positive & (tl.load(mask + place, mask=is_positive, other=0) != 0)
    num_wrong_labels = tl.sum(is_wrong.to(tl.int32))
    if num_wrong_labels > 0:
        tl.atomic_add(header + NUM_WRONG_LABELS, num_wrong_labels.to(tl.int64), sem="relaxed")
    num_positives = tl.sum(is_positive.to(tl.int32))
    if num_positives > 0:
        score = tl.load(logits + place, mask=is_positive, other=0.0).to(tl.float32)
        is_finite = tl.abs(score) < float("inf")
        num_wrong = tl.sum((is_positive & (is_finite == 0)).to(tl.int32))
        if num_wrong > 0:
            tl.atomic_add(header + NUM_WRONG, num_wrong.to(tl.int64), sem="relaxed")
        order = _to_order(tl.where(is_finite, score, 0.0)).to(tl.int64)
        first = tl.atomic_add(header + NUM_POSITIVES, num_positives.to(tl.int64), sem="relaxed")
        slot = first + tl.cumsum(is_positive.to(tl.int32), 0) - 1
        tl.store(keys + slot, (order << 32) | rows, mask=is_positive & (slot < capacity))


@triton.jit
def num_positives_of(header, capacity):
    return tl.minimum(tl.load(header + NUM_POSITIVES), capacity).to(tl.int32)


@triton.jit
def _load_keys(keys, start, num_positives, SIZE: tl.constexpr):
    """A run of keys, above all others where there is none."""
    index = start + tl.arange(0, SIZE)
    return tl.load(keys + index, mask=index < num_positives, other=0x7F7FFFFFFFFFFFFF)


@triton.jit
def knot_at(score, SHIFT: tl.constexpr):
    """The knot that a positive has at score + SHIFT, rounded up to float32."""
    if SHIFT == 0:
        return score
    else:
        return _round_up(score.to(tl.float64) + SHIFT)


@triton.jit
def _plan_histograms(num_knots, room, most_histograms, num_programs, scores_per_program):
    """How many histograms there are, and where the count begins in their entries.

    An entry has a count in its upper bits and a sum of offsets in the lower ones, so that one
    atomic addition does both. Where many programs share a histogram, because there are many knots,
    and 64 bits are too few, an entry has a second number for the count: then the shift is 0.
    """
    num_histograms = tl.minimum(tl.maximum(room // (num_knots + 1), 1), most_histograms)
    most = ((num_programs + num_histograms - 1) // num_histograms) * scores_per_program
    count_bits = 1
    while (most >> count_bits) > 0:
        count_bits += 1
    count_shift = OFFSET_BITS + count_bits
    if count_shift + count_bits > 64:
        num_histograms = tl.minimum(tl.maximum(room // (2 * (num_knots + 1)), 1), most_histograms)
        count_shift = 0
    return num_histograms, count_shift


@triton.jit
def lay_knots_kernel(
    header, keys, floats, places, table, histograms, capacity, room, most_histograms, num_programs,
    scores_per_program, DELTA: tl.constexpr, IS_SORTED: tl.constexpr, NUM_CELLS: tl.constexpr,
    BLOCK: tl.constexpr, OTHERS: tl.constexpr, SEARCHED: tl.constexpr,
):  # fmt: skip
    """Everything that the positives alone determine: their order, the knots, the grid, the table.

    All programs order the positives, unless they are sorted, and set to zero the table and the
    histograms as far as they may be used; the one that is last to finish does the rest.
    """
    pid, num_workers = tl.program_id(0), tl.num_programs(0)
    num_positives = num_positives_of(header, capacity)
    num_places = num_positives * (2 if DELTA > 0 else 1)
    for start in range(pid * BLOCK, num_positives, num_workers * BLOCK):
        _order_positives(
            keys, floats, start, num_positives, capacity, DELTA, IS_SORTED, BLOCK, OTHERS
        )
    num_histograms, count_shift = _plan_histograms(
        num_places.to(tl.int64), room, most_histograms, num_programs, scores_per_program
    )
    size = num_histograms * (num_places + 1) * tl.where(count_shift == 0, 2, 1)
    for start in range(pid * SEARCHED, NUM_CELLS, num_workers * SEARCHED):
        cell = start + tl.arange(0, SEARCHED)
        tl.store(table + cell, tl.zeros([SEARCHED], tl.int32), mask=cell < NUM_CELLS)
    for cleared in range(pid * SEARCHED, size, num_workers * SEARCHED):
        index = cleared + tl.arange(0, SEARCHED)
        tl.store(histograms + index, tl.zeros([SEARCHED], tl.int64), mask=index < size)
    tl.debug_barrier()
    num_ordered = tl.atomic_add(header + NUM_ORDERED, 1, sem="acq_rel")
    if num_ordered == num_workers - 1:
        tl.store(header + NUM_HISTOGRAMS, num_histograms)
        tl.store(header + COUNT_SHIFT, count_shift)
        _place_knots(floats, places, num_positives, capacity, DELTA, SEARCHED)
        tl.debug_barrier()
        num_knots = _drop_equal_knots(floats, places, num_places, capacity, SEARCHED)
        tl.store(header + NUM_KNOTS, num_knots.to(tl.int64))
        tl.debug_barrier()
        most_in_cell = _lay_grid(floats, table, num_knots, capacity, NUM_CELLS, SEARCHED)
        tl.store(header + MOST_IN_CELL, most_in_cell.to(tl.int64))


@triton.jit
def _order_positives(
    keys, floats, start, num_positives, capacity, DELTA: tl.constexpr, IS_SORTED: tl.constexpr,
    BLOCK: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """Stores a block of positives, and of their knots, in ascending order.

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
    score = _from_order((key >> 32).to(tl.int32))
    tl.store(part(floats, POSITIVES, capacity) + rank, score, mask=is_used)
    lower = part(floats, HEIGHTS, capacity)
    tl.store(lower + rank, knot_at(score, -DELTA), mask=is_used)
    tl.store(lower + capacity + rank, knot_at(score, DELTA), mask=is_used)


@triton.jit
def num_halvings_for(number):
    """How many steps of a binary search find a place among so many values."""
    num_halvings = 0
    while (1 << num_halvings) <= number:
        num_halvings += 1
    return num_halvings


@triton.jit
def num_below(values, num_values, num_halvings, limit, INCLUSIVE: tl.constexpr):
    """int32: how many of the ascending values are below the limit, or up to it."""
    found = tl.zeros_like(limit).to(tl.int32)
    for halving in range(num_halvings):
        candidate = found + (1 << (num_halvings - 1 - halving))
        may = candidate <= num_values
        value = tl.load(values + candidate - 1, mask=may, other=0.0)
        is_below = (value <= limit) if INCLUSIVE else (value < limit)
        found = tl.where(may & is_below, candidate, found)
    return found


@triton.jit
def _place_knots(floats, places, num_positives, capacity, DELTA: tl.constexpr, BLOCK: tl.constexpr):
    """Stores all knots, lower and upper, in one ascending order, and their places in it."""
    positives, lower_knots = part(floats, POSITIVES, capacity), part(floats, HEIGHTS, capacity)
    upper_knots, knots = lower_knots + capacity, part(floats, SLOPES, capacity)
    num_halvings = num_halvings_for(num_positives)
    for start in range(0, num_positives, BLOCK):
        index = start + tl.arange(0, BLOCK)
        is_used = index < num_positives
        lower = tl.load(lower_knots + index, mask=is_used, other=0.0)
        below = num_below(positives, num_positives, num_halvings, lower, False)
        tl.store(places + 2 * capacity + index, below, mask=is_used)
        place = index
        if DELTA > 0:
            # Of equal knots the lower ones of positives come first: no score lies between them.
            place += num_below(upper_knots, num_positives, num_halvings, lower, False)
            upper = tl.load(upper_knots + index, mask=is_used, other=0.0)
            below = num_below(positives, num_positives, num_halvings, upper, False)
            tl.store(places + 3 * capacity + index, below, mask=is_used)
            upper_place = index + num_below(lower_knots, num_positives, num_halvings, upper, True)
            tl.store(places + capacity + index, upper_place, mask=is_used)
            tl.store(knots + upper_place, upper, mask=is_used)
        tl.store(places + index, place, mask=is_used)
        tl.store(knots + place, lower, mask=is_used)


@triton.jit
def _drop_equal_knots(floats, places, num_places, capacity, BLOCK: tl.constexpr):
    """The number of different knots. Stores them, and which of them stands at each place."""
    all_knots, knots = part(floats, SLOPES, capacity), part(floats, KNOTS, capacity)
    carried = tl.full([], 0, tl.int32)
    for start in range(0, num_places, BLOCK):
        place = start + tl.arange(0, BLOCK)
        is_used = place < num_places
        knot = tl.load(all_knots + place, mask=is_used, other=0.0)
        before = tl.load(all_knots + place - 1, mask=is_used & (place > 0), other=float("nan"))
        number = tl.cumsum((is_used & (knot != before)).to(tl.int32), 0) + carried
        tl.store(knots + number - 1, knot, mask=is_used)
        tl.store(places + 4 * capacity + place, number - 1, mask=is_used)
        carried = tl.max(number)
    return carried


@triton.jit
def _lay_grid(floats, table, num_knots, capacity, NUM_CELLS: tl.constexpr, BLOCK: tl.constexpr):
    """The number of knots in the fullest cell. Stores the lowest knot, how many cells there are to
    a unit of score, and the table."""
    knots = part(floats, KNOTS, capacity)
    lowest = float("inf")
    cells_per_score = 0.0  # serves always, since the search goes on in the cell
    if num_knots > 0:
        lowest = tl.load(knots)
        span = tl.load(knots + num_knots - 1) - lowest
        if (span > 0) & (span < float("inf")):
            cells_per_score = (NUM_CELLS - 1.0) / span
            if cells_per_score == float("inf"):
                cells_per_score = 0.0
    tl.store(floats + LOWEST, lowest)
    tl.store(floats + CELLS_PER_SCORE, cells_per_score)
    for start in range(0, num_knots, BLOCK):
        index = start + tl.arange(0, BLOCK)
        is_used = index < num_knots
        knot = tl.load(knots + index, mask=is_used, other=0.0)
        cell = _cell(knot, lowest, cells_per_score, NUM_CELLS)
        tl.atomic_add(table + cell, 1, mask=is_used, sem="relaxed")
    tl.debug_barrier()
    most = tl.full([], 0, tl.int32)
    num_before = tl.full([], 0, tl.int32)
    for start in range(0, NUM_CELLS, BLOCK):
        cell = start + tl.arange(0, BLOCK)
        # An atomic load: what atomic additions have done may not be in the nearest cache.
        number = tl.atomic_add(table + cell, 0, mask=cell < NUM_CELLS, sem="relaxed")
        number = tl.where(cell < NUM_CELLS, number, 0)
        most = tl.maximum(most, tl.max(number))
        up_to = tl.cumsum(number, 0) + num_before
        tl.store(table + cell, up_to - number, mask=cell < NUM_CELLS)
        num_before = tl.max(up_to)
    return most


@triton.jit
def _load_tile(logits, labels, mask, tile, num_scores, NUM_CLASSES: tl.constexpr,
               GROUP: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """A tile of scores, (TILE / GROUP, GROUP) float32, -inf for what is no negative.

    The scores of a group are neighbours in a row, so that they need its label only once. GROUP
    divides NUM_CLASSES. Returns offsets (int64), scores, is_negative, is_positive.
    """
    GROUPS: tl.constexpr = TILE // GROUP
    PER_ROW: tl.constexpr = NUM_CLASSES // GROUP
    first = tl.full([], GROUPS, tl.int64) * tile
    group = tl.arange(0, GROUPS)
    first_row = first // PER_ROW
    place = (first - first_row * PER_ROW).to(tl.int32) + group  # from the first row's start on
    row = place // PER_ROW
    is_there = ((first + group) * GROUP < num_scores)[:, None]
    label = tl.load(labels + first_row + row, mask=(first + group) * GROUP < num_scores, other=-2)
    label = label.to(tl.int32)[:, None]
    lane = tl.arange(0, GROUP)[None, :]
    offsets = first * GROUP + (group[:, None] * GROUP + lane)
    score = tl.load(logits + offsets, mask=is_there, other=0.0, eviction_policy="evict_first")
    is_counted = label != IGNORED_LABEL
    is_own = label == (place - row * PER_ROW)[:, None] * GROUP + lane
    if mask is not None:
        is_counted = is_counted & (tl.load(mask + offsets, mask=is_there, other=0) != 0)
    is_negative = is_counted & (is_own == 0)
    score = tl.where(is_negative, score.to(tl.float32), float("-inf"))
    return offsets, score, is_negative, is_counted & is_own


@triton.jit
def _entry(score, knot, is_used, one, DELTA: tl.constexpr):
    """What a score adds to its bin of a histogram: an offset from the knot, and a count."""
    if DELTA > 0:
        # Outside of all ramps the offset can be any number and does not matter.
        offset = tl.minimum((score - knot) * (0.5 / DELTA), 1.0) * OFFSET_UNIT
        return tl.where(is_used, offset, 0.0).to(tl.int32).to(tl.int64) + one
    else:
        return tl.zeros_like(score).to(tl.int64) + one


@triton.jit
def bin_negatives_kernel(
    logits, labels, mask, header, floats, table, histograms, num_scores, capacity,
    DELTA: tl.constexpr, NUM_CLASSES: tl.constexpr, COUNTS_ALL: tl.constexpr,
    NUM_CELLS: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Adds the negatives to histograms over the bins between knots; see `_plan_histograms`.

    Atomic additions to one place wait for each other. So programs share a histogram only if there
    are more programs than histograms; and each has a home, a bin whose scores it adds up by itself:
    at initialisation nearly all negatives lie in one bin.
    """
    pid, num_programs = tl.program_id(0), tl.num_programs(0)
    num_knots = tl.load(header + NUM_KNOTS).to(tl.int32)
    knots = part(floats, KNOTS, capacity)
    lowest, cells_per_score = tl.load(floats + LOWEST), tl.load(floats + CELLS_PER_SCORE)
    num_halvings = num_halvings_for(tl.load(header + MOST_IN_CELL).to(tl.int32))
    count_shift = tl.load(header + COUNT_SHIFT)
    one = tl.where(count_shift > 0, tl.full([], 1, tl.int64) << count_shift, 0)
    stride = tl.where(count_shift > 0, 1, 2)
    histogram = histograms + (pid % tl.load(header + NUM_HISTOGRAMS)) * (num_knots + 1) * stride

    home = tl.full([], 0, tl.int32)
    home_start = tl.full([], float("inf"), tl.float32)
    home_end = tl.full([], float("inf"), tl.float32)
    home_entry = tl.zeros([TILE // GROUP, GROUP], tl.int64)
    home_count = tl.zeros([TILE // GROUP, GROUP], tl.int32)
    num_negatives = tl.zeros([TILE // GROUP, GROUP], tl.int32)
    is_wrong = tl.zeros([TILE // GROUP, GROUP], tl.int1)
    for tile in range(pid, tl.cdiv(num_scores, TILE), num_programs):
        _, score, is_negative, _ = _load_tile(
            logits, labels, mask, tile, num_scores, NUM_CLASSES, GROUP, TILE
        )
        is_wrong = is_wrong | (is_negative & ((tl.abs(score) < float("inf")) == 0))
        if COUNTS_ALL:
            num_negatives += is_negative.to(tl.int32)
        is_active = (score >= lowest) & (score < float("inf"))
        if home > 0:
            is_home = (score >= home_start) & (score < home_end)
            home_entry += tl.where(is_home, _entry(score, home_start, is_home, one, DELTA), 0)
            home_count += is_home.to(tl.int32)
            is_active = is_active & (is_home == 0)
        if tl.max(is_active.to(tl.int32)) > 0:
            bins = _find_bin(
                score, is_active, knots, table, lowest, cells_per_score, num_knots, num_halvings,
                NUM_CELLS,
            )  # fmt: skip
            knot = tl.load(knots + bins - 1, mask=is_active, other=0.0)
            entry = _entry(score, knot, is_active, one, DELTA)
            tl.atomic_add(histogram + bins * stride, entry, mask=is_active, sem="relaxed")
            if count_shift == 0:
                tl.atomic_add(histogram + bins * 2 + 1, 1, mask=is_active, sem="relaxed")
            if (home == 0) & (tile < HOME_TRIALS * num_programs):
                # A bin is worth being home if many scores lie in it, and then it is the mean bin.
                number = tl.sum(is_active.to(tl.int64))
                mean = (tl.sum(tl.where(is_active, bins, 0).to(tl.int64)) // number).to(tl.int32)
                if tl.sum((is_active & (bins == mean)).to(tl.int32)) * 4 > TILE:
                    home = mean
                    home_start = tl.load(knots + home - 1)
                    if home < num_knots:
                        home_end = tl.load(knots + home)
    if home > 0:
        tl.atomic_add(histogram + home * stride, tl.sum(home_entry), sem="relaxed")
        if count_shift == 0:
            number = tl.sum(home_count).to(tl.int64)
            tl.atomic_add(histogram + home * 2 + 1, number, sem="relaxed")
    num_wrong = tl.sum(is_wrong.to(tl.int32))
    if num_wrong > 0:
        tl.atomic_add(header + NUM_WRONG, num_wrong.to(tl.int64), sem="relaxed")
    if COUNTS_ALL:
        number = tl.sum(num_negatives.to(tl.int64))
        tl.atomic_add(header + NUM_NEGATIVES, number, sem="relaxed")


@triton.jit
def write_update_kernel(
    scale, logits, labels, mask, header, floats, table, gradient, num_scores, capacity,
    DELTA: tl.constexpr, NUM_CLASSES: tl.constexpr, NUM_CELLS: tl.constexpr, GROUP: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """The gradient of all scores, a tile; see `rankdet.losses.kernels.write_update`."""
    lowest = tl.load(floats + LOWEST)
    offsets, score, is_negative, is_positive = _load_tile(
        logits, labels, mask, tl.program_id(0), num_scores, NUM_CLASSES, GROUP, TILE
    )
    is_active = score >= lowest
    written = tl.zeros([TILE // GROUP, GROUP], tl.float32)
    kinds = tl.max(is_active.to(tl.int32) | (is_positive.to(tl.int32) * 2))
    if kinds > 0:
        knots, heights = part(floats, KNOTS, capacity), part(floats, HEIGHTS, capacity)
        bins = _find_bin(
            score, is_active, knots, table, lowest, tl.load(floats + CELLS_PER_SCORE),
            tl.load(header + NUM_KNOTS).to(tl.int32),
            num_halvings_for(tl.load(header + MOST_IN_CELL).to(tl.int32)), NUM_CELLS,
        )  # fmt: skip
        written = tl.load(heights + bins, mask=is_active, other=0.0)
        if DELTA > 0:
            knot = tl.load(knots + bins - 1, mask=is_active, other=0.0)
            slope = tl.load(part(floats, SLOPES, capacity) + bins, mask=is_active, other=0.0)
            written += tl.where(is_active, score - knot, 0.0) * slope
    if kinds > 1:  # positives of one score have one update: the first of them will do
        score = tl.load(logits + offsets, mask=is_positive, other=0.0).to(tl.float32)
        num_positives = num_positives_of(header, capacity)
        positives = part(floats, POSITIVES, capacity)
        index = num_below(positives, num_positives, num_halvings_for(num_positives), score, False)
        is_found = is_positive & (index < num_positives)  # always, unless it is NaN
        update = tl.load(part(floats, UPDATE, capacity) + index, mask=is_found, other=0.0)
        written = tl.where(is_positive, update, written)
    written = written * tl.load(scale).to(tl.float32) + tl.load(floats + POISON)
    written = tl.where(is_negative | is_positive, written, 0.0).to(gradient.dtype.element_ty)
    tl.store(gradient + offsets, written, mask=offsets < num_scores)
