"""Another class loss in torchvision's SSD and Faster R-CNN, which have a background column."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN, MaskRCNN, ssdlite320_mobilenet_v3_large
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.ssd import SSD
from torchvision.ops import MultiScaleRoIAlign

from rankdet.integrations.torchvision import SSDWithLoss, set_class_loss
from rankdet.losses import (
    BACKGROUND,
    APLoss,
    AUCLoss,
    DRLoss,
    FocalLoss,
    GHMLoss,
    OHEMLoss,
    ap_loss,
    ohem_loss,
)

NUM_CLASSES = 4  # and background
Model = SSD | FasterRCNN


class TinyBackbone(nn.Sequential):
    """Features with a stride of 16."""

    out_channels = 16

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for channels in (3, 16, 16, 16):
            layers += [nn.Conv2d(channels, 16, 3, stride=2, padding=1), nn.ReLU()]
        super().__init__(*layers)


def make_ssd() -> SSD:
    boxes = DefaultBoxGenerator([[2]], scales=[0.3, 0.6])
    return SSD(tiny_maps(), boxes, (96, 64), NUM_CLASSES + 1)


def tiny_maps() -> TinyBackbone:
    backbone = TinyBackbone()
    backbone.out_channels = [16]  # type: ignore[assignment]  # SSD wants a list
    return backbone


def make_faster_rcnn(**options: Any) -> FasterRCNN:
    settings = {"rpn_post_nms_top_n_train": 40, "rpn_post_nms_top_n_test": 40, "min_size": 64}
    return FasterRCNN(
        TinyBackbone(),
        rpn_anchor_generator=AnchorGenerator(((16, 32),), ((0.5, 1.0, 2.0),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2),
        box_head=TwoMLPHead(16 * 9, 32),
        box_predictor=FastRCNNPredictor(32, NUM_CLASSES + 1),
        max_size=96,
        **{**settings, **options},
    )


def initialise(model: Model) -> Model:
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):  # so that the scores differ
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model.train()


@pytest.fixture(params=[make_ssd, make_faster_rcnn], ids=["ssd", "faster_rcnn"])
def model(request: pytest.FixtureRequest) -> Model:
    torch.manual_seed(0)
    return initialise(request.param())


@pytest.fixture
def ssd() -> SSD:
    torch.manual_seed(0)
    return initialise(make_ssd())


@pytest.fixture
def faster_rcnn() -> FasterRCNN:
    torch.manual_seed(0)
    return initialise(make_faster_rcnn())


def make_images(count: int) -> list[Tensor]:
    return list(torch.rand(count, 3, 64, 96, generator=torch.Generator().manual_seed(1)))


def target(*objects: tuple[int, list[float]]) -> dict[str, Tensor]:
    return {
        "labels": torch.tensor([label for label, _ in objects], dtype=torch.int64),
        "boxes": torch.tensor([box for _, box in objects], dtype=torch.float32).reshape(-1, 4),
    }


TWO_OBJECTS = target((4, [0, 0, 30, 30]), (1, [40, 10, 90, 60]))
ONE_OBJECT = target((2, [10, 20, 26, 50]))
NOTHING = target()
TARGETS = [TWO_OBJECTS, NOTHING, ONE_OBJECT]


class Recorder:
    """A plain function as the loss, that keeps what it was called with."""

    def __init__(self, activation: str | None = None) -> None:
        self.calls: list[tuple[Tensor, Tensor]] = []
        if activation:
            self.activation = activation

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.calls.append((logits.detach().clone(), labels.clone()))
        return logits.square().mean()


def losses_of(model: Model, targets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    torch.manual_seed(5)  # Faster R-CNN draws its samples
    losses: dict[str, Tensor] = model(make_images(len(targets)), copy.deepcopy(targets))
    return losses


def class_loss(model: Model, targets: list[dict[str, Tensor]]) -> Tensor:
    return losses_of(model, targets)["loss_classifier" if is_rcnn(model) else "classification"]


def is_rcnn(model: Model) -> bool:
    return isinstance(model, FasterRCNN)


def class_layer(model: Model) -> nn.Module:
    """The layer that gives the logits, whose first output is the background's."""
    if is_rcnn(model):
        return model.roi_heads.box_predictor.cls_score
    return model.head.classification_head.module_list[0]


# What the loss sees


