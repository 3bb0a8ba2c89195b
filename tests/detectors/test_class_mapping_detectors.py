"""Whole SSDs and Faster R-CNNs, ours and torchvision's: their class outputs are mapped by name."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torchvision.models.detection import (
    FasterRCNN,
    fasterrcnn_resnet50_fpn,
    fcos_resnet50_fpn,
    maskrcnn_resnet50_fpn,
    ssd300_vgg16,
    ssdlite320_mobilenet_v3_large,
)
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

from rankdet.detectors.class_mapping import TORCHVISION_COCO_CLASSES, HeadMapping, load_detector
from rankdet.detectors.detector import Detector
from rankdet.detectors.faster_rcnn import make_faster_rcnn
from rankdet.detectors.retinanet import make_retinanet
from rankdet.detectors.ssd import make_ssd
from rankdet.detectors.weight_fit import detector_kind
from rankdet.errors import WeightsError

COCO = TORCHVISION_COCO_CLASSES
State = dict[str, Tensor]


def numbered(state: State, detector: Detector, num_columns: int) -> State:
    """Random values, and in all rows of a class output the number of their column."""
    generator = torch.Generator().manual_seed(4)
    tensors = {
        name: torch.randn(t.shape, generator=generator) if t.is_floating_point() else t.clone()
        for name, t in state.items()
    }
    for output in detector.class_outputs():
        numbers = torch.arange(float(num_columns)).view(1, -1, 1)
        rows = numbers.expand(output.num_anchors, -1, output.width).flatten()
        for part in ("weight", "bias"):
            shape = tensors[f"{output.name}.{part}"].shape
            tensors[f"{output.name}.{part}"] = rows.view(-1, *[1] * (len(shape) - 1)).expand(shape)
    return tensors


def columns(state: State, detector: Detector) -> list[list[set[float]]]:
    """For each tensor of a class output: the values of each column."""
    found = []
    for output in detector.class_outputs():
        for part in ("weight", "bias"):
            tensor = state[f"{output.name}.{part}"]
            by_column = tensor.reshape(output.num_anchors, -1, output.width, *tensor.shape[1:])
            found.append([set(column.flatten().tolist()) for column in by_column.unbind(1)])
    return found


def small(name: str, num_classes: int, activation: str) -> Detector:
    make = {"ssd": make_ssd, "faster_rcnn": make_faster_rcnn}[name]
    return make(num_classes, activation=activation, backbone="small", norm="group")  # type: ignore[operator, no-any-return]


def load(
    detector: Detector,
    tensors: State,
    source_classes: Sequence[str] | None,
    classes: Sequence[str],
    activation: str,
    source_activation: str,
) -> HeadMapping:
    return load_detector(
        detector,
        tensors,
        source_classes=source_classes,
        classes=classes,
        activation=activation,
        source_activation=source_activation,
        file="x.pth",
    )


# The columns


@pytest.mark.parametrize("name", ["ssd", "faster_rcnn"])
@pytest.mark.parametrize(
    ("activation", "source_activation", "expected"),
    [
        ("softmax", "softmax", [0, 3, None, 1]),
        ("sigmoid", "softmax", [3, None, 1]),
        ("softmax", "sigmoid", [None, 2, None, 0]),
        ("sigmoid", "sigmoid", [2, None, 0]),
    ],
)
def test_all_class_outputs_are_mapped_by_name(
    name: str, activation: str, source_activation: str, expected: list[int | None]
) -> None:
    source = small(name, 3, source_activation)
    num_columns = 3 + (source_activation == "softmax")
    tensors = numbered(source.state_dict(), source, num_columns)
    detector = small(name, 3, activation)
    fresh = columns(detector.state_dict(), detector)
    classes, source_classes = ["bus", "lamp", "cat"], ["cat", "dog", "bus"]
    mapping = load(detector, tensors, source_classes, classes, activation, source_activation)
    assert mapping.mapped == (("bus", "bus"), ("cat", "cat"))
    assert mapping.fresh == ("lamp",)
    for found, before in zip(columns(detector.state_dict(), detector), fresh, strict=True):
        for column, number in enumerate(expected):
            assert found[column] == (before[column] if number is None else {float(number)})
    outputs = tuple(output.name for output in detector.class_outputs())
    for other, tensor in detector.state_dict().items():
        if not other.startswith(outputs):
            assert torch.equal(tensor, tensors[other]), other


@pytest.mark.parametrize("name", ["ssd", "faster_rcnn"])
@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_equal_classes_and_activation_give_identical_weights(name: str, activation: str) -> None:
    source, detector = (small(name, 2, activation) for _ in range(2))
    tensors = {n: torch.randn_like(t) for n, t in source.state_dict().items()}
    load(detector, tensors, ["a", "b"], ["a", "b"], activation, activation)
    assert all(torch.equal(t, tensors[n]) for n, t in detector.state_dict().items())


# torchvision's published ones


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_torchvisions_ssd300_for_coco_gives_its_columns(activation: str) -> None:
    with torch.device("meta"):
        published = ssd300_vgg16(weights=None, weights_backbone=None, num_classes=91)
    source = make_ssd(90, activation="softmax", layout="ssd300")
    assert {n: t.shape for n, t in published.state_dict().items()} == {
        n: t.shape for n, t in source.state_dict().items()
    }
    tensors = numbered(source.state_dict(), source, 91)
    assert detector_kind(tensors).activation == "softmax"
    detector = make_ssd(2, activation=activation, layout="ssd300")
    mapping = load(detector, tensors, None, ["sofa", "person"], activation, "softmax")
    assert mapping.mapped == (("sofa", "couch"), ("person", "person"))
    expected = [{float(COCO.index("couch"))}, {1.0}]
    expected = [{0.0}, *expected] if activation == "softmax" else expected
    assert all(found == expected for found in columns(detector.state_dict(), detector))
    scale = detector.state_dict()["backbone.scale_weight"]
    assert torch.equal(scale, tensors["backbone.scale_weight"])


def torchvision_faster_rcnn() -> State:
    with torch.device("meta"):
        backbone = resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5)
        return dict(FasterRCNN(backbone, 91).state_dict())


def old_names(state: State) -> State:
    """As torchvision's published Faster R-CNN has them, from before 0.13."""
    renamed = {}
    for name, tensor in state.items():
        if name.startswith("backbone.fpn."):
            name = name.replace(".0.weight", ".weight").replace(".0.bias", ".bias")
        renamed[name.replace("rpn.head.conv.0.0.", "rpn.head.conv.")] = tensor
    return renamed


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
@pytest.mark.parametrize("is_old", [False, True])
def test_torchvisions_faster_rcnn_for_coco_gives_its_columns_and_boxes(
    activation: str, is_old: bool
) -> None:
    published = torchvision_faster_rcnn()
    detector = make_faster_rcnn(2, activation=activation, backbone="resnet18", norm="frozen")
    tensors = numbered(published, detector, 91)
    given = old_names(tensors) if is_old else tensors
    assert ("rpn.head.conv.weight" in given) is is_old
    assert ("backbone.fpn.inner_blocks.0.weight" in given) is is_old
    mapping = load(detector, given, None, ["sofa", "person"], activation, "softmax")
    assert mapping.mapped == (("sofa", "couch"), ("person", "person"))
    expected = [{float(COCO.index("couch"))}, {1.0}]
    expected = [{0.0}, *expected] if activation == "softmax" else expected
    state = detector.state_dict()
    assert all(found == expected for found in columns(state, detector))
    for name in ("backbone.fpn.inner_blocks.0.0.weight", "rpn.head.conv.0.0.bias"):
        assert torch.equal(state[name], tensors[name])


