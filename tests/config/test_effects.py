"""Settings without effect: the table is true in both directions, and tells what someone has set."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rankdet import build
from rankdet.config import Config, DataConfig, DetectorConfig, EvaluationConfig
from rankdet.config.effects import (
    names_without_effect,
    settings_without_effect,
    square_evaluation,
    training_name,
    validation_name,
)
from rankdet.recipes import RECIPES, recipe
from rankdet.structures import Target

# A value of every setting that is not the default one.
OTHERS: dict[str, Any] = {
    "stride_on": "1x1",
    "norm": "group",
    "norm_epsilon": 0.5,
    "head_norm": "group",
    "p6_from": "p5",
    "pyramid_channels": 32,
    "pyramid_start": "torchvision",
    "head_start": "kaiming",
    "anchor_scale": 3.0,
    "anchor_octaves": 1,
    "anchor_ratios": (1.0, 2.0, 3.0),
    "anchor_grid": "torchvision",
    "box_weights": (1.0, 1.0, 1.0, 1.0),
    "positive_iou": 0.95,
    "negative_iou": 0.01,
    "ssd_layout": "ssd300",
    "pixels": "bytes",
    "rois": 2,
    "proposals": 512,
    "test_proposals": 3,
}
# Not by what the network computes: which network it is, its weights, and what is not trained.
OF_ITS_OWN = {"name", "backbone", "weights", "frozen_stages"}
CASES = [("retinanet", "small"), ("ssd", "small"), ("faster_rcnn", "small")]


def outcome(settings: DetectorConfig) -> list[Tensor]:
    """What the network says of an image, alone and in training, and the losses of that."""
    config = Config(detector=settings)
    detector = build.detector(settings, 2, "sigmoid").eval()
    torch.manual_seed(0)  # only now: a layer that is made and left out draws its weights, too
    with torch.no_grad():
        for parameter in detector.parameters():
            parameter.normal_(std=0.1)
    images = torch.rand(1, 3, 96, 96)
    boxes = torch.tensor([[10.0, 12.0, 50.0, 44.0], [40.0, 40.0, 90.0, 96.0]])
    no = torch.zeros(2, dtype=torch.bool)
    target = Target(boxes, torch.tensor([0, 1]), no, torch.ones(2), 1, (96, 96))
    with torch.no_grad():
        alone, learning = detector(images), detector(images, [target])
        losses = build.criterion(config, build.class_loss(config.loss))(learning, [target])
    return [
        *(stage.logits for stage in alone),
        *(stage.anchors for stage in alone),
        *losses.parts.values(),
        *(assignment.labels for assignment in losses.assignments),
    ]


def is_same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


def test_every_setting_has_another_value_here() -> None:
    assert {entry.name for entry in fields(DetectorConfig)} == set(OTHERS) | OF_ITS_OWN
    usual = DetectorConfig()
    assert all(getattr(usual, name) != value for name, value in OTHERS.items())


@pytest.mark.parametrize(("name", "backbone"), CASES)
def test_what_the_table_names_changes_nothing_and_all_else_something(
    name: str, backbone: str
) -> None:
    # Few proposals: an image of this size does not have 2000.
    usual = DetectorConfig(name, backbone=backbone, norm="batch", rois=60, proposals=60)
    idle = names_without_effect(usual)
    expected = outcome(usual)
    assert is_same(outcome(usual), expected)
    for setting, value in OTHERS.items():
        if setting == "stride_on" and name != "ssd":
            continue  # refused: there is no bottleneck
        changed = replace(usual, **{setting: value})
        assert is_same(outcome(changed), expected) is (setting in idle), setting


def test_the_norm_is_of_no_effect_with_vgg_and_the_layout_is() -> None:
    usual = DetectorConfig("ssd", backbone="vgg16")
    assert "norm" in names_without_effect(usual)
    assert "ssd_layout" not in names_without_effect(usual)
    with torch.device("meta"):
        keys = [
            set(build.detector(settings, 2, "sigmoid").state_dict())
            for settings in (
                usual,
                replace(usual, norm="group"),
                replace(usual, ssd_layout="ssd300"),
            )
        ]
    assert keys[0] == keys[1] != keys[2]


def test_only_what_was_set_is_told() -> None:
    assert settings_without_effect(DetectorConfig()) == {}
    assert settings_without_effect(DetectorConfig("ssd", backbone="vgg16", norm="group")) == {
        "norm": "group"
    }
    found = settings_without_effect(DetectorConfig("faster_rcnn", negative_iou=0.3, rois=100))
    assert found == {"negative_iou": 0.3}
    mixed = replace(recipe("small").detector, name="ssd")
    assert list(settings_without_effect(mixed)) == [
        "head_norm",
        "anchor_scale",
        "anchor_ratios",
    ]


@pytest.mark.parametrize("name", RECIPES)
def test_no_recipe_has_a_setting_without_effect(name: str) -> None:
    assert settings_without_effect(recipe(name).detector) == {}
    assert square_evaluation(recipe(name)) == recipe(name)


SSD = DetectorConfig("ssd", backbone="small")


def test_an_ssd_is_evaluated_at_the_size_of_its_training() -> None:
    config = square_evaluation(Config(data=DataConfig(size=320), detector=SSD))
    assert config.evaluation.fixed_size == 320
    assert square_evaluation(config) == config


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(detector=DetectorConfig("faster_rcnn")),
        Config(detector=SSD, evaluation=EvaluationConfig(fixed_size=96)),
        Config(detector=SSD, evaluation=EvaluationConfig(scales=(400,))),
        Config(detector=SSD, data=DataConfig(augmentation="jitter")),
    ],
)
def test_the_size_of_an_evaluation_is_otherwise_left_alone(config: Config) -> None:
    assert square_evaluation(config) is config


@pytest.mark.parametrize(
    ("data", "training", "validation"),
    [
        (DataConfig(), None, None),
        (DataConfig(train_split="train"), "train", None),
        (DataConfig(train_split="train", val_split="val"), "train", "val"),
        (DataConfig(val_split="val"), None, "val"),
        (DataConfig(hold_out=0.1), None, None),
        (
            DataConfig(train_split="a+b", hold_out=0.07),
            "a+b (without held-out 7 %)",
            "a+b (held-out 7 %)",
        ),
        (
            DataConfig(train_split="train", hold_out=0.125),
            "train (without held-out 12.5 %)",
            "train (held-out 12.5 %)",
        ),
    ],
)
def test_the_images_of_both_sides_have_a_name(
    data: DataConfig, training: str | None, validation: str | None
) -> None:
    assert (training_name(data), validation_name(data)) == (training, validation)
