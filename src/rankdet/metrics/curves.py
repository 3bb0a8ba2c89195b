"""Precision over recall, as points for a plot."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankdet.metrics.ranking import Array, running_counts

_NUM_BINS = 66  # of recall, with up to three points each: at most 198


@dataclass(frozen=True)
class Curve:
    """Points with falling score: keeping detections down to score gives recall and precision.

    recall and precision in percent. Precision is as it is, not its envelope.
    """

    score: tuple[float, ...]
    recall: tuple[float, ...]
    precision: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        return {name: list(values) for name, values in dataclasses.asdict(self).items()}


def precision_recall_curve(scores: Array, is_true: Array, num_objects: int) -> Curve | None:
    """The curve of one class, thinned to at most 198 points; None if it has no objects.

    scores (D,) falling and is_true (D,) bool, without detections that do not count. Equal scores
    give one point. Of the points in each 66th of the recall axis three are kept: that of the
    highest and that of the lowest precision, and the last; a plot looks the same.

    >>> precision_recall_curve(np.array([0.9, 0.8, 0.7]), np.array([True, False, True]), 2)
    Curve(score=(0.9, 0.8, 0.7), recall=(50.0, 50.0, 100.0), precision=(100.0, 50.0, 66.667))
    """
    if not num_objects:
        return None
    levels, num_true, num_kept = running_counts(scores, is_true)
    precision = num_true / num_kept
    keep = _thinned(np.minimum(num_true * _NUM_BINS // num_objects, _NUM_BINS - 1), precision)
    recall = num_true[keep] / num_objects
    return Curve(_rounded(levels[keep]), _rounded(100 * recall), _rounded(100 * precision[keep]))


def _thinned(bins: Array, precision: Array) -> Array:
    """The rows of the points to keep, ascending; bins: of each point's recall, ascending."""
    is_last = np.append(bins[1:] != bins[:-1], True)[: len(bins)]
    is_first = np.append(True, is_last[:-1])[: len(bins)]
    by_precision = np.lexsort((precision, bins))  # within a bin: lowest first, highest last
    return np.unique(
        np.concatenate([np.flatnonzero(is_last), by_precision[is_first], by_precision[is_last]])
    )


def _rounded(values: Array) -> tuple[float, ...]:
    """Five digits of each: enough for any plot, and a file of 80 classes stays small."""
    return tuple(float(f"{value:.5g}") for value in values)
