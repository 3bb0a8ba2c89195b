"""The course of a training: how many steps, at which rate, and what is done when."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rankdet.config import Config, LossConfig, TrainingConfig
from rankdet.engine.checkpoint import checkpoints, load_checkpoint, newest_checkpoint
from rankdet.engine.distributed import Processes
from rankdet.engine.records import read_metrics
from rankdet.engine.train import Position, Report
from rankdet.errors import CheckpointError, LoaderError
from rankdet.workflows import train as workflow
from rankdet.workflows.recording import Recorder
from rankdet.workflows.train import train


def run(out: Path, config: Config, **options: Any) -> int:
    return train(out, make_config=lambda stored: config, device="cpu", **options)


def with_training(config: Config, **changes: Any) -> Config:
    return replace(config, training=replace(config.training, **changes))


@pytest.mark.parametrize(("most", "expected"), [(None, 12), (5, 5), (12, 12), (99, 12)])
def test_there_are_so_many_steps(most: int | None, expected: int) -> None:
    settings = TrainingConfig(epochs=3, max_steps=most)
    assert workflow.count_steps(settings, steps_per_epoch=4) == expected


def test_the_learning_rate_is_scaled_warms_up_and_falls_at_its_milestones() -> None:
    settings = TrainingConfig(
        epochs=4,
        batch_size=8,
        learning_rate=0.5,
        reference_batch_size=16,
        milestones=(1.5, 3.0),
        decay=0.5,
        warmup_steps=2,
        warmup_start=0.5,
    )
    rate = workflow.learning_rate_of(settings, steps_per_epoch=2, num_steps=8)
    found = [rate(step) for step in range(8)]
    assert found == pytest.approx([0.125, 0.1875, 0.25, 0.125, 0.125, 0.125, 0.0625, 0.0625])


def test_one_cycle_ends_with_the_last_step() -> None:
    settings = TrainingConfig(
        learning_rate=0.5, schedule="one_cycle", milestones=(), warmup_steps=2, warmup_start=0.0
    )
    rate = workflow.learning_rate_of(settings, steps_per_epoch=5, num_steps=10)
    assert rate(2) == pytest.approx(0.5)
    assert 0 <= rate(9) < rate(8) < rate(3) < 0.5
    assert rate(9) < 0.03


@pytest.mark.parametrize(
    ("every", "expected"), [(0, [12]), (1, [4, 8, 12]), (2, [8, 12]), (5, [12])]
)
def test_evaluations_are_due_after_so_many_epochs_and_at_the_end(
    every: int, expected: list[int]
) -> None:
    config = Config(evaluation=replace(Config().evaluation, every=every))
    parts: Any = SimpleNamespace(config=config, validation=object())
    positions = [Position(step // 4, step % 4, step) for step in range(13)]
    due = [p.step for p in positions if workflow._is_evaluation_due(parts, 12, p)]
    assert due == expected
    parts.validation = None
    assert not any(workflow._is_evaluation_due(parts, 12, p) for p in positions)


def test_an_end_within_an_epoch_is_evaluated_too() -> None:
    parts: Any = SimpleNamespace(config=Config(), validation=object())
    assert workflow._is_evaluation_due(parts, 6, Position(1, 2, 6))
    assert not workflow._is_evaluation_due(parts, 6, Position(1, 1, 5))


def events_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What a training does beside its steps; nothing is evaluated in truth."""
    events: list[tuple[str, int]] = []
    original = Recorder.save

    def save(self: Recorder, position: Position) -> None:
        events.append(("save", position.step))
        original(self, position)

    def evaluate(self: Recorder, position: Position) -> None:
        events.append(("evaluate", position.step))

    monkeypatch.setattr(Recorder, "save", save)
    monkeypatch.setattr(Recorder, "evaluate", evaluate)
    return events


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["save 4", "evaluate 4", "save 8", "evaluate 8"]),  # the end of each epoch
        ({"save_every": 3}, ["save 3", "save 4", "evaluate 4", "save 6", "save 8", "evaluate 8"]),
        # What is evaluated has been saved: it may be the best.
        ({"max_steps": 5}, ["save 4", "evaluate 4", "save 5", "evaluate 5"]),
    ],
)
def test_it_saves_regularly_after_each_epoch_and_at_the_end_and_evaluates_then(
    tmp_path: Path,
    tiny_config: Config,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, int],
    expected: list[str],
) -> None:
    events = events_of(monkeypatch)
    run(tmp_path / "run", with_training(tiny_config, epochs=2, **settings))
    assert [f"{what} {step}" for what, step in events] == expected


