"""AP-loss and its kin in Triton: the passes over the scores, for CUDA tensors.

The algorithm is that of kernels.py, steps.py and weights.py, which are its judges in the tests. It
is cut into few launches, and nothing in it waits for the host: the number of positives is known to
the device alone, so that arrays are as large as it may become (`capacity`).

    find_positives    reads the labels: an unordered list of the positives
    lay_knots         orders the positives and their knots, and lays a grid over them
                      (ap_triton_knots.py)
    bin_negatives     reads the scores: counts and sums of the negatives between knots
    weigh             O(P): errors, weights, the loss (ap_triton_middle.py)
    write_update      reads the scores, writes the gradient

Words that are easily mixed up:

    knot     where the step of some positive begins or ends to rise: p - delta, p + delta. For the
             Heaviside step, whose DELTA is 0 here, a positive has one knot, its score. Knots are
             counted once where several positives have the same; in half precision most have.
    place    in the ascending order of the knots of all positives, equal ones side by side: one or
             two places for each positive, and at each of them a knot.
    bin      between two knots: bin b has the scores that are at or above b knots and below the
             others. Bin 0, below all knots, has no part in the loss: "trivial negatives".
    cell     of a uniform grid over the scores. A table says how many knots lie in lower cells, so
             that the bin of a score is found by a look-up and a search among the knots in its cell.

Every result is the same bit by bit in every run, whatever order the device works in: what many
programs add up is integers (counts; offsets in fixed point), and the rest has a fixed order.

Scores are compared as float32, exactly: a knot p - delta, which is float64, is rounded up to the
next float32 t, and a float32 score x is at or above the knot if and only if x >= t.

Arrays that several kernels share. They are few because each costs the host an allocation and an
argument of the launches; so many have parts.

    header      (HEADER_SIZE,) int64: the scalars named below
    floats      float32: four scalars, then parts of `capacity` numbers; see `part`
    indices     int32: parts of `capacity` numbers, named below
    keys        int64: (capacity,) the positives, unordered; then the counts of the bins and the
                sums of their offsets, (2 capacity + 1,) each
    table       (cells,) int32: how many knots lie in cells of the grid before this one
    histograms  (room,) int64: one after the other, of all bins each; later memory for `weigh`
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankdet.losses.labels import IGNORED

# header: what the device knows and the host does not; zeros at first
NUM_POSITIVES = tl.constexpr(0)  # all that were found, even if there is no room for them
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

# floats, its scalars: how scores are mapped to cells, and what makes a wrong result NaN
LOWEST = tl.constexpr(0)  # the lowest knot; infinite if there is none
CELLS_PER_SCORE = tl.constexpr(1)  # how many cells of the grid there are to a unit of score
POISON = tl.constexpr(2)  # 0, or NaN: added to all that counts
OFFSET_UNIT = tl.constexpr(3)  # what the step's width is in the fixed point of offsets
# floats, its parts
POSITIVES = tl.constexpr(0)  # (capacity,) scores in ascending order
UPDATE = tl.constexpr(1)  # (capacity,) of the positives, in the same order
KNOTS = tl.constexpr(2)  # (2 capacity,) ascending, all different
HEIGHTS = tl.constexpr(4)  # (2 capacity + 1,) what the update of a negative is at its bin's knot
SLOPES = tl.constexpr(6)  # (2 capacity + 1,) how it grows from there with the score
NUM_PARTS = 8
# `weigh` writes heights and slopes at its end. Until then their memory has something else:
OWN_KNOTS = tl.constexpr(4)  # in `lay_knots`: (capacity,) the lower knots of the positives, in the
# order of these; then (capacity,) the upper ones
IS_IN_RAMP = tl.constexpr(4)  # in `weigh`: (2 capacity,) for each place 1 or 0
KNOTS_AT_PLACES = tl.constexpr(6)  # in `lay_knots`: (2 capacity,) ascending, equal ones too

# indices, its parts; the first four in the order of the positives
LOWER_PLACES = tl.constexpr(0)  # (capacity,) the place of a positive's lower, or only, knot
UPPER_PLACES = tl.constexpr(1)  # (capacity,) that of its upper knot
NUM_BELOW_LOWER = tl.constexpr(2)  # (capacity,) how many positives are below its lower knot
NUM_BELOW_UPPER = tl.constexpr(3)  # (capacity,) and how many below its upper one
KNOT_AT_PLACE = tl.constexpr(4)  # (2 capacity,) which knot is at a place
NUM_INDEX_PARTS = 6

# keys: the parts named above, 1 + 2 + 2, and what the last two have more
NUM_KEY_PARTS, NUM_MORE_KEYS = 5, 2

IGNORED_LABEL = tl.constexpr(IGNORED)
HOME_TRIALS = tl.constexpr(4)  # tiles in which a program looks for a home: `bin_negatives_kernel`
# Bits of an offset in fixed point, whose unit is the step's width. The least is as fine as float32
# scores are at a distance of one width from 0; the most is what int32 holds.
LEAST_OFFSET_BITS = tl.constexpr(24)
MOST_OFFSET_BITS = tl.constexpr(30)


@triton.jit
def part(floats, number, capacity):
    """Where a part of `floats` begins.

    Each is 4 longer than its name says: two of them then hold 2 capacity + 1, and begin as aligned
    as before. The 4 at the start of all are the scalars.
    """
    return floats + 4 + number * (capacity + 4)


@triton.jit
def num_positives_of(header, capacity):
    """int32: the positives that are in the arrays. If there were more, the result becomes NaN."""
    return tl.minimum(tl.load(header + NUM_POSITIVES), capacity).to(tl.int32)


@triton.jit
def to_order(score):
    """int32 in the order of float32 scores; neighbouring floats give neighbouring integers."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # -0 becomes 0
    # Of negative floats the larger bits are the lower score: all but the sign are turned over.
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def from_order(order):
    """The score whose `to_order` this is."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


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
        exists = candidate <= num_values
        value = tl.load(values + candidate - 1, mask=exists, other=0.0)
        is_below = (value <= limit) if INCLUSIVE else (value < limit)
        found = tl.where(exists & is_below, candidate, found)
    return found


@triton.jit
def cell_of(score, lowest, cells_per_score, NUM_CELLS: tl.constexpr):
    """int32 cell of a score: a monotone function of it, rounding included.

    So a knot in a lower cell is below the score, and one in a higher cell above it.
    """
    height = (score - lowest) * cells_per_score
    return tl.minimum(tl.maximum(height, 0.0), NUM_CELLS - 1.0).to(tl.int32)


@triton.jit
def find_bin(score, is_active, knots, table, lowest, cells_per_score, num_knots, num_halvings,
              NUM_CELLS: tl.constexpr):  # fmt: skip
    """int32 bins of the active scores: how many knots are not above them.

    The table gives the knots in lower cells; a binary search adds those of its own cell, of which
    there are fewer than 2 ** num_halvings. A step too far ends at a knot above the score.
    """
    cell = cell_of(score, lowest, cells_per_score, NUM_CELLS)
    bins = tl.load(table + cell, mask=is_active, other=0)
    for halving in range(num_halvings):
        candidate = bins + (1 << (num_halvings - 1 - halving))
        exists = is_active & (candidate <= num_knots)
        knot = tl.load(knots + candidate - 1, mask=exists, other=float("inf"))
        bins = tl.where(exists & (knot <= score), candidate, bins)
    return bins


@triton.jit
def find_positives_kernel(
    logits, labels, mask, header, keys, num_rows, capacity,
    NUM_CLASSES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores the positives in keys, in any order, as far as there is room.

    A key has the score in its upper half and the row in the lower, so that no two are equal and
    their order is that of the scores. Also counts all positives, wrong labels and wrong scores.
    """
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    label = tl.load(labels + rows, mask=rows < num_rows, other=-1).to(tl.int64)
    is_wrong = (label < IGNORED_LABEL) | (label >= NUM_CLASSES)
    is_positive = (label >= 0) & (label < NUM_CLASSES)
    score_index = rows * NUM_CLASSES + label
    if mask is not None:
        is_positive = is_positive & (tl.load(mask + score_index, mask=is_positive, other=0) != 0)
    num_wrong_labels = tl.sum(is_wrong.to(tl.int32))
    if num_wrong_labels > 0:
        tl.atomic_add(header + NUM_WRONG_LABELS, num_wrong_labels.to(tl.int64), sem="relaxed")
    num_positives = tl.sum(is_positive.to(tl.int32))
    if num_positives > 0:
        score = tl.load(logits + score_index, mask=is_positive, other=0.0).to(tl.float32)
        is_finite = tl.abs(score) < float("inf")
        num_wrong = tl.sum((is_positive & (is_finite == 0)).to(tl.int32))
        if num_wrong > 0:
            tl.atomic_add(header + NUM_WRONG, num_wrong.to(tl.int64), sem="relaxed")
        order = to_order(tl.where(is_finite, score, 0.0)).to(tl.int64)
        # The program takes as many slots of the list as it needs.
        first = tl.atomic_add(header + NUM_POSITIVES, num_positives.to(tl.int64), sem="relaxed")
        slot = first + tl.cumsum(is_positive.to(tl.int32), 0) - 1
        tl.store(keys + slot, (order << 32) | rows, mask=is_positive & (slot < capacity))


