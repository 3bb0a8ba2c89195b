"""Focal, OHEM, GHM and DR loss: by hand, properties, independent judges, dtypes and edges."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection.ssd import SSD
from torchvision.ops import sigmoid_focal_loss

from rankdet.losses import (
    DRLoss,
    FocalLoss,
    GHMLoss,
    OHEMLoss,
    dr_loss,
    focal_loss,
    ghm_loss,
    ohem_loss,
)
from rankdet.losses.labels import BACKGROUND, IGNORED

Loss = Callable[..., Tensor]
LOSSES: list[Loss] = [focal_loss, ohem_loss, ghm_loss, dr_loss]
EACH = pytest.mark.parametrize("loss", LOSSES)
SIGMOID_LOSSES: list[Loss] = [focal_loss, ghm_loss, dr_loss]
LOG2, LOG3 = math.log(2), math.log(3)

# No deadline: the machine may be busy, and the first call of torch is slow.
BRIEFLY = settings(max_examples=40, deadline=None)


def problem(seed: int, *shape: int, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Float64 logits and labels of every kind, valid for three columns or, with OHEM, K + 1 = 3."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(*shape, 3, dtype=torch.float64, generator=generator)
    kinds = torch.tensor([IGNORED, BACKGROUND, BACKGROUND, BACKGROUND, 0, 1])
    return logits, kinds[torch.randint(0, 6, shape, generator=generator)]


def value_and_gradient(
    loss: Loss, logits: Tensor, *rest: Tensor, **settings: object
) -> list[Tensor]:
    leaf = logits.detach().clone().requires_grad_()
    value = loss(leaf, *rest, **settings)
    return [value.detach(), *torch.autograd.grad(value, leaf)]


def column(*scores: float) -> Tensor:
    return torch.tensor(scores, dtype=torch.float64).unsqueeze(-1)


# By hand: sigmoid(log 3) = 3/4.


def test_focal_loss_of_a_single_positive_is_alpha_times_the_modulated_log() -> None:
    value = focal_loss(column(LOG3), torch.tensor([0]))
    assert value.item() == pytest.approx(0.25 * 0.25**2 * math.log(4 / 3))


def test_focal_loss_of_a_single_negative_is_weighted_by_one_minus_alpha() -> None:
    value = focal_loss(column(LOG3), torch.tensor([BACKGROUND]))
    assert value.item() == pytest.approx(0.75 * 0.75**2 * math.log(4))


def test_focal_loss_is_divided_by_the_number_of_positives() -> None:
    value = focal_loss(column(0.0, 0.0, 0.0), torch.tensor([0, 0, BACKGROUND]), gamma=1.0)
    assert value.item() == pytest.approx((2 * 0.25 + 0.75) * 0.5 * LOG2 / 2)


def test_a_positive_anchor_is_a_negative_in_the_columns_of_other_classes() -> None:
    logits = torch.tensor([[LOG3, -LOG3]], dtype=torch.float64)
    value = focal_loss(logits, torch.tensor([1]), gamma=0.0, alpha=None)
    assert value.item() == pytest.approx(2 * math.log(4))


def test_focal_loss_masks_single_entries_and_does_not_count_masked_positives() -> None:
    logits = torch.zeros(2, 2, dtype=torch.float64)
    mask = torch.tensor([[False, True], [True, True]])
    value = focal_loss(logits, torch.tensor([0, 1]), gamma=0.0, alpha=None, mask=mask)
    assert value.item() == pytest.approx(3 * LOG2 / 1)


def test_ohem_loss_takes_the_positive_and_the_hardest_background_anchors() -> None:
    # Background probabilities 1/4, 1/2, 3/4 and 1/4; the last one is ignored.
    logits = torch.tensor([[0.0, LOG3], [0, LOG3], [0, 0], [LOG3, 0], [0, LOG3]]).double()
    labels = torch.tensor([0, -1, -1, -1, IGNORED])
    positive = math.log(4 / 3)
    for ratio, negatives in ((0, 0.0), (1, math.log(4)), (2, math.log(8)), (9, math.log(32 / 3))):
        value = ohem_loss(logits, labels, negative_ratio=ratio)
        assert value.item() == pytest.approx(positive + negatives)


def test_ohem_loss_mines_each_image_and_divides_by_the_positives_of_the_batch() -> None:
    image = torch.tensor([[0.0, LOG3], [0.0, LOG3], [0.0, 0.0]]).double()
    logits = torch.stack([image, image])
    labels = torch.tensor([[0, -1, -1], [-1, -1, -1]])
    one_image = ohem_loss(logits, labels, negative_ratio=1.0)
    assert one_image.item() == pytest.approx(math.log(4 / 3) + math.log(4))
    labels = torch.tensor([[0, -1, -1], [0, -1, -1]])
    both = ohem_loss(logits, labels, negative_ratio=1.0)
    assert both.item() == pytest.approx(one_image.item())


def test_a_masked_column_is_left_out_of_the_softmax_and_a_masked_target_ignores_the_anchor() -> (
    None
):
    logits = torch.tensor([[0.0, LOG3, 50.0], [7.0, -7.0, 1.0]]).double()
    labels = torch.tensor([0, 1])
    mask = torch.tensor([[True, True, False], [True, True, False]])
    value, gradient = value_and_gradient(ohem_loss, logits, labels, mask=mask)
    assert value.item() == pytest.approx(math.log(4 / 3))
    assert gradient.flatten().tolist() == pytest.approx([0.25, -0.25, 0, 0, 0, 0])


def test_ghm_loss_weighs_each_filled_bin_the_same() -> None:
    # Gradient norms 3/4 and three times 1/4; two bins.
    logits = column(LOG3, -LOG3, -LOG3, LOG3)
    labels = torch.tensor([-1, -1, -1, 0])
    value = ghm_loss(logits, labels, bins=2)
    weights = 4 / (1 * 2), 4 / (3 * 2)
    by_hand = (weights[0] * math.log(4) + 3 * weights[1] * math.log(4 / 3)) / 4
    assert value.item() == pytest.approx(by_hand)


def test_ghm_loss_counts_only_bins_that_are_not_empty() -> None:
    value = ghm_loss(column(0.0, 0.0), torch.tensor([-1, 0]), bins=30)
    assert value.item() == pytest.approx(LOG2)


def test_the_last_bin_of_ghm_loss_includes_one() -> None:
    counts = torch.zeros(4)
    ghm_loss(
        column(1000.0, -1000.0, 1000.0), torch.tensor([-1, -1, 0]), bins=4, running_counts=counts
    )
    assert counts.tolist() == [2.0, 0.0, 0.0, 1.0]


def test_ghm_loss_moves_the_running_counts_of_filled_bins_only() -> None:
    counts = torch.zeros(2)
    logits, labels = column(LOG3, -LOG3, -LOG3, -LOG3), torch.full((4,), BACKGROUND)
    first = ghm_loss(logits, labels, bins=2, momentum=0.75, running_counts=counts)
    assert counts.tolist() == [0.75, 0.25]
    assert first.item() == pytest.approx((math.log(4) / 0.25 + 3 * math.log(4 / 3) / 0.75) / 2)
    second = ghm_loss(logits[:1], labels[:1], bins=2, momentum=0.75, running_counts=counts)
    assert counts.tolist() == [0.75, 0.75 * 0.25 + 0.25]
    assert second.item() == pytest.approx(math.log(4) / 0.4375)


def test_dr_loss_is_the_smooth_hinge_of_the_gap_between_mean_probabilities() -> None:
    # Positive 3/4, negatives 1/4: the gap is 1/4 - 3/4 + 1/2 = 0.
    value = dr_loss(column(LOG3, -LOG3, -LOG3), torch.tensor([0, -1, -1]))
    assert value.item() == pytest.approx(4 / 6 * LOG2)


def test_dr_loss_weighs_low_positives_and_high_negatives_more() -> None:
    # With this temperature probabilities that differ by 1/2 weigh 3 : 1.
    temperature = 0.5 / LOG3
    value = dr_loss(
        column(LOG3, -LOG3, LOG3, -LOG3),
        torch.tensor([0, 0, -1, -1]),
        positive_temperature=temperature,
        negative_temperature=temperature,
        margin=0.25,
        smoothness=2.0,
        weight=3.0,
    )
    assert value.item() == pytest.approx(3 / 2 * math.log1p(math.exp(2 * (5 / 8 - 3 / 8 + 0.25))))


def test_dr_loss_of_one_kind_of_entries_stands_against_one_or_zero() -> None:
    no_positives = dr_loss(column(LOG3), torch.tensor([BACKGROUND]))
    assert no_positives.item() == pytest.approx(4 / 6 * math.log1p(math.exp(6 * (0.75 - 1 + 0.5))))
    no_negatives = dr_loss(column(LOG3), torch.tensor([0]))
    assert no_negatives.item() == pytest.approx(4 / 6 * math.log1p(math.exp(6 * (0 - 0.75 + 0.5))))


# Properties.


@EACH
@BRIEFLY
@given(seed=st.integers(0, 10**6), trash=st.sampled_from([math.nan, math.inf, -math.inf, 3e4]))
def test_ignored_anchors_change_nothing_and_get_no_gradient(
    loss: Loss, seed: int, trash: float
) -> None:
    logits, labels = problem(seed, 2, 8)
    is_ignored = labels == IGNORED
    value, gradient = value_and_gradient(loss, logits, labels)
    logits[is_ignored] = trash
    trash_value, trash_gradient = value_and_gradient(loss, logits, labels)
    assert torch.equal(value, trash_value)
    assert torch.equal(gradient, trash_gradient)
    assert torch.equal(gradient[is_ignored], torch.zeros_like(gradient[is_ignored]))


@EACH
@BRIEFLY
@given(seed=st.integers(0, 10**6))
def test_ignoring_anchors_is_the_same_as_removing_them(loss: Loss, seed: int) -> None:
    logits, labels = problem(seed, 12)
    is_kept = labels != IGNORED
    value, gradient = value_and_gradient(loss, logits, labels)
    kept_value, kept_gradient = value_and_gradient(loss, logits[is_kept], labels[is_kept])
    torch.testing.assert_close(value, kept_value)
    torch.testing.assert_close(gradient[is_kept], kept_gradient)


@EACH
@BRIEFLY
@given(seed=st.integers(0, 10**6), trash=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_masked_entries_change_nothing_and_get_no_gradient(
    loss: Loss, seed: int, trash: float
) -> None:
    logits, labels = problem(seed, 2, 8)
    mask = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed)) < 0.7
    value, gradient = value_and_gradient(loss, logits, labels, mask=mask)
    assert torch.isfinite(value)
    logits[~mask] = trash
    trash_value, trash_gradient = value_and_gradient(loss, logits, labels, mask=mask)
    assert torch.equal(value, trash_value)
    assert torch.equal(gradient, trash_gradient)
    assert (gradient[~mask] == 0).all()
    if loss is not ohem_loss:  # it ignores the anchor instead of the entry
        assert (gradient[mask & (labels != IGNORED).unsqueeze(-1)] != 0).all()


@EACH
@BRIEFLY
@given(seed=st.integers(0, 10**6))
def test_masking_all_entries_of_an_anchor_is_ignoring_it(loss: Loss, seed: int) -> None:
    logits, labels = problem(seed, 2, 8)
    mask = (labels != BACKGROUND).unsqueeze(-1).expand(logits.shape)
    masked = value_and_gradient(loss, logits, labels, mask=mask)
    ignored = torch.where(labels == BACKGROUND, IGNORED, labels)
    torch.testing.assert_close(masked, value_and_gradient(loss, logits, ignored), rtol=0, atol=0)


@EACH
@BRIEFLY
@given(seed=st.integers(0, 10**6))
def test_the_order_of_anchors_does_not_matter(loss: Loss, seed: int) -> None:
    logits, labels = problem(seed, 12)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    value, gradient = value_and_gradient(loss, logits, labels)
    other_value, other_gradient = value_and_gradient(loss, logits[order], labels[order])
    torch.testing.assert_close(value, other_value)
    torch.testing.assert_close(gradient[order], other_gradient)


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@BRIEFLY
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]))
def test_value_and_gradient_are_finite_for_all_finite_logits(
    loss: Loss, dtype: torch.dtype, seed: int, scale: float
) -> None:
    logits, labels = problem(seed, 9, scale=scale)
    value, gradient = value_and_gradient(loss, logits.to(dtype), labels)
    assert torch.isfinite(value)
    assert value >= 0
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0])
def test_the_gradient_of_focal_loss_is_finite_where_the_sigmoid_rounds_to_zero(
    gamma: float,
) -> None:
    logits = torch.tensor([[-300.0], [300.0], [300.0], [-300.0]])
    labels = torch.tensor([-1, 0, -1, 0])
    value, gradient = value_and_gradient(focal_loss, logits, labels, gamma=gamma)
    assert value.item() == pytest.approx((0.75 * 300 + 0.25 * 300) / 2)
    assert gradient.flatten().tolist() == pytest.approx([0, 0, 0.75 / 2, -0.25 / 2])


# Independent judges.


def dense_targets(labels: Tensor, num_classes: int) -> Tensor:
    one_hot = F.one_hot(labels.clamp(min=0), num_classes).double()
    return torch.where((labels >= 0).unsqueeze(-1), one_hot, 0.0)


@pytest.mark.parametrize("alpha", [0.25, 0.6, None])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0])
def test_focal_loss_agrees_with_torchvision(gamma: float, alpha: float | None) -> None:
    logits, labels = problem(1, 3, 200, scale=5.0)
    is_counted = labels != IGNORED
    targets = dense_targets(labels, 3)

    def judge(logits: Tensor) -> Tensor:
        value = sigmoid_focal_loss(
            logits[is_counted],
            targets[is_counted],
            alpha=-1 if alpha is None else alpha,
            gamma=gamma,
            reduction="sum",
        )
        return value / int((labels >= 0).sum())

    ours = value_and_gradient(focal_loss, logits, labels, gamma=gamma, alpha=alpha)
    torch.testing.assert_close(ours, value_and_gradient(judge, logits), rtol=1e-10, atol=1e-12)


def test_focal_loss_without_focus_and_weights_is_binary_cross_entropy() -> None:
    logits, labels = problem(2, 100)
    labels = labels.clamp(min=BACKGROUND)
    value = focal_loss(logits, labels, gamma=0.0, alpha=None)
    judge = F.binary_cross_entropy_with_logits(logits, dense_targets(labels, 3), reduction="sum")
    torch.testing.assert_close(value, judge / (labels >= 0).sum())


@pytest.mark.parametrize("seed", range(5))
def test_ohem_loss_agrees_with_torchvision_ssd(seed: int) -> None:
    logits, labels = problem(seed, 4, 50)
    labels = labels.clamp(min=BACKGROUND)
    labels[1] = BACKGROUND
    # Where 3 x positives exceed the background anchors, SSD's ranking takes positives twice.
    labels[:, 15:] = BACKGROUND
    assert (3 * (labels >= 0).sum(1) <= (labels < 0).sum(1)).all()
    judge_self = SimpleNamespace(
        neg_to_pos_ratio=3.0,
        box_coder=SimpleNamespace(encode_single=lambda boxes, anchors: torch.zeros_like(boxes)),
    )
    # Each positive anchor has an object of its own; SSD counts classes from 1.
    targets = [{"boxes": torch.rand(50, 4), "labels": (row + 1).clamp(min=1)} for row in labels]
    matched = [torch.where(row >= 0, torch.arange(50), -1) for row in labels]

    def judge(logits: Tensor) -> Tensor:
        outputs = {"cls_logits": logits, "bbox_regression": torch.zeros(4, 50, 4)}
        anchors = [torch.zeros(50, 4)] * 4
        losses: dict[str, Tensor] = SSD.compute_loss(judge_self, targets, outputs, anchors, matched)
        return losses["classification"]

    ours = value_and_gradient(ohem_loss, logits, labels)
    torch.testing.assert_close(ours, value_and_gradient(judge, logits))


@pytest.mark.parametrize("bins", [1, 2, 10, 30])
def test_ghm_loss_agrees_with_a_loop_over_bins(bins: int) -> None:
    logits, labels = problem(3, 300)
    is_counted = labels != IGNORED
    targets = dense_targets(labels, 3)[is_counted]

    def judge(logits: Tensor) -> Tensor:
        scores = logits[is_counted]
        norm = (scores.detach().sigmoid() - targets).abs()
        weights = torch.zeros_like(norm)
        members = [
            (norm >= k / bins) & ((norm < (k + 1) / bins) | (k == bins - 1)) for k in range(bins)
        ]
        for member in members:
            if member.any():
                weights[member] = norm.numel() / member.sum()
        weights /= sum(bool(member.any()) for member in members)
        total = F.binary_cross_entropy_with_logits(scores, targets, weights, reduction="sum")
        return total / norm.numel()

    ours = value_and_gradient(ghm_loss, logits, labels, bins=bins)
    torch.testing.assert_close(ours, value_and_gradient(judge, logits))


def test_dr_loss_agrees_with_softmax_over_chosen_entries() -> None:
    logits, labels = problem(4, 2, 100)
    is_positive = dense_targets(labels, 3).bool()
    is_negative = (labels != IGNORED).unsqueeze(-1) & ~is_positive

    def judge(logits: Tensor) -> Tensor:
        positives, negatives = logits[is_positive].sigmoid(), logits[is_negative].sigmoid()
        hard_positive = (F.softmax(-positives, 0) * positives).sum()
        hard_negative = (F.softmax(negatives * math.log(3.5) / 0.1, 0) * negatives).sum()
        return 4 * torch.log(1 + torch.exp(6 * (hard_negative - hard_positive + 0.5))) / 6

    ours = value_and_gradient(dr_loss, logits, labels)
    torch.testing.assert_close(ours, value_and_gradient(judge, logits))


@EACH
def test_the_gradient_agrees_with_finite_differences(loss: Loss) -> None:
    logits, labels = problem(5, 2, 8)
    mask = torch.ones(logits.shape, dtype=torch.bool)
    mask[0, :4, 2] = False
    leaf = logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, labels, mask=mask), leaf)


# Dtypes.


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_computed_in_float32(loss: Loss, dtype: torch.dtype) -> None:
    logits, labels = problem(6, 2, 50)
    value, gradient = value_and_gradient(loss, logits.to(dtype), labels)
    judge_value, judge_gradient = value_and_gradient(loss, logits.to(dtype).float(), labels)
    assert value.dtype == torch.float32
    assert torch.equal(value, judge_value)
    assert torch.equal(gradient, judge_gradient.to(dtype))


@EACH
def test_float32_comes_close_to_float64(loss: Loss) -> None:
    logits, labels = problem(7, 2, 1000)
    single = value_and_gradient(loss, logits.float(), labels)
    double = value_and_gradient(loss, logits.float().double(), labels)
    for close, exact in zip(single, double, strict=True):
        assert (close.dtype, exact.dtype) == (torch.float32, torch.float64)
        assert (close - exact).abs().max() <= 2e-6 * exact.abs().max()


@EACH
def test_more_negatives_than_float16_can_count(loss: Loss) -> None:
    labels = torch.full((70_000,), BACKGROUND)
    labels[0] = 0
    logits = torch.full((70_000, 2), 3.0, dtype=torch.float16)
    value, gradient = value_and_gradient(loss, logits, labels)
    torch.testing.assert_close(value, loss(logits.double(), labels).float(), rtol=1e-5, atol=0)
    assert torch.isfinite(gradient).all()


@pytest.mark.slow
def test_ghm_loss_counts_beyond_the_integers_of_float32() -> None:
    counts = torch.zeros(2, dtype=torch.float64)
    size = 2**24 + 3
    labels = torch.full((size,), BACKGROUND)
    ghm_loss(torch.full((size, 1), -5.0), labels, bins=2, running_counts=counts)
    assert counts.tolist() == [size, 0.0]


@EACH
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_labels_may_have_any_integer_dtype(loss: Loss, dtype: torch.dtype) -> None:
    logits, labels = problem(8, 2, 50)
    assert torch.equal(loss(logits, labels.to(dtype)), loss(logits, labels))


# Edges.


@EACH
@pytest.mark.parametrize("label", [BACKGROUND, IGNORED, 0])
def test_a_batch_of_one_kind_has_a_finite_value_and_a_connected_graph(
    loss: Loss, label: int
) -> None:
    logits, _ = problem(9, 2, 5)
    value, gradient = value_and_gradient(loss, logits, torch.full((2, 5), label))
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    has_gradient = label == 0 or (label == BACKGROUND and loss is not ohem_loss)
    assert bool((gradient != 0).any()) is has_gradient


@EACH
@pytest.mark.parametrize("shape", [(0, 3), (0, 4, 3), (2, 0, 3)])
def test_an_empty_batch_has_a_finite_value_and_a_connected_graph(
    loss: Loss, shape: tuple[int, ...]
) -> None:
    labels = torch.empty(shape[:-1], dtype=torch.int64)
    value, gradient = value_and_gradient(loss, torch.empty(shape), labels)
    expected = 4 / 6 * math.log1p(math.exp(-3)) if loss is dr_loss else 0.0
    assert value.item() == pytest.approx(expected)
    assert value.shape == ()
    assert gradient.shape == shape


@EACH
def test_strided_and_expanded_logits_are_as_good_as_contiguous_ones(loss: Loss) -> None:
    logits, labels = problem(10, 2, 20)
    strided = logits.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not strided.is_contiguous()
    torch.testing.assert_close(loss(strided, labels.T.contiguous().T), loss(logits, labels))
    expanded = logits[:1, :1].expand(2, 20, 3)
    torch.testing.assert_close(loss(expanded, labels), loss(expanded.contiguous(), labels))


@EACH
def test_the_loss_can_be_read_without_gradients(loss: Loss) -> None:
    logits, labels = problem(11, 2, 20)
    assert not loss(logits, labels).requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(loss(logits, labels).clone(), loss(logits, labels).clone())


@EACH
def test_the_gradient_is_scaled_by_the_incoming_one(loss: Loss) -> None:
    logits, labels = problem(12, 2, 20)
    _, gradient = value_and_gradient(loss, logits, labels)
    _, scaled = value_and_gradient(lambda x: 65536.0 * loss(x, labels), logits)
    torch.testing.assert_close(scaled, 65536.0 * gradient)


@EACH
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("label", [0, BACKGROUND])
def test_a_score_that_is_not_finite_is_an_error_or_makes_everything_nan(
    loss: Loss, wrong: float, label: int
) -> None:
    logits, labels = problem(13, 2, 20)
    labels[0, 0], labels[0, 1] = label, IGNORED
    logits[0, 0, 2] = wrong
    for check_finite in (None, True):
        with pytest.raises(
            FloatingPointError, match=r"logits: 1 of .*index \(0, 0, 2\): -?(nan|inf)"
        ):
            loss(logits, labels, check_finite=check_finite)
    value, gradient = value_and_gradient(loss, logits, labels, check_finite=False)
    is_ignored = labels == IGNORED
    assert torch.isnan(value)
    assert (gradient[is_ignored] == 0).all()
    if loss is ohem_loss:  # anchors that are not chosen have the constant 0
        assert torch.isnan(gradient).any()
    else:
        assert torch.isnan(gradient[~is_ignored]).all()


@EACH
def test_compiled_in_one_graph_the_loss_is_the_same_and_a_wrong_label_makes_it_nan(
    loss: Loss,
) -> None:
    logits, labels = problem(14, 2, 20)
    mask = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)) < 0.9
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    ours = value_and_gradient(compiled, logits, labels, mask=mask, check_finite=False)
    torch.testing.assert_close(ours, value_and_gradient(loss, logits, labels, mask=mask))
    for wrong in (3, -3):
        labels[1, 7] = wrong
        value, gradient = value_and_gradient(
            compiled, logits, labels, mask=mask, check_finite=False
        )
        assert torch.isnan(value)
        assert torch.isnan(gradient).any()


# Settings.


@pytest.mark.parametrize(
    ("loss", "settings", "message"),
    [
        (focal_loss, {"gamma": -1.0}, r"gamma: expected a finite number >= 0, got -1\.0"),
        (focal_loss, {"gamma": math.nan}, r"gamma: expected a finite number >= 0, got nan"),
        (focal_loss, {"gamma": math.inf}, r"gamma: expected a finite number >= 0, got inf"),
        (focal_loss, {"alpha": 1.5}, r"alpha: expected a number from 0 to 1, or None, got 1\.5"),
        (focal_loss, {"alpha": -1}, r"alpha: expected a number from 0 to 1, or None, got -1"),
        (ohem_loss, {"negative_ratio": -3}, r"negative_ratio: expected .* >= 0, got -3"),
        (ohem_loss, {"negative_ratio": math.inf}, r"negative_ratio: expected a finite .*got inf"),
        (ghm_loss, {"bins": 0}, r"bins: expected an integer >= 1, got 0"),
        (ghm_loss, {"bins": 2.5}, r"bins: expected an integer >= 1, got 2\.5"),
        (ghm_loss, {"momentum": 1.0}, r"momentum: expected .* not including, 1, got 1\.0"),
        (ghm_loss, {"momentum": -0.1}, r"momentum: expected a number from 0 .*, got -0\.1"),
        (ghm_loss, {"momentum": 0.5}, r"running_counts: expected .*\(30,\) for .*0\.5, got None"),
        (
            ghm_loss,
            {"running_counts": torch.zeros(3)},
            r"running_counts: expected .*\(30,\), got .*torch\.float32 of shape \(3,\)",
        ),
        (
            ghm_loss,
            {"running_counts": torch.zeros(30, dtype=torch.int64)},
            r"running_counts: expected floating point .*, got .*torch\.int64",
        ),
        (dr_loss, {"margin": math.nan}, r"margin: expected a finite number, got nan"),
        (dr_loss, {"positive_temperature": 0.0}, r"positive_temperature: expected .*> 0, got 0\.0"),
        (dr_loss, {"negative_temperature": -1}, r"negative_temperature: expected .*> 0, got -1"),
        (dr_loss, {"smoothness": 0}, r"smoothness: expected a finite number > 0, got 0"),
        (dr_loss, {"weight": math.inf}, r"weight: expected a finite number > 0, got inf"),
    ],
)
def test_wrong_settings_are_refused_with_expected_and_got(
    loss: Loss, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        loss(torch.zeros(2, 3), torch.tensor([0, -1]), **settings)


@pytest.mark.parametrize("loss", SIGMOID_LOSSES)
def test_sigmoid_losses_have_one_column_for_each_class(loss: Loss) -> None:
    loss(torch.zeros(1, 3), torch.tensor([2]))
    with pytest.raises(ValueError, match=r"labels: expected 0\.\.2 .*got values from 3 to 3"):
        loss(torch.zeros(1, 3), torch.tensor([3]))


def test_ohem_loss_has_one_column_more_than_classes() -> None:
    ohem_loss(torch.zeros(1, 3), torch.tensor([1]))
    with pytest.raises(ValueError, match=r"labels: expected 0\.\.1 .*got values from 2 to 2"):
        ohem_loss(torch.zeros(1, 3), torch.tensor([2]))
    with pytest.raises(ValueError, match=r"logits: expected K \+ 1 columns.*got \(4, 0\)"):
        ohem_loss(torch.zeros(4, 0), torch.full((4,), BACKGROUND))
    with pytest.raises(ValueError, match=r"logits: expected shape .*got \(\)"):
        ohem_loss(torch.zeros(()), torch.tensor(0))


# Modules.


@pytest.mark.parametrize(
    ("module", "function", "settings"),
    [
        (FocalLoss, focal_loss, {"gamma": 1.5, "alpha": None}),
        (OHEMLoss, ohem_loss, {"negative_ratio": 1.0}),
        (GHMLoss, ghm_loss, {"bins": 5, "momentum": 0.0}),
        (
            DRLoss,
            dr_loss,
            {
                "margin": 0.25,
                "positive_temperature": 0.5,
                "negative_temperature": 0.2,
                "smoothness": 3.0,
                "weight": 2.0,
            },
        ),
    ],
)
def test_a_module_hands_its_settings_to_the_function(
    module: Callable[..., torch.nn.Module], function: Loss, settings: dict[str, object]
) -> None:
    logits, labels = problem(15, 2, 20)
    mask = torch.rand(logits.shape) < 0.8
    loss = module(**settings)
    torch.testing.assert_close(loss(logits, labels), function(logits, labels, **settings))
    masked = function(logits, labels, mask=mask, **settings)
    torch.testing.assert_close(loss(logits, labels, mask), masked)
    assert all(f"{name}={value!r}" in repr(loss) for name, value in settings.items())
    logits[labels == 0] = math.nan
    with pytest.raises(FloatingPointError):
        loss(logits, labels)
    assert torch.isnan(module(**settings, check_finite=False)(logits, labels))


@pytest.mark.parametrize(
    ("module", "function"),
    [(FocalLoss, focal_loss), (OHEMLoss, ohem_loss), (DRLoss, dr_loss)],
)
def test_a_module_has_the_defaults_of_its_function(
    module: Callable[[], torch.nn.Module], function: Loss
) -> None:
    logits, labels = problem(16, 2, 20)
    assert torch.equal(module()(logits, labels), function(logits, labels))


def test_modules_say_how_many_columns_they_need() -> None:
    assert [loss.num_logits(20) for loss in (FocalLoss(), GHMLoss(), DRLoss())] == [20, 20, 20]
    assert OHEMLoss().num_logits(20) == 21
    assert OHEMLoss().activation == "softmax"
    assert FocalLoss().activation == GHMLoss().activation == DRLoss().activation == "sigmoid"


def test_the_ghm_module_keeps_running_counts_and_leaves_them_alone_in_evaluation() -> None:
    logits, labels = problem(17, 50)
    loss = GHMLoss()
    assert (loss.bins, loss.momentum) == (30, 0.75)
    judge_counts = torch.zeros(30)
    settings = {"bins": 30, "momentum": 0.75, "running_counts": judge_counts}
    for _ in range(3):
        assert torch.equal(loss(logits, labels), ghm_loss(logits, labels, **settings))
    assert torch.equal(loss.state_dict()["running_counts"], judge_counts)
    loss.eval()
    assert torch.equal(loss(logits, labels), ghm_loss(logits, labels, **settings))
    assert not torch.equal(loss.running_counts, judge_counts)


@pytest.mark.parametrize("settings", [{"bins": 0}, {"bins": -4}, {"momentum": 1.0}])
def test_the_ghm_module_refuses_wrong_settings_at_once(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"expected .*got"):
        GHMLoss(**settings)