def test_a_sigmoid_loss_sees_the_columns_of_the_classes_over_the_whole_batch(
    model: Model,
) -> None:
    recorder = Recorder()
    set_class_loss(model, recorder)
    losses = losses_of(model, TARGETS)
    ((logits, labels),) = recorder.calls
    assert logits.shape == (*labels.shape, NUM_CLASSES)
    if is_rcnn(model):
        assert labels.ndim == 1
        assert {3, 0, 1, BACKGROUND} == set(labels.tolist())
        assert set(losses) == {
            "loss_classifier",
            "loss_box_reg",
            "loss_objectness",
            "loss_rpn_box_reg",
        }
    else:
        assert labels.shape == (3, 4 * 6 * 4)
        assert {3, 0, BACKGROUND} == set(labels[0].tolist())
        assert {BACKGROUND} == set(labels[1].tolist())
        assert {1, BACKGROUND} == set(labels[2].tolist())
        assert set(losses) == {"classification", "bbox_regression"}
    torch.testing.assert_close(class_loss(model, TARGETS), logits.square().mean())


def test_a_softmax_loss_sees_the_background_column_too(model: Model) -> None:
    both = []
    for activation in ("sigmoid", "softmax"):
        recorder = Recorder(activation)
        set_class_loss(model, recorder)
        losses_of(model, TARGETS)
        both += recorder.calls
    (without, labels), (logits, same_labels) = both
    assert logits.shape[-1] == NUM_CLASSES + 1
    assert torch.equal(logits[..., 1:], without)
    assert torch.equal(labels, same_labels)


def test_ssds_labels_follow_its_matcher(ssd: SSD) -> None:
    recorder = Recorder()
    set_class_loss(ssd, recorder)
    matched = [torch.tensor([1, -1, -2, 0, -1]), torch.tensor([-1, -1, -1, -2, 0])]
    targets = [
        {"labels": torch.tensor([3, 2]), "boxes": torch.rand(2, 4)},
        {"labels": torch.tensor([1]), "boxes": torch.rand(1, 4)},
    ]
    outputs = {
        "cls_logits": torch.zeros(2, 5, NUM_CLASSES + 1),
        "bbox_regression": torch.zeros(2, 5, 4),
    }
    anchors = [torch.tensor([[0.0, 0, 8, 8]]).repeat(5, 1)] * 2
    ssd.compute_loss(targets, outputs, anchors, matched)
    assert recorder.calls[0][1].tolist() == [[1, -1, -2, 2, -1], [-1, -1, -1, -2, 0]]


def test_the_labels_of_rois_are_those_of_the_samples(
    faster_rcnn: FasterRCNN, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    set_class_loss(faster_rcnn, recorder)
    boxes = torch.tensor([[0.0, 0, 20, 20], [5, 5, 30, 40], [1, 1, 9, 9], [8, 8, 50, 50]])
    samples = [boxes[:3], boxes[1:]]
    labels = [torch.tensor([4, 0, 3]), torch.tensor([0, 1, 2])]
    goals = [torch.zeros(3, 4), torch.zeros(3, 4)]
    heads = faster_rcnn.roi_heads
    monkeypatch.setattr(heads, "select_training_samples", lambda *_: (samples, None, labels, goals))
    features = {"0": torch.rand(2, 16, 4, 6)}
    heads(features, samples, [(64, 96)] * 2, TARGETS[:2])
    assert recorder.calls[0][1].tolist() == [3, BACKGROUND, 2, BACKGROUND, 0, 1]


# The value


def plain_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, labels + 1)


plain_cross_entropy.activation = "softmax"  # type: ignore[attr-defined]


def gradient(model: Model, loss: Tensor) -> Tensor:
    model.zero_grad()
    loss.backward()
    rows = [
        torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
        for p in model.parameters()
    ]
    return torch.cat(rows)


def test_torchvisions_own_loss_given_back_to_faster_rcnn_changes_nothing(
    faster_rcnn: FasterRCNN,
) -> None:
    before = losses_of(faster_rcnn, TARGETS)
    old_gradient = gradient(faster_rcnn, sum(before.values()))  # type: ignore[arg-type]
    set_class_loss(faster_rcnn, plain_cross_entropy)
    after = losses_of(faster_rcnn, TARGETS)
    assert all(torch.equal(after[name], before[name]) for name in before)
    new_gradient = gradient(faster_rcnn, sum(after.values()))  # type: ignore[arg-type]
    torch.testing.assert_close(new_gradient, old_gradient)


def test_our_mining_on_one_image_is_ssds_own(ssd: SSD) -> None:
    """torchvision mines 3 negatives a positive in each image, and so does OHEMLoss of one image."""
    before = losses_of(ssd, [TWO_OBJECTS])
    old_gradient = gradient(ssd, sum(before.values()))  # type: ignore[arg-type]
    set_class_loss(ssd, OHEMLoss())
    after = losses_of(ssd, [TWO_OBJECTS])
    torch.testing.assert_close(after, before)
    new_gradient = gradient(ssd, sum(after.values()))  # type: ignore[arg-type]
    torch.testing.assert_close(new_gradient, old_gradient)


