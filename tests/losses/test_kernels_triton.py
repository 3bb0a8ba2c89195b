"""`bin_negatives` and `write_update` in Triton: by hand, then against the plain functions.

Without a CUDA device the kernels run interpreted (tests/conftest.py), so that sizes are small and
blocks smaller: several programs, tiles, runs of knots and histograms on few scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rankdet.losses import BACKGROUND, IGNORED, fused, kernels
from rankdet.losses.kernels import find_positives, plain_bin_negatives, plain_write_update
from rankdet.losses.steps import PiecewiseStep

triton = pytest.importorskip("triton")
kernels_triton = pytest.importorskip("rankdet.losses.kernels_triton", exc_type=ImportError)

SMALL = kernels_triton.DEFAULT_BLOCKS._replace(
    searched=8,
    cells=16,
    tile=16,
    programs_per_processor=3,
    bins=4,
    histograms=2,
    write_tile=32,
    room=64,
)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


pytestmark = [
    # The interpreter's numpy speaks of inf - inf in lanes that are masked out.
    pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
]
interpreted = pytest.mark.usefixtures("interpreter_that_can_loop")

Binned = Callable[..., tuple[Tensor, Tensor, int]]
Written = Callable[..., Tensor]


@pytest.fixture
def binned(kernel_device: str, monkeypatch: pytest.MonkeyPatch) -> Binned:
    """(logits, labels, mask, knots, with_sums) -> counts, sums, num_wrong, on the CPU."""
    monkeypatch.setattr(kernels_triton, "num_processors_of", lambda device: 2)  # also on a GPU
    monkeypatch.setattr(kernels_triton, "_SCORES_PER_HISTOGRAM", 32)

    def run(*inputs: Any, with_sums: bool = True) -> tuple[Tensor, Tensor, int]:
        there = [None if x is None else x.to(kernel_device) for x in inputs]
        counts, sums, num_wrong = kernels_triton.bin_negatives(*there, with_sums, SMALL)
        assert counts.dtype == num_wrong.dtype == torch.int64
        assert sums.dtype == torch.float64
        assert counts.shape == sums.shape == (len(inputs[3]) + 1,)
        return counts.cpu(), sums.cpu(), num_wrong.item()

    return run


@pytest.fixture
def written(kernel_device: str) -> Written:
    """The arguments of `write_update`, with a number for scale -> the gradient, on the CPU."""

    def run(scale: float, *inputs: Any) -> Tensor:
        there = [None if x is None else x.to(kernel_device) for x in inputs]
        factor = torch.tensor(scale, device=kernel_device, dtype=torch.float64)
        gradient = kernels_triton.write_update(factor, *there, SMALL)
        assert gradient.dtype == inputs[0].dtype
        assert gradient.shape == inputs[0].shape
        return gradient.cpu()

    return run


def float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def column(*scores: float) -> tuple[Tensor, Tensor]:
    """Logits (R, 1) float32 and labels of negatives."""
    return torch.tensor(scores).unsqueeze(-1), torch.full((len(scores),), BACKGROUND)


def problem(
    seed: int, num_rows: int, num_classes: int, num_knots: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, with NaN in ignored rows, labels of every kind, a mask, and knots."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(num_rows, num_classes, generator=generator) - 1
    labels = torch.randint(-2, num_classes, (num_rows,), generator=generator)
    mask = torch.rand(num_rows, num_classes, generator=generator) < 0.8
    knots = torch.randn(num_knots, generator=generator, dtype=torch.float64).sort().values
    logits[labels == IGNORED] = math.nan
    return logits.to(dtype), labels, mask, knots


def lines(seed: int, num_knots: int) -> tuple[Tensor, Tensor]:
    """Random intercepts and slopes; 0 in bin 0."""
    generator = torch.Generator().manual_seed(seed)
    both = torch.randn(2, num_knots + 1, generator=generator, dtype=torch.float64)
    both[:, 0] = 0
    return both[0], both[1]


def assert_binned_as_plainly(binned: Binned, *inputs: Any) -> None:
    """Equal counts; sums as exact as float32 offsets from the lowest score of the bin."""
    counts, sums, num_wrong = binned(*inputs)
    expected, expected_sums, expected_wrong = plain_bin_negatives(*inputs, True)
    assert counts.tolist() == expected.tolist()
    assert num_wrong == expected_wrong
    finite = inputs[0][inputs[0].isfinite()].double()
    reach = (finite.max() - finite.min()).item() if len(finite) else 0.0
    assert ((sums - expected_sums).abs() <= 2e-7 * reach * counts).all()
    counts, sums, num_wrong = binned(*inputs, with_sums=False)
    assert counts.tolist() == expected.tolist()
    assert num_wrong == expected_wrong
    assert not sums.any()


# --- by hand ----------------------------------------------------------------------------------

LOGITS = torch.tensor([[1.5, 2.0], [0.0, 1.0], [0.5, -1.5], [9.0, 9.0]])
LABELS = torch.tensor([1, 0, BACKGROUND, IGNORED])
MASK = torch.tensor([[True, True], [True, False], [True, True], [True, True]])


@interpreted
def test_negatives_are_counted_and_added_bin_by_bin(binned: Binned) -> None:
    # Negatives 1.5, 1.0, 0.5, -1.5; bins: below 0.5 | 0.5 and 1.0 | nothing | from 1.5 on.
    knots = float64(0.5, 1.25, 1.5)
    counts, sums, num_wrong = binned(LOGITS, LABELS, None, knots)
    assert (counts.tolist(), sums.tolist(), num_wrong) == ([1, 2, 0, 1], [0, 1.5, 0, 1.5], 0)
    counts, sums, _ = binned(LOGITS, LABELS, MASK, knots, with_sums=False)
    assert (counts.tolist(), sums.tolist()) == ([1, 1, 0, 1], [0, 0, 0, 0])


@interpreted
def test_the_update_is_written_by_bin_and_scaled(written: Written) -> None:
    places, update = torch.tensor([2, 1]), float64(-7, -8)
    intercepts, slopes = float64(0, 10, 20), float64(0, 1, 2)
    state = (LOGITS, LABELS, MASK, float64(0.5, 1.25), intercepts, slopes, places, update)
    # 1.5 in bin 2: 2 (20 + 3); 0.5 in bin 1: 2 (10 + 0.5); -1.5 in bin 0; 1.0 is masked.
    assert written(2.0, *state).tolist() == [[46, -16], [-14, 0], [21, 0], [0, 0]]


@interpreted
def test_negatives_that_are_not_finite_are_told_and_go_to_bin_0(binned: Binned) -> None:
    logits = torch.tensor([[math.nan], [math.inf], [-math.inf], [2.0], [math.nan], [math.inf]])
    labels = torch.tensor([-1, -1, -1, -1, IGNORED, 0])
    for with_sums in (True, False):
        counts, sums, num_wrong = binned(logits, labels, None, float64(1.0), with_sums=with_sums)
        assert (counts.tolist(), num_wrong) == ([3, 1], 3)
        assert sums.tolist() == [0.0, 2.0 if with_sums else 0.0]


@interpreted
def test_wrong_scores_are_counted_one_by_one_in_all_tiles(binned: Binned) -> None:
    logits, labels = column(*([0.5, math.nan, math.inf, 1.5] * 40))
    counts, sums, num_wrong = binned(logits, labels, None, float64(1.0))
    assert (counts.tolist(), sums.tolist(), num_wrong) == ([120, 40], [0.0, 60.0], 80)


@interpreted
def test_only_the_last_of_equal_knots_has_scores(binned: Binned, written: Written) -> None:
    logits, labels = column(0.0, 1.0, 1.5, 2.0)
    knots = float64(1, 1, 1, 2, 2)
    counts, sums, _ = binned(logits, labels, None, knots)
    assert counts.tolist() == [1, 0, 0, 2, 0, 1]
    assert sums.tolist() == [0, 0, 0, 2.5, 0, 2]
    nothing = (torch.tensor([], dtype=torch.int64), float64())
    intercepts, slopes = float64(0, 9, 8, 3, 7, 5), float64(0, 6, 4, 1, 3, -2)
    gradient = written(1.0, logits, labels, None, knots, intercepts, slopes, *nothing)
    assert gradient[:, 0].tolist() == [0, 4, 4.5, 1]  # 3 + 1, 3 + 1.5, 5 - 4


@interpreted
def test_without_knots_all_negatives_are_in_bin_0(binned: Binned, written: Written) -> None:
    assert binned(LOGITS, LABELS, None, float64())[0].tolist() == [4]
    assert binned(LOGITS, LABELS, MASK, float64())[0].tolist() == [3]
    places, update = torch.tensor([2, 1]), float64(-7, -8)
    state = (LOGITS, LABELS, None, float64(), float64(0), float64(0), places, update)
    assert written(1.0, *state).tolist() == [[0, -8], [-7, 0], [0, 0], [0, 0]]


@interpreted
def test_without_negatives_nothing_is_counted(binned: Binned) -> None:
    logits = torch.ones(3, 1)
    for labels in ([IGNORED] * 3, [0] * 3):
        counts, sums, num_wrong = binned(logits, torch.tensor(labels), None, float64(0, 2))
        assert (counts.tolist(), sums.tolist(), num_wrong) == ([0, 0, 0], [0, 0, 0], 0)


@interpreted
def test_a_nan_in_bin_0_makes_all_nan_but_ignored_entries(written: Written) -> None:
    poison = float64(math.nan, math.nan)
    state = (LOGITS, LABELS, MASK, float64(0.7), poison, float64(0, 1), torch.tensor([2, 1]))
    gradient = written(1.0, *state, poison)
    expected = MASK & (LABELS != IGNORED)[:, None]
    assert torch.equal(gradient.isnan(), expected)
    assert (gradient[~expected] == 0).all()


# --- comparisons are those of float64 ---------------------------------------------------------


@interpreted
@pytest.mark.parametrize("score", [1.0, -1.0, 0.1, -3e-39, 1e30, 0.0])
def test_a_knot_between_two_float32_scores_parts_them(
    score: float, binned: Binned, written: Written
) -> None:
    ends = torch.tensor([-math.inf, math.inf])
    middle = torch.tensor(score)
    below, above = torch.nextafter(middle, ends).tolist()
    logits, labels = column(below, middle.item(), above)
    for low, high, expected in (
        (below, middle.item(), [1, 2]),
        (middle.item(), above, [2, 1]),
    ):
        between = (low + high) / 2
        assert low < between < high
        assert binned(logits, labels, None, float64(between))[0].tolist() == expected
        assert binned(logits, labels, None, float64(high))[0].tolist() == expected
        nothing = (torch.tensor([], dtype=torch.int64), float64())
        lines = (float64(0, 3), float64(0, 0))
        gradient = written(1.0, logits, labels, None, float64(between), *lines, *nothing)
        assert (gradient == 3).sum() == expected[1]


@interpreted
def test_knots_beyond_float32_part_nothing(binned: Binned) -> None:
    logits, labels = column(-3e38, -2.0, 1.0, 3e38)
    counts, sums, _ = binned(logits, labels, None, float64(-1e300, -1e250, 1e250, 1e300))
    assert counts.tolist() == [0, 0, 4, 0, 0]
    assert abs(sums[2].item()) < 1e32
    assert not sums[[0, 1, 3, 4]].any()


# --- sums keep their digits -------------------------------------------------------------------


@interpreted
def test_sums_are_as_fine_as_the_scores_however_wide_the_bin(binned: Binned) -> None:
    logits, labels = column(*(0.001 * i for i in range(1, 60)))
    for knots in ([-1e30], [-1e30, 1e30], [-1e30, 0.03, 1e35], [0.0, 0.01, 0.011, 5.0]):
        state = (logits, labels, None, float64(*knots))
        expected = plain_bin_negatives(*state, True)
        counts, sums, _ = binned(*state)
        assert counts.tolist() == expected[0].tolist()
        torch.testing.assert_close(sums, expected[1], rtol=1e-7, atol=0)


@interpreted
def test_a_score_far_off_costs_the_narrow_bins_nothing(binned: Binned) -> None:
    scores = [1 + 0.001 * i for i in range(40)]
    logits, labels = column(-1e30, *scores, 1e30)
    state = (logits, labels, None, float64(1.0, 1.02, 1.05))
    expected = plain_bin_negatives(*state, True)[1]
    torch.testing.assert_close(binned(*state)[1], expected, rtol=1e-9, atol=0)


@interpreted
def test_scores_at_both_ends_of_float32_are_added(binned: Binned) -> None:
    logits, labels = column(-3e38, -3e38, 3e38, 3e38, 3e38)
    counts, sums, num_wrong = binned(logits, labels, None, float64(-3.3e38))
    assert (counts.tolist(), num_wrong) == ([0, 5], 0)
    assert sums[1].item() == pytest.approx(3e38, rel=1e-6)


@interpreted
def test_equal_scores_are_added_exactly(binned: Binned) -> None:
    score = torch.tensor(-4.59512).item()
    logits, labels = column(*([score] * 300))  # several programs, all of them at home in one bin
    for knots in ((-5.0, -4.0), (-5.0,), (score,), (-1e9, 7.0)):
        counts, sums, _ = binned(logits, labels, None, float64(*knots))
        assert counts.tolist() == [0, 300, 0][: len(knots) + 1]
        assert sums[1].item() == 300 * score


@interpreted
def test_neighbouring_scores_are_told_apart_in_the_sum(binned: Binned) -> None:
    for low, high in ((1.0, 1 + 2**-23), (0.0, 1.25 * 2**-98), (-(2.0**100), 2.0**76 - 2.0**100)):
        logits, labels = column(low, high)
        sums = binned(logits, labels, None, float64(-1e38))[1]
        assert sums[1].item() == logits.double().sum().item()


@interpreted
def test_the_lowest_and_the_highest_score_may_come_last(binned: Binned) -> None:
    logits, labels = column(*([1.0] * 286), -1e6, 1e6)
    counts, sums, _ = binned(logits, labels, None, float64(-1e9))
    assert (counts.tolist(), sums.tolist()) == ([0, 288], [0, 286])


@interpreted
def test_offsets_at_the_top_of_their_bin_do_not_spill_into_the_counts(binned: Binned) -> None:
    below_1 = 1 - 2**-24
    for knots in ((0.0, 1.0), (0.0,)):
        counts, sums, _ = binned(*column(0.0, *([below_1] * 287)), None, float64(*knots))
        assert counts.tolist() == [0, 288, 0][: len(knots) + 1]
        assert sums[1].item() == 287 * below_1


@interpreted
def test_what_stands_above_the_positives_agrees_to_1e_7(binned: Binned) -> None:
    for delta in (0.05, 1.0):
        logits, labels, _, positives = problem(7, 200, 1, 15)
        step = PiecewiseStep(positives.float().double(), delta)
        expected = step.above(*plain_bin_negatives(logits, labels, None, step.knots, True)[:2])
        above = step.above(*binned(logits, labels, None, step.knots)[:2])
        torch.testing.assert_close(above, expected, rtol=1e-7, atol=1e-7)


# --- against the plain functions --------------------------------------------------------------


@interpreted
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_classes", "num_rows", "num_knots", "is_masked"),
    [(1, 150, 1, False), (3, 40, 30, True), (4, 30, 40, False), (20, 9, 12, True), (1, 1, 2, True)],
)
def test_both_passes_agree_with_the_plain_ones(
    num_classes: int,
    num_rows: int,
    num_knots: int,
    is_masked: bool,
    dtype: torch.dtype,
    binned: Binned,
    written: Written,
) -> None:
    logits, labels, mask, knots = problem(num_rows, num_rows, num_classes, num_knots, dtype)
    state = (logits, labels, mask if is_masked else None, knots)
    assert_binned_as_plainly(binned, *state)
    _, index = find_positives(*state[:3])
    update = lines(1, len(index))[0][1:]
    arguments = (*state, *lines(2, num_knots), index, update)
    expected = plain_write_update(torch.tensor(0.7), *arguments)
    gradient = written(0.7, *arguments)
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(gradient, expected, rtol=tolerance, atol=1e-6)
    assert gradient.isfinite().all()


@interpreted
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32])
def test_labels_may_be_integers_of_any_kind(
    dtype: torch.dtype, binned: Binned, written: Written
) -> None:
    logits, labels, mask, knots = problem(3, 20, 3, 5)
    if dtype == torch.uint8:
        labels = labels.clamp(min=0)
    state = (logits.nan_to_num(), labels.to(dtype), mask, knots)
    assert_binned_as_plainly(binned, *state)
    _, index = find_positives(*state[:3])
    arguments = (*state, *lines(2, 5), index, torch.ones(len(index), dtype=torch.float64))
    expected = plain_write_update(torch.tensor(1.0), *arguments)
    torch.testing.assert_close(written(1.0, *arguments), expected, rtol=1e-6, atol=1e-6)


@interpreted
@pytest.mark.parametrize("is_packed", [True, False])
def test_count_and_offsets_are_in_one_number_or_in_two(
    is_packed: bool, binned: Binned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_triton, "_LEAST_OFFSET_BITS", 24 if is_packed else 31)
    plan = kernels_triton._plan_histograms(8, 160, 6, 32, True, 64)
    assert (plan[1] > 0) == is_packed
    assert plan[0] > 1
    for num_knots in (7, 40):  # several histograms, and one
        logits, labels, mask, knots = problem(num_knots, 40, 4, num_knots)
        assert_binned_as_plainly(binned, logits, labels, mask, knots)
    logits, labels = column(*([0.25] * 100 + [1.5] * 60 + [-1.0] * 20))  # a home for each program
    assert_binned_as_plainly(binned, logits, labels, None, float64(0, 1, 2))


@interpreted
@pytest.mark.parametrize("num_knots", [16, 31, 32, 33])
def test_any_number_of_knots_fits_into_the_arrays(
    num_knots: int, binned: Binned, written: Written
) -> None:
    logits = torch.arange(num_knots + 1.0).unsqueeze(-1) - 0.5
    labels = torch.full((num_knots + 1,), BACKGROUND)
    knots = torch.arange(num_knots, dtype=torch.float64)
    assert binned(logits, labels, None, knots)[0].tolist() == [1] * (num_knots + 1)
    heights = torch.arange(num_knots + 1, dtype=torch.float64)
    nothing = (torch.tensor([], dtype=torch.int64), float64())
    gradient = written(1.0, logits, labels, None, knots, heights, 0 * heights, *nothing)
    assert gradient[:, 0].tolist() == heights.tolist()


@interpreted
def test_half_precision_with_many_equal_knots_agrees(binned: Binned) -> None:
    logits, labels, mask, knots = problem(5, 40, 4, 40, torch.bfloat16)
    rounded = knots.bfloat16().double()
    assert len(rounded.unique()) < len(rounded)
    assert_binned_as_plainly(binned, logits, labels, mask, rounded)


@interpreted
def test_large_intercepts_and_slopes_may_cancel(written: Written) -> None:
    logits, labels = column(*(100 + 0.001 * i for i in range(50)))
    knots, slopes = float64(100.0, 100.02), float64(0, 1e4, 2e4)
    intercepts = float64(0, -1e6, -1e6 + 200 - 2e4 * 100.02 + 1e4 * 100)
    nothing = (torch.tensor([], dtype=torch.int64), float64())
    state = (logits, labels, None, knots, intercepts, slopes, *nothing)
    expected = plain_write_update(torch.tensor(1.0), *state)
    assert 100 < expected.abs().max() < 1000
    error = (written(1.0, *state) - expected).abs().max()
    assert error <= 1e-6 * expected.abs().max()


# --- the same bits ----------------------------------------------------------------------------


@interpreted
def test_every_run_and_every_order_of_the_rows_gives_the_same_bits(
    binned: Binned, written: Written
) -> None:
    logits, labels, mask, knots = problem(11, 40, 4, 15)
    counts, sums, _ = binned(logits, labels, mask, knots)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    for rows in (slice(None), order):
        again = binned(logits[rows], labels[rows], mask[rows], knots)
        assert torch.equal(again[0], counts)
        assert torch.equal(again[1], sums)
    _, index = find_positives(logits, labels, mask)
    state = (logits, labels, mask, knots, *lines(0, 15), index, lines(1, len(index))[0][1:])
    assert torch.equal(written(1.3, *state), written(1.3, *state))


# --- the plan, and who is called --------------------------------------------------------------


@pytest.mark.parametrize("num_scores", [1, 300, 5_200_000, 21_000_000, (1 << 31) + 5, 1 << 33])
@pytest.mark.parametrize("num_bins", [1, 1201, 130_001, 3_000_001])
def test_the_numbers_of_a_histogram_never_overflow(num_scores: int, num_bins: int) -> None:
    num_programs = max(1, min(-(-num_scores // 256), 4224))
    scores_per_program = -(-num_scores // (256 * num_programs)) * 256
    num_histograms, count_shift, offset_bits = kernels_triton._plan_histograms(
        num_bins, num_scores, num_programs, scores_per_program, True, 1 << 21
    )
    assert num_scores << offset_bits < 1 << 63  # in all histograms together
    most = -(-num_programs // num_histograms) * scores_per_program
    assert 24 <= offset_bits <= 30
    if count_shift > 0:
        assert most << offset_bits < 1 << count_shift
        assert most < 1 << (64 - count_shift)
    size = num_histograms * num_bins * (1 if count_shift > 0 else 2)
    assert 1 <= num_histograms <= num_programs
    assert size <= max(4 << 21, 2 * num_bins)
    counted = kernels_triton._plan_histograms(
        num_bins, num_scores, num_programs, scores_per_program, False, 1 << 21
    )
    assert counted[1] == 1
    assert counted[0] >= num_histograms


@interpreted
def test_the_operators_call_these_kernels_where_triton_reads(
    kernel_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    for name in ("bin_negatives", "write_update"):
        real = getattr(kernels_triton, name)
        monkeypatch.setattr(
            *(kernels_triton, name),
            lambda *inputs, name=name, real=real: called.append(name) or real(*inputs),
        )
    monkeypatch.setattr(fused, "can_read", lambda logits: logits.dtype == torch.float32)
    logits, labels = LOGITS.to(kernel_device), LABELS.to(kernel_device)
    knots = float64(0.5).to(kernel_device)
    nothing = torch.tensor([], dtype=torch.int64, device=kernel_device)
    for dtype in (torch.float64, torch.float32):
        scores = logits.to(dtype)
        assert called == []
        counts, _, _ = kernels.bin_negatives._init_fn(scores, labels, None, knots, False)
        assert counts.tolist() == [1, 3]
        heights = float64(0, 2).to(kernel_device)
        state = (scores, labels, None, knots, heights, 0 * heights, nothing, nothing.double())
        gradient = kernels.write_update._init_fn(torch.ones_like(heights[0]), *state)
        assert gradient.tolist() == [[2, 0], [0, 2], [2, 0], [0, 0]]
    assert called == ["bin_negatives", "write_update"]
