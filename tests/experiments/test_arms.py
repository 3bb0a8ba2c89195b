"""Trainings of experiments: run once, gone on with, and kept as a small file."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdet.config import Config
from rankdet.engine.records import read_metrics
from rankdet.experiments.arms import (
    delete_runs,
    evaluated,
    has_run,
    last_results,
    outcome,
    run_folder,
    trained,
)
from rankdet.experiments.experiment import Request, Row, Stopped
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


def refuse(*_: Any, **__: Any) -> int:
    raise AssertionError("it is trained again")


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
    assert result["training"]["images_per_second"] > 0
    assert result["training"]["jobs"] == 1


def test_a_finished_training_is_not_run_again(
    finished: tuple[Config, Request, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, request, result = finished
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    said = capsys.readouterr().err
    assert "Stopped after step 1 of 3." in said
    assert "rankdet train --resume" not in said  # the command says itself how to go on with it
    monkeypatch.undo()
    result = outcome(config, request)
    assert result["training"]["steps"] == 3
    steps = [
        row["step"]
        for row in read_metrics(run_folder(config, request) / "metrics.jsonl")
        if row["kind"] == "step"
    ]
    assert steps == [1, 2, 3]


def test_an_outcome_says_where_the_training_was_done(
    finished: tuple[Config, Request, dict[str, Any]],
) -> None:
    config, request, result = finished
    run = json.loads((run_folder(config, request) / "run.json").read_text())
    assert result["provenance"] == run["provenance"]
    assert result["provenance"]["seed"] == config.seed


def elsewhere(request: Request, out: Path, config: Config) -> Request:
    """The same request on a machine to which the small files alone were taken."""
    name = f"{run_folder(config, request).name}.json"
    (out / "runs").mkdir(parents=True)
    shutil.copy(request.out / "runs" / name, out / "runs" / name)
    return replace(request, out=out)


def test_an_outcome_outlives_the_folder_of_its_training(
    finished: tuple[Config, Request, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, request, result = finished
    monkeypatch.setattr(training_workflow, "train", refuse)
    assert outcome(config, elsewhere(request, tmp_path / "out", config)) == result


def test_who_needs_the_run_itself_trains_it_again(
    finished: tuple[Config, Request, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, request, _ = finished
    request = elsewhere(request, tmp_path / "out", config)
    folder = trained(config, request)
    assert "its numbers are kept, but the run is needed" in "".join(capsys.readouterr())
    assert last_results(folder, request)["metrics"] == outcome(config, request)["metrics"]
    assert (folder / "checkpoints").is_dir()


def test_a_run_that_was_begun_again_and_not_finished_is_gone_on_with(
    finished: tuple[Config, Request, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, request, _ = finished
    request = elsewhere(request, tmp_path / "out", config)
    folder = run_folder(config, request)
    shutil.copytree(run_folder(config, finished[1]), folder)
    assert has_run(folder, config)
    run = json.loads((folder / "run.json").read_text())
    run["provenance"]["time"] = "another"
    (folder / "run.json").write_text(json.dumps(run))
    assert not has_run(folder, config)
    calls = []
    monkeypatch.setattr(
        training_workflow, "train", lambda *_, is_resumed, **__: calls.append(is_resumed) or 0
    )
    trained(config, request)
    assert calls == [True]


def test_results_of_the_last_checkpoint_are_made_if_a_better_one_had_been(
    finished: tuple[Config, Request, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, request, result = finished
    run = trained(config, request)
    best = json.loads((run / "results.json").read_text())
    found = last_results(run, request)
    assert found["checkpoint"]["step"] == 3
    assert found["metrics"] == result["metrics"]
    assert (found == best) == (best["checkpoint"]["step"] == 3)


def test_runs_are_deleted_without_their_outcomes(
    finished: tuple[Config, Request, dict[str, Any]], tmp_path: Path
) -> None:
    config, request, result = finished
    request = elsewhere(request, tmp_path / "out", config)
    folder = run_folder(config, request)
    shutil.copytree(run_folder(config, finished[1]), folder)
    row = Row("a", {}, dict, trainings=(config,))
    delete_runs(row, request, kept={folder})
    assert folder.is_dir()
    delete_runs(row, request, kept=())
    assert not folder.exists()
    assert outcome(config, request) == result


def test_what_is_not_finished_is_not_deleted(tmp_path: Path) -> None:
    config, request = smoke(tmp_path)
    run_folder(config, request).mkdir(parents=True)
    delete_runs(Row("a", {}, dict, trainings=(config,)), request, kept=())
    assert run_folder(config, request).is_dir()
