"""A run directory: what is written is read again, and what was spoilt is told."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdet.config import Config
from rankdet.errors import CheckpointError, ConfigError
from rankdet.workflows.run import (
    CHECKPOINTS,
    RunRecord,
    is_run,
    read_checkpoint,
    read_run,
    trained_detector,
    write_run,
)

CPU = torch.device("cpu")


def test_a_record_is_read_as_it_was_written(tmp_path: Path, tiny_config: Config) -> None:
    record = RunRecord(
        config=replace(tiny_config, seed=7),
        classes=("cat", "dög"),
        category_ids=(3, 5),
        activation="softmax",
        data={"train": {"split": "a", "num_images": 3}, "val": None},
        provenance={"seed": 7, "command": "rankdet train"},
    )
    assert not is_run(tmp_path)
    write_run(tmp_path, record)
    assert is_run(tmp_path)
    assert read_run(tmp_path) == record


def test_a_run_without_its_settings_is_told(tiny_run: Path) -> None:
    (tiny_run / "config.yaml").unlink()
    with pytest.raises((CheckpointError, ConfigError), match=r"config\.yaml"):
        read_run(tiny_run)


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"not a run: run\.json is missing"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "this is not JSON"),
        ("[1]", "expected a JSON object"),
        ('{"rankdet_run": 2}', "rankdet_run = 2: expected 1"),
        ("{}", "rankdet_run = None: expected 1"),
    ],
)
def test_a_spoilt_record_is_told(tiny_run: Path, content: str, words: str) -> None:
    (tiny_run / "run.json").write_text(content)
    with pytest.raises(CheckpointError, match=words):
        read_run(tiny_run)


@pytest.mark.parametrize("name", ["classes", "category_ids", "activation", "data", "provenance"])
def test_a_record_without_a_part_is_told(tiny_run: Path, name: str) -> None:
    content: dict[str, Any] = json.loads((tiny_run / "run.json").read_text())
    del content[name]
    (tiny_run / "run.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=f"{name} is missing"):
        read_run(tiny_run)


@pytest.mark.parametrize(
    ("name", "value"), [("classes", 5), ("activation", None), ("data", "x"), ("provenance", [])]
)
def test_a_part_of_another_kind_is_told(tiny_run: Path, name: str, value: object) -> None:
    content: dict[str, Any] = json.loads((tiny_run / "run.json").read_text())
    (tiny_run / "run.json").write_text(json.dumps({**content, name: value}))
    with pytest.raises(CheckpointError, match=f"{name} is not as it was written"):
        read_run(tiny_run)


def test_another_activation_is_told(tiny_run: Path) -> None:
    content = json.loads((tiny_run / "run.json").read_text())
    (tiny_run / "run.json").write_text(json.dumps(content | {"activation": "tanh"}))
    with pytest.raises(CheckpointError, match="activation = 'tanh': expected sigmoid or softmax"):
        read_run(tiny_run)


def test_a_checkpoint_is_found_by_its_rank_name_or_path(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_checkpoint(tiny_run).step == 1
    assert read_checkpoint(tiny_run, "best").step == 1
    assert read_checkpoint(tiny_run, "last").step == 2
    assert read_checkpoint(tiny_run, "step-00000002").step == 2
    elsewhere = shutil.copytree(tiny_run / CHECKPOINTS / "step-00000002", tmp_path / "copy")
    assert read_checkpoint(tiny_run, str(elsewhere)).step == 2
    monkeypatch.chdir(tmp_path)
    assert read_checkpoint(tiny_run, "copy").step == 2


def test_without_a_best_checkpoint_it_is_the_last(tiny_run: Path) -> None:
    (tiny_run / CHECKPOINTS / "best.json").unlink()
    assert read_checkpoint(tiny_run, "best").step == 2


def test_a_checkpoint_that_is_not_there_is_told(tiny_run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^step-9: there is no such checkpoint\. Give best"):
        read_checkpoint(tiny_run, "step-9")
    shutil.rmtree(tiny_run / CHECKPOINTS)
    for which in ("best", "last"):
        with pytest.raises(CheckpointError, match=r"no complete checkpoint yet.*--resume"):
            read_checkpoint(tiny_run, which)


@pytest.mark.parametrize("is_last", [False, True])
def test_a_trained_detector_has_its_weights_and_layout(tiny_run: Path, is_last: bool) -> None:
    record, checkpoint = read_run(tiny_run), read_checkpoint(tiny_run)
    training = replace(record.config.training, channels_last=is_last)
    record = replace(record, config=replace(record.config, training=training))
    detector = trained_detector(record, checkpoint, CPU)
    for name, tensor in detector.state_dict().items():
        assert torch.equal(tensor, checkpoint.weights[name])
    weight = detector.backbone.fpn.layer_blocks[0][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) is is_last


@pytest.mark.parametrize("change", [{"activation": "softmax"}, {"classes": ("cat",)}])
def test_weights_that_do_not_fit_the_record_are_told(
    tiny_run: Path, change: dict[str, Any]
) -> None:
    record, checkpoint = read_run(tiny_run), read_checkpoint(tiny_run)
    with pytest.raises(CheckpointError, match="the weights do not fit"):
        trained_detector(replace(record, **change), checkpoint, CPU)
    checkpoint.weights.popitem()
    with pytest.raises(CheckpointError, match="the weights do not fit"):
        trained_detector(record, checkpoint, CPU)


def test_weights_of_another_type_are_told(tiny_run: Path) -> None:
    record, checkpoint = read_run(tiny_run), read_checkpoint(tiny_run)
    name = min(checkpoint.weights)
    checkpoint.weights[name] = checkpoint.weights[name].double()
    with pytest.raises(CheckpointError, match=r"is of torch\.float64 instead of torch\.float32"):
        trained_detector(record, checkpoint, CPU)
