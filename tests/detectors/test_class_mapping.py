"""Whole detectors: torchvision's give the same outputs here; classes are mapped by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torchvision.models.detection import RetinaNet as TorchvisionRetinaNet
from torchvision.models.detection import retinanet_resnet50_fpn
from torchvision.models.detection._utils import overwrite_eps
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from rankdet.detectors.class_mapping import TORCHVISION_COCO_CLASSES, HeadMapping, load_detector
from rankdet.detectors.class_names import match_classes
from rankdet.detectors.postprocess import Postprocess
from rankdet.detectors.retinanet import RetinaNet, make_retinanet
from rankdet.detectors.weight_files import read_tensors
from rankdet.errors import WeightsError

VOC_TEXT = (
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike "
    "person pottedplant sheep sofa train tvmonitor"
)
VOC_CLASSES = VOC_TEXT.split()

TORCHVISION_OPTIONS = {"p6_from": "p5", "anchor_octaves": 3, "anchor_grid": "torchvision"}
OUTPUT = "head.classification_head.cls_logits."


def spread(model: nn.Module) -> None:
    """Give the norms something to do, and the outputs values that differ."""
    generator = torch.Generator().manual_seed(2)

    def noise(tensor: Tensor, deviation: float) -> Tensor:
        return torch.randn(tensor.shape, generator=generator) * deviation

    for name, tensor in model.state_dict().items():
        if name.endswith(("running_mean", "bn1.bias", "bn2.bias")):
            tensor.copy_(noise(tensor, 0.1))
        elif name.endswith("running_var"):
            tensor.copy_(1 + noise(tensor, 0.1).abs())
        elif "_head.conv" in name and tensor.ndim == 4:
            tensor.copy_(noise(tensor, (2 / (9 * 256)) ** 0.5))
        elif name.endswith("cls_logits.weight"):
            tensor.copy_(noise(tensor, 0.0015))
        elif name.endswith("bbox_reg.weight"):
            # No box leaves the image: torchvision would keep what is left of it, without area.
            tensor.copy_(noise(tensor, 0.0001))


@pytest.fixture(scope="module")
def images() -> Tensor:
    # A size that torchvision's transform leaves alone. The width is no multiple of the last stride.
    return torch.rand(2, 3, 128, 224, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def torchvision_model() -> TorchvisionRetinaNet:
    torch.manual_seed(0)
    model = retinanet_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=91, min_size=128, max_size=256
    )
    spread(model)
    return model.eval()


@pytest.fixture(scope="module")
def coco_file(torchvision_model: TorchvisionRetinaNet, tmp_path_factory: object) -> Path:
    path: Path = tmp_path_factory.mktemp("weights") / "coco.pth"  # type: ignore[attr-defined]
    torch.save(torchvision_model.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def coco_detector(coco_file: Path) -> RetinaNet:
    detector = make_retinanet(91, norm="batch", **TORCHVISION_OPTIONS)  # type: ignore[arg-type]
    mapping = load_detector(
        detector,
        read_tensors(coco_file),
        source_classes=TORCHVISION_COCO_CLASSES,
        classes=TORCHVISION_COCO_CLASSES,
    )
    assert mapping.fresh == ()
    return detector.eval()


# torchvision's published detectors


@torch.no_grad()
def test_torchvisions_weights_give_torchvisions_outputs(
    torchvision_model: TorchvisionRetinaNet, coco_detector: RetinaNet, images: Tensor
) -> None:
    transformed, _ = torchvision_model.transform(list(images))
    assert transformed.tensors.shape == images.shape
    features = list(torchvision_model.backbone(transformed.tensors).values())
    expected = torchvision_model.head(features)
    (predictions,) = coco_detector(images)
    assert expected["cls_logits"].std() > 0.5
    torch.testing.assert_close(predictions.logits, expected["cls_logits"])
    torch.testing.assert_close(predictions.deltas, expected["bbox_regression"])
    anchors = torchvision_model.anchor_generator(transformed, features)[0]
    assert torch.equal(predictions.anchors, anchors)


@torch.no_grad()
def test_torchvisions_weights_and_thresholds_give_torchvisions_detections(
    torchvision_model: TorchvisionRetinaNet, coco_detector: RetinaNet, images: Tensor
) -> None:
    postprocess = Postprocess(
        activation="sigmoid",
        box_weights=(1.0, 1.0, 1.0, 1.0),
        score_threshold=0.05,
        nms_iou=0.5,
        num_candidates=1000,
        max_detections=300,
        last_level_threshold=None,
    )
    found = postprocess(coco_detector(images), [(128, 224)] * 2)
    for ours, theirs in zip(found, torchvision_model(list(images)), strict=True):
        assert len(ours) == 300
        assert len(set(ours.labels.tolist())) > 3
        torch.testing.assert_close(ours.scores, theirs["scores"])
        torch.testing.assert_close(ours.boxes, theirs["boxes"], atol=1e-3, rtol=1e-4)
        assert torch.equal(ours.labels, theirs["labels"])


@torch.no_grad()
def test_classes_of_voc_get_the_columns_of_their_namesakes_in_coco(
    coco_file: Path, coco_detector: RetinaNet, images: Tensor
) -> None:
    detector = make_retinanet(20, norm="frozen", **TORCHVISION_OPTIONS)  # type: ignore[arg-type]
    mapping = load_detector(
        detector, read_tensors(coco_file), source_classes=None, classes=VOC_CLASSES
    )
    assert mapping.describe() == (
        "20 of 20 classes taken from the source (aeroplane from airplane, diningtable from dining "
        "table, motorbike from motorcycle, pottedplant from potted plant, sofa from couch, "
        "tvmonitor from tv), 0 start fresh"
    )
    assert [name for name, _ in mapping.mapped] == VOC_CLASSES
    renamed = {name: source for name, source in mapping.mapped if name != source}
    assert renamed == {
        "aeroplane": "airplane",
        "diningtable": "dining table",
        "motorbike": "motorcycle",
        "pottedplant": "potted plant",
        "sofa": "couch",
        "tvmonitor": "tv",
    }
    columns = [TORCHVISION_COCO_CLASSES.index(source) for _, source in mapping.mapped]
    (voc,), (coco,) = detector.eval()(images[:1]), coco_detector(images[:1])
    torch.testing.assert_close(voc.logits, coco.logits[:, :, columns], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(voc.deltas, coco.deltas, atol=1e-4, rtol=1e-4)


def test_a_model_with_frozen_norms_without_epsilon_gives_its_outputs(tmp_path: Path) -> None:
    """As torchvision loads its published COCO weights."""
    backbone = resnet_fpn_backbone(
        backbone_name="resnet18",
        weights=None,
        trainable_layers=5,
        returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(256, 256),
    )
    model = TorchvisionRetinaNet(backbone, 4, min_size=64, max_size=64)
    spread(model)
    model.backbone.body.bn1.running_var.mul_(1e-5)  # so that the epsilon matters
    overwrite_eps(model, 0.0)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "a.safetensors")
    detector = make_retinanet(
        4, backbone="resnet18", norm="frozen", norm_epsilon=1e-12, p6_from="p5", anchor_octaves=3
    )
    classes = list("abcd")
    tensors = read_tensors(tmp_path / "a.safetensors")
    load_detector(detector, tensors, source_classes=classes, classes=classes)
    images = torch.rand(1, 3, 64, 64)
    transformed, _ = model.transform(list(images))
    expected = model.eval().head(list(model.backbone(transformed.tensors).values()))
    (predictions,) = detector.eval()(images)
    torch.testing.assert_close(predictions.logits, expected["cls_logits"], atol=1e-3, rtol=1e-4)


# Small detectors, for all else


def small_detector(num_classes: int, activation: str = "sigmoid", **options: object) -> RetinaNet:
    settings = {"backbone": "small", "norm": "group", **options}
    return make_retinanet(num_classes, activation=activation, **settings)  # type: ignore[arg-type]


def columns_of(state: dict[str, Tensor], num_columns: int) -> tuple[Tensor, Tensor]:
    """Weight (anchors, columns, ...) and bias (anchors, columns) of a class output."""
    weight, bias = state[OUTPUT + "weight"], state[OUTPUT + "bias"]
    return weight.view(-1, num_columns, *weight.shape[1:]), bias.view(-1, num_columns)


def source_tensors(num_columns: int, **options: object) -> dict[str, Tensor]:
    """Tensors of a small detector, all different."""
    generator = torch.Generator().manual_seed(4)
    state = small_detector(num_columns, **options).state_dict()
    return {name: torch.randn(t.shape, generator=generator) for name, t in state.items()}


def load(
    source: dict[str, Tensor],
    source_classes: Sequence[str] | None,
    classes: Sequence[str],
    activation: str = "sigmoid",
    source_activation: str = "sigmoid",
) -> tuple[HeadMapping, dict[str, Tensor], dict[str, Tensor]]:
    """The mapping, the state before and the state after."""
    detector = small_detector(len(classes), activation)
    before = {name: tensor.clone() for name, tensor in detector.state_dict().items()}
    mapping = load_detector(
        detector,
        source,
        source_classes=source_classes,
        classes=classes,
        activation=activation,
        source_activation=source_activation,
    )
    return mapping, before, dict(detector.state_dict())


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_equal_classes_and_activation_give_identical_weights(activation: str) -> None:
    classes = ["N/A", "b", "b"]  # also where names say nothing
    source = source_tensors(3 + (activation == "softmax"))
    mapping, _, after = load(source, classes, classes, activation, activation)
    assert all(torch.equal(after[name], source[name]) for name in after)
    assert mapping == HeadMapping((("N/A", "N/A"), ("b", "b"), ("b", "b")), ())


def test_a_class_that_the_source_lacks_starts_as_initialised() -> None:
    source = source_tensors(2)
    mapping, before, after = load(source, ["cat", "sofa"], ["lamp", "couch", "cat"])
    assert mapping == HeadMapping((("couch", "sofa"), ("cat", "cat")), ("lamp",))
    for old, start, new in zip(
        columns_of(source, 2), columns_of(before, 3), columns_of(after, 3), strict=True
    ):
        assert torch.equal(new[:, 0], start[:, 0])
        assert torch.equal(new[:, 1], old[:, 1])
        assert torch.equal(new[:, 2], old[:, 0])
    others = [name for name in after if not name.startswith(OUTPUT)]
    assert all(torch.equal(after[name], source[name]) for name in others)


@pytest.mark.parametrize(
    ("activation", "source_activation", "pairs"),
    [
        ("softmax", "softmax", {0: 0, 1: 2, 2: None}),
        ("sigmoid", "softmax", {0: 2, 1: None}),
        ("softmax", "sigmoid", {0: None, 1: 1, 2: None}),
        ("sigmoid", "sigmoid", {0: 1, 1: None}),
    ],
)
def test_background_is_taken_from_background_only(
    activation: str, source_activation: str, pairs: dict[int, int | None]
) -> None:
    num_source_columns = 2 + (source_activation == "softmax")
    source = source_tensors(num_source_columns)
    _, before, after = load(source, ["a", "b"], ["b", "c"], activation, source_activation)
    num_columns = len(pairs)
    for old, start, new in zip(
        columns_of(source, num_source_columns),
        columns_of(before, num_columns),
        columns_of(after, num_columns),
        strict=True,
    ):
        for column, source_column in pairs.items():
            expected = start[:, column] if source_column is None else old[:, source_column]
            assert torch.equal(new[:, column], expected)


def test_a_source_whose_classes_are_not_known_gives_all_but_the_class_output() -> None:
    source = source_tensors(2)
    mapping, before, after = load(source, None, ["a", "b"])
    assert mapping == HeadMapping((), ("a", "b"))
    assert torch.equal(after[OUTPUT + "weight"], before[OUTPUT + "weight"])
    assert torch.equal(after[OUTPUT + "bias"], before[OUTPUT + "bias"])
    name = "head.classification_head.conv.0.0.weight"
    assert torch.equal(after[name], source[name])


def test_half_precision_is_converted() -> None:
    source = {name: tensor.half() for name, tensor in source_tensors(2).items()}
    _, _, after = load(source, ["a", "b"], ["b"])
    assert all(tensor.dtype == torch.float32 for tensor in after.values())
    weight = columns_of(source, 2)[0][:, 1].float()
    assert torch.equal(columns_of(after, 1)[0][:, 0], weight)


def test_names_of_heads_before_torchvision_0_13_are_understood() -> None:
    source = source_tensors(2)
    old = {}
    for name, tensor in source.items():
        for index in (0, 1):
            name = name.replace(f"_head.conv.{index}.0.", f"_head.conv.{2 * index}.")
        old[name] = tensor
    assert "head.regression_head.conv.2.bias" in old
    _, _, after = load(old, ["a", "b"], ["a", "b"])
    assert all(torch.equal(after[name], source[name]) for name in after)


def test_parameters_stay_the_same_objects_and_trainable() -> None:
    detector = small_detector(2)
    before = list(detector.parameters())
    load_detector(detector, source_tensors(2), source_classes=["a", "b"], classes=["b", "a"])
    assert all(a is b for a, b in zip(before, detector.parameters(), strict=True))
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in before)


# Sources that do not fit


def refusal(source: dict[str, Tensor], detector: RetinaNet | None = None, **options: object) -> str:
    detector = detector or small_detector(2)
    before = {name: tensor.clone() for name, tensor in detector.state_dict().items()}
    arguments = {"source_classes": ["a", "b"], "classes": ["a", "b"], "file": "x.pth", **options}
    with pytest.raises(WeightsError) as caught:
        load_detector(detector, source, **arguments)  # type: ignore[arg-type]
    after = detector.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in after), "must change nothing"
    return str(caught.value)


def test_another_number_of_anchors_is_answered_with_the_setting_that_fits() -> None:
    assert refusal(source_tensors(2, anchor_octaves=3)) == (
        "x.pth: it has 9 anchors at each place, the detector 6. "
        "The file fits detector.anchor_octaves=3."
    )
    two_ratios = small_detector(2, anchor_ratios=(1.0, 2.0))
    source = source_tensors(2, anchor_octaves=5, anchor_ratios=(1.0, 2.0))
    assert refusal(source, two_ratios).endswith(
        "it has 10 anchors at each place, the detector 4. The file fits detector.anchor_octaves=5."
    )


def test_other_settings_are_seen_as_well() -> None:
    with torch.device("meta"):
        source = make_retinanet(
            2, backbone="resnet18", norm="frozen", p6_from="p5", head_norm="group"
        ).state_dict()
    detector = make_retinanet(2, backbone="resnet18", norm="group")
    text = refusal(dict(source), detector)
    assert " missing (" in text
    assert text.endswith(
        "The file fits detector.head_norm=group, detector.p6_from=p5, detector.norm=frozen."
    )
    with torch.device("meta"):
        detector = make_retinanet(2, backbone="resnet34", norm="batch")
    assert refusal_on_meta(dict(source), detector).endswith(
        "detector.p6_from=p5, detector.backbone=resnet18."
    )
    with torch.device("meta"):
        detector = make_retinanet(2, backbone="resnet18", norm="frozen", pyramid_channels=96)
        wide = make_retinanet(2, backbone="resnet18", norm="frozen").state_dict()
    assert refusal_on_meta(dict(wide), detector).endswith(
        "The file fits detector.pyramid_channels=256."
    )
    with torch.device("meta"):  # as wide as C5: P6 does not show what it is made from
        wide = make_retinanet(2, backbone="resnet18", norm="frozen", pyramid_channels=512)
    assert refusal_on_meta(dict(wide.state_dict()), detector).endswith(
        "The file fits detector.pyramid_channels=512."
    )


def refusal_on_meta(source: dict[str, Tensor], detector: RetinaNet) -> str:
    with pytest.raises(WeightsError) as caught:
        load_detector(detector, source, source_classes=["a", "b"], classes=["a", "b"])
    return str(caught.value)


@pytest.mark.parametrize(
    ("num_columns", "source_activation", "expected"),
    [(3, "sigmoid", 2), (2, "softmax", 3), (91, "sigmoid", 2)],
)
def test_a_number_of_columns_other_than_the_classes_is_refused(
    num_columns: int, source_activation: str, expected: int
) -> None:
    text = refusal(source_tensors(num_columns), source_activation=source_activation)
    assert text == (
        f"x.pth: its class output has {num_columns} columns; expected {expected} for 2 classes "
        f"and {source_activation}."
    )


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_class_output_must_be_there_and_whole(part: str) -> None:
    source = source_tensors(2)
    name = OUTPUT + part
    rest = {other: tensor for other, tensor in source.items() if other != name}
    assert f"1 missing ({name})" in refusal(rest)
    assert f"{name} (11" in refusal({**source, name: source[name][:-1]})
    assert f"{name} (0" in refusal({**source, name: source[name][:0]})


def test_weight_and_bias_of_the_class_output_must_agree() -> None:
    weight = source_tensors(3)[OUTPUT + "weight"]
    assert refusal({**source_tensors(2), OUTPUT + "weight": weight}).endswith(
        "1 of another shape (head.classification_head.cls_logits.weight (18, 64, 3, 3) in place of "
        "(12, 64, 3, 3))."
    )


def test_a_class_output_of_other_channels_is_refused() -> None:
    source = source_tensors(2)
    source[OUTPUT + "weight"] = torch.zeros(12, 32, 3, 3)
    assert "cls_logits.weight (12, 32, 3, 3) in place of (12, 64, 3, 3)" in refusal(source)


def test_missing_tensors_are_named() -> None:
    source = source_tensors(2)
    del source["backbone.fpn.layer_blocks.0.0.bias"]
    del source["head.regression_head.bbox_reg.bias"]
    assert (
        "2 missing (backbone.fpn.layer_blocks.0.0.bias, head.regression_head.bbox_reg.bias)"
        in refusal(source)
    )


# Names


def test_the_coco_classes_of_torchvision_have_cocos_numbers() -> None:
    assert len(TORCHVISION_COCO_CLASSES) == 91
    assert TORCHVISION_COCO_CLASSES[0] == "__background__"
    assert TORCHVISION_COCO_CLASSES[1] == "person"
    assert TORCHVISION_COCO_CLASSES[90] == "toothbrush"


def test_the_same_name_wins_over_another_spelling_and_that_over_a_synonym() -> None:
    assert match_classes(["TV"], ["tvmonitor", "tv", "TV"]) == [2]
    assert match_classes(["TV"], ["tvmonitor", "t-v"]) == [1]
    assert match_classes(["TV"], ["car", "TV_monitor"]) == [1]
    assert match_classes(["TV"], ["car"]) == [None]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("Traffic_Light", "traffic light"),
        ("hot-dog", "hot dog"),
        ("Dining table", "diningtable"),
        ("aeroplane", "airplane"),
        ("motorcycle", "motorbike"),
        ("Sofa", "couch"),
        ("Television", "tv monitor"),
    ],
)
def test_spellings_and_synonyms_meet(name: str, source: str) -> None:
    assert match_classes([name], ["zebra", source]) == [1]
    assert match_classes([source], ["zebra", name]) == [1]


def test_of_two_equal_names_the_first_is_taken() -> None:
    assert match_classes(["cat"], ["dog", "Cat", "CAT"]) == [1]


def test_columns_that_are_no_class_match_nothing() -> None:
    found = match_classes(["N/A", "background", "__background__", "n/a"], TORCHVISION_COCO_CLASSES)
    assert found == [None] * 4


def test_names_of_signs_alone_are_not_all_the_same() -> None:
    assert match_classes(["-", "_"], ["_", " "]) == [None, 0]


def test_a_long_list_of_fresh_classes_is_cut() -> None:
    text = HeadMapping((), tuple(f"c{i}" for i in range(25))).describe()
    assert text.startswith("0 of 25 classes taken from the source, 25 start fresh: c0, c1, ")
    assert text.endswith(", c19 and 5 more")