@triton.jit
def load_tile(logits, labels, mask, tile, num_scores, NUM_CLASSES: tl.constexpr,
               GROUP: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    """A tile of scores, (TILE / GROUP, GROUP) float32, -inf for what is no negative.

    The scores of a group are neighbours in a row, so that they need its label only once. GROUP
    divides NUM_CLASSES. Returns score_index (int64), score, is_negative, is_positive.
    """
    GROUPS: tl.constexpr = TILE // GROUP
    PER_ROW: tl.constexpr = NUM_CLASSES // GROUP
    # 64 bits for the start of the tile alone: within it, 32 are enough, and divide faster.
    first = tl.full([], GROUPS, tl.int64) * tile
    group = tl.arange(0, GROUPS)
    first_row = first // PER_ROW
    from_first_row = (first - first_row * PER_ROW).to(tl.int32) + group
    row = from_first_row // PER_ROW
    exists = (first + group) * GROUP < num_scores
    label = tl.load(labels + first_row + row, mask=exists, other=IGNORED_LABEL)
    label = label.to(tl.int32)[:, None]  # one that does not fit is wrong, and makes all NaN
    lane = tl.arange(0, GROUP)[None, :]
    score_index = first * GROUP + (group[:, None] * GROUP + lane)
    # Scores are read once in a pass: they should not drive knots and table out of the cache.
    score = tl.load(
        logits + score_index, mask=exists[:, None], other=0.0, eviction_policy="evict_first"
    )
    is_counted = label != IGNORED_LABEL
    is_own = label == (from_first_row - row * PER_ROW)[:, None] * GROUP + lane
    if mask is not None:
        is_counted = is_counted & (tl.load(mask + score_index, mask=exists[:, None], other=0) != 0)
    is_negative = is_counted & (is_own == 0)
    score = tl.where(is_negative, score.to(tl.float32), float("-inf"))
    return score_index, score, is_negative, is_counted & is_own


@triton.jit
def _entry(score, knot, is_used, offset_unit, count_unit, DELTA: tl.constexpr):
    """What a score adds to its bin's entry: its offset from the knot, and, above it, a count."""
    if DELTA > 0:
        # Outside of all ramps the offset can be any number and does not matter.
        offset = tl.minimum((score - knot) * (0.5 / DELTA), 1.0) * offset_unit + 0.5
        return tl.where(is_used, offset, 0.0).to(tl.int32).to(tl.int64) + count_unit
    else:
        return tl.zeros_like(score).to(tl.int64) + count_unit


@triton.jit
def bin_negatives_kernel(
    logits, labels, mask, header, floats, table, histograms, num_scores, capacity,
    DELTA: tl.constexpr, NUM_CLASSES: tl.constexpr, COUNTS_ALL: tl.constexpr,
    NUM_CELLS: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Adds the negatives to histograms over the bins; `_plan_histograms` says what an entry is.

    Atomic additions to one address wait for each other. So programs share a histogram only if
    there are more programs than histograms; and each has a home, a bin whose scores it adds up in
    registers, lane by lane: at initialisation nearly all negatives lie in one bin.
    """
    pid, num_programs = tl.program_id(0), tl.num_programs(0)
    num_knots = tl.load(header + NUM_KNOTS).to(tl.int32)
    knots = part(floats, KNOTS, capacity)
    lowest, cells_per_score = tl.load(floats + LOWEST), tl.load(floats + CELLS_PER_SCORE)
    num_halvings = num_halvings_for(tl.load(header + MOST_IN_CELL).to(tl.int32))
    # A shift of 0: an entry is two numbers, offsets and count, and the count is added by itself.
    count_shift = tl.load(header + COUNT_SHIFT)
    count_unit = tl.where(count_shift > 0, tl.full([], 1, tl.int64) << count_shift, 0)
    stride = tl.where(count_shift > 0, 1, 2)
    offset_unit = tl.load(floats + OFFSET_UNIT)
    histogram = histograms + (pid % tl.load(header + NUM_HISTOGRAMS)) * (num_knots + 1) * stride

    home = tl.full([], 0, tl.int32)  # no bin yet: bin 0 has no entry
    home_start = tl.full([], float("inf"), tl.float32)
    home_end = tl.full([], float("inf"), tl.float32)
    home_entry = tl.zeros([TILE // GROUP, GROUP], tl.int64)
    home_count = tl.zeros([TILE // GROUP, GROUP], tl.int32)
    num_negatives = tl.zeros([TILE // GROUP, GROUP], tl.int32)
    is_wrong = tl.zeros([TILE // GROUP, GROUP], tl.int1)
    num_tiles = (num_scores - 1) // TILE + 1  # num_scores + TILE may not fit into 32 bits
    for tile in range(pid, num_tiles, num_programs):
        _, score, is_negative, _ = load_tile(
            logits, labels, mask, tile, num_scores, NUM_CLASSES, GROUP, TILE
        )
        is_wrong = is_wrong | (is_negative & ((tl.abs(score) < float("inf")) == 0))
        if COUNTS_ALL:
            num_negatives += is_negative.to(tl.int32)
        is_active = (score >= lowest) & (score < float("inf"))
        if home > 0:
            is_home = (score >= home_start) & (score < home_end)
            entry = _entry(score, home_start, is_home, offset_unit, count_unit, DELTA)
            home_entry += tl.where(is_home, entry, 0)
            home_count += is_home.to(tl.int32)
            is_active = is_active & (is_home == 0)
        if tl.max(is_active.to(tl.int32)) > 0:
            bins = find_bin(
                score, is_active, knots, table, lowest, cells_per_score, num_knots, num_halvings,
                NUM_CELLS,
            )  # fmt: skip
            knot = tl.load(knots + bins - 1, mask=is_active, other=0.0)
            entry = _entry(score, knot, is_active, offset_unit, count_unit, DELTA)
            tl.atomic_add(histogram + bins * stride, entry, mask=is_active, sem="relaxed")
            if count_shift == 0:
                tl.atomic_add(histogram + bins * 2 + 1, 1, mask=is_active, sem="relaxed")
            if (home == 0) & (tile < HOME_TRIALS * num_programs):
                mean = mean_bin(bins, is_active)
                # A bin is worth being home if a quarter of a tile lies in it.
                if tl.sum((is_active & (bins == mean)).to(tl.int32)) * 4 > TILE:
                    home = mean
                    home_start = tl.load(knots + home - 1)
                    if home < num_knots:  # else it has no end
                        home_end = tl.load(knots + home)
    if home > 0:
        tl.atomic_add(histogram + home * stride, tl.sum(home_entry), sem="relaxed")
        if count_shift == 0:
            count = tl.sum(home_count).to(tl.int64)
            tl.atomic_add(histogram + home * 2 + 1, count, sem="relaxed")
    num_wrong = tl.sum(is_wrong.to(tl.int32))
    if num_wrong > 0:
        tl.atomic_add(header + NUM_WRONG, num_wrong.to(tl.int64), sem="relaxed")
    if COUNTS_ALL:
        total = tl.sum(num_negatives.to(tl.int64))
        tl.atomic_add(header + NUM_NEGATIVES, total, sem="relaxed")


@triton.jit
def mean_bin(bins, is_active):
    """int32: where most scores lie in one bin, it is that one, and the mean costs two sums."""
    num_active = tl.sum(is_active.to(tl.int64))
    return (tl.sum(tl.where(is_active, bins, 0).to(tl.int64)) // num_active).to(tl.int32)


@triton.jit
def write_update_kernel(
    scale, logits, labels, mask, header, floats, table, gradient, num_scores, capacity,
    DELTA: tl.constexpr, NUM_CLASSES: tl.constexpr, NUM_CELLS: tl.constexpr, GROUP: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Writes the gradient of a tile of scores; see `rankdet.losses.kernels.write_update`."""
    lowest = tl.load(floats + LOWEST)
    score_index, score, is_negative, is_positive = load_tile(
        logits, labels, mask, tl.program_id(0), num_scores, NUM_CLASSES, GROUP, TILE
    )
    is_active = score >= lowest
    written = tl.zeros([TILE // GROUP, GROUP], tl.float32)
    # One reduction for two questions: 0 where all scores are trivial, 2 or 3 with a positive.
    kinds = tl.max(is_active.to(tl.int32) | (is_positive.to(tl.int32) * 2))
    if kinds > 0:
        knots, heights = part(floats, KNOTS, capacity), part(floats, HEIGHTS, capacity)
        bins = find_bin(
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
        score = tl.load(logits + score_index, mask=is_positive, other=0.0).to(tl.float32)
        num_positives = num_positives_of(header, capacity)
        positives = part(floats, POSITIVES, capacity)
        index = num_below(positives, num_positives, num_halvings_for(num_positives), score, False)
        # Always, unless it is infinite or there was no room for it: then all becomes NaN.
        is_found = is_positive & (index < num_positives)
        update = tl.load(part(floats, UPDATE, capacity) + index, mask=is_found, other=0.0)
        written = tl.where(is_positive, update, written)
    written = written * tl.load(scale).to(tl.float32) + tl.load(floats + POISON)
    written = tl.where(is_negative | is_positive, written, 0.0).to(gradient.dtype.element_ty)
    tl.store(gradient + score_index, written, mask=score_index < num_scores)
