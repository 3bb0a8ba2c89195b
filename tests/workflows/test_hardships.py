"""What befalls a training: spoilt or moved data, lost terminals, another one in its folder."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankdet.config import Config
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.write import write_dataset
from rankdet.engine.checkpoint import newest_checkpoint
from rankdet.engine.sealed_folder import alone_in
from rankdet.engine.train import Position, Report
from rankdet.errors import CheckpointError, DataError
from rankdet.workflows import train as workflow
from rankdet.workflows.evaluate import evaluate
from rankdet.workflows.load import read_thresholds
from rankdet.workflows.parts import prepare
from rankdet.workflows.recording import Recorder
from rankdet.workflows.run import CHECKPOINTS, RESULTS_FILE
from rankdet.workflows.train import train


def run(out: Path, config: Config, **options: Any) -> int:
    return train(out, make_config=lambda stored: config, device="cpu", **options)


def go_on(out: Path, *, is_forced: bool = False) -> int:
    return train(
        out,
        make_config=lambda stored: stored,  # type: ignore[arg-type, return-value]
        is_resumed=True,
        is_forced=is_forced,
        device="cpu",
    )


@pytest.fixture
def yolo(tmp_path: Path, tiny_config: Config) -> Config:
    """Settings for a training on files: eight images, two in each of four steps."""
    splits = {
        "train": SyntheticDataset("train", 8, size=64),
        "val": SyntheticDataset("val", 3, size=64),
    }
    write_dataset(splits, tmp_path / "data", "yolo")
    data = replace(
        tiny_config.data, path=str(tmp_path / "data"), train_split="train", val_split="val"
    )
    return replace(tiny_config, data=data)


def without_objects(config: Config, split: str) -> None:
    for file in (Path(config.data.path) / "labels" / split).iterdir():
        file.write_text("")


# What was learnt is kept


def test_an_image_that_is_spoilt_meanwhile_costs_no_step(
    tmp_path: Path,
    yolo: Config,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    folder = Path(yolo.data.path) / "images" / "train"
    original = Recorder.step

    def spoil(self: Recorder, position: Position, report: Report) -> None:
        original(self, position, report)
        if position.step == 2:
            shutil.copytree(folder, tmp_path / "kept")
            for image in folder.iterdir():
                image.write_bytes(image.read_bytes()[:50])

    monkeypatch.setattr(Recorder, "step", spoil)
    with pytest.raises(DataError, match="ends too early"):
        run(out, yolo)
    found = newest_checkpoint(out / CHECKPOINTS)
    assert found is not None
    assert found.name == "step-00000002"
    assert "Go on with: rankdet train --resume" in capsys.readouterr().err
    monkeypatch.undo()
    shutil.rmtree(folder)
    (tmp_path / "kept").rename(folder)
    assert go_on(out) == 0
    assert "Going on after step 2 of 4." in capsys.readouterr().err


class Gone(io.StringIO):
    """A standard error whose reader has ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_training_goes_on_when_nobody_reads_its_words(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    assert run(tmp_path / "run", tiny_config) == 0
    assert (tmp_path / "run" / RESULTS_FILE).exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_closed_terminal_saves_and_stops(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Recorder.step

    def hang_up(self: Recorder, position: Position, report: Report) -> None:
        original(self, position, report)
        os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(Recorder, "step", hang_up)
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert run(tmp_path / "run", tiny_config) == 128 + signal.SIGHUP
        found = newest_checkpoint(tmp_path / "run" / CHECKPOINTS)
        assert found is not None
        assert found.name == "step-00000001"
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        assert run(tmp_path / "other", tiny_config) == 0
    finally:
        signal.signal(signal.SIGHUP, previous)


def test_a_run_whose_checkpoints_are_gone_says_that_it_begins_anew(
    tmp_path: Path, tiny_config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "run", tiny_config)
    shutil.rmtree(tmp_path / "run" / CHECKPOINTS)
    capsys.readouterr()
    assert go_on(tmp_path / "run") == 0
    assert "no checkpoint to go on from: the training starts at its beginning" in (
        capsys.readouterr().err
    )


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew_unasked(
    tmp_path: Path, tiny_config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    run(out, tiny_config)
    for file in (out / CHECKPOINTS).glob("*/*.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint of the run is whole\. .* --force"):
        go_on(out)
    assert go_on(out, is_forced=True) == 0
    assert "the training starts at its beginning" in capsys.readouterr().err


# Another training in the same folder


@pytest.mark.skipif(sys.platform == "win32", reason="locks of POSIX")
def test_two_trainings_never_share_a_folder(tmp_path: Path, tiny_config: Config) -> None:
    out = tmp_path / "run"
    run(out, tiny_config)
    before = (out / "metrics.jsonl").read_bytes()
    with alone_in(out), pytest.raises(CheckpointError, match="another process is writing here"):
        go_on(out)
    assert (out / "metrics.jsonl").read_bytes() == before
    assert go_on(out) == 0


def test_a_run_that_began_while_the_data_were_read_is_not_overwritten(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def prepare_slowly(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        run(out, tiny_config)
        return prepare(*arguments, **options)

    monkeypatch.setattr(workflow, "prepare", prepare_slowly)
    with pytest.raises(CheckpointError, match="there is a run already"):
        run(out, replace(tiny_config, seed=1))
    assert "seed: 0" in (out / "config.yaml").read_text()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, tiny_config: Config) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="the folder cannot be made"):
        run(tmp_path / "file" / "run", tiny_config)


# Data without objects, and data that were moved


def test_there_must_be_an_object_to_train_on(yolo: Config) -> None:
    without_objects(yolo, "train")
    with pytest.raises(DataError, match=r"split = 'train': expected objects to train on\. None of"):
        prepare(yolo, "cpu")


def test_a_validation_split_without_objects_is_noted(yolo: Config) -> None:
    assert not any("no objects" in note for note in prepare(yolo, "cpu").notes)
    without_objects(yolo, "val")
    assert "val: there are no objects in the split: no AP." in prepare(yolo, "cpu").notes


def test_data_that_were_moved_can_be_named_anew(tmp_path: Path, yolo: Config) -> None:
    out = tmp_path / "run"
    run(out, yolo)
    moved = Path(yolo.data.path).rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"not there any more.*`rankdet train DATA --resume --out"):
        go_on(out)
    with pytest.raises(DataError, match=r"not there any more.*`rankdet evaluate RUN DATA`"):
        evaluate(out, device="cpu")
    evaluate(out, data=str(moved), device="cpu")


# Thresholds


@pytest.fixture
def results(tiny_run: Path) -> Any:
    """The content of results.json."""
    return json.loads((tiny_run / RESULTS_FILE).read_text())


@pytest.mark.parametrize("value", [5, -0.1, float("nan")])
def test_a_threshold_that_is_no_score_is_refused(
    tiny_run: Path, results: dict[str, Any], value: float
) -> None:
    results["thresholds"]["cat"] = value
    (tiny_run / RESULTS_FILE).write_text(json.dumps(results))
    with pytest.raises(CheckpointError, match="the thresholds of the classes cannot be read"):
        read_thresholds(tiny_run, "step-00000001")


def test_an_evaluation_without_any_threshold_is_noted(
    tiny_run: Path, results: dict[str, Any]
) -> None:
    results["thresholds"] = dict.fromkeys(results["thresholds"])
    (tiny_run / RESULTS_FILE).write_text(json.dumps(results))
    _, notes = read_thresholds(tiny_run, "step-00000001")
    assert "expect many false detections" in notes[0]
