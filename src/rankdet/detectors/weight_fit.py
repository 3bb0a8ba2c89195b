"""Whether tensors fit a network, and which network they are of, so far as names and shapes tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from rankdet.detectors.backbones import BACKBONES
from rankdet.errors import WeightsError, listed, message

_BODY = "backbone.body."
_DETECTOR = (_BODY, "backbone.features.", "backbone.extra.", "head.", "rpn.", "roi_heads.")
_CLASS_OUTPUTS = "head.classification_head.module_list."  # of SSD
_BOX_OUTPUTS = ("head.regression_head.bbox_reg.bias", "rpn.head.bbox_pred.bias")  # of pyramids
_LAYOUTS = {6: "ssd300", 7: "ssd512"}  # by the number of class outputs
_MOST_NAMES = 3  # of tensors, that a message lists

# (has bottlenecks, blocks in layer3, shape of the first 3x3): the networks of torchvision.
_RESNETS: dict[tuple[bool, int, tuple[int, ...]], str] = {
    (False, 2, (64, 64)): "resnet18",
    (False, 6, (64, 64)): "resnet34",
    (True, 6, (64, 64)): "resnet50",
    (True, 23, (64, 64)): "resnet101",
    (True, 36, (64, 64)): "resnet152",
    (True, 6, (128, 4)): "resnext50_32x4d",
    (True, 23, (256, 8)): "resnext101_32x8d",
    (True, 23, (256, 4)): "resnext101_64x4d",
    (True, 6, (128, 128)): "wide_resnet50_2",
    (True, 23, (128, 128)): "wide_resnet101_2",
}


class DetectorKind(NamedTuple):
    """What the names of a detector's tensors tell.

    title: for messages. name: what `detector.name` is for it; None: we have no such detector.
    activation: of the one that torchvision publishes.
    """

    title: str
    name: str | None
    activation: str


# By how the name of one of its tensors begins; the first that is found.
_KINDS = (
    ("roi_heads.mask_predictor.", DetectorKind("Mask R-CNN", None, "softmax")),
    ("roi_heads.keypoint_predictor.", DetectorKind("Keypoint R-CNN", None, "softmax")),
    ("roi_heads.", DetectorKind("Faster R-CNN", "faster_rcnn", "softmax")),
    ("head.regression_head.bbox_ctrness.", DetectorKind("FCOS", None, "sigmoid")),
    ("head.classification_head.cls_logits.", DetectorKind("RetinaNet", "retinanet", "sigmoid")),
    (f"{_CLASS_OUTPUTS}0.0.", DetectorKind("SSDlite", None, "softmax")),
    (_CLASS_OUTPUTS, DetectorKind("SSD", "ssd", "softmax")),
)
_UNKNOWN = DetectorKind("unknown", None, "sigmoid")


def detector_kind(tensors: Mapping[str, Tensor]) -> DetectorKind:
    """Which detector these tensors are of, by their names; its title may be "unknown".

    >>> import torch
    >>> detector_kind({"roi_heads.box_predictor.cls_score.bias": torch.zeros(91)}).title
    'Faster R-CNN'
    """
    found = (kind for start, kind in _KINDS if any(name.startswith(start) for name in tensors))
    return next(found, _UNKNOWN)


def check_fit(
    tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], *, file: str, hint: str
) -> None:
    """Raise WeightsError unless names and shapes are those of a module's state dict.

    Counters of batch norms may be missing or too many: frozen ones have none.
    """
    missing = [name for name in state if name not in tensors and not _is_counter(name)]
    unknown = [name for name in tensors if name not in state and not _is_counter(name)]
    reshaped = [
        f"{name} {tuple(tensor.shape)} in place of {tuple(state[name].shape)}"
        for name, tensor in tensors.items()
        if name in state and tensor.shape != state[name].shape
    ]
    faults = (("missing", missing), ("unknown", unknown), ("of another shape", reshaped))
    texts = [
        f"{len(names)} {what} ({listed(names, _MOST_NAMES)})" for what, names in faults if names
    ]
    if texts:
        rule = f"the tensors do not fit the detector: {'; '.join(texts)}"
        raise WeightsError(message(rule, file=file, hint=hint))


def _is_counter(name: str) -> bool:
    return name.endswith("num_batches_tracked")


def copy_tensors(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy values into a module's state dict; the dtypes and devices stay the module's."""
    for name, tensor in tensors.items():
        if name in state:
            state[name].copy_(tensor)


