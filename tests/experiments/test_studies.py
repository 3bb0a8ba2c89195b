"""The studies measure what they say.

That each of them runs is tested with all other experiments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdet.experiments import (
    convergence,
    imbalance,
    memory,
    paper_loop,
    score_iou,
    time_curve,
    time_losses,
)
from rankdet.experiments.comparison import LOSSES
from rankdet.experiments.experiment import Experiment, Request, reproduce
from rankdet.experiments.loss_times import Snapshot, first_images, seconds_of
from rankdet.experiments.record import results_of
from rankdet.losses import ap_loss

STUDIES = (
    score_iou.EXPERIMENT,
    convergence.EXPERIMENT,
    imbalance.EXPERIMENT,
    memory.EXPERIMENT,
    time_curve.EXPERIMENT,
    time_losses.EXPERIMENT,
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks as small as these are slower with several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_paper_s_rows_are_all_there(tmp_path: Path) -> None:
    request = Request("paper", tmp_path, voc="VOCdevkit")
    plans = {study.name: [row.key for row in study.plan(request)] for study in STUDIES}
    assert plans["score-iou"] == plans["time-losses"] == list(LOSSES)
    assert plans["memory"] == ["1", "2", "4", "8", "16"]
    numbers = ("500", "1000", "2000", "4000", "8000", "16000", "all")
    assert plans["imbalance"][::3] == [f"error-driven, {number}" for number in numbers]
    assert len(plans["imbalance"]) == 21
    (row,) = time_curve.plan(request)
    assert row.settings["config"]["training"]["batch_size"] == 8
    settings = convergence.plan(request)[0].settings["config"]
    assert settings["data"]["train_split"] == "2007_trainval"
    assert settings["loss"]["box_weight"] == 0
    assert settings["training"]["log_every"] == 1


# What the studies of time measure.


def test_times_of_a_study_are_those_of_its_steps(tmp_path: Path) -> None:
    study = time_curve.EXPERIMENT
    record = reproduce(study, Request("smoke", tmp_path, device="cpu"))
    points = results_of(record)[time_curve.KEY]["points"]
    assert [point["step"] for point in points] == [1, 2, 3]
    for point in points:
        assert 0 < point["loss_seconds"] < 60
        expected = point["iteration_seconds"] - point["loss_seconds"] + point["loop_seconds"]
        assert point["iteration_with_loop_seconds"] == pytest.approx(expected)
        assert point["positives"] > 0
        assert 0 < point["nontrivial_negatives"] <= 8 * 168 * 6


@pytest.mark.parametrize("study", [time_curve.EXPERIMENT, time_losses.EXPERIMENT])
def test_the_paper_s_loop_has_the_delta_of_the_loss(
    study: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltas = []

    def loop(logits: torch.Tensor, labels: torch.Tensor, delta: float = 1.0) -> torch.Tensor:
        deltas.append(delta)
        return ap_loss(logits, labels, delta=delta)

    def count(logits: torch.Tensor, labels: torch.Tensor, delta: float = 1.0) -> torch.Tensor:
        deltas.append(delta)
        return labels >= 0

    monkeypatch.setattr(paper_loop, "paper_ap_loss", loop)
    monkeypatch.setattr(paper_loop, "nontrivial_negatives", count)
    changes = ("loss.settings.delta=2", "training.max_steps=1")
    request = Request("smoke", tmp_path, device="cpu", changes=changes)
    last = study.plan(request)[-1]  # of AP-loss: the others have no delta
    assert last.key == "AP-Loss"
    reproduce(replace(study, plan=lambda _: [last]), request)
    assert set(deltas) == {2.0}


def test_snapshots_are_cut_into_batches_of_any_size() -> None:
    logits = torch.arange(10.0).view(5, 2, 1)
    labels = torch.arange(10).view(5, 2)
    snapshots = [Snapshot(logits[:3], labels[:3]), Snapshot(logits[3:], labels[3:])]
    batches = first_images(snapshots, 2)
    assert [batch.labels.flatten().tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert all(torch.equal(batch.logits[..., 0].long(), batch.labels) for batch in batches)


def test_a_time_is_the_median_of_rounds_after_the_first() -> None:
    calls = []

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        calls.append(logits.grad)
        return ap_loss(logits, labels)

    snapshot = Snapshot(torch.randn(1, 50, 2), torch.randint(-1, 2, (1, 50)))
    assert seconds_of(loss, snapshot, rounds=3) > 0
    assert calls == [None] * 4  # fresh gradients every time
    assert snapshot.logits.grad is None


def test_the_table_of_times_over_a_training(
    tmp_path: Path, hand_made: Callable[..., dict[str, Any]]
) -> None:
    point = {
        "step": 1000,
        "loss_seconds": 0.002,
        "loop_seconds": 0.3,
        "iteration_seconds": 0.1,
        "iteration_with_loop_seconds": 0.398,
        "positives": 600,
        "nontrivial_negatives": 123_456,
    }
    record = hand_made("time-curve", [time_curve.KEY], {time_curve.KEY: {"points": [point]}})
    expected = "| 1,000 | 2.00 | 300.00 | 150.0 | 100.0 | 398.0 | 600 | 123,456 |"
    assert expected in time_curve.markdown(record)
    empty = hand_made("time-curve", [time_curve.KEY], {})
    assert "not run" in time_curve.markdown(empty)
    time_curve.figure(record, tmp_path / "full.png")
    time_curve.figure(empty, tmp_path / "empty.png")


def test_the_table_of_times_by_loss(
    tmp_path: Path, hand_made: Callable[..., dict[str, Any]]
) -> None:
    result = {
        "milliseconds": {"1": 3.0, "2": 5.0},
        "focal_milliseconds": {"1": 2.0, "2": 2.0},
        "loop_milliseconds": {"1": 20.0, "2": 50.0},
    }
    record = hand_made("time-losses", list(LOSSES), {"AP-Loss": result})
    text = time_losses.markdown(record)
    assert "| AP-Loss | 3.00 (1.5) | 5.00 (2.5) |" in text
    assert "| AP-Loss, the paper's loop | 20.00 (10.0) | 50.00 (25.0) |" in text
    assert "| Focal Loss | not run | not run |" in text
    time_losses.figure(record, tmp_path / "some.png")
    time_losses.figure(hand_made("time-losses", [], {}), tmp_path / "empty.png")
