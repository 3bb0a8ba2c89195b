from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from rankdet.metrics.ranking import (
    average_precision,
    average_precision_11point,
    running_counts,
)

rankings = st.lists(st.booleans(), max_size=40)


def flags(text: str) -> np.ndarray:
    """ "TFT": true, false, true."""
    return np.array([sign == "T" for sign in text], dtype=bool)


def devkit_average_precision(is_true: list[bool], num_objects: int) -> float:
    """VOCap of the development kit, 2010 and later, line by line."""
    tp = fp = 0
    recall, precision = [0.0], [0.0]
    for flag in is_true:
        tp, fp = tp + flag, fp + (not flag)
        recall.append(tp / num_objects)
        precision.append(tp / (tp + fp))
    recall.append(1.0)
    precision.append(0.0)
    for i in range(len(precision) - 2, -1, -1):
        precision[i] = max(precision[i], precision[i + 1])
    steps = [i for i in range(1, len(recall)) if recall[i] != recall[i - 1]]
    return sum((recall[i] - recall[i - 1]) * precision[i] for i in steps)


def exact_11point(is_true: list[bool], num_objects: int) -> Fraction:
    """The definition of 2007 in fractions."""
    points, tp = [], 0
    for rank, flag in enumerate(is_true, start=1):
        tp += flag
        points.append((Fraction(tp, num_objects), Fraction(tp, rank)))
    total = Fraction(0)
    for tenth in range(11):
        total += max((p for r, p in points if r >= Fraction(tenth, 10)), default=Fraction(0))
    return total / 11


@pytest.mark.parametrize(
    ("ranking", "num_objects", "all_point", "eleven_point"),
    [
        ("", 3, 0, 0),
        ("F", 1, 0, 0),
        ("T", 1, 1, 1),
        ("FT", 1, 1 / 2, 1 / 2),
        ("T", 2, 1 / 2, 6 / 11),  # recall 0.5: the tenths 0 to 5
        # Precisions at the true ones are 1/2, 2/3, 3/4: the envelope is 3/4 everywhere.
        ("FTTT", 3, 3 / 4, 3 / 4),
        # Precisions 1 and 2/4, recalls 1/3 and 2/3: tenths 0-3 get 1, 4-6 get 1/2, 7-10 get 0.
        ("TFFT", 3, (1 + 1 / 2) / 3, (4 + 3 / 2) / 11),
        # Three of ten: tenth 3 is reached exactly, although 3 * 0.1 > 3 / 10 in floating point.
        ("TTT", 10, 3 / 10, 4 / 11),
    ],
)
def test_average_precision_worked_out_by_hand(
    ranking: str, num_objects: int, all_point: float, eleven_point: float
) -> None:
    assert average_precision(flags(ranking), num_objects) == pytest.approx(all_point)
    assert average_precision_11point(flags(ranking), num_objects) == pytest.approx(eleven_point)


@given(rankings, st.integers(0, 12))
def test_both_averages_follow_their_definitions(is_true: list[bool], num_missed: int) -> None:
    num_objects = max(sum(is_true) + num_missed, 1)
    array = np.array(is_true, dtype=bool)
    expected = devkit_average_precision(is_true, num_objects)
    assert average_precision(array, num_objects) == pytest.approx(expected, abs=1e-12)
    expected = float(exact_11point(is_true, num_objects))
    assert average_precision_11point(array, num_objects) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=10), st.integers(0, 5))
def test_where_precision_only_falls_it_is_that_of_scikit_learn(
    growth: list[int], num_missed: int
) -> None:
    # scikit-learn does not take the envelope. Where precision at the true positives only falls,
    # the envelope changes nothing: the n-th has n * (g1 + ... + gn) false ones before it, and
    # n / (n + n * c) falls as c grows. It does not know of missed objects either.
    is_true: list[bool] = []
    num_false = 0
    for n, slope in enumerate(np.cumsum(growth), start=1):
        is_true += [False] * int(n * slope - num_false) + [True]
        num_false = int(n * slope)
    scores = -np.arange(len(is_true), dtype=float)
    num_objects = len(growth) + num_missed
    expected = average_precision_score(is_true, scores) * len(growth) / num_objects
    assert average_precision(np.array(is_true), num_objects) == pytest.approx(expected)


@given(rankings.filter(any))
def test_it_is_never_below_that_of_scikit_learn(is_true: list[bool]) -> None:
    expected = average_precision_score(is_true, -np.arange(len(is_true), dtype=float))
    assert average_precision(np.array(is_true), sum(is_true)) >= expected - 1e-12


def test_equal_scores_are_one_level() -> None:
    scores = np.array([0.9, 0.5, 0.5, 0.5, 0.1])
    levels, num_true, num_kept = running_counts(scores, flags("TFTTF"))
    assert levels.tolist() == [0.9, 0.5, 0.1]
    assert num_true.tolist() == [1, 3, 3]
    assert num_kept.tolist() == [1, 4, 5]


def test_no_detections_have_no_levels() -> None:
    assert [part.tolist() for part in running_counts(np.zeros(0), flags(""))] == [[], [], []]
