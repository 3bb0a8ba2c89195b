"""Faster R-CNN: shapes, what flows where, and that torchvision's weights give its results."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torchvision.models.detection import fasterrcnn_resnet50_fpn
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import fastrcnn_loss

from rankdet import build
from rankdet.boxes import encode_boxes
from rankdet.config import Config, DetectorConfig, LossConfig
from rankdet.detectors.assign import IoUAssigner, matched_boxes
from rankdet.detectors.criterion import Losses
from rankdet.detectors.detector import freeze
from rankdet.detectors.faster_rcnn import FasterRCNN, make_faster_rcnn
from rankdet.detectors.postprocess import Postprocess
from rankdet.losses.labels import IGNORED
from rankdet.structures import Predictions, Target

NUM_CLASSES = 3
SIZE = (64, 96)


def make_small(**options: Any) -> FasterRCNN:
    torch.manual_seed(0)
    usual = {
        "backbone": "small",
        "norm": "group",
        "anchor_scale": 2.0,
        "num_rois": 30,
        "num_proposals": 60,
        "num_test_proposals": 40,
    }
    return make_faster_rcnn(NUM_CLASSES, **(usual | options))


def make_target(
    boxes: Sequence[Sequence[float]], image_id: int = 1, size: tuple[int, int] = SIZE
) -> Target:
    corners = torch.tensor(boxes, dtype=torch.float32).view(-1, 4)
    number = len(corners)
    no = torch.zeros(number, dtype=torch.bool)
    labels = torch.arange(number) % NUM_CLASSES
    return Target(corners, labels, no, torch.ones(number), image_id, size)


TARGETS = [make_target([[10, 10, 40, 40], [50, 20, 80, 60]], 1), make_target([], 2)]


@pytest.fixture(scope="module")
def small() -> FasterRCNN:
    return make_small().eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.rand(2, 3, *SIZE, generator=torch.Generator().manual_seed(3))


def losses_of(stages: list[Predictions], targets: list[Target], loss: str = "ap") -> Losses:
    config = Config(detector=DetectorConfig(name="faster_rcnn"), loss=LossConfig(loss))
    return build.criterion(config, build.class_loss(config.loss))(stages, targets)


# What comes out


def test_there_are_two_stages_of_anchors_and_of_proposals(
    small: FasterRCNN, images: Tensor
) -> None:
    first, second = small(images)
    num_anchors = 3 * (8 * 12 + 4 * 6 + 2 * 3)
    assert (first.name, second.name) == ("rpn", "roi")
    assert first.logits.shape == (2, num_anchors, 1)
    assert first.deltas.shape == (2, num_anchors, 4)
    assert first.anchors.shape == (num_anchors, 4)
    assert sum(first.level_sizes) == num_anchors
    assert first.is_padding is None
    number = second.anchors.shape[1]
    assert second.logits.shape == (2, number, NUM_CLASSES)
    assert second.deltas.shape == (2, number, NUM_CLASSES, 4)
    assert second.level_sizes == (number,)
    assert second.is_padding is not None
    assert second.is_padding.shape == (2, number)
    assert (~second.is_padding).sum(dim=1).max() == number <= 40


def test_softmax_has_a_column_for_the_background_but_no_box(images: Tensor) -> None:
    _, second = make_small(activation="softmax").eval()(images)
    assert second.logits.shape[2] == NUM_CLASSES + 1
    assert second.deltas.shape[2:] == (NUM_CLASSES, 4)


def test_proposals_lie_in_the_image(small: FasterRCNN, images: Tensor) -> None:
    _, second = small(images)
    assert (second.anchors >= 0).all()
    assert (second.anchors <= torch.tensor([SIZE[1], SIZE[0]] * 2)).all()
    targets = [make_target([], 1, (40, 64)), make_target([], 2)]
    for told in ({"targets": targets}, {"sizes": [(40, 64), SIZE]}):
        _, second = small(images, **told)
        assert (second.anchors[0] <= torch.tensor([64, 40] * 2)).all()
        assert second.anchors[1, :, 2].max() > 64


@torch.no_grad()
def test_an_image_has_the_same_detections_alone_and_beside_a_larger_one() -> None:
    """The network sees single pixels, and nothing in the mean colour: no other has a say."""
    detector = make_small(norm="frozen", num_test_proposals=20).double().eval()
    for layer in detector.modules():
        if isinstance(layer, torch.nn.Conv2d):
            torch.nn.init.normal_(layer.weight, std=(2 / layer.in_channels) ** 0.5)
            middle = layer.kernel_size[0] // 2
            kept = layer.weight[:, :, middle, middle].clone()
            layer.weight.zero_()[:, :, middle, middle] = kept
    detector.rpn.head.bbox_pred.weight *= 0.1  # boxes larger and smaller than their anchors
    torch.nn.init.normal_(detector.roi_heads.box_predictor.cls_score.weight, std=0.1)
    image = detector.mean.repeat(1, 1, 96, 96)
    image[:, :, :64, :64] = torch.rand(3, 64, 64)
    together = torch.rand(2, 3, 128, 160).double()
    together[0] = detector.mean
    together[:1, :, :96, :96] = image
    postprocess = Postprocess(
        activation="sigmoid", box_weights=(10, 10, 5, 5), score_threshold=0.0, num_candidates=99
    )
    sizes = torch.tensor([[96, 96], [128, 160]])
    (alone,) = postprocess(detector(image), sizes[:1])
    stages = detector(together, sizes=sizes)
    beside, _ = postprocess(stages, sizes)
    assert (stages[1].anchors[0, :, 2:] == 96).any()  # else nothing was clipped
    assert len(alone) > 10
    torch.testing.assert_close(beside.boxes, alone.boxes)
    torch.testing.assert_close(beside.scores, alone.scores)
    assert torch.equal(beside.labels, alone.labels)


def test_with_targets_the_rois_are_chosen_and_hold_the_objects(
    small: FasterRCNN, images: Tensor
) -> None:
    _, second = small(images, TARGETS)
    assert second.anchors.shape[1] == 30
    rows = second.anchors[0].tolist()
    assert all(box in rows for box in TARGETS[0].boxes.tolist())


@torch.no_grad()
def test_more_rois_than_torchvisions_2000_are_really_reached() -> None:
    config = DetectorConfig(name="faster_rcnn", backbone="small", norm="group", rois=2500)
    torch.manual_seed(0)
    detector = build.detector(config, NUM_CLASSES, "sigmoid")
    target = make_target([[10, 10, 60, 60]], size=(256, 256))
    _, second = detector(torch.rand(1, 3, 256, 256), [target])
    assert second.is_padding is not None
    assert (~second.is_padding).sum() == 2500


def test_an_image_has_the_same_predictions_in_any_batch(small: FasterRCNN, images: Tensor) -> None:
    _, together = small(images, TARGETS)
    _, alone = small(images[:1], TARGETS[:1])
    torch.testing.assert_close(together.anchors[:1], alone.anchors, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(together.logits[:1], alone.logits, atol=1e-4, rtol=1e-4)


def test_the_maps_are_read_at_their_strides_whatever_image_came_first(images: Tensor) -> None:
    detector, other = make_small().eval(), make_small().eval()
    other(torch.rand(1, 3, 33, 33))  # of 33 pixels P5 has 2 places, as if its stride were 16
    assert torch.equal(detector(images)[1].logits, other(images)[1].logits)


def test_autocast_gives_narrow_outputs_and_wide_boxes(small: FasterRCNN, images: Tensor) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        first, second = small(images, TARGETS)
    assert first.logits.dtype == second.logits.dtype == second.deltas.dtype == torch.bfloat16
    assert first.anchors.dtype == second.anchors.dtype == torch.float32
    assert all(part.isfinite() for part in losses_of([first, second], TARGETS).parts.values())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"activation": "relu"}, "activation: expected 'sigmoid' or 'softmax', got 'relu'"),
        ({"head_norm": "batch"}, "head_norm: expected None or 'group', got 'batch'"),
        ({"num_rois": 0}, "num_rois: expected at least 1, got 0"),
        ({"num_test_proposals": 0}, "num_test_proposals: expected at least 1, got 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_small(**options)
    with pytest.raises(ValueError, match="num_classes: expected at least 1, got 0"):
        make_faster_rcnn(0, backbone="small")


def test_anchors_of_0_pixels_are_refused_at_the_finest_stride() -> None:
    text = "anchor_scale: expected anchors of at least a pixel, got 0.2"
    with pytest.raises(ValueError, match=text):  # 0.2 * 4 pixels
        make_small(backbone="resnet18", anchor_scale=0.2, anchor_grid="torchvision")
    with pytest.raises(ValueError, match="expected no anchor that the grid 'torchvision' rounds"):
        make_small(backbone="resnet18", anchor_scale=0.25, anchor_grid="torchvision")
    assert make_small(backbone="resnet18", anchor_scale=0.25).rpn.anchors.num_per_place == 3


# What flows


def gradients(detector: FasterRCNN) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in detector.named_parameters()}


@pytest.mark.parametrize(("num_images", "loss"), [(0, "ap"), (1, "ap"), (2, "ce")])
def test_every_parameter_gets_a_gradient(num_images: int, loss: str, images: Tensor) -> None:
    detector = make_small(activation="softmax" if loss == "ce" else "sigmoid").train()
    targets = TARGETS[::-1][:num_images]  # one image: without objects
    losses = losses_of(detector(images[:num_images], targets), targets, loss)
    losses.total.backward()
    found = gradients(detector)
    assert all(gradient is not None for gradient in found.values())
    assert all(gradient.isfinite().all() for gradient in found.values() if gradient is not None)
    is_any = any(bool(gradient.any()) for gradient in found.values() if gradient is not None)
    assert is_any is (num_images > 0)


def test_no_image_gives_empty_stages() -> None:
    detector = make_small().train()
    first, second = detector(torch.zeros(0, 3, *SIZE), [])
    assert first.logits.shape[0] == second.logits.shape[0] == second.anchors.shape[0] == 0
    assert second.is_padding is not None
    assert len(second.is_padding) == 0
    assert detector.training
    assert losses_of([first, second], []).total == 0


def test_the_second_stage_does_not_train_the_boxes_of_the_first(images: Tensor) -> None:
    detector = make_small().train()
    _, second = detector(images, TARGETS)
    (second.logits.square().sum() + second.deltas.square().sum()).backward()
    found = gradients(detector)
    assert all(value is None for name, value in found.items() if name.startswith("rpn."))
    assert all(value is not None for name, value in found.items() if not name.startswith("rpn."))


def test_the_losses_count_the_rois_and_the_positives_among_them(
    small: FasterRCNN, images: Tensor
) -> None:
    stages = small(images, TARGETS)
    losses = losses_of(stages, TARGETS)
    labels = losses.assignments[1].labels
    assert set(losses.parts) == {"rpn.class", "rpn.box", "roi.class", "roi.box"}
    assert set(losses.counts) == {"roi.boxes", "roi.positives"}
    assert losses.counts["roi.boxes"] == (labels != IGNORED).sum() == 60
    assert losses.counts["roi.positives"] == (labels >= 0).sum() >= 2


def test_freezing_excludes_the_stages_of_the_body() -> None:
    detector = make_small()
    freeze(detector, 2)
    frozen = {name for name, value in detector.named_parameters() if not value.requires_grad}
    assert {name.split(".")[2] for name in frozen} == {"stem", "layer1"}


def test_sigmoids_begin_with_a_low_probability(small: FasterRCNN, images: Tensor) -> None:
    _, second = small(images)
    assert second.logits.sigmoid().mean().item() == pytest.approx(0.01, rel=0.3)
    _, second = make_small(activation="softmax").eval()(images)
    shares = second.logits.softmax(dim=2).mean(dim=(0, 1))
    assert shares.tolist() == pytest.approx([0.25] * 4, rel=0.3)


def test_a_norm_of_the_heads_stands_in_the_first_stage() -> None:
    keys = make_small(head_norm="group").state_dict().keys()
    assert "rpn.head.conv.0.1.weight" in keys
    assert "rpn.head.conv.0.1.weight" not in make_small().state_dict()


# Against torchvision


@pytest.fixture(scope="module")
def peer() -> Any:
    """torchvision's, with random weights: few boxes are so narrow that they are none."""
    torch.manual_seed(1)
    model = fasterrcnn_resnet50_fpn(
        weights=None,
        weights_backbone=None,
        num_classes=NUM_CLASSES + 1,
        min_size=SIZE[0],
        max_size=SIZE[1],
    )
    with torch.no_grad():
        model.rpn.head.bbox_pred.weight *= 0.3
        model.roi_heads.box_predictor.bbox_pred.weight *= 0.3
    return model.eval()


