"""SSD: maps and boxes, initialisation, freezing, equality with torchvision's, learning."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import vgg16
from torchvision.models.detection import ssd300_vgg16
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSDFeatureExtractorVGG
from torchvision.ops import box_iou

from rankdet.data.synthetic import SyntheticDataset
from rankdet.detectors.default_boxes import BoxLayout, DefaultBoxes
from rankdet.detectors.detector import ClassOutput, freeze
from rankdet.detectors.postprocess import Postprocess
from rankdet.detectors.ssd import SSD, make_ssd
from rankdet.losses import BACKGROUND, APLoss, OHEMLoss
from rankdet.structures import IMAGENET_DEVIATION, IMAGENET_MEAN, Predictions

OUTPUT = "head.classification_head.module_list"


def make_small(num_classes: int = 3, **options: Any) -> SSD:
    torch.manual_seed(0)
    return make_ssd(num_classes, **{"backbone": "small", "norm": "group", **options})


@functools.cache
def shapes_alone(layout: str) -> SSD:
    """An SSD with VGG-16 that computes shapes, not values."""
    with torch.device("meta"):
        return make_ssd(20, layout=layout)


LAYOUTS = ["ssd300", "ssd512"]


def predict(detector: SSD, images: Tensor) -> Predictions:
    (predictions,) = detector(images)
    assert isinstance(predictions, Predictions)
    return predictions


def boxes_of(detector: SSD, height: int, width: int) -> tuple[list[int], list[Tensor]]:
    """The widths of the maps, and the boxes of each."""
    images = torch.empty(1, 3, height, width, device="meta")
    maps = [torch.empty(1, 1, *level.shape[2:]) for level in detector.backbone(images).values()]
    found = detector.anchors(maps, (height, width))
    return [level.shape[3] for level in maps], list(found.boxes.split(found.level_sizes))


# ---- maps and boxes


def test_one_stage_comes_out_with_a_row_for_each_box() -> None:
    predictions = predict(make_small(5), torch.rand(2, 3, 64, 96))
    num_boxes = 4 * (8 * 12 + 4 * 6 + 2 * 3 + 1 * 2 + 1 * 1)
    assert predictions.name == "ssd"
    assert predictions.logits.shape == (2, num_boxes, 5)
    assert predictions.deltas.shape == (2, num_boxes, 4)
    assert predictions.anchors.shape == (num_boxes, 4)
    assert predictions.level_sizes == (384, 96, 24, 8, 4)


@pytest.mark.parametrize(
    ("layout", "side", "widths", "total"),
    [
        ("ssd300", 300, [38, 19, 10, 5, 3, 1], 8732),
        ("ssd300", 320, [40, 20, 10, 5, 3, 1], 9590),
        ("ssd512", 512, [64, 32, 16, 8, 4, 2, 1], 24564),
        ("ssd512", 320, [40, 20, 10, 5, 3, 2, 1], 9624),
    ],
)
def test_maps_and_boxes_are_those_of_the_paper(
    layout: str, side: int, widths: list[int], total: int
) -> None:
    detector = shapes_alone(layout)
    found, boxes = boxes_of(detector, side, side)
    assert found == widths
    nums = [len(level) // width**2 for level, width in zip(boxes, widths, strict=True)]
    assert nums == ([4, 6, 6, 6, 6, 4, 4] if layout == "ssd512" else [4, 6, 6, 6, 4, 4])
    assert sum(len(level) for level in boxes) == total
    predictions = predict(detector, torch.empty(2, 3, side, side, device="meta"))
    assert predictions.logits.shape == (2, total, 20)
    assert predictions.deltas.shape == (2, total, 4)
    assert predictions.level_sizes == tuple(len(level) for level in boxes)


def centres_and_sizes(boxes: Tensor) -> tuple[Tensor, Tensor]:
    return (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]


def test_the_boxes_of_ssd512_have_the_sizes_of_the_papers_code() -> None:
    """min_size s and sqrt(s * next s) as squares, then s with the ratios 2, 1/2, 3, 1/3."""
    detector = shapes_alone("ssd512")
    widths, levels = boxes_of(detector, 512, 512)
    min_sizes = [35.84, 76.8, 153.6, 230.4, 307.2, 384.0, 460.8]  # percent of 512: 7, 15, 30, ...
    max_sizes = [76.8, 153.6, 230.4, 307.2, 384.0, 460.8, 537.6]
    for width, level, small, large in zip(widths, levels, min_sizes, max_sizes, strict=True):
        num = len(level) // width**2
        expected = [(small, small), ((small * large) ** 0.5,) * 2]
        for ratio in (2, 3)[: (num - 2) // 2]:
            long, short = small * ratio**0.5, small / ratio**0.5
            expected += [(long, short), (short, long)]
        centres, sizes = centres_and_sizes(level)
        step = 512 / width
        torch.testing.assert_close(sizes[:num], torch.tensor(expected))
        torch.testing.assert_close(sizes[-num:], torch.tensor(expected))
        torch.testing.assert_close(centres[0], torch.tensor([step / 2, step / 2]))
        torch.testing.assert_close(centres[-1], torch.tensor([512 - step / 2, 512 - step / 2]))
        if width > 1:  # the next place is to the right
            torch.testing.assert_close(centres[num], torch.tensor([1.5 * step, step / 2]))


def test_no_box_of_ssd300_is_wider_than_the_image_and_the_last_maps_fill_it() -> None:
    detector = shapes_alone("ssd300")
    for side in (300, 320):
        _, levels = boxes_of(detector, side, side)
        assert centres_and_sizes(torch.cat(levels))[1].max() == side
        centres, _ = centres_and_sizes(levels[4])
        torch.testing.assert_close(centres[::4][:3, 0], torch.tensor([1.0, 3.0, 5.0]) * side / 6)
        centres, _ = centres_and_sizes(levels[5])
        torch.testing.assert_close(centres, torch.full((4, 2), side / 2))
        centres, _ = centres_and_sizes(levels[0])
        torch.testing.assert_close(centres[0], torch.tensor([4.0, 4.0]))


def test_boxes_are_shares_of_the_image_also_where_it_is_wider_than_high() -> None:
    boxes = DefaultBoxes(BoxLayout((0.2, 0.8), ((4,),), (), is_clipped=False))
    found = boxes([torch.empty(1, 1, 1, 2)], (100, 200)).boxes
    centres, sizes = centres_and_sizes(found)
    torch.testing.assert_close(centres[[0, 4]], torch.tensor([[50.0, 50.0], [150.0, 50.0]]))
    expected = [[40.0, 20.0], [80.0, 40.0], [80.0, 10.0], [20.0, 40.0]]
    torch.testing.assert_close(sizes[:4], torch.tensor(expected))


def test_the_rows_of_the_outputs_follow_the_boxes() -> None:
    """Each row must come from the channel and the place of its box."""
    detector = make_small(2)
    heads = detector.head.classification_head, detector.head.regression_head
    for head, num_columns in zip(heads, (2, 4), strict=True):
        for layer in head.module_list:
            nn.init.zeros_(layer.weight)
            layer.bias.data = torch.arange(4.0 * num_columns)
    predictions = predict(detector, torch.rand(1, 3, 64, 96))
    num_places = len(predictions.anchors) // 4
    for values, num_columns in ((predictions.logits, 2), (predictions.deltas, 4)):
        expected = torch.arange(4.0 * num_columns).view(4, num_columns).repeat(num_places, 1)
        assert torch.equal(values[0], expected)


def test_a_row_sees_the_image_where_its_box_is() -> None:
    detector = make_small(1, norm="frozen")
    images = torch.rand(1, 3, 160, 160, requires_grad=True)
    predictions = predict(detector, images)
    row = 4 * (20 * 12 + 5)  # of the first map
    (gradient,) = torch.autograd.grad(predictions.logits[0, row].sum(), images)
    weight = gradient[0].square().sum(0)
    weight = weight / weight.sum()
    positions = torch.arange(160.0) + 0.5
    centre = torch.stack([weight.sum(0) @ positions, weight.sum(1) @ positions])
    expected, _ = centres_and_sizes(predictions.anchors[row : row + 1])
    torch.testing.assert_close(centre, expected[0], atol=8.0, rtol=0)


@pytest.mark.parametrize(("side", "share"), [(64, 0.8), (96, 0.95), (128, 0.99), (160, 0.99)])
def test_the_small_one_has_boxes_for_objects_of_15_to_90_percent(side: int, share: float) -> None:
    boxes = predict(make_small(1), torch.rand(1, 3, side, side)).anchors / side
    generator = torch.Generator().manual_seed(0)
    size = 0.15 + 0.75 * torch.rand(500, 1, generator=generator)
    ratio = 2 ** (torch.rand(500, 1, generator=generator) - 0.5)
    sizes = (size * torch.cat([ratio, 1 / ratio], 1).sqrt()).clamp(max=0.95)
    corners = torch.rand(500, 2, generator=generator) * (1 - sizes)
    best = box_iou(torch.cat([corners, corners + sizes], 1), boxes).max(1).values
    assert (best >= 0.5).float().mean() > share


@pytest.mark.parametrize(("height", "width"), [(64, 64), (96, 160), (100, 70), (33, 257), (1, 1)])
def test_any_image_size_will_do_for_the_small_one(height: int, width: int) -> None:
    predictions = predict(make_small(1).eval(), torch.rand(1, 3, height, width))
    sizes = [(-(-height // s), -(-width // s)) for s in (8, 16, 32, 64, 128)]
    assert predictions.level_sizes == tuple(4 * h * w for h, w in sizes)
    assert sum(predictions.level_sizes) == len(predictions.anchors) == predictions.logits.shape[1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_vgg_takes_all_sides_and_pads_those_below_268(layout: str) -> None:
    detector = shapes_alone(layout)
    for height, width in ((268, 268), (268, 400), (333, 270), (267, 300), (512, 64), (1, 1)):
        predictions = predict(detector, torch.empty(1, 3, height, width, device="meta"))
        assert sum(predictions.level_sizes) == predictions.logits.shape[1]
        _, expected = boxes_of(detector, max(height, 268), max(width, 268))
        assert predictions.level_sizes == tuple(len(level) for level in expected)


@pytest.mark.parametrize(("height", "width"), [(20, 90), (90, 20), (20, 30)])
def test_short_sides_are_as_if_padded_with_the_mean_colour(height: int, width: int) -> None:
    detector = make_small().eval()
    images = torch.rand(2, 3, height, width)
    padded = detector.mean.repeat(2, 1, max(height, 64), max(width, 64))
    padded[:, :, :height, :width] = images
    expected = predict(detector, padded)
    detector.backbone.shortest_side = 64
    found = predict(detector, images)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.deltas, expected.deltas)
    assert torch.equal(found.anchors, expected.anchors)


@torch.no_grad()
def test_vgg_finds_objects_inside_of_a_narrow_image_alone() -> None:
    torch.manual_seed(0)
    detector = make_ssd(1, layout="ssd300").eval()
    stages = detector(torch.rand(1, 3, 40, 280))
    postprocess = Postprocess(
        activation="sigmoid", box_weights=(10.0, 10.0, 5.0, 5.0), score_threshold=0.0
    )
    (found,) = postprocess(stages, [(40, 280)])
    assert len(found) > 10
    assert (found.boxes >= 0).all()
    assert (found.boxes <= torch.tensor([280, 40, 280, 40])).all()


# ---- what goes in


def test_pixels_are_normalised_as_asked() -> None:
    images = torch.rand(1, 3, 64, 64)
    for pixels, mean, deviation in (
        ("imagenet", IMAGENET_MEAN, IMAGENET_DEVIATION),
        ("bytes", (0.48235, 0.45882, 0.40784), (1 / 255,) * 3),
    ):
        seen = []
        detector = make_small(pixels=pixels)
        detector.backbone.register_forward_hook(lambda *call, seen=seen: seen.append(call[1][0]))
        predict(detector, images)
        expected = (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(deviation).view(
            3, 1, 1
        )
        torch.testing.assert_close(seen[0], expected)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_classes": 0}, "num_classes: expected at least 1, got 0"),
        ({"activation": "tanh"}, "activation: expected 'sigmoid' or 'softmax', got 'tanh'"),
        ({"backbone": "resnet50"}, "backbone: expected one of vgg16, small; got 'resnet50'"),
        ({"layout": "ssd320"}, "layout: expected one of ssd300, ssd512; got 'ssd320'"),
        ({"pixels": "raw"}, "pixels: expected one of imagenet, bytes; got 'raw'"),
        ({"norm": "layer"}, "norm: expected one of"),
    ],
)
def test_an_unusable_option_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_small(**options)


# ---- initialisation and freezing


@pytest.mark.parametrize("backbone", ["small", "vgg16"])
def test_new_layers_begin_as_in_ssd_and_sigmoids_with_a_prior_of_one_percent(
    backbone: str,
) -> None:
    detector = make_ssd(20, backbone=backbone, layout="ssd300")
    is_small = backbone == "small"
    for part in (detector.head, detector.backbone.extra[0 if is_small else 1 :]):
        for name, layer in part.named_modules():
            if not isinstance(layer, nn.Conv2d):
                continue
            area = layer.kernel_size[0] * layer.kernel_size[1]
            deviation = (2 / (area * (layer.in_channels + layer.out_channels))) ** 0.5
            assert layer.weight.std().item() == pytest.approx(deviation, rel=0.05)
            if name.startswith("classification_head"):
                assert torch.all(layer.bias == -torch.tensor(99.0).log())
            else:
                assert not layer.bias.any()
    if backbone == "vgg16":
        assert torch.all(detector.backbone.scale_weight == 20)
    softmax = make_ssd(20, backbone=backbone, layout="ssd300", activation="softmax")
    assert not any(layer.bias.any() for layer in softmax.head.classification_head.module_list)


def frozen_names(detector: SSD) -> set[str]:
    return {name for name, p in detector.backbone.named_parameters() if not p.requires_grad}


@pytest.mark.parametrize(
    ("num_stages", "last"), [(0, None), (1, 2), (2, 7), (3, 14), (4, 21), (5, 28)]
)
def test_freezing_stops_the_first_blocks_of_vgg(num_stages: int, last: int | None) -> None:
    detector = copy.deepcopy(shapes_alone("ssd300"))
    freeze(detector, num_stages)
    convolutions = [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28]
    expected = [index for index in convolutions if last is not None and index <= last]
    body = dict(detector.body.named_parameters())
    assert [int(n.split(".")[0]) for n, p in body.items() if not p.requires_grad][::2] == expected
    assert len(frozen_names(detector)) == 2 * len(expected)
    assert all(p.requires_grad for p in detector.head.parameters())


def test_the_body_of_vgg_has_torchvisions_names_and_the_detectors_own_tensors() -> None:
    detector = shapes_alone("ssd300")
    with torch.device("meta"):
        features = vgg16(weights=None).features
    body = detector.body.state_dict()
    expected = {name: value.shape for name, value in features.state_dict().items()}
    assert {name: value.shape for name, value in body.items()} == expected
    own = {id(parameter) for parameter in detector.parameters()}
    assert all(id(parameter) in own for parameter in detector.body.parameters())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_class_output_is_named_with_its_boxes(layout: str) -> None:
    detector = shapes_alone(layout)
    outputs = detector.class_outputs()
    nums = [4, 6, 6, 6, 6, 4, 4] if layout == "ssd512" else [4, 6, 6, 6, 4, 4]
    assert outputs == [ClassOutput(f"{OUTPUT}.{i}", num, 1) for i, num in enumerate(nums)]
    state = detector.state_dict()
    for output in outputs:
        assert len(state[f"{output.name}.bias"]) == output.num_anchors * 20


# ---- torchvision's SSD300


@pytest.fixture(scope="module")
def torchvisions() -> Any:
    torch.manual_seed(1)
    model = ssd300_vgg16(
        weights=None,
        weights_backbone=None,
        num_classes=5,
        topk_candidates=9000,
        score_thresh=0.21,
        detections_per_img=1000,
    )
    # Pixels of 0..255 make large features at random weights; no box shall leave the image.
    for name, value in model.state_dict().items():
        if name.startswith("head.") and name.endswith("weight"):
            value.mul_(0.3 if "module_list.0" in name else 0.003)
    return model.eval()


@pytest.fixture(scope="module")
def like_torchvisions(torchvisions: Any) -> SSD:
    detector = make_ssd(4, activation="softmax", layout="ssd300", pixels="bytes")
    detector.load_state_dict(torchvisions.state_dict(), strict=True)
    return detector.eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    patches = torch.rand(1, 3, 10, 10, generator=torch.Generator().manual_seed(3))
    return patches.repeat_interleave(30, 2).repeat_interleave(30, 3)


@pytest.fixture(scope="module")
@torch.no_grad()
def predictions(like_torchvisions: SSD, images: Tensor) -> Predictions:
    return predict(like_torchvisions, images)


@torch.no_grad()
def test_the_same_weights_give_torchvisions_outputs(
    torchvisions: Any, images: Tensor, predictions: Predictions
) -> None:
    normalised = torch.stack([torchvisions.transform.normalize(image) for image in images])
    maps = list(torchvisions.backbone(normalised).values())
    expected = torchvisions.head(maps)
    boxes = torchvisions.anchor_generator(ImageList(normalised, [(300, 300)]), maps)
    assert expected["cls_logits"].std() > 0.1
    torch.testing.assert_close(predictions.logits, expected["cls_logits"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        predictions.deltas, expected["bbox_regression"], atol=1e-4, rtol=1e-4
    )
    assert torch.equal(predictions.anchors, boxes[0])


@torch.no_grad()
def test_the_same_weights_and_thresholds_give_torchvisions_detections(
    torchvisions: Any, images: Tensor, predictions: Predictions
) -> None:
    postprocess = Postprocess(
        activation="softmax",
        box_weights=(10.0, 10.0, 5.0, 5.0),
        score_threshold=0.21,
        nms_iou=0.45,
        num_candidates=100_000,
        max_detections=1000,
        last_level_threshold=None,
    )
    (ours,) = postprocess([predictions], [(300, 300)])
    (theirs,) = torchvisions(list(images))
    assert len(ours) > 50
    assert len(set(ours.labels.tolist())) > 1
    torch.testing.assert_close(ours.scores, theirs["scores"], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(ours.boxes, theirs["boxes"], atol=0.01, rtol=1e-3)
    assert torch.equal(ours.labels + 1, theirs["labels"])


def test_the_layers_of_ssd512_have_the_names_of_torchvisions() -> None:
    """torchvision has the layers for 512 pixels too, but publishes no such detector."""
    with torch.device("meta"):
        theirs = SSDFeatureExtractorVGG(vgg16(weights=None).features, highres=True)
        ours = shapes_alone("ssd512").backbone
    expected = {name: value.shape for name, value in theirs.state_dict().items()}
    assert {name: value.shape for name, value in ours.state_dict().items()} == expected


# ---- how it is run


def test_the_gradient_reaches_every_parameter_of_vgg() -> None:
    torch.manual_seed(0)
    detector = make_ssd(1, layout="ssd512")
    found = predict(detector, torch.rand(1, 3, 268, 268))
    (found.logits.square().sum() + found.deltas.sum()).backward()
    for name, parameter in detector.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


# ---- learning


@pytest.mark.parametrize("loss", [APLoss(), OHEMLoss()])
def test_the_small_detector_learns(loss: APLoss | OHEMLoss) -> None:
    data = SyntheticDataset("train", 4, size=96)
    images = torch.stack([data.image(index) for index in range(4)]) / 255
    detector = make_small(len(data.classes), activation=loss.activation)
    boxes = predict(detector, images[:1]).anchors
    labels = torch.stack([label_boxes(boxes, data.target(index)) for index in range(4)])
    assert (labels >= 0).sum() >= 8
    optimizer = torch.optim.AdamW(detector.parameters(), lr=0.003)
    values = []
    for _ in range(40):
        value = loss(predict(detector, images).logits, labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[0] > 0.7
    assert values[-1] < 0.3 * values[0]


def label_boxes(boxes: Tensor, target: Any) -> Tensor:
    """The class of each box that covers an object by half, background otherwise."""
    iou, index = box_iou(boxes, target.boxes).max(1)
    return torch.where(iou >= 0.5, target.labels[index], BACKGROUND)
