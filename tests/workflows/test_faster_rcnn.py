"""Faster R-CNN through all workflows: it trains, goes on, is judged, predicts, and learns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from rankdet.config import Config, LossConfig
from rankdet.engine.records import read_metrics
from rankdet.recipes import recipe
from rankdet.workflows.evaluate import evaluate
from rankdet.workflows.predict import predict
from rankdet.workflows.results import training_counts
from rankdet.workflows.train import train


def tiny(num_steps: int = 4, num_images: int = 8, val_split: str = "val:2") -> Config:
    """The small recipe, with even fewer RoIs, on images of 64 x 64."""
    base = recipe("small-faster-rcnn")
    return replace(
        base,
        data=replace(
            base.data,
            path="synthetic",
            train_split=f"train:{num_images}",
            val_split=val_split,
            augmentation="none",
            size=64,
            workers=0,
        ),
        detector=replace(base.detector, rois=24, proposals=48, test_proposals=24),
        training=replace(
            base.training,
            epochs=num_steps,
            max_steps=num_steps,
            batch_size=2,
            reference_batch_size=2,
            warmup_steps=1,
            log_every=1,
            channels_last=False,
        ),
        evaluation=replace(base.evaluation, every=0, fixed_size=64, pictures=False),
    )


def run(out: Path, config: Config, is_resumed: bool = False) -> int:
    return train(out, make_config=lambda stored: config, is_resumed=is_resumed, device="cpu")


def content(out: Path) -> dict[str, object]:
    result: dict[str, object] = json.loads((out / "results.json").read_text())
    return result


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    assert run(out, tiny()) == 0
    return out


def test_every_row_has_the_losses_of_both_stages_and_the_rois_that_were_used(
    finished: Path,
) -> None:
    rows = [row for row in read_metrics(finished / "metrics.jsonl") if row["kind"] == "step"]
    assert len(rows) == 4
    for row in rows:
        for name in ("rpn.class", "rpn.box", "roi.class", "roi.box"):
            assert row[f"{name}_loss"] >= 0
        assert 1 <= row["roi.positives_per_image"] < row["roi.boxes_per_image"] <= 24


def test_results_have_the_mean_number_of_rois(finished: Path, tmp_path: Path) -> None:
    rows = [row for row in read_metrics(finished / "metrics.jsonl") if row["kind"] == "step"]
    counts = content(finished)["training"]["counts"]  # type: ignore[index]
    assert set(counts) == {"roi.boxes_per_image", "roi.positives_per_image"}
    for name, value in counts.items():
        assert value == pytest.approx(sum(row[name] for row in rows) / len(rows))
    first = training_counts(finished / "metrics.jsonl", 1)
    assert first == {name: rows[0][name] for name in counts}
    assert training_counts(tmp_path / "nothing", 1) == {}


def test_it_is_evaluated_and_predicts(finished: Path, tmp_path: Path) -> None:
    before = content(finished)
    evaluate(finished, out=tmp_path / "results.json", device="cpu")
    after = content(tmp_path)
    assert after["metrics"] == before["metrics"]
    assert after["training"]["counts"] == before["training"]["counts"]  # type: ignore[index]
    assert after["anchors"]["num_anchors"] > 0  # type: ignore[index]
    pixels = torch.randint(0, 255, (50, 70, 3), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(tmp_path / "picture.png")
    predict(
        finished,
        [tmp_path / "picture.png"],
        tmp_path / "found",
        threshold=0.0,
        with_pictures=False,
        device="cpu",
    )
    found = json.loads((tmp_path / "found" / "detections.json").read_text())["annotations"]
    assert found
    assert all(box["bbox"][0] >= 0 and sum(box["bbox"][::2]) <= 70.01 for box in found)


@pytest.mark.parametrize("loss", ["ap", pytest.param("ce", marks=pytest.mark.slow)])
def test_a_handful_of_images_is_learnt(loss: str, tmp_path: Path) -> None:
    config = replace(tiny(90, 4, "train:4"), loss=LossConfig(loss))
    config = replace(
        config,
        data=replace(config.data, size=96),
        detector=replace(config.detector, rois=32, proposals=64, test_proposals=32),
        training=replace(config.training, batch_size=4, reference_batch_size=4, warmup_steps=10),
        evaluation=replace(config.evaluation, fixed_size=96),
    )
    untrained = replace(config, training=replace(config.training, max_steps=1, learning_rate=1e-9))
    for name, settings in (("untrained", untrained), ("trained", config)):
        assert run(tmp_path / name, settings) == 0
    before, after = (
        content(tmp_path / name)["metrics"]["AP50"]  # type: ignore[index]
        for name in ("untrained", "trained")
    )
    assert before < 20
    assert after > 80
    rows = read_metrics(tmp_path / "trained" / "metrics.jsonl")
    losses = [row for row in rows if row["kind"] == "step"]
    for name in ("rpn.class_loss", "roi.class_loss"):
        assert sum(row[name] for row in losses[-5:]) < sum(row[name] for row in losses[:5]) / 2
