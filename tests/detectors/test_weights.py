"""Pretrained backbones: from files with torchvision's names, or by torchvision's name."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torchvision
from torch import Tensor, nn
from torchvision.models import MobileNet_V2_Weights, ResNet18_Weights

from rankdet.detectors.detector import Detector
from rankdet.detectors.retinanet import RetinaNet, make_retinanet
from rankdet.detectors.ssd import make_ssd
from rankdet.detectors.weights import is_detector, load_backbone
from rankdet.errors import WeightsError


def spread(network: nn.Module) -> dict[str, Tensor]:
    """The network's state with a random value everywhere, norms and their statistics too."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.rand(tensor.shape, generator=generator) + 0.5
        if tensor.is_floating_point()
        else tensor
        for name, tensor in network.state_dict().items()
    }


@pytest.fixture(scope="module")
def resnet() -> dict[str, Tensor]:
    return spread(torchvision.models.resnet18(weights=None))


@pytest.fixture(scope="module")
def mobilenet() -> dict[str, Tensor]:
    return spread(torchvision.models.mobilenet_v2(weights=None))


@pytest.fixture(scope="module")
def detector() -> RetinaNet:
    """For tests that change nothing."""
    return resnet_detector()


def resnet_detector(**options: str) -> RetinaNet:
    return make_retinanet(2, backbone="resnet18", **options)  # type: ignore[arg-type]


def write(path: Path, tensors: dict[str, Tensor]) -> Path:
    safetensors.torch.save_file(tensors, path)
    return path


def refusal(detector: Detector, source: Path | str) -> str:
    before = {name: tensor.clone() for name, tensor in detector.state_dict().items()}
    with pytest.raises(WeightsError) as caught:
        load_backbone(detector, source)
    for name, tensor in detector.state_dict().items():
        assert torch.equal(tensor, before[name]), "a refused file must change nothing"
    assert "\n" not in str(caught.value)
    return str(caught.value)


# From a file


@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_a_resnets_tensors_go_into_the_body_under_their_names(
    tmp_path: Path, resnet: dict[str, Tensor], norm: str
) -> None:
    detector = resnet_detector(norm=norm)
    rest = {k: v.clone() for k, v in detector.state_dict().items() if ".body." not in k}
    path = write(tmp_path / "a.safetensors", resnet)
    assert load_backbone(detector, path) == f"backbone resnet18 from {path}"
    body = detector.backbone.body.state_dict()
    assert all(torch.equal(body[name], resnet[name]) for name in body)
    assert {"conv1.weight", "bn1.running_var", "layer4.1.bn2.weight"} <= body.keys()
    state = detector.state_dict()
    assert all(torch.equal(state[name], rest[name]) for name in rest)


def test_a_mobilenets_features_go_into_the_body(
    tmp_path: Path, mobilenet: dict[str, Tensor]
) -> None:
    detector = make_retinanet(2, backbone="mobilenet_v2")
    load_backbone(detector, write(tmp_path / "a.safetensors", mobilenet))
    body = detector.backbone.body.state_dict()
    assert all(torch.equal(body[name], mobilenet[f"features.{name}"]) for name in body)
    images = torch.rand(1, 3, 64, 64)
    expected = torchvision.models.mobilenet_v2(weights=None)
    expected.load_state_dict(mobilenet)
    last = detector.eval().backbone.body(images)["2"]
    torch.testing.assert_close(last, expected.eval().features(images))


def vgg_features() -> dict[str, Tensor]:
    """Those of VGG-16 as torchvision names them, without its classifier."""
    with torch.device("meta"):
        network = torchvision.models.vgg16(weights=None).features
    generator = torch.Generator().manual_seed(1)
    return {
        f"features.{name}": torch.rand(tensor.shape, generator=generator)
        for name, tensor in network.state_dict().items()
    }


@pytest.mark.parametrize("layout", ["ssd300", "ssd512"])
def test_vggs_features_go_into_an_ssd_and_nothing_else_changes(tmp_path: Path, layout: str) -> None:
    detector = make_ssd(2, layout=layout)
    before = {name: tensor.clone() for name, tensor in detector.state_dict().items()}
    features = vgg_features()
    # As torchvision's VGG-16 of SSD's authors has it: the classifier is NaN on purpose.
    path = tmp_path / "vgg.pth"
    torch.save({**features, "classifier.6.bias": torch.full((3,), float("nan"))}, path)
    assert load_backbone(detector, path) == f"backbone vgg16 from {path}"
    state = detector.state_dict()
    own = {
        **{f"backbone.features.{i}": i for i in (0, 2, 5, 7, 10, 12, 14, 17, 19, 21)},
        **{f"backbone.extra.0.{i - 23}": i for i in (24, 26, 28)},
    }
    for name, tensor in state.items():
        layer, _, part = name.rpartition(".")
        changed = features[f"features.{own[layer]}.{part}"] if layer in own else before[name]
        assert torch.equal(tensor, changed), name


