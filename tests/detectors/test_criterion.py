"""The loss of a detector: by hand, and equal to the reference loss on the same logits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankdet.boxes import encode_boxes
from rankdet.detectors.assign import Assignment, IoUAssigner
from rankdet.detectors.criterion import (
    Criterion,
    Losses,
    StageCriterion,
    batch_average_precision,
    box_loss,
)
from rankdet.losses import (
    BACKGROUND,
    IGNORED,
    APLoss,
    AUCLoss,
    ClassLoss,
    FocalLoss,
    OHEMLoss,
    ap_loss_reference,
    ohem_loss,
)
from rankdet.structures import Predictions, Target

WEIGHTS = (10.0, 10.0, 5.0, 5.0)
NUM_CLASSES = 3


def make_target(boxes: Sequence[Sequence[float]] | Tensor, labels: Sequence[int]) -> Target:
    boxes = torch.as_tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return Target(
        boxes=boxes,
        labels=torch.tensor(labels, dtype=torch.int64),
        is_ignored=torch.zeros(len(boxes), dtype=torch.bool),
        areas=torch.ones(len(boxes)),
        image_id=1,
        size=(64, 64),
    )


def grid_anchors() -> Tensor:
    """(128, 4): an 8 x 8 grid, stride 8, of squares of 12 and 20 pixels."""
    steps = 8.0 * torch.arange(8) + 4
    centres = torch.cartesian_prod(steps, steps).repeat_interleave(2, dim=0)
    half = torch.tensor([6.0, 10.0]).repeat(64).unsqueeze(1)
    return torch.cat((centres - half, centres + half), dim=1)


TARGETS = [
    make_target([[3.0, 2.0, 17.0, 15.0], [30.0, 30.0, 50.0, 48.0]], [2, 0]),
    make_target([], []),
    make_target([[20.0, 41.0, 33.0, 55.0]], [1]),
]


def random_stage(
    name: str = "boxes",
    *,
    columns: int = NUM_CLASSES,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Predictions:
    """Outputs for the three images of TARGETS that want a gradient."""
    generator = torch.Generator().manual_seed(seed)
    anchors = grid_anchors()
    logits = torch.randn(3, len(anchors), columns, generator=generator)
    deltas = torch.randn(3, len(anchors), 4, generator=generator)
    return Predictions(
        name,
        logits.to(dtype).requires_grad_(),
        deltas.to(dtype).requires_grad_(),
        anchors,
        (len(anchors),),
    )


def reference(logits: Tensor, labels: Tensor, **settings: Any) -> tuple[Tensor, Tensor]:
    """The loss and its update by the paper's Algorithm 1, from dense 0 / 1 targets."""
    targets = (labels.unsqueeze(2) == torch.arange(logits.shape[2])).int()
    counted = (labels != IGNORED).unsqueeze(2).expand(logits.shape)
    return ap_loss_reference(logits, targets, mask=counted, **settings)