@pytest.mark.parametrize(
    ("loss", "function", "first"), [(APLoss(), ap_loss, 1), (OHEMLoss(), ohem_loss, 0)]
)
def test_value_and_gradient_are_those_of_our_loss_on_the_same_logits(
    model: Model, loss: Any, function: Any, first: int
) -> None:
    recorder = Recorder("softmax")
    set_class_loss(model, recorder)
    losses_of(model, TARGETS)
    logits, labels = recorder.calls[0]
    expected = function(logits[..., first:], labels)
    set_class_loss(model, loss)
    torch.testing.assert_close(class_loss(model, TARGETS), expected)

    # By the bias of the class layer, which each logit has once.
    logits.requires_grad_()
    (by_logits,) = torch.autograd.grad(function(logits[..., first:], labels), logits)
    layer = class_layer(model)
    (by_bias,) = torch.autograd.grad(class_loss(model, TARGETS), layer.bias)
    if is_rcnn(model):
        by_logits = by_logits.sum(0)
    else:  # rows are (place, box)
        by_logits = by_logits.view(3, -1, 4, NUM_CLASSES + 1).sum((0, 1)).flatten()
    torch.testing.assert_close(by_bias, by_logits)
    if first:
        assert not by_bias.view(-1, NUM_CLASSES + 1)[:, 0].any()  # background is not trained


@pytest.mark.parametrize("loss", [APLoss(), AUCLoss(), FocalLoss(), GHMLoss(), DRLoss()])
def test_every_loss_trains(model: Model, loss: nn.Module) -> None:
    set_class_loss(model, loss)
    value = class_loss(model, TARGETS)
    assert value > 0
    assert gradient(model, value).any()


@pytest.mark.parametrize("loss", [APLoss(), OHEMLoss()])
def test_training_reduces_the_loss(model: Model, loss: nn.Module) -> None:
    targets = [TWO_OBJECTS, ONE_OBJECT]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.003, momentum=0.9)  # made before
    set_class_loss(model, loss)
    values = []
    for _ in range(25):
        losses = losses_of(model, targets)
        optimiser.zero_grad()
        sum(losses.values()).backward()  # type: ignore[union-attr]
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        name = "loss_classifier" if is_rcnn(model) else "classification"
        values.append(losses[name].item())
    assert sum(values[-3:]) < 0.7 * sum(values[:3])


def test_a_batch_without_objects_has_a_loss_of_zero_that_can_go_backward(model: Model) -> None:
    set_class_loss(model, APLoss())
    value = class_loss(model, [NOTHING, NOTHING])
    assert value == 0
    assert not gradient(model, value).any()


def test_a_label_beyond_the_models_classes_is_refused(model: Model) -> None:
    set_class_loss(model, APLoss())
    with pytest.raises(ValueError, match=r"expected 0\.\.3 for a class"):
        losses_of(model, [target((NUM_CLASSES + 1, [0, 0, 30, 30]))])


# Detections


@torch.no_grad()
def found_by(model: Model, images: list[Tensor]) -> list[dict[str, Tensor]]:
    found: list[dict[str, Tensor]] = model.eval()(images)
    return found


def test_with_a_softmax_loss_the_detections_stay(model: Model) -> None:
    images = make_images(2)
    before = found_by(model, images)
    set_class_loss(model, OHEMLoss())
    assert all(len(image["scores"]) > 0 for image in before)
    for old, new in zip(before, found_by(model, images), strict=True):
        assert all(torch.equal(old[name], new[name]) for name in old)


def set_thresholds(model: Model, score: float, count: int) -> None:
    part = model.roi_heads if is_rcnn(model) else model
    part.score_thresh, part.detections_per_img = score, count


def test_with_a_sigmoid_loss_scores_are_sigmoids(model: Model) -> None:
    """Class biases far below all else: the sigmoid is the exponential then, and so is the softmax
    beside a background of 0. Both ways must find the same."""
    layer = class_layer(model)
    bias = layer.bias.data.view(-1, NUM_CLASSES + 1)
    bias[:] = -30.0
    bias[:, 0] = 0.0
    weight = layer.weight.data.view(-1, NUM_CLASSES + 1, *layer.weight.shape[1:])
    weight[:, 0] = 0.0
    set_thresholds(model, 1e-16, 50)
    images = make_images(2)
    before = found_by(model, images)
    set_class_loss(model, APLoss())
    after = found_by(model, images)
    for old, new in zip(before, after, strict=True):
        assert len(old["scores"]) > 10
        assert old["scores"].max() < 1e-3  # the two agree to this
        torch.testing.assert_close(new["scores"], old["scores"], rtol=2e-3, atol=0)
        torch.testing.assert_close(new["boxes"], old["boxes"])
        assert torch.equal(new["labels"], old["labels"])


