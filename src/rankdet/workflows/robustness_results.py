"""The results of `rankdet robustness`: as robustness.json, as a table, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.table import Table

from rankdet.config import Config, to_dict
from rankdet.config.effects import validation_name
from rankdet.data.chosen import ChosenImages
from rankdet.data.fingerprint import fingerprint
from rankdet.errors import counted
from rankdet.metrics.errors import judge_errors
from rankdet.metrics.evaluation import NOT_AVAILABLE, percent_text
from rankdet.provenance import provenance
from rankdet.report.robustness import LABELS
from rankdet.report.wording import loss_name
from rankdet.robustness.corruptions import SEVERITIES
from rankdet.robustness.suite import DEEPFOOL
from rankdet.workflows import pictures
from rankdet.workflows.examples import evenly_spaced, example
from rankdet.workflows.robustness_measures import Measured, Measures
from rankdet.workflows.run import RunRecord

MARK = '"rankdet_robustness"'  # at the start of each of our files
VERSION = 1
_NUM_EXAMPLES = 3
_SIDE, _STRIP = 240, 22  # pixels of a picture and of the line of names on the sheet


def robustness_content(
    measures: Measures,
    *,
    record: RunRecord,
    config: Config,
    checkpoint: Mapping[str, Any],
    settings: Mapping[str, Any],
    patch: Mapping[str, Any] | None,
    seconds: float,
) -> dict[str, Any]:
    """What robustness.json says, ready for JSON. settings: of this command; patch: its origin."""
    original, *others = measures.images
    dataset = original.dataset
    return {
        MARK.strip('"'): VERSION,
        "protocol": original.evaluation.protocol,
        "perturbations": [
            {"name": measured.name, "metrics": dict(measured.evaluation.metrics)}
            for measured in measures.images
            if measured.severity is None
        ],
        "corruptions": [
            {
                "name": measured.name,
                "severity": measured.severity,
                "metrics": dict(measured.evaluation.metrics),
            }
            for measured in others
            if measured.severity is not None
        ],
        "deepfool": None if measures.fooled is None else measures.fooled.summary(),
        "patch": None if patch is None else dict(patch),
        "settings": dict(settings),
        "notes": list(original.evaluation.notes),
        "activation": record.activation,
        "class_names": list(record.classes),
        "thresholds": dict(zip(record.classes, measures.thresholds, strict=True)),
        "checkpoint": dict(checkpoint),
        "data": {
            "path": config.data.path,
            "split": validation_name(config.data),
            "num_images": len(dataset),
            "num_objects": sum(row.num_objects for row in original.evaluation.classes),
            "fingerprint": fingerprint(dataset),
        },
        "config": to_dict(config),
        "provenance": provenance(seed=settings["seed"]),
        "wall_time_seconds": seconds,
        "pictures": _pictures(measures) if config.evaluation.pictures else [],
    }


def _shown(measures: Measures) -> list[Measured]:
    """The sets that pictures show: of corruptions the middle severity."""
    middle = SEVERITIES[len(SEVERITIES) // 2]
    return [measured for measured in measures.images if measured.severity in (None, middle)]


def _example_images(measures: Measures) -> list[int]:
    """A few images with objects, evenly spaced: the same for all sets, and for all detectors."""
    dataset = measures.images[0].dataset
    has_objects = [
        not bool(dataset.target(index).is_ignored.all()) for index in range(len(dataset))
    ]
    chosen: list[int] = evenly_spaced(np.flatnonzero(has_objects), _NUM_EXAMPLES).tolist()
    return chosen


def _pictures(measures: Measures) -> list[dict[str, Any]]:
    """The example images in each set, image by image, as results.json has its pictures."""
    chosen = _example_images(measures)
    of_sets = []
    for measured in _shown(measures):
        few = ChosenImages(measured.dataset, chosen)
        found = [measured.detected.detections[index] for index in chosen]
        targets = [few.target(number) for number in range(len(few))]
        verdicts = judge_errors(found, targets, measures.thresholds)
        of_sets.append(
            [
                {
                    "perturbation": measured.name,
                    **example(verdicts, found[number], few, number, ["sample"]),
                    "index": chosen[number],
                }
                for number in range(len(few))
            ]
        )
    return [picture for of_image in zip(*of_sets, strict=True) for picture in of_image]


def example_sheet(measures: Measures) -> bytes:
    """A JPEG file: a row for each example image, a column for each set, with the detections."""
    shown = _shown(measures)
    chosen = _example_images(measures)
    drawn = [_drawn(measured, index, measures) for index in chosen for measured in shown]
    body = pictures.contact_sheet(drawn, columns=len(shown), side=_SIDE)
    sheet = Image.new("RGB", (body.width, body.height + _STRIP), "white")
    sheet.paste(body, (0, _STRIP))
    draw = ImageDraw.Draw(sheet)
    for column, measured in enumerate(shown):
        text = sheet_title(measured.name, measured.severity)
        draw.text((column * _SIDE + 4, 4), text, fill="black", font=ImageFont.load_default(14))
    return pictures.jpeg(sheet)


def sheet_title(name: str, severity: int | None) -> str:
    """What stands above a column of the sheet.

    >>> sheet_title("noise", None), sheet_title("jpeg", 3)
    ('Gaussian noise', 'JPEG, severity 3')
    """
    return LABELS[name] if severity is None else f"{LABELS[name]}, severity {severity}"


def _drawn(measured: Measured, index: int, measures: Measures) -> Image.Image:
    found = measured.detected.detections[index]
    limits = [measures.thresholds[label] for label in found.labels.tolist()]
    is_kept = np.asarray(found.scores.tolist()) >= np.asarray(limits)
    pixels = measured.dataset.image(index).permute(1, 2, 0).contiguous().numpy()
    kept = found.select(found.labels.new_tensor(np.flatnonzero(is_kept).tolist()))
    return pictures.picture(pixels, kept, measured.dataset.classes)


def table_rows(content: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The paper's table, heading first: AP50 in the first row, AP in the second, then DeepFool.

    DeepFool stands in grey levels of 0..255.
    """
    sets = content["perturbations"]
    heading = ["", *(LABELS[row["name"]] for row in sets)]
    rows = [
        [name, *(percent_text(row["metrics"].get(name)) for row in sets)] for name in ("AP50", "AP")
    ]
    if content["deepfool"] is not None:
        norm = content["deepfool"]["norm_255"]
        heading.append(LABELS[DEEPFOOL])
        rows[0].append(NOT_AVAILABLE if norm is None else f"{norm:.1f}")
        rows[1].append("")
    rows[0][0] = f"{loss_name(content['config']['loss']['name'])}, AP50"
    return [tuple(row) for row in (heading, *rows)]


