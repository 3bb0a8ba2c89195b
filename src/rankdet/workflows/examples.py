"""Images of an evaluation for its report: which ones, small copies of them, and their boxes."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from rankdet.data.dataset import DetectionDataset
from rankdet.metrics.errors import (
    CORRECT,
    KINDS,
    MISSED,
    NOT_KEPT,
    OBJECT_IGNORED,
    STATES,
    Verdicts,
)
from rankdet.metrics.ranking import Array
from rankdet.structures import Detections

_NUM_SAMPLES = 8
_NUM_OF_KIND = 6  # of the best, the worst, and those with most missed objects
_LONGEST_SIDE = 320  # pixels of a copy
_QUALITY = 80
_MOST_BOXES = 1000  # objects, or detections, of one picture: a page could not show more
_CLOSEST_TO_SURE = 1e-6  # a score of exactly 0 or 1 has no logit


def pictures(
    verdicts: Verdicts,
    detections: Sequence[Detections],
    dataset: DetectionDataset,
    thresholds: Sequence[float],
) -> list[dict[str, Any]]:
    """The chosen images with their objects and with the detections that are kept, ready for JSON.

    detections: of every image, by which the verdicts were found with these thresholds. See
    `choose_images` for which images these are, and in which order.
    """
    chosen = choose_images(verdicts, len(dataset), thresholds)
    return [
        example(verdicts, detections[index], dataset, index, kinds)
        for index, kinds in chosen.items()
    ]


def example(
    verdicts: Verdicts,
    found: Detections,
    dataset: DetectionDataset,
    index: int,
    kinds: Sequence[str],
) -> dict[str, Any]:
    """One image with its objects and with the detections that are kept, ready for JSON."""
    return {
        "name": _short_name(dataset.name(index)),
        "index": index,
        "kinds": list(kinds),
        "width": dataset.size(index)[1],
        "height": dataset.size(index)[0],
        "jpeg": base64.b64encode(small_jpeg(dataset.image(index))).decode(),
        "objects": _objects(verdicts, dataset, index),
        "detections": _detections(verdicts, found, dataset, index),
    }


def _short_name(name: str) -> str:
    """The end of a path: enough to find the image, and short enough for a phone.

    >>> _short_name("/srv/sets/VOC2007/JPEGImages/000005.jpg")
    'VOC2007/JPEGImages/000005.jpg'
    """
    return "/".join(PurePath(name).parts[-3:])


def choose_images(
    verdicts: Verdicts, num_images: int, thresholds: Sequence[float]
) -> dict[int, list[str]]:
    """Numbers of images, each with what it is an example of; first the samples, then the best, ...

    sample: up to 8, evenly spaced among the images with objects: other detections change nothing.
    best: up to 6 with the highest F1, of equals those with more objects. worst: up to 6 with the
    surest mistake. missed: up to 6 with most missed objects. Of equals the first.
    How sure a mistake is: its logit minus that of its class's threshold, because scores of a
    ranking loss mean nothing by themselves.
    """
    num_objects = _per_image(verdicts.object_images, verdicts.states != OBJECT_IGNORED, num_images)
    num_missed = _per_image(verdicts.object_images, verdicts.states == MISSED, num_images)
    num_correct = _per_image(verdicts.images, verdicts.kinds == CORRECT, num_images)
    num_wrong = _per_image(verdicts.images, verdicts.is_wrong, num_images)
    f1 = 2 * num_correct / np.maximum(num_correct + num_wrong + num_objects, 1)
    wrong = np.flatnonzero(verdicts.is_wrong)
    limits = np.asarray(thresholds, dtype=np.float64)[verdicts.labels[wrong]]
    sureness = np.zeros(num_images)  # none is negative: a score below the threshold is not kept
    np.maximum.at(sureness, verdicts.images[wrong], _logit(verdicts.scores[wrong]) - _logit(limits))
    of_kind = {
        "sample": evenly_spaced(np.flatnonzero(num_objects), _NUM_SAMPLES),
        "best": _first(np.lexsort((-num_objects, -f1)), num_correct > 0),
        "worst": _first(np.argsort(-sureness, kind="stable"), num_wrong > 0),
        "missed": _first(np.lexsort((num_objects, -num_missed)), num_missed > 0),
    }
    chosen: dict[int, list[str]] = {}
    for kind, images in of_kind.items():
        for index in images.tolist():
            chosen.setdefault(index, []).append(kind)
    return chosen


def _per_image(images: Array, is_chosen: Array, num_images: int) -> Array:
    return np.bincount(images[is_chosen], minlength=num_images)


def _logit(scores: Array) -> Array:
    inside = np.clip(scores, _CLOSEST_TO_SURE, 1 - _CLOSEST_TO_SURE)
    logits: Array = np.log(inside / (1 - inside))
    return logits


def evenly_spaced(images: Array, most: int) -> Array:
    """At most this many of the images, the first and the last among them."""
    if len(images) <= most:
        return images
    return images[np.linspace(0, len(images) - 1, most).round().astype(np.int64)]


def _first(order: Array, is_candidate: Array) -> Array:
    """The first images in this order that are candidates."""
    return order[is_candidate[order]][:_NUM_OF_KIND]


def small_jpeg(image: Tensor) -> bytes:
    """A JPEG file of the image (3, height, width) uint8, its longer side at most 320 pixels.

    >>> import torch
    >>> file = small_jpeg(torch.zeros(3, 640, 1, dtype=torch.uint8))
    >>> Image.open(io.BytesIO(file)).size
    (1, 320)
    """
    canvas = Image.fromarray(image.permute(1, 2, 0).contiguous().cpu().numpy())
    # reducing_gap: a large photograph is first made smaller in a quick way.
    canvas.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE), Image.Resampling.LANCZOS, reducing_gap=3.0)
    stream = io.BytesIO()
    canvas.save(stream, "JPEG", quality=_QUALITY, optimize=True)
    return stream.getvalue()


def _objects(verdicts: Verdicts, dataset: DetectionDataset, index: int) -> list[dict[str, Any]]:
    target = dataset.target(index)
    states = verdicts.states[verdicts.object_images == index].tolist()
    rows = zip(target.boxes.tolist(), target.labels.tolist(), states, strict=True)
    return [
        {"box": _rounded(box), "class": dataset.classes[label], "state": STATES[state]}
        for box, label, state in islice(rows, _MOST_BOXES)
    ]


def _detections(
    verdicts: Verdicts, found: Detections, dataset: DetectionDataset, index: int
) -> list[dict[str, Any]]:
    """Those that are kept, in the order in which they were found: best first."""
    kinds = verdicts.kinds[verdicts.images == index].tolist()
    rows = zip(
        found.boxes.tolist(), found.labels.tolist(), found.scores.tolist(), kinds, strict=True
    )
    return [
        {
            "box": _rounded(box),
            "class": dataset.classes[label],
            "score": float(f"{score:.5g}"),
            "kind": KINDS[kind],
        }
        for box, label, score, kind in rows
        if kind != NOT_KEPT
    ][:_MOST_BOXES]


def _rounded(box: list[float]) -> list[float]:
    return [round(edge, 1) for edge in box]
