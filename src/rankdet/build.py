"""The parts of a training, from its settings: the only place where a name becomes a class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from rankdet import losses
from rankdet.config import (
    Config,
    DataConfig,
    DetectorConfig,
    EvaluationConfig,
    LossConfig,
    TrainingConfig,
)
from rankdet.config.sections import SMALLEST_SIDE
from rankdet.data.augmentation.batched import (
    BatchedFlipResize,
    BatchedFlipScaleJitter,
    BatchedSSDAugmentation,
)
from rankdet.data.augmentation.parameters import LONGEST
from rankdet.data.augmentation.store import ImageStore
from rankdet.data.augmentation.transforms import (
    FlipResize,
    FlipScaleJitter,
    Resize,
    ResizeFixed,
    ResizeShorter,
    SSDAugmentation,
    WithoutIgnored,
)
from rankdet.data.dataset import DetectionDataset, open_dataset
from rankdet.data.loading.held import (
    BatchedTransform,
    HeldLoader,
    make_evaluation_loader,
    make_held_loader,
)
from rankdet.data.loading.loader import Loader, Transform, make_loader
from rankdet.detectors.assign import IoUAssigner
from rankdet.detectors.criterion import Criterion, StageCriterion
from rankdet.detectors.detector import Detector
from rankdet.detectors.faster_rcnn import make_faster_rcnn
from rankdet.detectors.postprocess import Postprocess
from rankdet.detectors.retinanet import make_retinanet
from rankdet.detectors.rois import roi_assigner
from rankdet.detectors.rpn import BOX_WEIGHTS, ObjectnessLoss, SampledAnchors
from rankdet.detectors.ssd import make_ssd
from rankdet.engine.detect import View
from rankdet.errors import ConfigError, shorten

LOSSES: dict[str, type[losses.ClassLoss]] = {
    "ap": losses.APLoss,
    "auc": losses.AUCLoss,
    "focal": losses.FocalLoss,
    "ohem": losses.OHEMLoss,
    "ghm": losses.GHMLoss,
    "dr": losses.DRLoss,
    "smooth_ap": losses.SmoothAPLoss,
    "hinge_ap": losses.HingeAPLoss,
    "ce": losses.CrossEntropyLoss,
}
_RANKING = {"ap", "auc", "smooth_ap", "hinge_ap"}  # which compare scores with each other
_SIDE_HELD_PER_SIDE_SEEN = 4  # at most, where an image is seen as a whole
_NOT_SETTINGS = {"synchronize", "process_group"}  # of a loss: how it is started decides


def device(name: str | None) -> torch.device:
    """The device of this name; None: a CUDA device where there is one, else the CPU."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(name)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA raises the latter
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"--device {name}: {reason}. Give cpu, or cuda where there is one."
        ) from error
    return chosen


def precision(config: TrainingConfig, device: torch.device) -> torch.dtype | None:
    """What autocast computes in; None: everything stays float32."""
    name = config.precision or ("bfloat16" if device.type == "cuda" else "float32")
    return torch.bfloat16 if name == "bfloat16" else None


def is_channels_last(config: TrainingConfig, device: torch.device) -> bool:
    """As asked for; else on CUDA, where convolutions are faster so."""
    return device.type == "cuda" if config.channels_last is None else config.channels_last


def class_loss(
    config: LossConfig, *, synchronize: bool = False, rank_locally: bool = False
) -> losses.ClassLoss:
    """The class loss with its settings; ConfigError if it does not know or accept one.

    synchronize: over all processes of a training. rank_locally: all but the ranking.
    """
    loss_class = LOSSES[config.name]
    parameters = inspect.signature(loss_class).parameters
    known = {name: value for name, value in parameters.items() if name not in _NOT_SETTINGS}
    for name, value in config.settings.items():
        if name not in known:
            raise ConfigError(
                f"loss.settings.{name}: the loss {config.name!r} has no such setting. "
                f"It has: {', '.join(known)}."
            )
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if type(known[name].default) in (int, float) and not is_number:
            raise ConfigError(f"loss.settings.{name} = {shorten(value)}: expected a number.")
    try:
        loss = loss_class(**config.settings)
        # Some losses look at their settings only when they are called.
        loss(torch.zeros(1, 1, loss.num_logits(1)), torch.tensor([[losses.BACKGROUND]]))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"loss.settings of {config.name!r}: {error}.") from error
    if not synchronize:
        return loss
    # A process that raises here would leave the others waiting, or know the images of its own part
    # alone. The training itself looks at the numbers of all of them, before the step.
    settings = {"check_finite": False, **config.settings}
    if rank_locally and config.name in _RANKING:
        return loss_class(**settings)
    return loss_class(**settings, synchronize=True)


