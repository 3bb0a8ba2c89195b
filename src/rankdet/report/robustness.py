"""What robustness.json says, checked, and the page's section about it: the paper's table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rankdet.report import pictures, wording
from rankdet.report.contents import percent_value, picture_fields
from rankdet.report.fields import (
    LONGEST_NAME,
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

if TYPE_CHECKING:
    from rankdet.report.reading import ReportRun  # it reads what is checked here

ROBUSTNESS_FILE = "robustness.json"
VERSION = 1
DEEPFOOL = "deepfool"
# In the order and the words of the paper's table; then the corruptions.
LABELS = {
    "original": "Original",
    "black": "Black patch",
    "random": "Random patch",
    "flip": "Flip patch",
    "adversarial": "Adversarial patch",
    "noise": "Gaussian noise",
    DEEPFOOL: "DeepFool",
    "gaussian-noise": "Noise of ImageNet-C",
    "gaussian-blur": "Gaussian blur",
    "jpeg": "JPEG",
    "brightness": "Brightness",
    "contrast": "Contrast",
}
MEANINGS = {
    "original": "the images as they are.",
    "black": "a black patch at the centre of each object, half as wide and high as its box.",
    "random": "the same with a piece of the image from outside of the object's box.",
    "flip": "the centre itself, mirrored left-right, top-bottom or both.",
    "adversarial": "one patch for all objects, trained to hide them from this detector.",
    "noise": "noise of variance 0.01 on all pixels in 0..1.",
    DEEPFOOL: "the mean L2 norm, in grey levels of 0..255, of the smallest perturbation of the "
    "image that was found to change the prediction for an object. Larger is more robust.",
}
_TABLE = ("original", "black", "random", "flip", "adversarial", "noise")
_CORRUPTIONS = ("gaussian-noise", "gaussian-blur", "jpeg", "brightness", "contrast")
_SEVERITIES = (1, 2, 3, 4, 5)
_MOST_PICTURES = 100

_amount = optional(number(0, 1e12))
_metrics = mapping(percent_value)
_robustness = record(
    {
        "protocol": one_of("voc", "coco"),
        "perturbations": list_of(
            record({"name": one_of(*_TABLE), "metrics": _metrics}), len(_TABLE), least=1
        ),
        "data": record(
            {"path": text(), "num_images": whole(), "num_objects": whole()},
            may_lack={"split": text(), "fingerprint": text(LONGEST_NAME)},
        ),
        "settings": settings,
    },
    may_lack={
        "corruptions": list_of(
            record({"name": one_of(*_CORRUPTIONS), "severity": whole(1, 5), "metrics": _metrics}),
            len(_CORRUPTIONS) * len(_SEVERITIES),
        ),
        DEEPFOOL: record(
            {"num_attacked": whole(), "num_detected": whole(), "num_objects": whole()},
            may_lack={
                **dict.fromkeys(("norm", "norm_255", "relative_norm", "iterations"), _amount),
                "success_rate": percent_value,
            },
        ),
        "patch": settings,
        "checkpoint": record({}, may_lack={"name": text(), "step": whole(), "epoch": whole()}),
        "provenance": settings,
        "pictures": list_of(
            record({**picture_fields, "perturbation": one_of(*_TABLE, *_CORRUPTIONS)}),
            _MOST_PICTURES,
        ),
    },
)


def checked_robustness(value: Any) -> dict[str, Any]:
    """The parts of robustness.json that the page uses; FieldError if one is not as written."""
    if not isinstance(value, dict) or "rankdet_robustness" not in value:
        raise FieldError("rankdet_robustness", "the field is missing", None)
    version = value["rankdet_robustness"]
    if version != VERSION or isinstance(version, bool):
        rule = f"expected {VERSION}: another version of rankdet wrote this, or nobody did"
        raise FieldError("rankdet_robustness", rule, version)
    content: dict[str, Any] = _robustness(value, "")
    names = [row["name"] for row in content["perturbations"]]
    if names[0] != _TABLE[0] or len(set(names)) < len(names):
        raise FieldError("perturbations", "expected original first, and every name once", names)
    return content


def section(runs: Sequence[ReportRun]) -> dict[str, Any] | None:
    """What the template shows: a row for each run that was measured; None without any."""
    measured = [(run, run.robustness) for run in runs if run.robustness is not None]
    if not measured:
        return None
    found = {row["name"] for _, content in measured for row in content["perturbations"]}
    columns = [name for name in _TABLE if name in found]
    return {
        "columns": [LABELS[name] for name in columns],
        "meanings": [
            (LABELS[name], MEANINGS[name])
            for name in (*columns, DEEPFOOL)
            if name in found or any(content[DEEPFOOL] for _, content in measured)
        ],
        "has_deepfool": any(content[DEEPFOOL] for _, content in measured),
        "rows": [_row(run, content, columns) for run, content in measured],
        "corruptions": [
            (run.label, rows) for run, content in measured if (rows := _corruptions(content))
        ],
        "severities": _SEVERITIES,
        "pictures": [
            (run.label, groups) for run, content in measured if (groups := _pictures(content))
        ],
    }


def _row(run: ReportRun, content: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    values = {row["name"]: row["metrics"].get("AP50") for row in content["perturbations"]}
    original = values[_TABLE[0]]
    cells = []
    for name in columns:
        value = values.get(name)
        is_known = value is not None and original is not None and name != _TABLE[0]
        cells.append((value, value - original if is_known else None))
    data = content["data"]
    split = f", split {data['split']}" if data["split"] else ""
    return {
        "label": run.label,
        "loss": wording.loss_name(run.loss),
        "cells": cells,
        "deepfool": content[DEEPFOOL],
        "data": f"{wording.count(data['num_images'])} images{split}{_other_step(run, content)}",
    }


def _other_step(run: ReportRun, content: dict[str, Any]) -> str:
    """A word where the run was trained on since, and the rest of the page is of another step."""
    steps = [(of or {}).get("step") for of in (content["checkpoint"], run.results["checkpoint"])]
    if None in steps or steps[0] == steps[1]:
        return ""
    return f"; measured at step {wording.count(steps[0])}, the evaluation is of {steps[1]:,}"


def _corruptions(content: dict[str, Any]) -> list[tuple[str, list[float | None]]]:
    """For each corruption AP50 at each severity; None where it was not measured."""
    table = {
        (row["name"], row["severity"]): row["metrics"].get("AP50")
        for row in content["corruptions"] or []
    }
    names = dict.fromkeys(name for name, _ in table)
    return [
        (LABELS[name], [table.get((name, severity)) for severity in _SEVERITIES]) for name in names
    ]


def _pictures(content: dict[str, Any]) -> list[list[Any]]:
    """The figures of each example image, the original first."""
    groups: dict[tuple[int, str], list[Any]] = {}
    for picture in content["pictures"] or []:
        figure = pictures.picture_figure(picture, LABELS[picture["perturbation"]])
        groups.setdefault((picture["index"], picture["name"]), []).append(figure)
    return list(groups.values())
