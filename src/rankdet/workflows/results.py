"""The results of an evaluation: as results.json, as a table, and as files for servers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rankdet.config import Config, to_dict
from rankdet.config.effects import validation_name
from rankdet.data.dataset import DetectionDataset
from rankdet.data.fingerprint import fingerprint
from rankdet.engine.detect import Detected
from rankdet.engine.records import read_metrics
from rankdet.errors import RankdetError, printable
from rankdet.metrics.anchor_scores import AnchorScores
from rankdet.metrics.confusion import confusion_counts
from rankdet.metrics.errors import error_counts, judge_errors
from rankdet.metrics.evaluation import Evaluation, percent_text
from rankdet.metrics.submission import coco_results, voc_files
from rankdet.metrics.thresholds import usual_thresholds
from rankdet.output import write_whole
from rankdet.provenance import provenance
from rankdet.structures import Detections
from rankdet.workflows.examples import pictures
from rankdet.workflows.run import RunRecord

MARK = '"rankdet_results"'  # at the start of each of our files
_VERSION = 1
_LONGEST_NAME = 100  # characters of a file's name that come from the user's words


@dataclass(frozen=True)
class Outcome:
    """How good the detections of a split are, the detections themselves, and scores of anchors."""

    evaluation: Evaluation
    detected: Detected
    anchors: AnchorScores


def results_content(
    outcome: Outcome,
    dataset: DetectionDataset,
    *,
    record: RunRecord,
    config: Config,
    checkpoint: Mapping[str, Any],
    seconds: float,
    training_seconds: float | None,
    counts: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """What results.json says, ready for JSON.

    record: of the run. config: with the data (`validation_name` is what was evaluated on) and the
    evaluation as they were used here. checkpoint: its name, step and epoch. seconds: the wall time
    of this evaluation; training_seconds: of the training up to the checkpoint, where it is known;
    counts: see `training_counts`.
    """
    evaluation, detected = outcome.evaluation, outcome.detected
    judged = evaluation.to_dict()
    curves = judged.pop("curves")
    return {
        MARK.strip('"'): _VERSION,
        **judged,
        "thresholds": {result.name: result.threshold for result in evaluation.classes},
        "activation": record.activation,
        "class_names": list(record.classes),
        "checkpoint": dict(checkpoint),
        "data": {
            "path": config.data.path,
            "split": validation_name(config.data),
            "num_images": len(dataset),
            "num_objects": sum(result.num_objects for result in evaluation.classes),
            "fingerprint": fingerprint(dataset),
        },
        "inference": {
            "images_per_second": detected.images_per_second,
            "network_images_per_second": detected.network_images_per_second,
            "seconds": detected.seconds,
            "network_seconds": detected.network_seconds,
        },
        "config": to_dict(config),
        "provenance": provenance(seed=config.seed),
        "wall_time_seconds": seconds,
        "training": {
            "data": dict(record.data),
            "provenance": dict(record.provenance),
            "wall_time_seconds": training_seconds,
            "counts": dict(counts or {}),
        },
        # What is long comes last: a person reads the file from its beginning.
        "curves": curves,
        "anchors": outcome.anchors.to_dict(),
        **_error_content(outcome, dataset, config),
    }


def training_counts(metrics: Path, step: int) -> dict[str, float]:
    """What a training counted in each image, such as "roi.boxes_per_image": the RoIs it used.

    The mean over the rows of metrics.jsonl up to this step. Empty for detectors of one stage.
    """
    try:
        rows = [row for row in read_metrics(metrics) if row.get("kind") == "step"]
    except RankdetError:  # a file that somebody has damaged: the results are worth more
        rows = []
    rows = [row for row in rows if row["step"] <= step]
    names = {name: None for row in rows for name in row if name.endswith("_per_image")}
    return {name: fmean(row[name] for row in rows if row.get(name) is not None) for name in names}


def _error_content(outcome: Outcome, dataset: DetectionDataset, config: Config) -> dict[str, Any]:
    """What is wrong with the detections that prediction would show, and pictures of it.

    The thresholds are those that this evaluation has found.
    """
    detections = outcome.detected.detections
    targets = [dataset.target(index) for index in range(len(dataset))]
    own = outcome.evaluation.thresholds
    thresholds = usual_thresholds(own, config.evaluation.score_threshold)
    verdicts = judge_errors(detections, targets, thresholds)
    with_pictures = config.evaluation.pictures
    return {
        "errors": error_counts(verdicts, dataset.classes),
        "confusion": confusion_counts(verdicts),
        "pictures": pictures(verdicts, detections, dataset, thresholds) if with_pictures else [],
    }


def write_results(path: Path, content: Mapping[str, Any]) -> None:
    """Write results.json whole, with rows of tables and other long lists on single lines."""
    write_whole(path, f"{_json_text(content)}\n".encode())


def _json_text(value: Any, margin: str = "") -> str:
    """JSON: each entry of a mapping has a line or more, each item of a list one.

    >>> print(_json_text({"a": {"b": [1, 2]}, "c": [{"d": 3}, None], "cells": [[4, 5]]}))
    {
      "a": {
        "b": [1, 2]
      },
      "c": [
        {"d": 3},
        null
      ],
      "cells": [[4, 5]]
    }
    """
    inner = margin + "  "
    if isinstance(value, Mapping) and value:
        lines = [
            # Thousands of small cells are no table for people.
            f"{json.dumps(key)}: {_line(item) if key == 'cells' else _json_text(item, inner)}"
            for key, item in value.items()
        ]
        brackets = "{}"
    elif isinstance(value, list) and any(isinstance(item, str | list | dict) for item in value):
        lines = [_line(item) for item in value]
        brackets = "[]"
    else:
        return _line(value)
    body = ",\n".join(inner + line for line in lines)
    return f"{brackets[0]}\n{body}\n{margin}{brackets[1]}"


def _line(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def print_results(outcome: Outcome, console: Console) -> None:
    """The numbers of the whole, a row for each class, and what is to be said about them."""
    evaluation = outcome.evaluation
    heading, *rows = evaluation.table()
    table = Table(box=None, pad_edge=False, collapse_padding=True)  # for 80 columns
    for position, name in enumerate(heading):
        table.add_column(name, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*(escape(printable(cell)) for cell in row))
    console.print(table)
    console.print()
    console.print(headline(evaluation), soft_wrap=True)
    for note in evaluation.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    console.print(speed(outcome.detected), soft_wrap=True)


def headline(evaluation: Evaluation) -> str:
    """All numbers of the whole in a line.

    >>> headline(Evaluation("voc", {"AP": 30.25, "AP50": None}, ()))
    'VOC metrics in percent: AP 30.2, AP50 n/a'
    """
    metrics = evaluation.metrics.items()
    numbers = ", ".join(f"{name} {percent_text(value)}" for name, value in metrics)
    return f"{evaluation.protocol.upper()} metrics in percent: {numbers}"


def speed(detected: Detected) -> str:
    """How fast it was, and what that covers."""
    return (
        f"{len(detected.detections)} images at {detected.images_per_second:.1f} per second with "
        f"loading, {detected.network_images_per_second:.1f} per second without (network and "
        "postprocessing)."
    )


def results_name(*words: str) -> str:
    """The name of a results file in a run that is not results.json, from words such as a split.

    >>> results_name("2007_test"), results_name("my data", "val:6")
    ('results-2007_test.json', 'results-my-data-val-6.json')
    """
    return f"results-{'-'.join(map(file_name, words))}.json"


def file_name(text: str) -> str:
    """The text with only such characters as every system allows in the name of a file."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-.")[:_LONGEST_NAME] or "data"


