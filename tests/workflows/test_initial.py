"""The weights that a training starts from: a run's, a detector's file, a backbone's, or none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from rankdet import build
from rankdet.config import Config, DetectorConfig
from rankdet.detectors.class_mapping import TORCHVISION_COCO_CLASSES
from rankdet.detectors.retinanet import RetinaNet
from rankdet.engine.checkpoint import load_checkpoint, save_checkpoint, set_best
from rankdet.errors import WeightsError
from rankdet.workflows.initial import load_initial_weights
from rankdet.workflows.run import CHECKPOINTS, RunRecord, read_checkpoint, write_run

SMALL = DetectorConfig(backbone="small", norm="group", head_norm="group")
CLASSES = ("bus", "lamp", "cat")
BIAS = "head.classification_head.cls_logits.bias"
STEM = "backbone.fpn.layer_blocks.0.0.weight"


def fresh(num_classes: int = 3, activation: str = "sigmoid") -> RetinaNet:
    torch.manual_seed(99)
    detector = build.detector(SMALL, num_classes, activation)
    assert isinstance(detector, RetinaNet)
    return detector


def load(source: Path | str, activation: str = "sigmoid") -> tuple[str, dict[str, Tensor]]:
    """What is said, and the weights after it."""
    detector = fresh(3, activation)
    said = load_initial_weights(detector, replace(SMALL, weights=str(source)), CLASSES, activation)
    return said, detector.state_dict()


def numbered(detector: RetinaNet) -> dict[str, Tensor]:
    """Its weights, where the bias of each column of the class output is the column's number."""
    state = {name: tensor.clone() for name, tensor in detector.state_dict().items()}
    num_columns = detector.head.classification_head.num_classes
    state[BIAS] = torch.arange(num_columns).repeat(len(state[BIAS]) // num_columns).float()
    return state


def columns(state: dict[str, Tensor], num_columns: int = 3) -> list[float]:
    """The biases of the first anchor's columns."""
    return [round(value, 2) for value in state[BIAS][:num_columns].tolist()]


FRESH = -4.6  # the bias of a class that starts as initialised


def test_without_weights_nothing_is_loaded() -> None:
    said, state = load("none")
    assert said.startswith("The weights are random.")
    assert all(torch.equal(tensor, state[name]) for name, tensor in fresh().state_dict().items())


def test_a_run_gives_its_best_checkpoint_with_its_classes_by_name(tiny_run: Path) -> None:
    said, state = load(tiny_run)  # cat, dog, bus
    assert said == f"{tiny_run}: 2 of 3 classes taken from the source, 1 start fresh: lamp"
    best = load_checkpoint(tiny_run / CHECKPOINTS / "step-00000001").weights
    assert torch.equal(state[STEM], best[STEM])
    assert not torch.equal(state[STEM], read_checkpoint(tiny_run, "last").weights[STEM])


@pytest.mark.parametrize("here", ["sigmoid", "softmax"])
@pytest.mark.parametrize("there", ["sigmoid", "softmax"])
def test_columns_are_those_of_both_activations(tmp_path: Path, here: str, there: str) -> None:
    run = tmp_path / "run"
    classes = ("cat", "dog", "bus")
    write_run(run, RunRecord(Config(detector=SMALL), classes, (1, 2, 3), there, {}, {}))
    weights = numbered(fresh(3, there))
    path = save_checkpoint(run / CHECKPOINTS, 1, weights=weights, training={}, state={})
    set_best(run / CHECKPOINTS, path, "AP", 1.0)
    _, state = load(run, here)
    first = there == "softmax"  # the number of the column of the first class
    found = columns(state, 3 + (here == "softmax"))
    if here == "softmax":
        background = found.pop(0)
        assert background == (0.0 if there == "softmax" else pytest.approx(5.69, abs=0.01))
    lamp = 0.0 if here == "softmax" else FRESH
    assert found == [2 + first, lamp, 0 + first]


def test_a_file_of_torchvisions_detector_has_the_classes_of_coco(tmp_path: Path) -> None:
    file = tmp_path / "coco.safetensors"
    safetensors.torch.save_file(numbered(fresh(len(TORCHVISION_COCO_CLASSES))), file)
    said, state = load(file)
    assert said.startswith(f"{file}: 2 of 3 classes taken from the source, 1 start fresh: lamp")
    names = list(TORCHVISION_COCO_CLASSES)
    assert columns(state) == [names.index("bus"), FRESH, names.index("cat")]
    _, state = load(file, "softmax")  # the file's columns are of a sigmoid all the same
    assert columns(state, 4)[1:] == [names.index("bus"), 0.0, names.index("cat")]


def test_a_detector_of_unknown_classes_gives_all_but_its_class_output(tmp_path: Path) -> None:
    file = tmp_path / "three.pth"
    source = numbered(fresh(3))
    source[STEM] = source[STEM] + 1
    torch.save(source, file)
    said, state = load(file)
    assert "0 of 3 classes" in said
    assert columns(state) == [FRESH] * 3
    assert torch.equal(state[STEM], source[STEM])


def test_a_detector_that_does_not_fit_is_told_by_its_name(tmp_path: Path, tiny_run: Path) -> None:
    file = tmp_path / "other.pth"
    source = numbered(fresh(3))
    source["head.regression_head.bbox_reg.bias"] = torch.zeros(7)
    torch.save(source, file)
    with pytest.raises(WeightsError, match=f"^{file}"):
        load(file)
    path = tiny_run / CHECKPOINTS
    set_best(path, save_checkpoint(path, 3, weights=source, training={}, state={}), "AP", 1.0)
    with pytest.raises(WeightsError, match=f"^{tiny_run}"):
        load(tiny_run)


def test_a_file_of_a_backbone_is_found_in_the_home_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    body = {name: tensor + 1 for name, tensor in fresh().backbone.body.state_dict().items()}
    torch.save(body, tmp_path / "body.pth")
    torch.save(numbered(fresh(3)), tmp_path / "whole.pth")
    said, state = load("~/body.pth")
    assert said == f"backbone small from {tmp_path / 'body.pth'}"
    assert all(torch.equal(state[f"backbone.body.{name}"], body[name]) for name in body)
    assert "0 of 3 classes" in load("~/whole.pth")[0]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=str(tmp_path)):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "output", "repeats"),
    [
        ("ssd", "head.classification_head.module_list.0.bias", 4),  # boxes at a place
        ("faster_rcnn", "roi_heads.box_predictor.cls_score.bias", 1),
    ],
)
def test_a_file_of_torchvisions_others_is_a_softmax_with_the_classes_of_coco(
    name: str, output: str, repeats: int, tmp_path: Path
) -> None:
    config = DetectorConfig(name=name, backbone="small", norm="group")
    source = build.detector(config, 90, "softmax").state_dict()
    source[output] = torch.arange(91.0).repeat(repeats)  # as many columns as torchvision's
    file = tmp_path / "coco.pth"
    torch.save(source, file)
    names = list(TORCHVISION_COCO_CLASSES)
    for activation in ("sigmoid", "softmax"):
        detector = build.detector(config, 3, activation)
        said = load_initial_weights(
            detector, replace(config, weights=str(file)), CLASSES, activation
        )
        assert said == f"{file}: 2 of 3 classes taken from the source, 1 start fresh: lamp"
        found = [round(value, 2) for value in detector.state_dict()[output].tolist()]
        fresh = FRESH if activation == "sigmoid" else 0.0
        expected = [names.index("bus"), fresh, names.index("cat")]
        assert found == (([0.0] if activation == "softmax" else []) + expected) * repeats


def test_a_file_of_another_detector_is_refused(tmp_path: Path) -> None:
    ssd = DetectorConfig(name="ssd", backbone="small", norm="group")
    torch.save(build.detector(ssd, 3, "sigmoid").state_dict(), tmp_path / "ssd.pth")
    with pytest.raises(WeightsError, match=r"ssd\.pth: is of SSD; the detector is RetinaNet\. "):
        load(tmp_path / "ssd.pth")
