"""The content of the files that the evaluation servers of VOC and COCO take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from urllib.parse import quote

from rankdet.errors import RankdetError, shorten
from rankdet.metrics.matching import check_detections
from rankdet.structures import Detections


def voc_files(
    detections: Sequence[Detections],
    names: Sequence[str],
    classes: Sequence[str],
    *,
    competition: str = "comp4",
    split: str = "test",
    year: str = "VOC2012",
) -> dict[str, bytes]:
    """Content by relative path: `results/VOC2012/Main/comp4_det_test_CLASS.txt` for every class.

    names: of the images, without folder and suffix. A line is `NAME SCORE XMIN YMIN XMAX YMAX`;
    pixels are counted from 1 and both ends belong to the box. Signs of a class's name that are not
    plain letters, digits or one of `_.-~` are written as %20 and so on, so that no name leaves the
    folder.

    >>> import torch
    >>> found = Detections(torch.tensor([[0.0, 0.0, 9.0, 5.0]]), torch.tensor([0.5]),
    ...                    torch.tensor([0]))
    >>> voc_files([found], ["2008_000001"], ["cat"])
    {'results/VOC2012/Main/comp4_det_test_cat.txt': b'2008_000001 0.5 1.000 1.000 9.000 5.000\\n'}
    """
    _check(detections, names, len(classes))
    for name in names:
        if not name or any(sign.isspace() for sign in name):
            raise RankdetError(
                f"{shorten(name)}: a file for the VOC server needs names of images without spaces. "
                "Rename the image."
            )
    lines: list[list[str]] = [[] for _ in classes]
    for name, found in zip(names, detections, strict=True):
        rows = zip(found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True)
        for (x1, y1, x2, y2), score, label in rows:
            corners = f"{x1 + 1:.3f} {y1 + 1:.3f} {x2:.3f} {y2:.3f}"
            lines[label].append(f"{name} {score:.9g} {corners}\n")  # nine digits: all of a float32
    return {
        "/".join(
            quote(part, safe="")
            for part in ("results", year, "Main", f"{competition}_det_{split}_{name}.txt")
        ): "".join(rows).encode()
        for name, rows in zip(classes, lines, strict=True)
    }


def coco_results(
    detections: Sequence[Detections], image_ids: Sequence[int], category_ids: Sequence[int]
) -> bytes:
    """COCO's JSON list of results: image_id, category_id, bbox (left, top, width, height), score.

    image_ids: the data set's own, one for each image; category_ids: of class 0, 1, ...

    >>> import torch
    >>> found = Detections(torch.tensor([[1.0, 2.0, 9.0, 5.0]]), torch.tensor([0.5]),
    ...                    torch.tensor([1]))
    >>> coco_results([found], [397133], [1, 90])
    b'[{"image_id": 397133, "category_id": 90, "bbox": [1.0, 2.0, 8.0, 3.0], "score": 0.5}]\\n'
    """
    _check(detections, image_ids, len(category_ids))
    if len(set(image_ids)) != len(image_ids):
        raise RankdetError(
            "A file of COCO results needs a different id for every image; this split has some ids "
            "more than once. Evaluate one annotation file at a time."
        )
    results = []
    for image_id, found in zip(image_ids, detections, strict=True):
        rows = zip(found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True)
        for (x1, y1, x2, y2), score, label in rows:
            bbox = [round(value, 3) for value in (x1, y1, x2 - x1, y2 - y1)]
            results.append(
                {
                    "image_id": image_id,
                    "category_id": category_ids[label],
                    "bbox": bbox,
                    "score": float(f"{score:.9g}"),
                }
            )
    return f"{json.dumps(results)}\n".encode()


def _check(detections: Sequence[Detections], images: Sequence[object], num_classes: int) -> None:
    if len(detections) != len(images):
        raise ValueError(f"expected {len(detections)} names or ids of images, got {len(images)}")
    check_detections(detections, num_classes)  # the images may not have been evaluated
