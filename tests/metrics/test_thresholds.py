from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdet.metrics.thresholds import best_threshold, usual_thresholds


def test_the_best_f1_worked_out_by_hand() -> None:
    # Four objects. Kept down to 0.9: 1 true of 1, F1 2/5; 0.8: 2 of 2, 4/6; 0.7: 2 of 3, 4/7;
    # 0.6: 3 of 4, 6/8; 0.5: 3 of 5, 6/9.
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
    best = best_threshold(scores, np.array([True, True, False, True, False]), 4)
    assert best is not None
    assert (best.score, best.precision, best.recall, best.f1) == pytest.approx((0.6, 75, 75, 75))


def test_of_equally_good_thresholds_the_highest_is_taken() -> None:
    # Two objects. Down to 0.9: 2 * 1 / (1 + 2); down to 0.6: 2 * 2 / (4 + 2): both 2/3.
    scores = np.array([0.9, 0.8, 0.7, 0.6])
    best = best_threshold(scores, np.array([True, False, False, True]), 2)
    assert best is not None
    assert (best.score, best.precision, best.recall) == pytest.approx((0.9, 100, 50))


def test_equal_scores_enter_together() -> None:
    # The true one cannot be kept without the three false ones of the same score.
    scores = np.full(4, 0.5)
    best = best_threshold(scores, np.array([True, False, False, False]), 1)
    assert best is not None
    assert (best.score, best.precision, best.recall, best.f1) == pytest.approx((0.5, 25, 100, 40))


@pytest.mark.parametrize(("flags", "num_objects"), [([], 3), ([False, False], 3), ([False], 0)])
def test_without_objects_or_true_positives_there_is_none(
    flags: list[bool], num_objects: int
) -> None:
    scores = np.linspace(1, 0, len(flags))
    assert best_threshold(scores, np.array(flags, dtype=bool), num_objects) is None


@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=20),
    st.integers(0, 5),
)
def test_no_other_threshold_is_better(rows: list[tuple[int, bool]], num_missed: int) -> None:
    rows = sorted(rows, key=lambda row: -row[0])
    num_objects = sum(flag for _, flag in rows) + num_missed

    def f1_at(threshold: float) -> float:
        kept = [flag for score, flag in rows if score >= threshold]
        return 2 * sum(kept) / (len(kept) + num_objects)

    best = best_threshold(
        np.array([score for score, _ in rows], dtype=float),
        np.array([flag for _, flag in rows]),
        num_objects,
    )
    if not any(flag for _, flag in rows):
        assert best is None
        return
    assert best is not None
    assert best.f1 == pytest.approx(100 * f1_at(best.score))
    assert all(f1_at(score) <= f1_at(best.score) for score in range(7))
    assert all(f1_at(score) < f1_at(best.score) for score in range(7) if score > best.score)
    assert best.f1 == pytest.approx(
        2 * best.precision * best.recall / (best.precision + best.recall)
    )


# The thresholds of all classes


def test_a_class_without_a_threshold_has_the_median_of_the_others() -> None:
    assert usual_thresholds([0.9, None, 0.1, 0.2, None], 0.01) == (0.9, 0.2, 0.1, 0.2, 0.2)


def test_classes_that_all_lack_one_have_the_lowest_score_that_is_detected() -> None:
    assert usual_thresholds([None, None], 0.05) == (0.05, 0.05)
    assert usual_thresholds([], 0.05) == ()


def test_a_threshold_of_zero_is_one() -> None:
    assert usual_thresholds([0.0, 0.5, None], 0.05) == (0.0, 0.5, 0.25)
