"""The smallest real training, and a hash of all that comes out of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankdet.bench.faults.fault import Trial
from rankdet.engine.checkpoint import BEST, Checkpoint, load_checkpoint, newest_checkpoint
from rankdet.engine.records import read_metrics
from rankdet.errors import RankdetError
from rankdet.workflows.run import CHECKPOINTS, METRICS_FILE

STEPS_PER_EPOCH = 4
_TIMES = {"seconds", "images_per_second"}  # in metrics.jsonl and state.json: never the same


def train_arguments(out: Path, *, epochs: int = 3, save_every: int = 2) -> list[str]:
    """`train` of 4 steps an epoch, each of some 30 ms, with an evaluation after each epoch."""
    settings = {
        "detector.norm": "group",
        "detector.head_norm": "group",
        "training.warmup_steps": 0,
        "training.log_every": 1,
        "training.save_every": save_every,
        "training.keep_checkpoints": 2,
        "evaluation.every": 1,
        "evaluation.fixed_size": 64,
        "evaluation.batch_size": 3,
        "evaluation.pictures": "false",
    }
    return [
        *("train", "synthetic", "--train-split", "train:8", "--val-split", "val:3", "--size", "64"),
        *("--workers", "0", "--backbone", "small", "--epochs", str(epochs), "--batch-size", "2"),
        *("--learning-rate", "0.01", "--device", "cpu", "--out", str(out)),
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
    ]


def resume_arguments(out: Path) -> list[str]:
    """`train --resume` of that run."""
    return ["train", "--resume", "--device", "cpu", "--out", str(out)]


def trained_run(trial: Trial) -> Path:
    """A run with several checkpoints, which is not to be changed; made once."""
    if "trained" not in trial.server.references:
        run = trial.server.folder / "whole"
        ended = trial.server.rankdet(*train_arguments(run, epochs=2, save_every=1)).wait()
        if ended.status != 0:
            raise RankdetError(f"a run without faults: {ended.last_line}")
        trial.server.references["trained"] = run
    found: Path = trial.server.references["trained"]
    return found


def final_hash(run: Path) -> str:
    """SHA-256 of the last checkpoint's tensors and state, the metrics, and which one is the best.

    Apart from times. Tensors: weights, optimiser, and the state of the random numbers.
    """
    newest = newest_checkpoint(run / CHECKPOINTS)
    if newest is None:
        raise RankdetError(f"{run}: there is no checkpoint")
    read = load_checkpoint(newest)
    best = run / CHECKPOINTS / BEST
    texts = (
        _without_times(read.state),
        [_without_times(row) for row in read_metrics(run / METRICS_FILE)],
        best.read_text() if best.exists() else None,
    )
    text = tensors_hash(read) + json.dumps(texts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def tensors_hash(checkpoint: Checkpoint) -> str:
    """SHA-256 of the weights and of the tensors of optimiser, loss and random numbers."""
    digest = hashlib.sha256()
    for tensors in (checkpoint.weights, checkpoint.training):
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _without_times(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in _TIMES}