def refuse_occupied(folder: Path, is_forced: bool) -> None:
    """RankdetError if files written into the folder could destroy something of the user's."""
    if folder.exists() and not folder.is_dir():
        raise RankdetError(f"{folder}: this is not a folder; --submission needs one.")
    if folder.is_dir() and any(folder.iterdir()) and not is_forced:
        raise RankdetError(
            f"{folder}: the folder is not empty. Give another one for --submission, or --force to "
            "replace files of the same names."
        )


def write_submission(
    folder: Path,
    detections: Sequence[Detections],
    dataset: DetectionDataset,
    protocol: str,
    split: str,
) -> list[Path]:
    """Write the files for the evaluation server of VOC or COCO into a folder; gives their paths."""
    files = submission_files(detections, dataset, protocol, split)
    for name, content in files.items():
        write_whole(folder / name, content)
    return [folder / name for name in files]


def submission_files(
    detections: Sequence[Detections], dataset: DetectionDataset, protocol: str, split: str
) -> dict[str, bytes]:
    """Content by relative path, as the server of the protocol wants it.

    VOC's year and split come from a name such as 2012_test; COCO's file is called
    detections_SPLIT_rankdet_results.json.
    """
    indices = range(len(dataset))
    if protocol == "voc":
        match = re.fullmatch(r"(\d{4})_(\w+)", split)
        year, part = (f"VOC{match[1]}", match[2]) if match else ("VOC2012", file_name(split))
        names = [Path(dataset.name(index)).stem for index in indices]
        return voc_files(detections, names, dataset.classes, split=part, year=year)
    image_ids = [dataset.target(index).image_id for index in indices]
    name = f"detections_{file_name(split)}_rankdet_results.json"
    return {name: coco_results(detections, image_ids, dataset.category_ids)}
