"""Every command with every detector: training, going on, evaluation, prediction, report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankdet import cli

OPTIONS = "--size 64 --batch-size 2 --workers 0 --device cpu --set training.log_every=1"
QUICK = OPTIONS.split()


def rankdet(*arguments: object) -> str:
    """What the command prints, in this process."""
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(cli.app, list(map(str, arguments)), env=environment)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "shapes"
    rankdet("synth", path, "--format", "coco", "--train", 4, "--val", 2, "--size", 64)
    return path


@pytest.mark.parametrize(
    ("recipe", "loss"),
    [
        ("small-ssd", "ap"),
        ("small-ssd", "ohem"),
        ("small-faster-rcnn", "ap"),
        ("small-faster-rcnn", "ohem"),
    ],
)
def test_a_detector_goes_through_every_command(
    data: Path, tmp_path: Path, recipe: str, loss: str
) -> None:
    run, found = tmp_path / "run", tmp_path / "found"
    options = [*QUICK, "--recipe", recipe, "--loss", loss, "--out", run]
    rankdet("train", data, *options, "--epochs", 1)
    rankdet("train", data, "--resume", "--epochs", 2, "--out", run, "--device", "cpu")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(row["step"] for row in rows) == 4
    assert any(0 <= row.get("batch_ap", -1) <= 100 for row in rows)
    rankdet("evaluate", run, "--flip", "--workers", 0, "--device", "cpu")
    results = json.loads((run / "results.json").read_text())
    assert results["data"]["num_images"] == 2
    assert 0 <= results["metrics"]["AP"] <= 100
    attacks = ["--limit", 1, "--patch-steps", 1, "--deepfool-objects", 1, "--device", "cpu"]
    rankdet("robustness", run, data, "--split", "val", *attacks, "--workers", 0)
    content = json.loads((run / "robustness.json").read_text())
    assert [row["name"] for row in content["perturbations"]] == [
        *("original", "black", "random", "flip", "adversarial", "noise")
    ]
    assert content["deepfool"]["num_attacked"] <= content["deepfool"]["num_detected"]
    images = data / "val"
    rankdet("predict", run, images, "--out", found, "--threshold", 0.0, "--device", "cpu")
    content = json.loads((found / "detections.json").read_text())
    assert content["images"]
    assert content["annotations"]
    rankdet("report", run)
    assert "triangle" in (run / "report" / "index.html").read_text()

    # Its best checkpoint is where another training starts from.
    options = [*options[:-1], tmp_path / "finetuned", "--weights", run]
    again = rankdet("train", data, *options, "--set", "training.max_steps=1")
    assert "6 of 6 classes taken from the source" in again
