"""What settings mean together: which of them a detector does not look at, and its image size.

And how the images are called that they choose.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from rankdet.config.sections import Config, DataConfig, DetectorConfig


@dataclass(frozen=True)
class _Idle:
    """Settings of `detector` without effect for a detector; of "" for all, and with a backbone."""

    detector: str
    backbone: str
    names: tuple[str, ...]


_OF_ROIS = ("rois", "proposals", "test_proposals")
_OF_SSD = ("pixels", "ssd_layout")
_OF_PYRAMIDS = (
    *("anchor_scale", "anchor_octaves", "anchor_ratios", "anchor_grid"),
    *("p6_from", "pyramid_channels", "pyramid_start", "head_start"),
    *("stride_on", "head_norm", "norm_epsilon"),
)
_TABLE = (
    _Idle("retinanet", "", (*_OF_SSD, *_OF_ROIS)),
    # It has no P6, and a start of its own.
    _Idle("retinanet", "small", ("p6_from", "pyramid_start", "head_start")),
    _Idle("ssd", "", (*_OF_PYRAMIDS, *_OF_ROIS)),
    _Idle("ssd", "small", ("ssd_layout",)),  # which has boxes of its own
    _Idle("ssd", "vgg16", ("norm",)),  # which has no norms
    _Idle("faster_rcnn", "", (*_OF_SSD, "p6_from", "pyramid_start", "head_start", "negative_iou")),
)


def names_without_effect(config: DetectorConfig) -> tuple[str, ...]:
    """The settings of `detector` that this detector with this backbone does not look at."""
    return tuple(
        name
        for row in _TABLE
        if row.detector == config.name and row.backbone in ("", config.backbone)
        for name in row.names
    )


def settings_without_effect(config: DetectorConfig) -> dict[str, object]:
    """Those of them that are not at their default, by name: someone expects something of them.

    >>> settings_without_effect(DetectorConfig(rois=64))
    {'rois': 64}
    """
    idle = names_without_effect(config)
    return {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name in idle and getattr(config, field.name) != field.default
    }


def square_evaluation(config: Config) -> Config:
    """The settings with evaluation.fixed_size, for an SSD that learns squares and has none.

    Its default boxes are shares of the image: in one that keeps its shape, they would be others
    than it has learnt. evaluation.scales says otherwise.
    """
    evaluation = config.evaluation
    if (
        config.detector.name != "ssd"
        or config.data.augmentation == "jitter"  # it learns images that keep their shape
        or evaluation.fixed_size is not None
        or evaluation.scales
    ):
        return config
    return replace(config, evaluation=replace(evaluation, fixed_size=config.data.size))


def training_name(data: DataConfig) -> str | None:
    """What messages and results call the images to train on; None if nobody has named the split.

    >>> training_name(DataConfig(train_split="train", hold_out=0.1))
    'train (without held-out 10 %)'
    """
    if data.train_split is None or data.hold_out is None:
        return data.train_split
    return f"{data.train_split} (without held-out {100 * data.hold_out:g} %)"


def validation_name(data: DataConfig) -> str | None:
    """What they call the images to evaluate on; None if there are none, or they are not named.

    >>> validation_name(DataConfig(val_split="val"))
    'val'
    >>> validation_name(DataConfig(train_split="train", hold_out=0.1))
    'train (held-out 10 %)'
    """
    if data.train_split is None or data.hold_out is None:
        return data.val_split
    return f"{data.train_split} (held-out {100 * data.hold_out:g} %)"
