"""Backbones: shapes, strides, norms, conventions; and the small one more closely."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import resnet50
from torchvision.ops import FrozenBatchNorm2d

from rankdet.detectors.backbones import BACKBONES, make_backbone, make_norm


@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "small"])
def test_a_backbone_gives_p3_to_p7_with_256_channels(name: str) -> None:
    backbone = make_backbone(name, norm="frozen")
    with torch.no_grad():
        maps = backbone(torch.rand(1, 3, 64, 128))
    assert backbone.strides == (8, 16, 32, 64, 128)
    assert backbone.out_channels == 256
    assert list(maps) == ["0", "1", "2", "p6", "p7"]
    assert [tuple(level.shape) for level in maps.values()] == [
        (1, 256, 64 // stride or 1, 128 // stride) for stride in backbone.strides
    ]


def test_the_small_backbone_gives_p3_to_p5_with_64_channels() -> None:
    backbone = make_backbone("small", norm="group")
    maps = backbone(torch.rand(2, 3, 64, 96))
    assert backbone.strides == (8, 16, 32)
    assert backbone.out_channels == 64
    shapes = [tuple(level.shape) for level in maps.values()]
    assert shapes == [(2, 64, 8, 12), (2, 64, 4, 6), (2, 64, 2, 3)]


@pytest.mark.parametrize(
    ("name", "first_level"), [("small", 3), ("mobilenet_v2", 3), ("mobilenet_v2", 2)]
)
def test_all_maps_of_a_pyramid_are_as_wide_as_was_asked_for(name: str, first_level: int) -> None:
    backbone = make_backbone(name, norm="frozen", pyramid_channels=96, first_level=first_level)
    with torch.no_grad():
        maps = backbone(torch.rand(1, 3, 64, 64))
    assert backbone.out_channels == 96
    assert {level.shape[1] for level in maps.values()} == {96}


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenet_v2"])
def test_from_its_second_level_on_a_backbone_gives_p2_to_p6(name: str) -> None:
    backbone = make_backbone(name, norm="frozen", first_level=2)
    with torch.no_grad():
        maps = backbone(torch.rand(1, 3, 64, 128))
    assert backbone.strides == (4, 8, 16, 32, 64)
    assert list(maps) == ["0", "1", "2", "3", "pool"]
    assert [tuple(level.shape) for level in maps.values()] == [
        (1, 256, 64 // stride, 128 // stride) for stride in backbone.strides
    ]
    assert torch.equal(maps["pool"], maps["3"][:, :, ::2, ::2])
    assert len(backbone.stages) == 5


def test_the_small_backbone_has_no_second_level() -> None:
    assert make_backbone("small", first_level=2).strides == (8, 16, 32)
    with pytest.raises(ValueError, match="first_level: expected 2 or 3, got 4"):
        make_backbone("small", first_level=4)


def test_the_small_backbone_is_small() -> None:
    assert sum(p.numel() for p in make_backbone("small").parameters()) < 1_500_000


@pytest.mark.parametrize("name", ["small", "resnet18", "mobilenet_v2"])
def test_a_map_sees_the_image_where_its_stride_says(name: str) -> None:
    """The pixel (y, x) of a map must stand at about (y, x) times its stride in the image."""
    torch.manual_seed(0)
    backbone = make_backbone(name, norm="frozen").double().requires_grad_(False)
    images = torch.rand(1, 3, 256, 256, dtype=torch.float64).requires_grad_()
    level = backbone(images)["0"]
    (gradient,) = torch.autograd.grad(level[0, :, 20, 12].square().sum(), images)
    weight = gradient[0].square().sum(0)
    weight = weight / weight.sum()
    positions = torch.arange(256.0, dtype=torch.float64)
    centre = (weight.sum(1) @ positions).item(), (weight.sum(0) @ positions).item()
    # The pyramid adds coarser maps, whose pixels stand up to half of their stride aside.
    assert centre == pytest.approx((160, 96), abs=12)


@pytest.mark.parametrize(
    ("norm", "kind"),
    [("frozen", FrozenBatchNorm2d), ("batch", nn.BatchNorm2d), ("group", nn.GroupNorm)],
)
@pytest.mark.parametrize("name", ["small", "resnet18", "mobilenet_v2"])
def test_all_norms_of_the_body_are_of_the_kind_asked_for(name: str, norm: str, kind: Any) -> None:
    backbone = make_backbone(name, norm=norm, norm_epsilon=3e-4)
    kinds = (FrozenBatchNorm2d, nn.BatchNorm2d, nn.GroupNorm)
    norms = [layer for layer in backbone.body.modules() if isinstance(layer, kinds)]
    assert len(norms) >= 9
    assert all(isinstance(layer, kind) and layer.eps == 3e-4 for layer in norms)
    assert not any(isinstance(layer, kinds) for layer in backbone.fpn.modules())


@pytest.mark.parametrize("epsilon", [1e-5, 0.0, 0.1])
def test_a_frozen_batch_norm_is_torchvisions(epsilon: float) -> None:
    ours, theirs = make_norm("frozen", epsilon)(16), FrozenBatchNorm2d(16, eps=epsilon)
    for value in theirs.state_dict().values():
        value.uniform_(0.5, 2.0)
    tensors = {**theirs.state_dict(), "num_batches_tracked": torch.tensor(7)}
    ours.load_state_dict(tensors)  # of a network with trainable batch norms as well
    maps = torch.randn(2, 16, 4, 4)
    torch.testing.assert_close(ours.train()(maps), theirs(maps))
    assert all(torch.equal(v, theirs.state_dict()[n]) for n, v in ours.state_dict().items())
    assert ours(maps.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("num_channels", "num_groups"), [(16, 2), (24, 3), (64, 8), (256, 32), (576, 32), (2048, 32)]
)
def test_a_group_norm_has_32_groups_of_at_least_8_channels(
    num_channels: int, num_groups: int
) -> None:
    layer = make_norm("group")(num_channels)
    assert (layer.num_groups, layer.num_channels) == (num_groups, num_channels)


def strides_of(backbone: Any) -> dict[str, tuple[int, int]]:
    """The stride of conv1 and conv2 in each bottleneck that has one."""
    return {
        name: (block.conv1.stride[0], block.conv2.stride[0])
        for name, block in backbone.body.named_modules()
        if hasattr(block, "conv3") and block.conv1.stride[0] * block.conv2.stride[0] != 1
    }


def test_the_stride_is_on_the_3x3_unless_the_1x1_is_asked_for() -> None:
    stages = ("layer2.0", "layer3.0", "layer4.0")
    assert strides_of(make_backbone("resnet50")) == dict.fromkeys(stages, (1, 2))
    moved = make_backbone("resnet50", stride_on="1x1")
    assert strides_of(moved) == dict.fromkeys(stages, (2, 1))
    with torch.no_grad():
        maps = moved.eval()(torch.rand(1, 3, 64, 64))
    assert [level.shape[-1] for level in maps.values()] == [8, 4, 2, 1, 1]


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "mobilenet_v2", "small"])
def test_a_network_without_bottlenecks_has_no_stride_on_a_1x1(name: str) -> None:
    with pytest.raises(ValueError, match=rf"resnet50, resnet101, resnext101_32x8d .* {name}"):
        make_backbone(name, stride_on="1x1")


@pytest.mark.parametrize(("p6_from", "num_channels"), [("c5", 512), ("p5", 256)])
def test_p6_is_made_from_c5_or_p5(p6_from: str, num_channels: int) -> None:
    backbone = make_backbone("resnet18", norm="frozen", p6_from=p6_from)
    inputs: dict[str, Any] = {}
    backbone.body.layer4.register_forward_hook(lambda *call: inputs.update(c5=call[2]))
    backbone.fpn.layer_blocks[2].register_forward_hook(lambda *call: inputs.update(p5=call[2]))
    backbone.fpn.extra_blocks.p6.register_forward_hook(lambda *call: inputs.update(p6=call[1][0]))
    with torch.no_grad():
        backbone(torch.rand(1, 3, 64, 64))
    assert backbone.fpn.extra_blocks.p6.in_channels == num_channels
    assert torch.equal(inputs["p6"], inputs[p6_from])


def test_the_body_is_torchvisions_network() -> None:
    network = resnet50(weights=None).eval()
    backbone = make_backbone("resnet50", norm="batch").eval()
    tensors = {name: value for name, value in network.state_dict().items() if "fc." not in name}
    backbone.body.load_state_dict(tensors)
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        c5 = backbone.body(images)["2"]
        assert torch.equal(network.fc(c5.mean((2, 3))), network(images))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "small"])
def test_the_stages_hold_every_parameter_of_the_body_once(name: str) -> None:
    backbone = make_backbone(name)
    names = [name for stage in backbone.stages for name in stage]
    assert len(backbone.stages) == 5
    assert len(names) == len(set(names))
    counted = sum(p.numel() for name in names for p in backbone.body[name].parameters())
    assert counted == sum(p.numel() for p in backbone.body.parameters())


def test_a_stage_ends_where_the_resolution_halves() -> None:
    for name in ("mobilenet_v2", "small"):
        backbone = make_backbone(name, norm="frozen")
        images = torch.rand(1, 3, 64, 64)
        sizes = []
        with torch.no_grad():
            for stage in backbone.stages:
                for child in stage:
                    images = backbone.body[child](images)
                sizes.append(images.shape[-1])
        assert sizes == [32, 16, 8, 4, 2]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": "vgg16"}, "backbone: expected one of resnet18, .*; got 'vgg16'"),
        ({"stride_on": "5x5"}, "stride_on: expected one of 3x3, 1x1; got '5x5'"),
        ({"norm": "none"}, "norm: expected one of frozen, batch, group; got 'none'"),
        ({"p6_from": "p4"}, "p6_from: expected one of c5, p5; got 'p4'"),
    ],
)
def test_an_unknown_option_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_backbone(**{"name": "resnet18", **options})  # type: ignore[arg-type]
