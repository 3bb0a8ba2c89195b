"""Trainings of experiments: run once, gone on with, several at the same time."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdet.config import Config
from rankdet.engine.records import read_metrics
from rankdet.experiments import arms
from rankdet.experiments.arms import evaluated, outcome, run_folder, train_together, trained
from rankdet.experiments.experiment import Request, Stopped
from rankdet.experiments.scales import Training, base_config
from rankdet.workflows import train as training_workflow
from rankdet.workflows.recording import Recorder


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def smoke(out: Path, **settings: Any) -> tuple[Config, Request]:
    request = Request("smoke", out, device="cpu", **settings)
    return base_config(request, Training()), request


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Request, dict[str, Any]]:
    config, request = smoke(tmp_path_factory.mktemp("arms"))
    return config, request, outcome(config, request)


def test_the_numbers_are_those_of_the_last_evaluation(
    finished: tuple[Config, Request, dict[str, Any]],
) -> None:
    config, request, result = finished
    rows = read_metrics(run_folder(config, request) / "metrics.jsonl")
    evaluations = [row for row in rows if row["kind"] == "evaluation"]
    assert [row["step"] for row in evaluations] == [2, 3]
    assert result["metrics"] == {name: evaluations[-1][name] for name in result["metrics"]}
    assert [point["AP50"] for point in result["curve"]] == [row["AP50"] for row in evaluations]


def test_an_outcome_is_ready_for_json_and_says_what_the_training_was(
    finished: tuple[Config, Request, dict[str, Any]],
) -> None:
    config, request, result = finished
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["run"] == run_folder(config, request).name
    assert result["training"]["steps"] == 3
    assert result["training"]["images"] == 16
    assert result["training"]["seconds"] > 0
    assert result["inference"]["network_images_per_second"] > 0
    assert len(result["classes"]) == len(result["thresholds"]) == 6


def test_a_finished_training_is_not_run_again(
    finished: tuple[Config, Request, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, request, result = finished

    def refuse(*_: Any, **__: Any) -> int:
        raise AssertionError("it is trained again")

    monkeypatch.setattr(training_workflow, "train", refuse)
    assert outcome(config, request) == result


def test_another_evaluation_is_kept_until_its_settings_change(
    finished: tuple[Config, Request, dict[str, Any]],
) -> None:
    config, request, _ = finished
    run = trained(config, request)
    tested = replace(config, evaluation=replace(config.evaluation, max_detections=7))
    first = evaluated(run, request, "few", tested)
    assert first["config"]["evaluation"]["max_detections"] == 7
    assert first["checkpoint"]["step"] == 3
    before = (run / "results-few.json").read_bytes()
    assert evaluated(run, request, "few", tested) == first
    assert (run / "results-few.json").read_bytes() == before
    fewer = replace(tested, evaluation=replace(tested.evaluation, max_detections=3))
    again = evaluated(run, request, "few", fewer)
    assert again["config"]["evaluation"]["max_detections"] == 3


def test_a_training_that_was_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, request = smoke(tmp_path)
    usual = Recorder.step

    def stop_after_first(self: Recorder, position: Any, report: Any) -> None:
        usual(self, position, report)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Recorder, "step", stop_after_first)
    with pytest.raises(Stopped) as stopped:
        trained(config, request)
    assert stopped.value.status == 128 + signal.SIGTERM
    monkeypatch.undo()
    result = outcome(config, request)
    assert result["training"]["steps"] == 3
    steps = [
        row["step"]
        for row in read_metrics(run_folder(config, request) / "metrics.jsonl")
        if row["kind"] == "step"
    ]
    assert steps == [1, 2, 3]


def test_trainings_run_in_processes_of_their_own_each_of_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, request = smoke(tmp_path, jobs=2)
    started = []
    usual = arms._started

    def note(path: Path, *others: Any) -> Any:
        started.append(path)
        return usual(path, *others)

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(arms, "_started", note)
    train_together([config, config], request)  # two rows ask for it
    assert "Finished: 3 steps" in Path(f"{run_folder(config, request)}.log").read_text()
    assert outcome(config, request)["training"]["steps"] == 3
    train_together([config], request)
    assert started == [run_folder(config, request)]


def test_a_process_that_fails_is_left_to_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, request = smoke(tmp_path, jobs=2)
    command = [sys.executable, "-c", "raise SystemExit(1)"]
    monkeypatch.setattr(arms, "_command", lambda *_: command)
    train_together([config], request)
    assert not run_folder(config, request).exists()


def test_a_process_that_a_signal_ended_stops_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, request = smoke(tmp_path, jobs=1)
    command = [sys.executable, "-c", "raise SystemExit(143)"]
    monkeypatch.setattr(arms, "_command", lambda *_: command)
    with pytest.raises(Stopped) as stopped:
        train_together([config, replace(config, seed=1)], request)
    assert stopped.value.status == 143
    assert len(list((tmp_path / "runs").glob("*.log"))) == 1