def print_robustness(content: Mapping[str, Any], console: Console) -> None:
    """The tables, and what DeepFool's number means."""
    _print_table(table_rows(content), console)
    if content["corruptions"]:
        _print_table(corruption_rows(content["corruptions"]), console)
    if content["deepfool"] is not None:
        console.print(f"DeepFool: {_meaning(content['deepfool'])}", soft_wrap=True)


def _meaning(fooled: Mapping[str, Any]) -> str:
    """What came of the attacks, in words."""
    objects = counted(fooled["num_objects"], "object")
    if not fooled["num_detected"]:
        return (
            f"for none of {objects} is there an anchor box that predicts its class: nothing to "
            "attack. (AP also counts scores below the threshold of a class, and classes that are "
            "not the highest of their anchor.)"
        )
    if fooled["norm"] is None:
        return (
            f"none of {counted(fooled['num_attacked'], 'attack')} succeeded; for "
            f"{fooled['num_detected']} of {objects} there is an anchor box that predicts the class."
        )
    return (
        f"the smallest perturbation that was found has a mean L2 norm of "
        f"{fooled['norm_255']:.2f} grey levels of 0..255 ({fooled['norm']:.4f} for pixels in "
        f"0..1; {100 * fooled['relative_norm']:.3g} % of the image's norm), over the "
        f"{fooled['success_rate']:.1f} % of {fooled['num_attacked']} attacks that succeeded."
    )


def corruption_rows(corruptions: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A row for each corruption with AP50 at each severity, and their mean."""
    by_name: dict[str, list[float | None]] = {}
    for row in corruptions:
        by_name.setdefault(row["name"], []).append(row["metrics"].get("AP50"))
    rows = [("AP50 at severity", *map(str, SEVERITIES), "mean")]
    for name, values in by_name.items():
        known = [value for value in values if value is not None]
        mean = sum(known) / len(known) if known else None
        rows.append((LABELS[name], *map(percent_text, values), percent_text(mean)))
    return rows


def _print_table(rows: Sequence[Sequence[str]], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for position, name in enumerate(rows[0]):
        table.add_column(name, justify="left" if position == 0 else "right")
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)
    console.print()