def is_detector(tensors: Mapping[str, Tensor]) -> bool:
    """Whether these are the tensors of a whole detector, not of a backbone alone."""
    return any(name.startswith(_DETECTOR) for name in tensors)


def count_anchors(tensors: Mapping[str, Tensor]) -> int:
    """How many anchors a detector has at a place of its pyramid; 0 if there is no such output."""
    return next((tensors[name].numel() // 4 for name in _BOX_OUTPUTS if name in tensors), 0)


def backbone_name(body: Mapping[str, Tensor]) -> str:
    """The name of the network that a backbone's tensors are of, or "unknown"."""
    if "stem.0.weight" in body:
        return "small"
    first = body.get("layer1.0.conv2.weight")
    if first is not None:
        num_blocks = len({name.split(".")[1] for name in body if name.startswith("layer3.")})
        has_bottlenecks = "layer1.0.conv3.weight" in body
        return _RESNETS.get((has_bottlenecks, num_blocks, tuple(first.shape[:2])), "unknown")
    names = {name.removeprefix("features.") for name in body}
    if {"1.conv.0.0.weight", "18.0.weight"} <= names:
        return "mobilenet_v2"
    if {"12.weight", "14.weight", "17.weight"} <= names and "16.weight" not in names:
        return "vgg16"  # three convolutions in the third block: VGG-13 has two, VGG-19 four
    return "vgg" if {"0.weight", "5.weight", "10.weight"} <= names else "unknown"


def fitting_settings(
    tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], num_ratios: int = 3
) -> str:
    """A sentence with the settings by which a detector would fit the tensors.

    Empty if the network of the tensors is not known, or no visible setting differs from those of
    the state dict. num_ratios: of the detector's anchors.
    """
    given, present = _visible_settings(tensors, num_ratios), _visible_settings(state, num_ratios)
    if given["backbone"] == "unknown":
        return ""
    known = (*BACKBONES, "vgg16")
    if given["backbone"] not in known:
        return f"The file looks like {given['backbone']}; the backbones are {', '.join(known)}."
    if "vgg16" in (given["backbone"], present["backbone"]):  # of SSD alone
        given["name"] = "ssd" if given["backbone"] == "vgg16" else "retinanet"
        present["name"] = "ssd" if present["backbone"] == "vgg16" else "retinanet"
    differing = [name for name in given if given[name] != present.get(name)]
    texts = [f"detector.{name}={given[name]}" for name in differing]
    return f"The file fits {', '.join(texts)}." if texts else ""


def _visible_settings(tensors: Mapping[str, Tensor], num_ratios: int) -> dict[str, str]:
    """The settings of `DetectorConfig` that the tensors of a backbone or detector show."""
    settings = {}
    if num_anchors := count_anchors(tensors):
        settings["anchor_octaves"] = f"{num_anchors / num_ratios:g}"
    for convolutions in ("head.regression_head.conv.", "rpn.head.conv."):
        if any(name.startswith(convolutions) for name in tensors):
            has_norm = f"{convolutions}0.1.weight" in tensors
            settings["head_norm"] = "group" if has_norm else "null"
    if (p6 := tensors.get("backbone.fpn.extra_blocks.p6.weight")) is not None:
        c5 = tensors.get("backbone.fpn.inner_blocks.2.0.weight")
        if c5 is None or c5.shape[1] != p6.shape[0]:  # else P5 and C5 look the same
            settings["p6_from"] = "p5" if p6.shape[1] == p6.shape[0] else "c5"
    if (finest := tensors.get("backbone.fpn.layer_blocks.0.0.weight")) is not None:
        settings["pyramid_channels"] = str(finest.shape[0])
    num_outputs = sum(name.startswith(_CLASS_OUTPUTS) for name in tensors) // 2
    if num_outputs in _LAYOUTS:
        settings["ssd_layout"] = _LAYOUTS[num_outputs]

    body = {
        name.removeprefix(_BODY).removeprefix("backbone."): tensor
        for name, tensor in tensors.items()
    }
    settings["backbone"] = backbone_name(body)
    if settings["backbone"] != "vgg16":  # which has no norm
        has_statistics = any(name.endswith("running_mean") for name in body)
        settings["norm"] = "frozen" if has_statistics else "group"  # "batch" looks the same
    return settings
