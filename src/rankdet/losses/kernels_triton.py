"""`bin_negatives` and `write_update` of kernels.py in Triton, for any ascending knots.

The fused losses of ap_triton.py find their positives and knots by themselves. Here the knots are
given, as they are where several processes rank together, or in the hinge loss on AP. The words are
those of ap_triton.py, and so are the grid, the table, the histograms and the arrays; a place is
that of a given knot, and equal knots are dropped: the bins between them are empty.

    measure      reads the scores: the lowest and the highest negative     if sums are wanted
    lay_bins     in one program: knots in float32, the grid, what each bin needs
    bin          reads the scores: counts and sums of offsets
    gather       adds up the histograms
    write_update of fused_ranking.py, after `lay_bins`

Sums are of offsets in fixed point, so that any order of adding gives the same bits. The offset of a
score is from its bin's base, the lowest score that there can be in the bin. Its unit is a part of
the bin's reach, a power of two: small bins have small units, and a bin without end has the reach of
the scores in it. The sum of the scores is base * count + offsets, in float64.
Nothing here waits for the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from rankdet.losses.ap_triton import (
    CELLS_PER_SCORE,
    HEADER_SIZE,
    HEIGHTS,
    HOME_TRIALS,
    KNOT_AT_PLACE,
    KNOTS,
    KNOTS_AT_PLACES,
    LEAST_OFFSET_BITS,
    LOWEST,
    MOST_IN_CELL,
    MOST_OFFSET_BITS,
    NUM_INDEX_PARTS,
    NUM_KNOTS,
    POISON,
    SLOPES,
    find_bin,
    from_order,
    load_tile,
    mean_bin,
    num_halvings_for,
    part,
    to_order,
)
from rankdet.losses.ap_triton_knots import drop_equal_knots, lay_grid, round_up
from rankdet.losses.ap_triton_middle import add_histograms
from rankdet.losses.fused import divide_up, on_device_of
from rankdet.losses.fused_ranking import (
    DEFAULT_BLOCKS,
    Blocks,
    State,
    group_size,
    num_floats_for,
    num_processors_of,
)
from rankdet.losses.fused_ranking import write_update as write_fused_update

# header, two scalars more. They are larger for more extreme scores, and 0 if there are none.
HIGHEST_SCORE = tl.constexpr(10)
LOWEST_SCORE = tl.constexpr(11)
# floats, what its parts are in `bin_kernel`, each (2 capacity + 1,)
HALF_BASES = HEIGHTS  # half of the bin's base: the difference of two halves is always finite
UNITS = SLOPES  # how many units of fixed point there are to half a score
# indices, a part that is free here
BIN_AT_KNOT = tl.constexpr(0)  # (2 capacity,) the bin above a knot, of those between all places

# Scores that a histogram should have: with fewer, it takes longer to clear than it spares.
_SCORES_PER_HISTOGRAM = 8192
# Of a thread of `bin_kernel`: the compiler would take 92, and fewer programs could run at a time.
_REGISTERS = 64
_LEAST_OFFSET_BITS, _MOST_OFFSET_BITS = LEAST_OFFSET_BITS.value, MOST_OFFSET_BITS.value


@triton.jit
def measure_kernel(
    logits, labels, mask, header, num_scores, NUM_CLASSES: tl.constexpr, GROUP: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Stores in the header the highest and the lowest finite score of the negatives."""
    highest = tl.full([TILE // GROUP, GROUP], float("-inf"), tl.float32)
    lowest = tl.full([TILE // GROUP, GROUP], float("inf"), tl.float32)
    num_tiles = (num_scores - 1) // TILE + 1
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        _, score, _, _ = load_tile(logits, labels, mask, tile, num_scores, NUM_CLASSES, GROUP, TILE)
        is_finite = tl.abs(score) < float("inf")  # what is no negative is infinite
        highest = tl.maximum(highest, tl.where(is_finite, score, float("-inf")))
        lowest = tl.minimum(lowest, tl.where(is_finite, score, float("inf")))
    top, bottom = tl.max(highest), tl.min(lowest)
    if bottom <= top:
        # Integers above 0, in the order of the scores and in the opposite one.
        above = to_order(top).to(tl.int64) + 2147483649
        below = 2147483648 - to_order(bottom).to(tl.int64)
        tl.atomic_max(header + HIGHEST_SCORE, above, sem="relaxed")
        tl.atomic_max(header + LOWEST_SCORE, below, sem="relaxed")


@triton.jit
def _measured(header):
    """The highest and the lowest score; 0 if there are none, and then nobody asks."""
    above, below = tl.load(header + HIGHEST_SCORE), tl.load(header + LOWEST_SCORE)
    highest = from_order((above - 2147483649).to(tl.int32))
    lowest = from_order((2147483648 - below).to(tl.int32))
    return tl.where(above > 0, highest, 0.0), tl.where(below > 0, lowest, 0.0)


@triton.jit(do_not_specialize=["num_places", "offset_bits"])
def lay_bins_kernel(
    given_knots, intercepts, slopes, header, floats, indices, table, num_places, capacity,
    offset_bits, NUM_CELLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores knots, grid, table (zeros at first), and what `bin_kernel` or, if there are
    intercepts, `write_update_kernel` needs for each bin. One program."""
    at_places = part(floats, KNOTS_AT_PLACES, capacity)
    for start in range(0, num_places, BLOCK):
        place = start + tl.arange(0, BLOCK)
        knot = tl.load(given_knots + place, mask=place < num_places, other=0.0)
        tl.store(at_places + place, round_up(knot), mask=place < num_places)
    tl.debug_barrier()  # a step reads what other threads stored in the step before
    num_knots = drop_equal_knots(floats, indices, num_places, capacity, BLOCK)
    tl.store(header + NUM_KNOTS, num_knots.to(tl.int64))
    tl.debug_barrier()
    most_in_cell = lay_grid(floats, table, num_knots, capacity, NUM_CELLS, BLOCK)
    tl.store(header + MOST_IN_CELL, most_in_cell.to(tl.int64))
    if intercepts is not None:
        tl.store(floats + POISON, tl.load(intercepts).to(tl.float32))
    highest, lowest = _measured(header)
    for start in range(0, num_places, BLOCK):
        place = start + tl.arange(0, BLOCK)
        is_used = place < num_places
        index = tl.load(indices + KNOT_AT_PLACE * capacity + place, mask=is_used, other=0)
        has_next = place < num_places - 1
        next_index = tl.load(
            indices + KNOT_AT_PLACE * capacity + place + 1, mask=has_next, other=-1
        )
        is_last_equal = is_used & (index != next_index)  # of equal knots, it has the bin above
        knots = part(floats, KNOTS, capacity)
        knot = tl.load(knots + index, mask=is_last_equal, other=0.0)
        if intercepts is not None:
            first, second = _line(intercepts, slopes, place + 1, knot, is_last_equal)
        else:
            end = tl.load(knots + index + 1, mask=is_last_equal & has_next, other=float("inf"))
            first, second = _fixed_point(
                tl.maximum(knot, lowest), tl.minimum(end, highest), offset_bits
            )
            tl.store(indices + BIN_AT_KNOT * capacity + index, place + 1, mask=is_last_equal)
        tl.store(part(floats, HEIGHTS, capacity) + index + 1, first, mask=is_last_equal)
        tl.store(part(floats, SLOPES, capacity) + index + 1, second, mask=is_last_equal)


@triton.jit
def _line(intercepts, slopes, bins, knot, is_used):
    """Height at the knot and slope, from the given lines; in float64, where large ones cancel."""
    slope = tl.load(slopes + bins, mask=is_used, other=0.0)
    height = tl.load(intercepts + bins, mask=is_used, other=0.0) + slope * knot.to(tl.float64)
    return height.to(tl.float32), slope.to(tl.float32)


@triton.jit
def _fixed_point(base, end, offset_bits):
    """Half of a bin's base, and how many units half a score has, if its scores reach up to `end`.

    A power of two, so that nothing is rounded but to the unit.
    """
    reach = end.to(tl.float64) - base.to(tl.float64)
    exponent = (reach.to(tl.int64, bitcast=True) >> 52) - 1023  # reach < 2 ** (exponent + 1)
    power = tl.minimum(offset_bits - exponent, 126)  # of float32
    units = ((power + 127) << 23).to(tl.int32).to(tl.float32, bitcast=True)
    return base * 0.5, units


@triton.jit
def _entry(score, half_base, units, is_used, count_unit, WITH_SUMS: tl.constexpr):
    """What a score adds to its bin's entry: its offset from the base, and, above it, a count."""
    if WITH_SUMS:
        offset = (score * 0.5 - half_base) * units + 0.5
        return tl.where(is_used, offset, 0.0).to(tl.int32).to(tl.int64) + count_unit
    else:
        return tl.zeros_like(score).to(tl.int64) + count_unit


@triton.jit(do_not_specialize=["num_histograms", "count_shift"])
def bin_kernel(
    logits, labels, mask, header, floats, table, histograms, num_wrong, num_scores, capacity,
    num_histograms, count_shift, WITH_SUMS: tl.constexpr, IS_PACKED: tl.constexpr,
    NUM_CLASSES: tl.constexpr, NUM_CELLS: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Adds the negatives to histograms over the bins, and to num_wrong those that are not finite.

    What an entry is, and what a home is good for, say `_plan_histograms` and
    `bin_negatives_kernel` of ap_triton.py. Below the first knot scores are counted in registers.
    """
    pid, num_programs = tl.program_id(0), tl.num_programs(0)
    num_knots = tl.load(header + NUM_KNOTS).to(tl.int32)
    knots, half_bases = part(floats, KNOTS, capacity), part(floats, HALF_BASES, capacity)
    all_units = part(floats, UNITS, capacity)
    lowest, cells_per_score = tl.load(floats + LOWEST), tl.load(floats + CELLS_PER_SCORE)
    num_halvings = num_halvings_for(tl.load(header + MOST_IN_CELL).to(tl.int32))
    # If an entry is two numbers, offsets and count, the count is added by itself.
    STRIDE: tl.constexpr = 1 if IS_PACKED else 2
    count_unit = (tl.full([], 1, tl.int64) << count_shift.to(tl.int64)) * (2 - STRIDE)
    histogram_index = (pid % num_histograms).to(tl.int64)
    histogram = histograms + histogram_index * (num_knots + 1) * STRIDE

    home = tl.full([], 0, tl.int32)  # no bin yet
    home_start = tl.full([], float("inf"), tl.float32)
    home_end = tl.full([], float("inf"), tl.float32)
    home_half_base = tl.full([], 0.0, tl.float32)
    home_units = tl.full([], 0.0, tl.float32)
    home_entry = tl.zeros([TILE // GROUP, GROUP], tl.int64)
    home_count = tl.zeros([TILE // GROUP, GROUP], tl.int32)
    low_count = tl.zeros([TILE // GROUP, GROUP], tl.int32)
    num_tiles = (num_scores - 1) // TILE + 1  # num_scores + TILE may not fit into 32 bits
    for tile in range(pid, num_tiles, num_programs):
        _, score, is_negative, _ = load_tile(
            logits, labels, mask, tile, num_scores, NUM_CLASSES, GROUP, TILE
        )
        is_active = (score >= lowest) & (score < float("inf"))
        low_count += (is_negative & (is_active == 0)).to(tl.int32)
        is_wrong = is_negative & ((tl.abs(score) < float("inf")) == 0)
        if home > 0:
            is_home = (score >= home_start) & (score < home_end)
            entry = _entry(score, home_half_base, home_units, is_home, count_unit, WITH_SUMS)
            home_entry += tl.where(is_home, entry, 0)
            home_count += is_home.to(tl.int32)
            is_active = is_active & (is_home == 0)
        # One reduction for two questions: 1 where a score has to be looked up, 2 if one is wrong.
        kinds = tl.max(is_active.to(tl.int32) | (is_wrong.to(tl.int32) * 2))
        if kinds > 0:
            bins = find_bin(
                score, is_active, knots, table, lowest, cells_per_score, num_knots, num_halvings,
                NUM_CELLS,
            )  # fmt: skip
            half_base = tl.load(half_bases + bins, mask=is_active, other=0.0)
            units = tl.load(all_units + bins, mask=is_active, other=0.0)
            entry = _entry(score, half_base, units, is_active, count_unit, WITH_SUMS)
            tl.atomic_add(histogram + bins * STRIDE, entry, mask=is_active, sem="relaxed")
            if not IS_PACKED:
                tl.atomic_add(histogram + bins * 2 + 1, 1, mask=is_active, sem="relaxed")
            if kinds > 1:
                tl.atomic_add(num_wrong, tl.sum(is_wrong.to(tl.int64)), sem="relaxed")
            if (home == 0) & (kinds == 1) & (tile < HOME_TRIALS * num_programs):
                mean = mean_bin(bins, is_active)
                # A bin is worth being home if a quarter of a tile lies in it.
                if tl.sum((is_active & (bins == mean)).to(tl.int32)) * 4 > TILE:
                    home = mean
                    home_start = tl.load(knots + home - 1)
                    home_half_base = tl.load(half_bases + home)
                    home_units = tl.load(all_units + home)
                    if home < num_knots:  # else it has no end
                        home_end = tl.load(knots + home)
    low = tl.sum(low_count.to(tl.int64))  # an entry of bin 0 is a count, and no offset
    if IS_PACKED:
        tl.atomic_add(histogram, low * count_unit, sem="relaxed")
    else:
        tl.atomic_add(histogram + 1, low, sem="relaxed")
    if home > 0:
        tl.atomic_add(histogram + home * STRIDE, tl.sum(home_entry), sem="relaxed")
        if not IS_PACKED:
            count = tl.sum(home_count.to(tl.int64))
            tl.atomic_add(histogram + home * 2 + 1, count, sem="relaxed")


@triton.jit(do_not_specialize=["num_histograms", "count_shift"])
def gather_kernel(
    header, floats, indices, histograms, counts, sums, capacity, num_histograms, count_shift,
    WITH_SUMS: tl.constexpr, BINS: tl.constexpr, HISTOGRAMS: tl.constexpr,
):  # fmt: skip
    """Stores the counts of the bins, and the sums of their scores, of all histograms together.

    Both are zeros at first, and stay so for the bins between equal knots."""
    num_bins = tl.load(header + NUM_KNOTS).to(tl.int32) + 1
    for start in range(tl.program_id(0) * BINS, num_bins, tl.num_programs(0) * BINS):
        bins = start + tl.arange(0, BINS)
        is_used = bins < num_bins
        has_knot = is_used & (bins > 0)
        count, total = add_histograms(
            histograms, bins, num_bins, num_histograms, count_shift, BINS, HISTOGRAMS
        )
        bin_at_knot = indices + BIN_AT_KNOT * capacity
        place = tl.load(bin_at_knot + bins - 1, mask=has_knot, other=0)
        tl.store(counts + place, count, mask=is_used)
        if WITH_SUMS:
            half_base = tl.load(part(floats, HALF_BASES, capacity) + bins, mask=has_knot, other=0.0)
            units = tl.load(part(floats, UNITS, capacity) + bins, mask=has_knot, other=1.0)
            offset = total.to(tl.float64) / units.to(tl.float64)
            half_sum = half_base.to(tl.float64) * count.to(tl.float64) + offset
            # Without scores a base can be infinite.
            tl.store(sums + place, 2 * half_sum, mask=has_knot & (count > 0))


def bin_negatives(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    knots: Tensor,
    with_sums: bool,
    blocks: Blocks = DEFAULT_BLOCKS,
) -> tuple[Tensor, Tensor, Tensor]:
    """Counts (Q + 1,), sums (Q + 1,) and the number of negatives that are not finite.

    The arguments are those of `kernels.bin_negatives`, for what `fused.can_read` says yes to.
    """
    num_classes, num_scores, num_bins = logits.shape[1], logits.numel(), len(knots) + 1
    num_processors = num_processors_of(logits.device)
    num_tiles = divide_up(num_scores, blocks.tile)
    num_programs = max(1, min(num_tiles, blocks.programs_per_processor * num_processors))
    num_histograms, count_shift, offset_bits = _plan_histograms(
        num_bins, num_scores, num_programs, divide_up(num_tiles, num_programs) * blocks.tile,
        with_sums, blocks.room,
    )  # fmt: skip
    counts = torch.zeros(num_bins, dtype=torch.int64, device=logits.device)
    sums = torch.zeros(num_bins, dtype=torch.float64, device=logits.device)
    num_wrong = torch.zeros((), dtype=torch.int64, device=logits.device)
    header = torch.zeros(HEADER_SIZE, dtype=torch.int64, device=logits.device)
    size = num_histograms * num_bins * (1 if count_shift > 0 else 2)
    histograms = torch.zeros(size, dtype=torch.int64, device=logits.device)
    with on_device_of(logits):
        if with_sums:
            tile = 4 * blocks.tile  # each program ends with two atomic additions: fewer of them
            measure_kernel[(divide_up(num_programs, 4),)](
                logits, labels, mask, header, num_scores, num_classes,
                group_size(num_classes, tile), tile,
            )  # fmt: skip
        state, indices, capacity = _lay_bins(header, knots, None, None, offset_bits, blocks)
        bin_kernel[(num_programs,)](
            logits, labels, mask, *state, histograms, num_wrong, num_scores, capacity,
            num_histograms, count_shift, with_sums, count_shift > 0, num_classes, blocks.cells,
            group_size(num_classes, blocks.tile), blocks.tile, num_warps=blocks.bin_warps,
            maxnreg=_REGISTERS,
        )  # fmt: skip
        gather_kernel[(num_processors,)](
            header, state.floats, indices, histograms, counts, sums, capacity, num_histograms,
            count_shift, with_sums, blocks.bins, blocks.histograms, num_warps=16,
        )  # fmt: skip
    return counts, sums, num_wrong


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
    blocks: Blocks = DEFAULT_BLOCKS,
) -> Tensor:
    """The gradient, of the logits' shape and dtype; the arguments are `kernels.write_update`'s."""
    header = torch.zeros(HEADER_SIZE, dtype=torch.int64, device=logits.device)
    with on_device_of(logits):
        state, _, _ = _lay_bins(header, knots, intercepts, slopes, 0, blocks)
    # The header says that there are no positives. A delta above 0 says that there are slopes.
    gradient = write_fused_update(scale, logits, labels, mask, state, 1.0, blocks)
    gradient.view(-1)[index] = (update * scale).to(logits.dtype)
    return gradient


def _lay_bins(
    header: Tensor,
    knots: Tensor,
    intercepts: Tensor | None,
    slopes: Tensor | None,
    offset_bits: int,
    blocks: Blocks,
) -> tuple[State, Tensor, int]:
    """The state for the passes over the scores, the indices, and the capacity of both."""
    # A multiple of 16, because Triton compiles once more for numbers that are none.
    capacity = 16 * max(1, divide_up(len(knots), 32))
    floats = torch.empty(num_floats_for(capacity), dtype=torch.float32, device=header.device)
    table = torch.zeros(blocks.cells, dtype=torch.int32, device=header.device)
    num_indices = NUM_INDEX_PARTS * capacity
    indices = torch.empty(num_indices, dtype=torch.int32, device=header.device)
    if intercepts is not None and slopes is not None:
        intercepts, slopes = intercepts.contiguous(), slopes.contiguous()
    lay_bins_kernel[(1,)](
        knots.contiguous(), intercepts, slopes, header, floats, indices, table, len(knots),
        capacity, offset_bits, blocks.cells, blocks.searched, num_warps=16,
    )  # fmt: skip
    return State(header, floats, table), indices, capacity


def _plan_histograms(
    num_bins: int,
    num_scores: int,
    num_programs: int,
    scores_per_program: int,
    with_sums: bool,
    room: int,
) -> tuple[int, int, int]:
    """How many histograms there are, where the count begins in an entry, and an offset's bits.

    An entry has a count in its upper bits and a sum of offsets in the lower ones, so that one
    atomic addition does both. Where 64 bits are too few, because many programs share a histogram,
    an entry has a second number for the count: then the shift is 0.

    >>> _plan_histograms(1201, 5_000_000, 4224, 1280, True, 1 << 21)
    (610, 44, 30)
    """
    # More room makes for less waiting in large batches; their gradient will need more than that.
    room = max(room, min(num_scores >> 5, 4 * room))
    most_histograms = max(1, min(num_programs, num_scores // _SCORES_PER_HISTOGRAM, 1024))
    num_histograms = max(1, min(room // num_bins, most_histograms))
    if not with_sums:
        return num_histograms, 1, 0
    most = divide_up(num_programs, num_histograms) * scores_per_program
    # A sum has as many bits more than an offset as the number of offsets has. 63 bits are there
    # for all offsets together, and 64 for those of a histogram and their count.
    most_bits = min(_MOST_OFFSET_BITS, 63 - num_scores.bit_length())
    offset_bits = min(64 - 2 * most.bit_length(), most_bits)
    if offset_bits < _LEAST_OFFSET_BITS:
        num_histograms = max(1, min(room // (2 * num_bins), most_histograms))
        return num_histograms, 0, most_bits
    return num_histograms, offset_bits + most.bit_length(), offset_bits