def make_criterion(class_loss: nn.Module | None = None, **settings: Any) -> Criterion:
    return Criterion(
        IoUAssigner(), class_loss if class_loss else APLoss(), box_weights=WEIGHTS, **settings
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings", [{}, {"delta": 0.5, "interpolate": False}])
def test_the_class_loss_is_the_reference_on_the_same_logits(
    dtype: torch.dtype, settings: dict[str, float]
) -> None:
    stage = random_stage(dtype=dtype)
    losses = make_criterion(APLoss(**settings))([stage], TARGETS)
    losses.parts["class"].backward()

    labels = losses.assignments[0].labels
    assert (labels >= 0).sum() > 3
    assert (labels == IGNORED).sum() > 3
    expected, update = reference(stage.logits, labels, **settings)
    torch.testing.assert_close(losses.parts["class"].double(), expected, atol=1e-6, rtol=1e-6)
    assert stage.logits.grad.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2  # bfloat16 rounds the finished gradient
    torch.testing.assert_close(stage.logits.grad.double(), update, atol=1e-8, rtol=tolerance)
    assert update.abs().sum() > 0.1
    assert stage.deltas.grad is None


def test_the_box_loss_of_one_positive_is_as_worked_out_by_hand() -> None:
    anchors = torch.tensor([[0.0, 0.0, 10.0, 10.0], [40.0, 40.0, 50.0, 50.0]])
    target = make_target([[1.0, 0.0, 11.0, 10.0]], [0])  # goals 10 * 0.1, 0, 0, 0
    deltas = torch.tensor([[[0.6, 3.0, 0.0, -0.5], [9.0, 9.0, 9.0, 9.0]]], requires_grad=True)
    stage = Predictions("", torch.zeros(1, 2, NUM_CLASSES), deltas, anchors, (2,))
    losses = make_criterion()([stage], [target])
    # Differences -0.4 and -0.5 are below beta: half the square. 3 is above: 3 - 0.5.
    expected = (0.5 * 0.4**2 + 2.5 + 0 + 0.5 * 0.5**2) / 4
    assert losses.parts["box"].item() == pytest.approx(expected, rel=1e-6)
    losses.parts["box"].backward()
    expected_gradient = [[-0.4 / 4, 1 / 4, 0, -0.5 / 4], [0, 0, 0, 0]]
    torch.testing.assert_close(deltas.grad[0], torch.tensor(expected_gradient))


def test_the_box_loss_is_the_mean_over_the_positives_of_the_whole_batch() -> None:
    stage = random_stage()
    losses = make_criterion()([stage], TARGETS)
    assignment = losses.assignments[0]
    goals, deltas = [], []
    for image, target in enumerate(TARGETS):
        for anchor in range(len(stage.anchors)):
            row = int(assignment.matched_index[image, anchor])
            if row >= 0:
                goals.append(encode_boxes(target.boxes[row], stage.anchors[anchor], WEIGHTS))
                deltas.append(stage.deltas[image, anchor])
    expected = F.smooth_l1_loss(torch.stack(deltas), torch.stack(goals), beta=1.0)
    torch.testing.assert_close(losses.parts["box"], expected)
    (gradient,) = torch.autograd.grad(losses.parts["box"], stage.deltas)
    (expected_gradient,) = torch.autograd.grad(expected, stage.deltas)
    torch.testing.assert_close(gradient, expected_gradient)


def test_weight_beta_and_coding_of_the_box_loss_can_be_chosen() -> None:
    stage = random_stage()
    plain = make_criterion()([stage], TARGETS)
    weighted = make_criterion(box_weight=2.5)([stage], TARGETS)
    torch.testing.assert_close(weighted.parts["box"], 2.5 * plain.parts["box"])
    assert torch.equal(weighted.parts["class"], plain.parts["class"])

    assignment = plain.assignments[0]
    other = Criterion(IoUAssigner(), APLoss(), box_weights=(1.0, 1.0, 1.0, 1.0), beta=0.1)
    expected = box_loss(stage, assignment, TARGETS, (1.0, 1.0, 1.0, 1.0), beta=0.1)
    assert torch.equal(other([stage], TARGETS).parts["box"], expected)
    assert len({plain.parts["box"].item(), expected.item()}) == 2


def test_smooth_l1_is_the_absolute_value_beyond_beta() -> None:
    anchors = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    stage = Predictions("", torch.zeros(1, 1, 3), torch.full((1, 1, 4), 0.5), anchors, (1,))
    target = make_target(anchors, [0])
    assignment = IoUAssigner()(stage, [target])
    value = box_loss(stage, assignment, [target], WEIGHTS, beta=0.2)
    assert value.item() == pytest.approx(0.5 - 0.1)


@pytest.mark.parametrize("targets", [[make_target([], [])] * 3, None])
def test_without_positives_the_losses_are_zero_and_connected(
    targets: list[Target] | None,
) -> None:
    # None: objects that no anchor touches.
    targets = targets or [make_target([[500.0, 500.0, 510.0, 510.0]], [0])] * 3
    stage = random_stage()
    losses = make_criterion()([stage], targets)
    assert losses.parts["class"].item() == losses.parts["box"].item() == 0
    losses.total.backward()
    assert torch.equal(stage.deltas.grad, torch.zeros_like(stage.deltas))
    assert torch.equal(stage.logits.grad, torch.zeros_like(stage.logits))


def test_a_batch_without_images_has_losses_of_zero() -> None:
    anchors = grid_anchors()
    logits = torch.zeros(0, len(anchors), NUM_CLASSES, requires_grad=True)
    deltas = torch.zeros(0, len(anchors), 4, requires_grad=True)
    losses = make_criterion()([Predictions("", logits, deltas, anchors, (len(anchors),))], [])
    losses.total.backward()
    assert losses.total.item() == 0
    assert deltas.grad.shape == deltas.shape


def test_deltas_of_anchors_that_are_no_object_are_never_read() -> None:
    stage = random_stage()
    expected = make_criterion()([stage], TARGETS)
    is_positive = expected.assignments[0].labels >= 0
    broken = stage.deltas.detach().clone()
    broken[~is_positive] = torch.tensor([math.nan, math.inf, -math.inf, 1e38])
    broken.requires_grad_()
    stage = Predictions("", stage.logits, broken, stage.anchors, stage.level_sizes)
    losses = make_criterion()([stage], TARGETS)
    assert torch.equal(losses.parts["box"], expected.parts["box"])
    losses.parts["box"].backward()
    assert broken.grad.isfinite().all()
    assert (broken.grad[~is_positive] == 0).all()


def test_a_delta_of_a_positive_that_is_not_finite_is_seen() -> None:
    stage = random_stage()
    is_positive = make_criterion()([stage], TARGETS).assignments[0].labels >= 0
    broken = stage.deltas.detach().clone()
    broken[is_positive] = math.nan
    stage = Predictions("", stage.logits, broken, stage.anchors, stage.level_sizes)
    assert make_criterion()([stage], TARGETS).parts["box"].isnan()


def test_the_total_is_the_sum_of_the_parts() -> None:
    stage = random_stage()
    losses = make_criterion()([stage], TARGETS)
    assert list(losses.parts) == ["class", "box"]
    torch.testing.assert_close(losses.total, losses.parts["class"] + losses.parts["box"])
    losses.total.backward()
    assert stage.logits.grad.abs().sum() > 0
    assert stage.deltas.grad.abs().sum() > 0


def test_parts_of_different_dtypes_can_be_summed() -> None:
    parts = {"class": torch.tensor(1.0, dtype=torch.float64), "box": torch.tensor(2.0)}
    assert Losses(parts, []).total.item() == 3


def test_two_stages_have_their_names_before_the_parts() -> None:
    first, second = random_stage("proposals", seed=1), random_stage("regions", seed=2)
    criterion = make_criterion()
    losses = criterion([first, second], TARGETS)
    assert list(losses.parts) == [
        "proposals.class", "proposals.box", "regions.class", "regions.box",
    ]  # fmt: skip
    assert len(losses.assignments) == 2
    for stage in (first, second):
        alone = criterion([stage], TARGETS)
        for part in ("class", "box"):
            assert torch.equal(losses.parts[f"{stage.name}.{part}"], alone.parts[part])
    torch.testing.assert_close(losses.total, sum(losses.parts.values()))


def test_a_softmax_loss_goes_the_same_way() -> None:
    loss = OHEMLoss(negative_ratio=2.0)
    stage = random_stage(columns=loss.num_logits(NUM_CLASSES))
    losses = make_criterion(loss)([stage], TARGETS)
    expected = ohem_loss(stage.logits, losses.assignments[0].labels, negative_ratio=2.0)
    assert torch.equal(losses.parts["class"], expected)
    losses.total.backward()
    assert stage.logits.grad.abs().sum() > 0


@pytest.mark.parametrize("loss", [APLoss(), AUCLoss(), FocalLoss(), OHEMLoss()])
def test_bfloat16_outputs_under_autocast_are_judged_in_float32(loss: ClassLoss) -> None:
    narrow = random_stage(columns=loss.num_logits(NUM_CLASSES), dtype=torch.bfloat16)
    wide = Predictions(
        "",
        narrow.logits.detach().float().requires_grad_(),
        narrow.deltas.detach().float().requires_grad_(),
        narrow.anchors,
        narrow.level_sizes,
    )
    criterion = make_criterion(loss)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = criterion([narrow], TARGETS)
        losses.total.backward()
    expected = criterion([wide], TARGETS)
    expected.total.backward()
    for name, part in losses.parts.items():
        assert part.dtype == torch.float32
        torch.testing.assert_close(part, expected.parts[name], atol=0, rtol=1e-6)
    torch.testing.assert_close(narrow.logits.grad, wide.logits.grad.bfloat16())
    torch.testing.assert_close(narrow.deltas.grad, wide.deltas.grad.bfloat16())


def test_autocast_is_off_inside_of_the_class_loss() -> None:
    def matrix_product(logits: Tensor, labels: Tensor) -> Tensor:
        product = logits @ logits.transpose(1, 2)
        assert product.dtype == torch.float32
        return product.sum()

    criterion = Criterion(IoUAssigner(), matrix_product, box_weights=WEIGHTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        criterion([random_stage()], TARGETS)


def test_any_assigner_can_be_given() -> None:
    stage = random_stage()
    labels = torch.full((3, len(stage.anchors)), BACKGROUND)
    labels[0, 5] = 1
    index = torch.where(labels >= 0, 0, -1)

    def assigner(predictions: Predictions, targets: Sequence[Target]) -> Assignment:
        assert predictions is stage
        assert targets is TARGETS
        return Assignment(labels, index, torch.zeros(labels.shape))

    losses = Criterion(assigner, APLoss(), box_weights=WEIGHTS)([stage], TARGETS)
    expected, _ = reference(stage.logits, labels)
    assert losses.parts["class"].item() == pytest.approx(expected.item())
    goal = encode_boxes(TARGETS[0].boxes[0], stage.anchors[5], WEIGHTS)
    torch.testing.assert_close(losses.parts["box"], F.smooth_l1_loss(stage.deltas[0, 5], goal))


def test_a_loss_module_is_moved_and_listed_with_the_criterion() -> None:
    assert isinstance(dict(make_criterion().named_children())["class_loss"], APLoss)
    assert not make_criterion().state_dict()


@pytest.mark.parametrize(
    ("scores", "labels", "expected"),
    [
        ([3.0, 2.0, 1.0], [0, 0, BACKGROUND], 1.0),
        ([1.0, 2.0, 3.0], [0, BACKGROUND, BACKGROUND], 1 / 3),
        ([1.0, 2.0, 3.0], [0, BACKGROUND, IGNORED], 1 / 2),
        # Precision 1/2 at the better positive, 2/3 at the worse: interpolated 2/3 at both.
        ([4.0, 3.0, 2.0], [BACKGROUND, 0, 0], 2 / 3),
        ([1.0, 1.0], [0, BACKGROUND], 1 / 2),  # a tie counts against the object
    ],
)
def test_the_average_precision_of_a_batch_is_as_worked_out_by_hand(
    scores: list[float], labels: list[int], expected: float
) -> None:
    value = batch_average_precision(
        torch.tensor(scores).reshape(1, -1, 1), torch.tensor([labels]), "sigmoid"
    )
    assert value.item() == pytest.approx(expected)


def test_the_average_precision_has_no_margin() -> None:
    logits = torch.tensor([[[0.01], [0.0]]])
    assert batch_average_precision(logits, torch.tensor([[0, BACKGROUND]]), "sigmoid") == 1


def test_all_images_are_ranked_together() -> None:
    logits = torch.tensor([[[1.0], [0.0]], [[3.0], [2.0]]])
    labels = torch.tensor([[0, BACKGROUND], [0, BACKGROUND]])
    value = batch_average_precision(logits, labels, "sigmoid")
    assert value.item() == pytest.approx((1 + 2 / 3) / 2)


def test_softmax_ranks_by_the_probability_of_the_class() -> None:
    # The object's logit is lower than the background box's, its probability is higher.
    logits = torch.tensor([[[-5.0, 1.0], [9.0, 2.0]]])
    labels = torch.tensor([[0, BACKGROUND]])
    assert batch_average_precision(logits, labels, "softmax") == 1
    assert batch_average_precision(logits[..., 1:], labels, "sigmoid") == 0.5


def test_softmax_takes_the_column_after_the_background() -> None:
    logits = torch.tensor([[[0.0, 1.0, 5.0]]])
    assert batch_average_precision(logits, torch.tensor([[1]]), "softmax") == 1
    assert batch_average_precision(logits, torch.tensor([[0]]), "softmax") == 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_the_average_precision_is_float32_without_gradient(
    activation: str, dtype: torch.dtype
) -> None:
    logits = torch.randn(2, 5, 4, dtype=dtype, requires_grad=True)
    labels = torch.tensor([[0, -1, -1, -2, 2], [-1, -1, -1, -1, 1]])
    value = batch_average_precision(logits, labels, activation)
    assert value.dtype == torch.float32
    assert not value.requires_grad
    assert 0 < value <= 1


def test_without_positives_the_average_precision_is_nan() -> None:
    labels = torch.tensor([[BACKGROUND, IGNORED]])
    assert batch_average_precision(torch.zeros(1, 2, 3), labels, "sigmoid").isnan()
    assert batch_average_precision(torch.zeros(0, 2, 3), labels[:0], "sigmoid").isnan()


def test_logits_that_are_not_finite_give_nan_and_no_error() -> None:
    labels = torch.tensor([[0, BACKGROUND]])
    for activation, columns in (("sigmoid", 1), ("softmax", 2)):
        logits = torch.full((1, 2, columns), math.nan)
        assert batch_average_precision(logits, labels, activation).isnan()


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 'sigmoid' or 'softmax', got 'relu'"):
        batch_average_precision(torch.zeros(1, 2, 3), torch.tensor([[0, -1]]), "relu")


@pytest.mark.gpu
def test_a_gpu_computes_the_same_losses() -> None:
    stage = random_stage()
    expected = make_criterion()([stage], TARGETS)
    moved = Predictions(
        "", stage.logits.cuda(), stage.deltas.cuda(), stage.anchors.cuda(), stage.level_sizes
    )
    losses = make_criterion()([moved], [target.to("cuda") for target in TARGETS])
    for name, part in losses.parts.items():
        torch.testing.assert_close(part.cpu(), expected.parts[name])


# Several stages, anchors of each image, boxes of each class


def own_stage(stage: Predictions, name: str = "roi", num_padding: int = 0) -> Predictions:
    """The same with anchors of each image, a box of each class, and padding at the end."""
    images, number, _ = stage.logits.shape
    deltas = torch.randn(images, number, NUM_CLASSES, 4, generator=torch.Generator().manual_seed(5))
    return Predictions(
        name,
        stage.logits,
        deltas.requires_grad_(),
        stage.anchors.expand(images, -1, -1) + torch.arange(float(images)).view(-1, 1, 1),
        (number,),
        (torch.arange(number) >= number - num_padding).expand(images, -1),
    )


def test_the_box_of_the_positives_class_counts() -> None:
    anchors = torch.tensor([[[0.0, 0.0, 10.0, 10.0], [40.0, 40.0, 50.0, 50.0]]])
    target = make_target([[1.0, 0.0, 11.0, 10.0]], [2])  # goals 10 * 0.1, 0, 0, 0
    deltas = torch.full((1, 2, NUM_CLASSES, 4), 9.0)
    deltas[0, 0, 2] = torch.tensor([0.6, 3.0, 0.0, -0.5])
    deltas.requires_grad_()
    stage = Predictions("", torch.zeros(1, 2, NUM_CLASSES), deltas, anchors, (2,))
    losses = make_criterion()([stage], [target])
    expected = (0.5 * 0.4**2 + 2.5 + 0 + 0.5 * 0.5**2) / 4
    assert losses.parts["box"].item() == pytest.approx(expected, rel=1e-6)
    losses.parts["box"].backward()
    assert deltas.grad[0, 0, 2].tolist() == pytest.approx([-0.4 / 4, 1 / 4, 0, -0.5 / 4])
    deltas.grad[0, 0, 2] = 0
    assert not deltas.grad.any()


def test_anchors_of_each_image_have_the_losses_of_the_images_alone() -> None:
    stage = own_stage(random_stage())
    losses = make_criterion()([stage], TARGETS)
    labels = losses.assignments[0].labels
    total = torch.zeros(())
    for image, target in enumerate(TARGETS):
        one = dataclasses.replace(
            stage.select(slice(image, image + 1)), anchors=stage.anchors[image], is_padding=None
        )
        alone = make_criterion()([one], [target])
        assert torch.equal(alone.assignments[0].labels[0], labels[image])
        total = total + alone.parts["box"] * (labels[image] >= 0).sum()
    torch.testing.assert_close(losses.parts["box"], total / (labels >= 0).sum())


def test_padding_enters_no_loss() -> None:
    full = own_stage(random_stage(), num_padding=40)
    cut = dataclasses.replace(
        full,
        logits=full.logits[:, :-40],
        deltas=full.deltas[:, :-40],
        anchors=full.anchors[:, :-40],
        level_sizes=(88,),
        is_padding=None,
    )
    for mean in ("positives", "all"):
        criterion = Criterion(IoUAssigner(), APLoss(), box_weights=WEIGHTS, box_mean=mean)
        found, expected = criterion([full], TARGETS), criterion([cut], TARGETS)
        for name, part in expected.parts.items():
            torch.testing.assert_close(found.parts[name], part)
        assert found.counts == expected.counts
    assert found.counts["boxes"] == (found.assignments[0].labels != IGNORED).sum() <= 3 * 88


def test_the_box_loss_can_be_divided_by_all_boxes_that_count() -> None:
    stage = random_stage()
    usual = make_criterion()([stage], TARGETS)
    labels = usual.assignments[0].labels
    num_positives, num_all = (labels >= 0).sum(), (labels != IGNORED).sum()
    losses = make_criterion(box_mean="all")([stage], TARGETS)
    expected = usual.parts["box"] * 4 * num_positives / num_all
    torch.testing.assert_close(losses.parts["box"], expected)
    empty = make_criterion(box_mean="all")([stage], [make_target([], [])] * 3)
    assert empty.parts["box"] == 0
    with pytest.raises(ValueError, match="box_mean: expected one of positives, all; got 'some'"):
        make_criterion(box_mean="some")


def test_a_stage_can_have_settings_of_its_own() -> None:
    first, second = random_stage("rpn", columns=NUM_CLASSES), own_stage(random_stage(seed=1))
    special = StageCriterion(
        IoUAssigner(0.7, 0.3), FocalLoss(), box_weights=(1, 1, 1, 1), box_weight=2.0, beta=0.1
    )
    criterion = Criterion(IoUAssigner(), APLoss(), box_weights=WEIGHTS, stages={"rpn": special})
    losses = criterion([first, second], TARGETS)
    alone = Criterion(
        IoUAssigner(0.7, 0.3), FocalLoss(), box_weights=(1, 1, 1, 1), box_weight=2.0, beta=0.1
    )([first], TARGETS)
    other = make_criterion()([second], TARGETS)
    assert losses.parts == {
        "rpn.class": alone.parts["class"],
        "rpn.box": alone.parts["box"],
        "roi.class": other.parts["class"],
        "roi.box": other.parts["box"],
    }
    assert torch.equal(losses.assignments[0].labels, alone.assignments[0].labels)
    assert set(losses.counts) == {"roi.boxes", "roi.positives"}  # RoIs alone are counted


def test_no_image_of_its_own_anchors_has_connected_losses() -> None:
    stage = own_stage(random_stage()).select(slice(0))
    losses = make_criterion()([stage], [])
    losses.total.backward()
    assert losses.total == 0
    assert losses.counts["boxes"] == 0
