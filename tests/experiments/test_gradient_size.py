"""The sizes of gradients: worked by hand, that measuring changes nothing, and the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankdet.config import from_dict
from rankdet.detectors.criterion import Losses
from rankdet.errors import ConfigError
from rankdet.experiments.comparison import LOSSES
from rankdet.experiments.experiment import Request, reproduce
from rankdet.experiments.gradient_size import (
    EXPERIMENT,
    PARTS,
    Measuring,
    figure,
    markdown,
    shared_sizes,
)


class TwoOutputs(nn.Module):
    """One weight that both parts share, and one for each."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.ours, self.theirs = (
            nn.Parameter(torch.tensor([value])) for value in (2.0, 3.0, 5.0)
        )

    def forward(self) -> dict[str, torch.Tensor]:
        hidden = self.shared * self.shared
        return {"class": (hidden * self.ours).sum(), "box": (hidden * self.theirs).sum()}


def test_the_sizes_are_those_on_the_weights_that_both_parts_reach() -> None:
    network = TwoOutputs()
    sizes = shared_sizes(network(), list(network.parameters()))
    assert sizes == {"class": 2 * 2 * 3, "box": 2 * 2 * 5}  # and not 4 on a weight of their own


def test_measuring_leaves_the_graph_for_the_step() -> None:
    network = TwoOutputs()

    def criterion(stages: Sequence[Any], targets: Sequence[Any]) -> Losses:
        return Losses(network(), [])

    measuring: Any = Measuring(criterion, list(network.parameters()), every=2)
    for _ in range(3):
        network.zero_grad()
        measuring([], []).total.backward()
        assert [one.grad.item() for one in network.parameters()] == [32, 4, 4]
    assert [point["step"] for point in measuring.points] == [1, 3]
    assert measuring.points[0]["losses"] == {"class": 12, "box": 20}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("gradients")
    return reproduce(EXPERIMENT, Request("smoke", out, device="cpu", rows=("AP-Loss", "Focal")))


def test_every_step_that_is_measured_has_both_sizes_and_the_batch_s_ap(
    smoke: dict[str, Any],
) -> None:
    points = smoke["rows"]["AP-Loss"]["result"]["points"]
    assert [point["step"] for point in points] == [1, 2, 3]
    for point in points:
        assert set(point["sizes"]) == set(PARTS)
        assert all(size > 0 for size in point["sizes"].values())
        assert 0 <= point["ap"] <= 100
        assert 0 <= point["losses"]["class"] <= 1


def test_before_the_first_step_the_box_part_is_the_same_for_every_loss_with_sigmoid(
    smoke: dict[str, Any],
) -> None:
    """The same weights and the same batch; only the class part differs."""
    first, other = (
        smoke["rows"][name]["result"]["points"][0]["sizes"] for name in ("AP-Loss", "Focal Loss")
    )
    assert first["box"] == pytest.approx(other["box"], rel=1e-5)
    assert first["class"] != pytest.approx(other["class"], rel=0.01)


def test_the_training_is_that_of_a_run_without_measurements(tmp_path: Path) -> None:
    """Other measurements, the same steps: what a step leaves is what the next one begins with."""
    every = [
        reproduce(
            EXPERIMENT,
            Request(
                *("smoke", tmp_path / str(number)),
                device="cpu",
                rows=("AP-Loss",),
                changes=(f"training.log_every={number}",),
            ),
        )["rows"]["AP-Loss"]["result"]["points"]
        for number in (1, 2)
    ]
    assert [point["step"] for point in every[1]] == [1, 3]
    assert every[1] == [every[0][0], every[0][2]]


def test_nothing_is_compiled_nor_divided_at_any_scale() -> None:
    for scale in ("voc320", "paper"):
        rows = EXPERIMENT.plan(Request(scale, Path("out"), voc="VOC2012"))
        assert [row.key for row in rows] == list(LOSSES)
        for row, loss in zip(rows, LOSSES.values(), strict=True):
            config = from_dict(row.settings["config"])
            assert (config.loss.name, config.data.val_split) == (loss, None)
            assert (config.training.compile, config.training.accumulate) == (False, 1)


@pytest.mark.parametrize("change", ["training.accumulate=2", "training.compile=true"])
def test_what_cannot_be_measured_is_refused_before_a_training(change: str, tmp_path: Path) -> None:
    request = Request("smoke", tmp_path / "out", device="cpu", changes=(change,))
    with pytest.raises(ConfigError, match=rf"--set {change}.*Leave it out".replace("true", "True")):
        reproduce(EXPERIMENT, request)
    assert not request.out.exists()


def test_the_table_says_how_many_times_the_box_part_the_class_part_is(
    hand_made: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    point = {"step": 1, "sizes": {"class": 0.5, "box": 2.0}, "losses": {}, "ap": 12.34}
    still = {"step": 1001, "sizes": {"class": 0.5, "box": 0.0}, "losses": {}, "ap": None}
    record = hand_made("gradient-size", list(LOSSES), {"AP-Loss": {"points": [point, still]}})
    lines = markdown(record).splitlines()
    assert "| AP-Loss | 1 | 0.5 | 2 | 0.25 | 12.3 |" in lines
    assert "| AP-Loss | 1,001 | 0.5 | 0 | – | n/a |" in lines
    assert "| Focal Loss | not run | – | – | – | – |" in lines
    figure(record, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
