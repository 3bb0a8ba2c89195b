"""What the page uses of results.json and of a row of metrics.jsonl, and the rules for each field.

See `rankdet.workflows.results` for what is written; errors, confusion, anchors and pictures are
missing in files of the first versions, and None then.
"""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

from rankdet.report.fields import (
    LONGEST_NAME,
    Check,
    FieldError,
    list_of,
    mapping,
    number,
    one_of,
    optional,
    record,
    settings,
    text,
    whole,
)

VERSION = 1
ERROR_KINDS = ("correct", "localisation", "duplicate", "class", "background", "missed")
PICTURE_KINDS = ("sample", "best", "worst", "missed")

_MOST_CLASSES = 2000
_MOST_POINTS = 2000  # of a curve
_MOST_PICTURES = 200
_MOST_BOXES = 2000  # in a picture
_LONGEST_JPEG = 4_000_000  # characters of base64
_LONGEST_SIDE = 4096  # pixels of a JPEG

_name = text(LONGEST_NAME)
percent_value = optional(number(0, 100.001))  # a sum of floats may go a little beyond
_fraction = optional(number(0, 1))
_count = whole()
_seconds = optional(number(0, 1e10))
_counts = dict.fromkeys(ERROR_KINDS, _count)
_box = list_of(number(-1e6, 1e6), 4, least=4)


