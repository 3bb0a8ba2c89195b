"""What all detectors share: how images come in, how none is answered, what freezing means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rankdet.detectors.anchors import KeptAnchors
from rankdet.structures import IMAGENET_DEVIATION, IMAGENET_MEAN, Predictions, Target

_PRIOR = 0.01  # probability that an anchor has an object, as a network is initialised
PRIOR_LOGIT = -math.log((1 - _PRIOR) / _PRIOR)
Sizes = Tensor | Sequence[tuple[int, int]]  # (B, 2): height and width of each image


def num_columns(num_classes: int, activation: str) -> int:
    """How many logits an anchor has: with softmax one more than classes, column 0 background.

    >>> num_columns(20, "softmax")
    21
    """
    if num_classes < 1:
        raise ValueError(f"num_classes: expected at least 1, got {num_classes}")
    if activation not in ("sigmoid", "softmax"):
        raise ValueError(f"activation: expected 'sigmoid' or 'softmax', got {activation!r}")
    return num_classes + (activation == "softmax")


class ClassOutput(NamedTuple):
    """A layer whose outputs are of the classes, so that they change with another list of them.

    name: of the layer in the state dict; its `weight` and `bias` have rows (anchor, column, value)
    in this order: num_anchors anchors at a place, the columns of the logits (background included,
    where there is such a column) and `width` values of each: 1 for a score, 4 for a box of a class.

    A linear layer with one score a class is ClassOutput("roi_heads.box_predictor.cls_score", 1, 1).
    """

    name: str
    num_anchors: int
    width: int


class Detector(nn.Module):
    """From images to one or more stages of predictions.

    A detector has a `backbone`, and says by `predict` what it sees in normalised images.
    """

    mean: Tensor
    deviation: Tensor
    backbone: nn.Module

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET_MEAN,
        deviation: Sequence[float] = IMAGENET_DEVIATION,
    ) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("deviation", deviation)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(
        self,
        images: Tensor,
        targets: Sequence[Target] | None = None,
        sizes: Sizes | None = None,
    ) -> list[Predictions]:
        """The predictions for images (B, 3, H, W), floats in 0..1. B may be 0.

        targets: of each image, in training. Only a detector that chooses boxes to learn from
        (Faster R-CNN) looks at them. sizes: the height and width of each image inside of its
        padding; None: those of the targets, and without targets there is no padding.
        """
        if images.ndim != 4 or images.shape[1] != 3 or not images.is_floating_point():
            got = f"{tuple(images.shape)} {images.dtype}"
            raise ValueError(f"images: expected (B, 3, H, W) of a float type, got {got}")
        if len(images) == 0:
            return self._predict_nothing(images)
        return self.predict(
            (images - self.mean) / self.deviation, targets, _sizes(images, targets, sizes)
        )

    def predict(
        self, images: Tensor, targets: Sequence[Target] | None, sizes: Tensor
    ) -> list[Predictions]:
        """The predictions for normalised images (B, 3, H, W), B at least 1.

        sizes (B, 2) integers: height and width of the images without their padding.
        """
        raise NotImplementedError

    @property
    def body(self) -> nn.Module:
        """The part of the backbone that weights trained for classification are for."""
        body: nn.Module = self.backbone.body  # type: ignore[assignment]  # what a module has is Any
        return body

    @property
    def freezable_stages(self) -> list[list[nn.Module]]:
        """The modules of each stage of the body, from the input, for `freeze`."""
        raise NotImplementedError

    @property
    def compilable_parts(self) -> list[nn.Module]:
        """The modules with most of the work, whose shapes do not depend on what was found."""
        raise NotImplementedError

    def class_outputs(self) -> list[ClassOutput]:
        """The layers whose rows are of the classes; the first one has scores, of width 1."""
        raise NotImplementedError

    def _predict_nothing(self, images: Tensor) -> list[Predictions]:
        """The predictions for no image: empty, but connected to the parameters as ever.

        Several layers refuse an empty batch. So one blank image goes through the network, in
        evaluation mode lest it change the statistics of batch norms, and its results are cut off.
        """
        is_training = self.training
        self.eval()
        stages = self.forward(images.new_zeros(1, *images.shape[1:]))
        self.train(is_training)
        return [stage.select(slice(0)) for stage in stages]

    def train(self, mode: bool = True) -> Detector:
        """Set the mode of all layers, but batch norms that `freeze` froze keep their statistics."""
        super().train(mode)
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm2d) and not layer.weight.requires_grad:
                layer.eval()
        return self


class OneStageDetector(Detector):
    """One stage of predictions: a head that looks at all maps of the backbone.

    backbone: images -> OrderedDict of maps. head: list of maps -> dict with cls_logits (B, A, C)
    and bbox_regression (B, A, 4). anchors: the boxes of these maps, in the head's order.
    """

    stage_name: str

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        anchors: KeptAnchors,
        mean: Sequence[float] = IMAGENET_MEAN,
        deviation: Sequence[float] = IMAGENET_DEVIATION,
    ) -> None:
        super().__init__(mean, deviation)
        self.backbone = backbone
        self.head = head
        self.anchors = anchors

    def predict(
        self, images: Tensor, targets: Sequence[Target] | None, sizes: Tensor
    ) -> list[Predictions]:
        """The one stage; neither the targets nor the sizes are looked at."""
        maps = list(self.backbone(images).values())
        outputs = self.head(maps)
        anchors = self.anchors(maps, (images.shape[2], images.shape[3]))
        return [
            Predictions(
                name=self.stage_name,
                logits=outputs["cls_logits"],
                deltas=outputs["bbox_regression"],
                anchors=anchors.boxes,
                level_sizes=anchors.level_sizes,
            )
        ]

    @property
    def compilable_parts(self) -> list[nn.Module]:
        return [self.backbone, self.head]


def _sizes(images: Tensor, targets: Sequence[Target] | None, sizes: Sizes | None) -> Tensor:
    """(B, 2) integers: height and width of each image, by what is known of them."""
    height, width = images.shape[2:]
    if sizes is None:
        sizes = (
            [(height, width)] * len(images)
            if targets is None
            else [target.size for target in targets]
        )
    known = torch.as_tensor(sizes)
    if known.shape != (len(images), 2):
        got = tuple(known.shape)
        raise ValueError(f"sizes: expected a height and width for each image, got {got}")
    return known


def freeze(detector: Detector, num_stages: int) -> None:
    """Exclude the backbone's first stages from training: their parameters and statistics stay.

    A ResNet has five stages: the first convolution with its norm, layer1, ..., layer4; the other
    backbones are cut where the resolution halves.
    """
    stages = detector.freezable_stages
    if not 0 <= num_stages <= len(stages):
        raise ValueError(f"num_stages: expected 0 to {len(stages)}, got {num_stages}")
    for stage in stages[:num_stages]:
        for module in stage:
            module.requires_grad_(False)
    detector.train(detector.training)  # so that the frozen batch norms hold still
