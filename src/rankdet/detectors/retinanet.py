"""RetinaNet, built from torchvision's parts; its state dict has the keys of torchvision's."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.retinanet import RetinaNetHead

from rankdet.detectors.anchors import PyramidAnchors
from rankdet.detectors.backbones import body_stages, make_backbone, make_norm
from rankdet.detectors.detector import PRIOR_LOGIT, ClassOutput, OneStageDetector, num_columns


class RetinaNet(OneStageDetector):
    """One stage of predictions from a feature pyramid.

    backbone: see `make_backbone`. head: torchvision's RetinaNetHead. Any H and W will do.
    """

    stage_name = "retinanet"
    backbone: BackboneWithFPN
    head: RetinaNetHead
    anchors: PyramidAnchors

    @property
    def freezable_stages(self) -> list[list[nn.Module]]:
        return body_stages(self.backbone)

    def class_outputs(self) -> list[ClassOutput]:
        return [ClassOutput("head.classification_head.cls_logits", self.anchors.num_per_place, 1)]


def make_retinanet(
    num_classes: int,
    *,
    activation: str = "sigmoid",
    backbone: str = "resnet50",
    stride_on: str = "3x3",
    norm: str = "batch",
    norm_epsilon: float = 1e-5,
    head_norm: str | None = None,
    p6_from: str = "c5",
    pyramid_channels: int | None = None,
    pyramid_start: str = "paper",
    head_start: str = "paper",
    anchor_scale: float = 4.0,
    anchor_octaves: int = 2,
    anchor_ratios: Sequence[float] = (0.5, 1.0, 2.0),
    anchor_grid: str = "centred",
) -> RetinaNet:
    """A RetinaNet with fresh weights, initialised as in the paper's code.

    activation: of the class loss; "softmax" has num_classes + 1 columns, column 0 background.
    pyramid_start: "paper", or "torchvision" for a pyramid whose maps begin as large as their input.
    head_start: "paper", or "kaiming" for heads whose maps begin some times smaller, not a hundred.
    The other options are those of `DetectorConfig`.

    >>> import torch
    >>> detector = make_retinanet(3, backbone="small", norm="group", head_norm="group")
    >>> (predictions,) = detector(torch.rand(2, 3, 64, 96))
    >>> predictions.logits.shape, predictions.level_sizes
    (torch.Size([2, 756, 3]), (576, 144, 36))
    """
    columns = num_columns(num_classes, activation)
    _check("head_norm", head_norm, (None, "group"))
    _check("pyramid_start", pyramid_start, ("paper", "torchvision"))
    _check("head_start", head_start, ("paper", "kaiming"))
    pyramid = make_backbone(
        backbone,
        stride_on=stride_on,
        norm=norm,
        norm_epsilon=norm_epsilon,
        p6_from=p6_from,
        pyramid_channels=pyramid_channels,
    )
    anchors = PyramidAnchors(
        pyramid.strides, anchor_scale, anchor_octaves, anchor_ratios, anchor_grid
    )
    is_small = backbone == "small"
    norm_layer = None if head_norm is None else make_norm(head_norm)
    head = RetinaNetHead(pyramid.out_channels, anchors.num_per_place, columns, norm_layer)
    if is_small:
        for branch in (head.classification_head, head.regression_head):
            branch.conv = branch.conv[:2]
    detector = RetinaNet(pyramid, head, anchors)
    # Differs from the paper: the small network is always trained from scratch, and its maps then
    # begin at the size of their input. It seems to learn a little faster so (300 steps on the
    # embedded set, one seed: AP50 of 29.2 against 27.9 with N(0, 0.01)).
    _initialise(
        detector,
        activation,
        is_pyramid_kaiming=is_small or pyramid_start == "torchvision",
        is_head_kaiming=is_small or head_start == "kaiming",
    )
    return detector


def _check(name: str, value: str | None, choices: Sequence[str | None]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected {' or '.join(map(repr, choices))}, got {value!r}")


def _initialise(
    detector: RetinaNet, activation: str, *, is_pyramid_kaiming: bool, is_head_kaiming: bool
) -> None:
    """Set the weights of pyramid and heads as the paper's code does, N(0, 0.01), or as Kaiming He.

    With N(0, 0.01), P3 to P5 of ResNet-50 are some five times smaller than with torchvision's
    start, and each of the four convolutions of a head makes its map some three times smaller: more
    with fewer channels. Otherwise the pyramid keeps sizes, and a head loses about a third a layer.
    """
    classifier, regressor = detector.head.classification_head, detector.head.regression_head
    outputs = (classifier.cls_logits, regressor.bbox_reg)
    is_kaiming = {detector.backbone.fpn: is_pyramid_kaiming, detector.head: is_head_kaiming}
    for part in is_kaiming:
        for layer in part.modules():
            if not isinstance(layer, nn.Conv2d):
                continue
            if is_kaiming[part] and layer not in outputs:
                nn.init.kaiming_uniform_(layer.weight, a=1)
            else:
                nn.init.normal_(layer.weight, std=0.01)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    nn.init.normal_(regressor.bbox_reg.weight, std=0.001)
    bias = classifier.cls_logits.bias.detach().view(-1, classifier.num_classes)  # anchor, column
    if activation == "sigmoid":
        bias.fill_(PRIOR_LOGIT)
    else:  # all classes together have the prior
        bias[:, 0] = math.log(classifier.num_classes - 1) - PRIOR_LOGIT