def detector(config: DetectorConfig, num_classes: int, activation: str) -> Detector:
    """The network with fresh weights; its norms are frozen only where weights will be loaded."""
    norm = config.norm or ("batch" if config.weights == "none" else "frozen")
    if config.name == "ssd":
        return make_ssd(
            num_classes,
            activation=activation,
            backbone=config.backbone,
            layout=config.ssd_layout,
            pixels=config.pixels,
            norm=norm,
        )
    of_pyramid: dict[str, Any] = {
        "activation": activation,
        "backbone": config.backbone,
        "stride_on": config.stride_on,
        "norm": norm,
        "norm_epsilon": config.norm_epsilon,
        "head_norm": config.head_norm,
        "pyramid_channels": config.pyramid_channels,
        "anchor_scale": config.anchor_scale,
        "anchor_octaves": config.anchor_octaves,
        "anchor_ratios": config.anchor_ratios,
        "anchor_grid": config.anchor_grid,
    }
    if config.name == "retinanet":
        return make_retinanet(
            num_classes,
            p6_from=config.p6_from,
            pyramid_start=config.pyramid_start,
            head_start=config.head_start,
            **of_pyramid,
        )
    return make_faster_rcnn(
        num_classes,
        num_rois=config.rois,
        num_proposals=config.proposals or max(2000, config.rois),
        num_test_proposals=config.test_proposals,
        positive_iou=config.positive_iou,
        **of_pyramid,
    )


def placed(module: Detector, config: TrainingConfig, device: torch.device) -> Detector:
    """The network on the device, in the memory layout that suits it."""
    module = module.to(device)
    return (
        module.to(memory_format=torch.channels_last) if is_channels_last(config, device) else module
    )


def num_frozen_stages(config: DetectorConfig) -> int:
    """As asked for; else the first two where the weights are pretrained, and none otherwise."""
    if config.frozen_stages is not None:
        return config.frozen_stages
    return 0 if config.weights == "none" else 2


def synchronized_norms(module: nn.Module) -> nn.Module:
    """The network whose trainable batch norms see the images of all processes. For CUDA only."""
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if has_statistics(layer):
                setattr(parent, name, nn.SyncBatchNorm.convert_sync_batchnorm(layer))
    return module


def has_statistics(layer: nn.Module) -> bool:
    """Whether this is a batch norm that learns the statistics of the images."""
    return isinstance(layer, nn.BatchNorm2d) and layer.weight.requires_grad


def criterion(config: Config, loss: losses.ClassLoss, *, synchronize: bool = False) -> Criterion:
    """What the training minimises; synchronize: over the batch of all processes."""
    settings = config.detector
    if settings.name == "faster_rcnn":
        return _two_stage_criterion(config, loss, synchronize=synchronize)
    return Criterion(
        IoUAssigner(settings.positive_iou, settings.negative_iou),
        loss,
        box_weights=settings.box_weights,
        box_weight=config.loss.box_weight,
        synchronize=synchronize,
    )


def _two_stage_criterion(config: Config, loss: losses.ClassLoss, *, synchronize: bool) -> Criterion:
    """Of Faster R-CNN: the class loss is that of its second stage, over the RoIs of the batch."""
    of_boxes: dict[str, Any] = {
        "box_weight": config.loss.box_weight,
        "beta": 1 / 9,  # as in torchvision
        "box_mean": "all",
    }
    # As in `class_loss`: processes that train together must not raise on their own.
    objectness = ObjectnessLoss(False if synchronize else None, synchronize=synchronize)
    first = StageCriterion(SampledAnchors(), objectness, box_weights=BOX_WEIGHTS, **of_boxes)
    return Criterion(
        roi_assigner(config.detector.positive_iou),
        loss,
        box_weights=config.detector.box_weights,
        stages={"rpn": first},
        synchronize=synchronize,
        **of_boxes,
    )


def postprocess(config: Config, activation: str) -> Postprocess:
    """From the network's outputs to detections."""
    settings = config.evaluation
    return Postprocess(
        activation=activation,
        box_weights=config.detector.box_weights,
        score_threshold=settings.score_threshold,
        last_level_threshold=settings.last_level_threshold,
        num_candidates=settings.candidates,
        nms_iou=settings.nms_iou,
        max_detections=settings.max_detections,
    )


def optimizer(config: Config, module: nn.Module) -> torch.optim.Optimizer:
    """An optimiser of the parameters that are not frozen; the schedule sets its learning rate."""
    settings = config.training
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # On a GPU one kernel for all parameters, in place of several for each operation.
    is_fused = all(parameter.is_cuda for parameter in parameters) or None  # None: torch chooses
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(
            parameters,
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=is_fused,
        )
    return torch.optim.SGD(
        parameters,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        fused=is_fused,
    )


