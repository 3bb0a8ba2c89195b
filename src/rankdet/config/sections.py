"""Every setting of a training and its evaluation: frozen dataclasses, checked when they are made.

The rule of a setting stands beside its default; rules between settings are in `__post_init__`. The
default of a new one must be what was done before there was a choice: runs and records that lack it
are read so (`completed`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rankdet.config.rules import SettingError, check_section, checked_settings, setting

# The names that `build` knows; tests compare them.
DETECTOR_NAMES = ("retinanet", "ssd", "faster_rcnn")
BACKBONE_NAMES = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnext101_32x8d",
    "mobilenet_v2",
    "vgg16",
    "small",
)
LOSS_NAMES = ("ap", "auc", "focal", "ohem", "ghm", "dr", "smooth_ap", "hinge_ap", "ce")
FORMAT_NAMES = ("voc", "coco", "yolo")

SMALLEST_SIDE = 32  # of an image: the stride of the backbone's last map
LARGEST_SIDE = 8192
SHORTEST_SIDE_OF_VGG = 268  # of an image for SSD with VGG-16: below, its last maps vanish
# Whatever there is at once, a group norm can share it out among its groups.
PYRAMID_CHANNELS_STEP = 32
BOTTLENECK_BACKBONES = ("resnet50", "resnet101", "resnext101_32x8d")  # which have a stride to move


@dataclass(frozen=True)
class DataConfig:
    """Which images, and what is done to them before the detector sees them.

    path: a folder or file, or "synthetic". A split of None is chosen by its name (`choose_splits`).
    hold_out: this share of the training split is not trained on but evaluated on, in place of
    val_split; which images these are depends on their names alone (`rankdet.data.hold_out`).
    augmentation: "ssd" (the paper's chain, to size x size), "jitter" (flip and scale), "flip" (and
    resized to size x size, for short trainings) or "none" (resized to size x size). drop_ignored:
    difficult and crowd objects become background, as in the paper; else anchors on them are
    ignored. hold: keep all images in the device's memory.
    """

    path: str = setting("", is_empty_allowed=True)
    format: str | None = setting(None, choices=FORMAT_NAMES)
    train_split: str | None = setting(None)
    val_split: str | None = setting(None)
    hold_out: float | None = setting(None, above=0, below=1)
    classes: tuple[str, ...] | None = setting(None)
    allow_outside: bool = setting(False)
    max_pixels: int = setting(50_000_000, least=1)
    augmentation: str = setting("ssd", choices=("ssd", "jitter", "flip", "none"))
    size: int = setting(512, least=SMALLEST_SIDE, most=LARGEST_SIDE)
    drop_ignored: bool = setting(False)
    workers: int | None = setting(None, least=0, most=256)
    hold: bool = setting(False)

    def __post_init__(self) -> None:
        check_section(self, "data.")
        if self.hold_out is not None and self.val_split is not None:
            raise SettingError(
                "data.hold_out",
                self.hold_out,
                f"expected none beside data.val_split, which is {self.val_split}",
                "Images to evaluate on come from the one or the other. Set one of them to null.",
            )


@dataclass(frozen=True)
class DetectorConfig:
    """The network, and how its anchors become positives.

    weights: "none"; a name of torchvision's for the backbone ("imagenet" or "IMAGENET1K_V2"); a
    file (backbone or detector, .safetensors or .pth); or a run directory of ours.
    stride_on: which convolution of a ResNet's bottleneck has the stride, "3x3" (torchvision) or
    "1x1" (the original weights). norm: "frozen", "batch" or "group"; None: frozen batch norm with
    weights, trainable batch norm without. frozen_stages: of the backbone, from the input; 2 means
    the first convolution and layer1; None: 2 with weights, 0 without. An anchor has the area
    (anchor_scale * stride * 2^(i / anchor_octaves))^2. anchor_grid: "centred" (the paper's code:
    each anchor in the middle of its stride x stride pixels) or "torchvision" (at their corner, in
    whole pixels; spread evenly where a side is no multiple of the last stride). pyramid_channels:
    of each map of the pyramid and each layer of RetinaNet's heads; None: 256, or 64 for the
    backbone "small"; fewer make a light detector. pyramid_start: the first weights of RetinaNet's
    pyramid, "paper" (N(0, 0.01)) or "torchvision" (its maps begin as large as their input).
    head_start: those of RetinaNet's heads, "paper" (N(0, 0.01), by which each of four layers makes
    its map some three times smaller, or six with 64 channels) or "kaiming" (by about a third). SSD
    has the layers and boxes of its paper (ssd_layout), whatever the anchor settings; which settings
    a detector does not look at is in `rankdet.config.effects`. pixels: "imagenet" (divided by
    ImageNet's deviation) or "bytes" (0..255 less the mean, as torchvision's published SSD). Faster
    R-CNN: the anchors are those of the region proposal network; rois: the boxes of an image that
    the second stage learns from, objects included; proposals: how many the first stage may give it
    in training (None: 2000, or rois if that is more), test_proposals: otherwise. An RoI below
    positive_iou is background, whatever negative_iou.
    """

    name: str = setting("retinanet", choices=DETECTOR_NAMES)
    backbone: str = setting("resnet50", choices=BACKBONE_NAMES)
    weights: str = setting("none")
    stride_on: str = setting("3x3", choices=("3x3", "1x1"))
    norm: str | None = setting(None, choices=("frozen", "batch", "group"))
    norm_epsilon: float = setting(1e-5, least=0, below=1)
    head_norm: str | None = setting(None, choices=("group",))
    frozen_stages: int | None = setting(None, least=0, most=5)
    p6_from: str = setting("c5", choices=("c5", "p5"))
    pyramid_channels: int | None = setting(None, least=PYRAMID_CHANNELS_STEP, most=1024)
    pyramid_start: str = setting("paper", choices=("paper", "torchvision"))
    head_start: str = setting("paper", choices=("paper", "kaiming"))
    anchor_scale: float = setting(4.0, above=0, most=100)
    anchor_octaves: int = setting(2, least=1, most=16)
    anchor_ratios: tuple[float, ...] = setting((0.5, 1.0, 2.0), above=0, most=100)
    anchor_grid: str = setting("centred", choices=("centred", "torchvision"))
    box_weights: tuple[float, float, float, float] = setting((10.0, 10.0, 5.0, 5.0), above=0)
    positive_iou: float = setting(0.5, above=0, most=1)
    negative_iou: float = setting(0.4, above=0, most=1)
    ssd_layout: str = setting("ssd512", choices=("ssd300", "ssd512"))
    pixels: str = setting("imagenet", choices=("imagenet", "bytes"))
    rois: int = setting(512, least=1, most=65_536)
    proposals: int | None = setting(None, least=1, most=65_536)
    test_proposals: int = setting(1000, least=1, most=65_536)

    def __post_init__(self) -> None:
        check_section(self, "detector.")
        if self.negative_iou > self.positive_iou:
            raise SettingError(
                "detector.negative_iou",
                self.negative_iou,
                f"expected at most detector.positive_iou, which is {self.positive_iou:g}",
                "Anchors below the one are negative, from the other on positive. Correct both.",
            )
        if self.proposals is not None and self.rois > self.proposals:
            raise SettingError(
                "detector.rois",
                self.rois,
                f"expected at most detector.proposals, which is {self.proposals}",
                "RoIs are chosen among the proposals. Give more of those, or null for enough.",
            )
        if (self.name == "ssd") != (self.backbone == "vgg16") and self.backbone != "small":
            raise SettingError(
                "detector.backbone",
                self.backbone,
                f"expected {'vgg16 or small for' if self.name == 'ssd' else 'another for'} "
                f"detector.name={self.name}",
                "SSD is built on VGG-16, and VGG-16 is for SSD alone. Correct one of the two.",
            )
        if self.name != "ssd":
            self._check_pyramid()

    def _check_pyramid(self) -> None:
        """What a feature pyramid and its anchors need."""
        if self.stride_on == "1x1" and self.backbone not in BOTTLENECK_BACKBONES:
            raise SettingError(
                "detector.stride_on",
                self.stride_on,
                f"expected 3x3 for detector.backbone={self.backbone}, which has no bottlenecks",
                f"Those have: {', '.join(BOTTLENECK_BACKBONES)}.",
            )
        if (channels := self.pyramid_channels) is not None and channels % PYRAMID_CHANNELS_STEP:
            raise SettingError(
                "detector.pyramid_channels",
                channels,
                f"expected a multiple of {PYRAMID_CHANNELS_STEP}",
                f"Give {math.ceil(channels / PYRAMID_CHANNELS_STEP) * PYRAMID_CHANNELS_STEP}.",
            )
        stride = 4 if self.name == "faster_rcnn" and self.backbone != "small" else 8
        size = self.anchor_scale * stride  # of the smallest anchors
        if size < 1:
            raise SettingError(
                "detector.anchor_scale",
                self.anchor_scale,
                f"expected anchors of at least a pixel, and the finest stride is {stride}",
                f"Give at least {1 / stride:g}.",
            )
        # Of half an anchor of the torchvision grid: it is rounded to whole pixels.
        narrowest = (
            int(size) / 2 * min(min(ratio, 1 / ratio) ** 0.5 for ratio in self.anchor_ratios)
        )
        if self.anchor_grid == "torchvision" and round(narrowest) < 1:
            raise SettingError(
                "detector.anchor_scale",
                self.anchor_scale,
                "expected no anchor that detector.anchor_grid=torchvision rounds to 0 pixels",
                "Give a larger one, less extreme detector.anchor_ratios, or the grid centred.",
            )


@dataclass(frozen=True)
class LossConfig:
    """The class loss by its name, with settings of its module, and the weight of the box loss."""

    name: str = setting("ap", choices=LOSS_NAMES)
    settings: Mapping[str, Any] = field(default_factory=dict)
    box_weight: float = setting(1.0, least=0)

    def __post_init__(self) -> None:
        check_section(self, "loss.")
        object.__setattr__(self, "settings", checked_settings(self.settings, "loss.settings"))


@dataclass(frozen=True)
class TrainingConfig:
    """How long, with which steps, and what is kept of it.

    batch_size: images of one optimiser step (over all processes), in `accumulate` micro-batches.
    rank_locally: with several processes, ranking losses rank the images of each alone, as the
    paper's code does; else those of all of them.
    learning_rate: for reference_batch_size images; scaled linearly to batch_size. schedule:
    "steps" (times decay at each of the milestones, in epochs) or "one_cycle". max_steps: end
    earlier. precision: "float32" or "bfloat16"; None: bfloat16 on CUDA. save_every: steps between
    checkpoints, beside one at the end of each epoch.
    """

    epochs: int = setting(60, least=1, most=1_000_000)
    max_steps: int | None = setting(None, least=1)
    batch_size: int = setting(16, least=1, most=65_536)
    accumulate: int = setting(1, least=1)
    rank_locally: bool = setting(False)
    optimizer: str = setting("sgd", choices=("sgd", "adamw"))
    learning_rate: float = setting(0.005, above=0)
    reference_batch_size: int = setting(16, least=1)
    momentum: float = setting(0.9, least=0, below=1)
    weight_decay: float = setting(1e-4, least=0)
    schedule: str = setting("steps", choices=("steps", "one_cycle"))
    milestones: tuple[float, ...] = setting(
        (40.0, 53.0), least=0, is_ascending=True, is_empty_allowed=True
    )
    decay: float = setting(0.1, above=0, most=1)
    warmup_steps: int = setting(500, least=0)
    warmup_start: float = setting(1 / 3, least=0, most=1)
    clip_norm: float | None = setting(10.0, above=0)
    precision: str | None = setting(None, choices=("float32", "bfloat16"))
    channels_last: bool | None = setting(None)
    compile: bool = setting(False)
    log_every: int = setting(10, least=1)
    save_every: int = setting(1000, least=1)
    keep_checkpoints: int = setting(2, least=2)
    tensorboard: bool = setting(False)

    def __post_init__(self) -> None:
        check_section(self, "training.")
        if self.batch_size % self.accumulate:
            raise SettingError(
                "training.accumulate",
                self.accumulate,
                f"expected a divisor of training.batch_size, which is {self.batch_size}",
                "The images of a step are shared out evenly among its micro-batches.",
            )


@dataclass(frozen=True)
class EvaluationConfig:
    """How detections are made from the outputs, and how they are judged.

    every: epochs between evaluations during training; 0: only at the end. protocol: "voc" or
    "coco"; None: by the data's format. Images are resized to a shorter side of `shorter` with the
    longer at most `longest`, or to fixed_size x fixed_size; a training of SSD that has neither this
    nor scales takes data.size (`square_evaluation`). scales: shorter sides for multi-scale testing
    in place of `shorter`; flip: each also mirrored. last_level_threshold: in place of
    score_threshold for the coarsest level, as in the paper's code; None: the same. pictures: keep
    small copies of some images, with their boxes, in results.json for the report.
    """

    every: int = setting(10, least=0)
    protocol: str | None = setting(None, choices=("voc", "coco"))
    shorter: int = setting(600, least=SMALLEST_SIDE, most=LARGEST_SIDE)
    longest: int = setting(1000, least=SMALLEST_SIDE, most=LARGEST_SIDE)
    fixed_size: int | None = setting(None, least=SMALLEST_SIDE, most=LARGEST_SIDE)
    scales: tuple[int, ...] = setting(
        (), least=SMALLEST_SIDE, most=LARGEST_SIDE, is_ascending=True, is_empty_allowed=True
    )
    flip: bool = setting(False)
    batch_size: int = setting(8, least=1, most=65_536)
    score_threshold: float = setting(0.01, least=0, below=1)
    last_level_threshold: float | None = setting(0.0, least=0, below=1)
    candidates: int = setting(1000, least=1)
    nms_iou: float = setting(0.5, above=0, most=1)
    max_detections: int = setting(100, least=1)
    pictures: bool = setting(True)

    def __post_init__(self) -> None:
        check_section(self, "evaluation.")
        if self.longest < self.shorter:
            raise SettingError(
                "evaluation.longest",
                self.longest,
                f"expected at least evaluation.shorter, which is {self.shorter}",
                "It limits the longer side of an image. Correct both.",
            )
        if self.scales and self.fixed_size is not None:
            raise SettingError(
                "evaluation.scales",
                self.scales,
                f"expected none beside evaluation.fixed_size, which is {self.fixed_size}",
                "For multi-scale testing, set evaluation.fixed_size to null.",
            )


@dataclass(frozen=True)
class Config:
    """All of it. A recipe returns one; a variant is `dataclasses.replace(...)`."""

    data: DataConfig = field(default_factory=DataConfig)
    detector: DetectorConfig = field(default_factory=DetectorConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    seed: int = setting(0, least=0, most=2**32 - 1)

    def __post_init__(self) -> None:
        check_section(self, "")
        for name, section in SECTIONS.items():
            value = getattr(self, name)
            if not isinstance(value, section):
                raise SettingError(name, value, f"expected a {section.__name__}", "Make one.")
        if self.detector.name == "ssd" and self.detector.backbone == "vgg16":
            self._check_sides_for_vgg()

    def _check_sides_for_vgg(self) -> None:
        """The sides that apply: `data.size` does not with augmentation "jitter", and so on."""
        evaluation = self.evaluation
        sides: dict[str, int] = {}
        if self.data.augmentation != "jitter":
            sides["data.size"] = self.data.size
        if evaluation.fixed_size is not None:
            sides["evaluation.fixed_size"] = evaluation.fixed_size
        elif evaluation.scales:
            sides["evaluation.scales"] = evaluation.scales[0]
        else:
            sides["evaluation.shorter"] = evaluation.shorter
        for key, side in sides.items():
            if side < SHORTEST_SIDE_OF_VGG:
                raise SettingError(
                    key,
                    side,
                    f"expected at least {SHORTEST_SIDE_OF_VGG} pixels for SSD with VGG-16, whose "
                    "last maps vanish below",
                    "Give more, or take detector.backbone=small.",
                )


SECTIONS: dict[str, type[Any]] = {
    "data": DataConfig,
    "detector": DetectorConfig,
    "loss": LossConfig,
    "training": TrainingConfig,
    "evaluation": EvaluationConfig,
}
