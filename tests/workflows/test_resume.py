"""Going on with a run: which settings may change, and that everything is put back."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdet.config import Config, LossConfig, from_dict, to_dict
from rankdet.engine.checkpoint import Checkpoint
from rankdet.engine.optimizer_state import criterion_state, optimizer_state, random_state
from rankdet.engine.train import Position
from rankdet.errors import CheckpointError
from rankdet.workflows.parts import Parts, prepare
from rankdet.workflows.resume import (
    check_same_data,
    check_same_settings,
    note_on_processes,
    restore,
    seconds_before,
)
from rankdet.workflows.run import RunRecord

FREE = {
    "data.path": "elsewhere",
    "data.workers": 3,
    "data.hold": True,
    "data.max_pixels": 7,
    "data.allow_outside": True,
    "training.epochs": 7,
    "training.max_steps": 7,
    "training.log_every": 7,
    "training.save_every": 7,
    "training.keep_checkpoints": 7,
    "training.tensorboard": True,
    "training.compile": True,
    "evaluation.every": 7,
    "evaluation.nms_iou": 0.7,
}


def changed(config: Config, key: str, value: object) -> Config:
    content = to_dict(config)
    section, _, name = key.rpartition(".")
    place: dict[str, Any] = content[section] if section else content
    assert place[name] != value
    place[name] = value
    return from_dict(content)


@pytest.mark.parametrize("key", FREE)
def test_what_does_not_decide_what_is_learnt_may_change(key: str) -> None:
    check_same_settings(Config(), changed(Config(), key, FREE[key]))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", 7),
        ("data.size", 96),
        ("data.augmentation", "none"),
        ("data.drop_ignored", True),
        ("data.classes", ["a"]),
        ("detector.anchor_scale", 3.0),
        ("detector.positive_iou", 0.6),
        ("loss.box_weight", 2.0),
        ("training.batch_size", 8),
        ("training.accumulate", 2),
        ("training.rank_locally", True),
        ("training.milestones", [1.0]),
        ("training.warmup_steps", 7),
        ("training.clip_norm", 7.0),
    ],
)
def test_what_decides_what_is_learnt_may_not(key: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=rf"other settings: {key}: .* became "):
        check_same_settings(Config(), changed(Config(), key, value))


def test_a_setting_of_the_loss_may_not_come_or_go() -> None:
    plain, wide = Config(), Config(loss=LossConfig("ap", {"delta": 2.0}))
    with pytest.raises(CheckpointError, match=r"loss\.settings\.delta: None became 2\.0"):
        check_same_settings(plain, wide)
    with pytest.raises(CheckpointError, match=r"loss\.settings\.delta: 2\.0 became None"):
        check_same_settings(wide, plain)


def test_all_differences_are_told_in_the_order_of_their_names() -> None:
    other = changed(changed(Config(), "training.momentum", 0.5), "data.size", 96)
    with pytest.raises(CheckpointError, match=r"data\.size: .*; training\.momentum: "):
        check_same_settings(Config(), other)


def record(**changes: Any) -> RunRecord:
    data = {"train": {"split": "a", "num_images": 3, "fingerprint": "x"}, "val": None}
    return replace(RunRecord(Config(), ("cat", "dog"), (1, 2), "sigmoid", data, {}), **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": ("dog", "cat")}, r"classes: \['cat', 'dog'\] became \['dog', 'cat'\]"),
        (
            {"data": {**record().data, "train": {**record().data["train"], "fingerprint": "y"}}},
            r"train\.fingerprint: 'x' became 'y'",
        ),
        ({"data": {**record().data, "val": {"split": "b"}}}, r"val\.split: None became 'b'"),
    ],
)
def test_other_data_are_told(changes: dict[str, Any], words: str) -> None:
    check_same_data(record(), record(provenance={"seed": 9}))
    with pytest.raises(CheckpointError, match=rf"other data: .*{words}"):
        check_same_data(record(), record(**changes))


def one_step(parts: Parts) -> None:
    """Anything that changes the weights, what the optimiser and the loss remember, and the dice."""
    batch = next(iter(parts.loader.epoch(0)))
    loss = parts.criterion(parts.detector(batch.images), batch.targets).total
    (loss * (1 + torch.rand(()))).backward()
    parts.optimizer.step()


def checkpoint_of(parts: Parts) -> Checkpoint:
    """A copy of everything, as from a file."""
    tensors, settings = optimizer_state(parts.optimizer, parts.detector.named_parameters())
    training = tensors | criterion_state(parts.criterion) | random_state()
    return Checkpoint(
        Path("step"),
        5,
        {name: tensor.clone() for name, tensor in parts.detector.state_dict().items()},
        {name: tensor.clone() for name, tensor in training.items()},
        {"position": {"epoch": 2, "batch": 3, "step": 5}, "optimizer": settings},
    )


def test_everything_is_put_back(tiny_config: Config) -> None:
    config = replace(tiny_config, loss=LossConfig("ghm", {"momentum": 0.5}))
    parts = prepare(config, "cpu")
    one_step(parts)
    saved = checkpoint_of(parts)
    expected = torch.rand(3)
    fresh = prepare(replace(config, seed=9), "cpu")
    assert restore(fresh, saved) == Position(epoch=2, batch=3, step=5)
    assert torch.equal(torch.rand(3), expected)
    again = checkpoint_of(fresh)
    assert again.weights.keys() == saved.weights.keys()
    assert all(torch.equal(saved.weights[name], again.weights[name]) for name in saved.weights)
    assert again.training.keys() == saved.training.keys()
    for name, tensor in saved.training.items():
        if not name.startswith("random."):
            assert torch.equal(tensor, again.training[name]), name
    assert math.prod(saved.training["criterion.class_loss.running_counts"].shape) > 0


def test_weights_of_another_detector_cannot_be_forced(tiny_config: Config) -> None:
    saved = checkpoint_of(prepare(replace(tiny_config, loss=LossConfig("ohem")), "cpu"))
    with pytest.raises(CheckpointError, match=r"^step: the weights do not fit"):
        restore(prepare(tiny_config, "cpu"), saved)


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        (None, "position = None: expected three numbers"),
        ("5", "position = '5': expected three numbers"),
        ({"epoch": 2, "batch": 3}, "expected three numbers"),
        ({"epoch": 2, "batch": 3, "step": 5, "x": 1}, "expected three numbers"),
        ({"epoch": "2", "batch": 3, "step": 5}, "expected three numbers"),
        ({"epoch": True, "batch": 3, "step": 5}, "expected three numbers"),
        ({"epoch": -1, "batch": 3, "step": 5}, "expected three numbers"),
        ({"epoch": 2, "batch": 3, "step": 6}, "it is of step 5 and of 6"),
        ({"epoch": 2, "batch": 4, "step": 5}, "at batch 4 of an epoch, and there are 4 in one now"),
    ],
)
def test_a_position_that_cannot_be_is_refused_before_anything_changes(
    tiny_config: Config, position: object, reason: str
) -> None:
    parts = prepare(tiny_config, "cpu")
    saved = checkpoint_of(parts)
    saved.state["position"] = position
    one_step(parts)
    before = parts.detector.state_dict()["head.classification_head.cls_logits.bias"].clone()
    with pytest.raises(CheckpointError, match=reason):
        restore(parts, saved)
    after = parts.detector.state_dict()["head.classification_head.cls_logits.bias"]
    assert torch.equal(before, after)


def test_a_checkpoint_without_settings_of_the_optimiser_is_refused(tiny_config: Config) -> None:
    parts = prepare(tiny_config, "cpu")
    saved = checkpoint_of(parts)
    del saved.state["optimizer"]
    with pytest.raises(CheckpointError, match="its optimiser has no settings"):
        restore(parts, saved)


def test_weights_of_another_type_are_refused(tiny_config: Config) -> None:
    parts = prepare(tiny_config, "cpu")
    saved = checkpoint_of(parts)
    name = min(saved.weights)
    saved.weights[name] = saved.weights[name].double()
    with pytest.raises(CheckpointError, match=r"is of torch\.float64 instead of torch\.float32"):
        restore(parts, saved)


def test_the_seconds_of_before_are_a_number() -> None:
    saved = Checkpoint(Path("step"), 5, {}, {}, {"seconds": 7})
    assert seconds_before(saved) == 7.0
    assert seconds_before(None) == 0.0
    for wrong in (None, "7", True, -1.0, [7], 10**400, float("inf")):
        saved.state["seconds"] = wrong
        with pytest.raises(CheckpointError, match=r"step/state\.json: .*seconds = .*expected a nu"):
            seconds_before(saved)


def test_the_number_of_processes_of_before_is_a_number() -> None:
    saved = Checkpoint(Path("step"), 5, {}, {}, {"world_size": 2})
    assert note_on_processes(saved, 2) == ""
    assert "by 2 processes so far, and goes on with 1 process." in note_on_processes(saved, 1)
    for wrong in (None, "2", True, 0, [2]):
        saved.state["world_size"] = wrong
        with pytest.raises(CheckpointError, match=r"step/state\.json: .*world_size = .*expected"):
            note_on_processes(saved, 2)
