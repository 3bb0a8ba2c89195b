"""Layouts, shapes and modes in which ranking losses are called, for each of the float dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rankdet.losses import BACKGROUND, IGNORED, ap_loss, binary_ap_loss

STEPS = ["piecewise", "heaviside", "sigmoid"]
WithGradient = Callable[..., tuple[Tensor, Tensor]]
Judge = Callable[..., tuple[Tensor, Tensor]]

pytestmark = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
every_step = pytest.mark.parametrize("step", STEPS)

# Two positives, an ignored anchor and a masked entry.
LABELS = torch.tensor([0, BACKGROUND, BACKGROUND, 1, IGNORED, BACKGROUND])
MASK = torch.ones(6, 2, dtype=torch.bool)
MASK[5, 0] = False
SCORES = torch.tensor([[0.5, 1], [-3, 0], [2, -8], [0.25, 1.5], [4, 0.125], [0.75, -0.5]])


@every_step
def test_non_contiguous_inputs_give_the_same(
    step: str, dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    logits = SCORES.to(dtype, copy=True)
    expected, expected_gradient = with_gradient(ap_loss, logits, LABELS, mask=MASK, step=step)
    leaf = torch.stack([logits.t(), torch.full_like(logits.t(), math.nan)], dim=-1)
    leaf.requires_grad_()
    strided = leaf[..., 0].t()
    labels, mask = LABELS.repeat_interleave(2)[::2], MASK.t().contiguous().t()
    assert not any(tensor.is_contiguous() for tensor in (strided, labels, mask))
    value = ap_loss(strided, labels, mask=mask, step=step)
    value.backward()
    assert torch.equal(value, expected)
    assert torch.equal(leaf.grad[..., 0].t(), expected_gradient)


@every_step
def test_expanded_inputs_gather_the_gradient_of_all_their_copies(
    step: str, dtype: torch.dtype
) -> None:
    leaf = torch.tensor([[0.5], [1], [-2]], dtype=dtype, requires_grad=True)
    labels = torch.tensor(0).expand(3)
    value = ap_loss(leaf.expand(3, 4), labels, step=step)
    value.backward()
    copy = leaf.detach().repeat(1, 4).requires_grad_()
    expected = ap_loss(copy, labels.clone(), step=step)
    expected.backward()
    assert torch.equal(value, expected)
    torch.testing.assert_close(leaf.grad, copy.grad.sum(1, keepdim=True), rtol=2e-2, atol=1e-3)


@every_step
@pytest.mark.parametrize("scope", ["batch", "image"])
@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (0, 0, 1)])
def test_empty_inputs_give_0(
    shape: tuple[int, ...], scope: str, step: str, dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    logits = torch.empty(shape, dtype=dtype)
    labels = torch.empty(shape[:-1], dtype=torch.int64)
    value, gradient = with_gradient(ap_loss, logits, labels, step=step, scope=scope)
    assert (value, gradient.shape) == (0, shape)


def test_a_single_number_is_refused_by_ap_loss_and_ranked_by_binary_ap_loss(
    dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    number = torch.tensor(1.0, dtype=dtype)
    with pytest.raises(ValueError, match=r"logits: expected shape .*, got \(\); .*binary_ap_loss"):
        ap_loss(number, torch.tensor(0))
    value, gradient = with_gradient(binary_ap_loss, number, torch.tensor(1))
    assert (value, gradient, gradient.shape) == (0, 0, ())


@every_step
@pytest.mark.parametrize("label_dtype", [torch.int8, torch.int16, torch.int32, torch.uint8])
def test_labels_of_other_integer_dtypes_mean_the_same(
    label_dtype: torch.dtype, step: str, dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    # 200 classes do not fit into int8, and -1 not into uint8.
    logits = torch.randn(12, 200, generator=torch.Generator().manual_seed(0)).to(dtype)
    labels = torch.tensor([0, 5, 100, 127, 3, 3, 7, 9, 1, 2, 64, 33])
    if label_dtype != torch.uint8:
        labels[4:] = torch.tensor([BACKGROUND, IGNORED] * 4)
    expected = with_gradient(ap_loss, logits, labels, step=step)
    result = with_gradient(ap_loss, logits, labels.to(label_dtype), step=step)
    assert torch.equal(result[0], expected[0])
    assert torch.equal(result[1], expected[1])


@every_step
def test_without_a_gradient_to_compute_the_value_is_the_same(step: str, dtype: torch.dtype) -> None:
    leaf = SCORES.to(dtype, copy=True).requires_grad_()
    value = ap_loss(leaf, LABELS, step=step)
    assert value.requires_grad
    plain = ap_loss(leaf.detach(), LABELS, step=step)
    assert not plain.requires_grad
    with torch.no_grad():
        no_grad = ap_loss(leaf, LABELS, step=step)
    with torch.inference_mode():
        inference = [
            ap_loss(logits, LABELS, step=step) for logits in (leaf, SCORES.to(dtype, copy=True))
        ]
    assert not no_grad.requires_grad
    assert all(other == value for other in (plain, no_grad, *inference))


@every_step
@pytest.mark.parametrize("grad_output", [-2.5, 0.0, 3.0, 65536.0])
def test_the_incoming_gradient_scales_the_update_before_rounding(
    grad_output: float,
    step: str,
    dtype: torch.dtype,
    with_gradient: WithGradient,
    judge: Judge,
) -> None:
    logits = SCORES.to(dtype, copy=True)
    _, update = judge(logits, LABELS, step=step)
    _, gradient = with_gradient(ap_loss, logits, LABELS, step=step, grad_output=grad_output)
    expected = (grad_output * update).to(dtype)
    assert expected.isfinite().all()
    tolerance = max(torch.finfo(dtype).eps, 1e-6)
    torch.testing.assert_close(gradient, expected, rtol=tolerance, atol=1e-6)


@every_step
def test_repeated_runs_are_equal_to_the_last_bit(
    step: str, dtype: torch.dtype, with_gradient: WithGradient
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(20_000, 10, generator=generator) - 3).to(dtype)
    labels = torch.full((20_000,), BACKGROUND)
    labels[::500] = 3
    value, gradient = with_gradient(ap_loss, logits, labels, step=step)
    for _ in range(2):
        again, gradient_again = with_gradient(ap_loss, logits, labels, step=step)
        assert torch.equal(again, value)
        assert torch.equal(gradient_again, gradient)


@every_step
def test_a_second_derivative_is_refused(step: str, dtype: torch.dtype) -> None:
    leaf = SCORES.to(dtype, copy=True).requires_grad_()
    value = ap_loss(leaf, LABELS, step=step)
    (gradient,) = torch.autograd.grad(value, leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        gradient.sum().backward()
