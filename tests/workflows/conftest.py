"""Shared by the tests of workflows."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankdet import build
from rankdet.config import Config, DataConfig, DetectorConfig, EvaluationConfig, TrainingConfig
from rankdet.engine.checkpoint import save_checkpoint, set_best
from rankdet.workflows.run import CHECKPOINTS, RESULTS_FILE, RunRecord, write_run


@pytest.fixture(scope="session")
def _pristine_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a small untrained detector whose scores differ widely; step 1 is the best of two."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    config = Config(
        data=DataConfig(path="synthetic"),
        detector=DetectorConfig(backbone="small", norm="group", head_norm="group"),
        evaluation=replace(
            EvaluationConfig(), shorter=64, longest=128, batch_size=2, max_detections=20
        ),
    )
    classes = ("cat", "dog", "bus")
    write_run(folder, RunRecord(config, classes, (3, 5, 18), "sigmoid", {}, {}))
    for step in (1, 2):
        torch.manual_seed(step)
        detector = build.detector(config.detector, len(classes), "sigmoid")
        with torch.no_grad():
            detector.head.classification_head.cls_logits.weight *= 8
            detector.head.regression_head.bbox_reg.weight *= 30
        path = save_checkpoint(
            folder / CHECKPOINTS, step, weights=detector.state_dict(), training={}, state={}
        )
        if step == 1:
            set_best(folder / CHECKPOINTS, path, "AP", 50.0)
    thresholds = {"cat": 0.3, "dog": 0.1, "bus": None}
    content = {"thresholds": thresholds, "checkpoint": {"name": "step-00000001"}}
    (folder / RESULTS_FILE).write_text(json.dumps(content))
    return folder


@pytest.fixture
def tiny_run(_pristine_run: Path, tmp_path: Path) -> Path:
    """A copy of that run, which a test may change."""
    return Path(shutil.copytree(_pristine_run, tmp_path / "run"))


@pytest.fixture
def tiny_config() -> Config:
    """One epoch of four steps, on drawn images of 64 x 64."""
    return Config(
        data=DataConfig(
            path="synthetic", train_split="train:8", val_split="val:3", size=64, workers=0
        ),
        detector=DetectorConfig(backbone="small", norm="group", head_norm="group"),
        training=TrainingConfig(epochs=1, batch_size=2, log_every=1),
        evaluation=EvaluationConfig(every=1, fixed_size=64, batch_size=3),
    )
