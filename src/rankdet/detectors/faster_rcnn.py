"""Faster R-CNN with FPN and RoIAlign, built from torchvision's parts, with torchvision's keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import Conv2dNormActivation, MultiScaleRoIAlign
from torchvision.ops.poolers import LevelMapper

from rankdet.detectors.anchors import PyramidAnchors
from rankdet.detectors.backbones import body_stages, make_backbone, make_norm
from rankdet.detectors.detector import PRIOR_LOGIT, ClassOutput, Detector, num_columns
from rankdet.detectors.rois import choose_rois
from rankdet.detectors.rpn import Proposals, RegionProposalNetwork, propose
from rankdet.structures import Predictions, Target

_CANDIDATES, _TEST_CANDIDATES = 2000, 1000  # anchors of a level that are looked at, at least


class RoISettings(NamedTuple):
    """How many boxes the second stage gets; see `make_faster_rcnn`."""

    num_rois: int = 512
    num_proposals: int = 2000
    num_test_proposals: int = 1000
    positive_iou: float = 0.5


class RoIHeads(nn.Module):
    """The second stage: classes and boxes of regions of the pyramid's maps."""

    box_roi_pool: MultiScaleRoIAlign
    box_head: TwoMLPHead
    box_predictor: FastRCNNPredictor

    def __init__(
        self,
        box_roi_pool: MultiScaleRoIAlign,
        box_head: TwoMLPHead,
        box_predictor: FastRCNNPredictor,
        *,
        has_background: bool,
    ) -> None:
        """has_background: whether column 0 of the predictor is background, as of softmax."""
        super().__init__()
        self.box_roi_pool = box_roi_pool
        self.box_head = box_head
        self.box_predictor = box_predictor
        self.has_background = has_background

    def forward(
        self, maps: Mapping[str, Tensor], rois: Proposals, image_size: tuple[int, int]
    ) -> Predictions:
        """The stage "roi" for RoIs (B, R, 4) of images of that height and width."""
        num_images, num_rois = rois.is_padding.shape
        regions = self.box_roi_pool(maps, list(rois.boxes), [image_size] * num_images)
        logits, deltas = self.box_predictor(self.box_head(regions))
        deltas = deltas.view(num_images, num_rois, -1, 4)
        return Predictions(
            name="roi",
            logits=logits.view(num_images, num_rois, -1),
            deltas=deltas[:, :, 1:] if self.has_background else deltas,
            anchors=rois.boxes,
            level_sizes=(num_rois,),
            is_padding=rois.is_padding,
        )


