"""Another class loss in a torchvision model that someone already trains."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torchvision.models.detection import RetinaNet, fcos_resnet50_fpn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.retinanet import RetinaNetClassificationHead
from torchvision.ops import sigmoid_focal_loss

from rankdet.integrations.torchvision import set_class_loss
from rankdet.losses import (
    BACKGROUND,
    IGNORED,
    APLoss,
    FocalLoss,
    GHMLoss,
    OHEMLoss,
    ap_loss_reference,
)

Targets = Sequence[dict[str, Tensor]]
NUM_CLASSES = 4


class TinyBackbone(nn.Sequential):
    """Features with a stride of 16."""

    out_channels = 16

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for channels in (3, 16, 16, 16):
            layers += [nn.Conv2d(channels, 16, 3, stride=2, padding=1), nn.ReLU()]
        super().__init__(*layers)


def make_model() -> RetinaNet:
    torch.manual_seed(0)
    generator = AnchorGenerator(((16, 32),), ((0.5, 1.0, 2.0),))
    model = RetinaNet(
        TinyBackbone(), NUM_CLASSES, anchor_generator=generator, min_size=64, max_size=96
    )
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):  # so that the scores differ
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model.train()


@pytest.fixture
def model() -> RetinaNet:
    return make_model()


def make_images(count: int) -> list[Tensor]:
    return list(torch.rand(count, 3, 64, 96, generator=torch.Generator().manual_seed(1)))


def target(*objects: tuple[int, list[float]]) -> dict[str, Tensor]:
    return {
        "labels": torch.tensor([label for label, _ in objects], dtype=torch.int64),
        "boxes": torch.tensor([box for _, box in objects], dtype=torch.float32).reshape(-1, 4),
    }


TWO_OBJECTS = target((3, [0, 0, 30, 30]), (1, [40, 10, 90, 60]))
ONE_OBJECT = target((2, [10, 20, 26, 50]))
NOTHING = target()


class Recorder:
    """A plain function as the loss, that keeps what it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, Tensor]] = []

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        self.calls.append((logits.detach().clone(), labels.clone()))
        return logits.square().mean()


def gradients(model: RetinaNet, images: list[Tensor], targets: Targets) -> tuple[Tensor, Tensor]:
    """The class loss, and its gradient by all parameters in one row."""
    model.zero_grad()
    loss = model(images, copy.deepcopy(targets))["classification"]
    loss.backward()
    rows = [
        torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
        for p in model.parameters()
    ]
    return loss.detach(), torch.cat(rows)


# The labels


def test_the_loss_sees_the_logits_and_labels_of_the_whole_batch_once(model: RetinaNet) -> None:
    recorder = Recorder()
    set_class_loss(model, recorder)
    losses = model(make_images(3), [TWO_OBJECTS, NOTHING, ONE_OBJECT])
    ((logits, labels),) = recorder.calls
    num_anchors = 4 * 6 * 6
    assert logits.shape == (3, num_anchors, NUM_CLASSES)
    assert labels.shape == (3, num_anchors)
    assert set(labels[0].tolist()) == {3, 1, BACKGROUND, IGNORED}
    assert set(labels[1].tolist()) == {BACKGROUND}
    assert set(labels[2].tolist()) <= {2, BACKGROUND, IGNORED}
    assert (labels[2] == 2).any()
    assert set(losses) == {"classification", "bbox_regression"}
    torch.testing.assert_close(losses["classification"], logits.square().mean())


def test_labels_follow_the_matcher_of_the_model(model: RetinaNet) -> None:
    recorder = Recorder()
    set_class_loss(model, recorder)
    matched = [torch.tensor([1, -1, -2, 0, -1]), torch.tensor([-1, -1, -1, -2, 0])]
    targets = [{"labels": torch.tensor([3, 2])}, {"labels": torch.tensor([1])}]
    outputs = {"cls_logits": torch.zeros(2, 5, NUM_CLASSES)}
    model.head.classification_head.compute_loss(targets, outputs, matched)
    assert recorder.calls[0][1].tolist() == [[2, -1, -2, 3, -1], [-1, -1, -1, -2, 1]]