def test_a_retinanet_with_old_names_of_its_pyramid_fits() -> None:
    source = make_retinanet(2, backbone="small", norm="group").state_dict()
    detector = make_retinanet(2, backbone="small", norm="group")
    load(detector, old_names(source), ["a", "b"], ["a", "b"], "sigmoid", "sigmoid")
    assert all(torch.equal(t, source[n]) for n, t in detector.state_dict().items())


# What does not fit


def refusal(detector: Detector, tensors: State) -> str:
    with pytest.raises(WeightsError) as caught:
        load(detector, tensors, None, ["a", "b"], "sigmoid", "sigmoid")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("given", ["retinanet", "ssd", "faster_rcnn"])
@pytest.mark.parametrize("present", ["retinanet", "ssd", "faster_rcnn"])
def test_a_file_of_another_detector_is_told_by_its_name(given: str, present: str) -> None:
    titles = {"retinanet": "RetinaNet", "ssd": "SSD", "faster_rcnn": "Faster R-CNN"}

    def make(name: str) -> Detector:
        if name == "retinanet":
            return make_retinanet(2, backbone="small", norm="group")
        return small(name, 2, "sigmoid")

    tensors = make(given).state_dict()
    assert detector_kind(tensors)[:2] == (titles[given], given)
    if given != present:
        assert refusal(make(present), tensors) == (
            f"x.pth: is of {titles[given]}; the detector is {titles[present]}. "
            f"The file fits detector.name={given}."
        )


