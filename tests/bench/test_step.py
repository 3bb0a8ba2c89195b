"""The bench of the training step: parts that are those of the step, and a peer that is a peer."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn
from typer.testing import CliRunner

from rankdet.bench import step as bench
from rankdet.bench import step_tables
from rankdet.bench.torchvision_step import make_torchvision, torchvision_step
from rankdet.cli import app
from rankdet.detectors import criterion as criterion_module
from rankdet.detectors.assign import Assignment
from rankdet.detectors.criterion import Criterion
from rankdet.engine.train import StepSettings
from rankdet.structures import Predictions, Target

CPU = torch.device("cpu")
SMALL = dataclasses.replace(bench.QUICK, num_steps=2)


def make_record(
    class_loss: float = 1.0,
    box: float = 2.0,
    speed: float = 160.0,
    on_device: float | None = 0.505,
) -> dict[str, Any]:
    """A record as of a full run; times are milliseconds of a step of 100."""
    parts = dict(zip(step_tables.PARTS, (class_loss, 1.0, box, 30.0, 60.0, 0.0), strict=True))
    parts["optimiser and checks"] = 100 - sum(parts.values())
    ours = [
        {
            "network": network,
            "loss": loss,
            "classes": classes,
            "anchors_per_place": 6,
            "milliseconds": 101.0,
            "wall_milliseconds": 102.0,
            "images_per_second": speed,
            "parts": parts,
            "class_loss_on_device": on_device,
            "without_loss_milliseconds": 95.0,
        }
        for network, classes in (("ours", 80), ("ours", 20), ("as torchvision's", 80))
        for loss in ("ap", "focal")
    ]
    peer = {"milliseconds": 160.0, "wall_milliseconds": 161.0}
    return {
        "provenance": {
            "command": "rankdet bench step",
            "commit": "abc",
            "seed": 0,
            "versions": {"torch": "2.11"},
            "machine": "Linux",
        },
        "side": 512,
        "images": 16,
        "objects": 90,
        "backbone": "resnet50",
        "ours": ours,
        "differences": ["they differ"],
        "torchvision": [
            {"name": "reference", "images_per_second": 100.0, **peer},
            {"name": "like ours", "images_per_second": 140.0, **peer},
        ],
    }


class FakeTime:
    """A clock that goes on only where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def passing(self, tensor: Tensor, forward: float, backward: float) -> Tensor:
        """The tensor itself, after so many seconds; its gradient takes others."""
        clock = self

        class Slow(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, value: Tensor) -> Tensor:
                clock.now += forward
                return value.clone()

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                clock.now += backward
                return gradient

        return Slow.apply(tensor)


def test_a_clock_gives_what_passed_before_each_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    passing = FakeTime(monkeypatch)
    clock = bench.Clock(CPU)
    for name, moment in (("", 1.0), ("a", 1.5), ("b", 1.5), ("a", 4.5)):
        passing.now = moment
        clock.mark(name)
    assert clock.milliseconds() == [("a", 500), ("b", 0), ("a", 3000)]


def test_each_part_has_the_time_of_its_forward_and_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passing = FakeTime(monkeypatch)

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, images: Tensor, targets: object) -> list[Predictions]:
            both = passing.passing(self.weight.expand(1, 4, 6), 16, 32)
            return [Predictions("", both[..., :2], both[..., 2:], torch.zeros(4, 4), (4,))]

    class ClassLoss(nn.Module):
        def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
            return passing.passing(logits, 2, 8).sum()

    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            passing.now += 64

    def assigner(stage: Predictions, targets: Sequence[Target]) -> Assignment:
        passing.now += 1
        return Assignment(torch.zeros(1, 4), torch.zeros(1, 4), torch.zeros(1, 4))

    def box_loss(stage: Predictions, *rest: object, **settings: object) -> Tensor:
        return passing.passing(stage.deltas, 4, 128).sum()

    monkeypatch.setattr(criterion_module, "box_loss", box_loss)
    criterion = Criterion(assigner, ClassLoss(), box_weights=(1, 1, 1, 1))
    detector = Detector()
    network: Any = bench.Network(
        bench.Config(), detector, Optimizer(detector.parameters(), lr=0.1), StepSettings(CPU)
    )
    batch = bench.make_batch(SMALL, 2, CPU, 0)
    parts = bench.part_milliseconds(network, criterion, batch, num_steps=3)
    assert parts == {
        "class loss": 10e3,
        "matching": 1e3,
        "box loss": 132e3,
        "network forward": 16e3,
        "network backward": 32e3,
        "optimiser and checks": 64e3,
    }
    assert tuple(parts) == step_tables.PARTS
    assert criterion.assigner is assigner
    assert not criterion.class_loss._forward_hooks


def test_the_median_step_leaves_out_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    passing = FakeTime(monkeypatch)
    seconds = iter((50.0, 60.0, 1.0, 9.0, 2.0))

    def run() -> None:
        passing.now += next(seconds)

    sizes = dataclasses.replace(SMALL, num_images=4, num_warm_up=2, num_steps=3)
    assert bench.median_step(run, sizes, CPU) == {
        "milliseconds": 2000,
        "wall_milliseconds": 2000,
        "images_per_second": 1.0,
    }


