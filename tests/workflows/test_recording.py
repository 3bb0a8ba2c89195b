"""What a training keeps: rows, checkpoints, and the results of the best of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdet.config import Config, LossConfig
from rankdet.data.synthetic.scenes import CLASSES
from rankdet.engine.checkpoint import checkpoints, load_checkpoint
from rankdet.engine.detect import Detected
from rankdet.engine.distributed import ALONE
from rankdet.engine.optimizer_state import criterion_state, random_state
from rankdet.engine.records import read_metrics
from rankdet.engine.stopping import StopRequest
from rankdet.engine.train import Position, Report
from rankdet.metrics.anchor_scores import AnchorScores
from rankdet.metrics.evaluation import ClassResult, Evaluation
from rankdet.structures import Detections
from rankdet.workflows import recording
from rankdet.workflows.parts import prepare
from rankdet.workflows.recording import Recorder
from rankdet.workflows.results import Outcome


class Display:
    """Keeps what it is told, in place of a TrainingDisplay."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self.notes: list[str] = []
        self.is_paused = False

    def step(self, *arguments: Any) -> None:
        self.steps.append(arguments)

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.is_paused = True
        yield
        self.is_paused = False


class Clock:
    """Stands still until it is told otherwise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 1000.0
        monkeypatch.setattr("time.monotonic", lambda: self.time)


def recorder_of(
    out: Path, config: Config, *, seconds: float = 0.0, **training: Any
) -> tuple[Recorder, Display]:
    config = replace(config, training=replace(config.training, **training))
    display = Display()
    parts = prepare(config, "cpu")
    return Recorder(out, parts, display, StopRequest(), seconds), display  # type: ignore[arg-type]


def report(batch_ap: float | None = None, num_images: int = 2, **seconds: float) -> Report:
    return Report({"class": 0.5, "box": 0.25}, 3.0, 0.125, num_images, batch_ap, seconds)


def outcome_with(values: dict[str, float | None]) -> Outcome:
    """These numbers, and nothing found in three images."""
    rows = tuple(ClassResult(name, 0, 0) for name in CLASSES)
    nothing = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    detected = Detected([nothing] * 3, 1.0, 1.0)
    return Outcome(Evaluation("voc", values, rows), detected, AnchorScores("sigmoid"))


def set_metrics(monkeypatch: pytest.MonkeyPatch, *metrics: dict[str, float | None] | None) -> None:
    """Each evaluation comes to the next of these; None: it is stopped."""
    remaining = iter(metrics)

    def evaluate(*arguments: Any, **keywords: Any) -> Outcome | None:
        values = next(remaining)
        if values is None:
            return None
        return outcome_with(values)

    monkeypatch.setattr(recording, "evaluate_dataset", evaluate)


def results(out: Path) -> dict[str, Any]:
    content = json.loads((out / "results.json").read_text())
    assert isinstance(content, dict)
    return content


# Rows


def test_a_row_has_the_numbers_of_its_step(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    recorder, display = recorder_of(tmp_path, tiny_config)
    with recorder:
        clock.time += 6
        recorder.step(Position(0, 1, 1), report(0.5, num_images=3, data=0.1))
        clock.time += 2
        recorder.step(Position(0, 2, 2), report(num_images=4))
        clock.time += 2
        recorder.step(Position(1, 0, 3), report(0.75, num_images=6, data=0.2))
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    assert second == {
        "kind": "step",
        "step": 3,
        "epoch": 0,  # its last step
        "class_loss": 0.5,
        "box_loss": 0.25,
        "batch_ap": 75.0,
        "learning_rate": 0.125,
        "gradient_norm": 3.0,
        "images_per_second": 2.5,  # the ten since the last row, in four seconds
        "seconds": {"data": 0.2},
    }
    assert (first["step"], first["epoch"], first["batch_ap"]) == (1, 0, 50.0)
    assert first["images_per_second"] == 0.5
    # Every step is shown; the AP stays until the next one is measured.
    shown = {"class_loss": 0.5, "box_loss": 0.25, "learning_rate": 0.125}
    assert display.steps == [
        (1, 0, {**shown, "batch_AP_in_%": 50.0}, 3),
        (2, 0, {**shown, "batch_AP_in_%": 50.0}, 4),
        (3, 0, {**shown, "batch_AP_in_%": 75.0}, 6),
    ]


@pytest.mark.parametrize("is_wanted", [False, True])
def test_tensorboard_is_for_those_who_ask_and_hides_what_was_lost(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch, is_wanted: bool
) -> None:
    told: list[object] = []

    class Events:
        def __init__(self, folder: Path, purge_step: int) -> None:
            told.append((folder, purge_step))

        def add(self, row: dict[str, Any]) -> None:
            told.append(row["step"])

        def close(self) -> None:
            told.append("closed")

    monkeypatch.setattr(recording, "EventWriter", Events)
    recorder, _ = recorder_of(tmp_path, tiny_config, tensorboard=is_wanted)
    with recorder:
        recorder.begin(Position(0, 3, 3))
        recorder.step(Position(0, 4, 4), report(0.5, data=0.1))
    assert told == ([(tmp_path / "tensorboard", 4), 4, "closed"] if is_wanted else [])


def test_rows_after_the_position_are_dropped(tmp_path: Path, tiny_config: Config) -> None:
    recorder, _ = recorder_of(tmp_path, tiny_config)
    with recorder:
        for step in (1, 2, 3):
            recorder.step(Position(0, step, step), report(0.5, data=0.1))
        recorder.begin(Position(0, 2, 2))
        assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]
        assert recorder.saved_step == 2
        recorder.step(Position(0, 3, 3), report(0.5, data=0.1))
        stream = recorder.metrics._stream
        assert stream is not None
    assert stream.closed


# Checkpoints


def test_a_checkpoint_has_all_that_a_training_needs(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    # Batch norms and this loss have tensors that are not parameters.
    detector = replace(tiny_config.detector, norm="batch")
    config = replace(tiny_config, detector=detector, loss=LossConfig("ghm"))
    recorder, _ = recorder_of(tmp_path, config, seconds=50.0)
    clock.time += 7
    expected = random_state() | criterion_state(recorder.parts.criterion)
    recorder.save(Position(0, 2, 2))
    (path,) = checkpoints(tmp_path / "checkpoints")
    saved = load_checkpoint(path)
    assert recorder.saved_step == saved.step == 2
    assert saved.state["position"] == {"epoch": 0, "batch": 2, "step": 2}
    assert saved.state["seconds"] == 57  # those of earlier sessions, too
    assert saved.weights.keys() == recorder.parts.detector.state_dict().keys()
    assert saved.training.keys() >= expected.keys()
    assert len(expected) >= 2
    assert all(torch.equal(saved.training[name], expected[name]) for name in expected)


def test_as_many_checkpoints_are_kept_as_asked_for(tmp_path: Path, tiny_config: Config) -> None:
    recorder, _ = recorder_of(tmp_path, tiny_config, keep_checkpoints=3)
    for step in range(1, 6):
        recorder.save(Position(0, step, step))
    names = [path.name for path in checkpoints(tmp_path / "checkpoints")]
    assert names == ["step-00000003", "step-00000004", "step-00000005"]


# Evaluations


def test_the_best_is_the_first_with_the_highest_ap(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_metrics(
        monkeypatch,
        {"AP": 10.0, "AP50": 90.0, "AP75": 1.0},
        {"AP": 30.0, "AP50": 20.0, "AP75": 0.0},
        {"AP": 30.0, "AP50": 99.0, "AP75": 99.0},
        {"AP": 20.0, "AP50": 99.0, "AP75": 99.0},
    )
    recorder, display = recorder_of(tmp_path, tiny_config)
    best = []
    with recorder:
        for epoch in (1, 2, 3, 4):
            position = Position(epoch, 0, 4 * epoch)
            recorder.save(position)
            recorder.evaluate(position)
            best.append(json.loads((tmp_path / "checkpoints" / "best.json").read_text()))
            assert results(tmp_path)["checkpoint"]["name"] == best[-1]["checkpoint"]
    assert [entry["value"] for entry in best] == [10.0, 30.0, 30.0, 30.0]
    assert best[-1] == {"checkpoint": "step-00000008", "metric": "AP", "value": 30.0}
    found = results(tmp_path)
    assert found["checkpoint"] == {"name": "step-00000008", "step": 8, "epoch": 2}
    assert found["metrics"]["AP50"] == 20.0
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [(row["kind"], row["step"], row["epoch"], row["AP"]) for row in rows] == [
        ("evaluation", 4, 1, 10.0),
        ("evaluation", 8, 2, 30.0),
        ("evaluation", 12, 3, 30.0),
        ("evaluation", 16, 4, 20.0),
    ]
    assert display.notes[1].startswith("After step 8: VOC metrics in percent: AP 30.0")
    assert len(display.notes) == 4


@pytest.mark.parametrize("moment", ["write_results", "set_best"])
def test_an_evaluation_that_was_killed_before_its_end_is_made_again(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Killed(BaseException):
        pass

    def die(*arguments: Any) -> None:
        raise Killed

    position = Position(1, 0, 4)
    set_metrics(monkeypatch, {"AP": 10.0}, {"AP": 10.0})
    place = recording if moment == "write_results" else recording.checkpoints
    with monkeypatch.context() as patch:
        patch.setattr(place, moment, die)
        recorder, _ = recorder_of(tmp_path, tiny_config)
        with recorder:
            recorder.save(position)
            with pytest.raises(Killed):
                recorder.evaluate(position)
    recorder, _ = recorder_of(tmp_path, tiny_config)
    with recorder:
        assert not recorder.is_evaluated(position)
        recorder.evaluate(position)
        assert recorder.is_evaluated(position)
    best = json.loads((tmp_path / "checkpoints" / "best.json").read_text())
    assert best["checkpoint"] == results(tmp_path)["checkpoint"]["name"] == "step-00000004"


def test_an_ap_that_is_not_available_is_never_the_best(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_metrics(monkeypatch, {"AP": None}, {"AP": 0.0})
    recorder, _ = recorder_of(tmp_path, tiny_config)
    with recorder:
        recorder.save(Position(1, 0, 4))
        recorder.evaluate(Position(1, 0, 4))
        assert not (tmp_path / "results.json").exists()
        recorder.save(Position(2, 0, 8))
        recorder.evaluate(Position(2, 0, 8))
    assert results(tmp_path)["checkpoint"]["step"] == 8


def test_an_evaluation_that_a_signal_ended_leaves_nothing(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_metrics(monkeypatch, None)
    recorder, display = recorder_of(tmp_path, tiny_config)
    with recorder:
        recorder.evaluate(Position(1, 0, 4))
        assert not recorder.is_evaluated(Position(1, 0, 4))
    assert list(tmp_path.iterdir()) == []
    assert display.notes == []


def test_results_have_the_times_of_training_and_evaluation(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    def evaluate(*arguments: Any, **keywords: Any) -> Outcome:
        clock.time += 5
        return outcome_with({"AP": 1.0})

    monkeypatch.setattr(recording, "evaluate_dataset", evaluate)
    recorder, _ = recorder_of(tmp_path, tiny_config, seconds=50.0)
    clock.time += 7
    with recorder:
        recorder.save(Position(1, 0, 4))
        recorder.evaluate(Position(1, 0, 4))
    found = results(tmp_path)
    assert found["wall_time_seconds"] == 5
    assert found["training"]["wall_time_seconds"] == 62


def test_only_an_evaluation_of_the_very_step_counts(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_metrics(monkeypatch, {"AP": 1.0})
    recorder, _ = recorder_of(tmp_path, tiny_config)
    with recorder:
        recorder.step(Position(1, 0, 4), report(0.5, data=0.1))
        assert not recorder.is_evaluated(Position(1, 0, 4))
        recorder.save(Position(1, 0, 4))
        recorder.evaluate(Position(1, 0, 4))
        assert recorder.is_evaluated(Position(1, 0, 4))
        assert not recorder.is_evaluated(Position(2, 0, 8))


def test_the_detector_is_evaluated_on_the_validation_split_as_it_is_trained(
    tmp_path: Path, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int]] = []

    class Meter:
        def __init__(self, what: str) -> None:
            assert what == "Evaluating"

        def __enter__(self) -> Meter:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def expect(self, num_images: int) -> None:
            told.append(("expect", num_images))

        def advance(self, num_images: int = 1) -> None:
            told.append(("done", num_images))

    calls: list[Any] = []

    def evaluate(*arguments: Any, **keywords: Any) -> None:
        assert display.is_paused
        keywords.pop("on_batch")(3)
        should_stop = keywords.pop("should_stop")
        assert not should_stop()
        recorder.stop.signal = 15
        assert should_stop()
        calls.append((arguments, keywords))

    monkeypatch.setattr(recording, "progress", Meter)
    monkeypatch.setattr(recording, "evaluate_dataset", evaluate)
    recorder, display = recorder_of(tmp_path, tiny_config)
    parts = replace(recorder.parts, record=replace(recorder.parts.record, activation="softmax"))
    recorder.parts = parts
    with recorder:
        recorder.evaluate(Position(1, 0, 4))
    ((detector, dataset, config), keywords) = calls[0]
    assert detector is parts.detector
    assert dataset is parts.validation
    assert config is parts.config
    assert keywords == {
        "activation": "softmax",
        "device": parts.device,
        "processes": ALONE,
        "store": None,
    }
    assert told == [("expect", 3), ("done", 3)]
    assert not display.is_paused
