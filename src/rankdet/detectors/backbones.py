"""Backbones with a feature pyramid, built from torchvision's parts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torchvision
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.ops import Conv2dNormActivation, FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import (
    ExtraFPNBlock,
    LastLevelMaxPool,
    LastLevelP6P7,
)

_BOTTLENECK_NETWORKS = ("resnet50", "resnet101", "resnext101_32x8d")
BACKBONES = ("resnet18", "resnet34", *_BOTTLENECK_NETWORKS, "mobilenet_v2", "small")
NORMS = ("frozen", "batch", "group")

MakeNorm = Callable[[int], Any]  # number of channels -> layer


class Body(NamedTuple):
    """A network for classification without its classifier.

    levels: the children that give C3, C4, C5, at strides 8, 16, 32, and how many channels each has.
    c2: the same of C2, at stride 4.
    stages: the children of each of the five stages, from the input, for freezing.
    """

    network: nn.Module
    levels: dict[str, int]
    c2: tuple[str, int]
    stages: tuple[tuple[str, ...], ...]


def make_backbone(
    name: str,
    *,
    stride_on: str = "3x3",
    norm: str = "batch",
    norm_epsilon: float = 1e-5,
    p6_from: str = "c5",
    pyramid_channels: int | None = None,
    first_level: int = 3,
) -> BackboneWithFPN:
    """A module from normalised images (B, 3, H, W) to an OrderedDict of pyramid maps.

    The maps are P3..P7 at strides 8..128 with 256 channels; "small", for CPUs, has P3..P5 with 64;
    or as many as pyramid_channels says.
    With first_level 2, for Faster R-CNN, they are P2..P6 at strides 4..64, and P6 is every second
    place of P5; "small" stays as it is.
    The module is torchvision's BackboneWithFPN, so that the keys of its state dict are `body...`
    and `fpn...`. Attributes: out_channels; strides, one for each map; stages, the names of the
    body's children in each of its five stages. See `DetectorConfig` for the options.

    >>> make_backbone("resnet18").strides
    (8, 16, 32, 64, 128)
    """
    _refuse_other("backbone", name, BACKBONES)
    _refuse_other("stride_on", stride_on, ("3x3", "1x1"))
    _refuse_other("p6_from", p6_from, ("c5", "p5"))
    if first_level not in (2, 3):
        raise ValueError(f"first_level: expected 2 or 3, got {first_level}")
    if stride_on == "1x1" and name not in _BOTTLENECK_NETWORKS:
        raise ValueError(
            f"stride_on '1x1': only {', '.join(_BOTTLENECK_NETWORKS)} have bottlenecks, got {name}"
        )
    body = _make_body(name, make_norm(norm, norm_epsilon))
    if stride_on == "1x1":
        _move_strides(body.network)
    is_small = name == "small"
    if pyramid_channels is None:
        pyramid_channels = 64 if is_small else 256
    if first_level == 2 and not is_small:
        return _add_pyramid_from_p2(body, pyramid_channels)
    return _add_pyramid(body, pyramid_channels, is_small=is_small, p6_from=p6_from)


def body_stages(backbone: BackboneWithFPN) -> list[list[nn.Module]]:
    """The modules of each of the five stages of the body, from the input."""
    return [[backbone.body[name] for name in stage] for stage in backbone.stages]


def make_norm(name: str, epsilon: float = 1e-5) -> MakeNorm:
    """What makes the normalisation layer for a number of channels.

    >>> make_norm("group")(256).num_groups
    32
    """
    _refuse_other("norm", name, NORMS)
    if name == "group":
        return partial(_group_norm, epsilon=epsilon)
    layer = _FrozenBatchNorm if name == "frozen" else nn.BatchNorm2d
    return partial(layer, eps=epsilon)


class _FrozenBatchNorm(FrozenBatchNorm2d):  # type: ignore[misc]  # torchvision has no annotations
    """torchvision's layer in one operation, and of the input's type.

    Its own formula turns bfloat16 maps into float32 under autocast, which costs time and memory.
    """

    def forward(self, maps: Tensor) -> Tensor:
        epsilon = max(self.eps, 1e-20)  # some versions of torch refuse 0, which older weights need
        return functional.batch_norm(
            maps, self.running_mean, self.running_var, self.weight, self.bias, eps=epsilon
        )


def _group_norm(num_channels: int, epsilon: float) -> nn.Module:
    # 32 groups as usual; narrow layers have fewer, because a group of one or two channels would
    # lose most of what it carries on the coarse maps, of a few pixels each.
    return nn.GroupNorm(min(32, num_channels // 8), num_channels, eps=epsilon)


def _refuse_other(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{what}: expected one of {', '.join(allowed)}; got {value!r}")


def _make_body(name: str, norm: MakeNorm) -> Body:
    if name == "small":
        return make_small_body(norm)
    network = torchvision.models.get_model(name, weights=None, norm_layer=norm)
    if name == "mobilenet_v2":
        return Body(
            network.features,
            {"6": 32, "13": 96, "18": 1280},
            ("3", 24),
            # Cut where the resolution halves, as in a ResNet.
            tuple(
                tuple(str(index) for index in range(start, end))
                for start, end in ((0, 2), (2, 4), (4, 7), (7, 14), (14, 19))
            ),
        )
    width = 64 if name in ("resnet18", "resnet34") else 256
    levels = {"layer2": 2 * width, "layer3": 4 * width, "layer4": 8 * width}
    stages = (("conv1", "bn1"), ("layer1",), *((level,) for level in levels))
    return Body(network, levels, ("layer1", width), stages)


def make_small_body(norm: MakeNorm) -> Body:
    """A ResNet with few channels: some hundred steps of training take minutes on a CPU.

    Its network is a Sequential with named children.
    """
    widths = {"layer1": 32, "layer2": 64, "layer3": 96, "layer4": 128}
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = Conv2dNormActivation(3, 24, stride=2, norm_layer=norm)
    num_channels = 24
    for name, width in widths.items():
        shortcut = nn.Sequential(nn.Conv2d(num_channels, width, 1, 2, bias=False), norm(width))
        layers[name] = BasicBlock(num_channels, width, 2, shortcut, norm_layer=norm)
        num_channels = width
    network = nn.Sequential(layers)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):  # as torchvision initialises its ResNets
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    levels = {name: widths[name] for name in ("layer2", "layer3", "layer4")}
    return Body(network, levels, ("layer1", widths["layer1"]), tuple((name,) for name in layers))


def _move_strides(network: ResNet) -> None:
    """Move the stride of each stage from its 3x3 to the 1x1 before it, as in the first ResNets."""
    for stage in (network.layer2, network.layer3, network.layer4):
        first = stage[0]
        first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride


def _add_pyramid(body: Body, out_channels: int, *, is_small: bool, p6_from: str) -> BackboneWithFPN:
    """P3..P7, or P3..P5 of the small network."""
    *_, last = body.levels.values()
    extra_blocks = LastLevelP6P7(last if p6_from == "c5" else out_channels, out_channels)
    backbone = _with_pyramid(body, body.levels, out_channels, extra_blocks)
    backbone.strides = (8, 16, 32, 64, 128)
    if is_small:  # its images are small as well: nothing in them is as large as P6's anchors
        backbone.fpn.extra_blocks = None
        backbone.strides = backbone.strides[:3]
    return backbone


def _add_pyramid_from_p2(body: Body, out_channels: int) -> BackboneWithFPN:
    """P2..P6, as in Faster R-CNN."""
    name, width = body.c2
    backbone = _with_pyramid(body, {name: width, **body.levels}, out_channels, LastLevelMaxPool())
    backbone.strides = (4, 8, 16, 32, 64)
    return backbone


def _with_pyramid(
    body: Body, levels: dict[str, int], out_channels: int, extra_blocks: ExtraFPNBlock
) -> BackboneWithFPN:
    backbone = BackboneWithFPN(
        body.network,
        {name: str(index) for index, name in enumerate(levels)},
        list(levels.values()),
        out_channels,
        extra_blocks=extra_blocks,
    )
    backbone.stages = body.stages
    return backbone