class FasterRCNN(Detector):
    """Two stages of predictions: "rpn" about anchors, and "roi" about its proposals.

    With targets, the RoIs are chosen to learn from (`choose_rois`); without, they are the best
    proposals. Proposals are clipped to their image, without its padding. No gradient flows through
    their coordinates. Any H and W will do.
    """

    backbone: BackboneWithFPN
    rpn: RegionProposalNetwork
    roi_heads: RoIHeads

    def __init__(
        self,
        backbone: BackboneWithFPN,
        rpn: RegionProposalNetwork,
        roi_heads: RoIHeads,
        settings: RoISettings,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.rpn = rpn
        self.roi_heads = roi_heads
        self.settings = settings

    def predict(
        self, images: Tensor, targets: Sequence[Target] | None, sizes: Tensor
    ) -> list[Predictions]:
        """Both stages; the targets choose what the second one learns from."""
        image_size = (images.shape[2], images.shape[3])
        maps = self.backbone(images)
        first = self.rpn(maps, image_size)
        if targets is None:
            rois = self._test_proposals(first, sizes)
        else:
            rois = self._training_rois(first, targets, sizes)
        return [first, self.roi_heads(maps, rois, image_size)]

    def _training_rois(
        self, first: Predictions, targets: Sequence[Target], sizes: Tensor
    ) -> Proposals:
        settings = self.settings
        proposals = propose(
            first,
            sizes,
            num_candidates=max(_CANDIDATES, settings.num_proposals),
            num_proposals=settings.num_proposals,
        )
        return choose_rois(proposals, targets, settings.num_rois, settings.positive_iou)

    def _test_proposals(self, first: Predictions, sizes: Tensor) -> Proposals:
        num_proposals = self.settings.num_test_proposals
        return propose(
            first,
            sizes,
            num_candidates=max(_TEST_CANDIDATES, num_proposals),
            num_proposals=num_proposals,
        )

    @property
    def freezable_stages(self) -> list[list[nn.Module]]:
        return body_stages(self.backbone)

    @property
    def compilable_parts(self) -> list[nn.Module]:
        return [self.backbone, self.rpn.head]

    def class_outputs(self) -> list[ClassOutput]:
        predictor = "roi_heads.box_predictor"
        return [
            ClassOutput(f"{predictor}.cls_score", 1, 1),
            ClassOutput(f"{predictor}.bbox_pred", 1, 4),
        ]


def make_faster_rcnn(
    num_classes: int,
    *,
    activation: str = "sigmoid",
    backbone: str = "resnet50",
    stride_on: str = "3x3",
    norm: str = "batch",
    norm_epsilon: float = 1e-5,
    head_norm: str | None = None,
    pyramid_channels: int | None = None,
    anchor_scale: float = 8.0,
    anchor_octaves: int = 1,
    anchor_ratios: Sequence[float] = (0.5, 1.0, 2.0),
    anchor_grid: str = "centred",
    num_rois: int = 512,
    num_proposals: int = 2000,
    num_test_proposals: int = 1000,
    positive_iou: float = 0.5,
) -> FasterRCNN:
    """A Faster R-CNN with fresh weights, initialised as in Detectron2.

    activation: of the class loss; "softmax" has num_classes + 1 columns, column 0 background.
    head_norm: of the convolution of the region proposal network; the second stage has none. The
    anchors are those of the first stage. num_rois: boxes of an image that the second stage learns
    from, positive from positive_iou on, out of num_proposals and the objects; num_test_proposals:
    that it looks at otherwise, at most. The other options are those of `DetectorConfig`.

    >>> import torch
    >>> detector = make_faster_rcnn(3, backbone="small", norm="group", num_test_proposals=20)
    >>> first, second = detector.eval()(torch.rand(2, 3, 64, 96))
    >>> first.logits.shape, second.logits.shape, second.deltas.shape
    (torch.Size([2, 378, 1]), torch.Size([2, 20, 3]), torch.Size([2, 20, 3, 4]))
    """
    columns = num_columns(num_classes, activation)
    if head_norm not in (None, "group"):
        raise ValueError(f"head_norm: expected None or 'group', got {head_norm!r}")
    settings = RoISettings(num_rois, num_proposals, num_test_proposals, positive_iou)
    for name in ("num_rois", "num_proposals", "num_test_proposals"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name}: expected at least 1, got {getattr(settings, name)}")
    pyramid = make_backbone(
        backbone,
        stride_on=stride_on,
        norm=norm,
        norm_epsilon=norm_epsilon,
        pyramid_channels=pyramid_channels,
        first_level=2,
    )
    anchors = PyramidAnchors(
        pyramid.strides, anchor_scale, anchor_octaves, anchor_ratios, anchor_grid
    )
    head = RPNHead(pyramid.out_channels, anchors.num_per_place)
    if head_norm is not None:
        head.conv = _normed_convolution(pyramid.out_channels, head_norm)
    roi_heads = _make_roi_heads(
        pyramid, columns, has_background=columns > num_classes, is_small=backbone == "small"
    )
    return FasterRCNN(pyramid, RegionProposalNetwork(head, anchors), roi_heads, settings)


def _make_roi_heads(
    pyramid: BackboneWithFPN, columns: int, *, has_background: bool, is_small: bool
) -> RoIHeads:
    """RoIAlign, two wide layers and the outputs; for the small network narrower in every way."""
    resolution, width = (5, 128) if is_small else (7, 1024)
    # The last map of the large pyramid is for the first stage alone.
    strides = pyramid.strides if is_small else pyramid.strides[:-1]
    # An object of the canonical size belongs to P4: 224 pixels, as wide as ImageNet's pictures.
    pool = MultiScaleRoIAlign(
        [str(level) for level in range(len(strides))],
        resolution,
        sampling_ratio=2,
        canonical_scale=56 if is_small else 224,
    )
    # It would infer these from the first image that it sees, wrongly if that is a very small one.
    pool.scales = [1 / stride for stride in strides]
    pool.map_levels = LevelMapper(
        int(math.log2(strides[0])),
        int(math.log2(strides[-1])),
        canonical_scale=pool.canonical_scale,
        canonical_level=pool.canonical_level,
    )
    head = TwoMLPHead(pyramid.out_channels * resolution**2, width)
    predictor = FastRCNNPredictor(width, columns)
    _initialise(head, predictor, has_background=has_background)
    return RoIHeads(pool, head, predictor, has_background=has_background)


def _initialise(head: TwoMLPHead, predictor: FastRCNNPredictor, *, has_background: bool) -> None:
    """Set the weights of the second stage as Detectron2 does; torchvision has torch's defaults."""
    for layer in (head.fc6, head.fc7):
        nn.init.kaiming_uniform_(layer.weight, a=1)
    nn.init.normal_(predictor.cls_score.weight, std=0.01)
    nn.init.normal_(predictor.bbox_pred.weight, std=0.001)
    for layer in (head.fc6, head.fc7, predictor.cls_score, predictor.bbox_pred):
        nn.init.zeros_(layer.bias)
    if not has_background:  # as in RetinaNet: most RoIs are no object of most classes
        nn.init.constant_(predictor.cls_score.bias, PRIOR_LOGIT)


def _normed_convolution(num_channels: int, norm: str) -> nn.Sequential:
    """The convolution of torchvision's RPNHead, with a norm."""
    convolution = Conv2dNormActivation(
        num_channels, num_channels, kernel_size=3, norm_layer=make_norm(norm)
    )
    nn.init.normal_(convolution[0].weight, std=0.01)
    return nn.Sequential(convolution)
