"""Example runs as training and evaluation leave them, written without torch.

The numbers are made up, but they reconcile as real ones do: errors with the confusion matrix, both
with the rows of the classes. The same images and objects stand in all runs; detections differ.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from rankdet.config import Config, DataConfig, LossConfig, to_dict

NEW_PARTS = ("errors", "confusion", "anchors", "pictures")  # which older files lack
KINDS = ("correct", "localisation", "duplicate", "class", "background")
SHAPES = ("disc", "ring", "triangle", "square", "star", "cross")
METRICS = {
    "voc": ("AP", "AP50", "AP75", "AP50_11point"),
    "coco": (
        *("AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"),
        *("AR_1", "AR_10", "AR_100", "AR_small", "AR_medium", "AR_large"),
    ),
}
# Each of these sets window.hacked or makes an element with data-hostile, if it is not escaped.
HOSTILE_NAMES = (
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 2" data-hostile>',
    "' onmouseover='window.hacked = 3' data-hostile='",
    "</style></svg></title></textarea><b data-hostile>bold</b>",
    "<!-- <b data-hostile> --> ]]> &lt;b&gt; &amp;",
    "{{ 7 * 7 }} {% raw %} ${7 * 7}",
    "$_{$ not $\\frac{$ mathematics",
    "url(javascript:window.hacked=4)",
    "two\nlines\tand\r\nmore",
    "\x1b[31mcontrol\x07\x00 characters",
    "🦄 emoji 👩🏽‍🚀",
    "عربي מימין לשמאל",
    "\u202eright to left",
    "字" * 60,
    "x" * 200,
    "half a character \ud83d",
    "   ",
)

Content = dict[str, Any]


@pytest.fixture(scope="session")
def hostile_names() -> tuple[str, ...]:
    """Names of classes, files and the like that do harm to a page which does not escape them."""
    return HOSTILE_NAMES


@pytest.fixture(scope="session")
def make_run() -> Callable[..., Path]:
    """`write_run`, which see."""
    return write_run


@pytest.fixture(scope="session")
def make_results() -> Callable[..., Content]:
    """`results`, which see: the content of results.json without a file."""
    return results


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., list[Content]]:
    """`rows`, which see: those of metrics.jsonl without a file."""
    return rows


def write_run(
    folder: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    is_old: bool = False,
    has_metrics: bool = True,
    is_torn: bool = False,
    **options: Any,
) -> Path:
    """The folder, with results.json and metrics.jsonl of one run in it.

    options: of `results`; changes: other values of keys of results.json. is_old: NEW_PARTS are left
    out. is_torn: the last line of metrics.jsonl is unfinished.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = results(**options) | dict(changes or {})
    for name in NEW_PARTS if is_old else ():
        del content[name]
    text = json.dumps(content, indent=1, allow_nan=False)
    (folder / "results.json").write_text(text, encoding="utf-8")
    if has_metrics:
        shared = {
            name: options[name] for name in {"protocol", "seed", "num_steps"} & options.keys()
        }
        lines = "".join(json.dumps(row) + "\n" for row in rows(**shared))
        torn = '{"kind": "step", "step": 4' if is_torn else ""
        (folder / "metrics.jsonl").write_text(lines + torn, encoding="utf-8")
    return folder