def test_a_resnet_is_no_backbone_of_an_ssd(tmp_path: Path, resnet: dict[str, Tensor]) -> None:
    text = refusal(make_ssd(2, layout="ssd300"), write(tmp_path / "a.safetensors", resnet))
    assert text.endswith(
        "The file fits detector.backbone=resnet18, detector.norm=frozen, detector.name=retinanet."
    )


def test_the_names_of_vggs_weights_are_said() -> None:
    text = refusal(make_ssd(2, layout="ssd300"), "imagnet")
    assert text.endswith("for vgg16 (imagenet, IMAGENET1K_V1, IMAGENET1K_FEATURES).")


def test_half_precision_is_converted_and_counters_and_classifier_may_be_missing(
    tmp_path: Path, resnet: dict[str, Tensor]
) -> None:
    stored = {
        name: tensor.half() if tensor.ndim == 4 else tensor
        for name, tensor in resnet.items()
        if not name.endswith("num_batches_tracked") and not name.startswith("fc.")
    }
    detector = resnet_detector()
    load_backbone(detector, write(tmp_path / "a.safetensors", stored))
    body = detector.backbone.body.state_dict()
    assert body["conv1.weight"].dtype == torch.float32
    assert torch.equal(body["conv1.weight"], stored["conv1.weight"].float())
    assert int(body["bn1.num_batches_tracked"]) == 0


def test_parameters_stay_the_same_objects(tmp_path: Path, resnet: dict[str, Tensor]) -> None:
    detector = resnet_detector()
    before = list(detector.parameters())
    load_backbone(detector, str(write(tmp_path / "a.safetensors", resnet)))
    assert all(a is b for a, b in zip(before, detector.parameters(), strict=True))
    assert all(parameter.requires_grad for parameter in detector.parameters())


def test_missing_unknown_and_misshapen_tensors_are_named(
    detector: RetinaNet, tmp_path: Path, resnet: dict[str, Tensor]
) -> None:
    wrong = {name: tensor for name, tensor in resnet.items() if not name.startswith("layer4.1.")}
    wrong |= {"extra.bias": torch.zeros(1), "bn1.bias": torch.zeros(7)}
    path = write(tmp_path / "a.safetensors", wrong)
    assert refusal(detector, path) == (
        f"{path}: the tensors do not fit the detector: 10 missing (layer4.1.conv1.weight, "
        "layer4.1.bn1.weight, layer4.1.bn1.bias and 7 more); 1 unknown (extra.bias); "
        "1 of another shape (bn1.bias (7,) in place of (64,))."
    )


def test_three_names_are_said_in_full(
    detector: RetinaNet, tmp_path: Path, resnet: dict[str, Tensor]
) -> None:
    names = ["a.bias", "b.bias", "c.bias"]
    path = write(tmp_path / "a.safetensors", resnet | {name: torch.zeros(1) for name in names})
    assert refusal(detector, path).endswith("detector: 3 unknown (a.bias, b.bias, c.bias).")


def test_a_file_of_another_backbone_is_recognised(
    detector: RetinaNet,
    tmp_path: Path,
    resnet: dict[str, Tensor],
    mobilenet: dict[str, Tensor],
) -> None:
    path = write(tmp_path / "a.safetensors", mobilenet)
    assert refusal(detector, path).endswith("The file fits detector.backbone=mobilenet_v2.")
    path = write(tmp_path / "b.safetensors", resnet)
    small = make_retinanet(2, backbone="small", norm="group")
    assert refusal(small, path).endswith(
        "The file fits detector.backbone=resnet18, detector.norm=frozen."
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("resnet34", "The file fits detector.backbone=resnet34."),
        ("resnet50", "The file fits detector.backbone=resnet50."),
        ("resnet101", "The file fits detector.backbone=resnet101."),
        ("resnext101_32x8d", "The file fits detector.backbone=resnext101_32x8d."),
        ("wide_resnet50_2", "The file looks like wide_resnet50_2; the backbones are resnet18, "),
        ("vgg16", "The file fits detector.backbone=vgg16, detector.name=ssd."),
        ("vgg13", "The file looks like vgg; the backbones are resnet18, "),
        ("vgg19", "The file looks like vgg; the backbones are resnet18, "),
    ],
)
def test_networks_are_told_apart(
    detector: RetinaNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sentence: str
) -> None:
    with torch.device("meta"):  # names and shapes alone
        network = torchvision.models.get_model(name, weights=None)
    (tmp_path / "a.pth").write_bytes(b"")
    monkeypatch.setattr("rankdet.detectors.weights.read_tensors", lambda path: network.state_dict())
    assert sentence in refusal(detector, tmp_path / "a.pth")