def test_scores_of_classes_need_not_compete(model: Model) -> None:
    layer = class_layer(model)
    nn.init.zeros_(layer.weight)
    layer.bias.data.view(-1, NUM_CLASSES + 1)[:] = torch.tensor([9.0, 2.0, 2.0, -50.0, 0.0])
    set_class_loss(model, APLoss())
    set_thresholds(model, 0.1, 500)
    (found,) = found_by(model, make_images(1))
    expected = {1: 0.8808, 2: 0.8808, 4: 0.5}
    assert set(found["labels"].tolist()) == set(expected)
    for label, score in expected.items():
        scores = found["scores"][found["labels"] == label]
        torch.testing.assert_close(scores, torch.full_like(scores, score), atol=1e-4, rtol=0)
    assert found["scores"].tolist() == sorted(found["scores"].tolist(), reverse=True)
    assert (found["boxes"] >= 0).all()
    assert (found["boxes"] <= torch.tensor([96.0, 64, 96, 64])).all()


def test_ssd_keeps_its_number_of_candidates_of_a_class(ssd: SSD) -> None:
    set_class_loss(ssd, APLoss())
    ssd.topk_candidates, ssd.nms_thresh, ssd.score_thresh = 3, 1.0, 0.0
    (found,) = found_by(ssd, make_images(1))
    assert sorted(found["labels"].tolist()) == sorted([1, 2, 3, 4] * 3)


# What stays


def test_weights_keys_and_mode_stay(model: Model) -> None:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    called = []
    part = model.roi_heads if is_rcnn(model) else model
    part.register_forward_hook(lambda *_: called.append(True))
    assert set_class_loss(model, APLoss()) is None
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(model.state_dict()[name], state[name]) for name in state)
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert all(module.training for module in model.modules())
    assert isinstance(part, RoIHeads if is_rcnn(model) else SSD)
    losses_of(model, TARGETS)
    assert called == [True]  # hooks of the user's stay too


def test_copies_keep_the_loss(model: Model) -> None:
    set_class_loss(model, APLoss())
    expected = class_loss(model, TARGETS)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(class_loss(same, TARGETS), expected)


def test_a_second_call_replaces_the_loss(model: Model) -> None:
    keys = list(model.state_dict())
    set_class_loss(model, GHMLoss())
    assert any(name.endswith("loss.running_counts") for name in model.state_dict())
    set_class_loss(model, lambda logits, labels: logits.sum() * 0 + 7)
    assert class_loss(model, TARGETS) == 7
    assert list(model.state_dict()) == keys
    set_class_loss(model, APLoss())
    assert 0 < class_loss(model, TARGETS) < 1


def test_ssdlite_is_an_ssd_too() -> None:
    with torch.device("meta"):
        model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    set_class_loss(model, APLoss())
    assert isinstance(model, SSDWithLoss)


# What is refused


def test_masks_would_be_lost() -> None:
    with torch.device("meta"):
        mask_rcnn = MaskRCNN(
            TinyBackbone(),
            NUM_CLASSES + 1,
            rpn_anchor_generator=AnchorGenerator(((16, 32),), ((0.5, 1.0, 2.0),)),
            box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2),
            mask_roi_pool=MultiScaleRoIAlign(["0"], 3, 2),
        )
    with pytest.raises(TypeError, match=r"without masks and keypoints, got .*MaskRCNN"):
        set_class_loss(mask_rcnn, APLoss())
    assert type(mask_rcnn.roi_heads) is RoIHeads


def test_what_is_the_users_own_is_not_thrown_away(faster_rcnn: FasterRCNN) -> None:
    class OwnSSD(SSD):  # type: ignore[misc]
        pass

    own = OwnSSD(tiny_maps(), DefaultBoxGenerator([[2]], scales=[0.3, 0.6]), (64, 64), 3)
    with pytest.raises(TypeError, match=r"model: expected torchvision's SSD itself, got .*OwnSSD$"):
        set_class_loss(own, APLoss())
    faster_rcnn.roi_heads = nn.Identity()
    with pytest.raises(TypeError, match=r"model.roi_heads: .* RoIHeads itself, got .*Identity$"):
        set_class_loss(faster_rcnn, APLoss())


def test_a_wrapped_model_is_refused_with_what_to_do(model: Model) -> None:
    with pytest.raises(TypeError, match=r"got .*; call set_class_loss before wrapping it$"):
        set_class_loss(nn.DataParallel(model), APLoss())  # type: ignore[arg-type]