def results(
    *,
    loss: str = "ap",
    num_classes: int = 6,
    seed: int = 0,
    protocol: str = "voc",
    is_hostile: bool = False,
    num_steps: int = 400,
) -> Content:
    """What results.json says: see `rankdet.workflows.results.results_content`.

    is_hostile: every free text is one of `HOSTILE_NAMES`.
    """
    random = np.random.default_rng(seed)
    names = _class_names(num_classes, is_hostile)
    classes, errors = _classes(names, protocol, random)
    text = _Texts(is_hostile)
    num_objects = sum(row["num_objects"] for row in classes)
    config = to_dict(
        Config(
            data=DataConfig(path=text("synthetic"), train_split="train:512", val_split="val:64"),
            loss=LossConfig(name=loss, settings={"delta": 1.0} if loss == "ap" else {}),
            seed=seed,
        )
    )
    return {
        "rankdet_results": 1,
        "protocol": protocol,
        "metrics": _metrics(classes, protocol, random),
        "classes": classes,
        "notes": [text("3 of 64 images have 100 detections, the most that are kept.")],
        "thresholds": {row["name"]: row["threshold"] for row in classes},
        "activation": "softmax" if loss == "ohem" else "sigmoid",
        "class_names": names,
        "checkpoint": {
            "name": text(f"step-{num_steps:08}"),
            "step": num_steps,
            "epoch": num_steps // 40,
        },
        "data": {
            "path": text("synthetic"),
            "split": text("val:64"),
            "num_images": 64,
            "num_objects": num_objects,
            "fingerprint": "235c2f8ad190c2b8",
        },
        "inference": {
            "images_per_second": 41.7,
            "network_images_per_second": 52.9,
            "seconds": 1.53,
            "network_seconds": 1.21,
        },
        "config": config,
        "provenance": _provenance(seed, text),
        "wall_time_seconds": 2.25,
        "training": {
            "data": {
                "train": {
                    "split": text("train:512"),
                    "num_images": 512,
                    "fingerprint": "2b0876c497b705f1",
                },
                "val": {"split": "val:64", "num_images": 64, "fingerprint": "235c2f8ad190c2b8"},
            },
            "provenance": _provenance(seed, text),
            "wall_time_seconds": 187.5 + seed,
        },
        "errors": errors,
        "confusion": _confusion(errors, random),
        "anchors": _anchors(random),
        "pictures": _pictures(classes, random, text),
        "curves": [_curve(row, random) for row in classes],
    }


