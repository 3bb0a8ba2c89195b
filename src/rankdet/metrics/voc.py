"""The numbers of PASCAL VOC, and the mean over IoU thresholds that the paper reports for it."""

from __future__ import annotations

from collections.abc import Sequence

from rankdet.metrics.evaluation import Evaluation, assemble, mean_of_known, notes_on_kept
from rankdet.metrics.matching import IOU_THRESHOLDS, Matches, match
from rankdet.metrics.ranking import average_precision, average_precision_11point
from rankdet.structures import Detections, Target

# A metric's name, and the field of ClassResult that it is the mean of.
_METRICS = {"AP": "ap", "AP50": "ap50", "AP75": "ap75", "AP50_11point": "ap50_11point"}


def evaluate_voc(
    detections: Sequence[Detections],
    targets: Sequence[Target],
    classes: Sequence[str],
    *,
    max_detections: int = 100,
) -> Evaluation:
    """The detections of every image judged by the rules in `matching.match`.

    Metrics are means over the classes that have objects which are not ignored: AP50 and AP75
    (all-point average precision at IoU 0.5 and 0.75), AP (the mean of it over IoU 0.5, 0.55, ...,
    0.95, as the paper reports for VOC), AP50_11point (VOC2007's). None if no class has objects.
    max_detections: how many the detector keeps in an image; it is needed for the note on images
    where that many were found. ValueError if a number is not finite.

    >>> import torch
    >>> box, label = torch.tensor([[0.0, 0.0, 9.0, 9.0]]), torch.tensor([0])
    >>> target = Target(box, label, torch.tensor([False]), torch.tensor([81.0]), 1, (9, 9))
    >>> found = Detections(box, torch.tensor([0.3]), label)
    >>> evaluate_voc([found], [target], ["cat"]).metrics
    {'AP': 100.0, 'AP50': 100.0, 'AP75': 100.0, 'AP50_11point': 100.0}
    """
    matches = match(detections, targets, len(classes))
    averages = [_averages(matches, label) for label in range(len(classes))]
    metrics = {
        name: mean_of_known([fields.get(field) for fields in averages])
        for name, field in _METRICS.items()
    }
    notes = notes_on_kept(detections, max_detections)
    return assemble("voc", metrics, averages, matches, classes, notes)


def _averages(matches: Matches, label: int) -> dict[str, float | None]:
    """Fields of the class's ClassResult, in percent; none of them if it has no objects."""
    num_objects = int(matches.num_objects[label])
    if not num_objects:
        return {}
    at = {
        iou: 100 * average_precision(matches.of_class(label, i)[1], num_objects)
        for i, iou in enumerate(IOU_THRESHOLDS)
    }
    _, is_true = matches.of_class(label)
    return {
        "ap": mean_of_known(list(at.values())),
        "ap50": at[0.5],
        "ap75": at[0.75],
        "ap50_11point": 100 * average_precision_11point(is_true, num_objects),
    }
