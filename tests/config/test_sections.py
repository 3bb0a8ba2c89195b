"""Every section: what it accepts, what it brings into form, and what it refuses in which words."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from rankdet.config import (
    BACKBONE_NAMES,
    DETECTOR_NAMES,
    FORMAT_NAMES,
    LOSS_NAMES,
    Config,
    DataConfig,
    DetectorConfig,
    EvaluationConfig,
    LossConfig,
    TrainingConfig,
)
from rankdet.config.rules import kind_of
from rankdet.config.sections import BOTTLENECK_BACKBONES, SECTIONS, SHORTEST_SIDE_OF_VGG
from rankdet.errors import ConfigError

FIELDS = [
    (section, entry.name)
    for section in (*SECTIONS.values(), Config)
    for entry in dataclasses.fields(section)
    if "rule" in entry.metadata
]


def prefix(section: type) -> str:
    return next((f"{name}." for name, known in SECTIONS.items() if known is section), "")


def refusal(section: type, **values: Any) -> str:
    """The text of the error that these settings cause."""
    with pytest.raises(ConfigError) as error:
        section(**values)
    return str(error.value)


@pytest.mark.parametrize("section", [*SECTIONS.values(), Config])
def test_the_defaults_keep_their_own_rules(section: type) -> None:
    assert section() == section()


def test_the_sections_are_those_of_the_whole() -> None:
    names = [entry.name for entry in dataclasses.fields(Config)]
    assert names == [*SECTIONS, "seed"]


@pytest.mark.parametrize(("section", "name"), FIELDS)
@pytest.mark.parametrize("value", [object(), {}, {"a": 1}, b"x", [[1]], math.nan, math.inf, 1j])
def test_a_value_of_another_type_is_refused_by_every_setting(
    section: type, name: str, value: object
) -> None:
    text = refusal(section, **{name: value})
    assert text.startswith(f"{prefix(section)}{name} = ")
    assert "expected" in text


@pytest.mark.parametrize(("section", "name"), FIELDS)
def test_none_is_refused_where_it_has_no_meaning(section: type, name: str) -> None:
    if kind_of(section, name)[1]:
        assert getattr(section(**{name: None}), name) is None
    else:
        assert "or null" not in refusal(section, **{name: None})


@pytest.mark.parametrize(("section", "name"), FIELDS)
def test_true_is_no_number_and_no_text(section: type, name: str) -> None:
    if kind_of(section, name)[0] is bool:
        assert getattr(section(**{name: True}), name) is True
        assert "true or false" in refusal(section, **{name: 1})
    else:
        assert "= True" in refusal(section, **{name: True})


@pytest.mark.parametrize(
    ("section", "name", "lowest", "too_low"),
    [
        (DataConfig, "max_pixels", 1, 0),
        (DataConfig, "size", 32, 31),
        (DataConfig, "workers", 0, -1),
        (DetectorConfig, "norm_epsilon", 0, -1e-12),
        (DetectorConfig, "frozen_stages", 0, -1),
        (DetectorConfig, "anchor_scale", 0.125, 0),
        (DetectorConfig, "anchor_octaves", 1, 0),
        (DetectorConfig, "anchor_ratios", (0.1,), (0,)),
        (DetectorConfig, "box_weights", (1, 1, 1, 0.1), (1, 1, 1, 0)),
        (DetectorConfig, "negative_iou", 0.01, 0),
        (LossConfig, "box_weight", 0, -0.1),
        (TrainingConfig, "epochs", 1, 0),
        (TrainingConfig, "max_steps", 1, 0),
        (TrainingConfig, "batch_size", 1, 0),
        (TrainingConfig, "accumulate", 1, 0),
        (TrainingConfig, "learning_rate", 1e-12, 0),
        (TrainingConfig, "reference_batch_size", 1, 0),
        (TrainingConfig, "momentum", 0, -0.1),
        (TrainingConfig, "weight_decay", 0, -1e-9),
        (TrainingConfig, "milestones", (0, 1), (-1, 1)),
        (TrainingConfig, "decay", 1e-9, 0),
        (TrainingConfig, "warmup_steps", 0, -1),
        (TrainingConfig, "warmup_start", 0, -0.1),
        (TrainingConfig, "clip_norm", 1e-9, 0),
        (TrainingConfig, "log_every", 1, 0),
        (TrainingConfig, "save_every", 1, 0),
        (TrainingConfig, "keep_checkpoints", 2, 1),
        (EvaluationConfig, "every", 0, -1),
        (EvaluationConfig, "shorter", 32, 31),
        (EvaluationConfig, "fixed_size", 32, 31),
        (EvaluationConfig, "scales", (32, 64), (31, 64)),
        (EvaluationConfig, "batch_size", 1, 0),
        (EvaluationConfig, "score_threshold", 0, -0.01),
        (EvaluationConfig, "candidates", 1, 0),
        (EvaluationConfig, "nms_iou", 1e-3, 0),
        (EvaluationConfig, "max_detections", 1, 0),
        (Config, "seed", 0, -1),
    ],
)
def test_the_lowest_value_is_accepted_and_what_is_below_refused(
    section: type, name: str, lowest: Any, too_low: Any
) -> None:
    assert getattr(section(**{name: lowest}), name) == lowest
    assert f"{prefix(section)}{name} = " in refusal(section, **{name: too_low})


@pytest.mark.parametrize(
    ("section", "name", "highest", "too_high"),
    [
        (DataConfig, "size", 8192, 8193),
        (DataConfig, "workers", 256, 257),
        (DetectorConfig, "norm_epsilon", 0.999, 1),
        (DetectorConfig, "frozen_stages", 5, 6),
        (DetectorConfig, "pyramid_channels", 1024, 1025),
        (DetectorConfig, "positive_iou", 1, 1.01),
        (TrainingConfig, "momentum", 0.999, 1),
        (TrainingConfig, "decay", 1, 1.01),
        (TrainingConfig, "warmup_start", 1, 1.01),
        (EvaluationConfig, "longest", 8192, 8193),
        (EvaluationConfig, "score_threshold", 0.999, 1),
        (EvaluationConfig, "nms_iou", 1, 1.01),
        (Config, "seed", 2**32 - 1, 2**32),
    ],
)
def test_the_highest_value_is_accepted_and_what_is_above_refused(
    section: type, name: str, highest: Any, too_high: Any
) -> None:
    assert getattr(section(**{name: highest}), name) == highest
    assert f"{prefix(section)}{name} = " in refusal(section, **{name: too_high})


@pytest.mark.parametrize(
    ("section", "name", "choices"),
    [
        (DataConfig, "format", FORMAT_NAMES),
        (DataConfig, "augmentation", ("ssd", "jitter", "flip", "none")),
        (DetectorConfig, "name", DETECTOR_NAMES),
        (DetectorConfig, "backbone", BACKBONE_NAMES),
        (DetectorConfig, "stride_on", ("3x3", "1x1")),
        (DetectorConfig, "norm", ("frozen", "batch", "group")),
        (DetectorConfig, "head_norm", ("group",)),
        (DetectorConfig, "p6_from", ("c5", "p5")),
        (DetectorConfig, "pyramid_start", ("paper", "torchvision")),
        (DetectorConfig, "head_start", ("paper", "kaiming")),
        (DetectorConfig, "ssd_layout", ("ssd300", "ssd512")),
        (DetectorConfig, "pixels", ("imagenet", "bytes")),
        (LossConfig, "name", LOSS_NAMES),
        (TrainingConfig, "optimizer", ("sgd", "adamw")),
        (TrainingConfig, "schedule", ("steps", "one_cycle")),
        (TrainingConfig, "precision", ("float32", "bfloat16")),
        (EvaluationConfig, "protocol", ("voc", "coco")),
    ],
)
def test_a_choice_is_one_of_its_names(section: type, name: str, choices: tuple[str, ...]) -> None:
    for choice in choices:
        # A detector and its backbone must fit; `small` is for all of them, and VGG-16 for SSD.
        others = {"backbone": "small"} if name == "name" and section is DetectorConfig else {}
        others |= {"name": "ssd"} if choice == "vgg16" else {}
        assert getattr(section(**{name: choice, **others}), name) == choice
    text = refusal(section, **{name: choices[0] + "x"})
    assert f"expected one of {', '.join(choices)}" in text
    assert text.endswith(f"Did you mean {choices[0]!r}?")


def test_an_error_has_the_key_the_value_the_rule_and_what_to_do() -> None:
    assert refusal(TrainingConfig, epochs=0) == (
        "training.epochs = 0: expected a whole number of at least 1 and at most 1000000. "
        "Correct training.epochs."
    )
    assert refusal(DetectorConfig, backbone="resnet51").endswith("Did you mean 'resnet50'?")
    assert refusal(LossConfig, name="zzz").endswith("Choose another loss.name.")
    assert refusal(DataConfig, train_split=2012).endswith("or null. Put it in quotes.")
    assert "a number of at least 0 and below 1" in refusal(DetectorConfig, norm_epsilon=1)
    assert "a list of 4 numbers above 0" in refusal(DetectorConfig, box_weights=(1, 1, 1))
    assert "one or more numbers above 0" in refusal(DetectorConfig, anchor_ratios=())
    assert "a list of numbers of at least 0 in ascending" in refusal(TrainingConfig, milestones=3)


def test_whole_numbers_become_decimals_and_lists_become_tuples() -> None:
    config = TrainingConfig(learning_rate=1, milestones=[3, 4.5])  # type: ignore[arg-type]
    assert isinstance(config.learning_rate, float)
    assert config.milestones == (3.0, 4.5)
    assert all(isinstance(milestone, float) for milestone in config.milestones)


def test_a_decimal_without_a_fraction_is_a_whole_number() -> None:
    config = TrainingConfig(max_steps=1e3)  # type: ignore[arg-type]
    assert isinstance(config.max_steps, int)
    assert "= 1.5" in refusal(TrainingConfig, max_steps=1.5)


@pytest.mark.parametrize("number", [10**400, 1e400, -1e400], ids=["whole", "above", "below"])
def test_endless_numbers_are_refused(number: float) -> None:
    assert "training.learning_rate" in refusal(TrainingConfig, learning_rate=number)
    assert "training.max_steps" in refusal(TrainingConfig, max_steps=number)


@pytest.mark.parametrize("text", ["a\nb", "a\0b", "\x1b[31m", "\x85", "\ud800"])
def test_control_characters_and_half_characters_are_no_text(text: str) -> None:
    assert "data.path = " in refusal(DataConfig, path=text)
    assert "data.classes = " in refusal(DataConfig, classes=(text,))
    assert "loss.settings.x = " in refusal(LossConfig, settings={"x": text})


@pytest.mark.parametrize("text", ["a b", "日本\u3000語", "Bild\u202f1", "naïve.jpg", "\u00a0"])
def test_names_in_any_language_are_texts(text: str) -> None:
    assert DataConfig(path=text, classes=(text,)).path == text


def test_only_the_path_may_be_empty() -> None:
    assert DataConfig(path="").path == ""
    assert "detector.weights = ''" in refusal(DetectorConfig, weights="")
    assert "data.train_split = ''" in refusal(DataConfig, train_split="")


def test_classes_are_different_and_at_least_one() -> None:
    assert DataConfig(classes=("a", "b")).classes == ("a", "b")
    assert "different texts" in refusal(DataConfig, classes=("a", "a"))
    assert "one or more" in refusal(DataConfig, classes=())
    assert "data.classes" in refusal(DataConfig, classes="abc")
    assert "data.classes" in refusal(DataConfig, classes=("a", ""))


def test_images_are_held_out_or_a_split_is_evaluated_on() -> None:
    assert DataConfig(train_split="train", hold_out=0.25).hold_out == 0.25
    assert refusal(DataConfig, hold_out=0.1, val_split="val") == (
        "data.hold_out = 0.1: expected none beside data.val_split, which is val. "
        "Images to evaluate on come from the one or the other. Set one of them to null."
    )


def test_milestones_ascend() -> None:
    assert TrainingConfig(milestones=()).milestones == ()
    assert "ascending" in refusal(TrainingConfig, milestones=(5, 5))
    assert "ascending" in refusal(TrainingConfig, milestones=(6, 5))


def test_the_negative_threshold_is_not_above_the_positive_one() -> None:
    assert DetectorConfig(positive_iou=0.4, negative_iou=0.4).negative_iou == 0.4
    text = refusal(DetectorConfig, positive_iou=0.4, negative_iou=0.5)
    assert text.startswith("detector.negative_iou = 0.5: expected at most detector.positive_iou")


def test_rois_are_not_more_than_the_proposals_that_were_asked_for() -> None:
    assert DetectorConfig(rois=4096).proposals is None
    assert DetectorConfig(rois=300, proposals=300).rois == 300
    text = refusal(DetectorConfig, rois=301, proposals=300)
    assert text.startswith("detector.rois = 301: expected at most detector.proposals, which is 300")
    assert "or null for enough" in text


def test_a_pyramid_has_a_multiple_of_32_channels() -> None:
    assert DetectorConfig(pyramid_channels=96).pyramid_channels == 96
    assert refusal(DetectorConfig, pyramid_channels=100) == (
        "detector.pyramid_channels = 100: expected a multiple of 32. Give 128."
    )
    assert "of at least 32" in refusal(DetectorConfig, pyramid_channels=16)


def test_a_detector_has_one_of_its_own_backbones() -> None:
    assert DetectorConfig("ssd", backbone="vgg16").backbone == "vgg16"
    for name in ("retinanet", "ssd", "faster_rcnn"):
        assert DetectorConfig(name, backbone="small").backbone == "small"
    assert "vgg16 or small" in refusal(DetectorConfig, name="ssd", backbone="resnet50")
    for name in ("retinanet", "faster_rcnn"):
        assert "SSD is built on VGG-16" in refusal(DetectorConfig, name=name, backbone="vgg16")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"data": {"size": 267}}, "data.size = 267: expected at least 268 pixels for SSD with VGG"),
        ({"evaluation": {"fixed_size": 267}}, "evaluation.fixed_size = 267: expected at least 268"),
        ({"evaluation": {"scales": (200, 300)}}, "evaluation.scales = 200: expected at least 268"),
        ({"evaluation": {"shorter": 267}}, "evaluation.shorter = 267: expected at least 268"),
        ({"data": {"size": 268}, "evaluation": {"fixed_size": 268}}, ""),
        ({"evaluation": {"shorter": 200, "fixed_size": 300}}, ""),
        ({"evaluation": {"shorter": 200, "scales": (300, 400)}}, ""),
        ({"data": {"augmentation": "jitter", "size": 64}}, ""),  # which has no fixed size
    ],
)
@pytest.mark.parametrize("backbone", ["vgg16", "small"])
def test_ssd_with_vgg_needs_images_of_268_pixels(
    backbone: str, settings: dict[str, Any], text: str
) -> None:
    sections = {name: SECTIONS[name](**values) for name, values in settings.items()}
    sections["detector"] = DetectorConfig("ssd", backbone=backbone)
    if text and backbone == "vgg16":
        found = refusal(Config, **sections)
        assert found.startswith(text)
        assert found.endswith("Give more, or take detector.backbone=small.")
    else:
        assert Config(**sections).detector.name == "ssd"


@pytest.mark.parametrize(
    ("name", "backbone", "least"),
    [
        ("retinanet", "resnet50", 0.125),
        ("faster_rcnn", "resnet50", 0.25),
        ("faster_rcnn", "small", 0.125),
    ],
)
def test_the_smallest_anchors_have_a_pixel_at_the_finest_stride(
    name: str, backbone: str, least: float
) -> None:
    assert DetectorConfig(name, backbone=backbone, anchor_scale=least).anchor_scale == least
    text = refusal(DetectorConfig, name=name, backbone=backbone, anchor_scale=0.99 * least)
    assert "expected anchors of at least a pixel, and the finest stride is" in text
    assert f"Give at least {least:g}." in text
    assert DetectorConfig("ssd", backbone="small", anchor_scale=0.01).anchor_scale == 0.01


@pytest.mark.parametrize("name", ["retinanet", "faster_rcnn"])
@pytest.mark.parametrize("scale", [0.2, 0.25, 0.3, 0.5, 0.6, 0.75, 1.0, 2.0])
@pytest.mark.parametrize("ratio", [1.0, 2.0, 0.25, 100.0])
def test_the_anchors_that_are_refused_are_those_of_0_pixels(
    name: str, scale: float, ratio: float
) -> None:
    from rankdet.detectors.anchors import PyramidAnchors

    strides = (4, 8) if name == "faster_rcnn" else (8, 16)
    settings = {"anchor_scale": scale, "anchor_ratios": (ratio,), "anchor_grid": "torchvision"}
    is_refused = raises(ConfigError, DetectorConfig, name, **settings)
    assert is_refused is raises(
        ValueError, PyramidAnchors, strides, scale, 1, (ratio,), "torchvision"
    )


def raises(kind: type[Exception], make: Any, *values: Any, **settings: Any) -> bool:
    try:
        make(*values, **settings)
    except kind:
        return True
    return False


def test_only_bottlenecks_have_a_stride_to_move() -> None:
    assert DetectorConfig(stride_on="1x1").stride_on == "1x1"
    for backbone in ("resnet18", "mobilenet_v2", "small"):
        text = refusal(DetectorConfig, backbone=backbone, stride_on="1x1")
        assert text.startswith("detector.stride_on = '1x1': expected 3x3 for detector.backbone=")


def test_micro_batches_have_the_same_size() -> None:
    assert TrainingConfig(batch_size=6, accumulate=3).accumulate == 3
    text = refusal(TrainingConfig, batch_size=16, accumulate=3)
    assert text.startswith("training.accumulate = 3: expected a divisor of training.batch_size")
    assert "which is 16" in text


def test_the_longest_side_is_not_below_the_shorter_one() -> None:
    assert EvaluationConfig(shorter=1000, longest=1000).longest == 1000
    assert refusal(EvaluationConfig, shorter=1001).startswith("evaluation.longest = 1000")


def test_multi_scale_testing_excludes_a_fixed_size() -> None:
    assert EvaluationConfig(scales=(400, 500)).scales == (400, 500)
    text = refusal(EvaluationConfig, scales=(400, 500), fixed_size=160)
    assert text.startswith("evaluation.scales = (400, 500): expected none beside evaluation.fixed")


def test_settings_of_a_loss_are_names_with_plain_values() -> None:
    plain = {"delta": 0.5, "step": "piecewise", "interpolate": True, "bins": 3, "alpha": None}
    assert LossConfig(settings=plain).settings == plain
    assert "loss.settings = 3" in refusal(LossConfig, settings=3)
    assert "loss.settings = 'a b'" in refusal(LossConfig, settings={"a b": 1})
    assert "loss.settings = 3" in refusal(LossConfig, settings={3: 1})
    for value in (math.nan, math.inf, [1], {}, object()):
        assert "loss.settings.delta = " in refusal(LossConfig, settings={"delta": value})


def test_settings_of_a_loss_are_a_copy() -> None:
    settings = {"delta": 0.5}
    config = LossConfig(settings=settings)
    settings["delta"] = 2.0
    assert config.settings == {"delta": 0.5}


@pytest.mark.parametrize("value", [None, {}, {"epochs": 3}, EvaluationConfig(), TrainingConfig])
def test_a_section_is_of_its_own_class(value: object) -> None:
    assert "expected a TrainingConfig" in refusal(Config, training=value)


def test_a_variant_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"training\.epochs"):
        dataclasses.replace(Config().training, epochs=0)


def test_the_names_are_those_that_are_built() -> None:
    from rankdet.build import LOSSES
    from rankdet.data.reading.formats import FORMATS
    from rankdet.detectors.backbones import _BOTTLENECK_NETWORKS, BACKBONES
    from rankdet.detectors.ssd import VGGBackbone

    assert VGGBackbone.shortest_side == SHORTEST_SIDE_OF_VGG
    assert BOTTLENECK_BACKBONES == _BOTTLENECK_NETWORKS
    assert set(BACKBONE_NAMES) == {*BACKBONES, "vgg16"}
    assert set(LOSS_NAMES) == set(LOSSES)
    assert set(FORMAT_NAMES) == set(FORMATS)
