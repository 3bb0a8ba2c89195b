"""The annotations of a COCO file: each one judged, the valid ones packed by image."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rankdet.data.reading.annotations import RawObject
from rankdet.data.reading.findings import BrokenRule, Finding, Findings

_LARGEST_AREA = 1e30  # below float32's limit

ImageKey = int | str


@dataclass
class _Rows:
    """Objects, one row each, in arrays of plain numbers: a tenth of the memory of JSON's objects.

    image: index of the image entry. area: not a number where the file gives none.
    """

    image: array[int] = field(default_factory=lambda: array("q"))
    corners: array[float] = field(default_factory=lambda: array("d"))
    label: array[int] = field(default_factory=lambda: array("q"))
    is_ignored: array[int] = field(default_factory=lambda: array("b"))
    area: array[float] = field(default_factory=lambda: array("d"))
    position: array[int] = field(default_factory=lambda: array("q"))


class Objects:
    """The objects of all images, by the index of the image."""

    def __init__(self, rows: _Rows, num_images: int, num_dropped: Counter[int]) -> None:
        self.num_dropped = num_dropped  # by the index of the image
        image = np.array(rows.image, dtype=np.int64)
        order = np.argsort(image, kind="stable")
        self._starts = np.searchsorted(image[order], np.arange(num_images + 1))
        self._corners = np.array(rows.corners, dtype=np.float64).reshape(-1, 4)[order]
        self._label = np.array(rows.label, dtype=np.int64)[order]
        self._is_ignored = np.array(rows.is_ignored, dtype=np.bool_)[order]
        self._area = np.array(rows.area, dtype=np.float64)[order]
        self._position = np.array(rows.position, dtype=np.int64)[order]

    def of_image(self, index: int) -> list[RawObject]:
        """The objects of one image, in the order of the file."""
        rows = slice(self._starts[index], self._starts[index + 1])
        return [
            RawObject(
                corners=tuple(corners),
                label=label,
                is_ignored=is_ignored,
                area=None if math.isnan(area) else area,
                where=f"annotations[{position}]",
            )
            for corners, label, is_ignored, area, position in zip(
                self._corners[rows].tolist(),
                self._label[rows].tolist(),
                self._is_ignored[rows].tolist(),
                self._area[rows].tolist(),
                self._position[rows].tolist(),
                strict=True,
            )
        ]


def whole(value: object) -> int | None:
    """The value as a whole number, or None. Exports also write 640.0; true is no number.

    >>> whole(640.0), whole(True), whole("640")
    (640, None, None)
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def image_key(value: object) -> ImageKey | None:
    """The id of an image, by which annotations name it. Some exports have "00012"."""
    return value if isinstance(value, str) else whole(value)


def read_annotations(
    annotations: list[Any],
    keys: Sequence[ImageKey],
    labels: dict[int, int],
    path: Path,
    findings: Findings,
) -> Objects:
    """The valid annotations, by image; the others are counted, with a finding for each.

    keys: the id of every image. labels: category id -> label.
    """
    rows = _Rows()
    index_of = {key: index for index, key in enumerate(keys)}
    defaults: Counter[str] = Counter()
    num_dropped: Counter[int] = Counter()
    for position, item in enumerate(annotations):
        try:
            _append(rows, item, index_of, labels, defaults)
        except BrokenRule as fault:
            key = image_key(item.get("image_id")) if isinstance(item, dict) else None
            if key in index_of:
                num_dropped[index_of[key]] += 1
            where = f"annotations[{position}]"
            findings.leave_out_object(
                fault.finding(file=path, where=where, more=_id_sentence(item))
            )
        else:
            rows.position.append(position)
    _note_defaults(defaults, len(annotations), path, findings)
    _note_ids(annotations, path, findings)
    return Objects(rows, len(keys), num_dropped)


def _id_sentence(item: Any) -> str:
    number = item.get("id") if isinstance(item, dict) else None
    if not isinstance(number, int | str):
        return ""
    return f"The annotation's id is {str(number)[:40]}."


