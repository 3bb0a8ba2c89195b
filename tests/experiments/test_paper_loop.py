"""The paper's loop in float32: by hand, and against the float64 reference."""

from __future__ import annotations

import pytest
import torch

from rankdet.experiments.paper_loop import nontrivial_negatives, paper_ap_loss
from rankdet.losses import BACKGROUND, IGNORED, ap_loss, ap_loss_reference
from rankdet.losses.labels import counted_entries, positive_entries


def problem(seed: int, spread: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores (2, 60, 3) of 2 images, and labels with all that there is."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(-2, 3, (2, 60), generator=generator)
    labels[torch.rand(2, 60, generator=generator) < 0.7] = BACKGROUND
    logits = spread * torch.randn(2, 60, 3, generator=generator)
    return logits.requires_grad_(), labels


def test_one_positive_below_one_negative() -> None:
    logits = torch.tensor([[0.0], [0.5], [-3.0]], requires_grad=True)
    loss = paper_ap_loss(logits, torch.tensor([0, BACKGROUND, BACKGROUND]))
    loss.backward()
    assert loss.item() == pytest.approx(0.75 / 1.75)
    assert logits.grad.flatten().tolist() == pytest.approx([-0.75 / 1.75, 0.75 / 1.75, 0.0])


@pytest.mark.parametrize("delta", [0.5, 1.0])
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_loop_equals_the_reference(seed: int, spread: float, delta: float) -> None:
    logits, labels = problem(seed, spread)
    loss = paper_ap_loss(logits, labels, delta)
    loss.backward()
    targets = positive_entries(labels, 3).long()
    counted = counted_entries(labels, None, 3)
    value, update = ap_loss_reference(logits, targets, delta=delta, mask=counted)
    assert loss.item() == pytest.approx(value.item(), rel=1e-5)
    torch.testing.assert_close(logits.grad.double(), update, rtol=1e-4, atol=1e-7)


def test_the_loop_equals_our_loss_in_bfloat16_too() -> None:
    logits, labels = problem(0, 2.0)
    short = logits.detach().bfloat16().requires_grad_()
    ours = short.detach().clone().requires_grad_()
    paper_ap_loss(short, labels).backward()
    ap_loss(ours, labels).backward()
    assert short.grad.dtype == torch.bfloat16
    torch.testing.assert_close(short.grad, ours.grad, rtol=0.02, atol=1e-6)


def test_without_positives_value_and_gradient_are_0() -> None:
    logits = torch.randn(5, 2, requires_grad=True)
    loss = paper_ap_loss(logits, torch.full((5,), BACKGROUND))
    loss.backward()
    assert loss.item() == 0
    assert not logits.grad.any()


def test_negatives_delta_below_the_lowest_positive_are_trivial() -> None:
    logits = torch.tensor([[2.0, 0.9], [1.1, 5.0], [0.5, 3.0]])
    labels = torch.tensor([0, BACKGROUND, IGNORED])
    expected = [[False, False], [True, True], [False, False]]
    assert nontrivial_negatives(logits, labels, delta=1.0).tolist() == expected
    assert not nontrivial_negatives(logits, torch.full((3,), BACKGROUND)).any()