def open_split(
    config: DataConfig,
    split: str,
    *,
    classes: Sequence[str] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_image: Callable[[], None] | None = None,
) -> DetectionDataset:
    """A split of the data, with the classes given (those of a trained detector) or its own.

    The embedded data have their own classes and no format, whatever a recipe says.
    """
    is_synthetic = config.path == "synthetic"
    return open_dataset(
        config.path,
        split,
        format=None if is_synthetic else config.format,
        classes=None if is_synthetic else classes or config.classes,
        allow_outside=config.allow_outside,
        max_pixels=config.max_pixels,
        on_start=on_start,
        on_image=on_image,
    )


def training_loader(
    config: Config,
    dataset: DetectionDataset,
    *,
    device: torch.device | str,
    on_image: Callable[[], None] | None = None,
    rank: int = 0,
    world_size: int = 1,
) -> Loader | HeldLoader:
    """Shuffled, augmented micro-batches: batch_size / accumulate images, over all processes."""
    settings = config.data
    batch_size = config.training.batch_size // config.training.accumulate
    if len(dataset) < batch_size:
        raise ConfigError(
            f"training.batch_size: {batch_size} images at a time, and the split to train on has "
            f"{len(dataset)}. Give a smaller --batch-size."
        )
    is_fixed = settings.augmentation != "jitter"
    num_groups = 1 if is_fixed else 2  # images of similar shape need less padding
    if settings.hold:
        batched: dict[str, BatchedTransform] = {
            "ssd": BatchedSSDAugmentation(settings.size),
            "jitter": BatchedFlipScaleJitter(),
            "flip": BatchedFlipResize(settings.size),
        }
        if settings.augmentation not in batched:
            raise ConfigError(
                "data.hold: images held on the device need data.augmentation to be one of "
                f"{', '.join(batched)}; got {settings.augmentation!r}."
            )
        return make_held_loader(
            dataset,
            batched[settings.augmentation],
            device=device,
            batch_size=batch_size,
            seed=config.seed,
            num_groups=num_groups,
            drop_ignored=settings.drop_ignored,
            side=settings.size if is_fixed else SMALLEST_SIDE,
            rank=rank,
            world_size=world_size,
            on_image=on_image,
            longest=_longest_held(settings),
        )
    return make_loader(
        dataset,
        _training_transform(settings),
        batch_size=batch_size,
        seed=config.seed,
        size=(settings.size, settings.size) if is_fixed else None,
        num_groups=num_groups,
        rank=rank,
        world_size=world_size,
        num_workers=settings.workers,
        pin_memory=torch.device(device).type == "cuda",
    )


def _longest_held(config: DataConfig) -> int:
    """Pixels of the longer side of an image that is held.

    Flips show an image as a whole, as a square: many more pixels than that would take memory and
    time for nothing, but for images more than four times as long as wide, whose shorter side is
    enlarged then. The other augmentations can cut a part out, and make it larger.
    """
    if config.augmentation != "flip":
        return LONGEST
    return min(LONGEST, _SIDE_HELD_PER_SIDE_SEEN * config.size)


def _training_transform(config: DataConfig) -> Transform:
    transforms: dict[str, Transform] = {
        "ssd": SSDAugmentation(config.size),
        "jitter": FlipScaleJitter(),
        "flip": FlipResize(config.size),
        "none": ResizeFixed(config.size),
    }
    transform = transforms[config.augmentation]
    return WithoutIgnored(transform) if config.drop_ignored else transform


def evaluation_views(
    config: EvaluationConfig,
    dataset: DetectionDataset,
    *,
    device: torch.device | str,
    workers: int | None = None,
    rank: int = 0,
    world_size: int = 1,
    store: ImageStore | None = None,
) -> list[View]:
    """The ways in which each image is looked at: one, or one for each scale, and each mirrored.

    store: the images, where they are held on the device; None: they are read. Several processes
    take whole batches in turn: each batch is the same for any number of them.
    """
    views = []
    for transform, is_flipped in evaluation_transforms(config):
        loader = make_evaluation_loader(
            dataset,
            transform,
            batch_size=config.batch_size,
            rank=rank,
            world_size=world_size,
            num_workers=workers,
            pin_memory=torch.device(device).type == "cuda",
            store=store,
        )
        views.append(View(loader, is_flipped))
    return views


def evaluation_transforms(config: EvaluationConfig) -> list[tuple[Resize, bool]]:
    """How an image is resized for each view, and whether the view is mirrored."""
    transforms: list[tuple[Resize, bool]] = []
    for is_flipped in (False, True) if config.flip else (False,):
        if config.fixed_size is not None:
            transforms.append((ResizeFixed(config.fixed_size, is_flipped), is_flipped))
            continue
        for shorter in config.scales or (config.shorter,):
            longest = round(config.longest * shorter / config.shorter)
            transforms.append((ResizeShorter(shorter, longest, is_flipped), is_flipped))
    return transforms
