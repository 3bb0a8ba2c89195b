"""SSD, built from torchvision's parts; its state dict has the keys of torchvision's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection.ssd import SSDFeatureExtractorVGG, SSDHead
from torchvision.models.vgg import cfgs, make_layers

from rankdet.detectors.backbones import make_norm, make_small_body
from rankdet.detectors.default_boxes import BoxLayout, DefaultBoxes
from rankdet.detectors.detector import PRIOR_LOGIT, ClassOutput, OneStageDetector, num_columns
from rankdet.structures import IMAGENET_DEVIATION, IMAGENET_MEAN, Predictions, Target

# Mean and deviation of the pixels. "bytes": 0..255 less the mean, as SSD's authors and torchvision.
PIXELS = {
    "imagenet": (IMAGENET_MEAN, IMAGENET_DEVIATION),
    "bytes": ((0.48235, 0.45882, 0.40784), (1 / 255, 1 / 255, 1 / 255)),
}

# "ssd300" has torchvision's boxes. Those of "ssd512" are of SSD's authors for VOC at 512 pixels
# (ssd_pascal.py and the prior boxes of their models): min_sizes of 7 % and 15 % to 90 %, max_sizes
# up to 105 %, not clipped.
LAYOUTS = {
    "ssd300": BoxLayout(
        scales=(0.07, 0.15, 0.33, 0.51, 0.69, 0.87, 1.05),
        ratios=((2,), (2, 3), (2, 3), (2, 3), (2,), (2,)),
        strides=(8, 16, 32, 64),
        is_clipped=True,
    ),
    "ssd512": BoxLayout(
        scales=(0.07, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.05),
        ratios=((2,), (2, 3), (2, 3), (2, 3), (2, 3), (2,), (2,)),
        strides=(8, 16, 32, 64),
        is_clipped=False,
    ),
}
# For objects of 15 to 90 % of the image. The fine maps have most of the range: at 64 pixels the
# coarse ones are one or two places wide, and half of an object would lie beside their boxes.
_SMALL_LAYOUT = BoxLayout(
    scales=(0.15, 0.33, 0.6, 0.8, 0.9, 1.0),
    ratios=((2,), (2,), (2,), (2,), (2,)),
    strides=(8, 16, 32),
    is_clipped=True,
)


class SSD(OneStageDetector):
    """One stage of predictions from maps of several strides.

    head: torchvision's SSDHead. anchors: the default boxes of the maps.

    The boxes are shares of the image: SSD is made for images of one size, as high as wide. Others
    will do. Sides shorter than the backbone's `shortest_side`, below which its last maps vanish,
    are padded to it with the mean colour, at the bottom and at the right as in a batch: the boxes
    are then shares of the padded image.
    """

    stage_name = "ssd"
    backbone: VGGBackbone | SmallBackbone
    head: SSDHead
    anchors: DefaultBoxes

    def predict(
        self, images: Tensor, targets: Sequence[Target] | None, sizes: Tensor
    ) -> list[Predictions]:
        """The one stage; neither the targets nor the sizes are looked at."""
        missing = [max(0, self.backbone.shortest_side - side) for side in images.shape[2:]]
        if any(missing):
            images = F.pad(images, (0, missing[1], 0, missing[0]))  # 0 is the mean colour
        return super().predict(images, targets, sizes)

    @property
    def freezable_stages(self) -> list[list[nn.Module]]:
        return self.backbone.stages

    def class_outputs(self) -> list[ClassOutput]:
        return [
            ClassOutput(f"head.classification_head.module_list.{level}", num_anchors, 1)
            for level, num_anchors in enumerate(self.anchors.nums_per_place)
        ]


class VGGBackbone(SSDFeatureExtractorVGG):  # type: ignore[misc]  # torchvision has no annotations
    """VGG-16 with SSD's further layers: conv4_3, scaled by a learnt factor, conv7, conv8_2, ...

    Differs from torchvision: for 512 pixels its last maps would be 6, 4 and 1 places wide. Those of
    SSD's authors, and of the paper, are 4, 2 and 1.
    """

    shortest_side = 268  # conv9_2 is then 5 places wide, as the maps after it need

    def __init__(self, layout: str) -> None:
        features = make_layers(cfgs["D"], batch_norm=False)
        for name, parameter in features.named_parameters():  # as torchvision initialises its VGGs
            if name.endswith("weight"):
                nn.init.kaiming_normal_(parameter, mode="fan_out", nonlinearity="relu")
            else:
                nn.init.zeros_(parameter)
        super().__init__(features, highres=layout == "ssd512")
        self.out_channels = [512, 1024, 512, 256, 256, 256]
        if layout == "ssd512":
            self.out_channels.append(256)
            for block in self.extra[3:5]:  # conv10_2, conv11_2
                block[2].stride, block[2].padding = (2, 2), (1, 1)
            self.extra[5][2].padding = (1, 1)  # conv12_2, whose kernel is 4 wide

    @property
    def body(self) -> nn.Sequential:
        """The layers up to conv5_3, numbered as torchvision's `vgg16().features`."""
        return nn.Sequential(*self.features, *self.extra[0][:-1])

    @property
    def stages(self) -> list[list[nn.Module]]:
        """The five blocks of convolutions, conv1 to conv5."""
        blocks: list[list[nn.Module]] = [[]]
        for layer in self.body:
            blocks[-1].append(layer)
            if isinstance(layer, nn.MaxPool2d):
                blocks.append([])
        return blocks