@pytest.fixture(scope="module")
def ours(peer: Any) -> FasterRCNN:
    detector = make_faster_rcnn(
        NUM_CLASSES, activation="softmax", norm="frozen", anchor_grid="torchvision"
    ).eval()
    state = peer.state_dict()
    assert {name for name in state if "num_batches" not in name} == detector.state_dict().keys()
    detector.load_state_dict(
        {name: tensor for name, tensor in state.items() if "num_batches" not in name}
    )
    return detector


@torch.no_grad()
def test_weights_of_torchvision_give_its_results(
    peer: Any, ours: FasterRCNN, images: Tensor
) -> None:
    first, second = ours(images)
    normalised = (images - ours.mean) / ours.deviation
    maps = peer.backbone(normalised)
    anchors = peer.rpn.anchor_generator(ImageList(normalised, [SIZE] * 2), list(maps.values()))
    assert torch.equal(first.anchors, anchors[0])
    logits, deltas = peer.rpn.head(list(maps.values()))
    close = {"atol": 1e-4, "rtol": 1e-4}
    num_before = 0
    for of_level, boxes, size in zip(logits, deltas, first.level_sizes, strict=True):
        level = slice(num_before, num_before + size)
        expected = of_level.permute(0, 2, 3, 1).reshape(2, -1)
        torch.testing.assert_close(first.logits[:, level, 0], expected, **close)
        moved = boxes.view(2, 3, 4, *boxes.shape[2:]).permute(0, 3, 4, 1, 2).reshape(2, -1, 4)
        torch.testing.assert_close(first.deltas[:, level], moved, **close)
        num_before += size

    proposals, _ = peer.rpn(ImageList(normalised, [SIZE] * 2), maps)
    assert second.is_padding is not None
    for image, expected in enumerate(proposals):
        kept = second.anchors[image][~second.is_padding[image]]
        torch.testing.assert_close(kept, expected, atol=1e-3, rtol=1e-4)
    regions = peer.roi_heads.box_roi_pool(maps, proposals, [SIZE] * 2)
    scores, boxes = peer.roi_heads.box_predictor(peer.roi_heads.box_head(regions))
    is_roi = ~second.is_padding
    torch.testing.assert_close(second.logits[is_roi], scores, atol=1e-3, rtol=1e-3)
    of_classes = boxes.view(len(boxes), -1, 4)[:, 1:]
    torch.testing.assert_close(second.deltas[is_roi], of_classes, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_detections_are_those_of_torchvision(peer: Any, ours: FasterRCNN, images: Tensor) -> None:
    postprocess = Postprocess(
        activation="softmax",
        box_weights=(10, 10, 5, 5),
        score_threshold=0.05,
        num_candidates=100_000,
        nms_iou=0.5,
        max_detections=100,
    )
    for found, expected in zip(
        postprocess(ours(images), [SIZE] * 2), peer(list(images)), strict=True
    ):
        assert len(found) == len(expected["scores"]) > 20
        torch.testing.assert_close(found.scores, expected["scores"], atol=1e-4, rtol=1e-3)
        assert torch.equal(found.labels, expected["labels"] - 1)
        torch.testing.assert_close(found.boxes, expected["boxes"], atol=1e-2, rtol=1e-3)


def test_the_losses_of_the_second_stage_are_those_of_torchvision(images: Tensor) -> None:
    detector = make_small(activation="softmax").eval()
    stages = detector(images, TARGETS)
    second = stages[1]
    losses = losses_of(stages, TARGETS, "ce")
    assignment = losses.assignments[1]
    is_counted = assignment.labels != IGNORED
    goals = encode_boxes(
        matched_boxes(assignment, TARGETS, second.anchors), second.anchors, (10, 10, 5, 5)
    )
    with_background = torch.cat([torch.zeros_like(second.deltas[:, :, :1]), second.deltas], dim=2)
    class_loss, box_loss = fastrcnn_loss(
        second.logits[is_counted],
        with_background[is_counted].flatten(1),
        [assignment.labels[is_counted] + 1],
        [goals[is_counted]],
    )
    torch.testing.assert_close(losses.parts["roi.class"], class_loss)
    torch.testing.assert_close(losses.parts["roi.box"], box_loss)
    assert box_loss > 0


def test_the_losses_of_the_first_stage_are_those_of_torchvision(
    peer: Any, small: FasterRCNN, images: Tensor
) -> None:
    """With a sample of all anchors: torchvision draws others."""
    rpn = copy.copy(peer.rpn)
    first = small(images, TARGETS)[0]
    number = len(first.anchors)
    rpn.fg_bg_sampler = lambda labels: (
        [(of_image >= 1).to(torch.uint8) for of_image in labels],
        [(of_image == 0).to(torch.uint8) for of_image in labels],
    )
    objects = [{"boxes": target.boxes} for target in TARGETS]
    labels, boxes = rpn.assign_targets_to_anchors([first.anchors] * 2, objects)
    goals = rpn.box_coder.encode(boxes, [first.anchors] * 2)
    class_loss, box_loss = rpn.compute_loss(
        first.logits.flatten(), first.deltas.flatten(0, 1), labels, goals
    )
    config = Config(detector=DetectorConfig(name="faster_rcnn"))
    criterion = build.criterion(config, build.class_loss(config.loss))
    stage = criterion.stages["rpn"]
    stage.assigner.num_samples, stage.assigner.num_positives = 2 * number, number
    assert isinstance(stage.assigner.assigner, IoUAssigner)
    losses = criterion([first, small(images, TARGETS)[1]], TARGETS)
    torch.testing.assert_close(losses.parts["rpn.class"], class_loss)
    torch.testing.assert_close(losses.parts["rpn.box"], box_loss)
    assert box_loss > 0
