"""Separable data: the error-driven update converges (appendix A1), gradient descent may not (A2).

Every problem here has one class, so its labels are 0 (positive) or BACKGROUND (negative), and a
linear model: scores = features @ weights.

Remarks on the proof of A1, all checked by tests:

- ||sum_ij L_ij (f_i - f_j)||^2 <= |P| |N| max ||f_i - f_j||^2 does not follow from L_ij <= 1 alone
  (that gives |P|^2 |N|^2). It is true because sum_j L_ij <= |N| / (|N| + rank^+(i)), so that
  sum_ij L_ij <= |N| ln(1 + |P| / |N|) <= sqrt(|P| |N|).
- The paper's bound C / c^2 = M^4 max ||f_i - f_j||^2 ||theta*||^2 / epsilon^2 is far from tight.
  One erring positive alone gives sum_ij L_ij >= 1 / (|P| + 1); with that and the first remark the
  same proof gives `sharper_bound`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rankdet.losses import BACKGROUND, ap_loss, smooth_ap_loss


@dataclass(frozen=True)
class SeparableProblem:
    """Training samples (images) whose boxes a linear model can rank without error.

    features: one (boxes, D) float64 tensor for each sample; labels: (boxes,), 0 or BACKGROUND.
    separator: (D,) of length 1, theta* of the proof. margin: epsilon, by which it puts every
    positive above every negative of the same sample.
    """

    features: list[Tensor]
    labels: list[Tensor]
    separator: Tensor
    margin: float


@dataclass(frozen=True)
class Trajectory:
    """Weights (T + 1, D) along a training run and the loss (T + 1,) at each of them."""

    weights: Tensor
    losses: Tensor


def random_separable_problem(
    generator: torch.Generator,
    *,
    num_samples: int = 5,
    num_features: int = 6,
    margin: float = 0.5,
    max_positives: int = 6,
    max_negatives: int = 20,
) -> SeparableProblem:
    """A random problem whose margin is at least the one asked for.

    Each sample has its own threshold along the separator: only the order within a sample is
    separable, the samples' boxes taken together need not be.
    """

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    separator = normal(num_features)
    separator /= separator.norm()
    all_features, all_labels = [], []
    for _ in range(num_samples):
        num_positives = int(torch.randint(1, max_positives + 1, (), generator=generator))
        num_negatives = int(torch.randint(1, max_negatives + 1, (), generator=generator))
        labels = torch.tensor([0] * num_positives + [BACKGROUND] * num_negatives)
        side = torch.where(labels == 0, 1.0, -1.0)
        # In proportion to the margin, so that a small margin makes a hard problem.
        height = normal(1) + side * margin * (0.5 + normal(len(labels)).abs())
        features = normal(len(labels), num_features)
        features += (height - features @ separator)[:, None] * separator
        all_features.append(features)
        all_labels.append(labels)
    attained = min(
        float(_smallest_gap(features @ separator, labels))
        for features, labels in zip(all_features, all_labels, strict=True)
    )
    return SeparableProblem(all_features, all_labels, separator, attained)


def _smallest_gap(scores: Tensor, labels: Tensor) -> Tensor:
    """By how much the lowest positive stands above the highest negative."""
    return scores[labels == 0].min() - scores[labels == BACKGROUND].max()


def proof_constants(problem: SeparableProblem) -> tuple[float, float]:
    """c and C of appendix A1: after t steps, c t <= ||weights|| and ||weights||^2 <= C t."""
    most_boxes = max(len(labels) for labels in problem.labels)
    return problem.margin / most_boxes, (most_boxes * _widest_pair(problem)) ** 2


def step_bound(problem: SeparableProblem) -> float:
    """C / c^2 of appendix A1: the error-driven update makes at most that many steps."""
    growth, ceiling = proof_constants(problem)
    return ceiling / growth**2


def sharper_bound(problem: SeparableProblem) -> float:
    """The same bound with the sums of L_ij bounded as the module's docstring says."""
    num_positives = torch.tensor([int((labels == 0).sum()) for labels in problem.labels])
    num_negatives = torch.tensor([len(labels) for labels in problem.labels]) - num_positives
    largest = float((num_negatives * torch.log1p(num_positives / num_negatives)).max())
    smallest = float((1 / (num_positives + 1)).min())
    return (largest * _widest_pair(problem) / (smallest * problem.margin)) ** 2


def _widest_pair(problem: SeparableProblem) -> float:
    """The largest ||f_i - f_j|| over the positives i and negatives j of one sample."""
    return max(
        float(torch.cdist(features[labels == 0], features[labels == BACKGROUND]).max())
        for features, labels in zip(problem.features, problem.labels, strict=True)
    )