def _jpeg(value: Any, place: str) -> str:
    """The base64 of a JPEG file that can be decoded; never of another kind of data."""
    if not isinstance(value, str) or len(value) > _LONGEST_JPEG:
        raise FieldError(place, "expected the base64 of a small JPEG", value)
    try:
        content = base64.b64decode(value.encode("ascii"), validate=True)
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            if max(image.size) > _LONGEST_SIDE:
                raise FieldError(place, f"expected sides up to {_LONGEST_SIDE} pixels", image.size)
            image.load()
    # Pillow raises the last two, for some damaged files and for one that claims to be huge.
    except (ValueError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise FieldError(place, "expected the base64 of a JPEG", value) from error
    return value


_class_result = record(
    {"name": _name, "num_objects": _count, "num_detections": _count},
    may_lack={
        **dict.fromkeys(("ap", "ap50", "ap75", "ap50_11point"), percent_value),
        **dict.fromkeys(("precision", "recall", "f1"), percent_value),
        "threshold": _fraction,
    },
)
_points = list_of(number(0, 100.001), _MOST_POINTS)
_curve = record(
    {"score": list_of(number(0, 1), _MOST_POINTS), "recall": _points, "precision": _points}
)
_errors = record(
    {
        "iou": number(0, 1),
        "lower_iou": number(0, 1),
        "num_objects": _count,
        "num_detections": _count,
        **_counts,
        "classes": list_of(record({"name": _name, **_counts}), _MOST_CLASSES),
    }
)
_confusion = record(
    {
        "iou": number(0, 1),
        "counts": list_of(list_of(_count, _MOST_CLASSES + 1), _MOST_CLASSES + 1),
    }
)
_anchors = record(
    {
        "num_images": _count,
        "num_anchors": _count,
        "bins": whole(2, 200),
        "cells": list_of(list_of(_count, 3, least=3), 200 * 200),
    }
)
picture_fields: dict[str, Check] = {
    "name": text(1000),
    "index": _count,
    "kinds": list_of(one_of(*PICTURE_KINDS), 4, least=1),
    "width": whole(1, 100_000),
    "height": whole(1, 100_000),
    "jpeg": _jpeg,
    "objects": list_of(
        record({"box": _box, "class": _name, "state": one_of("found", "missed", "ignored")}),
        _MOST_BOXES,
    ),
    "detections": list_of(
        record(
            {
                "box": _box,
                "class": _name,
                "score": number(0, 1),
                "kind": one_of(*ERROR_KINDS[:-1], "uncounted"),
            }
        ),
        _MOST_BOXES,
    ),
}
_split = record(
    {}, may_lack={"split": text(), "num_images": _count, "fingerprint": text(LONGEST_NAME)}
)
_results = record(
    {
        "protocol": one_of("voc", "coco"),
        "metrics": mapping(percent_value),
        "classes": list_of(_class_result, _MOST_CLASSES, least=1),
        "notes": list_of(text(), 1000),
        "curves": list_of(optional(_curve), _MOST_CLASSES),
        "data": record(
            {"path": text(), "num_images": _count, "num_objects": _count},
            may_lack={"split": text(), "fingerprint": text(LONGEST_NAME)},
        ),
        "config": settings,
    },
    may_lack={
        "activation": text(LONGEST_NAME),
        "checkpoint": record({}, may_lack={"name": text(), "step": _count, "epoch": _count}),
        "inference": record(
            {},
            may_lack={
                **dict.fromkeys(("images_per_second", "network_images_per_second"), _seconds),
                **dict.fromkeys(("seconds", "network_seconds"), _seconds),
            },
        ),
        "provenance": settings,
        "wall_time_seconds": _seconds,
        "training": record(
            {},
            may_lack={
                "data": mapping(optional(_split)),
                "provenance": settings,
                "wall_time_seconds": _seconds,
                "counts": mapping(number()),
            },
        ),
        "errors": _errors,
        "confusion": _confusion,
        "anchors": _anchors,
        "pictures": list_of(record(picture_fields), _MOST_PICTURES),
    },
)
_row_value = optional(number(-1e300, 1e300))
_row_values = mapping(_row_value)


def checked_results(value: Any) -> dict[str, Any]:
    """The parts of results.json that the page uses; FieldError if one is not as it was written."""
    if not isinstance(value, dict) or "rankdet_results" not in value:
        raise FieldError("rankdet_results", "the field is missing", None)
    if value["rankdet_results"] != VERSION or isinstance(value["rankdet_results"], bool):
        rule = f"expected {VERSION}: another version of rankdet wrote this, or nobody did"
        raise FieldError("rankdet_results", rule, value["rankdet_results"])
    results: dict[str, Any] = _results(value, "")
    _check_lengths(results)
    return results


def checked_row(value: Any) -> dict[str, Any]:
    """A row of metrics.jsonl: kind, step, and numbers, None, or objects of them."""
    if not isinstance(value, dict):
        raise FieldError("", "expected a JSON object", value)
    row = {"kind": _name(value.get("kind"), "kind"), "step": _count(value.get("step"), "step")}
    for name, item in value.items():
        if name not in row:
            check: Check = _row_values if isinstance(item, dict) else _row_value
            row |= mapping(check)({name: item}, "")
    return row


def _check_lengths(results: dict[str, Any]) -> None:
    """Whether the parts speak of the same classes."""
    num_classes = len(results["classes"])
    _expect_length(results["curves"], num_classes, "curves")
    for index, curve in enumerate(results["curves"]):
        for name in ("recall", "precision"):
            if curve is not None:
                _expect_length(curve[name], len(curve["score"]), f"curves[{index}].{name}")
    if results["errors"] is not None:
        _expect_length(results["errors"]["classes"], num_classes, "errors.classes")
    if results["confusion"] is not None:
        counts = results["confusion"]["counts"]
        _expect_length(counts, num_classes + 1, "confusion.counts")
        for index, row in enumerate(counts):
            _expect_length(row, num_classes + 1, f"confusion.counts[{index}]")
    if results["anchors"] is not None:
        bins = results["anchors"]["bins"]
        for index, cell in enumerate(results["anchors"]["cells"]):
            for position in (0, 1):
                whole(0, bins - 1)(cell[position], f"anchors.cells[{index}][{position}]")


def _expect_length(value: list[Any], length: int, place: str) -> None:
    if len(value) != length:
        raise FieldError(place, f"expected {length} entries, got {len(value)}", None)