def test_of_an_unknown_network_only_the_names_are_said(detector: RetinaNet, tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"stages.0.weight": torch.zeros(1)})
    assert refusal(detector, path).endswith("; 1 unknown (stages.0.weight).")


def test_statistics_of_batch_norms_have_no_place_among_group_norms(
    tmp_path: Path, resnet: dict[str, Tensor]
) -> None:
    text = refusal(resnet_detector(norm="group"), write(tmp_path / "a.safetensors", resnet))
    assert "40 unknown (bn1.running_mean, bn1.running_var, " in text
    assert text.endswith("The file fits detector.norm=frozen.")


def test_a_whole_detector_is_no_backbone(tmp_path: Path) -> None:
    detector = make_retinanet(2, backbone="small", norm="group")
    tensors = detector.state_dict()
    assert is_detector(tensors)
    path = write(tmp_path / "a.safetensors", tensors)
    text = f"{path}: is of a whole detector (RetinaNet); expected a backbone."
    assert refusal(detector, path) == text


def test_a_backbone_alone_is_no_detector(resnet: dict[str, Tensor]) -> None:
    assert not is_detector(resnet)
    assert is_detector({"head.classification_head.cls_logits.bias": torch.zeros(1)})
    assert is_detector({"backbone.body.conv1.weight": torch.zeros(1)})
    assert is_detector({"backbone.features.0.weight": torch.zeros(1)})
    assert is_detector({"roi_heads.box_predictor.cls_score.bias": torch.zeros(1)})


def test_a_folder_is_refused(detector: RetinaNet, tmp_path: Path) -> None:
    assert "is a folder" in refusal(detector, tmp_path)


# By torchvision's name


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """torch's cache of downloads, in a folder of the test."""
    before = torch.hub.get_dir()
    torch.hub.set_dir(tmp_path)
    yield tmp_path / "checkpoints"
    torch.hub.set_dir(before)


NAMES = ["imagenet", "IMAGENET1K_V1", "ResNet18_Weights.IMAGENET1K_V1"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_takes_the_file_of_torchs_cache(
    cache: Path, monkeypatch: pytest.MonkeyPatch, resnet: dict[str, Tensor], name: str
) -> None:
    monkeypatch.setattr("torch.hub.urlopen", None)  # the network is not asked
    cache.mkdir()
    torch.save(resnet, cache / "resnet18-f37072fd.pth")
    detector = resnet_detector()
    assert load_backbone(detector, name).endswith("resnet18-f37072fd.pth")
    assert torch.equal(detector.backbone.body.conv1.weight, resnet["conv1.weight"])


def test_imagenet_is_torchvisions_default(
    cache: Path, monkeypatch: pytest.MonkeyPatch, mobilenet: dict[str, Tensor]
) -> None:
    asked = []

    def download(url: str, path: str, hash_prefix: str) -> None:
        asked.append((url, hash_prefix))
        torch.save(mobilenet, path)

    monkeypatch.setattr("torch.hub.download_url_to_file", download)
    load_backbone(make_retinanet(2, backbone="mobilenet_v2"), "imagenet")
    assert asked == [(MobileNet_V2_Weights.IMAGENET1K_V2.url, "7ebf99e0")]
    assert (cache / "mobilenet_v2-7ebf99e0.pth").exists()


def test_without_a_network_the_file_and_its_place_are_named(
    detector: RetinaNet, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise urllib.error.URLError("no route")

    monkeypatch.setattr("torch.hub.urlopen", fail)
    assert refusal(detector, "IMAGENET1K_V1") == (
        "ResNet18_Weights.IMAGENET1K_V1: cannot download "
        f"{ResNet18_Weights.IMAGENET1K_V1.url}: <urlopen error no route>. "
        f"Put the file at {cache / 'resnet18-f37072fd.pth'}, or give a file that is here with "
        "--weights FILE."
    )
    assert list(cache.iterdir()) == []


def test_a_download_with_another_content_is_refused(
    detector: RetinaNet, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "page"
    page.write_bytes(b"<html>log in</html>")
    real = torch.hub.urlopen
    monkeypatch.setattr("torch.hub.urlopen", lambda request: real(page.as_uri()))
    assert "invalid hash value" in refusal(detector, "imagenet")
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    "source",
    ["IMAGENET1K_V2", "imagnet", "ResNet50_Weights.IMAGENET1K_V1", "DEFAULT", "missing.pth"],
)
def test_what_is_neither_a_file_nor_a_name_is_answered_with_the_names(
    detector: RetinaNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refusal(detector, source) == (
        f"weights = '{source}': is neither a file nor a name of torchvision's weights for "
        "resnet18 (imagenet, IMAGENET1K_V1)."
    )


def test_there_are_no_published_weights_for_the_small_backbone() -> None:
    small = make_retinanet(2, backbone="small", norm="group")
    assert refusal(small, "imagenet").endswith("for small (there are none).")