def test_after_a_signal_nothing_is_evaluated_and_it_is_made_up_for(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        events = events_of(patch)
        stop_after(patch, 4)
        assert run(out, tiny_config) == 143
        assert events == [("save", 4)]
    for _ in range(2):  # the second time it is there
        assert run(out, tiny_config, is_resumed=True) == 0
    rows = read_metrics(out / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "evaluation"] == [4]


def stop_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The signal's flag is set when this step has been recorded."""
    original = Recorder.step

    def with_signal(self: Recorder, position: Position, report: Report) -> None:
        original(self, position, report)
        if position.step == step:
            self.stop.signal = 15

    monkeypatch.setattr(Recorder, "step", with_signal)


def test_a_session_says_where_it_stopped_and_the_next_where_it_goes_on(
    tmp_path: Path,
    tiny_config: Config,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "my run"
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert run(out, with_training(tiny_config, batch_size=1)) == 143
    said = capsys.readouterr().err
    assert "8 images to train on, 3 to evaluate on; 8 steps of 1 image on cpu." in said
    assert "The weights are random." in said
    assert "Going on" not in said
    assert f"Stopped after step 3 of 8. Go on with: rankdet train --resume --out '{out}'" in said
    assert run(out, with_training(tiny_config, batch_size=1), is_resumed=True) == 0
    said = capsys.readouterr().err
    assert "Going on after step 3 of 8." in said
    assert "The weights are random" not in said
    assert "Stopped" not in said
    assert f"Finished: 8 steps. The run is in {out}." in said
    assert f"See what came out: rankdet report '{out}'" in said


def test_the_time_of_all_sessions_is_added(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    original = Recorder.step

    def slow(self: Recorder, position: Position, report: Report) -> None:
        clock[0] += 10
        original(self, position, report)

    monkeypatch.setattr(Recorder, "step", slow)
    out = tmp_path / "run"
    run(out, with_training(tiny_config, max_steps=3))
    clock[0] += 1000  # between the sessions
    run(out, tiny_config, is_resumed=True)
    found = newest_checkpoint(out / "checkpoints")
    assert found is not None
    assert load_checkpoint(found).state["seconds"] == 40


def test_the_settings_are_made_from_those_of_the_run_and_the_device_is_handed_on(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    run(out, with_training(tiny_config, max_steps=1))
    asked: list[Any] = []

    def make_config(stored: Config | None) -> Config:
        asked.append(stored)
        return tiny_config

    def preparing(config: Config, device: str | None, **keywords: Any) -> Any:
        asked.append((device, keywords))
        raise LoaderError("that is enough")

    monkeypatch.setattr(workflow, "prepare", preparing)
    for folder, is_resumed in ((tmp_path / "new", False), (out, True)):
        with pytest.raises(LoaderError):
            train(folder, make_config=make_config, device="cuda:7", is_resumed=is_resumed)
    here = Processes(device_name="cuda:7")
    assert asked == [
        None,
        ("cuda:7", {"has_checkpoint": False, "processes": here}),
        with_training(tiny_config, max_steps=1),
        ("cuda:7", {"has_checkpoint": True, "processes": here}),
    ]


def test_the_display_and_the_loop_are_told_how_far_it_is(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    original = workflow.TrainingDisplay

    def display(**keywords: Any) -> Any:
        told.append(keywords)
        return original(**keywords)

    monkeypatch.setattr(workflow, "TrainingDisplay", display)
    out = tmp_path / "run"
    run(out, with_training(tiny_config, epochs=2, max_steps=3))
    run(out, with_training(tiny_config, epochs=2), is_resumed=True)
    assert told == [
        {"start_step": 0, "num_steps": 3, "num_epochs": 2},
        {"start_step": 3, "num_steps": 8, "num_epochs": 2},
    ]


def test_a_checkpoint_that_was_spoilt_is_passed_over_and_told(
    tmp_path: Path, tiny_config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    run(out, with_training(tiny_config, save_every=2))
    newest = checkpoints(out / "checkpoints")[-1]
    with (newest / "weights.safetensors").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"!")
    capsys.readouterr()
    run(out, with_training(tiny_config, save_every=2), is_resumed=True)
    said = capsys.readouterr().err
    assert "step-00000004 is passed over" in said
    assert "Going on after step 2 of 4." in said


def test_an_empty_folder_will_do_and_a_file_will_not(tmp_path: Path, tiny_config: Config) -> None:
    out = tmp_path / "run"
    out.mkdir()
    assert run(out, with_training(tiny_config, max_steps=1)) == 0
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(CheckpointError, match="not an empty folder"):
        run(file, tiny_config)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_signal_may_end_the_workers_first(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    if is_stopped:  # in a moment when the loop does not look
        monkeypatch.setattr(workflow, "_next", _fail_with_signal)
        monkeypatch.setattr(workflow, "StopRequest", lambda *_, **__: STOP)
        STOP.signal = None
        assert run(tmp_path / "run", tiny_config) == 143
    else:
        monkeypatch.setattr(workflow, "_next", _fail)
        with pytest.raises(LoaderError, match="worker 0 ended"):
            run(tmp_path / "run", tiny_config)


STOP = workflow.StopRequest()


def _fail(*arguments: object) -> None:
    raise LoaderError("worker 0 ended")


def _fail_with_signal(*arguments: object) -> None:
    STOP.signal = 15
    raise LoaderError("worker 0 ended")


def test_loader_and_steps_are_closed_at_the_end(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    prepare, steps = workflow.prepare, workflow.training_steps

    def preparing(*arguments: Any, **keywords: Any) -> Any:
        parts = prepare(*arguments, **keywords)
        close = parts.loader.close
        monkeypatch.setattr(parts.loader, "close", lambda: (closed.append("loader"), close()))
        return parts

    def stepping(*arguments: Any, **keywords: Any) -> Any:
        try:
            yield from steps(*arguments, **keywords)
        finally:
            closed.append("steps")

    monkeypatch.setattr(workflow, "prepare", preparing)
    monkeypatch.setattr(workflow, "training_steps", stepping)
    original: Callable[..., None] = Recorder.__exit__

    def leaving(self: Recorder, *arguments: object) -> None:
        closed.append("recorder")
        original(self, *arguments)

    monkeypatch.setattr(Recorder, "__exit__", leaving)
    run(tmp_path / "run", with_training(tiny_config, max_steps=1))
    assert closed == ["steps", "recorder", "loader"]


@pytest.mark.parametrize("loss", ["ap", "ohem"])
def test_the_ap_of_a_batch_is_that_of_the_activation(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    seen: list[str] = []

    def average_precision(
        logits: object, labels: object, activation: str, synchronize: bool
    ) -> torch.Tensor:
        assert not synchronize
        seen.append(activation)
        return torch.tensor(0.5)

    monkeypatch.setattr(workflow, "batch_average_precision", average_precision)
    config = with_training(replace(tiny_config, loss=LossConfig(loss)), max_steps=1)
    run(tmp_path / "run", config)
    assert seen == ["softmax" if loss == "ohem" else "sigmoid"]
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[0]["batch_ap"] == 50


def test_settings_of_a_step_reach_the_loop(tmp_path: Path, tiny_config: Config) -> None:
    losses = []
    for limit in (None, 1e-9):
        out = tmp_path / str(limit)
        run(out, with_training(tiny_config, clip_norm=limit, max_steps=2, learning_rate=0.1))
        losses.append(read_metrics(out / "metrics.jsonl")[1]["class_loss"])
    assert losses[0] != losses[1]


def test_a_forced_run_may_have_other_settings_says_so_and_keeps_them(
    tmp_path: Path, tiny_config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    run(out, with_training(tiny_config, max_steps=1))
    other = with_training(tiny_config, momentum=0.5)
    copy = shutil.copytree(out, tmp_path / "copy")
    with pytest.raises(CheckpointError, match=r"training\.momentum"):
        run(copy, other, is_resumed=True)
    capsys.readouterr()
    assert run(out, other, is_resumed=True, is_forced=True) == 0
    warning = "warning: the run was started with other settings: training.momentum: 0.9 became 0.5."
    assert warning in capsys.readouterr().err
    assert workflow.runs.read_run(out).config == other
