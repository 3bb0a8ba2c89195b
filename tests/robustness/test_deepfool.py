"""DeepFool on linear detectors, where the answer is known in closed form, and on trained ones."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from squares import Squares, squares_config
from torch import Tensor, nn

from rankdet import build
from rankdet.data.chosen import ChosenImages
from rankdet.robustness.deepfool import (
    BEYOND,
    Aim,
    DeepFoolSettings,
    _Attack,
    deepfool,
    margins,
    midway_thresholds,
)
from rankdet.robustness.suite import select
from rankdet.structures import Detections, Predictions, Target
from rankdet.workflows.robustness_measures import Subject, fool, measure

SIZE = 6  # pixels: height and width of the images
ANCHORS = torch.tensor([[0.0, 0, 3, 3], [3, 3, 6, 6], [0, 0, 6, 6]])
WEIGHTS = (10.0, 10.0, 5.0, 5.0)


class Linear(nn.Module):
    """Logits (B, A, C) that are linear in the image; the boxes are the anchors.

    moves: each call gives the anchors of each image in another order, as proposals would come.
    """

    def __init__(self, num_columns: int, moves: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(num_columns)
        shape = (len(ANCHORS), num_columns, 3 * SIZE * SIZE)
        self.weight = nn.Parameter(0.2 * torch.randn(shape, generator=generator))
        self.bias = nn.Parameter(torch.zeros(len(ANCHORS), num_columns))
        self.moves = moves
        self.num_calls = 0
        self.told: Any = None

    def forward(self, images: Tensor, sizes: Any = None) -> list[Predictions]:
        self.told = sizes
        logits = torch.einsum("acp,bp->bac", self.weight, images.flatten(1)) + self.bias
        deltas = torch.zeros(len(images), len(ANCHORS), 4)
        if not self.moves:
            return [Predictions("linear", logits, deltas, ANCHORS, (len(ANCHORS),))]
        order = torch.arange(len(ANCHORS)).roll(self.num_calls)
        self.num_calls += 1
        anchors = ANCHORS[order].expand(len(images), -1, -1)
        return [Predictions("roi", logits[:, order], deltas, anchors, (len(ANCHORS),))]


def target(boxes: Tensor, labels: list[int], ignored: tuple[int, ...] = ()) -> Target:
    is_ignored = torch.tensor([number in ignored for number in range(len(labels))])
    return Target(boxes, torch.tensor(labels), is_ignored, torch.ones(len(labels)), 1, (SIZE, SIZE))


def batch(images: Tensor, targets: list[Target], sizes: Any = None) -> Any:
    sizes = torch.tensor([[SIZE, SIZE]] * len(images)) if sizes is None else torch.tensor(sizes)
    return SimpleNamespace(images=images, targets=targets, sizes=sizes)


def image(seed: int = 0) -> Tensor:
    return torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def make_predicted(detector: Linear, pixels: Tensor, anchor: int, column: int, lead: float) -> None:
    """Let one column win at an anchor by `lead`, and no other anchor find anything of it."""
    with torch.no_grad():
        logits = detector(pixels)[0].logits[0]
        detector.bias -= logits  # all logits 0 at this image
        detector.bias[:, column] -= 9.0
        detector.bias[anchor, column] += 9.0 + lead


def distances(detector: Linear, anchor: int, column: int, leads: dict[int, float]) -> list[float]:
    """The distance of each boundary: of another column, or (own column) of the threshold."""
    weight = detector.weight.detach()[anchor]
    zero = torch.zeros_like(weight[0])
    return [
        (lead + BEYOND)
        / (weight[column] - (zero if other == column else weight[other])).norm().item()
        for other, lead in leads.items()
    ]


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("threshold", [0.5, 0.7])
def test_a_linear_sigmoid_detector_is_fooled_in_one_exact_step(
    threshold: float, moves: bool
) -> None:
    detector, pixels = Linear(3), image()
    make_predicted(detector, pixels, anchor=1, column=2, lead=1.0)
    detector.moves = moves
    result = deepfool(
        detector,
        [batch(pixels, [target(ANCHORS[1:2], [2])])],
        activation="sigmoid",
        thresholds=[threshold] * 3,
        box_weights=WEIGHTS,
    )
    limit = torch.tensor(threshold).logit().item()
    wanted = min(distances(detector, 1, 2, {0: 1.0, 1: 1.0, 2: 1.0 - limit}))
    assert result.is_fooled.tolist() == [True]
    assert result.num_iterations.tolist() == [1]
    assert result.norms.tolist() == pytest.approx([1.02 * wanted], rel=1e-4)
    assert result.relative_norms.item() == pytest.approx(
        1.02 * wanted / pixels.norm().item(), rel=1e-4
    )


def test_for_a_softmax_background_is_a_boundary_and_there_is_no_threshold() -> None:
    detector, pixels = Linear(3), image()  # two classes and background
    make_predicted(detector, pixels, anchor=1, column=2, lead=0.5)
    with torch.no_grad():
        detector.bias[1, 0] -= 0.2  # background is a little farther than the other class
    result = deepfool(
        detector,
        [batch(pixels, [target(ANCHORS[1:2], [1])])],
        activation="softmax",
        thresholds=[0.99, 0.99],
        box_weights=WEIGHTS,
    )
    wanted = min(distances(detector, 1, 2, {0: 0.7, 1: 0.5}))
    assert result.norms.tolist() == pytest.approx([1.02 * wanted], rel=1e-4)


def test_the_prediction_changes_with_the_perturbation_and_not_with_nine_tenths_of_it() -> None:
    detector, pixels = Linear(4), image(3)
    make_predicted(detector, pixels, anchor=0, column=1, lead=0.8)
    limits = torch.zeros(4)
    attack = _Attack(detector.requires_grad_(False), limits, "sigmoid", DeepFoolSettings())
    attempt = attack.fool(
        pixels, torch.tensor([[SIZE, SIZE]]), ANCHORS[:1], [Aim(0, 0, anchor=0, label=1)]
    )

    def lead(part: float) -> float:
        logits = detector(pixels + part * attempt.perturbations)[0].logits[:, 0]
        return margins(logits, torch.tensor([1]), limits, "sigmoid").min().item()

    assert lead(0.9) > 0 > lead(1.0)


def test_the_padding_is_never_changed() -> None:
    detector, pixels = Linear(2), image()
    make_predicted(detector, pixels, anchor=1, column=0, lead=1.0)
    with torch.no_grad():
        detector.weight[:, 1] = detector.weight[:, 0]  # only the threshold is left
        inside = detector.weight[1, 0].view(3, SIZE, SIZE)[:, :5, :6].norm().item()
    result = deepfool(
        detector,
        [batch(pixels, [target(torch.tensor([[3.0, 3, 6, 5]]), [0])], sizes=[[5, 6]])],
        activation="sigmoid",
        thresholds=[0.5] * 2,
        box_weights=WEIGHTS,
    )
    assert result.norms.tolist() == pytest.approx([1.02 * (1.0 + BEYOND) / inside], rel=1e-4)
    assert detector.told.tolist() == [[5, 6]]


def test_what_is_not_detected_or_ignored_is_not_attacked() -> None:
    detector, pixels = Linear(2), image()
    make_predicted(detector, pixels, anchor=1, column=0, lead=1.0)
    boxes = torch.cat([ANCHORS[1:2], ANCHORS[1:2], ANCHORS[:1], ANCHORS[1:2]])
    result = deepfool(
        detector,  # found; of another class; elsewhere; ignored
        [batch(pixels, [target(boxes, [0, 1, 0, 0], ignored=(3,))])],
        activation="sigmoid",
        thresholds=[0.5] * 2,
        box_weights=WEIGHTS,
    )
    summary = result.summary()
    assert (len(result.norms), result.num_detected, result.num_objects) == (1, 1, 3)
    assert (summary["num_attacked"], summary["success_rate"]) == (1, 100.0)
    assert summary["norm_255"] == pytest.approx(255 * result.norms.item())


def test_a_score_below_its_threshold_is_no_detection() -> None:
    detector, pixels = Linear(2), image()
    make_predicted(detector, pixels, anchor=1, column=0, lead=1.0)
    result = deepfool(
        detector,
        [batch(pixels, [target(ANCHORS[1:2], [0])])],
        activation="sigmoid",
        thresholds=[0.9, 0.9],
        box_weights=WEIGHTS,
    )
    assert result.num_detected == 0
    assert result.summary() == {
        "norm": None,
        "norm_255": None,
        "relative_norm": None,
        "iterations": None,
        "success_rate": None,
        "num_attacked": 0,
        "num_detected": 0,
        "num_objects": 1,
    }


def test_a_threshold_lies_midway_to_the_next_lower_score_of_its_class() -> None:
    found = [
        Detections(torch.zeros(3, 4), torch.tensor(scores), torch.tensor(labels))
        for scores, labels in (([0.75, 0.5, 0.5], [0, 0, 1]), ([0.625, 0.25, 0.125], [1, 1, 0]))
    ]
    assert midway_thresholds([0.5, 0.5, 0.5], found) == (0.3125, 0.375, 0.5)
    assert midway_thresholds([0.125, 0.0, 0.3], found) == (0.125, 0.0, 0.3)  # none is lower
    assert midway_thresholds([0.2], [found[0].select(torch.tensor([], dtype=torch.int64))]) == (
        0.2,
    )


def test_the_object_whose_score_is_the_threshold_is_not_fooled_by_nothing() -> None:
    detector, pixels = Linear(1), image()
    make_predicted(detector, pixels, anchor=1, column=0, lead=1.0)
    score = torch.tensor(1.0).sigmoid().item()
    found = [Detections(ANCHORS[:2], torch.tensor([score, 0.25]), torch.tensor([0, 0]))]
    (threshold,) = midway_thresholds([score], found)
    result = deepfool(
        detector,
        [batch(pixels, [target(ANCHORS[1:2], [0])])],
        activation="sigmoid",
        thresholds=[threshold],
        box_weights=WEIGHTS,
    )
    lead = 1.0 - torch.tensor((score + 0.25) / 2).logit().item()
    wanted = (lead + BEYOND) / detector.weight[1, 0].norm().item()
    assert result.norms.tolist() == pytest.approx([1.02 * wanted], rel=1e-4)


def test_a_detector_that_does_not_look_at_the_image_cannot_be_fooled() -> None:
    detector, pixels = Linear(2), image()
    with torch.no_grad():
        detector.weight.zero_()
    make_predicted(detector, pixels, anchor=1, column=0, lead=1.0)
    result = deepfool(
        detector,
        [batch(pixels, [target(ANCHORS[1:2], [0])])],
        activation="sigmoid",
        thresholds=[0.5] * 2,
        box_weights=WEIGHTS,
    )
    assert result.is_fooled.tolist() == [False]
    assert result.norms.tolist() == [0.0]
    assert result.summary()["success_rate"] == 0.0


def test_the_detector_comes_back_as_it_was() -> None:
    detector = Linear(2).train()
    detector.bias.requires_grad_(False)
    deepfool(
        detector,
        [batch(image(), [target(ANCHORS[1:2], [0])])],
        activation="sigmoid",
        thresholds=[0.5] * 2,
        box_weights=WEIGHTS,
    )
    assert detector.training
    assert (detector.weight.requires_grad, detector.bias.requires_grad) == (True, False)
    assert detector.weight.grad is None


@pytest.mark.parametrize("name", ["subject", "softmax_subject"])
def test_a_trained_detector_is_fooled_by_small_perturbations(
    name: str, validation: Squares, request: pytest.FixtureRequest
) -> None:
    subject: Subject = request.getfixturevalue(name)
    measures = measure(subject, validation, select(["deepfool"]), seed=0, deepfool_objects=12)
    assert measures.fooled is not None
    assert len(measures.fooled.norms) == 12
    summary = measures.fooled.summary()
    assert summary["success_rate"] == 100.0
    assert 0 < summary["relative_norm"] < 0.1  # type: ignore[operator]


def test_images_of_a_batch_do_not_disturb_each_other(subject: Subject, validation: Squares) -> None:
    evaluation = replace(subject.config.evaluation, batch_size=1)
    one_by_one = replace(subject, config=replace(subject.config, evaluation=evaluation))
    few = ChosenImages(validation, range(4))
    thresholds = (0.1, 0.1, 0.1)
    together = fool(subject, few, thresholds, None)
    alone = fool(one_by_one, few, thresholds, None)
    assert len(together.norms) == len(alone.norms) > 4  # some images have two objects
    # A batch is attacked in another order: one object of each image at a time.
    assert sorted(together.norms.tolist()) == pytest.approx(sorted(alone.norms.tolist()), rel=1e-3)


@pytest.mark.parametrize("name", ["ssd", "faster_rcnn"])
def test_other_detectors_can_be_attacked(name: str, validation: Squares) -> None:
    config = squares_config()
    config = replace(config, detector=replace(config.detector, name=name, head_norm=None))
    torch.manual_seed(0)
    detector = build.detector(config.detector, 3, "sigmoid")
    subject = Subject(detector, config, "sigmoid", torch.device("cpu"))
    # Untrained: with a threshold of almost 0 what is best at an object's place counts as found.
    fooled = fool(subject, validation, (1e-6,) * 3, 3)
    assert len(fooled.norms) > 0
    assert fooled.norms.isfinite().all()
