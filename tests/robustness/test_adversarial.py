"""The adversarial patch: placed right, trained towards a known optimum, and harmful."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from squares import Squares, batches, squares_config
from torch import Tensor, nn

from rankdet import build
from rankdet.detectors.assign import Assignment, IoUAssigner
from rankdet.robustness.adversarial import (
    PatchSettings,
    objects_log_odds,
    place_patch,
    train_patch,
    transformed,
)
from rankdet.robustness.patches import centre_windows, paste_patch
from rankdet.robustness.perturbed import PerturbedDataset
from rankdet.robustness.suite import ADVERSARIAL, perturbation, select
from rankdet.structures import Predictions, Target
from rankdet.workflows.robustness_measures import Subject, make_patch, measure

STILL = PatchSettings(rotation=0.0, zoom=0.0, brightness=0.0)


def target(boxes: list[list[float]], size: tuple[int, int]) -> Target:
    count = len(boxes)
    return Target(
        boxes=torch.tensor(boxes),
        labels=torch.zeros(count, dtype=torch.int64),
        is_ignored=torch.zeros(count, dtype=torch.bool),
        areas=torch.ones(count),
        image_id=0,
        size=size,
    )


def stage(logits: Tensor) -> Predictions:
    num_anchors = logits.shape[1]
    return Predictions(
        "", logits, torch.zeros(len(logits), num_anchors, 4), torch.zeros(num_anchors, 4), ()
    )


def test_the_objective_is_the_mean_of_the_smooth_maxima_of_objects() -> None:
    logits = torch.tensor([[[1.0, 9.0], [2.0, 9.0], [9.0, 3.0], [5.0, 5.0]]])
    labels = torch.tensor([[0, 0, 1, -1]])
    matched = torch.tensor([[0, 0, 1, -1]])
    assignment = Assignment(labels, matched, torch.zeros(1, 4))
    first = np.log(np.exp(1.0) + np.exp(2.0))
    value = objects_log_odds(stage(logits), assignment, "sigmoid")
    assert value is not None
    assert value.item() == pytest.approx((first + 3.0) / 2)


def test_objects_of_different_images_are_different_objects() -> None:
    logits = torch.tensor([[[1.0]], [[3.0]]])
    zero = torch.zeros(2, 1, dtype=torch.int64)
    value = objects_log_odds(stage(logits), Assignment(zero, zero, torch.zeros(2, 1)), "sigmoid")
    assert value is not None
    assert value.item() == pytest.approx(2.0)


def test_for_a_softmax_the_objective_is_the_log_odds_of_the_score() -> None:
    logits = torch.tensor([[[0.3, 1.0, -2.0]]])
    zero = torch.zeros(1, 1, dtype=torch.int64)
    value = objects_log_odds(stage(logits), Assignment(zero, zero, torch.zeros(1, 1)), "softmax")
    score = logits[0, 0].softmax(0)[1]
    assert value is not None
    assert value.item() == pytest.approx((score / (1 - score)).log().item(), rel=1e-5)


def test_without_objects_there_is_no_objective() -> None:
    none = torch.full((1, 2), -1)
    assert (
        objects_log_odds(
            stage(torch.zeros(1, 2, 1)), Assignment(none, none, torch.zeros(1, 2)), "sigmoid"
        )
        is None
    )


def test_a_patch_that_is_not_transformed_lies_as_in_the_evaluation() -> None:
    images = torch.rand(2, 3, 24, 32)
    targets = [target([[2.0, 2, 20, 18], [20, 10, 31, 23]], (24, 32)), target([], (24, 32))]
    targets[1] = replace(targets[1], boxes=torch.zeros(0, 4))
    patch = torch.rand(3, 10, 10)
    placed = place_patch(images, targets, patch, STILL, np.random.default_rng(0))
    wanted = paste_patch(images[0], targets[0].boxes, patch)
    assert torch.allclose(placed[0], wanted, atol=1e-5)
    assert torch.equal(placed[1], images[1])


def test_ignored_objects_get_no_patch_in_training_either() -> None:
    images = torch.rand(1, 3, 16, 16)
    own = replace(target([[0.0, 0, 8, 8]], (16, 16)), is_ignored=torch.tensor([True]))
    placed = place_patch(images, [own], torch.rand(3, 4, 4), STILL, np.random.default_rng(0))
    assert torch.equal(placed, images)


def test_the_gradient_reaches_the_patch() -> None:
    patch = torch.full((3, 6, 6), 0.5, requires_grad=True)
    own = target([[0.0, 0, 12, 12]], (16, 16))
    placed = place_patch(
        torch.zeros(1, 3, 16, 16), [own], patch, PatchSettings(), np.random.default_rng(0)
    )
    placed.sum().backward()
    assert patch.grad is not None
    assert (patch.grad > 0).all()


def test_a_quarter_turn_and_a_zoom_by_hand() -> None:
    content = torch.rand(3, 6, 6)
    still = transformed(content, angle=0.0, zoom=1.0, brightness=0.0)
    assert torch.allclose(still, content, atol=1e-6)
    turned = transformed(content, angle=np.pi / 2, zoom=1.0, brightness=0.0)
    assert torch.allclose(turned, content.rot90(1, (1, 2)), atol=1e-5)
    brighter = transformed(torch.full((3, 2, 2), 0.95), angle=0.0, zoom=1.0, brightness=0.1)
    assert torch.equal(brighter, torch.ones(3, 2, 2))


class RedIsObject(nn.Module):
    """One anchor over the image, whose logit is the mean of the red channel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.told: Any = None

    def forward(self, images: Tensor, sizes: Any = None) -> list[Predictions]:
        self.told = sizes
        logits = self.weight * images[:, :1].mean(dim=(2, 3)).unsqueeze(2)
        anchors = torch.tensor([[0.0, 0.0, 8.0, 8.0]])
        return [Predictions("red", logits, torch.zeros(len(images), 1, 4), anchors, (1,))]


