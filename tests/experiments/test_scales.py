"""The settings of each scale: the paper's are the paper's, and the others fit their machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankdet.config import Config
from rankdet.errors import ConfigError
from rankdet.experiments.experiment import Request
from rankdet.experiments.record import SCALES
from rankdet.experiments.scales import (
    Training,
    base_config,
    multi_scale,
    scale_note,
    with_changes,
)

OUT = Path("out")


def of_paper(**training: Any) -> Config:
    request = Request("paper", OUT, voc="VOCdevkit", coco="coco", seed=3)
    return base_config(request, Training(**training))


def test_the_paper_s_ablations_are_as_the_paper_says() -> None:
    config = of_paper()
    data, training, evaluation = config.data, config.training, config.evaluation
    assert data.path == "VOCdevkit"
    assert (data.train_split, data.val_split) == ("2007_trainval+2012_trainval", "2007_test")
    assert (data.augmentation, data.size, data.drop_ignored) == ("ssd", 512, True)
    assert (config.detector.name, config.detector.backbone) == ("retinanet", "resnet50")
    assert (config.detector.anchor_octaves, config.detector.anchor_ratios) == (2, (0.5, 1.0, 2.0))
    assert (config.loss.name, dict(config.loss.settings)) == ("ap", {})
    # Two devices with 8 images each, ranked apart.
    assert (training.batch_size, training.accumulate) == (16, 2)
    assert (training.epochs, training.milestones, training.decay) == (160, (110.0, 140.0), 0.1)
    assert (training.learning_rate, training.reference_batch_size) == (0.001, 16)
    assert (training.momentum, training.weight_decay) == (0.9, 1e-4)
    assert (evaluation.shorter, evaluation.nms_iou, evaluation.fixed_size) == (600, 0.5, None)
    assert config.seed == 3


def test_the_paper_s_coco_is_as_the_paper_says() -> None:
    config = of_paper(data="coco")
    assert config.data.path == "coco"
    assert (config.data.train_split, config.data.val_split) == ("train2017", "val2017")
    assert (config.training.epochs, config.training.milestones) == (100, (60.0, 80.0))
    assert config.evaluation.protocol == "coco"


@pytest.mark.parametrize(
    ("data", "side", "size", "shorter"),
    [("voc", 500, 512, 500), ("coco", 500, 512, 500), ("coco", 800, 800, 800)],
)
def test_the_paper_s_benchmarks_are_as_the_paper_says(
    data: str, side: int, size: int, shorter: int
) -> None:
    config = of_paper(data=data, backbone="resnet101", side=side)
    assert config.detector.backbone == "resnet101"
    assert (config.data.size, config.evaluation.shorter) == (size, shorter)
    assert config.training.accumulate == 2


def test_the_paper_s_voc12_trains_on_all_that_has_annotations() -> None:
    config = of_paper(data="voc12", backbone="resnet101", side=500)
    assert config.data.train_split == "2007_trainval+2007_test+2012_trainval"
    assert config.data.val_split is None


def test_the_paper_s_resnext_is_the_resnet_with_another_backbone() -> None:
    config = of_paper(backbone="resnext101_32x8d", side=500)
    assert config.detector.backbone == "resnext101_32x8d"
    assert config.evaluation.shorter == 500


def test_the_paper_s_ssd_is_as_the_paper_says() -> None:
    config = of_paper(detector="ssd")
    assert (config.detector.name, config.detector.backbone) == ("ssd", "vgg16")
    assert (config.detector.ssd_layout, config.data.size) == ("ssd512", 512)
    assert config.evaluation.fixed_size == 512
    assert config.training.epochs == 160


def test_the_paper_s_faster_rcnn_is_as_the_paper_says() -> None:
    config = of_paper(detector="faster_rcnn")
    assert (config.detector.name, config.detector.backbone) == ("faster_rcnn", "resnet50")
    assert (config.data.augmentation, config.evaluation.shorter) == ("jitter", 800)
    assert config.detector.rois == 512


@pytest.mark.parametrize(
    ("detector", "backbone", "side"),
    [("retinanet", "resnet50", 320), ("ssd", "vgg16", 300), ("faster_rcnn", "resnet50", 320)],
)
def test_voc320_is_a_short_training_on_held_images(
    tmp_path: Path, detector: str, backbone: str, side: int
) -> None:
    for name in ("resnet50_original.safetensors", "vgg16_features.safetensors", "README.md"):
        (tmp_path / name).touch()
    request = Request("voc320", OUT, voc="VOC2012", weights=str(tmp_path))
    config = base_config(request, Training(detector=detector))
    assert (config.data.train_split, config.data.val_split) == ("train", "val")
    assert (config.data.size, config.evaluation.fixed_size) == (side, side)
    assert config.data.hold
    assert (config.detector.name, config.detector.backbone) == (detector, backbone)
    assert Path(config.detector.weights).name.startswith(backbone)
    assert config.detector.stride_on == ("1x1" if backbone == "resnet50" else "3x3")
    assert (config.training.batch_size, config.training.max_steps) == (32, None)
    assert config.training.clip_norm is not None
    assert config.training.epochs <= 20


def test_voc320_has_larger_images_where_the_paper_has() -> None:
    """800 to 500 is as 512 to 320: otherwise AP-loss500 and AP-loss800 would be one training."""
    request = Request("voc320", OUT, voc="voc", coco="coco")
    config = base_config(request, Training(data="coco", backbone="resnet101", side=800))
    assert (config.data.size, config.evaluation.fixed_size) == (512, 512)
    config = base_config(request, Training(data="coco", backbone="resnet101", side=500))
    assert (config.data.size, config.evaluation.fixed_size) == (320, 320)


def test_voc320_says_how_it_differs_from_the_paper() -> None:
    note = scale_note("voc320")
    assert "32 images" in note
    assert "the paper ranks 8" in note
    assert "squares of 320" in note


def test_voc320_without_a_file_takes_torchvision_s_weights() -> None:
    config = base_config(Request("voc320", OUT, voc="voc"), Training())
    assert (config.detector.weights, config.detector.stride_on) == ("imagenet", "3x3")


def test_voc320_on_coco_needs_coco() -> None:
    request = Request("voc320", OUT, voc="voc", coco="coco")
    config = base_config(request, Training(data="coco"))
    assert (config.data.path, config.data.train_split) == ("coco", "train2017")
    assert config.evaluation.protocol == "coco"
    with pytest.raises(ConfigError, match=r"needs --coco FOLDER.*train2017\.zip"):
        base_config(Request("voc320", OUT, voc="voc"), Training(data="coco"))


@pytest.mark.parametrize("scale", ["smoke", "tiny"])
@pytest.mark.parametrize("detector", ["retinanet", "ssd", "faster_rcnn"])
def test_small_scales_need_nothing_but_a_processor(scale: str, detector: str) -> None:
    config = base_config(Request(scale, OUT), Training(detector=detector))
    assert config.data.path == "synthetic"
    assert (config.detector.name, config.detector.backbone) == (detector, "small")
    assert config.detector.weights == "none"
    assert config.evaluation.fixed_size == config.data.size <= 128
    # Other data and backbones of the paper are the same here: experiments share the training.
    other = Training(detector=detector, data="coco", backbone="resnet101", side=500)
    assert base_config(Request(scale, OUT), other) == config


def test_the_scale_paper_says_what_to_download() -> None:
    with pytest.raises(ConfigError, match=r"needs --voc FOLDER.*VOCtrainval_06-Nov-2007"):
        base_config(Request("paper", OUT), Training())
    with pytest.raises(ConfigError, match=r"needs --voc FOLDER.*splits train and val"):
        base_config(Request("voc320", OUT), Training())


def test_a_folder_of_weights_must_have_one_file_for_the_backbone(tmp_path: Path) -> None:
    request = Request("voc320", OUT, voc="voc", weights=str(tmp_path))
    with pytest.raises(ConfigError, match=r"one file resnet50\*.*found none"):
        base_config(request, Training())
    rules = r"Add the file, .*leave out --weights.*--set detector.backbone=NAME"
    with pytest.raises(ConfigError, match=rf"one file resnet101\*.*found none.*{rules}"):
        base_config(request, Training(backbone="resnet101"))
    (tmp_path / "resnet50_a.pth").touch()
    (tmp_path / "resnet50_b.safetensors").touch()
    with pytest.raises(ConfigError, match=r"found resnet50_a.pth, resnet50_b.safetensors"):
        base_config(request, Training())


def test_another_backbone_by_set_needs_its_own_file_alone(tmp_path: Path) -> None:
    (tmp_path / "resnet50.pth").touch()
    changes = ("detector.backbone=resnet50",)
    request = Request("voc320", OUT, voc="voc", weights=str(tmp_path), changes=changes)
    config = base_config(request, Training(backbone="resnet101"))
    assert config.detector.weights == str(tmp_path / "resnet50.pth")
    assert with_changes(request, config).detector.backbone == "resnet50"


@pytest.mark.parametrize("scale", ["voc320", "paper"])
def test_weights_that_are_given_are_taken_alike_at_both_scales(scale: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.pth"
    request = Request(scale, OUT, voc="voc", weights=str(file))
    for backbone, stride_on in {
        "resnet50": "1x1",
        "resnet101": "1x1",
        "resnext101_32x8d": "3x3",
    }.items():
        detector = base_config(request, Training(backbone=backbone, side=500)).detector
        assert (detector.weights, detector.stride_on) == (str(file), stride_on)
    assert base_config(request, Training(detector="ssd")).detector.stride_on == "3x3"


def test_weights_of_a_run_have_the_usual_stride(tmp_path: Path) -> None:
    (tmp_path / "run.json").touch()
    request = Request("voc320", OUT, voc="voc", weights=str(tmp_path))
    detector = base_config(request, Training()).detector
    assert (detector.weights, detector.stride_on) == (str(tmp_path), "3x3")


def test_a_folder_that_is_no_devkit_is_refused_at_the_paper_s_scale(tmp_path: Path) -> None:
    request = Request(out=tmp_path, scale="paper", voc=str(tmp_path))
    with pytest.raises(ConfigError, match="there is no folder VOC2007"):
        base_config(request, Training())


def test_the_paper_s_scale_without_a_file_takes_torchvision_s_weights() -> None:
    detector = of_paper().detector
    assert (detector.weights, detector.stride_on) == ("imagenet", "3x3")


def test_several_scales_are_around_the_usual_one() -> None:
    tested = multi_scale(of_paper(backbone="resnet101", side=500), "paper").evaluation
    assert (tested.scales, tested.flip, tested.longest) == ((400, 500, 600, 700, 800), True, 833)
    small = multi_scale(base_config(Request("smoke", OUT), Training()), "smoke").evaluation
    assert (small.fixed_size, small.shorter, small.scales) == (None, 64, (64, 96))


def test_the_user_s_settings_have_the_last_word() -> None:
    request = Request("smoke", OUT, changes=("training.max_steps=1", "detector.rois=7"))
    config = with_changes(request, base_config(request, Training()))
    assert (config.training.max_steps, config.detector.rois) == (1, 7)


def test_every_scale_says_what_its_numbers_mean() -> None:
    assert all(scale_note(scale).startswith(f"Scale {scale}:") for scale in SCALES)
