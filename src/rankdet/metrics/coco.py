"""The twelve numbers of COCO, computed by faster-coco-eval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankdet.errors import RankdetError
from rankdet.metrics.evaluation import Evaluation, assemble, notes_on_kept
from rankdet.metrics.matching import match
from rankdet.metrics.ranking import Array
from rankdet.structures import Detections, Target

# In the order in which COCO's program gives them.
METRICS = (
    *("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"),
    *("AR_1", "AR_10", "AR_100", "AR_small", "AR_medium", "AR_large"),
)
_COCO_LIMIT = 100  # detections of an image and class that COCO's program looks at


def evaluate_coco(
    detections: Sequence[Detections],
    targets: Sequence[Target],
    classes: Sequence[str],
    *,
    max_detections: int = 100,
) -> Evaluation:
    """The detections of every image judged as COCO does.

    Metrics: COCO's twelve, in percent; None where there are no objects (of that size). Ignored
    objects are crowds. max_detections: how many the detector keeps in an image; it is needed for
    the note on images where that many were found. ValueError if a number is not finite.

    Thresholds and curves follow VOC's matching at IoU 0.5 (see `matching.match`): a crowd is there
    an ignored object like any other.
    """
    matches = match(detections, targets, len(classes), thresholds=(0.5,))
    notes = _notes_on_limits(detections, max_detections)
    stats, precision = _run(ground_truth(targets, classes), results(detections))
    metrics = {name: _percent(value) for name, value in zip(METRICS, stats, strict=True)}
    averages = [_averages(precision[:, :, label]) for label in range(len(classes))]
    return assemble("coco", metrics, averages, matches, classes, notes)


def ground_truth(targets: Sequence[Target], classes: Sequence[str]) -> dict[str, Any]:
    """A COCO file's content. Ids of images, annotations and categories are counted from 1.

    The data set's own ids are not used: they may repeat, and COCO's program takes an annotation
    with the id 0 for one that was not found.
    """
    images = [
        {"id": i, "height": target.size[0], "width": target.size[1]}
        for i, target in enumerate(targets, start=1)
    ]
    annotations: list[dict[str, Any]] = []
    for image, target in zip(images, targets, strict=True):
        rows = zip(
            _xywh(target.boxes.detach().cpu().double().numpy()),
            target.labels.tolist(),
            target.is_ignored.tolist(),
            target.areas.tolist(),
            strict=True,
        )
        annotations += [
            {
                "id": len(annotations) + i,
                "image_id": image["id"],
                "category_id": label + 1,
                "bbox": bbox,
                "area": area,
                "iscrowd": int(is_ignored),
            }
            for i, (bbox, label, is_ignored, area) in enumerate(rows, start=1)
        ]
    categories = [{"id": k, "name": name} for k, name in enumerate(classes, start=1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def results(detections: Sequence[Detections]) -> list[dict[str, Any]]:
    """COCO's list of results, with the ids of `ground_truth`."""
    rows = []
    for image_id, found in enumerate(detections, start=1):
        boxes = _xywh(found.boxes.detach().cpu().double().numpy())
        pairs = zip(boxes, found.scores.tolist(), found.labels.tolist(), strict=True)
        rows += [
            {"image_id": image_id, "category_id": label + 1, "bbox": bbox, "score": score}
            for bbox, score, label in pairs
        ]
    return rows


def _run(truth: dict[str, Any], found: list[dict[str, Any]]) -> tuple[list[float], Array]:
    """(the twelve numbers, precision (T, R, K) of all sizes and 100 detections); -1: none."""
    try:
        from faster_coco_eval import COCO, COCOeval_faster
    except ImportError as error:
        raise RankdetError(
            "The COCO evaluation needs the package faster-coco-eval, which cannot be imported "
            f"({error}). Install it with: pip install faster-coco-eval"
        ) from error
    expected = COCO(truth, print_function=_say_nothing)
    evaluation = COCOeval_faster(
        expected, expected.loadRes(found), iouType="bbox", print_function=_say_nothing
    )
    evaluation.run()
    return list(evaluation.stats), evaluation.eval["precision"][:, :, :, 0, -1]


def _say_nothing(*_: object) -> None:
    """In place of print."""


def _averages(precision: Array) -> dict[str, float | None]:
    """ap, ap50 and ap75 of a class from its precision (T, R) at IoU 0.5, 0.55, ... and recalls."""
    parts = {"ap": precision, "ap50": precision[0], "ap75": precision[5]}
    return {name: _percent(float(np.mean(part))) for name, part in parts.items()}


def _percent(value: float) -> float | None:
    return None if value < 0 else 100 * float(value)


def _xywh(boxes: Array) -> list[list[float]]:
    """Left, top, width and height of boxes (N, 4)."""
    rows: list[list[float]] = np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]]).tolist()
    return rows


def _notes_on_limits(detections: Sequence[Detections], max_detections: int) -> list[str]:
    notes = notes_on_kept(detections, max_detections)
    num_cut = sum(
        len(found) > _COCO_LIMIT and int(found.labels.bincount().max()) > _COCO_LIMIT
        for found in detections
    )
    if num_cut:
        notes.append(
            f"{num_cut} of {len(detections)} images have more than {_COCO_LIMIT} detections of a "
            f"class: COCO looks at the best {_COCO_LIMIT} only."
        )
    return notes
