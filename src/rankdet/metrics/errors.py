"""What is wrong with detections: the kind of mistake of each, and the objects that were missed.

D detections and G objects of all images, one image after the other; K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rankdet.metrics.matching import Matches, best_objects, joined, match, numbers
from rankdet.metrics.ranking import Array
from rankdet.structures import Detections, Target

IOU = 0.5  # from which on a detection is at an object's place
LOWER_IOU = 0.1  # from which on it is near it

# What a detection is, by its number in `Verdicts.kinds`; see `judge_errors`.
KINDS = ("correct", "localisation", "duplicate", "class", "background", "uncounted")
CORRECT, LOCALISATION, DUPLICATE, CLASS, BACKGROUND, UNCOUNTED = range(6)
NOT_KEPT = -1  # its score is below the threshold of its class

# What an object is, by its number in `Verdicts.states`.
STATES = ("found", "missed", "ignored")
FOUND, MISSED, OBJECT_IGNORED = range(3)


@dataclass(frozen=True)
class Verdicts:
    """What each detection and each object turned out to be.

    images, labels, scores, kinds (D,) and boxes (D, 4) of the detections; object_images,
    object_labels, states (G,) and object_boxes (G, 4) of the objects. images are numbers of
    images, kinds and states those of KINDS (or NOT_KEPT) and STATES.
    """

    num_classes: int
    images: Array
    labels: Array
    scores: Array
    boxes: Array
    kinds: Array
    object_images: Array
    object_labels: Array
    object_boxes: Array
    states: Array

    @property
    def is_wrong(self) -> Array:
        """(D,) bool: kept and counted, but not correct."""
        return (self.kinds > CORRECT) & (self.kinds < UNCOUNTED)


def judge_errors(
    detections: Sequence[Detections], targets: Sequence[Target], thresholds: Sequence[float]
) -> Verdicts:
    """The verdict on every detection from the threshold of its class on, and on every object.

    A detection is the first of these that holds:

    - uncounted: it belongs to an ignored object, by `matching.match` at IoU 0.5;
    - correct: it is a true positive of that matching;
    - duplicate: it has IoU >= 0.5 with its object, which a better detection has;
    - localisation: its best IoU with an object of its class is from 0.1 to below 0.5;
    - class: it has IoU >= 0.5 with an object of another class;
    - background: it is none of these.

    Only the first looks at ignored objects. An object is found if a correct detection has it.

    >>> import torch
    >>> box, label = torch.tensor([[0.0, 0.0, 9.0, 9.0]]), torch.tensor([1])
    >>> target = Target(box, label, torch.tensor([False]), torch.tensor([81.0]), 1, (9, 9))
    >>> found = Detections(box, torch.tensor([0.3]), torch.tensor([0]))
    >>> verdicts = judge_errors([found], [target], [0.3, 0.3])
    >>> KINDS[verdicts.kinds[0]], STATES[verdicts.states[0]]
    ('class', 'missed')
    """
    matches = match(detections, targets, len(thresholds), thresholds=(IOU,))
    images, boxes, labels = joined(detections)
    object_images, object_boxes, object_labels = joined(targets)
    scores = numbers([found.scores for found in detections], 0)
    is_ignored = numbers([target.is_ignored for target in targets], 0).astype(bool)
    is_kept = scores >= np.asarray(thresholds, dtype=np.float64)[labels]

    kinds = _kinds_at_objects(matches)
    of_class = images * len(thresholds) + labels
    object_of_class = object_images * len(thresholds) + object_labels
    # What the first pass leaves is far from all objects of its class: where the second finds one,
    # it is of another.
    for groups, object_groups, least, kind in (
        (of_class, object_of_class, LOWER_IOU, LOCALISATION),
        (images, object_images, IOU, CLASS),
    ):
        rows = np.flatnonzero(is_kept & (kinds == BACKGROUND))
        _, overlap = best_objects(
            groups[rows], boxes[rows], object_groups[~is_ignored], object_boxes[~is_ignored]
        )
        kinds[rows[overlap >= least]] = kind
    kinds[~is_kept] = NOT_KEPT

    states = np.where(is_ignored, OBJECT_IGNORED, MISSED)
    states[matches.owner[kinds[matches.rows] == CORRECT]] = FOUND
    return Verdicts(
        num_classes=len(thresholds),
        images=images,
        labels=labels,
        scores=scores,
        boxes=boxes,
        kinds=kinds,
        object_images=object_images,
        object_labels=object_labels,
        object_boxes=object_boxes,
        states=states,
    )


def _kinds_at_objects(matches: Matches) -> Array:
    """(D,) uncounted, correct or duplicate; background where it is none of these."""
    kinds = np.full(len(matches.rows), BACKGROUND)
    # At an object, and neither true nor uncounted: a better detection has it.
    kinds[matches.rows[matches.overlap >= IOU]] = DUPLICATE
    kinds[matches.rows[matches.is_true[0]]] = CORRECT
    kinds[matches.rows[~matches.is_counted[0]]] = UNCOUNTED
    return kinds


def error_counts(verdicts: Verdicts, classes: Sequence[str]) -> dict[str, Any]:
    """How many detections are of each kind and how many objects were missed, ready for JSON.

    correct + missed = num_objects, and the five kinds together are num_detections: ignored objects
    and detections on them are in none of the numbers. A detection counts for the class that it
    says.
    """
    names = [*KINDS[:UNCOUNTED], "missed"]
    columns = [_per_class(verdicts, verdicts.kinds == kind) for kind in range(UNCOUNTED)]
    is_missed = verdicts.states == MISSED
    columns.append(np.bincount(verdicts.object_labels[is_missed], minlength=verdicts.num_classes))
    table = np.stack(columns, axis=1)
    totals = dict(zip(names, table.sum(axis=0).tolist(), strict=True))
    return {
        "iou": IOU,
        "lower_iou": LOWER_IOU,
        "num_objects": int((verdicts.states != OBJECT_IGNORED).sum()),
        "num_detections": int(((verdicts.kinds >= 0) & (verdicts.kinds != UNCOUNTED)).sum()),
        **totals,
        "classes": [
            {"name": name, **dict(zip(names, row, strict=True))}
            for name, row in zip(classes, table.tolist(), strict=True)
        ],
    }


def _per_class(verdicts: Verdicts, is_chosen: Array) -> Array:
    """(K,) how many of the chosen detections each class has."""
    return np.bincount(verdicts.labels[is_chosen], minlength=verdicts.num_classes)