# The value


def focal_of_torchvision(logits: Tensor, labels: Tensor) -> Tensor:
    """torchvision's own class loss, for a batch of one image."""
    is_object = labels >= 0
    truth = torch.zeros_like(logits)
    truth[is_object, labels[is_object]] = 1.0
    counted = labels != IGNORED
    total = sigmoid_focal_loss(logits[counted], truth[counted], reduction="sum")
    return total / max(1, int(is_object.sum()))


@pytest.mark.parametrize("objects", [TWO_OBJECTS, ONE_OBJECT, NOTHING])
def test_torchvisions_own_loss_given_back_changes_nothing(
    model: RetinaNet, objects: dict[str, Tensor]
) -> None:
    value, gradient = gradients(model, make_images(1), [objects])
    set_class_loss(model, focal_of_torchvision)
    new_value, new_gradient = gradients(model, make_images(1), [objects])
    assert value > 0
    torch.testing.assert_close(new_value, value)
    torch.testing.assert_close(new_gradient, gradient)


def test_our_focal_loss_on_one_image_is_torchvisions(model: RetinaNet) -> None:
    value, gradient = gradients(model, make_images(1), [TWO_OBJECTS])
    set_class_loss(model, FocalLoss())
    new_value, new_gradient = gradients(model, make_images(1), [TWO_OBJECTS])
    torch.testing.assert_close(new_value, value)
    torch.testing.assert_close(new_gradient, gradient)


def test_the_ap_loss_is_that_of_the_reference_over_the_whole_batch(model: RetinaNet) -> None:
    images, targets = make_images(3), [TWO_OBJECTS, NOTHING, ONE_OBJECT]
    recorder = Recorder()
    set_class_loss(model, recorder)
    model(images, copy.deepcopy(targets))
    ((logits, labels),) = recorder.calls
    truth = torch.zeros_like(logits)
    is_object = labels >= 0
    truth[is_object] = nn.functional.one_hot(labels[is_object], NUM_CLASSES).float()
    counted = (labels != IGNORED).unsqueeze(2).expand_as(logits)
    expected, _ = ap_loss_reference(logits, truth, mask=counted)
    alone = [ap_loss_reference(logits[i], truth[i], mask=counted[i])[0] for i in range(len(images))]

    set_class_loss(model, APLoss())
    loss = model(images, targets)["classification"]
    torch.testing.assert_close(loss.double(), expected)
    assert abs(float(sum(alone)) / 3 - float(expected)) > 1e-3  # not a mean over the images


def test_training_with_the_ap_loss_reduces_it(model: RetinaNet) -> None:
    images, targets = make_images(2), [TWO_OBJECTS, ONE_OBJECT]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)  # made before
    set_class_loss(model, APLoss())
    values = []
    for _ in range(20):
        losses = model(images, copy.deepcopy(targets))
        optimiser.zero_grad()
        sum(losses.values()).backward()
        optimiser.step()
        values.append(losses["classification"].item())
    assert values[0] > 0.5
    assert values[-1] < 0.5 * values[0]


def test_a_batch_without_objects_has_a_loss_of_zero_that_can_go_backward(
    model: RetinaNet,
) -> None:
    set_class_loss(model, APLoss())
    value, gradient = gradients(model, make_images(2), [NOTHING, NOTHING])
    assert value == 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_a_label_beyond_the_models_classes_is_refused(model: RetinaNet) -> None:
    set_class_loss(model, APLoss())
    with pytest.raises(ValueError, match=r"expected 0\.\.3 for a class"):
        model(make_images(1), [target((NUM_CLASSES, [0, 0, 30, 30]))])


# What stays


