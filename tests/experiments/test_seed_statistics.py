"""Means, deviations and Welch's intervals: by hand, by tables, and by SciPy."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from rankdet.experiments.seed_statistics import (
    Spread,
    spread,
    t_probability,
    t_quantile,
    welch_interval,
)

# Percent, as AP is, in hundredths: so that a shift changes no digit beyond rounding.
PERCENT = st.integers(0, 10_000).map(lambda number: number / 100)
SAMPLES = st.lists(PERCENT, min_size=2, max_size=6)


# By hand.


def test_a_spread_has_the_deviation_of_a_sample() -> None:
    # Squares 9, 1, 1, 9 over 3, not over 4.
    assert spread([1.0, 3.0, 5.0, 7.0]) == Spread(4.0, math.sqrt(20 / 3), 4)


def test_a_single_value_has_no_deviation_and_none_has_no_spread() -> None:
    assert spread([2.5]) == Spread(2.5, None, 1)
    assert spread([]) is None


def test_an_interval_of_three_and_three_values() -> None:
    # Both variances are 1: 4 degrees of freedom, whose t is 2.7764; sqrt(1 / 3 + 1 / 3) = 0.8165.
    found = welch_interval([30.0, 31.0, 32.0], [27.0, 28.0, 29.0])
    assert found == (3.0, pytest.approx(2.7764 * math.sqrt(2 / 3), rel=1e-4))


def test_an_interval_of_samples_that_differ_in_size_and_variance() -> None:
    # Variances 2 of 2 values and 1 of 3: parts 1 and 1 / 3, so freedom is
    # (4 / 3)^2 / (1 / 1 + (1 / 9) / 2) = 32 / 19. The bounds of its t are those of 1 and 2.
    found = welch_interval([1.0, 3.0], [1.0, 2.0, 3.0])
    assert found is not None
    difference, half = found
    assert difference == 0.0
    assert half == pytest.approx(stats.t.ppf(0.975, 32 / 19) * math.sqrt(4 / 3), rel=1e-7)
    assert 4.303 < half / math.sqrt(4 / 3) < 12.706


def test_a_sample_without_variance_leaves_the_freedom_of_the_other() -> None:
    found = welch_interval([5.0, 5.0], [1.0, 2.0, 3.0])
    assert found == (3.0, pytest.approx(4.30265 * math.sqrt(1 / 3), rel=1e-5))  # t of 2


@pytest.mark.parametrize(
    ("first", "second"), [([1.0], [2.0, 3.0]), ([1.0, 2.0], [3.0]), ([], [1.0, 2.0])]
)
def test_fewer_than_two_values_have_no_interval(first: list[float], second: list[float]) -> None:
    assert welch_interval(first, second) is None


def test_values_that_are_all_the_same_have_an_interval_without_width() -> None:
    assert welch_interval([0.5, 0.5], [0.25, 0.25, 0.25]) == (0.25, 0.0)


def test_the_squares_of_small_variances_do_not_vanish() -> None:
    found = welch_interval([0.0, 1e-90], [0.0, 1e-90])
    assert found == (0.0, pytest.approx(4.30265 * 1e-90 / math.sqrt(2), rel=1e-5))


# Tables of Student's distribution.


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 3, 3.1824),
        (0.975, 10, 2.2281),
        (0.95, 5, 2.0150),
        (0.995, 4, 4.6041),
        (0.75, 1, 1.0),
    ],
)
def test_quantiles_are_those_of_printed_tables(
    probability: float, freedom: float, expected: float
) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(expected, abs=6e-5)


def test_with_many_degrees_of_freedom_it_is_the_normal_distribution() -> None:
    assert t_quantile(0.975, 1e6) == pytest.approx(1.959964, abs=5e-6)


def test_half_of_the_probability_lies_below_zero() -> None:
    assert t_probability(0.0, 3.5) == 0.5
    assert t_quantile(0.5, 3.5) == pytest.approx(0.0, abs=1e-8)


# Properties.


@given(SAMPLES, SAMPLES)
@settings(max_examples=25, deadline=None)
def test_the_other_way_round_the_difference_alone_changes_its_sign(
    first: list[float], second: list[float]
) -> None:
    one, other = welch_interval(first, second), welch_interval(second, first)
    assert one is not None
    assert other is not None
    assert one[0] == -other[0]
    assert one[1] == pytest.approx(other[1], rel=1e-9)


@given(SAMPLES, SAMPLES, PERCENT)
@settings(max_examples=25, deadline=None)
def test_a_shift_of_both_changes_nothing_and_of_one_the_difference(
    first: list[float], second: list[float], shift: float
) -> None:
    shifted = [value + shift for value in first]
    usual = welch_interval(first, second)
    both = welch_interval(shifted, [value + shift for value in second])
    one = welch_interval(shifted, second)
    assert usual is not None
    assert both == pytest.approx(usual, rel=1e-6, abs=1e-9)
    assert one == pytest.approx((usual[0] + shift, usual[1]), rel=1e-6, abs=1e-9)


@given(SAMPLES, SAMPLES, st.sampled_from([1e-100, 0.01, 3.0, 1e50]))
@settings(max_examples=25, deadline=None)
def test_another_unit_changes_the_unit_alone(
    first: list[float], second: list[float], unit: float
) -> None:
    usual = welch_interval(first, second)
    found = welch_interval([unit * value for value in first], [unit * value for value in second])
    assert usual is not None
    assert found is not None
    assert [value / unit for value in found] == pytest.approx(usual, rel=1e-6, abs=1e-9)


@given(SAMPLES, SAMPLES)
@settings(max_examples=15, deadline=None)
def test_more_confidence_is_a_wider_interval(first: list[float], second: list[float]) -> None:
    assume(len({*first}) > 1)
    widths = [welch_interval(first, second, confidence) for confidence in (0.5, 0.9, 0.95, 0.99)]
    halves = [found[1] for found in widths if found is not None]
    assert halves == sorted(set(halves))
    assert len(halves) == 4


@given(st.floats(0.51, 0.9995), st.floats(1.0, 200.0))
@settings(max_examples=25, deadline=None)
def test_a_quantile_has_its_probability_below(probability: float, freedom: float) -> None:
    assert t_probability(t_quantile(probability, freedom), freedom) == pytest.approx(probability)


# SciPy.


@pytest.mark.parametrize("freedom", [1, 1.25, 1.684, 2, 2.5, 3.9, 7.1, 30, 123.4, 5000])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.995])
def test_quantiles_are_scipy_s_whether_the_freedom_is_whole_or_not(
    probability: float, freedom: float
) -> None:
    expected = stats.t.ppf(probability, freedom)
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-7)


@given(SAMPLES, SAMPLES, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
@settings(max_examples=40, deadline=None)
def test_intervals_are_scipy_s(first: list[float], second: list[float], confidence: float) -> None:
    assume(len({*first}) > 1)
    assume(len({*second}) > 1)
    found = welch_interval(first, second, confidence)
    assert found is not None
    judge = stats.ttest_ind(first, second, equal_var=False).confidence_interval(confidence)
    low, high = found[0] - found[1], found[0] + found[1]
    assert (low, high) == pytest.approx((judge.low, judge.high), rel=1e-6, abs=1e-6)
