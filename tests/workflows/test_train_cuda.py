"""Training on a CUDA device: bfloat16, channels last, images held there, and going on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankdet.config import Config, apply_settings
from rankdet.engine.checkpoint import load_checkpoint, newest_checkpoint
from rankdet.engine.records import read_metrics
from rankdet.recipes import recipe
from rankdet.workflows.parts import prepare
from rankdet.workflows.train import train

pytestmark = pytest.mark.gpu

SETTINGS = [
    *("data.path=synthetic", "data.train_split=train:8", "data.val_split=val:4", "data.size=64"),
    *("data.workers=0", "data.hold=true", "training.batch_size=4", "training.epochs=2"),
    *("training.log_every=1", "evaluation.fixed_size=64", "evaluation.every=1"),
]


NAMES = ["small", "small-ssd", "small-faster-rcnn"]


def config(*settings: str, name: str = "small") -> Config:
    return apply_settings(recipe(name), [*SETTINGS, *settings])


@pytest.mark.parametrize("name", NAMES)
def test_a_step_uses_bfloat16_and_channels_last_there(name: str) -> None:
    parts = prepare(config(name=name), "cuda")
    assert parts.step_settings.precision is torch.bfloat16
    assert parts.step_settings.channels_last
    weight = parts.detector.body.stem[0].weight
    assert weight.is_cuda
    assert weight.dtype == torch.float32
    assert weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("compiled", ["false", "true"])
def test_a_training_runs_to_its_end_and_goes_on(compiled: str, name: str, tmp_path: Path) -> None:
    wanted = config(f"training.compile={compiled}", name=name)
    out = tmp_path / "run"
    assert train(out, make_config=lambda stored: wanted, device="cuda") == 0
    longer = replace(wanted, training=replace(wanted.training, epochs=3))
    assert train(out, make_config=lambda stored: longer, is_resumed=True, device="cuda") == 0
    rows = read_metrics(out / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "step"] == [1, 2, 3, 4, 5, 6]
    key = "roi.class_loss" if name == "small-faster-rcnn" else "class_loss"
    assert all(0 <= row[key] <= 1 for row in rows if row["kind"] == "step")
    assert json.loads((out / "results.json").read_text())["provenance"]["machine"]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_a_gpu_goes_on_on_a_cpu(name: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    wanted = config("training.max_steps=3", name=name)
    train(out, make_config=lambda stored: wanted, device="cuda")
    longer = replace(wanted, training=replace(wanted.training, max_steps=4))
    assert train(out, make_config=lambda stored: longer, is_resumed=True, device="cpu") == 0
    path = newest_checkpoint(out / "checkpoints")
    assert path is not None
    assert load_checkpoint(path).step == 4


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_the_losses_of_a_batch_are_those_of_a_cpu(name: str) -> None:
    """With the same boxes drawn: what they depend on does not depend on the device."""
    parts = prepare(config("data.hold=false", name=name), "cpu")
    batch = next(iter(parts.loader.epoch(1)))
    detector = parts.detector.double()  # lest proposals change places by rounding
    found = []
    for device in ("cpu", "cuda"):
        here = batch.to(device)
        stages = detector.to(device)(here.images.double(), here.targets)
        stages = [
            replace(
                stage,
                logits=stage.logits.float(),
                deltas=stage.deltas.float(),
                anchors=stage.anchors.float(),
            )
            for stage in stages
        ]
        losses = parts.criterion.to(device)(stages, here.targets)
        found.append(
            {name: float(value) for name, value in {**losses.parts, **losses.counts}.items()}
        )
    assert found[1] == pytest.approx(found[0], rel=1e-3)