def test_the_patch_becomes_what_the_detector_likes_least() -> None:
    own = target([[0.0, 0, 8, 8]], (8, 8))
    batch: Any = SimpleNamespace(
        images=torch.rand(1, 3, 8, 8), targets=[own], sizes=torch.tensor([[8, 8]])
    )
    told: list[tuple[int, float | None]] = []
    detector = RedIsObject()
    patch = train_patch(
        detector,
        IoUAssigner(),
        "sigmoid",
        [batch] * 40,
        PatchSettings(steps=30, side=4, seed=1),
        on_step=lambda *values: told.append(values),
    )
    assert patch[0].max() == 0
    assert torch.allclose(patch[1:], torch.tensor(128 / 255))  # nothing depends on green and blue
    assert len(told) == 30
    assert told[-1][1] < told[0][1]  # type: ignore[operator]
    assert detector.told.tolist() == [[8, 8]]


def test_too_few_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 3, got 0"):
        train_patch(RedIsObject(), IoUAssigner(), "sigmoid", [], PatchSettings(steps=3))


def test_the_same_seed_gives_the_same_patch(subject: Subject) -> None:
    settings = PatchSettings(steps=2, side=8, seed=5)
    first, second = (make_patch(subject, Squares(16, seed=1), settings) for _ in range(2))
    assert torch.equal(first, second)
    assert ((first * 255).round() / 255 == first).all()


def mean_best_log_odds(subject: Subject, dataset: Any) -> float:
    """How well the detector sees the objects of a data set."""
    config = subject.config
    assigner = build.criterion(config, build.class_loss(config.loss)).assigner
    values = []
    with torch.no_grad():
        for batch in batches(dataset, 3):
            (predictions,) = subject.detector(batch.images)
            value = objects_log_odds(
                predictions, assigner(predictions, batch.targets), subject.activation
            )
            assert value is not None
            values.append(value.item())
    return float(np.mean(values))


@pytest.mark.parametrize("name", ["subject", "softmax_subject"])
def test_the_adversarial_patch_does_more_harm_than_a_random_one(
    name: str, validation: Squares, request: pytest.FixtureRequest
) -> None:
    subject: Subject = request.getfixturevalue(name)
    patch = make_patch(subject, Squares(80, seed=1), PatchSettings(steps=40, side=16))
    noise = torch.rand(patch.shape, generator=torch.Generator().manual_seed(0))

    def measured(chosen: str, content: Tensor | None = None) -> float:
        images = measure(subject, validation, select([chosen]), seed=0, patch=content).images
        value = images[-1].evaluation.metrics["AP50"]
        assert value is not None
        return value

    adversarial = measured(ADVERSARIAL, patch)
    assert adversarial < measured(ADVERSARIAL, noise) - 10  # the same place, random colours
    assert adversarial < measured("random") - 10  # the paper's Random-Patch
    seen = {
        kind: mean_best_log_odds(
            subject, PerturbedDataset(validation, perturbation(ADVERSARIAL, content))
        )
        for kind, content in (("adversarial", patch), ("noise", noise))
    }
    assert seen["adversarial"] < seen["noise"] - 0.2


@pytest.mark.parametrize("name", ["ssd", "faster_rcnn"])
def test_a_patch_can_be_trained_for_other_detectors(name: str) -> None:
    config = squares_config()
    config = replace(config, detector=replace(config.detector, name=name, head_norm=None))
    torch.manual_seed(0)
    detector = build.detector(config.detector, 3, "sigmoid")
    subject = Subject(detector, config, "sigmoid", torch.device("cpu"))
    patch = make_patch(subject, Squares(8, seed=1), PatchSettings(steps=2, side=8))
    assert patch.shape == (3, 8, 8)
    assert (patch != 128 / 255).any()


def test_windows_are_those_of_the_evaluation() -> None:
    own = target([[1.0, 1, 9, 9]], (12, 12))
    ((left, top, right, bottom),) = centre_windows(own.boxes, own.size)
    placed = place_patch(
        torch.zeros(1, 3, 12, 12), [own], torch.ones(3, 4, 4), STILL, np.random.default_rng(0)
    )
    assert placed[0, 0].sum().item() == (right - left) * (bottom - top)
