"""Shared by the tests of workflows."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdet import build
from rankdet.config import Config, DataConfig, DetectorConfig, EvaluationConfig, TrainingConfig
from rankdet.engine.checkpoint import save_checkpoint, set_best
from rankdet.workflows.run import CHECKPOINTS, RESULTS_FILE, RunRecord, write_run

# Processes that train together import this by its name; a test file they could not import.
sys.path.insert(0, str(Path(__file__).parent))
import training_world

_SECONDS = 120.0  # after which a world is taken for hung


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
        training=TrainingConfig(epochs=1, batch_size=2, milestones=(), log_every=1),
        evaluation=EvaluationConfig(every=1, fixed_size=64, batch_size=3),
    )


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its status (negative: the signal), what it said, and when."""

    status: int | None
    output: str
    seconds: float


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., list[Ended]]:
    """Starts a process for each plan (see `training_world`), as torchrun does; gives their ends."""
    numbers = iter(range(1000))

    def run(plans: Sequence[Any]) -> list[Ended]:
        folder = tmp_path / f"world-{next(numbers)}"
        folder.mkdir()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["rankdet.workflows.train"])  # torch takes seconds
        shared = {
            "WORLD_SIZE": str(len(plans)),
            "LOCAL_WORLD_SIZE": str(len(plans)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
        }
        processes = []
        for rank, plan in enumerate(plans):
            environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            arguments = (plan, environment, str(folder / str(rank)))
            processes.append(context.Process(target=training_world.take_part, args=arguments))
        start = time.monotonic()
        for process in processes:
            process.start()
        try:
            ends: dict[int, float] = {}
            while len(ends) < len(plans) and time.monotonic() - start < _SECONDS:
                for rank, process in enumerate(processes):
                    if rank not in ends and process.exitcode is not None:
                        ends[rank] = time.monotonic() - start
                time.sleep(0.02)
        finally:
            for process in processes:
                process.kill()
                process.join()
        assert len(ends) == len(plans), f"only {sorted(ends)} of {len(plans)} processes have ended"
        return [
            Ended(process.exitcode, (folder / str(rank)).read_text(), ends[rank])
            for rank, process in enumerate(processes)
        ]

    return run


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
