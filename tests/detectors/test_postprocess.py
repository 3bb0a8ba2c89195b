"""Detections from outputs: by hand, and as torchvision's RetinaNet makes them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator

from rankdet.detectors.postprocess import Postprocess
from rankdet.structures import Detections, Predictions

UNIT = (1.0, 1.0, 1.0, 1.0)
SIZE = (100, 100)


def make_postprocess(**settings: Any) -> Postprocess:
    defaults: dict[str, Any] = {
        "activation": "sigmoid", "box_weights": UNIT, "score_threshold": 0.1,
        "num_candidates": 10, "nms_iou": 0.5, "max_detections": 10,
    }  # fmt: skip
    return Postprocess(**(defaults | settings))


def logit(score: float) -> float:
    return math.log(score / (1 - score))


def squares(number: int, side: float = 8.0) -> Tensor:
    """Boxes next to each other that do not overlap."""
    left = 10.0 * torch.arange(number)
    top = torch.zeros(number)
    return torch.stack((left, top, left + side, top + side), dim=1)


def make_stage(
    scores: Sequence[Any],
    *,
    anchors: Tensor | None = None,
    deltas: Tensor | None = None,
    levels: tuple[int, ...] | None = None,
) -> Predictions:
    """Outputs with these scores, (B, A, K) or (A, K) of one image."""
    logits = torch.tensor(scores, dtype=torch.float64).logit().float()
    logits = logits if logits.ndim == 3 else logits.unsqueeze(0)
    num_images, num_anchors, _ = logits.shape
    return Predictions(
        "boxes",
        logits,
        torch.zeros(num_images, num_anchors, 4) if deltas is None else deltas,
        squares(num_anchors) if anchors is None else anchors,
        levels or (num_anchors,),
    )


def make_detections(
    boxes: Sequence[Sequence[float]] | Tensor,
    scores: Sequence[float],
    labels: Sequence[int] | None = None,
) -> Detections:
    boxes = torch.as_tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return Detections(
        boxes,
        torch.tensor(scores, dtype=torch.float32),
        torch.tensor([0] * len(boxes) if labels is None else labels, dtype=torch.int64),
    )


def found(detections: Detections) -> list[tuple[float, int, float]]:
    """(score, class, left edge) of each, rounded."""
    rows = zip(
        detections.scores.tolist(),
        detections.labels.tolist(),
        detections.boxes[:, 0].tolist(),
        strict=True,
    )
    return [(round(score, 4), label, round(left, 4)) for score, label, left in rows]


def test_every_pair_of_anchor_and_class_above_the_threshold_is_a_candidate_best_first() -> None:
    stage = make_stage([[0.05, 0.3], [0.9, 0.6], [0.02, 0.01]])
    (detections,) = make_postprocess().candidates([stage], [SIZE])
    assert found(detections) == [(0.9, 0, 10), (0.6, 1, 10), (0.3, 1, 0)]
    assert detections.boxes.tolist() == [[10, 0, 18, 8], [10, 0, 18, 8], [0, 0, 8, 8]]


def test_the_dtypes_are_those_of_detections() -> None:
    stage = make_stage([[0.05, 0.3]])
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        narrow = Predictions(
            "", stage.logits.to(dtype), stage.deltas.to(dtype), stage.anchors, stage.level_sizes
        )
        (detections,) = make_postprocess()([narrow], [SIZE])
        assert detections.boxes.dtype == detections.scores.dtype == torch.float32
        assert detections.labels.dtype == torch.int64
        assert detections.scores[0].item() == pytest.approx(0.3, abs=2e-3)


def test_a_score_on_the_threshold_is_no_candidate() -> None:
    logits = torch.zeros(1, 2, 1)
    logits[0, 1] = 1e-6
    stage = Predictions("", logits, torch.zeros(1, 2, 4), squares(2), (2,))
    (detections,) = make_postprocess(score_threshold=0.5).candidates([stage], [SIZE])
    assert detections.boxes[:, 0].tolist() == [10]


def test_a_level_gives_at_most_so_many_candidates() -> None:
    stage = make_stage([[0.9, 0.8], [0.7, 0.2], [0.3, 0.6], [0.5, 0.4]], levels=(2, 2))
    (detections,) = make_postprocess(num_candidates=2).candidates([stage], [SIZE])
    assert found(detections) == [(0.9, 0, 0), (0.8, 1, 0), (0.6, 1, 20), (0.5, 0, 30)]


def test_the_last_of_several_levels_has_its_own_threshold() -> None:
    scores = [[0.5], [0.05], [0.5], [0.05], [0.02]]
    stage = make_stage(scores, levels=(2, 2, 1))
    (detections,) = make_postprocess().candidates([stage], [SIZE])
    assert found(detections) == [(0.5, 0, 0), (0.5, 0, 20), (0.02, 0, 40)]
    for threshold in (None, 0.02 + 1e-6):
        postprocess = make_postprocess(last_level_threshold=threshold)
        (detections,) = postprocess.candidates([stage], [SIZE])
        assert found(detections) == [(0.5, 0, 0), (0.5, 0, 20)]


def test_a_single_level_is_not_a_last_one() -> None:
    (detections,) = make_postprocess().candidates([make_stage([[0.05]])], [SIZE])
    assert len(detections) == 0


def test_a_score_of_zero_is_never_a_candidate() -> None:
    logits = torch.tensor([[[-200.0], [-math.inf], [-80.0]]])
    stage = Predictions("", logits, torch.zeros(1, 3, 4), squares(3), (0, 3))
    (detections,) = make_postprocess(score_threshold=0.0).candidates([stage], [SIZE])
    assert detections.boxes[:, 0].tolist() == [20]


def test_softmax_leaves_the_background_out() -> None:
    logits = torch.tensor([[[9.0, 1.0, 2.0], [0.0, 1.0, 2.0]]])
    stage = Predictions("", logits, torch.zeros(1, 2, 4), squares(2), (2,))
    (detections,) = make_postprocess(activation="softmax").candidates([stage], [SIZE])
    total = 1 + math.e + math.e**2
    assert found(detections) == [
        (round(math.e**2 / total, 4), 1, 10),
        (round(math.e / total, 4), 0, 10),
    ]


def test_softmax_of_bfloat16_is_taken_in_float32() -> None:
    logits = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    stage = Predictions("", logits, torch.zeros(1, 4, 4), squares(4), (4,))
    postprocess = make_postprocess(activation="softmax", score_threshold=0.0, num_candidates=99)
    (detections,) = postprocess.candidates([stage], [SIZE])
    expected = logits.float().softmax(2)[0, :, 1:].flatten().sort(descending=True).values
    torch.testing.assert_close(detections.scores, expected)


def test_another_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 'sigmoid' or 'softmax', got 'relu'"):
        make_postprocess(activation="relu")


def test_boxes_are_decoded_with_the_weights() -> None:
    deltas = torch.tensor([[[10.0, 0.0, 5 * math.log(2), 0.0]]])
    stage = make_stage([[0.9]], deltas=deltas, anchors=torch.tensor([[20.0, 20.0, 30.0, 30.0]]))
    postprocess = make_postprocess(box_weights=(10.0, 10.0, 5.0, 5.0))
    (detections,) = postprocess.candidates([stage], [SIZE])
    torch.testing.assert_close(detections.boxes, torch.tensor([[25.0, 20.0, 45.0, 30.0]]))


def test_boxes_are_clipped_to_their_own_image() -> None:
    anchors = torch.tensor([[-5.0, 10.0, 60.0, 70.0]])
    stage = make_stage([[[0.9]], [[0.9]]], anchors=anchors)
    for sizes in (torch.tensor([[50, 100], [100, 40]]), [(50, 100), (100, 40)]):
        first, second = make_postprocess().candidates([stage], sizes)
        assert first.boxes.tolist() == [[0, 10, 60, 50]]
        assert second.boxes.tolist() == [[0, 10, 40, 70]]


def test_a_box_outside_of_its_image_is_dropped() -> None:
    stage = make_stage([[0.9], [0.8], [0.7]])  # at 0..8, 10..18, 20..28
    for size, expected in (((100, 9), [0]), ((100, 10.0005), [0]), ((100, 10.01), [0, 10])):
        (detections,) = make_postprocess().candidates([stage], torch.tensor([size]))
        assert detections.boxes[:, 0].tolist() == expected


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", range(4))
def test_a_box_that_is_not_finite_or_has_no_area_is_dropped(broken: float, column: int) -> None:
    deltas = torch.zeros(1, 3, 4)
    deltas[0, 1, column] = broken
    (detections,) = make_postprocess()([make_stage([[0.7], [0.9], [0.8]], deltas=deltas)], [SIZE])
    assert detections.boxes.isfinite().all()
    # A side of infinite size is limited as any that is too long: it stays a box.
    is_long = column >= 2 and broken == math.inf
    assert detections.scores.tolist() == pytest.approx([0.9, 0.8, 0.7] if is_long else [0.8, 0.7])


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_a_score_that_is_nan_takes_no_candidates_place(activation: str) -> None:
    logits = torch.zeros(1, 6, 2)
    logits[0, :, 1] = torch.arange(6)
    logits[0, 3:] = math.nan
    stage = Predictions("", logits, torch.zeros(1, 6, 4), squares(6), (6,))
    postprocess = make_postprocess(activation=activation, num_candidates=3, score_threshold=0.6)
    (detections,) = postprocess([stage], [SIZE])
    assert detections.boxes[:, 0].tolist() == [20, 10]
    assert (detections.scores > 0.6).all()


def test_an_infinite_logit_has_a_finite_score() -> None:
    logits = torch.tensor([[[math.inf], [1.0]]])
    stage = Predictions("", logits, torch.zeros(1, 2, 4), squares(2), (2,))
    (detections,) = make_postprocess()([stage], [SIZE])
    assert detections.scores[0] == 1
    assert len(detections) == 2


def test_images_of_a_batch_are_independent() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4, 30, 3, generator=generator)
    logits[2] = -50  # nothing in this one
    deltas = torch.randn(4, 30, 4, generator=generator)
    anchors = 3 * squares(30, side=20.0) % 80
    anchors[:, 2:] = anchors[:, :2] + 15
    levels = (20, 10)
    sizes = torch.tensor([[60, 90], [90, 60], [80, 80], [30, 95]])
    postprocess = make_postprocess(last_level_threshold=None)
    together = postprocess([Predictions("", logits, deltas, anchors, levels)], sizes)
    for image in range(4):
        one = slice(image, image + 1)
        stage = Predictions("", logits[one], deltas[one], anchors, levels)
        (alone,) = postprocess([stage], sizes[one])
        assert torch.equal(together[image].boxes, alone.boxes)
        assert torch.equal(together[image].scores, alone.scores)
        assert torch.equal(together[image].labels, alone.labels)
    assert [len(detections) > 0 for detections in together] == [True, True, False, True]


def test_the_last_stage_counts() -> None:
    first, last = make_stage([[0.9]]), make_stage([[0.8]])
    (detections,) = make_postprocess()([first, last], [SIZE])
    assert detections.scores.tolist() == pytest.approx([0.8])


def test_a_batch_without_images_has_no_detections() -> None:
    stage = Predictions("", torch.zeros(0, 3, 2), torch.zeros(0, 3, 4), squares(3), (3,))
    assert make_postprocess()([stage], []) == []
    assert make_postprocess()([stage], torch.zeros(0, 2)) == []


def test_detections_have_no_gradient() -> None:
    stage = make_stage([[0.9]])
    stage.logits.requires_grad_()
    stage.deltas.requires_grad_()
    postprocess = make_postprocess()
    for step in (postprocess, postprocess.candidates):
        (detections,) = step([stage], [SIZE])
        assert not detections.scores.requires_grad
        assert not detections.boxes.requires_grad


OVERLAPPING = [[0, 0, 10, 10], [0, 0, 10, 8], [0, 0, 10, 4.9]]  # IoU 0.8, 0.49 with the first


def test_a_box_that_a_better_one_of_its_class_overlaps_is_suppressed() -> None:
    kept = make_postprocess().suppress(make_detections(OVERLAPPING, [0.5, 0.4, 0.3]))
    assert kept.boxes.tolist() == [OVERLAPPING[0], pytest.approx(OVERLAPPING[2])]
    assert kept.scores.tolist() == pytest.approx([0.5, 0.3])


def test_a_suppressed_box_suppresses_nothing() -> None:
    # The third overlaps the second by 4.9 / 8, but the second is gone; and so in another order.
    boxes = [OVERLAPPING[1], OVERLAPPING[2], OVERLAPPING[0]]
    kept = make_postprocess().suppress(make_detections(boxes, [0.4, 0.3, 0.5]))
    assert kept.scores.tolist() == pytest.approx([0.5, 0.3])


def test_the_overlap_that_suppresses_can_be_chosen() -> None:
    detections = make_detections(OVERLAPPING, [0.5, 0.4, 0.3])
    assert len(make_postprocess(nms_iou=0.9).suppress(detections)) == 3
    assert len(make_postprocess(nms_iou=0.4).suppress(detections)) == 1


def test_other_classes_are_not_suppressed() -> None:
    kept = make_postprocess().suppress(make_detections(OVERLAPPING, [0.5, 0.4, 0.3], [0, 1, 1]))
    assert kept.labels.tolist() == [0, 1]
    assert kept.scores.tolist() == pytest.approx([0.5, 0.4])


def test_the_best_are_kept_best_first() -> None:
    scores = [0.2, 0.9, 0.5, 0.7]
    kept = make_postprocess(max_detections=3).suppress(make_detections(squares(4), scores))
    assert kept.scores.tolist() == pytest.approx([0.9, 0.7, 0.5])
    assert kept.boxes[:, 0].tolist() == [10, 30, 20]


@pytest.mark.parametrize("number", [8, 2000])  # torchvision treats more than 1000 boxes otherwise
def test_equal_scores_stay_in_their_order(number: int) -> None:
    boxes = squares(number)
    scores = [0.5 if place % 3 else 0.75 for place in range(number)]
    labels = [place % 7 for place in range(number)]
    postprocess = make_postprocess(max_detections=number)
    kept = postprocess.suppress(make_detections(boxes, scores, labels))
    places = (kept.boxes[:, 0] / 10).int().tolist()
    assert places == sorted(range(number), key=lambda place: place % 3 != 0)


def test_nothing_stays_nothing() -> None:
    kept = make_postprocess().suppress(make_detections([], []))
    assert len(kept) == 0
    assert kept.boxes.shape == (0, 4)


def test_calling_it_does_both_steps() -> None:
    anchors = torch.tensor(OVERLAPPING)
    stage = make_stage([[0.9, 0.8], [0.6, 0.95], [0.5, 0.05]], anchors=anchors)
    postprocess = make_postprocess(max_detections=2)
    (candidates,) = postprocess.candidates([stage], [SIZE])
    assert len(candidates) == 5
    (detections,) = postprocess([stage], [SIZE])
    assert found(detections) == [(0.95, 1, 0), (0.9, 0, 0)]


@pytest.mark.parametrize("max_detections", [3, 60])
def test_all_images_at_once_have_the_detections_of_each(max_detections: int) -> None:
    stage = random_outputs(3, seed=2)
    sizes = [(100, 80), (100, 100), (64, 100)]
    postprocess = make_postprocess(num_candidates=50, max_detections=max_detections)
    together = postprocess._together([stage], sizes)
    assert [len(detections) for detections in together] == [max_detections] * 3
    for ours, theirs in zip(together, postprocess([stage], sizes), strict=True):
        torch.testing.assert_close(vars(ours), vars(theirs), rtol=0, atol=0)


# --- torchvision as the judge ---


class TinyBackbone(nn.Module):
    out_channels = 8

    def forward(self, images: Tensor) -> Tensor:
        raise AssertionError("the outputs are given, nothing is computed")


LEVELS = (300, 75, 12)
NUM_CLASSES = 4


def random_outputs(num_images: int, seed: int) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    centres = 100 * torch.rand(sum(LEVELS), 2, generator=generator)
    sides = 10 + 30 * torch.rand(sum(LEVELS), 2, generator=generator)
    anchors = torch.cat((centres - sides / 2, centres + sides / 2), dim=1)
    shape = (num_images, sum(LEVELS))
    logits = 2 * torch.randn(*shape, NUM_CLASSES, generator=generator) - 1
    deltas = 0.3 * torch.randn(*shape, 4, generator=generator)
    return Predictions("", logits, deltas, anchors, LEVELS)


@pytest.fixture
def judge() -> Callable[..., list[dict[str, Tensor]]]:
    """torchvision's detections from the same outputs."""

    def run(
        stage: Predictions, sizes: list[tuple[int, int]], **settings: Any
    ) -> list[dict[str, Tensor]]:
        model = RetinaNet(
            TinyBackbone(),
            num_classes=NUM_CLASSES,
            anchor_generator=AnchorGenerator(((8,),), ((1.0,),)),
            **settings,
        )
        outputs = {
            "cls_logits": list(stage.logits.split(LEVELS, dim=1)),
            "bbox_regression": list(stage.deltas.split(LEVELS, dim=1)),
        }
        anchors = [list(stage.anchors.split(LEVELS))] * len(sizes)
        return model.postprocess_detections(outputs, anchors, sizes)

    return run