@pytest.mark.parametrize(
    ("make", "title"),
    [
        (fcos_resnet50_fpn, "FCOS"),
        (maskrcnn_resnet50_fpn, "Mask R-CNN"),
        (ssdlite320_mobilenet_v3_large, "SSDlite"),
    ],
)
def test_detectors_that_we_do_not_have_are_told_by_their_names(make: object, title: str) -> None:
    with torch.device("meta"):
        tensors = make(weights=None, weights_backbone=None).state_dict()  # type: ignore[operator]
    for detector in (small("ssd", 2, "sigmoid"), small("faster_rcnn", 2, "sigmoid")):
        own = detector_kind(detector.state_dict()).title
        assert refusal(detector, tensors) == f"x.pth: is of {title}; the detector is {own}."


def test_the_layout_and_the_backbone_of_an_ssd_are_seen() -> None:
    with torch.device("meta"):
        tensors = make_ssd(2, layout="ssd300").state_dict()
        detector = make_ssd(2, layout="ssd512")
    assert refusal(detector, tensors).endswith("The file fits detector.ssd_layout=ssd300.")
    with torch.device("meta"):
        detector = make_ssd(2, backbone="small", norm="group")
    assert "detector.ssd_layout=ssd300, detector.backbone=vgg16" in refusal(detector, tensors)


def test_settings_of_a_faster_rcnn_are_seen() -> None:
    with torch.device("meta"):
        tensors = dict(fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None).state_dict())
        other = make_faster_rcnn(2, backbone="small", norm="group", head_norm="group")
        more = make_faster_rcnn(2, anchor_octaves=2, anchor_ratios=(0.5, 1.0, 2.0))
    text = refusal(other, tensors)
    assert text.endswith(
        "The file fits detector.head_norm=null, detector.pyramid_channels=256, "
        "detector.backbone=resnet50, detector.norm=frozen."
    )
    assert refusal(more, tensors) == (
        "x.pth: it has 3 anchors at each place, the detector 6. "
        "The file fits detector.anchor_octaves=1."
    )


def test_outputs_of_different_numbers_of_classes_are_refused() -> None:
    detector = small("faster_rcnn", 2, "sigmoid")
    name = "roi_heads.box_predictor.bbox_pred.bias"
    tensors = {**detector.state_dict(), name: torch.zeros(12)}
    assert f"1 of another shape ({name} (12,) in place of (8,))" in refusal(detector, tensors)
