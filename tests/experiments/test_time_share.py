"""The time of a step: which steps are timed, and what the table makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdet.experiments import loss_times
from rankdet.experiments.comparison import LOSSES
from rankdet.experiments.experiment import Request, reproduce
from rankdet.experiments.record import read_record
from rankdet.experiments.time_share import EXPERIMENT, markdown


def test_each_loss_is_trained_as_in_the_comparison_of_losses_without_evaluation() -> None:
    rows = EXPERIMENT.plan(Request("voc320", Path("out"), voc="VOC2012"))
    assert [row.key for row in rows] == list(LOSSES)
    configs = [row.settings["config"] for row in rows]
    assert [config["loss"]["name"] for config in configs] == list(LOSSES.values())
    for config in configs:
        assert (config["training"]["max_steps"], config["data"]["val_split"]) == (150, None)
        assert (config["training"]["batch_size"], config["training"]["compile"]) == (32, True)


def test_the_loss_that_is_timed_is_that_of_all_images_of_a_step() -> None:
    for row in EXPERIMENT.plan(Request("paper", Path("out"), voc="VOCdevkit")):
        training = row.settings["config"]["training"]
        assert (training["batch_size"], training["accumulate"]) == (16, 1)


@pytest.mark.parametrize(("num_steps", "num_timed"), [(3, 2), (2, 1), (1, 1)])
def test_the_first_steps_are_not_timed(
    num_steps: int, num_timed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that goes on by one second with each look at it."""
    looks = iter(range(100))
    monkeypatch.setattr(loss_times, "now", lambda device: float(next(looks)))
    changes = (f"training.max_steps={num_steps}",)
    request = Request("smoke", tmp_path, device="cpu", changes=changes, rows=("AP-Loss",))
    reproduce(EXPERIMENT, request)
    result = read_record(tmp_path / "time-share.json")["rows"]["AP-Loss"]["result"]
    assert result["step_seconds"] == 1 / num_timed
    assert result["loss_seconds"] == 1
    assert (result["step_images"], result["epoch_images"]) == (8, 16)


def test_the_table_has_the_share_and_the_seconds_of_an_epoch(
    hand_made: Callable[..., dict[str, Any]],
) -> None:
    result = {"step_seconds": 0.02, "loss_seconds": 0.001, "step_images": 32, "epoch_images": 3200}
    record = hand_made("time-share", list(LOSSES), {"AP-Loss": result})
    lines = markdown(record).splitlines()
    assert "| AP-Loss | 20.0 | 1.00 | 5.0 % | 1,600 | 2.0 |" in lines
    assert "| Focal Loss | not run | – | – | – | – |" in lines