@pytest.mark.parametrize("threshold", [0.05, 0.6])
@pytest.mark.parametrize("num_candidates", [20, 100, 5000])
@pytest.mark.parametrize("nms_iou", [0.3, 0.5])
def test_detections_are_those_of_torchvision(
    judge: Callable[..., list[dict[str, Tensor]]],
    threshold: float,
    num_candidates: int,
    nms_iou: float,
) -> None:
    stage = random_outputs(3, seed=num_candidates)
    sizes = [(100, 80), (100, 100), (64, 100)]
    expected = judge(
        stage,
        sizes,
        score_thresh=threshold,
        topk_candidates=num_candidates,
        nms_thresh=nms_iou,
        detections_per_img=5000,
    )
    detections = make_postprocess(
        score_threshold=threshold,
        num_candidates=num_candidates,
        nms_iou=nms_iou,
        max_detections=60,
        last_level_threshold=None,
    )([stage], sizes)
    for ours, theirs in zip(detections, expected, strict=True):
        # torchvision keeps boxes beside the image, of which clipping left nothing.
        sides = theirs["boxes"][:, 2:] - theirs["boxes"][:, :2]
        kept = (sides > 0).all(dim=1).nonzero().squeeze(1)[:60]
        assert len(kept) > 30
        assert torch.equal(ours.labels, theirs["labels"][kept])
        torch.testing.assert_close(ours.scores, theirs["scores"][kept])
        torch.testing.assert_close(ours.boxes, theirs["boxes"][kept])


