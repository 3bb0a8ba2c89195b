"""Inseparable data: the accumulated AP-loss of the modified update is bounded (appendix A3).

The modified update has the piecewise step H~ in the numerator and the Heaviside step in the
denominator: it is gradient descent on the surrogate l(x, x^(t)), which is convex for a linear model
because Q, the integral of H~, is convex.

What was found on reading the proof again (each statement is a test):

- The constants hold. Q(0) = delta / 4 and Q rises, so Q >= delta / 4 * H and
  l(x, x) >= delta / 4 * L_AP(x); H~^2 <= Q / delta, with equality on [-delta, delta].
- R need only bound the Jacobian of the pairs (positive, negative): other pairs have no gradient.
  That is the R used here; the norm over all pairs is larger and gives a weaker bound.
- The update needs the 1 / |P| of l: eta * (1 / |P|) * sum_ij L~_ij (f_i - f_j).
- From weights 0 delta has no effect at all: eta = delta / R^2 scales every weight with delta, H
  does not see scale, and the best u scales too. Only a start away from 0 makes delta matter.
- If u does not rank perfectly then some x_ij(u) >= 0, so Z(u) >= delta / 4 and
  8 Z(u) / delta >= 2: on inseparable data the bound of Eq. 52 is never below 2 / 3, and that of
  Eq. 50 is below 1 only with at least 6 positives. Both are true, and loose.
- In Eq. 52 the last term may be divided by 1 + 8 Z(u) / delta too; the paper drops that.

Axes: P positives, N negatives, D features, T steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rankdet.losses import BACKGROUND
from rankdet.losses.ap_reference import soft_step


@dataclass(frozen=True)
class Sample:
    """The training data of one iteration: features (boxes, D), labels (boxes,) 0 or BACKGROUND."""

    features: Tensor
    labels: Tensor

    @cached_property
    def pairs(self) -> Tensor:
        """(P, N, D): f_j - f_i for each positive i and negative j, so x_ij = pairs @ weights."""
        positives = self.features[self.labels == 0]
        negatives = self.features[self.labels == BACKGROUND]
        return negatives[None, :, :] - positives[:, None, :]


@dataclass(frozen=True)
class OnlineRun:
    """What happened along T steps of the modified update.

    weights (T, D) before each step; sample_index (T,) long; ap_losses (T,) L_AP before each step;
    surrogates (T,) l^(t)(theta^(t)); denominators: T tensors (P,) of 1 + sum_k H(x_ik).
    """

    weights: Tensor
    sample_index: Tensor
    ap_losses: Tensor
    surrogates: Tensor
    denominators: list[Tensor]


@dataclass(frozen=True)
class Bounds:
    """Upper bounds of the mean AP-loss of the first t steps, for t = 1..T: (T,) each.

    online: Eq. 48, divided by t; final1: Eq. 50; final2: Eq. 52.
    """

    online: Tensor
    final1: Tensor | None
    final2: Tensor | None


def random_inseparable_sample(
    generator: torch.Generator,
    *,
    num_positives: int = 16,
    num_negatives: int = 8,
    num_features: int = 4,
    shift: float = 6.0,
) -> Sample:
    """A random sample that no linear model ranks without error.

    Positives lie `shift` further along the first axis; the last negative is a copy of the positive
    that is lowest there, so that x_ij = 0 for this pair whatever the weights, and H(0) = 1.
    """
    labels = torch.tensor([0] * num_positives + [BACKGROUND] * num_negatives)
    features = torch.randn(len(labels), num_features, generator=generator, dtype=torch.float64)
    features[labels == 0, 0] += shift
    features[-1] = features[features[:num_positives, 0].argmin()]
    return Sample(features, labels)


def step_integral(difference: Tensor, delta: float) -> Tensor:
    """Q(x) of appendix A3, the integral of the piecewise step up to the difference.

    >>> step_integral(torch.tensor([-1.0, 0.0, 1.0, 3.0]), delta=1.0)
    tensor([0.0000, 0.2500, 1.0000, 3.0000])
    """
    parabola = (difference.clamp(-delta, delta) + delta) ** 2 / (4 * delta)
    return parabola + (difference - delta).clamp(min=0)


def rank_denominators(sample: Sample, weights: Tensor) -> Tensor:
    """(P,): 1 + sum over k other than i of H(x_ik), the rank of each positive, ties against it."""
    scores = sample.features @ weights
    positives = scores[sample.labels == 0]
    # H(x_ii) = 1 is the "1 +".
    return (scores[None, :] >= positives[:, None]).sum(dim=1).to(scores.dtype)


def heaviside_ap_loss(sample: Sample, weights: Tensor) -> Tensor:
    """L_AP of appendix A3 (Eq. 5 of the paper), as a scalar."""
    above = soft_step(sample.pairs @ weights, "heaviside").sum(dim=1)
    return (above / rank_denominators(sample, weights)).mean()


def surrogate_loss(sample: Sample, weights: Tensor, denominators: Tensor, delta: float) -> Tensor:
    """l(X(weights), x^) of appendix A3, as a scalar, with the denominators (P,) of x^."""
    areas = step_integral(sample.pairs @ weights, delta).sum(dim=1)
    return (areas / denominators).mean()


def modified_gradient(sample: Sample, weights: Tensor, delta: float) -> Tensor:
    """(D,): (1 / |P|) sum_ij L~_ij (f_j - f_i), the modified error-driven update's gradient."""
    pairs = sample.pairs
    step = soft_step(pairs @ weights, "piecewise", delta)
    error = step / rank_denominators(sample, weights)[:, None]
    return error.flatten() @ pairs.flatten(0, 1) / len(pairs)


