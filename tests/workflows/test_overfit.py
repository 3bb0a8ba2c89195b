"""All parts together learn: a handful of images are known by heart after some dozen steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rankdet.config import LossConfig
from rankdet.recipes import recipe
from rankdet.workflows.train import train


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("small", "ap"),
        ("small", "focal"),
        ("small", "ohem"),
        ("small-ssd", "ap"),
        pytest.param("small-ssd", "focal", marks=pytest.mark.slow),
        pytest.param("small-ssd", "ohem", marks=pytest.mark.slow),
    ],
)
def test_a_handful_of_images_is_learnt_by_heart(name: str, loss: str, tmp_path: Path) -> None:
    base = recipe(name)
    config = replace(
        base,
        data=replace(
            base.data,
            path="synthetic",
            train_split="train:4",
            val_split="train:4",
            augmentation="none",
            size=128,
            workers=0,
        ),
        loss=LossConfig(loss),
        training=replace(
            base.training, epochs=60, batch_size=4, reference_batch_size=4, warmup_steps=10
        ),
        evaluation=replace(base.evaluation, every=0, fixed_size=128),
    )
    untrained = replace(config, training=replace(config.training, max_steps=1, learning_rate=1e-9))
    train(tmp_path / "untrained", make_config=lambda stored: untrained, device="cpu")
    train(tmp_path / "trained", make_config=lambda stored: config, device="cpu")
    assert _ap50(tmp_path / "untrained") < 20
    assert _ap50(tmp_path / "trained") > 95


def _ap50(run: Path) -> float:
    value: float = json.loads((run / "results.json").read_text())["metrics"]["AP50"]
    return value