def _note_defaults(defaults: Counter[str], num_all: int, path: Path, findings: Findings) -> None:
    """One note for the whole file for each field that may be missing in every annotation."""
    for name, meaning in (("iscrowd", "0"), ("area", "the area of the box")):
        if defaults[name]:
            detail = f"In {defaults[name]} of {num_all} annotations; taken as {meaning}."
            findings.add(
                Finding.of(
                    "annotation-field-default",
                    file=path,
                    where="annotations",
                    field=name,
                    detail=detail,
                )
            )


def _note_ids(annotations: list[Any], path: Path, findings: Findings) -> None:
    """One note for the whole file if ids of annotations are 0, missing or used twice."""
    ids: set[int | str] = set()
    changed = []
    for position, item in enumerate(annotations):
        number = item.get("id") if isinstance(item, dict) else None
        if isinstance(number, int | str) and number not in (0, "") and number not in ids:
            ids.add(number)
        else:
            changed.append((position, number))
    if changed:
        position, number = changed[0]
        findings.add(
            Finding.of(
                "annotation-id-changed",
                file=path,
                where=f"annotations[{position}]",
                field="id",
                value=number,
                detail=f"So in {len(changed)} of {len(annotations)} annotations.",
            )
        )


def _append(
    rows: _Rows,
    item: Any,
    index_of: dict[ImageKey, int],
    labels: dict[int, int],
    defaults: Counter[str],
) -> None:
    """Add the annotation as a row; BrokenRule, and nothing added, if it breaks a rule."""
    if not isinstance(item, dict):
        raise BrokenRule("field-invalid", "annotation", item, "It is not an object.")
    image = _image_index(item, index_of)
    label = _label(item, labels)
    corners = _corners(item)
    is_crowd = item.get("iscrowd")
    if is_crowd is None:
        is_crowd = 0
        defaults["iscrowd"] += 1
    elif is_crowd not in (0, 1):
        raise BrokenRule("field-invalid", "iscrowd", is_crowd, "It must be 0 or 1.")
    area = _number(item.get("area"))
    if area is None or not 0 < area < _LARGEST_AREA:
        area = math.nan
        defaults["area"] += 1
    rows.image.append(image)
    rows.label.append(label)
    rows.corners.extend(corners)
    rows.is_ignored.append(is_crowd == 1 or item.get("ignore") in (1, True))
    rows.area.append(area)


def _image_index(item: dict[str, Any], index_of: dict[ImageKey, int]) -> int:
    value = item.get("image_id")
    if value is None:
        raise BrokenRule("field-missing", "image_id", None)
    key = image_key(value)
    if key is None:
        raise BrokenRule("field-invalid", "image_id", value, "It must be the id of an image.")
    index = index_of.get(key)
    if index is None:
        raise BrokenRule("annotation-unknown-image", "image_id", value)
    return index


def _label(item: dict[str, Any], labels: dict[int, int]) -> int:
    value = item.get("category_id")
    if value is None:
        raise BrokenRule("field-missing", "category_id", None)
    number = whole(value)
    label = None if number is None else labels.get(number)
    if label is None:
        raise BrokenRule("class-unknown", "category_id", value)
    return label


def _corners(item: dict[str, Any]) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of `bbox`, which is (left, top, width, height)."""
    value = item.get("bbox")
    if value is None:
        raise BrokenRule("field-missing", "bbox", None)
    if not isinstance(value, list) or len(value) != 4:
        raise BrokenRule("box-not-a-number", "bbox", value, "A box is a list of 4 numbers.")
    numbers = [_number(part) for part in value]
    left, top, width, height = numbers
    if left is None or top is None or width is None or height is None:
        raise BrokenRule("box-not-a-number", "bbox", value)
    if not all(math.isfinite(number) for number in (left, top, width, height)):
        raise BrokenRule("box-not-finite", "bbox", value)
    if width < 0 or height < 0:
        detail = "A box is left, top, width, height; the last two must not be negative."
        raise BrokenRule("box-swapped", "bbox", value, detail)
    return left, top, left + width, top + height


def _number(value: object) -> float | None:
    """The value as a float; None if it is no number. true and "1" are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # JSON's integers have no limit
        return math.inf if value > 0 else -math.inf