def rows(protocol: str = "voc", seed: int = 0, num_steps: int = 400) -> list[Content]:
    """The rows of metrics.jsonl: see `rankdet.workflows.recording.Recorder`.

    Of the numbers of the first step some are missing, as after a loss that was not finite.
    """
    random = np.random.default_rng(seed)
    content: list[Content] = []
    for step in (1, *range(10, num_steps + 1, 10)):
        progress = step / num_steps
        noise = random.normal(0, 0.02)
        seconds = dict.fromkeys(("data", "forward", "loss", "backward", "step"), 0.0)
        for name, mean in zip(seconds, (0.004, 0.16, 0.02, 0.31, 0.015), strict=True):
            seconds[name] = mean * random.uniform(0.9, 1.2)
        row = {"kind": "step", "step": step, "epoch": (step - 1) // 40}
        row["class_loss"] = 0.98 * np.exp(-2 * progress) + noise if step > 1 else None
        row["box_loss"] = 1.2 * np.exp(-3 * progress) + 0.1 + noise
        row["batch_ap"] = 90 * progress + 100 * noise if step > 1 else None
        row["learning_rate"] = 0.002 * np.sin(np.pi * min(progress + 0.05, 0.99))
        row["gradient_norm"] = float(random.uniform(2, 9))
        row["images_per_second"] = float(random.uniform(25, 32))
        content.append(row | {"seconds": seconds})
        if step % 80 == 0:
            values = {name: 70 * progress + 5 - i for i, name in enumerate(METRICS[protocol])}
            content.append({"kind": "evaluation", "step": step, "epoch": step // 40, **values})
    return content


class _Texts:
    """The text that is given; or the next of the hostile names."""

    def __init__(self, is_hostile: bool) -> None:
        self.is_hostile = is_hostile
        self._num_used = 0

    def __call__(self, text: str) -> str:
        if not self.is_hostile:
            return text
        self._num_used += 1
        return HOSTILE_NAMES[self._num_used % len(HOSTILE_NAMES)] + f" {self._num_used}"


def _class_names(num_classes: int, is_hostile: bool) -> list[str]:
    if is_hostile:
        return list(HOSTILE_NAMES)
    return [*SHAPES, *(f"kind of thing {i}" for i in range(num_classes))][:num_classes]


def _classes(
    names: Sequence[str], protocol: str, random: np.random.Generator
) -> tuple[list[Content], Content]:
    """The rows of the classes, and the errors that lead to them.

    From four classes on, the last has no objects and the one before none that was found.
    """
    data = np.random.default_rng(12)  # the objects are those of the data, the same for all runs
    results, errors = [], []
    for label, name in enumerate(names):
        is_absent = len(names) > 3 and label == len(names) - 1
        is_never_found = len(names) > 3 and label == len(names) - 2
        num_objects = 0 if is_absent else int(data.integers(10, 60))
        correct = 0 if is_never_found else int(num_objects * random.uniform(0.4, 0.95))
        wrong = [
            0 if is_absent or is_never_found else int(random.integers(0, 9)) for _ in KINDS[1:]
        ]
        counts = dict(zip(KINDS, (correct, *wrong), strict=True))
        errors.append({"name": name, **counts, "missed": num_objects - correct})
        num_kept = correct + sum(wrong)
        row: Content = {"name": name, "num_objects": num_objects}
        row["num_detections"] = 0 if is_absent else num_kept + 40
        row |= dict.fromkeys(("ap", "ap50", "ap75", "ap50_11point"))
        row |= dict.fromkeys(("threshold", "precision", "recall", "f1"))
        if num_objects:
            ap50 = 100 * correct / num_objects * random.uniform(0.8, 1)
            row |= {"ap": 0.6 * ap50, "ap50": ap50, "ap75": 0.7 * ap50}
            row["ap50_11point"] = 0.98 * ap50 if protocol == "voc" else None
        if correct:
            row["threshold"] = float(random.uniform(0.02, 0.8))
            row["precision"] = 100 * correct / num_kept
            row["recall"] = 100 * correct / num_objects
            row["f1"] = 200 * correct / (num_kept + num_objects)
        results.append(row)
    kinds = {kind: sum(row[kind] for row in errors) for kind in (*KINDS, "missed")}
    total = {
        "iou": 0.5,
        "lower_iou": 0.1,
        "num_objects": sum(row["num_objects"] for row in results),
        "num_detections": sum(kinds[kind] for kind in KINDS),
    }
    return results, total | kinds | {"classes": errors}


def _metrics(classes: Sequence[Content], protocol: str, random: np.random.Generator) -> Content:
    values: Content = {}
    for name in METRICS[protocol]:
        key = name.lower()
        known = [row[key] for row in classes if row.get(key) is not None]
        is_mean = key in ("ap", "ap50", "ap75", "ap50_11point")
        values[name] = float(np.mean(known)) if is_mean and known else None
        if not is_mean and name != "AP_large":  # as if there were no large objects
            values[name] = float(random.uniform(10, 70))
    return values


def _curve(row: Content, random: np.random.Generator) -> Content | None:
    if not row["num_objects"]:
        return None
    num_points = 40 if row["ap50"] else 0
    recall = np.sort(random.uniform(0, max(row["recall"] or 1, 1), num_points)).round(2)
    precision = 100 - (recall / 100) ** 2 * 60 - random.uniform(0, 5, num_points)
    score = np.sort(random.uniform(0.01, 1, num_points))[::-1]
    return {
        "score": score.round(4).tolist(),
        "recall": recall.tolist(),
        "precision": precision.round(2).tolist(),
    }


def _confusion(errors: Content, random: np.random.Generator) -> Content:
    """A matrix whose columns sum to the kept detections and whose rows to the objects."""
    rows = errors["classes"]
    background = missed = len(rows)
    counts = np.zeros((len(rows) + 1, len(rows) + 1), dtype=int)
    for label, row in enumerate(rows):
        counts[label, label] = row["correct"]
        counts[label, missed] = row["missed"]
        counts[background, label] = sum(row[kind] for kind in KINDS[1:])
    for label, row in enumerate(rows):
        for _ in range(row["class"]):
            other = int(random.integers(len(rows)))
            if other != label and counts[other, missed] and counts[background, label]:
                counts[other, label] += 1
                counts[other, missed] -= 1
                counts[background, label] -= 1
    return {"iou": 0.5, "counts": counts.tolist()}


def _anchors(random: np.random.Generator) -> Content:
    """Many anchors with a small IoU and a low score; higher scores with higher IoU."""
    num_anchors = 20_000
    iou = random.beta(0.6, 4, num_anchors)
    score = np.clip(iou * random.uniform(0, 1, num_anchors) + random.normal(0, 0.05), 0, 1)
    bins = (np.minimum(np.stack([iou, score]), 0.9999) * 100).astype(int)
    cells, counts = np.unique(bins, axis=1, return_counts=True)
    triples = [[int(i), int(j), int(n)] for (i, j), n in zip(cells.T, counts, strict=True)]
    return {"num_images": 64, "num_anchors": num_anchors, "bins": 100, "cells": triples}


def _pictures(
    classes: Sequence[Content], random: np.random.Generator, text: _Texts
) -> list[Content]:
    kinds = [["sample"]] * 6 + [["sample", "best"], ["sample", "worst", "missed"]]
    kinds += [["best"], ["best"], ["worst"], ["worst"], ["missed"]]
    return [
        _picture(7 * i, kinds[i], [row["name"] for row in classes], random, text)
        for i in range(len(kinds))
    ]


def _picture(
    index: int,
    kinds: list[str],
    names: Sequence[str],
    random: np.random.Generator,
    text: _Texts,
) -> Content:
    """Objects and image are a function of the index alone: all runs have the same."""
    scene = np.random.default_rng(index)
    width, height = ((240, 180), (180, 240), (320, 200))[index % 3]
    objects, detections = [], []
    for number in range(int(scene.integers(1, 5))):
        x, y = scene.uniform(0, width - 60), scene.uniform(0, height - 60)
        box = [x, y, x + scene.uniform(25, 60), y + scene.uniform(25, 60)]
        name = names[(index + number) % len(names)]
        state = "missed" if "missed" in kinds and number == 0 else "found"
        if number == 3:
            state = "ignored"
        objects.append({"box": box, "class": name, "state": state})
        if state != "missed":
            shifted = (np.array(box) + random.normal(0, 2, 4)).tolist()
            kind = "correct" if state == "found" else "uncounted"
            score = float(random.uniform(0.3, 1))
            detections.append({"box": shifted, "class": name, "score": score, "kind": kind})
    if "worst" in kinds:
        for number, kind in enumerate(KINDS[1:]):
            box = [3.0 + 20 * number, 5.0, 50.0 + 20 * number, 44.5]
            name = names[number % len(names)]
            score = float(random.uniform(0.5, 1))
            detections.append({"box": box, "class": name, "score": score, "kind": kind})
    return {
        "name": text(f"synthetic/val/{index:06}"),
        "index": index,
        "kinds": kinds,
        "width": width,
        "height": height,
        "jpeg": _jpeg(width, height, [example["box"] for example in objects]),
        "objects": objects,
        "detections": detections,
    }


def _jpeg(width: int, height: int, boxes: Sequence[Sequence[float]]) -> str:
    """A picture with something in each box, with a longer side of at most 160 pixels."""
    scale = min(1.0, 160 / max(width, height))
    image = Image.new("RGB", (round(width * scale), round(height * scale)), (110, 130, 120))
    draw = ImageDraw.Draw(image)
    for number, box in enumerate(boxes):
        colour = ((200, 80, 60), (240, 230, 90), (40, 60, 160), (240, 240, 240))[number % 4]
        draw.ellipse([scale * value for value in box], fill=colour)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=70)
    return base64.b64encode(stream.getvalue()).decode()


def _provenance(seed: int, text: _Texts) -> Content:
    packages = ("torchvision", "numpy", "pillow", "pyyaml", "matplotlib", "safetensors")
    return {
        "seed": seed,
        "command": text("rankdet train synthetic --recipe small --out runs/example"),
        "commit": "693c35b271a3+changes",
        "versions": {"python": "3.12.3", "torch": "2.11.0", "rankdet": "0.1.0"}
        | dict.fromkeys(packages, "1.0")
        | {"faster-coco-eval": None},
        "machine": text("Linux x86_64, an example of a processor"),
        "threads": 2,
        "time": "2026-01-02T03:04:05+00:00",
    }
