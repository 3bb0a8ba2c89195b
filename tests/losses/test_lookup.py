"""Finding the bin of each score equals torch.bucketize, whatever the knots."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankdet.losses import lookup
from rankdet.losses.lookup import BinLookup, score_range

EXTREMES = [0.0, -0.0, 5e-324, -5e-324, 1e-300, 1e300, -1e300, 1.7e308, -1.7e308]
# Small integers make duplicates, a huge offset makes neighbours that a uniform grid cannot part.
KNOT = st.one_of(
    st.integers(-4, 4).map(float),
    st.floats(-10, 10),
    st.floats(-1e-9, 1e-9).map(lambda small: 1.0 + small),
    st.sampled_from(EXTREMES),
    st.floats(allow_nan=False, allow_infinity=False),
)


def float64(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def bins_of(found: tuple[Tensor | None, Tensor], num_scores: int) -> list[int]:
    """All bins, those left out being 0."""
    above, bins = found
    if above is None:
        return bins.tolist()
    return torch.zeros(num_scores, dtype=bins.dtype).index_copy_(0, above, bins).tolist()


@pytest.mark.parametrize(
    ("knots", "scores", "expected"),
    [
        ([0.0, 1.0], [-1.0, 0.0, 0.5, 1.0, 3.0], [0, 1, 1, 2, 2]),
        ([2.0], [1.0, 2.0, 3.0], [0, 1, 1]),
        ([], [1.0, -math.inf], [0, 0]),
        ([1.0, 1.0, 1.0], [0.0, 1.0, 2.0], [0, 3, 3]),  # nothing lies between equal knots
        ([0.0, 1.0], [], []),
        ([0.0], [-math.inf, 5.0], [0, 1]),
    ],
)
def test_cases_by_hand(knots: list[float], scores: list[float], expected: list[int]) -> None:
    assert bins_of(BinLookup(float64(knots)).find(float64(scores)), len(scores)) == expected


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(
    knots=st.lists(KNOT, max_size=30).map(sorted),
    scores=st.lists(st.one_of(KNOT, st.just(-math.inf)), max_size=20),
    num_low=st.sampled_from([0, 0, 300]),
)
def test_find_equals_bucketize(knots: list[float], scores: list[float], num_low: int) -> None:
    on_knots = float64(knots)
    beside = [torch.nextafter(on_knots, float64([end])) for end in (-math.inf, math.inf)]
    asked = torch.cat([float64(scores), on_knots, *beside, float64([-math.inf] * num_low)])
    asked = asked[asked < math.inf]
    before = asked.clone()
    found = BinLookup(on_knots).find(asked)
    expected = torch.bucketize(asked, on_knots, right=True)
    assert bins_of(found, len(asked)) == expected.tolist()
    assert torch.equal(asked, before)


@pytest.mark.parametrize("num_knots", [1, 2, 100, 5000])
@pytest.mark.parametrize("spread", [1e-12, 1e-3, 1.0, 1e6, 1e305])
def test_find_equals_bucketize_on_many_scores(num_knots: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(num_knots)
    knots = spread * torch.randn(num_knots, generator=generator, dtype=torch.float64)
    knots = (knots + 3.0).sort().values
    scores = 2 * spread * torch.randn(20_000, generator=generator, dtype=torch.float64) + 3.0
    scores[:num_knots] = knots
    above, bins = BinLookup(knots).find(scores)
    assert above is None
    assert torch.equal(bins.long(), torch.bucketize(scores, knots, right=True))


def test_few_scores_above_the_first_knot_are_searched_alone() -> None:
    knots = float64([0.0, 1.0])
    many, few = float64([-1.0] * 3 + [0.5]), float64([-1.0] * 4 + [0.5])  # 1/4 is not few, 1/5 is
    assert BinLookup(knots).find(many)[0] is None
    above, bins = BinLookup(knots).find(few)
    assert above is not None
    assert (above.tolist(), bins.tolist()) == ([4], [1])


def test_knots_too_close_for_the_grid_are_searched_among() -> None:
    # All but one of the knots share a cell, and nearly all scores with them.
    knots = torch.cat([torch.linspace(0, 1e-9, 99, dtype=torch.float64), float64([1e9])])
    scores = torch.linspace(0, 2e-9, 1000, dtype=torch.float64)
    above, bins = BinLookup(knots).find(scores)
    assert above is None
    assert torch.equal(bins.long(), torch.bucketize(scores, knots, right=True))


def test_a_buffer_that_was_used_before_leaves_no_trace() -> None:
    finder = BinLookup(float64([0.0, 1.0, 2.0]))
    large, small = torch.linspace(-1, 3, 50), torch.tensor([1.5, 0.5])
    for block in (large, small, large):
        scores = finder.load(block)
        assert torch.equal(scores, block.double())
        expected = torch.bucketize(block.double(), finder.knots, right=True)
        assert torch.equal(finder.find(scores)[1].long(), expected)


@pytest.mark.parametrize(
    ("lowest", "highest", "expected"),
    [
        (-5.0, -0.1, 0),
        (-5.0, 0.0, None),  # the knot itself is in the bin above it
        (0.0, 0.9, 1),
        (0.5, 1.0, None),
        (1.0, 99.0, 2),
        (-5.0, 99.0, None),
        (math.nan, math.nan, None),
        (-math.inf, -1.0, None),
        (2.0, math.inf, None),
    ],
)
def test_only_bin_is_the_bin_of_both_ends_or_none(
    lowest: float, highest: float, expected: int | None
) -> None:
    assert BinLookup(float64([0.0, 1.0])).only_bin(lowest, highest) == expected


def test_without_knots_there_is_one_bin() -> None:
    assert BinLookup(float64([])).only_bin(-1.0, 1.0) == 0


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    knots=st.lists(KNOT, max_size=10).map(sorted),
    ends=st.lists(KNOT, min_size=2, max_size=2).map(sorted),
)
def test_only_bin_agrees_with_bucketize(knots: list[float], ends: list[float]) -> None:
    first, last = torch.bucketize(float64(ends), float64(knots), right=True).tolist()
    expected = first if first == last else None
    assert BinLookup(float64(knots)).only_bin(*ends) == expected


def test_score_range_is_that_of_the_scores_that_are_not_excluded() -> None:
    nothing = torch.tensor([], dtype=torch.int64)
    assert score_range(float64([3.0, -1.0, 2.0]), nothing) == (-1.0, 3.0)
    assert score_range(float64([3.0, math.nan, 2.0]), torch.tensor([1])) == (2.0, 3.0)
    assert score_range(float64([math.nan]), torch.tensor([0])) == (math.inf, -math.inf)
    assert score_range(float64([]), nothing) == (math.inf, -math.inf)
    assert all(math.isnan(end) for end in score_range(float64([1.0, math.nan, 2.0]), nothing))


def test_most_scores_need_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    # 16 cells per knot or more: at most 1 in 16 evenly spread scores shares a cell with a knot.
    knots, scores = torch.linspace(0, 1, 200).double(), torch.linspace(-0.2, 1, 50_000).double()
    searched = []

    def count(self: BinLookup, scores: Tensor) -> Tensor:
        searched.append(len(scores))
        return torch.searchsorted(self.knots, scores, right=True, out_int32=True)

    monkeypatch.setattr(lookup.BinLookup, "_search", count)
    bins = BinLookup(knots).find(scores)[1]
    assert torch.equal(bins.long(), torch.bucketize(scores, knots, right=True))
    assert sum(searched) < len(scores) / 16
