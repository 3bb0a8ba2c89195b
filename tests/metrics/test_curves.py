from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdet.metrics.curves import precision_recall_curve


def test_a_short_curve_has_every_point() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6])
    curve = precision_recall_curve(scores, np.array([True, False, True, False]), 4)
    assert curve is not None
    assert curve.score == (0.9, 0.8, 0.7, 0.6)
    assert curve.recall == (25, 25, 50, 50)
    assert curve.precision == pytest.approx((100, 50, 66.667, 50))


def test_equal_scores_are_one_point() -> None:
    curve = precision_recall_curve(np.array([0.9, 0.9]), np.array([True, False]), 1)
    assert curve is not None
    assert (curve.score, curve.recall, curve.precision) == ((0.9,), (100,), (50,))


def test_a_class_without_detections_has_no_points_and_without_objects_no_curve() -> None:
    empty = precision_recall_curve(np.zeros(0), np.zeros(0, dtype=bool), 3)
    assert empty is not None
    assert empty.to_dict() == {"score": [], "recall": [], "precision": []}
    assert precision_recall_curve(np.array([0.5]), np.array([False]), 0) is None


def test_a_curve_is_ready_for_json() -> None:
    curve = precision_recall_curve(np.array([1 / 3]), np.array([True]), 3)
    assert curve is not None
    text = json.dumps(curve.to_dict())
    assert text == '{"score": [0.33333], "recall": [33.333], "precision": [100.0]}'


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(100, 3000), st.floats(0.05, 0.95))
def test_a_long_curve_is_thinned_but_keeps_its_shape(seed: int, count: int, rate: float) -> None:
    rng = np.random.default_rng(seed)
    is_true = rng.random(count) < rate
    num_objects = int(is_true.sum()) + int(rng.integers(1, 20))
    scores = np.linspace(0.9, 0.1, count)
    curve = precision_recall_curve(scores, is_true, num_objects)
    assert curve is not None
    assert len(curve.score) == len(curve.recall) == len(curve.precision) <= 198
    assert list(curve.score) == sorted(curve.score, reverse=True)
    assert list(curve.recall) == sorted(curve.recall)

    num_true = np.cumsum(is_true)
    precision = 100 * num_true / np.arange(1, count + 1)
    assert curve.recall[-1] == pytest.approx(100 * num_true[-1] / num_objects, rel=1e-4)
    assert curve.precision[-1] == pytest.approx(precision[-1], rel=1e-4)
    # In every 66th of the recall axis the thinned curve reaches as high and as low as the whole.
    kept_true = np.rint(np.array(curve.recall) * num_objects / 100).astype(int)
    whole_bins, kept_bins = num_true * 66 // num_objects, kept_true * 66 // num_objects
    for part in np.unique(whole_bins):
        whole = precision[whole_bins == part]
        kept = np.array(curve.precision)[kept_bins == part]
        assert kept.max() == pytest.approx(whole.max(), rel=1e-4)
        assert kept.min() == pytest.approx(whole.min(), rel=1e-4)


def test_the_last_point_of_a_full_recall_has_a_place() -> None:
    # Recall 1 would be a bin of its own after the last.
    scores = np.linspace(0.9, 0.1, 500)
    is_true = np.arange(500) % 2 == 0
    curve = precision_recall_curve(scores, is_true, 250)
    assert curve is not None
    assert len(curve.score) <= 198
    assert (curve.recall[-1], curve.precision[-1]) == (100, 50)