class SmallBackbone(nn.Module):
    """The small body without a pyramid, and two layers more: maps at strides 8 to 128."""

    shortest_side = 1

    def __init__(self, norm: str) -> None:
        super().__init__()
        body = make_small_body(make_norm(norm))
        self.body = body.network
        self.levels = tuple(body.levels)
        self.out_channels = [*body.levels.values(), 128, 128]
        self.extra = nn.ModuleList(_halving_block(128, 64) for _ in range(2))

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """The maps of normalised images (B, 3, H, W), from fine to coarse."""
        maps = []
        for name, layer in self.body.named_children():
            images = layer(images)
            if name in self.levels:
                maps.append(images)
        for block in self.extra:
            maps.append(block(maps[-1]))
        return OrderedDict((str(index), level) for index, level in enumerate(maps))

    @property
    def stages(self) -> list[list[nn.Module]]:
        return [[layer] for layer in self.body.children()]


def _halving_block(num_channels: int, num_inner: int) -> nn.Sequential:
    """As SSD's further layers: fewer channels, then half the width. Without a norm, as they are."""
    block = nn.Sequential(
        nn.Conv2d(num_channels, num_inner, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(num_inner, num_channels, 3, stride=2, padding=1),
        nn.ReLU(inplace=True),
    )
    for name, parameter in block.named_parameters():
        if name.endswith("weight"):
            nn.init.xavier_uniform_(parameter)
        else:
            nn.init.zeros_(parameter)
    return block


def make_ssd(
    num_classes: int,
    *,
    activation: str = "sigmoid",
    backbone: str = "vgg16",
    layout: str = "ssd512",
    pixels: str = "imagenet",
    norm: str = "batch",
) -> SSD:
    """An SSD with fresh weights, initialised as in SSD's paper.

    activation: of the class loss; "softmax" has num_classes + 1 columns, column 0 background. With
    "sigmoid" the bias of the class outputs begins as RetinaNet's. backbone: "vgg16", or "small",
    which has boxes of its own, whatever the layout. norm: of "small"; VGG-16 has none. The other
    options are those of `DetectorConfig`.

    >>> import torch
    >>> detector = make_ssd(3, backbone="small", norm="group")
    >>> (predictions,) = detector(torch.rand(2, 3, 64, 96))
    >>> predictions.logits.shape, predictions.level_sizes
    (torch.Size([2, 516, 3]), (384, 96, 24, 8, 4))
    """
    columns = num_columns(num_classes, activation)
    for name, value, known in (
        ("backbone", backbone, ("vgg16", "small")),
        ("layout", layout, tuple(LAYOUTS)),
        ("pixels", pixels, tuple(PIXELS)),
    ):
        if value not in known:
            raise ValueError(f"{name}: expected one of {', '.join(known)}; got {value!r}")
    is_small = backbone == "small"
    network = SmallBackbone(norm) if is_small else VGGBackbone(layout)
    anchors = DefaultBoxes(_SMALL_LAYOUT if is_small else LAYOUTS[layout])
    head = SSDHead(network.out_channels, list(anchors.nums_per_place), columns)
    if activation == "sigmoid":
        for output in head.classification_head.module_list:
            nn.init.constant_(output.bias, PRIOR_LOGIT)
    return SSD(network, head, anchors, *PIXELS[pixels])