def error_driven_change(
    weights: Tensor, features: Tensor, labels: Tensor, *, step: str = "heaviside"
) -> tuple[Tensor, Tensor]:
    """The AP-loss, and sum_ij L_ij (f_i - f_j) by the library's backward pass (Eq. 23).

    weights (D,), features (boxes, D), labels (boxes,). The library divides the update by |P|, the
    proof does not: hence the multiplication.
    """
    leaf = weights.detach().requires_grad_()
    loss = ap_loss((features @ leaf)[:, None], labels, step=step, interpolate=False)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), -gradient * (labels == 0).sum()


def train_until_separated(
    problem: SeparableProblem, generator: torch.Generator, *, max_steps: int = 100_000
) -> Trajectory:
    """The run of A1 from weights 0: while a sample errs, one of those, at random, is learned.

    The losses are those of the samples that were learned, and last 0 if no sample errs any more.
    """
    weights = torch.zeros_like(problem.separator)
    history = [weights]
    losses: list[Tensor] = []
    while len(losses) < max_steps:
        # The first erring sample in random order is a uniform choice among those that err.
        for index in torch.randperm(len(problem.features), generator=generator).tolist():
            loss, change = error_driven_change(
                weights, problem.features[index], problem.labels[index]
            )
            if loss > 0:
                break
        else:
            losses.append(torch.zeros((), dtype=torch.float64))
            break
        weights = weights + change
        history.append(weights)
        losses.append(loss)
    return Trajectory(torch.stack(history), torch.stack(losses).double())


# Appendix A2: three boxes in the plane, the first a negative, the others positives.
THREE_FEATURES = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-3.0, 1.0]], dtype=torch.float64)
THREE_LABELS = torch.tensor([BACKGROUND, 0, 0])


def three_sample_loss(weights: Tensor) -> Tensor:
    """F of appendix A2 in closed form, for weights (..., 2): a tensor of shape (...)."""
    first, second = weights.unbind(-1)
    near = torch.sigmoid(-first)
    far = torch.sigmoid(3 * first - second)
    near_error = near / (1 + near + torch.sigmoid(second - 4 * first))
    far_error = far / (1 + torch.sigmoid(4 * first - second) + far)
    return 0.5 * (near_error + far_error)


def is_trapped(weights: Tensor) -> Tensor:
    """Where dF/dtheta1 < dF/dtheta2 < 0 (Eq. 36), for weights (..., 2): bool (...)."""
    leaf = weights.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(three_sample_loss(leaf).sum(), leaf)
    return (gradient[..., 0] < gradient[..., 1]) & (gradient[..., 1] < 0)


def sufficiently_large() -> float:
    """How large theta1 has to be, to 0.01, for A2's inequality at every theta2 in (0, theta1)."""
    first = torch.arange(1, 801, dtype=torch.float64) / 100
    ratio = torch.arange(1, 1000, dtype=torch.float64) / 1000
    grid = torch.stack(torch.broadcast_tensors(first[:, None], first[:, None] * ratio), dim=-1)
    holds = is_trapped(grid).all(dim=1)
    wrong = (~holds).nonzero()
    return float(first[wrong[-1, 0] + 1]) if len(wrong) else float(first[0])


def descend_smoothed(start: Tensor, *, learning_rate: float, steps: int) -> Trajectory:
    """Gradient descent on the smoothed AP-loss of the three samples, with its true gradient."""
    weights = start.clone()
    history, losses = [], []
    for _ in range(steps + 1):
        leaf = weights.requires_grad_()
        loss = smooth_ap_loss((THREE_FEATURES @ leaf)[:, None], THREE_LABELS, delta=1.0)
        (gradient,) = torch.autograd.grad(loss, leaf)
        history.append(leaf.detach())
        losses.append(loss.detach())
        weights = leaf.detach() - learning_rate * gradient
    return Trajectory(torch.stack(history), torch.stack(losses))


def descend_error_driven(
    start: Tensor, *, learning_rate: float, steps: int, step: str = "heaviside"
) -> Trajectory:
    """The error-driven update on the three samples; stops where the AP-loss is 0."""
    weights = start.clone()
    history, losses = [], []
    for _ in range(steps + 1):
        loss, change = error_driven_change(weights, THREE_FEATURES, THREE_LABELS, step=step)
        history.append(weights)
        losses.append(loss)
        if loss == 0:
            break
        weights = weights + learning_rate * change
    return Trajectory(torch.stack(history), torch.stack(losses))
