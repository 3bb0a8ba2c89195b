"""Which scores to keep: AP-loss scores have no absolute meaning, so each class has its own."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankdet.metrics.ranking import Array, running_counts


@dataclass(frozen=True)
class Threshold:
    """A score, and how good the detections with at least that score are, in percent."""

    score: float
    precision: float
    recall: float
    f1: float


def best_threshold(scores: Array, is_true: Array, num_objects: int) -> Threshold | None:
    """The threshold with the best F1, the harmonic mean of precision and recall, of one class.

    scores (D,) falling and is_true (D,) bool, without detections that do not count. A detection is
    kept if score >= threshold, so equal scores are kept together. Of equally good thresholds the
    highest is taken. None without objects or true positives: then no threshold is good.

    >>> best_threshold(np.array([0.9, 0.8, 0.7]), np.array([True, False, True]), 2)
    Threshold(score=0.7, precision=66.66666666666667, recall=100.0, f1=80.0)
    """
    if not num_objects or not is_true.any():
        return None
    levels, num_true, num_kept = running_counts(scores, is_true)
    f1 = 2 * num_true / (num_kept + num_objects)
    best = int(np.argmax(f1))  # the first of the highest
    return Threshold(
        float(levels[best]),
        float(100 * num_true[best] / num_kept[best]),
        float(100 * num_true[best] / num_objects),
        float(100 * f1[best]),
    )


def usual_thresholds(own: Sequence[float | None], otherwise: float) -> tuple[float, ...]:
    """The lowest score that counts for each class, as prediction has it.

    own: the best threshold of each class, None for a class without one (no object of it in the
    data, or none found): it has the median of the others, because losses of ours rank all classes
    together, so that their scores can be compared. Where no class has one: `otherwise` for all.

    >>> usual_thresholds([0.3, None, 0.1], 0.01), usual_thresholds([None, None], 0.01)
    ((0.3, 0.2, 0.1), (0.01, 0.01))
    """
    known = [value for value in own if value is not None]
    usual = statistics.median(known) if known else otherwise
    return tuple(usual if value is None else value for value in own)
