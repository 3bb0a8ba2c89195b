"""A run directory: what a training leaves, and what evaluation and prediction read again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankdet import build
from rankdet.config import Config, dump, read_config
from rankdet.detectors.detector import Detector
from rankdet.engine.checkpoint import (
    Checkpoint,
    best_checkpoint,
    check_types,
    load_checkpoint,
    newest_checkpoint,
)
from rankdet.errors import CheckpointError, ConfigError
from rankdet.output import write_whole

CONFIG_FILE = "config.yaml"
RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
RESULTS_FILE = "results.json"
CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"

_VERSION = 1
# What `write_whole` leaves of the two files if it is killed.
_TEMPORARY = re.compile(rf"\.({re.escape(CONFIG_FILE)}|{re.escape(RUN_FILE)})\.\w+")
_KINDS = {  # what run.json must have
    "classes": list,
    "category_ids": list,
    "activation": str,
    "data": dict,
    "provenance": dict,
    "notes": list,
}


@dataclass(frozen=True)
class RunRecord:
    """What holds for the whole of a run.

    activation: "sigmoid" or "softmax", how scores are made from logits. data: for "train" and "val"
    (None without one) the split, its number of images and its fingerprint. provenance: where, when
    and with which versions the training was started. notes: what it said about data and weights.
    """

    config: Config
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    activation: str
    data: Mapping[str, Any]
    provenance: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def write_run(path: Path, record: RunRecord) -> None:
    """Write config.yaml and run.json; the latter last: it makes the folder a run."""
    write_whole(path / CONFIG_FILE, dump(record.config).encode())
    content = {
        "rankdet_run": _VERSION,
        "classes": record.classes,
        "category_ids": record.category_ids,
        "activation": record.activation,
        "data": record.data,
        "provenance": record.provenance,
        "notes": record.notes,
    }
    write_whole(path / RUN_FILE, (json.dumps(content, indent=2) + "\n").encode())


def is_run(path: Path) -> bool:
    """Whether a training was started in this folder."""
    return (path / RUN_FILE).is_file()


def is_just_begun(path: Path) -> bool:
    """Whether a start was killed while it made a run of this folder: nothing else is in it."""
    names = {entry.name for entry in path.iterdir()} - {CONFIG_FILE}
    if not all(_TEMPORARY.fullmatch(name) for name in names):
        return False
    file = path / CONFIG_FILE
    try:  # what we write has every setting; a user's own file has not
        return not file.exists() or dump(read_config(file)) == file.read_text(encoding="utf-8")
    except (ConfigError, OSError, ValueError):
        return False


def read_run(path: Path) -> RunRecord:
    """The record of a run; CheckpointError if the folder is none, or was spoilt."""
    if not path.is_dir():
        raise CheckpointError(
            f"{path}: there is no such folder. Give the folder that `rankdet train --out` wrote."
        )
    if not is_run(path):
        raise CheckpointError(
            f"{path}: this is not a run: {RUN_FILE} is missing. "
            "Give the folder that `rankdet train --out` wrote."
        )
    content = _read_json(path / RUN_FILE)
    if content.get("rankdet_run") != _VERSION:
        raise CheckpointError(
            f"{path / RUN_FILE}: rankdet_run = {content.get('rankdet_run')!r}: expected "
            f"{_VERSION}. The run was made by another version of rankdet."
        )
    for name, kind in _KINDS.items():
        if not isinstance(content.get(name), kind):
            how = "is not as it was written" if name in content else "is missing"
            raise CheckpointError(
                f"{path / RUN_FILE}: {name} {how}. The file was changed; train again."
            )
    if content["activation"] not in ("sigmoid", "softmax"):
        raise CheckpointError(
            f"{path / RUN_FILE}: activation = {content['activation']!r}: expected sigmoid or "
            "softmax. The file was changed; train again."
        )
    return RunRecord(
        config=read_config(path / CONFIG_FILE),
        classes=tuple(content["classes"]),
        category_ids=tuple(content["category_ids"]),
        activation=content["activation"],
        data=content["data"],
        provenance=content["provenance"],
        notes=tuple(content["notes"]),
    )


def read_checkpoint(path: Path, which: str = "best") -> Checkpoint:
    """The weights of a run: of its "best" or "last" checkpoint, or of one by name or path.

    "best" is the last one where no evaluation has chosen a best.
    """
    folder = path / CHECKPOINTS
    found: Path | None
    if which == "best":
        found = best_checkpoint(folder) or newest_checkpoint(folder)
    elif which == "last":
        found = newest_checkpoint(folder)
    else:
        found = folder / which if (folder / which).is_dir() else Path(which)
        if not found.is_dir():
            raise CheckpointError(
                f"{which}: there is no such checkpoint. Give best, last, or a folder of {folder}."
            )
    if found is None:
        raise CheckpointError(
            f"{folder}: there is no complete checkpoint yet. Continue the training with "
            f"`rankdet train --resume --out {path}`."
        )
    return load_checkpoint(found, with_training=False)


def trained_detector(record: RunRecord, checkpoint: Checkpoint, device: torch.device) -> Detector:
    """The detector of a run with the weights of one of its checkpoints, on the device."""
    config = record.config
    detector = build.detector(config.detector, len(record.classes), record.activation)
    check_types(checkpoint, detector.state_dict())
    try:
        detector.load_state_dict(checkpoint.weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"{checkpoint.path}: the weights do not fit the detector that {CONFIG_FILE} of the run "
            "describes. One of the two was changed; take another checkpoint."
        ) from error
    return build.placed(detector, config.training, device)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"{file}: this is not JSON: {error}. The file was changed."
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: expected a JSON object. The file was changed.")
    return content
