"""What an evaluation says: numbers of the whole, a row for each class, and remarks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rankdet.errors import listed
from rankdet.metrics.curves import Curve, precision_recall_curve
from rankdet.metrics.matching import Matches
from rankdet.metrics.thresholds import best_threshold
from rankdet.structures import Detections

NOT_AVAILABLE = "n/a"
_MOST_NAMES = 10  # classes that a note lists


@dataclass(frozen=True)
class ClassResult:
    """One class's row. None: not available, because the class has no objects.

    num_objects: without the ignored ones. All but `threshold` in percent: ap is the mean over the
    IoU thresholds 0.5, 0.55, ..., 0.95; ap50_11point is None for COCO, which has no such number.
    threshold: the score with the best F1 at IoU 0.5, with its precision, recall and f1; the
    detections to be kept have score >= threshold. These four are None without a true positive.
    """

    name: str
    num_objects: int
    num_detections: int
    ap: float | None = None
    ap50: float | None = None
    ap75: float | None = None
    ap50_11point: float | None = None
    threshold: float | None = None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """How good the detections of a split are.

    protocol: "voc" or "coco". metrics: percent, None where not available. classes and curves: one
    for each class in the data set's order; the curve at IoU 0.5 is None where its class has no
    objects. notes: sentences that a reader of the numbers should know.

    >>> rows = (ClassResult("cat", 4, 9, ap=30.25, ap50=50.0, ap75=25.0, threshold=0.5,
    ...                     precision=80.0, recall=100.0, f1=88.9), ClassResult("dog", 0, 1))
    >>> evaluation = Evaluation("voc", {"AP": 30.25, "AP50": 50.0, "AP75": 25.0}, rows)
    >>> for row in evaluation.table():
    ...     print(*row[:6])
    class objects detections AP AP50 AP75
    cat 4 9 30.2 50.0 25.0
    dog 0 1 n/a n/a n/a
    mean 4 10 30.2 50.0 25.0
    """

    protocol: str
    metrics: dict[str, float | None]
    classes: tuple[ClassResult, ...]
    notes: tuple[str, ...] = ()
    curves: tuple[Curve | None, ...] = ()

    @property
    def thresholds(self) -> tuple[float | None, ...]:
        """The score with the best F1 of each class, in the order of the classes."""
        return tuple(result.threshold for result in self.classes)

    def to_dict(self) -> dict[str, Any]:
        """The same in dictionaries, lists, text and numbers, as JSON has them."""
        return {
            "protocol": self.protocol,
            "metrics": dict(self.metrics),
            "classes": [dataclasses.asdict(result) for result in self.classes],
            "notes": list(self.notes),
            "curves": [curve and curve.to_dict() for curve in self.curves],
        }

    def table(self) -> list[tuple[str, ...]]:
        """Rows of text: a heading, one for each class, and the mean of all."""
        heading = ("class", "objects", "detections", "AP", "AP50", "AP75", "threshold")
        rows = [(*heading, "precision", "recall", "F1"), *map(_row, self.classes)]
        num_objects = sum(result.num_objects for result in self.classes)
        num_detections = sum(result.num_detections for result in self.classes)
        means = (percent_text(self.metrics.get(name)) for name in ("AP", "AP50", "AP75"))
        return [*rows, ("mean", str(num_objects), str(num_detections), *means, "", "", "", "")]


def _row(result: ClassResult) -> tuple[str, ...]:
    threshold = NOT_AVAILABLE if result.threshold is None else f"{result.threshold:.3g}"
    averages = (percent_text(value) for value in (result.ap, result.ap50, result.ap75))
    at_threshold = (percent_text(value) for value in (result.precision, result.recall, result.f1))
    counts = (str(result.num_objects), str(result.num_detections))
    return (result.name, *counts, *averages, threshold, *at_threshold)


def percent_text(value: float | None) -> str:
    """A number of percent as readers see it.

    >>> percent_text(30.25), percent_text(None)
    ('30.2', 'n/a')
    """
    return NOT_AVAILABLE if value is None else f"{value:.1f}"


def assemble(
    protocol: str,
    metrics: dict[str, float | None],
    averages: Sequence[dict[str, float | None]],
    matches: Matches,
    classes: Sequence[str],
    notes: Sequence[str] = (),
) -> Evaluation:
    """The evaluation of which a protocol knows the metrics, and the averages of each class.

    averages: fields of ClassResult by name. Thresholds and curves are those of `matches` at its
    first IoU threshold, which is 0.5.
    """
    results, curves = [], []
    for label, name in enumerate(classes):
        num_objects = int(matches.num_objects[label])
        fields = dict(averages[label])
        best = best_threshold(*matches.of_class(label), num_objects)
        if best is not None:
            fields |= {
                "threshold": best.score,
                "precision": best.precision,
                "recall": best.recall,
                "f1": best.f1,
            }
        results.append(ClassResult(name, num_objects, matches.num_detections(label), **fields))
        curves.append(precision_recall_curve(*matches.of_class(label), num_objects))
    all_notes = (*notes, *_notes_on_classes(results))
    return Evaluation(protocol, metrics, tuple(results), all_notes, tuple(curves))


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean of those that are not None; None if all are.

    >>> mean_of_known([1.0, None, 2.0]), mean_of_known([None])
    (1.5, None)
    """
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def notes_on_kept(detections: Sequence[Detections], max_detections: int) -> list[str]:
    """A sentence if images reach the number of detections that the detector keeps at most.

    >>> import torch
    >>> two = Detections(torch.zeros(2, 4), torch.ones(2), torch.zeros(2).long())
    >>> notes_on_kept([two], 3)
    []
    >>> notes_on_kept([two], 2)[0].partition(":")[0]
    '1 of 1 images have 2 detections, the most that are kept'
    """
    num_full = sum(len(found) >= max_detections for found in detections)
    if not num_full:
        return []
    return [
        f"{num_full} of {len(detections)} images have {max_detections} detections, the most "
        "that are kept: objects with lower scores may be missing."
    ]


def _notes_on_classes(results: Sequence[ClassResult]) -> list[str]:
    missing = [result.name for result in results if not result.num_objects]
    if not missing:
        return []
    names = listed(missing, _MOST_NAMES)
    return [f"{len(missing)} of {len(results)} classes have no objects (not in the mean): {names}."]
