"""Which class is taken for which."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankdet.metrics.errors import CORRECT, IOU, MISSED, Verdicts
from rankdet.metrics.matching import pairs
from rankdet.metrics.ranking import Array


def confusion_counts(verdicts: Verdicts) -> dict[str, Any]:
    """{"iou": 0.5, "counts": (K + 1) rows of K + 1 numbers}, ready for JSON.

    Row: the true class, the last one background. Column: the detected class, the last one missed.
    A correct detection has its object. Then each of the others takes, best score first, the object
    of another class that nobody has and that it overlaps most, from IoU 0.5 on; without one it is
    on background. Objects that nobody has are missed. So a row's sum is the number of objects of
    the class, and a column's that of the detections.
    """
    side = verdicts.num_classes + 1
    last = verdicts.num_classes
    correct = verdicts.labels[verdicts.kinds == CORRECT]
    taken, takers = _taken_for_another(verdicts)
    is_alone = verdicts.is_wrong
    is_alone[takers] = False
    alone = verdicts.labels[is_alone]
    is_missed = verdicts.states == MISSED
    is_missed[taken] = False
    missed = verdicts.object_labels[is_missed]
    cells = [
        correct * side + correct,
        verdicts.object_labels[taken] * side + verdicts.labels[takers],
        last * side + alone,
        missed * side + last,
    ]
    counts = np.bincount(np.concatenate(cells), minlength=side * side)
    return {"iou": IOU, "counts": counts.reshape(side, side).tolist()}


def _taken_for_another(verdicts: Verdicts) -> tuple[Array, Array]:
    """(objects, detections) (P,): rows of the objects and of those of another class that have them.

    The objects are those without a correct detection.
    """
    detections = np.flatnonzero(verdicts.is_wrong)
    detections = detections[np.argsort(-verdicts.scores[detections], kind="stable")]
    objects = np.flatnonzero(verdicts.states == MISSED)
    labels, object_labels = verdicts.labels[detections], verdicts.object_labels[objects]
    owners: dict[int, int] = {}
    takers: set[int] = set()
    for detection, candidate, iou in pairs(
        verdicts.images[detections],
        verdicts.boxes[detections],
        verdicts.object_images[objects],
        verdicts.object_boxes[objects],
    ):
        rows = np.flatnonzero((labels[detection] != object_labels[candidate]) & (iou >= IOU))
        # Best score first, then the highest IoU, then the object that stands first.
        rows = rows[np.lexsort((candidate[rows], -iou[rows], detection[rows]))]
        for taker, taken in zip(detection[rows].tolist(), candidate[rows].tolist(), strict=True):
            if taken not in owners and taker not in takers:
                owners[taken] = taker
                takers.add(taker)
    return objects[list(owners)], detections[list(owners.values())]