def jacobian_norm(samples: Sequence[Sample]) -> float:
    """R: the largest spectral norm of dX/dtheta over the samples (positive-negative pairs only)."""
    return max(float(torch.linalg.matrix_norm(s.pairs.flatten(0, 1), ord=2)) for s in samples)


def run_modified_update(
    samples: Sequence[Sample],
    start: Tensor,
    *,
    delta: float,
    steps: int,
    generator: torch.Generator,
) -> OnlineRun:
    """T = steps updates with eta = delta / R^2, each on a random one of the samples.

    One sample is the offline setting of A3.3, several the online one of A3.2.
    """
    learning_rate = delta / jacobian_norm(samples) ** 2
    index = torch.randint(len(samples), (steps,), generator=generator)
    weights = start.clone()
    history, ap_losses, surrogates, all_denominators = [], [], [], []
    for chosen in index.tolist():
        sample = samples[chosen]
        denominators = rank_denominators(sample, weights)
        history.append(weights)
        ap_losses.append(heaviside_ap_loss(sample, weights))
        surrogates.append(surrogate_loss(sample, weights, denominators, delta))
        all_denominators.append(denominators)
        weights = weights - learning_rate * modified_gradient(sample, weights, delta)
    return OnlineRun(
        torch.stack(history),
        index,
        torch.stack(ap_losses),
        torch.stack(surrogates),
        all_denominators,
    )


def mean_so_far(values: Tensor) -> Tensor:
    """(T,): the mean of the first t values, for t = 1..T."""
    return values.cumsum(0) / torch.arange(1, len(values) + 1, dtype=values.dtype)


def comparator_losses(
    run: OnlineRun, samples: Sequence[Sample], comparator: Tensor, delta: float
) -> Tensor:
    """(T,): l^(t)(u) of every step for the comparator u (D,)."""
    areas = [step_integral(s.pairs @ comparator, delta).sum(dim=1) for s in samples]
    return torch.stack(
        [
            (areas[chosen] / denominators).mean()
            for chosen, denominators in zip(
                run.sample_index.tolist(), run.denominators, strict=True
            )
        ]
    )


def regret_bounds(
    run: OnlineRun, samples: Sequence[Sample], comparator: Tensor, delta: float
) -> Bounds:
    """The bounds of Eq. 48 (divided by t), Eq. 50 and Eq. 52.

    The last two are for the offline setting and None if there are several samples. They hold for
    every comparator u (D,); a better one makes them lower.
    """
    steps = torch.arange(1, len(run.ap_losses) + 1, dtype=torch.float64)
    distance = float((comparator - run.weights[0]).norm())
    start_term = 4 * (jacobian_norm(samples) * distance / delta) ** 2 / steps
    losses = comparator_losses(run, samples, comparator, delta)
    online = 8 / delta * mean_so_far(losses) + start_term
    if len(samples) > 1:
        return Bounds(online, None, None)
    pairs = samples[0].pairs
    num_positives = len(pairs)
    worst = 8 / delta * float(step_integral(pairs @ comparator, delta).sum(dim=1).max())
    final1 = (math.log(num_positives) + 1) / num_positives * worst + start_term
    final2 = worst / (1 + worst) + start_term
    return Bounds(online, final1, final2)


def best_online_comparator(run: OnlineRun, samples: Sequence[Sample], delta: float) -> Tensor:
    """(D,): the weights u that make the online bound at the run's end as low as it can be.

    The bound is convex in u, so this is its minimum, found by L-BFGS.
    """
    # sum_t l^(t)(u) needs of every sample only how often each positive stood at which rank.
    inverse_ranks = [torch.zeros(len(s.pairs), dtype=torch.float64) for s in samples]
    for chosen, denominators in zip(run.sample_index.tolist(), run.denominators, strict=True):
        inverse_ranks[chosen] += 1 / denominators
    squared_norm = jacobian_norm(samples) ** 2
    num_steps = len(run.ap_losses)
    all_pairs = [sample.pairs for sample in samples]
    comparator = run.weights[-1].clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [comparator], max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe"
    )

    def bound() -> Tensor:
        optimizer.zero_grad()
        accumulated = torch.zeros((), dtype=torch.float64)
        for pairs, weight in zip(all_pairs, inverse_ranks, strict=True):
            areas = step_integral(pairs @ comparator, delta).sum(dim=1)
            accumulated = accumulated + (areas * weight).mean()
        distance = ((comparator - run.weights[0]) ** 2).sum()
        value = (8 / delta * accumulated + 4 * squared_norm / delta**2 * distance) / num_steps
        value.backward()
        return value

    optimizer.step(bound)
    return comparator.detach()


def best_final_comparator(run: OnlineRun, sample: Sample, delta: float) -> Tensor:
    """(D,): weights u that make the bound of Eq. 50 at the run's end low (offline setting).

    Z(u) is a maximum and so has kinks: subgradient steps, of which the best point is kept.
    """
    pairs = sample.pairs
    num_positives, num_steps = len(pairs), len(run.ap_losses)
    factor = 8 / delta * (math.log(num_positives) + 1) / num_positives
    start_factor = 4 * (jacobian_norm([sample]) / delta) ** 2 / num_steps
    comparator = best_online_comparator(run, [sample], delta).requires_grad_()
    optimizer = torch.optim.Adam([comparator], lr=0.02 * delta)
    lowest, best = math.inf, comparator.detach().clone()
    for _ in range(500):
        worst = step_integral(pairs @ comparator, delta).sum(dim=1).max()
        bound = factor * worst + start_factor * ((comparator - run.weights[0]) ** 2).sum()
        if bound.item() < lowest:
            lowest, best = bound.item(), comparator.detach().clone()
        optimizer.zero_grad()
        bound.backward()
        optimizer.step()
    return best
