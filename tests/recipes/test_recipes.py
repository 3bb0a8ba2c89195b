"""Recipes: the paper's numbers, and that each says what it should."""

from __future__ import annotations

import inspect
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from rankdet.config import Config, LossConfig, from_dict, to_dict
from rankdet.errors import ConfigError
from rankdet.recipes import RECIPES, recipe, summary

ROOT = Path(__file__).parents[2]

PAPER = ["voc", "voc-resnet101-500", "coco", "coco-resnet101-500", "coco-resnet101-800"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_docstring_gives_command_numbers_and_cost(name: str) -> None:
    text = " ".join((inspect.getdoc(RECIPES[name]) or "").split())
    option = "" if name == "default" else f"--recipe {name}"
    command = text.partition("Command: ")[2]
    assert command.startswith("rankdet train ")
    assert option in command
    for part in ("Paper's number: ", "Our number: ", "Cost: "):
        assert part in text


@pytest.mark.parametrize("name", RECIPES)
def test_a_summary_is_one_line_of_a_sentence(name: str) -> None:
    assert summary(name).endswith(".")
    assert 30 < len(summary(name)) <= 92  # beside the name, in a terminal of 112 columns


@pytest.mark.parametrize("name", RECIPES)
def test_a_name_is_that_of_its_function(name: str) -> None:
    assert RECIPES[name].__name__ == name.replace("-", "_")
    assert recipe(name) == RECIPES[name]()


def test_the_default_is_the_default_of_every_setting() -> None:
    assert recipe("default") == Config()
    assert recipe("default").detector.weights == "none"
    assert recipe("default").training.epochs == 60


@pytest.mark.parametrize("name", PAPER)
def test_what_all_trainings_of_the_paper_share(name: str) -> None:
    config = recipe(name)
    training = config.training
    assert config.loss == LossConfig("ap", {}, 1.0)  # delta 1, interpolated
    assert (training.batch_size, training.learning_rate, training.reference_batch_size) == (
        16,
        0.001,
        16,
    )
    assert (training.optimizer, training.momentum, training.weight_decay) == ("sgd", 0.9, 1e-4)
    assert (training.schedule, training.decay) == ("steps", 0.1)
    assert (training.warmup_steps, training.warmup_start) == (500, 1 / 3)
    assert training.clip_norm is None
    assert (config.data.augmentation, config.data.drop_ignored) == ("ssd", True)
    detector = config.detector
    assert (detector.anchor_scale, detector.anchor_octaves) == (4.0, 2)
    assert detector.anchor_ratios == (0.5, 1.0, 2.0)
    assert detector.box_weights == (10.0, 10.0, 5.0, 5.0)
    assert (detector.positive_iou, detector.negative_iou) == (0.5, 0.4)
    assert (detector.weights, detector.norm, detector.frozen_stages) == ("imagenet", None, None)
    evaluation = config.evaluation
    assert (evaluation.score_threshold, evaluation.candidates) == (0.01, 1000)
    assert (evaluation.nms_iou, evaluation.max_detections) == (0.5, 100)
    assert (evaluation.fixed_size, evaluation.scales, evaluation.flip) == (None, (), False)


@pytest.mark.parametrize(
    ("name", "backbone", "size", "shorter", "longest"),
    [
        ("voc", "resnet50", 512, 600, 1000),
        ("voc-resnet101-500", "resnet101", 512, 500, 833),
        ("coco", "resnet50", 512, 600, 1000),
        ("coco-resnet101-500", "resnet101", 512, 500, 833),
        ("coco-resnet101-800", "resnet101", 800, 800, 1333),
    ],
)
def test_networks_and_sizes_of_the_paper(
    name: str, backbone: str, size: int, shorter: int, longest: int
) -> None:
    config = recipe(name)
    assert (config.detector.backbone, config.data.size) == (backbone, size)
    assert (config.evaluation.shorter, config.evaluation.longest) == (shorter, longest)


@pytest.mark.parametrize("name", PAPER)
def test_data_and_length_of_the_paper(name: str) -> None:
    config = recipe(name)
    training = config.training
    if name.startswith("voc"):
        assert (training.epochs, training.milestones) == (160, (110.0, 140.0))
        assert config.data.train_split == "2007_trainval+2012_trainval"
        assert config.data.val_split == "2007_test"
    else:
        assert (training.epochs, training.milestones) == (100, (60.0, 80.0))
        assert (config.data.train_split, config.data.val_split) == ("train2017", "val2017")
    format = name.partition("-")[0]
    assert (config.data.format, config.evaluation.protocol) == (format, format)


def test_the_small_recipe_is_for_a_cpu() -> None:
    config = recipe("small")
    assert config.detector.backbone == "small"
    assert (config.detector.norm, config.detector.head_norm) == ("group", "group")
    assert config.detector.weights == "none"
    assert config.evaluation.fixed_size == config.data.size
    assert math.prod((config.data.size, config.data.size)) < 512 * 512 / 4
    assert (config.data.augmentation, config.data.size) == ("ssd", 160)
    detector = config.detector
    assert (detector.anchor_scale, detector.anchor_octaves) == (2.2, 2)
    assert detector.anchor_ratios == (0.6, 1.0, 1.67)


def test_the_small_recipe_learns_from_scratch_in_one_cycle() -> None:
    training = recipe("small").training
    assert (training.optimizer, training.learning_rate, training.weight_decay) == (
        "adamw",
        2e-3,
        1e-2,
    )
    assert (training.batch_size, training.reference_batch_size) == (16, 16)
    assert (training.schedule, training.milestones) == ("one_cycle", ())
    assert (training.epochs, training.warmup_steps) == (30, 100)
    assert (recipe("small").evaluation.every, recipe("small").evaluation.batch_size) == (5, 32)


def test_the_demo_is_the_small_recipe_for_fewer_minutes() -> None:
    config, small = recipe("demo"), recipe("small")
    assert config.evaluation.fixed_size == config.data.size < small.data.size
    assert (config.data.path, config.data.val_split) == ("synthetic", "val")
    assert (config.data.hold, config.data.workers) == (True, 0)  # nothing competes for the cores
    assert config.evaluation.every == 0  # once, at the end
    assert config.detector.backbone == small.detector.backbone
    assert config.loss == LossConfig("ap", {}, 1.0)
    training = config.training
    num_steps = training.epochs * (4000 // training.batch_size)
    assert config.data.train_split == "train:4000"
    assert num_steps == 1250
    assert training.warmup_steps < num_steps / 10


def test_the_torchvision_recipe_has_the_settings_of_torchvision() -> None:
    from torchvision.models.detection import retinanet_resnet50_fpn

    model = retinanet_resnet50_fpn(weights=None, weights_backbone=None)
    config = recipe("torchvision-coco")
    detector, evaluation = config.detector, config.evaluation
    assert detector.backbone == "resnet50"
    assert detector.norm is None  # frozen with weights
    assert detector.norm_epsilon < 1e-9  # 0 in torchvision, for its published weights
    assert model.backbone.fpn.extra_blocks.use_P5
    assert detector.p6_from == "p5"
    sizes = [
        int(detector.anchor_scale * 8 * 2 ** (step / detector.anchor_octaves))
        for step in range(detector.anchor_octaves)
    ]
    assert model.anchor_generator.sizes[0] == tuple(sizes)
    assert model.anchor_generator.aspect_ratios[0] == detector.anchor_ratios
    assert detector.anchor_grid == "torchvision"
    assert detector.box_weights == model.box_coder.weights
    assert (detector.positive_iou, detector.negative_iou) == (
        model.proposal_matcher.high_threshold,
        model.proposal_matcher.low_threshold,
    )
    assert ((evaluation.shorter,), evaluation.longest) == (
        model.transform.min_size,
        model.transform.max_size,
    )
    assert evaluation.score_threshold == model.score_thresh
    assert evaluation.last_level_threshold is None
    assert evaluation.nms_iou == model.nms_thresh
    assert evaluation.candidates == model.topk_candidates
    assert evaluation.max_detections == model.detections_per_img


def test_the_paper_s_faster_rcnn() -> None:
    config = recipe("voc-faster-rcnn")
    detector, evaluation = config.detector, config.evaluation
    assert (detector.name, detector.backbone, detector.weights) == (
        "faster_rcnn",
        "resnet50",
        "imagenet",
    )
    assert (detector.rois, detector.proposals, config.loss) == (
        512,
        None,
        LossConfig("ap", {}, 1.0),
    )
    assert config.data.augmentation == "jitter"  # flip, and shorter sides of 480 to 800
    assert (evaluation.shorter, evaluation.longest) == (800, 1333)
    assert config.data.train_split == "2007_trainval+2012_trainval"
    training = config.training
    steps_per_epoch = 16_551 // training.batch_size
    assert training.max_steps == 18_000 <= training.epochs * steps_per_epoch
    steps = [round(milestone * steps_per_epoch, -2) for milestone in training.milestones]
    assert steps == [12_000, 16_000]
    # configs/PascalVOC-Detection/faster_rcnn_R_50_FPN.yaml of Detectron2
    assert (training.batch_size, training.learning_rate, training.decay) == (16, 0.02, 0.1)
    assert (training.warmup_steps, training.warmup_start) == (100, 0.001)
    assert (training.momentum, training.weight_decay) == (0.9, 1e-4)


def test_the_torchvision_faster_rcnn_has_the_settings_of_torchvision() -> None:
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None)
    config = recipe("torchvision-faster-rcnn")
    detector, evaluation = config.detector, config.evaluation
    assert detector.norm_epsilon < 1e-9  # 0 in torchvision, for its published weights
    sizes = [(int(detector.anchor_scale * stride),) for stride in (4, 8, 16, 32, 64)]
    assert list(model.rpn.anchor_generator.sizes) == sizes
    assert detector.anchor_octaves == 1
    assert model.rpn.anchor_generator.aspect_ratios[0] == detector.anchor_ratios
    assert detector.anchor_grid == "torchvision"
    heads = model.roi_heads
    assert detector.box_weights == heads.box_coder.weights
    assert detector.positive_iou == heads.proposal_matcher.high_threshold
    assert detector.rois == heads.fg_bg_sampler.batch_size_per_image
    assert detector.test_proposals == model.rpn._post_nms_top_n["testing"]
    assert ((evaluation.shorter,), evaluation.longest) == (
        model.transform.min_size,
        model.transform.max_size,
    )
    assert evaluation.score_threshold == heads.score_thresh
    assert evaluation.nms_iou == heads.nms_thresh
    assert evaluation.max_detections == heads.detections_per_img


def test_the_small_faster_rcnn_is_the_small_recipe_with_few_rois() -> None:
    config, small = recipe("small-faster-rcnn"), recipe("small")
    detector = config.detector
    assert (detector.name, detector.backbone) == ("faster_rcnn", "small")
    assert detector.rois < detector.proposals <= 200
    assert (config.data, config.training) == (small.data, small.training)


def test_an_unknown_recipe_is_told_with_the_closest_name() -> None:
    with pytest.raises(ConfigError) as error:
        recipe("vok")
    known = ", ".join(RECIPES)
    assert str(error.value) == f"recipe vok: expected one of {known}. Did you mean 'voc'?"
    with pytest.raises(ConfigError, match=rf"{[*RECIPES][-1]}\.$"):
        recipe("zzzz")


def test_the_papers_ssd_differs_from_its_retinanet_by_the_detector_and_the_test_size() -> None:
    config, retinanet = recipe("voc-ssd512"), recipe("voc")
    assert config.data == retinanet.data
    assert config.training == retinanet.training
    assert config.loss == retinanet.loss
    assert replace(config.evaluation, fixed_size=None) == retinanet.evaluation
    assert config.evaluation.fixed_size == config.data.size == 512
    detector = config.detector
    assert (detector.name, detector.backbone, detector.ssd_layout) == ("ssd", "vgg16", "ssd512")
    assert (detector.positive_iou, detector.negative_iou) == (0.5, 0.5)
    assert (detector.weights, detector.frozen_stages) == ("imagenet", 0)
    assert detector.box_weights == (10.0, 10.0, 5.0, 5.0)


def test_ssd300_is_the_default_recipe_with_another_detector() -> None:
    config, base = recipe("ssd300"), recipe("default")
    assert config.training == replace(base.training, learning_rate=0.001, clip_norm=None)
    assert config.data.size == config.evaluation.fixed_size == 300
    assert (config.detector.name, config.detector.ssd_layout) == ("ssd", "ssd300")
    assert config.detector.weights == "none"


def test_the_torchvision_ssd_recipe_has_the_settings_of_torchvision() -> None:
    from torchvision.models.detection import ssd300_vgg16

    with torch.device("meta"):
        model = ssd300_vgg16(weights=None, weights_backbone=None)
    config = recipe("torchvision-ssd300")
    detector, evaluation = config.detector, config.evaluation
    assert (detector.ssd_layout, detector.pixels) == ("ssd300", "bytes")
    assert detector.box_weights == model.box_coder.weights
    assert detector.positive_iou == model.proposal_matcher.high_threshold
    assert detector.negative_iou == model.proposal_matcher.low_threshold
    assert model.transform.fixed_size == (evaluation.fixed_size, config.data.size) == (300, 300)
    assert evaluation.score_threshold == model.score_thresh
    assert evaluation.last_level_threshold is None
    assert evaluation.nms_iou == model.nms_thresh
    assert evaluation.max_detections == model.detections_per_img


def test_the_small_ssd_is_the_small_recipe_with_another_detector() -> None:
    config, small = recipe("small-ssd"), recipe("small")
    assert replace(config, detector=small.detector) == small
    detector = config.detector
    assert (detector.name, detector.backbone, detector.norm) == ("ssd", "small", "group")
    assert (detector.positive_iou, detector.negative_iou) == (0.5, 0.5)


def recorded(record: str, schedule: str) -> list[dict[str, Any]]:
    """The trainings with AP-loss of a record in results/, all seeds."""
    content = json.loads((ROOT / "results" / f"{record}.json").read_text(encoding="utf-8"))
    rows = content["rows"].items()
    return [row for key, row in rows if key.startswith(f"{schedule}: AP-Loss: ")]


OF_THE_DATA = {
    *("data.path", "data.format", "data.train_split", "data.val_split", "data.drop_ignored"),
    *("detector.weights", "evaluation.every", "evaluation.protocol", "evaluation.pictures"),
}


@pytest.mark.parametrize(
    ("name", "record", "schedule", "others"),
    [
        (
            "quick",
            "voc320/evidence-retinanet",
            "long",
            {"data.hold", "detector.stride_on", "detector.ssd_layout", "training.compile"},
        ),
        ("light", "light-cpu/evidence-retinanet-flips", "short", {"detector.ssd_layout"}),
    ],
)
def test_some_recipes_are_the_trainings_that_were_recorded(
    name: str, record: str, schedule: str, others: set[str]
) -> None:
    ours = json.loads(json.dumps(to_dict(recipe(name))))
    (first, *_) = recorded(record, schedule)
    theirs = json.loads(json.dumps(to_dict(from_dict(first["settings"]["config"]))))
    differences = {
        f"{section}.{name}"
        for section in ("data", "detector", "loss", "training", "evaluation")
        for name, value in ours[section].items()
        if theirs[section][name] != value
    }
    assert differences == OF_THE_DATA | others


@pytest.mark.parametrize(
    ("name", "record", "schedule"),
    [
        ("quick", "voc320/evidence-retinanet", "long"),
        ("quick", "voc320/longest-retinanet", "longest"),
        ("light", "light-cpu/evidence-retinanet-flips", "short"),
    ],
)
def test_the_numbers_of_these_recipes_are_those_of_the_records(
    name: str, record: str, schedule: str
) -> None:
    found = [row["result"]["metrics"] for row in recorded(record, schedule)]
    means = {metric: fmean(one[metric] for one in found) for metric in ("AP", "AP50", "AP75")}
    text = " ".join((RECIPES[name].__doc__ or "").split())
    assert ", ".join(f"{metric} {value:.1f}" for metric, value in means.items()) in text
    epochs = recorded(record, schedule)[0]["settings"]["config"]["training"]["epochs"]
    assert f"{epochs} epochs" in text


def test_each_recipe_has_the_learning_rate_and_limit_of_the_gradient_that_were_meant_for_it() -> (
    None
):
    def chosen(name: str) -> tuple[float, int, float | None]:
        training = recipe(name).training
        return training.learning_rate, training.reference_batch_size, training.clip_norm

    assert {name: chosen(name) for name in RECIPES if chosen(name) != (0.001, 16, None)} == {
        "default": (0.005, 16, 10.0),
        "quick": (0.01, 32, 10.0),  # the same for an image
        "light": (0.005, 32, 10.0),
        "small": (0.002, 16, None),
        "small-ssd": (0.002, 16, None),
        "small-faster-rcnn": (0.002, 16, None),
        "demo": (0.003, 16, 1.0),
        "voc-faster-rcnn": (0.02, 16, None),
    }
