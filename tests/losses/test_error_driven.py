"""The error-driven update and what it has in common with known losses (section 3.3.2)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rankdet.losses import BACKGROUND, ap_loss, auc_loss
from rankdet.losses.ap_reference import soft_step


def error_driven_gradient(output: Tensor, desired: Tensor) -> Tensor:
    """Minus the update of Eq. 8, which is what backpropagation is given as the gradient."""
    return -(desired - output)


@pytest.mark.parametrize("seed", range(5))
def test_cross_entropy_is_the_error_driven_update_of_softmax(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = 3 * torch.randn(20, 7, generator=generator, dtype=torch.float64)
    classes = torch.randint(7, (20,), generator=generator)
    leaf = inputs.clone().requires_grad_()
    (expected,) = torch.autograd.grad(F.cross_entropy(leaf, classes, reduction="sum"), leaf)

    gradient = error_driven_gradient(torch.softmax(inputs, dim=1), F.one_hot(classes, 7))

    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_hinge_loss_is_the_error_driven_update_of_the_loss_augmented_step(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    margin = 2 * torch.randn(200, generator=generator, dtype=torch.float64)
    classes = torch.randint(2, (200,), generator=generator)
    leaf = torch.stack([-margin, margin], dim=1).requires_grad_()
    own = F.one_hot(classes, 2).double()
    hinge = (own * (1 - leaf).clamp(min=0)).sum()
    (expected,) = torch.autograd.grad(hinge, leaf)

    # The desired output is 1 for the own class; the other one does not enter the loss.
    output = soft_step(leaf.detach() - 1, "heaviside")
    gradient = own * error_driven_gradient(output, torch.ones_like(output))

    assert torch.equal(gradient, expected)
    assert 0 < int((gradient != 0).sum()) < len(classes)  # both cases occur


def primary_terms(difference: Tensor, step: str) -> Tensor:
    """L (P, N) of Eq. 3 from the scores' differences s_j - s_i of positives i to all boxes j.

    difference: (P, P + N), the positives first.
    """
    num_positives = len(difference)
    above = soft_step(difference, step)
    itself = soft_step(difference.diagonal(), step)
    return above[:, num_positives:] / (1 + above.sum(dim=1) - itself)[:, None]


@pytest.mark.parametrize("step", ["heaviside", "piecewise", "sigmoid"])
@pytest.mark.parametrize("seed", range(5))
def test_ap_loss_backpropagates_the_update_through_the_difference_transformation(
    seed: int, step: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(12, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0] * 4 + [BACKGROUND] * 8)
    leaf = scores.clone().requires_grad_()
    difference = leaf[None, :] - leaf[:4, None]  # Eq. 1, x_ij = -(s_i - s_j)
    output = primary_terms(difference.detach(), step)
    update = torch.zeros_like(difference)
    update[:, 4:] = error_driven_gradient(output, torch.zeros_like(output)) / 4
    (expected,) = torch.autograd.grad(difference, leaf, grad_outputs=update)

    leaf = scores.clone().requires_grad_()
    loss = ap_loss(leaf[:, None], labels, step=step, interpolate=False)
    (gradient,) = torch.autograd.grad(loss, leaf)

    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(loss.detach(), output.sum() / 4, rtol=1e-9, atol=1e-12)


def update_jacobian(loss_function, scores: Tensor, labels: Tensor) -> Tensor:
    """(R, R): how the update changes with the scores, by central differences."""

    def update(at: Tensor) -> Tensor:
        leaf = at.clone().requires_grad_()
        loss = loss_function(leaf[:, None], labels, step="sigmoid")
        return torch.autograd.grad(loss, leaf)[0]

    shifts = 1e-4 * torch.eye(len(scores), dtype=scores.dtype)
    return torch.stack([(update(scores + s) - update(scores - s)) / 2e-4 for s in shifts])


def test_the_update_of_auc_loss_is_conservative_and_that_of_ap_loss_is_not() -> None:
    """A symmetric Jacobian makes a gradient of some surrogate: AUC-loss has one, AP-loss none."""
    scores = torch.randn(9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.tensor([0] * 3 + [BACKGROUND] * 6)

    of_auc = update_jacobian(auc_loss, scores, labels)
    of_ap = update_jacobian(ap_loss, scores, labels)

    torch.testing.assert_close(of_auc, of_auc.T, rtol=1e-5, atol=1e-7)
    assert float((of_ap - of_ap.T).abs().max()) > 0.05 * float(of_ap.abs().max())
