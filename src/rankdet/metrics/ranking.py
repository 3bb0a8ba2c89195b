"""Numbers of one class's detections in the order of their scores.

is_true (D,) bool, best first: which detections are true positives; the others are false ones.
Detections on ignored objects are in none of these lists.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def average_precision(is_true: Array, num_objects: int) -> float:
    """The area under the curve of precision over recall, made to fall only (VOC2010 and later).

    Precision at a recall is the highest at that recall or any higher one. Every true positive is a
    step of 1 / num_objects in recall; objects that were not found add nothing.

    >>> average_precision(np.array([True, False, True]), 2)  # (1 + 2/3) / 2
    0.8333333333333333
    """
    ranks = np.flatnonzero(is_true) + 1
    precision = np.arange(1, len(ranks) + 1) / ranks
    highest_after = np.maximum.accumulate(precision[::-1])
    return float(highest_after.sum()) / num_objects


def average_precision_11point(is_true: Array, num_objects: int) -> float:
    """The mean of the highest precision at recall >= 0, 0.1, ..., 1 (VOC2007).

    The comparison of recalls is exact: 3 of 10 objects are a recall of 0.3. (In floating point
    3 * 0.1 > 3 / 10, and some programs lose that point.)

    >>> average_precision_11point(np.array([True, False, True]), 2)  # (6 + 5 * 2/3) / 11
    0.8484848484848484
    """
    ranks = np.flatnonzero(is_true) + 1
    precision = np.arange(1, len(ranks) + 1) / ranks
    highest_after = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    # Tenth k is reached by the n-th true positive if n / num_objects >= k / 10; 0 by the first.
    needed = np.maximum(-(-np.arange(11) * num_objects // 10), 1)
    return float(highest_after[np.minimum(needed - 1, len(ranks))].mean())


def running_counts(scores: Array, is_true: Array) -> tuple[Array, Array, Array]:
    """(levels, num_true, num_kept): of the detections with at least each score, highest first.

    Equal scores are one level: no threshold can part them.

    >>> running_counts(np.array([0.9, 0.8, 0.8]), np.array([True, False, True]))
    (array([0.9, 0.8]), array([1, 2]), array([1, 3]))
    """
    is_end = np.append(scores[1:] != scores[:-1], True)[: len(scores)]
    return scores[is_end], np.cumsum(is_true)[is_end], np.flatnonzero(is_end) + 1