def test_weights_keys_and_detections_stay() -> None:
    model, other = make_model(), make_model()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    images = make_images(2)
    before = model.eval()(images)
    assert set_class_loss(model, APLoss()) is None
    assert not model.head.classification_head.training
    after = model(images)
    assert all(len(found["scores"]) > 0 for found in before)
    for old, new in zip(before, after, strict=True):
        assert all(torch.equal(old[name], new[name]) for name in old)
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(model.state_dict()[name], state[name]) for name in state)
    assert list(parameters) == [name for name, _ in model.named_parameters()]
    assert all(p is parameters[name] for name, p in model.named_parameters())
    other.load_state_dict(model.state_dict())  # into a model with torchvision's own loss
    model.load_state_dict(other.state_dict())
    assert isinstance(model.head.classification_head, RetinaNetClassificationHead)


def test_heads_of_old_state_dicts_still_load(model: RetinaNet) -> None:
    set_class_loss(model, APLoss())
    old = {}
    for name, tensor in model.state_dict().items():
        for index in range(4):
            name = name.replace(f"_head.conv.{index}.0.", f"_head.conv.{2 * index}.")
        old[name] = tensor + 1 if tensor.is_floating_point() else tensor
    expected = model.head.classification_head.conv[3][0].weight + 1
    model.load_state_dict(old)
    assert torch.equal(model.head.classification_head.conv[3][0].weight, expected)


def test_the_mode_of_training_stays(model: RetinaNet) -> None:
    set_class_loss(model, APLoss())
    assert model.head.classification_head.training


def test_a_second_call_replaces_the_loss(model: RetinaNet) -> None:
    keys = list(model.state_dict())
    set_class_loss(model, GHMLoss())
    set_class_loss(model, lambda logits, labels: logits.sum() * 0 + 7)
    assert model(make_images(1), [ONE_OBJECT])["classification"] == 7
    assert list(model.state_dict()) == keys


def test_a_loss_with_a_state_moves_and_is_saved_with_the_model(model: RetinaNet) -> None:
    loss = GHMLoss()
    set_class_loss(model, loss)
    assert "head.classification_head.loss.running_counts" in model.state_dict()
    model.to(torch.float64)
    assert loss.running_counts.dtype == torch.float64


# What is refused


def test_a_softmax_loss_is_refused(model: RetinaNet) -> None:
    with pytest.raises(ValueError, match=r"OHEMLoss trains a softmax .* scores with a sigmoid"):
        set_class_loss(model, OHEMLoss())
    assert type(model.head.classification_head) is RetinaNetClassificationHead


@pytest.mark.parametrize("loss", [APLoss, "ap", None])
def test_what_is_no_loss_is_refused(model: RetinaNet, loss: object) -> None:
    with pytest.raises(TypeError, match=r"expected a loss such as APLoss\(\), got "):
        set_class_loss(model, loss)  # type: ignore[arg-type]


def test_other_models_are_refused() -> None:
    with torch.device("meta"):
        other = fcos_resnet50_fpn(weights=None, weights_backbone=None)
    expected = (
        r"expected RetinaNet, SSD or FasterRCNN of torchvision\.models\.detection, got .*FCOS$"
    )
    with pytest.raises(TypeError, match=expected):
        set_class_loss(other, APLoss())


def test_a_wrapped_model_is_refused_with_what_to_do(model: RetinaNet) -> None:
    wrapped = [nn.DataParallel(model), torch.compile(model, backend="eager")]
    for wrapper in wrapped:
        with pytest.raises(TypeError, match=r"got .*; call set_class_loss before wrapping it$"):
            set_class_loss(wrapper, APLoss())  # type: ignore[arg-type]


def test_a_head_of_the_users_own_is_not_thrown_away(model: RetinaNet) -> None:
    class OwnHead(RetinaNetClassificationHead):  # type: ignore[misc]
        pass

    model.head.classification_head = OwnHead(16, 6, NUM_CLASSES)
    with pytest.raises(TypeError, match=r"RetinaNetClassificationHead itself, got .*OwnHead$"):
        set_class_loss(model, APLoss())
    model.head = nn.Identity()
    with pytest.raises(TypeError, match=r"NoneType$"):
        set_class_loss(model, APLoss())