@pytest.mark.gpu
def test_a_gpu_finds_the_same() -> None:
    stage = random_outputs(3, seed=1)
    moved = Predictions("", stage.logits.cuda(), stage.deltas.cuda(), stage.anchors.cuda(), LEVELS)
    sizes = [(100, 80), (100, 100), (64, 100)]
    postprocess = make_postprocess(num_candidates=50, max_detections=60)
    for ours, theirs in zip(postprocess([moved], sizes), postprocess([stage], sizes), strict=True):
        assert torch.equal(ours.labels.cpu(), theirs.labels)
        torch.testing.assert_close(ours.scores.cpu(), theirs.scores)
        torch.testing.assert_close(ours.boxes.cpu(), theirs.boxes)


# Anchors of each image, boxes of each class


def test_each_image_has_its_own_anchors() -> None:
    anchors = torch.stack([squares(2), squares(2) + 5])
    stage = make_stage([[[0.9], [0.8]], [[0.7], [0.6]]], anchors=anchors)
    first, second = make_postprocess()([stage], [(100, 100)] * 2)
    assert first.boxes.tolist() == squares(2).tolist()
    assert second.boxes.tolist() == (squares(2) + 5).tolist()


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_a_class_has_a_box_of_its_own(activation: str) -> None:
    anchors = squares(2)
    deltas = torch.zeros(1, 2, 2, 4)
    deltas[0, 0, 1, 0] = 1.0  # class 1 of the first: a whole side to the right
    deltas[0, 1, 0, 1] = 0.5  # class 0 of the second: half a side down
    stage = make_stage([[0.9, 0.8], [0.7, 0.6]], anchors=anchors, deltas=deltas)
    if activation == "softmax":
        logits = torch.cat([torch.zeros(1, 2, 1), stage.logits], dim=2)
        stage = dataclasses.replace(stage, logits=logits)
    (detections,) = make_postprocess(activation=activation, nms_iou=0.9)([stage], [(100, 100)])
    assert len(detections) == 4
    rows = {
        (round(box[0]), label): box
        for box, label in zip(detections.boxes.tolist(), detections.labels.tolist(), strict=True)
    }
    assert rows[0, 0] == [0, 0, 8, 8]
    assert rows[8, 1] == [8, 0, 16, 8]
    assert rows[10, 0] == [10, 4, 18, 12]
    assert rows[10, 1] == [10, 0, 18, 8]


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
@pytest.mark.parametrize("threshold", [0.0, 0.01])
def test_padding_is_never_detected(activation: str, threshold: float) -> None:
    stage = make_stage([[[0.99, 0.2], [0.8, 0.3]]], anchors=squares(2).unsqueeze(0))
    stage = dataclasses.replace(stage, is_padding=torch.tensor([[True, False]]))
    postprocess = make_postprocess(activation=activation, score_threshold=threshold)
    (detections,) = postprocess([stage], [(100, 100)])
    assert len(detections) > 0
    assert (detections.boxes[:, 0] == 10).all()
    nothing = dataclasses.replace(stage, is_padding=torch.tensor([[True, True]]))
    assert [len(found) for found in postprocess([nothing], [(100, 100)])] == [0]


def test_no_image_has_no_detections_of_its_own_anchors() -> None:
    stage = make_stage([[[0.9], [0.8]]], anchors=squares(2).unsqueeze(0)).select(slice(0))
    assert make_postprocess()([stage], torch.zeros(0, 2)) == []
