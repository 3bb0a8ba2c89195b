"""RetinaNet, built from torchvision's parts; its state dict has the keys of torchvision's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.retinanet import RetinaNetHead

from rankdet.detectors.backbones import make_backbone, make_norm
from rankdet.structures import IMAGENET_DEVIATION, IMAGENET_MEAN, Predictions, Target

_MOST_KEPT_ANCHORS = 16  # sizes of images whose anchors are kept, about a megabyte each
_PRIOR = 0.01  # probability that an anchor has an object, as the network is initialised


class _Anchors(NamedTuple):
    """boxes (A, 4) of all levels, and how many each level has."""

    boxes: Tensor
    level_sizes: tuple[int, ...]


class RetinaNet(nn.Module):
    """One stage of predictions from a feature pyramid.

    backbone: images -> OrderedDict of maps, see `make_backbone`. head: list of maps -> dict with
    cls_logits (B, A, C) and bbox_regression (B, A, 4), torchvision's RetinaNetHead.
    anchor_generator: torchvision's, one tuple of sizes for each map.
    """

    backbone: BackboneWithFPN
    head: RetinaNetHead
    anchor_generator: AnchorGenerator
    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        backbone: BackboneWithFPN,
        head: RetinaNetHead,
        anchor_generator: AnchorGenerator,
        anchor_grid: str = "centred",
    ) -> None:
        super().__init__()
        self.anchor_grid = anchor_grid
        self.backbone = backbone
        self.head = head
        self.anchor_generator = anchor_generator
        self._kept_anchors: dict[Any, _Anchors] = {}
        for name, values in (("mean", IMAGENET_MEAN), ("deviation", IMAGENET_DEVIATION)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, images: Tensor, targets: Sequence[Target] | None = None) -> list[Predictions]:
        """The predictions for images (B, 3, H, W), floats in 0..1; the targets are not looked at.

        B may be 0. Any H and W will do; the anchors of a map stand its stride apart.
        """
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            got = f"{tuple(images.shape)} {images.dtype}"
            raise ValueError(f"images: expected (B, 3, H, W) of a float type, got {got}")
        if len(images) == 0:
            return [self._predict_nothing(images)]
        maps = list(self.backbone((images - self.mean) / self.deviation).values())
        outputs = self.head(maps)
        anchors = self._anchors(maps, (images.shape[2], images.shape[3]))
        return [
            Predictions(
                name="retinanet",
                logits=outputs["cls_logits"],
                deltas=outputs["bbox_regression"],
                anchors=anchors.boxes,
                level_sizes=anchors.level_sizes,
            )
        ]

    def _anchors(self, maps: list[Tensor], image_size: tuple[int, int]) -> _Anchors:
        """The anchors of all maps, in the order of the head's outputs.

        Those of the latest sizes are kept: making them takes a device dozens of small operations.
        """
        grids = tuple((level.shape[-2], level.shape[-1]) for level in maps)
        key = (grids, image_size, maps[0].device)
        kept = self._kept_anchors.pop(key, None) or self._make_anchors(*key)
        self._kept_anchors[key] = kept  # the last one, whether new or not
        if len(self._kept_anchors) > _MOST_KEPT_ANCHORS:
            del self._kept_anchors[next(iter(self._kept_anchors))]
        return kept

    def _make_anchors(
        self,
        grids: tuple[tuple[int, int], ...],
        image_size: tuple[int, int],
        device: torch.device,
    ) -> _Anchors:
        if self.anchor_grid == "centred":  # an image's anchors do not move with its padding
            strides = [(stride, stride) for stride in self.backbone.strides]
        else:  # differs where a side is no multiple of the last stride
            strides = [(image_size[0] // rows, image_size[1] // columns) for rows, columns in grids]
        with torch.inference_mode(False):  # they may be kept for a training
            self.anchor_generator.set_cell_anchors(torch.float32, device)
            levels = self.anchor_generator.grid_anchors(list(grids), strides)
            return _Anchors(torch.cat(levels), tuple(len(level) for level in levels))

    def _predict_nothing(self, images: Tensor) -> Predictions:
        """The predictions for no image: empty, but connected to the parameters as ever.

        Several layers refuse an empty batch. So one blank image goes through the network, in
        evaluation mode lest it change the statistics of batch norms, and its results are cut off.
        """
        is_training = self.training
        self.eval()
        (one,) = self.forward(images.new_zeros(1, *images.shape[1:]))
        self.train(is_training)
        return dataclasses.replace(one, logits=one.logits[:0], deltas=one.deltas[:0])

    def train(self, mode: bool = True) -> RetinaNet:
        """Set the mode of all layers, but batch norms that `freeze` froze keep their statistics."""
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm2d) and not layer.weight.requires_grad:
                layer.eval()
        return self


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
    anchor_scale: float = 4.0,
    anchor_octaves: int = 2,
    anchor_ratios: Sequence[float] = (0.5, 1.0, 2.0),
    anchor_grid: str = "centred",
) -> RetinaNet:
    """A RetinaNet with fresh weights, initialised as in the paper's code.

    activation: of the class loss; "softmax" has num_classes + 1 columns, column 0 background. The
    other options are those of `DetectorConfig`.

    >>> detector = make_retinanet(3, backbone="small", norm="group", head_norm="group")
    >>> (predictions,) = detector(torch.rand(2, 3, 64, 96))
    >>> predictions.logits.shape, predictions.level_sizes
    (torch.Size([2, 756, 3]), (576, 144, 36))
    """
    if num_classes < 1:
        raise ValueError(f"num_classes: expected at least 1, got {num_classes}")
    if activation not in ("sigmoid", "softmax"):
        raise ValueError(f"activation: expected 'sigmoid' or 'softmax', got {activation!r}")
    if head_norm not in (None, "group"):
        raise ValueError(f"head_norm: expected None or 'group', got {head_norm!r}")
    if anchor_octaves < 1 or not anchor_ratios:
        got = f"{anchor_octaves} and {tuple(anchor_ratios)}"
        raise ValueError(f"anchor_octaves, anchor_ratios: expected at least one of each, got {got}")
    if anchor_scale * 8 < 1:
        raise ValueError(f"anchor_scale: expected anchors of at least a pixel, got {anchor_scale}")
    if anchor_grid not in ("centred", "torchvision"):
        raise ValueError(f"anchor_grid: expected 'centred' or 'torchvision', got {anchor_grid!r}")
    pyramid = make_backbone(
        backbone, stride_on=stride_on, norm=norm, norm_epsilon=norm_epsilon, p6_from=p6_from
    )
    head = RetinaNetHead(
        pyramid.out_channels,
        anchor_octaves * len(anchor_ratios),
        num_classes + (activation == "softmax"),
        norm_layer=None if head_norm is None else make_norm(head_norm),
    )
    if backbone == "small":
        for branch in (head.classification_head, head.regression_head):
            branch.conv = branch.conv[:2]
    anchors = _anchor_generator(
        pyramid.strides, anchor_scale, anchor_octaves, tuple(anchor_ratios), anchor_grid
    )
    detector = RetinaNet(pyramid, head, anchors, anchor_grid)
    _initialise(detector, activation, is_small=backbone == "small")
    return detector


def freeze(detector: RetinaNet, num_stages: int) -> None:
    """Exclude the backbone's first stages from training: their parameters and statistics stay.

    A ResNet has five stages: the first convolution with its norm, layer1, ..., layer4; the other
    backbones are cut where the resolution halves.
    """
    stages = detector.backbone.stages
    if not 0 <= num_stages <= len(stages):
        raise ValueError(f"num_stages: expected 0 to {len(stages)}, got {num_stages}")
    for stage in stages[:num_stages]:
        for name in stage:
            detector.backbone.body[name].requires_grad_(False)
    detector.train(detector.training)  # so that the frozen batch norms hold still


def _anchor_generator(
    strides: Sequence[int],
    scale: float,
    num_octave_steps: int,
    ratios: tuple[float, ...],
    grid: str,
) -> AnchorGenerator:
    """torchvision's generator for these strides; ratios are of height to width.

    "centred" is as in the paper's code: sizes as they come out, and each anchor in the middle of
    its stride x stride pixels. torchvision has whole pixels, and the upper left corner.

    >>> _anchor_generator((8,), 4.0, 1, (1.0,), "centred").cell_anchors
    [tensor([[-12., -12.,  20.,  20.]])]
    """
    sizes = [
        tuple(scale * stride * 2 ** (step / num_octave_steps) for step in range(num_octave_steps))
        for stride in strides
    ]
    whole = tuple(tuple(int(size) for size in level) for level in sizes)
    generator = AnchorGenerator(whole, (ratios,) * len(whole))
    if grid == "centred":
        generator.cell_anchors = [
            _cell_anchors(level, ratios) + stride / 2
            for level, stride in zip(sizes, strides, strict=True)
        ]
    return generator


def _cell_anchors(sizes: Sequence[float], ratios: Sequence[float]) -> Tensor:
    """(R * S, 4): an anchor of each ratio and size around the origin, in torchvision's order."""
    roots = torch.tensor(ratios, dtype=torch.float64).sqrt()[:, None]
    widths = (torch.tensor(sizes) / roots).flatten()
    heights = (torch.tensor(sizes) * roots).flatten()
    return (torch.stack([-widths, -heights, widths, heights], dim=1) / 2).float()


def _initialise(detector: RetinaNet, activation: str, *, is_small: bool) -> None:
    """Set the weights of pyramid and heads as the paper's code does."""
    classifier, regressor = detector.head.classification_head, detector.head.regression_head
    for part in (detector.backbone.fpn, detector.head):
        for layer in part.modules():
            if not isinstance(layer, nn.Conv2d):
                continue
            # Differs from the paper: the small network is always trained from scratch, and its maps
            # then begin at the size of their input. It seems to learn a little faster so (300 steps
            # on the embedded set, one seed: AP50 of 29.2 against 27.9 with N(0, 0.01)).
            if is_small and layer not in (classifier.cls_logits, regressor.bbox_reg):
                nn.init.kaiming_uniform_(layer.weight, a=1)
            else:
                nn.init.normal_(layer.weight, std=0.01)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    nn.init.normal_(regressor.bbox_reg.weight, std=0.001)
    bias = classifier.cls_logits.bias.detach().view(-1, classifier.num_classes)  # anchor, column
    if activation == "sigmoid":
        bias.fill_(-math.log((1 - _PRIOR) / _PRIOR))
    else:  # all classes together have the prior
        bias[:, 0] = math.log((1 - _PRIOR) / _PRIOR * (classifier.num_classes - 1))
