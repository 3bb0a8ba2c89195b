"""RetinaNet: shapes, anchors, initialisation, freezing, equality with torchvision's, learning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import retinanet_resnet50_fpn
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import FrozenBatchNorm2d, box_iou

from rankdet.data.synthetic import SyntheticDataset
from rankdet.detectors.detector import freeze
from rankdet.detectors.retinanet import RetinaNet, make_retinanet
from rankdet.losses import BACKGROUND, APLoss
from rankdet.structures import IMAGENET_DEVIATION, IMAGENET_MEAN, Predictions, Target


def make_small(num_classes: int = 3, **options: Any) -> RetinaNet:
    torch.manual_seed(0)
    defaults = {"backbone": "small", "norm": "group", "head_norm": "group"}
    return make_retinanet(num_classes, **{**defaults, **options})


def predict(detector: RetinaNet, images: Tensor) -> Predictions:
    (predictions,) = detector(images)
    assert isinstance(predictions, Predictions)
    return predictions


# ---- shapes and anchors


@pytest.mark.parametrize("norm", [None, "group"])
def test_pyramid_and_heads_are_as_wide_as_was_asked_for(norm: str | None) -> None:
    detector = make_small(5, pyramid_channels=96, head_norm=norm)
    convolutions = [layer for layer in detector.head.modules() if isinstance(layer, nn.Conv2d)]
    assert {layer.in_channels for layer in convolutions} == {96}
    predictions = predict(detector, torch.rand(1, 3, 64, 96))
    assert predictions.logits.shape == (1, 6 * (8 * 12 + 4 * 6 + 2 * 3), 5)


def test_one_stage_comes_out_with_a_row_for_each_anchor() -> None:
    predictions = predict(make_small(5), torch.rand(2, 3, 64, 96))
    num_anchors = 6 * (8 * 12 + 4 * 6 + 2 * 3)
    assert predictions.name == "retinanet"
    assert predictions.logits.shape == (2, num_anchors, 5)
    assert predictions.deltas.shape == (2, num_anchors, 4)
    assert predictions.anchors.shape == (num_anchors, 4)
    assert predictions.level_sizes == (6 * 96, 6 * 24, 6 * 6)


def test_the_anchors_of_a_place_are_ratios_times_sizes_around_it() -> None:
    options = {"anchor_scale": 4.0, "anchor_octaves": 2, "anchor_ratios": (1.0, 4.0)}
    detector = make_small(anchor_grid="torchvision", **options)
    anchors = predict(detector, torch.rand(1, 3, 64, 96)).anchors
    # P3: sizes 32 and int(45.25) = 45; ratio is height over width; half sides are rounded to even.
    centred = [(-16, -16, 16, 16), (-22, -22, 22, 22), (-8, -32, 8, 32), (-11, -45, 11, 45)]
    assert anchors[:4].tolist() == [list(map(float, box)) for box in centred]
    # The next place is one stride to the right, the next row one stride down, then P4 begins.
    assert anchors[4].tolist() == [-16.0 + 8, -16.0, 16.0 + 8, 16.0]
    assert anchors[4 * 12].tolist() == [-16.0, -16.0 + 8, 16.0, 16.0 + 8]
    assert anchors[4 * 8 * 12].tolist() == [-32.0, -32.0, 32.0, 32.0]
    assert anchors[-4].tolist() == [-64.0 + 64, -64.0 + 32, 64.0 + 64, 64.0 + 32]
    # As the paper has them: half a stride further on, and nothing rounded.
    exact = predict(make_small(**options), torch.rand(1, 3, 64, 96)).anchors
    half = 16 * 2**0.5
    around = [(-16, -16, 16, 16), (-half, -half, half, half)]
    around += [(-8, -32, 8, 32), (-half / 2, -2 * half, half / 2, 2 * half)]
    torch.testing.assert_close(exact[:4], torch.tensor(around) + 4)
    torch.testing.assert_close(exact[4], torch.tensor([-4.0, -12.0, 28.0, 20.0]))
    torch.testing.assert_close(exact[4 * 8 * 12], torch.tensor([-24.0, -24.0, 40.0, 40.0]))


def test_the_rows_of_the_outputs_follow_the_anchors() -> None:
    """Each row must come from the channel and the place of its anchor."""
    detector = make_small(2)
    outputs = detector.head.classification_head.cls_logits, detector.head.regression_head.bbox_reg
    for layer, num_columns in zip(outputs, (2, 4), strict=True):
        nn.init.zeros_(layer.weight)
        layer.bias.data = torch.arange(6.0 * num_columns)
    predictions = predict(detector, torch.rand(1, 3, 32, 64))
    num_places = len(predictions.anchors) // 6
    for values, num_columns in ((predictions.logits, 2), (predictions.deltas, 4)):
        expected = torch.arange(6.0 * num_columns).view(6, num_columns).repeat(num_places, 1)
        assert torch.equal(values[0], expected)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (96, 160), (100, 70), (33, 257), (1, 1)])
def test_any_image_size_will_do(height: int, width: int) -> None:
    detector = make_small(1).eval()
    predictions = predict(detector, torch.rand(1, 3, height, width))
    sizes = [(-(-height // s), -(-width // s)) for s in (8, 16, 32)]
    assert predictions.level_sizes == tuple(6 * h * w for h, w in sizes)
    assert sum(predictions.level_sizes) == len(predictions.anchors) == predictions.logits.shape[1]


def test_images_with_the_same_maps_can_have_other_anchors() -> None:
    """torchvision spreads them over the image, and 66 pixels have the maps of 72."""
    detector = make_small(anchor_grid="torchvision")
    one, other = (predict(detector, torch.rand(1, 3, side, 64)) for side in (66, 72))
    assert one.level_sizes == other.level_sizes
    assert not torch.equal(one.anchors, other.anchors)


def test_kept_anchors_belong_to_the_device_of_the_images() -> None:
    detector = make_small()
    maps = list(detector.backbone(torch.rand(1, 3, 64, 64)).values())
    here = detector.anchors(maps, (64, 64))
    elsewhere = detector.anchors([level.to("meta") for level in maps], (64, 64))
    assert here.boxes.device.type == "cpu"
    assert elsewhere.boxes.device.type == "meta"
    assert detector.anchors(maps, (64, 64)) is here


def test_the_anchors_of_an_image_do_not_move_with_its_padding() -> None:
    detector = make_retinanet(1, backbone="resnet18", norm="frozen").eval()
    with torch.no_grad():
        small, large = (predict(detector, torch.rand(1, 3, s, s)) for s in (96, 160))
    rows = {tuple(row) for row in large.anchors.tolist()}
    assert all(tuple(row) in rows for row in small.anchors.tolist())


def test_the_targets_are_not_looked_at() -> None:
    detector, images = make_small(), torch.rand(1, 3, 32, 32)
    boxes, labels = torch.tensor([[1.0, 1, 9, 9]]), torch.zeros(1, dtype=torch.int64)
    target = Target(boxes, labels, labels > 0, torch.ones(1), image_id=0, size=(32, 32))
    (without,), (with_targets,) = detector(images), detector(images, targets=[target])
    assert torch.equal(without.logits, with_targets.logits)


# ---- input


def test_images_are_normalised_with_imagenets_mean_and_deviation() -> None:
    detector, images = make_small(), torch.rand(2, 3, 32, 32)
    seen = []
    detector.backbone.register_forward_hook(lambda *call: seen.append(call[1][0]))
    detector(images)
    for channel in range(3):
        expected = (images[:, channel] - IMAGENET_MEAN[channel]) / IMAGENET_DEVIATION[channel]
        torch.testing.assert_close(seen[0][:, channel], expected)


# ---- options of the settings


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_classes": 0}, "num_classes: expected at least 1, got 0"),
        ({"activation": "relu"}, "activation: expected 'sigmoid' or 'softmax', got 'relu'"),
        ({"head_norm": "batch"}, "head_norm: expected None or 'group', got 'batch'"),
        ({"backbone": "vgg"}, "backbone: expected one of"),
        ({"anchor_octaves": 0}, "anchor_octaves, anchor_ratios: expected at least one of each"),
        ({"anchor_ratios": ()}, "anchor_ratios: expected at least one of each"),
        ({"anchor_scale": 0.1}, "anchor_scale: expected anchors of at least a pixel"),
    ],
)
def test_an_unusable_option_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_small(**options)


def test_the_options_of_the_backbone_reach_it() -> None:
    body = make_retinanet(1, stride_on="1x1", norm="frozen", norm_epsilon=0.0).backbone.body
    block = body["layer2"][0]
    assert block.conv1.stride == (2, 2)
    assert block.bn1.eps == 0.0


def test_heads_have_a_norm_only_if_asked() -> None:
    def norms(head_norm: str | None) -> int:
        head = make_small(head_norm=head_norm).head
        return sum(isinstance(layer, nn.GroupNorm) for layer in head.modules())

    assert (norms(None), norms("group")) == (0, 4)


def test_heads_have_four_convolutions_and_those_of_the_small_one_two() -> None:
    def num_convolutions(backbone: str) -> list[int]:
        head = make_retinanet(1, backbone=backbone).head
        return [len(head.classification_head.conv), len(head.regression_head.conv)]

    assert (num_convolutions("resnet18"), num_convolutions("small")) == ([4, 4], [2, 2])


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_an_anchor_has_an_object_with_probability_one_percent_at_first(activation: str) -> None:
    detector = make_small(20, activation=activation)
    logits = predict(detector, torch.rand(1, 3, 64, 64)).logits
    if activation == "sigmoid":
        scores = logits.sigmoid()  # of each class
        assert torch.all(
            detector.head.classification_head.cls_logits.bias == -torch.tensor(99.0).log()
        )
    else:
        scores = 1 - logits.softmax(-1)[..., 0]  # of all classes together
    assert scores.mean().item() == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize("backbone", ["resnet18", "small"])
def test_pyramid_and_heads_are_initialised_as_in_the_papers_code_but_for_the_small_one(
    backbone: str,
) -> None:
    detector = make_retinanet(20, backbone=backbone)
    for part in (detector.backbone.fpn, detector.head):
        for name, layer in part.named_modules():
            if not isinstance(layer, nn.Conv2d):
                continue
            if backbone == "small" and not name.endswith(("cls_logits", "bbox_reg")):
                deviation = (layer.in_channels * layer.kernel_size[0] ** 2) ** -0.5
            else:
                deviation = 0.001 if name.endswith("bbox_reg") else 0.01
            assert layer.weight.std().item() == pytest.approx(deviation, rel=0.05)
            assert abs(layer.weight.mean().item()) < deviation / 10
            if not name.endswith("cls_logits"):
                assert not layer.bias.any()


def test_a_pyramid_may_begin_as_torchvision_s_and_the_heads_stay_as_they_are() -> None:
    detector = make_retinanet(20, backbone="resnet18", pyramid_start="torchvision")
    theirs = dict(retinanet_resnet50_fpn(weights=None, weights_backbone=None).named_modules())
    for name, layer in detector.backbone.fpn.named_modules():
        if not isinstance(layer, nn.Conv2d):
            continue
        deviation = (layer.in_channels * layer.kernel_size[0] ** 2) ** -0.5
        assert layer.weight.std().item() == pytest.approx(deviation, rel=0.05)
        other = theirs[f"backbone.fpn.{name}"]
        num_inputs = other.in_channels * other.kernel_size[0] ** 2  # their ResNet is wider
        assert other.weight.std().item() == pytest.approx(num_inputs**-0.5, rel=0.05)
    for layer in detector.head.modules():
        if isinstance(layer, nn.Conv2d) and layer is not detector.head.regression_head.bbox_reg:
            assert layer.weight.std().item() == pytest.approx(0.01, rel=0.05)


def test_heads_may_begin_with_maps_nearly_as_large_as_their_input() -> None:
    detector = make_retinanet(20, backbone="resnet18", head_start="kaiming")
    outputs = ("cls_logits", "bbox_reg")
    for name, layer in detector.head.named_modules():
        if isinstance(layer, nn.Conv2d) and not name.endswith(outputs):
            num_inputs = layer.in_channels * layer.kernel_size[0] ** 2
            assert layer.weight.std().item() == pytest.approx(num_inputs**-0.5, rel=0.05)
    usual = make_retinanet(20, backbone="resnet18")
    for part in ("backbone.fpn", "head.classification_head.cls_logits"):
        for layer, other in zip(
            detector.get_submodule(part).modules(), usual.get_submodule(part).modules(), strict=True
        ):
            if isinstance(layer, nn.Conv2d):
                assert isinstance(other, nn.Conv2d)
                assert layer.weight.std().item() == pytest.approx(other.weight.std().item(), 0.05)
    maps = torch.randn(2, 256, 16, 16)
    sizes = [
        one.head.classification_head.conv(maps).square().mean().sqrt().item()
        for one in (detector, usual)
    ]
    assert sizes[0] > 0.1  # of 1 before four layers
    assert sizes[1] < 0.02


@pytest.mark.parametrize("part", ["pyramid", "head"])
def test_an_unknown_start_of_pyramid_or_heads_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match=rf"{part}_start: expected 'paper' or .*, got 'mine'"):
        make_retinanet(20, backbone="small", **{f"{part}_start": "mine"})


# ---- freezing


def is_frozen(module: nn.Module) -> bool:
    flags = {parameter.requires_grad for parameter in module.parameters()}
    assert len(flags) == 1
    return not flags.pop()


@pytest.mark.parametrize(
    ("backbone", "num_stages", "frozen"),
    [
        ("resnet18", 0, ""),
        ("resnet18", 1, "conv1 bn1"),
        ("resnet18", 2, "conv1 bn1 layer1"),
        ("resnet18", 5, "conv1 bn1 layer1 layer2 layer3 layer4"),
        ("mobilenet_v2", 2, "0 1 2 3"),
        ("mobilenet_v2", 3, "0 1 2 3 4 5 6"),
        ("small", 2, "stem layer1"),
    ],
)
def test_freezing_stops_the_first_stages_and_nothing_else(
    backbone: str, num_stages: int, frozen: str
) -> None:
    detector = make_retinanet(1, backbone=backbone)
    freeze(detector, num_stages)
    with_parameters = {n: m for n, m in detector.backbone.body.items() if list(m.parameters())}
    assert [name for name, module in with_parameters.items() if is_frozen(module)] == frozen.split()
    assert not is_frozen(detector.backbone.fpn)
    assert not is_frozen(detector.head)


def test_a_frozen_batch_norm_has_no_parameters() -> None:
    detector = make_small(norm="frozen")
    norms = [layer for layer in detector.modules() if isinstance(layer, FrozenBatchNorm2d)]
    assert norms
    assert not any(list(layer.parameters()) for layer in norms)


# ---- torchvision's RetinaNet


@pytest.fixture(scope="module")
def torchvisions() -> Any:
    torch.manual_seed(1)
    model = retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=91).eval()
    for name, value in model.state_dict().items():  # statistics that change something
        if name.endswith("running_mean"):
            value.normal_(std=0.1)
        elif name.endswith("running_var"):
            value.uniform_(0.5, 1.5)
    return model


@pytest.fixture(scope="module", params=["frozen", "batch"])
def like_torchvisions(request: pytest.FixtureRequest) -> RetinaNet:
    return make_retinanet(
        91,
        norm=request.param,
        p6_from="p5",
        anchor_scale=4.0,
        anchor_octaves=3,
        anchor_ratios=(0.5, 1.0, 2.0),
        anchor_grid="torchvision",
    ).eval()


def test_the_state_dict_has_the_keys_and_shapes_of_torchvisions(
    torchvisions: Any, like_torchvisions: RetinaNet
) -> None:
    expected = {name: value.shape for name, value in torchvisions.state_dict().items()}
    if not any(isinstance(layer, nn.BatchNorm2d) for layer in like_torchvisions.modules()):
        expected = {n: shape for n, shape in expected.items() if "num_batches_tracked" not in n}
    ours = {name: value.shape for name, value in like_torchvisions.state_dict().items()}
    assert ours == expected


def test_the_same_weights_give_torchvisions_outputs(
    torchvisions: Any, like_torchvisions: RetinaNet
) -> None:
    like_torchvisions.load_state_dict(torchvisions.state_dict())
    images = torch.rand(1, 3, 128, 256)
    with torch.no_grad():
        normalised = torch.stack([torchvisions.transform.normalize(image) for image in images])
        maps = list(torchvisions.backbone(normalised).values())
        expected = torchvisions.head(maps)
        anchors = torchvisions.anchor_generator(ImageList(normalised, [(128, 256)]), maps)
        predictions = predict(like_torchvisions, images)
    torch.testing.assert_close(predictions.logits, expected["cls_logits"])
    torch.testing.assert_close(predictions.deltas, expected["bbox_regression"])
    assert torch.equal(predictions.anchors, anchors[0])


# ---- how it is run


def test_the_gradient_reaches_every_parameter_of_a_resnet_that_is_not_frozen() -> None:
    torch.manual_seed(0)
    detector = make_retinanet(2, backbone="resnet18", norm="frozen")
    freeze(detector, 2)
    predictions = predict(detector, torch.rand(2, 3, 64, 64))
    (predictions.logits.square().sum() + predictions.deltas.sum()).backward()
    for name, parameter in detector.named_parameters():
        is_reached = parameter.grad is not None and bool(parameter.grad.any())
        assert is_reached is parameter.requires_grad, name


# ---- learning


def test_the_small_detector_learns() -> None:
    data = SyntheticDataset("train", 4, size=96)
    images = torch.stack([data.image(index) for index in range(4)]) / 255
    detector = make_small(len(data.classes), anchor_scale=2.2, anchor_ratios=(0.6, 1.0, 1.67))
    labels = torch.stack(
        [
            label_anchors(predict(detector, images[:1]).anchors, data.target(index))
            for index in range(4)
        ]
    )
    assert (labels >= 0).sum() >= 8
    optimizer = torch.optim.AdamW(detector.parameters(), lr=0.003)
    values = []
    for _ in range(40):
        loss = APLoss()(predict(detector, images).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    assert values[0] > 0.9
    assert values[-1] < 0.2


def label_anchors(anchors: Tensor, target: Any) -> Tensor:
    """The class of each anchor that covers an object by half, background otherwise."""
    iou, index = box_iou(anchors, target.boxes).max(1)
    return torch.where(iou >= 0.5, target.labels[index], BACKGROUND)


def test_anchors_stand_a_stride_apart_or_as_torchvision_has_them() -> None:
    """At 224 pixels the last of five maps has 2 columns: 128 apart, or 224 // 2 = 112."""
    images = torch.rand(1, 3, 128, 224)
    for grid, expected in (("centred", 128), ("torchvision", 112)):
        detector = make_retinanet(1, backbone="resnet18", anchor_grid=grid)
        with torch.no_grad():
            (predictions,) = detector(images)
        first, second = predictions.anchors[-12], predictions.anchors[-6]  # six at each place
        torch.testing.assert_close(second - first, torch.tensor([expected, 0.0, expected, 0.0]))


def test_another_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="anchor_grid: expected 'centred' or 'torchvision', got"):
        make_retinanet(1, backbone="small", norm="group", anchor_grid="odd")
