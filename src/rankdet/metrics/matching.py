"""Which detections are true, by the rules of PASCAL VOC, for all classes and IoU thresholds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankdet.metrics.ranking import Array
from rankdet.structures import Detections, Target

IOU_THRESHOLDS = tuple(i / 20 for i in range(10, 20))  # 0.5, 0.55, ..., 0.95
_MOST_PAIRS = 1_000_000  # of a detection and an object whose IoU is computed at once


@dataclass(frozen=True)
class Matches:
    """D detections of all images, by class and then best first, and what became of each.

    offsets (K + 1,): class k has the rows offsets[k] to offsets[k + 1]. scores (D,). is_true and
    is_counted (T, D) bool, for each IoU threshold: a detection on an ignored object is neither a
    true nor a false positive and is not counted. num_objects (K,): without the ignored ones.

    rows (D,): where each stands in the list of all images' detections, one image after the other.
    owner (D,): the row of its object in the list of all images' objects, -1 if its image has none
    of its class; overlap (D,): their IoU.
    """

    offsets: Array
    scores: Array
    is_true: Array
    is_counted: Array
    num_objects: Array
    rows: Array
    owner: Array
    overlap: Array

    def of_class(self, label: int, threshold: int = 0) -> tuple[Array, Array]:
        """(scores, is_true) of the detections that count, at the IoU threshold of that number."""
        rows = slice(self.offsets[label], self.offsets[label + 1])
        is_counted = self.is_counted[threshold, rows]
        return self.scores[rows][is_counted], self.is_true[threshold, rows][is_counted]

    def num_detections(self, label: int) -> int:
        return int(self.offsets[label + 1] - self.offsets[label])


def match(
    detections: Sequence[Detections],
    targets: Sequence[Target],
    num_classes: int,
    thresholds: Sequence[float] = IOU_THRESHOLDS,
) -> Matches:
    """Each detection's fate: true positive, false positive, or not counted.

    A detection belongs to the object of its class and image with the highest IoU, the first of
    equals, ignored objects included. With IoU >= threshold it is not counted if that object is
    ignored, true if no better detection has claimed the object, false if one has. With a lower
    IoU, or no object, it is false. Best first means falling score; of equal scores the one in the
    earlier image, then the one that stands earlier in its image's list.

    Boxes are continuous, with edges counted from 0: for the integer corners of VOC's files, which
    count pixels from 1 and include both ends, this is the IoU of the development kit.
    """
    check(detections, targets, num_classes)
    images, boxes, labels = joined(detections)
    object_images, object_boxes, object_labels = joined(targets)
    scores = numbers([found.scores for found in detections], 0)
    is_ignored = numbers([target.is_ignored for target in targets], 0).astype(bool)

    best_first = np.lexsort((-scores, labels))  # stable: equal scores stay as they stand
    groups = (images * num_classes + labels)[best_first]
    object_groups = object_images * num_classes + object_labels
    owner, overlap = best_objects(groups, boxes[best_first], object_groups, object_boxes)

    is_true = np.zeros((len(thresholds), len(labels)), dtype=bool)
    is_counted = np.ones_like(is_true)
    on_ignored = np.append(is_ignored, False)[owner]  # row -1: no object
    for i, threshold in enumerate(thresholds):
        is_on = (owner >= 0) & (overlap >= threshold)
        is_counted[i] = ~(is_on & on_ignored)
        rows = np.flatnonzero(is_on & ~on_ignored)
        _, first = np.unique(owner[rows], return_index=True)  # who claims the object
        is_true[i, rows[first]] = True
    counts = np.bincount(labels, minlength=num_classes)
    return Matches(
        offsets=np.append(0, np.cumsum(counts)),
        scores=scores[best_first],
        is_true=is_true,
        is_counted=is_counted,
        num_objects=np.bincount(object_labels[~is_ignored], minlength=num_classes),
        rows=best_first,
        owner=owner,
        overlap=overlap,
    )


def check(detections: Sequence[Detections], targets: Sequence[Target], num_classes: int) -> None:
    """ValueError unless all can be evaluated: finite numbers, ordered corners, known labels."""
    if len(detections) != len(targets):
        raise ValueError(
            f"expected detections of every image: got {len(detections)} for {len(targets)} images"
        )
    check_detections(detections, num_classes)
    images = _check_boxes("targets", targets, num_classes)
    areas = numbers([target.areas for target in targets], 0)
    _refuse("targets", images, areas, ~np.isfinite(areas), "finite areas")


def check_detections(detections: Sequence[Detections], num_classes: int) -> None:
    """ValueError unless numbers are finite, corners ordered and labels known."""
    images = _check_boxes("detections", detections, num_classes)
    scores = numbers([found.scores for found in detections], 0)
    _refuse("detections", images, scores, ~np.isfinite(scores), "finite scores")


def _check_boxes(kind: str, parts: Sequence[Detections | Target], num_classes: int) -> Array:
    """The image of each row, after its box and label were found to be good."""
    _check_lengths(kind, parts)
    images, boxes, labels = joined(parts)
    _refuse(kind, images, boxes, ~np.isfinite(boxes), "finite boxes")
    _refuse(kind, images, boxes, boxes[:, 2:] < boxes[:, :2], "x1 <= x2 and y1 <= y2")
    is_unknown = (labels < 0) | (labels >= num_classes)
    _refuse(kind, images, labels, is_unknown, f"labels from 0 to {num_classes - 1}")
    return images


def _check_lengths(kind: str, parts: Sequence[Detections | Target]) -> None:
    for image, part in enumerate(parts):
        columns = [part.scores] if isinstance(part, Detections) else [part.is_ignored, part.areas]
        shapes = {part.labels.shape, *(column.shape for column in columns)}
        if part.boxes.shape != (len(part.labels), 4) or len(shapes) > 1:
            raise ValueError(
                f"{kind} of image {image}: expected boxes (N, 4) and N of everything else, "
                f"got boxes {tuple(part.boxes.shape)} and {sorted(map(tuple, shapes))}"
            )


def _refuse(kind: str, images: Array, values: Array, is_bad: Array, rule: str) -> None:
    """ValueError about the first row of values with something bad."""
    if is_bad.any():
        rows = np.unique(np.nonzero(is_bad)[0])
        raise ValueError(
            f"{kind} of image {images[rows[0]]} (counted from 0): expected {rule}, "
            f"got {values[rows[0]].tolist()} ({len(rows)} such in all)"
        )


def joined(parts: Sequence[Detections | Target]) -> tuple[Array, Array, Array]:
    """(images (N,), boxes (N, 4), labels (N,)) of all images, one after the other."""
    images = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    boxes = numbers([part.boxes for part in parts], 4)
    return images, boxes, numbers([part.labels for part in parts], 0).astype(np.int64)


def numbers(tensors: list[Tensor], num_columns: int) -> Array:
    """All rows as float64, which has every float32 and every label exactly."""
    if not tensors:
        return np.zeros((0, num_columns) if num_columns else 0)
    joined: Array = torch.cat([tensor.detach().cpu() for tensor in tensors]).double().numpy()
    return joined


def best_objects(
    groups: Array, boxes: Array, object_groups: Array, object_boxes: Array
) -> tuple[Array, Array]:
    """(owner, overlap) (D,): the object of the same group with the highest IoU, and that IoU.

    Arguments as of `pairs`. owner is -1 where the group has no object. Of equals the one that
    stands first.
    """
    owner, overlap = np.full(len(groups), -1), np.zeros(len(groups))
    for detection, candidate, iou in pairs(groups, boxes, object_groups, object_boxes):
        first_pair = np.flatnonzero(np.diff(detection, prepend=-1))
        part = detection[first_pair]
        overlap[part] = np.maximum.reduceat(iou, first_pair)
        chosen = np.flatnonzero(iou == overlap[detection])[::-1]
        owner[detection[chosen]] = candidate[chosen]  # backwards: the first of equals comes last
    return owner, overlap


def pairs(
    groups: Array, boxes: Array, object_groups: Array, object_boxes: Array
) -> Iterator[tuple[Array, Array, Array]]:
    """Parts (detection, candidate, iou) (P,) of all pairs of a detection and an object of a group.

    groups (D,) and object_groups (G,) number the groups, such as the pairs of image and class;
    boxes (D, 4) and object_boxes (G, 4). detection and candidate are rows of these, ascending; all
    pairs of a detection stand in the same part.
    """
    by_group = np.argsort(object_groups, kind="stable")
    starts = np.searchsorted(object_groups[by_group], groups, side="left")
    num_objects = np.searchsorted(object_groups[by_group], groups, side="right") - starts
    rows = np.flatnonzero(num_objects)
    # In parts of bounded size: an image can have thousands of objects and detections.
    ends = np.cumsum(num_objects[rows])
    for part in np.split(rows, np.flatnonzero(np.diff(ends // _MOST_PAIRS)) + 1):
        if not len(part):
            continue
        counts = num_objects[part]
        detection = np.repeat(part, counts)
        within = np.arange(len(detection)) - np.repeat(np.cumsum(counts) - counts, counts)
        candidate = by_group[starts[detection] + within]
        yield detection, candidate, paired_iou(boxes[detection], object_boxes[candidate])


def paired_iou(boxes: Array, others: Array) -> Array:
    """(N,) intersection over union of each box (N, 4) with the other of its row; 0 without area.

    >>> paired_iou(np.array([[0.0, 0.0, 2.0, 2.0]]), np.array([[1.0, 0.0, 3.0, 2.0]]))
    array([0.33333333])
    """
    corners = np.maximum(boxes[:, :2], others[:, :2]), np.minimum(boxes[:, 2:], others[:, 2:])
    shared = np.prod(np.maximum(corners[1] - corners[0], 0), axis=1)
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    union = areas + np.prod(others[:, 2:] - others[:, :2], axis=1) - shared
    iou: Array = np.divide(shared, union, out=np.zeros(len(boxes)), where=union > 0)
    return iou
