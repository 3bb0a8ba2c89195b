"""The error-driven update (section 3.2 of the paper) for any loss of pairs, in three stages.

Every loss of this family is a mean over the positives of errors, error_i = sum_j L_ij, whose terms
have the form L_ij = weight_i f(n_j - p_i). weights.py says how a loss gets them from the numbers of
scores that stand above a positive; steps.py what the step f does; kernels.py reads the scores.
`rank_by_bins` is the first two stages, in plain torch between two operators; the third is the
backward pass.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.library import custom_op, get_ctx

from rankdet.losses.fused import can_read
from rankdet.losses.kernels import attach_update, bin_negatives, find_positives
from rankdet.losses.labels import require
from rankdet.losses.scope import poison_unless, rank_scopes, with_nan_gradient
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
    if _is_for_fused_kernels(logits, step, delta):
        from rankdet.losses.fused_ranking import fused_loss  # imports Triton

        fused = partial(fused_loss, weights=weights, delta=0.0 if step == "heaviside" else delta)
        return rank_scopes(fused, logits, labels, mask=mask, scope=scope, check_finite=check_finite)

    def rank(logits: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        by_bins, by_sigmoids = rank_by_bins, rank_by_sigmoids
        if torch.compiler.is_compiling():
            by_bins, by_sigmoids = _bins_operator, _sigmoids_operator
        rank_pairs = by_sigmoids if step == "sigmoid" else by_bins
        with torch.no_grad():
            value, num_positives, num_wrong, *state = rank_pairs(
                logits.detach(), labels, mask, weights, step, delta
            )
        if logits.requires_grad and step == "sigmoid":
            positives, weight, *places = state
            value = attach_sigmoid_update(
                value, logits, labels, mask, positives, weight, delta, False, *places
            )
            value = with_nan_gradient(value)  # without positives there is no weight to be NaN
        elif logits.requires_grad:
            value = attach_update(value, logits, labels, mask, *state)
        return value, torch.stack([num_positives, num_wrong])

    return rank_scopes(rank, logits, labels, mask=mask, scope=scope, check_finite=check_finite)


def _is_for_fused_kernels(logits: Tensor, step: str, delta: float) -> bool:
    """Whether ap_triton.py takes it: not the sigmoid step, and no width at float32's ends."""
    has_width = step == "piecewise" and 1e-20 < delta < 1e20
    return (has_width or step == "heaviside") and can_read(logits)


def check_step(step: str, delta: float) -> None:
    """Raise ValueError, with expected and got, unless the step and its width make sense."""
    require(step in STEPS, "step", f"one of {STEPS}", step)
    if step != "heaviside" and not 0 < delta < float("inf"):
        hint = "; a step of no width is step='heaviside'" if delta == 0 else ""
        raise ValueError(f"delta: expected > 0 and finite for step={step!r}, got {delta}{hint}")


def rank_by_bins(
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
    num_wrong = num_wrong + num_wrong_negatives
    error, weight = WEIGHTS[weights](ramp.above_positives(), ramp.above(counts, sums), counts.sum())
    poison = poison_unless(num_wrong == 0, labels, logits.shape[1])
    value, num_positives, update = _mean_error(error, poison)
    intercepts, slopes = ramp.profile(weight / num_positives.clamp(min=1))
    knots = ramp.knots.clone()  # an operator may not return a tensor that it has got or returned
    return value, num_positives, num_wrong, knots, intercepts + poison, slopes, index, update


def rank_by_sigmoids(
    logits: Tensor, labels: Tensor, mask: Tensor | None, weights: str, step: str, delta: float
) -> tuple[Tensor, ...]:
    """The loss of one ranking by the sigmoid step, with the state for `attach_sigmoid_update`.

    Returns:
        value, num_positives, num_wrong: scalars; num_wrong counts scores that are not finite.
        positives, weights, index, update: see `write_sigmoid_update`.
    """
    positives, index, num_wrong = sorted_positives(logits, labels, mask)
    negatives_above, _, num_negatives, num_wrong_negatives = sum_sigmoids(
        logits, labels, mask, positives, delta
    )
    num_wrong = num_wrong + num_wrong_negatives
    # The sum has S(0) = 1/2 for the positive itself, which counts 1.
    positives_above = sum_sigmoids_of_positives(positives, delta)[0] + 0.5
    error, weight = WEIGHTS[weights](positives_above, negatives_above, num_negatives)
    poison = poison_unless(num_wrong == 0, labels, logits.shape[1])
    value, num_positives, update = _mean_error(error, poison)
    weight = weight / num_positives.clamp(min=1) + poison
    return value, num_positives, num_wrong, positives, weight, index, update


def _mean_error(error: Tensor, poison: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, the number of positives (scalars), and the update (P,) of the positives."""
    num_positives = torch.tensor(len(error), device=error.device)
    update = poison - error / num_positives.clamp(min=1)
    return poison - update.sum(), num_positives, update


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


# The O(P) work between the passes has sizes that only the data tell, which torch.compile cannot
# guess. It gets the two functions above as operators, that is as closed boxes.
_ARGUMENTS = "Tensor logits, Tensor labels, Tensor? mask, str weights, str step, float delta"
_bins_operator = custom_op(
    "rankdet::rank_by_bins",
    rank_by_bins,
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_sigmoids_operator = custom_op(
    "rankdet::rank_by_sigmoids",
    rank_by_sigmoids,
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@_bins_operator.register_fake
def _(
    logits: Tensor, labels: Tensor, mask: Tensor | None, weights: str, step: str, delta: float
) -> tuple[Tensor, ...]:
    num_positives = get_ctx().new_dynamic_size()
    num_knots = num_positives if step == "heaviside" else 2 * num_positives
    value, count = _fake_scalars(logits)
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


@_sigmoids_operator.register_fake
def _(
    logits: Tensor, labels: Tensor, mask: Tensor | None, weights: str, step: str, delta: float
) -> tuple[Tensor, ...]:
    num_positives = get_ctx().new_dynamic_size()
    value, count = _fake_scalars(logits)
    return (
        value,
        count,
        torch.empty_like(count),
        value.new_empty(num_positives),
        value.new_empty(num_positives),
        count.new_empty(num_positives),
        value.new_empty(num_positives),
    )


def _fake_scalars(logits: Tensor) -> tuple[Tensor, Tensor]:
    value = logits.new_empty((), dtype=torch.float64)
    return value, logits.new_empty((), dtype=torch.int64)