def test_a_batch_has_a_few_objects_an_image_and_in_some_many() -> None:
    sizes = dataclasses.replace(SMALL, num_images=8)
    batch = bench.make_batch(sizes, 5, CPU, seed=0)
    counts = [len(target) for target in batch.targets]
    assert all(2 <= count <= 8 for index, count in enumerate(counts) if index % 4 != 3)
    assert all(counts[index] in range(6, 25, 3) for index in (3, 7))
    for target in batch.targets:
        assert ((target.boxes[:, 2:] - target.boxes[:, :2]) > 0).all()
        assert (target.boxes >= 0).all()
        assert (target.boxes <= sizes.side).all()
        assert ((target.labels >= 0) & (target.labels < 5)).all()
    assert torch.equal(batch.images, bench.make_batch(sizes, 5, CPU, seed=0).images)
    assert not torch.equal(batch.images, bench.make_batch(sizes, 5, CPU, seed=1).images)


def test_the_network_is_frozen_as_in_the_papers_recipe_and_its_scores_differ() -> None:
    torch.manual_seed(0)
    batch = bench.make_batch(SMALL, 3, CPU, 0)
    network = bench.make_network(SMALL, 3, batch.images)
    body = network.detector.backbone.body
    frozen = {name for name, child in body.named_children() if not _is_trained(child)}
    assert frozen == {"stem", "layer1"}
    (stage,) = network.detector(batch.images[:1])
    assert stage.logits.std().item() == pytest.approx(1, rel=1e-3)


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def test_a_step_without_loss_has_a_gradient_for_every_output() -> None:
    logits, deltas = torch.zeros(1, 2, 3, requires_grad=True), torch.zeros(1, 2, 4)
    deltas.requires_grad_()
    stage = Predictions("", logits, deltas, torch.zeros(2, 4), (2,))
    bench.no_loss([stage], []).total.backward()
    assert torch.equal(logits.grad, torch.ones_like(logits))
    assert torch.equal(deltas.grad, torch.ones_like(deltas))


def test_the_peer_trains_as_many_parameters_as_our_network_with_its_anchors() -> None:
    sizes = dataclasses.replace(bench.Sizes(), side=32, num_images=1, is_compiled=False)
    batch = bench.make_batch(sizes, 80, CPU, 0)
    ours = bench.make_network(sizes, 80, batch.images, **bench._AS_TORCHVISION).detector
    peer = make_torchvision("resnet50", 80, CPU, side=32, is_channels_last=False, is_compiled=False)
    shapes = [
        {name: p.shape for name, p in module.named_parameters() if p.requires_grad}
        for module in (ours, peer)
    ]
    assert shapes[0] == shapes[1]
    assert ours.anchors.generator.sizes == peer.anchor_generator.sizes


def test_a_step_of_the_peer_does_all_its_work_and_keeps_its_weights() -> None:
    sizes = dataclasses.replace(SMALL, side=64)
    batch = bench.make_batch(sizes, 4, CPU, 0)
    peer = make_torchvision("resnet18", 4, CPU, side=64, is_channels_last=True, is_compiled=False)
    layouts = []
    peer.backbone.register_forward_pre_hook(
        lambda _, inputs: layouts.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    before = peer.head.classification_head.cls_logits.weight.clone()
    torchvision_step(peer, batch, precision=None)()
    trained = [parameter for parameter in peer.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in trained)
    torch.testing.assert_close(peer.head.classification_head.cls_logits.weight, before)
    assert layouts == [True]


def test_the_tables_mark_what_misses_its_bar(capsys: pytest.CaptureFixture[str]) -> None:
    step_tables.print_tables(make_record(), Console(width=200))
    text = capsys.readouterr().out
    assert "not" not in text
    assert "- they differ" in text
    slow = make_record(class_loss=3.0, box=7.0, speed=149.0, on_device=2.525)
    step_tables.print_tables(slow, Console(width=200))
    text = capsys.readouterr().out
    assert text.count("3.0 % (not ≤ 2)") == 3  # with AP-loss, not with focal loss
    assert text.count("2.5 % (not ≤ 2)") == 3  # of the step of 101 ms, the device alone
    assert text.count("8.0 % (not ≤ 5)") == 3
    assert text.count("(not ≥ 1.5)") == 1  # 1.49 x the reference
    assert text.count("(not ≥ 1.1)") == 1
    step_tables.print_tables(slow, Console(width=200), with_bars=False)
    assert "not" not in capsys.readouterr().out


def test_the_readme_table_has_shares_ratios_and_origin() -> None:
    table = step_tables.markdown(make_record())
    numbers = "102.0 | 160 | 0.5 % | 1.0 % | 1.0 % | 2.0 % | 30.0 % | 60.0 %"
    assert f"| 6, 20, focal loss | {numbers}" in table
    assert "| 160 | - | 1.0 %" in step_tables.markdown(make_record(on_device=None))
    assert "| as its reference script | 100 | 1.60 x | 1.60 x |" in table
    assert "`rankdet bench step`, commit abc, seed 0, torch 2.11, Linux." in table


def test_the_command_measures_and_writes_a_record_that_becomes_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "QUICK", SMALL)
    record = tmp_path / "step.json"
    result = CliRunner().invoke(app, ["bench", "step", "--quick", "--json", str(record)])
    assert result.exit_code == 0, result.output
    assert "bars are for the full run" in result.output
    assert "not ≤" not in result.output
    content = json.loads(record.read_text())
    assert content["provenance"]["device"] == "cpu"
    assert [(row["loss"], row["anchors_per_place"], row["classes"]) for row in content["ours"]] == [
        *(("ap", 6, 80), ("focal", 6, 80), ("ap", 6, 20), ("focal", 6, 20)),
        *(("ap", 9, 80), ("focal", 9, 80)),
    ]
    for row in content["ours"]:
        assert all(part > 0 for part in row["parts"].values())
    result = CliRunner().invoke(app, ["bench", "table", str(record)])
    assert "| 9, 80, AP-loss |" in result.output
