"""What focal, OHEM, GHM and DR loss have in common: properties, dtypes, edges and modules."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankdet.losses import (
    CrossEntropyLoss,
    DRLoss,
    FocalLoss,
    GHMLoss,
    OHEMLoss,
    cross_entropy_loss,
    dr_loss,
    focal_loss,
    ghm_loss,
    ohem_loss,
)
from rankdet.losses.labels import BACKGROUND, IGNORED

Problem = Callable[..., tuple[Tensor, Tensor]]
WithGradient = Callable[..., tuple[Tensor, Tensor]]
Loss = Callable[..., Tensor]
LOSSES: list[Loss] = [focal_loss, ohem_loss, cross_entropy_loss, ghm_loss, dr_loss]
SOFTMAX_LOSSES: list[Loss] = [ohem_loss, cross_entropy_loss]
EACH = pytest.mark.parametrize("loss", LOSSES)
SIGMOID_LOSSES: list[Loss] = [focal_loss, ghm_loss, dr_loss]

# No deadline: the machine may be busy, and the first call of torch is slow.
BRIEFLY = settings(max_examples=40, deadline=None)


# Properties.


@EACH
@BRIEFLY
@given(seed=st.integers(0, 10**6), trash=st.sampled_from([math.nan, math.inf, -math.inf, 3e4]))
def test_ignored_anchors_change_nothing_and_get_no_gradient(
    loss: Loss, seed: int, trash: float, mixed_problem: Problem, with_gradient: WithGradient
) -> None:
    logits, labels = mixed_problem(seed, 2, 8)
    is_ignored = labels == IGNORED
    value, gradient = with_gradient(loss, logits, labels)
    logits[is_ignored] = trash
    trash_value, trash_gradient = with_gradient(loss, logits, labels)
    assert torch.equal(value, trash_value)
    assert torch.equal(gradient, trash_gradient)
    assert torch.equal(gradient[is_ignored], torch.zeros_like(gradient[is_ignored]))


@EACH
@BRIEFLY
@given(seed=st.integers(0, 10**6))
def test_ignoring_anchors_is_the_same_as_removing_them(
    loss: Loss, seed: int, mixed_problem: Problem, with_gradient: WithGradient
) -> None:
    logits, labels = mixed_problem(seed, 12)
    is_kept = labels != IGNORED
    value, gradient = with_gradient(loss, logits, labels)
    kept_value, kept_gradient = with_gradient(loss, logits[is_kept], labels[is_kept])
    torch.testing.assert_close(value, kept_value)
    torch.testing.assert_close(gradient[is_kept], kept_gradient)


@EACH
@BRIEFLY
@given(seed=st.integers(0, 10**6), trash=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_masked_entries_change_nothing_and_get_no_gradient(
    loss: Loss, seed: int, trash: float, mixed_problem: Problem, with_gradient: WithGradient
) -> None:
    logits, labels = mixed_problem(seed, 2, 8)
    mask = torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed)) < 0.7
    value, gradient = with_gradient(loss, logits, labels, mask=mask)
    assert torch.isfinite(value)
    logits[~mask] = trash
    trash_value, trash_gradient = with_gradient(loss, logits, labels, mask=mask)
    assert torch.equal(value, trash_value)
    assert torch.equal(gradient, trash_gradient)
    assert (gradient[~mask] == 0).all()
    if loss not in SOFTMAX_LOSSES:  # they ignore the anchor instead of the entry
        assert (gradient[mask & (labels != IGNORED).unsqueeze(-1)] != 0).all()


@EACH
@BRIEFLY
@given(seed=st.integers(0, 10**6))
def test_masking_all_entries_of_an_anchor_is_ignoring_it(
    loss: Loss, seed: int, mixed_problem: Problem, with_gradient: WithGradient
) -> None:
    logits, labels = mixed_problem(seed, 2, 8)
    mask = (labels != BACKGROUND).unsqueeze(-1).expand(logits.shape)
    masked = with_gradient(loss, logits, labels, mask=mask)
    ignored = torch.where(labels == BACKGROUND, IGNORED, labels)
    torch.testing.assert_close(masked, with_gradient(loss, logits, ignored), rtol=0, atol=0)


@EACH
@BRIEFLY
@given(seed=st.integers(0, 10**6))
def test_the_order_of_anchors_does_not_matter(
    loss: Loss, seed: int, mixed_problem: Problem, with_gradient: WithGradient
) -> None:
    logits, labels = mixed_problem(seed, 12)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
    value, gradient = with_gradient(loss, logits, labels)
    other_value, other_gradient = with_gradient(loss, logits[order], labels[order])
    torch.testing.assert_close(value, other_value)
    torch.testing.assert_close(gradient[order], other_gradient)


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@BRIEFLY
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.0, 1.0, 30.0, 1e4]))
def test_value_and_gradient_are_finite_for_all_finite_logits(
    loss: Loss,
    dtype: torch.dtype,
    seed: int,
    scale: float,
    mixed_problem: Problem,
    with_gradient: WithGradient,
) -> None:
    logits, labels = mixed_problem(seed, 9, scale=scale)
    value, gradient = with_gradient(loss, logits.to(dtype), labels)
    assert torch.isfinite(value)
    assert value >= 0
    assert torch.isfinite(gradient).all()


@EACH
def test_the_gradient_agrees_with_finite_differences(loss: Loss, mixed_problem: Problem) -> None:
    logits, labels = mixed_problem(5, 2, 8)
    mask = torch.ones(logits.shape, dtype=torch.bool)
    mask[0, :4, 2] = False
    leaf = logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, labels, mask=mask), leaf)


# Dtypes.


@EACH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_computed_in_float32(
    loss: Loss, dtype: torch.dtype, mixed_problem: Problem, with_gradient: WithGradient
) -> None:
    logits, labels = mixed_problem(6, 2, 50)
    value, gradient = with_gradient(loss, logits.to(dtype), labels)
    judge_value, judge_gradient = with_gradient(loss, logits.to(dtype).float(), labels)
    assert value.dtype == torch.float32
    assert torch.equal(value, judge_value)
    assert torch.equal(gradient, judge_gradient.to(dtype))


@EACH
def test_float32_comes_close_to_float64(
    loss: Loss, mixed_problem: Problem, with_gradient: WithGradient
) -> None:
    logits, labels = mixed_problem(7, 2, 1000)
    single = with_gradient(loss, logits.float(), labels)
    double = with_gradient(loss, logits.float().double(), labels)
    for close, exact in zip(single, double, strict=True):
        assert (close.dtype, exact.dtype) == (torch.float32, torch.float64)
        assert (close - exact).abs().max() <= 2e-6 * exact.abs().max()


@EACH
def test_more_negatives_than_float16_can_count(loss: Loss, with_gradient: WithGradient) -> None:
    labels = torch.full((70_000,), BACKGROUND)
    labels[0] = 0
    logits = torch.full((70_000, 2), 3.0, dtype=torch.float16)
    value, gradient = with_gradient(loss, logits, labels)
    torch.testing.assert_close(value, loss(logits.double(), labels).float(), rtol=1e-5, atol=0)
    assert torch.isfinite(gradient).all()


@EACH
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32])
def test_labels_may_have_any_integer_dtype(
    loss: Loss, dtype: torch.dtype, mixed_problem: Problem
) -> None:
    logits, labels = mixed_problem(8, 2, 50)
    assert torch.equal(loss(logits, labels.to(dtype)), loss(logits, labels))


# Edges.


@EACH
@pytest.mark.parametrize("label", [BACKGROUND, IGNORED, 0])
def test_a_batch_of_one_kind_has_a_finite_value_and_a_connected_graph(
    loss: Loss, label: int, mixed_problem: Problem, with_gradient: WithGradient
) -> None:
    logits, _ = mixed_problem(9, 2, 5)
    value, gradient = with_gradient(loss, logits, torch.full((2, 5), label))
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    has_gradient = label == 0 or (label == BACKGROUND and loss is not ohem_loss)
    assert bool((gradient != 0).any()) is has_gradient


@EACH
@pytest.mark.parametrize("shape", [(0, 3), (0, 4, 3), (2, 0, 3)])
def test_an_empty_batch_has_a_finite_value_and_a_connected_graph(
    loss: Loss, shape: tuple[int, ...], with_gradient: WithGradient
) -> None:
    labels = torch.empty(shape[:-1], dtype=torch.int64)
    value, gradient = with_gradient(loss, torch.empty(shape), labels)
    expected = 4 / 6 * math.log1p(math.exp(-3)) if loss is dr_loss else 0.0
    assert value.item() == pytest.approx(expected)
    assert value.shape == ()
    assert gradient.shape == shape


@EACH
def test_strided_and_expanded_logits_are_as_good_as_contiguous_ones(
    loss: Loss, mixed_problem: Problem
) -> None:
    logits, labels = mixed_problem(10, 2, 20)
    strided = logits.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert not strided.is_contiguous()
    torch.testing.assert_close(loss(strided, labels.T.contiguous().T), loss(logits, labels))
    expanded = logits[:1, :1].expand(2, 20, 3)
    torch.testing.assert_close(loss(expanded, labels), loss(expanded.contiguous(), labels))


@EACH
def test_the_loss_can_be_read_without_gradients(loss: Loss, mixed_problem: Problem) -> None:
    logits, labels = mixed_problem(11, 2, 20)
    assert not loss(logits, labels).requires_grad
    with torch.inference_mode():
        torch.testing.assert_close(loss(logits, labels).clone(), loss(logits, labels).clone())


@EACH
def test_the_gradient_is_scaled_by_the_incoming_one(
    loss: Loss, mixed_problem: Problem, with_gradient: WithGradient
) -> None:
    logits, labels = mixed_problem(12, 2, 20)
    _, gradient = with_gradient(loss, logits, labels)
    _, scaled = with_gradient(lambda x: 65536.0 * loss(x, labels), logits)
    torch.testing.assert_close(scaled, 65536.0 * gradient)


@EACH
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("label", [0, BACKGROUND])
def test_a_score_that_is_not_finite_is_an_error_or_makes_everything_nan(
    loss: Loss, wrong: float, label: int, mixed_problem: Problem, with_gradient: WithGradient
) -> None:
    logits, labels = mixed_problem(13, 2, 20)
    labels[0, 0], labels[0, 1] = label, IGNORED
    logits[0, 0, 2] = wrong
    for check_finite in (None, True):
        with pytest.raises(
            FloatingPointError, match=r"logits: 1 of .*index \(0, 0, 2\): -?(nan|inf)"
        ):
            loss(logits, labels, check_finite=check_finite)
    value, gradient = with_gradient(loss, logits, labels, check_finite=False)
    is_ignored = labels == IGNORED
    assert torch.isnan(value)
    assert (gradient[is_ignored] == 0).all()
    if loss is ohem_loss:  # anchors that are not chosen have the constant 0
        assert torch.isnan(gradient).any()
    else:
        assert torch.isnan(gradient[~is_ignored]).all()


@EACH
def test_compiled_in_one_graph_the_loss_is_the_same_and_a_wrong_label_makes_it_nan(
    loss: Loss, mixed_problem: Problem, with_gradient: WithGradient
) -> None:
    logits, labels = mixed_problem(14, 2, 20)
    mask = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)) < 0.9
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    ours = with_gradient(compiled, logits, labels, mask=mask, check_finite=False)
    torch.testing.assert_close(ours, with_gradient(loss, logits, labels, mask=mask))
    for wrong in (3, -3):
        labels[1, 7] = wrong
        value, gradient = with_gradient(compiled, logits, labels, mask=mask, check_finite=False)
        assert torch.isnan(value)
        assert torch.isnan(gradient).any()


# Columns and modules.


@pytest.mark.parametrize("loss", SIGMOID_LOSSES)
def test_sigmoid_losses_have_one_column_for_each_class(loss: Loss) -> None:
    loss(torch.zeros(1, 3), torch.tensor([2]))
    with pytest.raises(ValueError, match=r"labels: expected 0\.\.2 .*got values from 3 to 3"):
        loss(torch.zeros(1, 3), torch.tensor([3]))


@pytest.mark.parametrize(
    ("module", "function", "settings"),
    [
        (FocalLoss, focal_loss, {"gamma": 1.5, "alpha": None}),
        (OHEMLoss, ohem_loss, {"negative_ratio": 1.0}),
        (CrossEntropyLoss, cross_entropy_loss, {}),
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
    module: Callable[..., torch.nn.Module],
    function: Loss,
    settings: dict[str, object],
    mixed_problem: Problem,
) -> None:
    logits, labels = mixed_problem(15, 2, 20)
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
    [
        (FocalLoss, focal_loss),
        (OHEMLoss, ohem_loss),
        (CrossEntropyLoss, cross_entropy_loss),
        (DRLoss, dr_loss),
    ],
)
def test_a_module_has_the_defaults_of_its_function(
    module: Callable[[], torch.nn.Module], function: Loss, mixed_problem: Problem
) -> None:
    logits, labels = mixed_problem(16, 2, 20)
    assert torch.equal(module()(logits, labels), function(logits, labels))


def test_modules_say_how_many_columns_they_need() -> None:
    assert [loss.num_logits(20) for loss in (FocalLoss(), GHMLoss(), DRLoss())] == [20, 20, 20]
    for softmax in (OHEMLoss(), CrossEntropyLoss()):
        assert (softmax.num_logits(20), softmax.activation) == (21, "softmax")
    assert FocalLoss().activation == GHMLoss().activation == DRLoss().activation == "sigmoid"
