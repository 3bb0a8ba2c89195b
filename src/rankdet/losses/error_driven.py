"""The error-driven update (section 3.2 of the paper) for any loss of pairs, in three stages.

Every loss of this family is a mean over the positives of errors, error_i = sum_j L_ij, whose terms
have the form L_ij = weight_i f(n_j - p_i). weights.py says how a loss gets them from the numbers of
scores that stand above a positive; steps.py what the step f does; kernels.py reads the scores.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import custom_op, get_ctx

from rankdet.losses.kernels import attach_update, bin_negatives, find_positives
from rankdet.losses.scope import poison_unless, rank_scopes
from rankdet.losses.sigmoid import attach_sigmoid_update, sum_sigmoids, sum_sigmoids_of_positives
from rankdet.losses.steps import HeavisideStep, PiecewiseStep
from rankdet.losses.weights import WEIGHTS

STEPS = ("piecewise", "heaviside", "sigmoid")


def error_driven_loss(
    logits: Tensor,
    labels: Tensor,
    weights: str,
    *,
    delta: float,
    step: str,
    scope: str,
    mask: Tensor | None,
    check_finite: bool | None,
) -> Tensor:
    """The mean error of the positives, a scalar whose backward gives the error-driven update.

    `weights` is a name in WEIGHTS; the other arguments are those of `ap_loss`.
    """
    check_step(step, delta)

    def rank(logits: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        rank_pairs = _rank_by_sigmoids if step == "sigmoid" else _rank_by_bins
        value, num_positives, num_wrong, *state = rank_pairs(
            logits.detach(), labels, mask, weights, step, delta
        )
        if not logits.requires_grad:
            return value, num_positives, num_wrong
        if step == "sigmoid":
            positives, weight, *places = state
            value = attach_sigmoid_update(
                value, logits, labels, mask, positives, weight, delta, False, *places
            )
        else:
            value = attach_update(value, logits, labels, mask, *state)
        return value, num_positives, num_wrong

    return rank_scopes(rank, logits, labels, mask=mask, scope=scope, check_finite=check_finite)


def check_step(step: str, delta: float) -> None:
    """Raise ValueError, with expected and got, unless the step and its width make sense."""
    if step not in STEPS:
        raise ValueError(f"step: expected one of {STEPS}, got {step!r}")
    if step != "heaviside" and not 0 < delta < float("inf"):
        hint = "; a step of no width is step='heaviside'" if delta == 0 else ""
        raise ValueError(f"delta: expected > 0 and finite for step={step!r}, got {delta}{hint}")


# The O(P) work between the passes has sizes that only the data tell. As operators of their own the
# two functions below are closed boxes for torch.compile, which could not guess those sizes.
_RANK_ARGUMENTS = "Tensor logits, Tensor labels, Tensor? mask, str weights, str step, float delta"


@custom_op(
    "rankdet::rank_by_bins",
    mutates_args=(),
    schema=f"({_RANK_ARGUMENTS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _rank_by_bins(
    logits: Tensor, labels: Tensor, mask: Tensor | None, weights: str, step: str, delta: float
) -> tuple[Tensor, ...]:
    """The loss of one ranking, with the state that `attach_update` needs.

    Returns:
        value, num_positives, num_wrong: scalars; num_wrong counts scores that are not finite.
        knots, intercepts, slopes, index, update: see `write_update`.
    """
    positives, index, num_wrong = sorted_positives(logits, labels, mask)
    ramp = (HeavisideStep if step == "heaviside" else PiecewiseStep)(positives, delta)
    counts, sums, num_wrong_negatives = bin_negatives(
        logits, labels, mask, ramp.knots, ramp.needs_sums
    )
    error, weight = WEIGHTS[weights](ramp.above_positives(), ramp.above(counts, sums), counts.sum())
    num_wrong = num_wrong + num_wrong_negatives
    poison = poison_unless(num_wrong == 0, labels, logits.shape[1])
    divisor = max(len(index), 1)
    intercepts, slopes = ramp.profile(weight / divisor)
    update = poison - error / divisor
    value = poison - update.sum()
    num_positives = torch.tensor(len(index), device=logits.device)
    knots = ramp.knots.clone()  # an operator may not return the same tensor twice
    return value, num_positives, num_wrong, knots, intercepts + poison, slopes, index, update


@_rank_by_bins.register_fake
def _(
    logits: Tensor, labels: Tensor, mask: Tensor | None, weights: str, step: str, delta: float
) -> tuple[Tensor, ...]:
    num_positives = get_ctx().new_dynamic_size()
    num_knots = num_positives if step == "heaviside" else 2 * num_positives
    value = logits.new_empty((), dtype=torch.float64)
    count = logits.new_empty((), dtype=torch.int64)
    return (
        value,
        count,
        torch.empty_like(count),
        value.new_empty(num_knots),
        value.new_empty(num_knots + 1),
        value.new_empty(num_knots + 1),
        count.new_empty(num_positives),
        value.new_empty(num_positives),
    )


@custom_op(
    "rankdet::rank_by_sigmoids",
    mutates_args=(),
    schema=f"({_RANK_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _rank_by_sigmoids(
    logits: Tensor, labels: Tensor, mask: Tensor | None, weights: str, step: str, delta: float
) -> tuple[Tensor, ...]:
    """The loss of one ranking by the sigmoid step, with the state for `attach_sigmoid_update`.

    Returns:
        value, num_positives, num_wrong: scalars; num_wrong counts scores that are not finite.
        positives, weights, index, update: see `write_sigmoid_update`.
    """
    positives, index, num_wrong = sorted_positives(logits, labels, mask)
    above_N, _, num_negatives, num_wrong_negatives = sum_sigmoids(
        logits, labels, mask, positives, delta
    )
    # The sum has S(0) = 1/2 for the positive itself, which counts 1.
    above_P = sum_sigmoids_of_positives(positives, delta)[0] + 0.5
    error, weight = WEIGHTS[weights](above_P, above_N, num_negatives)
    num_wrong = num_wrong + num_wrong_negatives
    poison = poison_unless(num_wrong == 0, labels, logits.shape[1])
    divisor = max(len(index), 1)
    weight = weight / divisor + poison
    update = poison - error / divisor
    value = poison - update.sum()
    num_positives = torch.tensor(len(index), device=logits.device)
    return value, num_positives, num_wrong, positives, weight, index, update


@_rank_by_sigmoids.register_fake
def _(
    logits: Tensor, labels: Tensor, mask: Tensor | None, weights: str, step: str, delta: float
) -> tuple[Tensor, ...]:
    num_positives = get_ctx().new_dynamic_size()
    value = logits.new_empty((), dtype=torch.float64)
    count = logits.new_empty((), dtype=torch.int64)
    return (
        value,
        count,
        torch.empty_like(count),
        value.new_empty(num_positives),
        value.new_empty(num_positives),
        count.new_empty(num_positives),
        value.new_empty(num_positives),
    )


def sorted_positives(
    logits: Tensor, labels: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The positives' scores (P,) in ascending order, their places, and how many are not finite.

    Those that are not finite stand as 0: the result will be NaN, and sorting NaN helps nobody.
    """
    scores, index = find_positives(logits, labels, mask)
    is_finite = torch.isfinite(scores)
    positives, order = torch.where(is_finite, scores, 0.0).sort(stable=True)
    return positives, index[order], (~is_finite).sum()
