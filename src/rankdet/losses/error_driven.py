"""The error-driven update (section 3.2 of the paper) for any loss of pairs, in three stages.

Every loss of this family is a mean over the positives of errors, error_i = sum_j L_ij, whose terms
have the form L_ij = weight_i f(n_j - p_i). weights.py says how a loss gets them from the numbers of
scores that stand above a positive; steps.py what the step f does; kernels.py reads the scores.
`rank_by_bins` is the first two stages, in plain torch between two operators; the third is the
backward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.library import custom_op, get_ctx

from rankdet.losses.collectives import (
    concatenated,
    exchange_device,
    own_group,
    summed_together,
)
from rankdet.losses.fused import can_read
from rankdet.losses.kernels import attach_update, bin_negatives, find_positives
from rankdet.losses.labels import require
from rankdet.losses.scope import Scope, poison_unless, rank_scopes, with_nan_gradient
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
    scope: Scope,
    mask: Tensor | None,
    check_finite: bool | None,
    synchronize: bool,
    process_group: ProcessGroup | None,
) -> Tensor:
    """The mean error of the positives, a scalar whose backward gives the error-driven update.

    `weights` is a name in WEIGHTS; the other arguments are those of `ap_loss`.
    """
    check_step(step, delta)

    def rank(
        logits: Tensor, labels: Tensor, mask: Tensor | None, group: ProcessGroup | None
    ) -> tuple[Tensor, Tensor]:
        if group is None and _is_for_fused_kernels(logits, step, delta):
            from rankdet.losses.fused_ranking import fused_loss  # imports Triton

            half_width = 0.0 if step == "heaviside" else delta
            return fused_loss(logits, labels, mask, weights, half_width)
        arguments = (logits.detach(), labels, mask, weights, step, delta)
        with torch.no_grad():
            if torch.compiler.is_compiling():  # never with a group
                operator = _sigmoids_operator if step == "sigmoid" else _bins_operator
                value, num_positives, *state = operator(*arguments)
            else:
                rank_pairs = rank_by_sigmoids if step == "sigmoid" else rank_by_bins
                value, num_positives, *state = rank_pairs(*arguments, group)
        if logits.requires_grad and step == "sigmoid":
            positives, weight, *places = state
            value = attach_sigmoid_update(
                value, logits, labels, mask, positives, weight, delta, False, *places
            )
            value = with_nan_gradient(value)  # without positives there is no weight to be NaN
        elif logits.requires_grad:
            value = attach_update(value, logits, labels, mask, *state)
        return value, num_positives.unsqueeze(0)

    group = own_group(synchronize, process_group)
    return rank_scopes(
        rank, logits, labels, mask=mask, scope=scope, check_finite=check_finite, group=group
    )


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
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: str,
    step: str,
    delta: float,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, ...]:
    """The loss of one ranking, with the state that `attach_update` needs.

    Returns:
        value, num_positives: scalars, of the global ranking.
        knots, intercepts, slopes, index, update: see `write_update`; for the own scores.
    """
    device = exchange_device(group, logits.device)
    positives, index, places, num_wrong = sorted_positives(logits, labels, mask, group, device)
    ramp = (HeavisideStep if step == "heaviside" else PiecewiseStep)(positives, delta)
    # A copy: an operator may not return a tensor that it has got or returned.
    knots = ramp.knots.to(logits.device, copy=True)
    counts, sums, num_wrong_negatives = bin_negatives(logits, labels, mask, knots, ramp.needs_sums)
    poison = poison_unless(num_wrong + num_wrong_negatives == 0, labels, logits.shape[1])
    local = (counts.to(device), sums.to(device), poison.to(device))
    counts, sums, poison = summed_together(local, group)
    error, weight = WEIGHTS[weights](ramp.above_positives(), ramp.above(counts, sums), counts.sum())
    value, num_positives, update = _mean_error(error, poison)
    intercepts, slopes = ramp.profile(weight / num_positives.clamp(min=1))
    state = (knots, intercepts + poison, slopes, index, update[places])
    return tuple(tensor.to(logits.device) for tensor in (value, num_positives, *state))


def rank_by_sigmoids(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: str,
    step: str,
    delta: float,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, ...]:
    """The loss of one ranking by the sigmoid step, with the state for `attach_sigmoid_update`.

    Returns:
        value, num_positives: scalars, of the global ranking.
        positives, weights, index, update: see `write_sigmoid_update`; the last two for the own.
    """
    positives, index, places, num_wrong = sorted_positives(logits, labels, mask, group)
    negatives_above, _, num_negatives, num_wrong_negatives = sum_sigmoids(
        logits, labels, mask, positives, delta
    )
    poison = poison_unless(num_wrong + num_wrong_negatives == 0, labels, logits.shape[1])
    negatives_above, num_negatives, poison = summed_together(
        (negatives_above, num_negatives, poison), group
    )
    # The sum has S(0) = 1/2 for the positive itself, which counts 1.
    positives_above = sum_sigmoids_of_positives(positives, delta)[0] + 0.5
    error, weight = WEIGHTS[weights](positives_above, negatives_above, num_negatives)
    value, num_positives, update = _mean_error(error, poison)
    weight = weight / num_positives.clamp(min=1) + poison
    return value, num_positives, positives, weight, index, update[places]


def _mean_error(error: Tensor, poison: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, the number of positives (scalars), and the update (P,) of the positives."""
    num_positives = torch.tensor(len(error), device=error.device)
    update = poison - error / num_positives.clamp(min=1)
    return poison - update.sum(), num_positives, update


def sorted_positives(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    group: ProcessGroup | None = None,
    device: torch.device | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The positives of all processes in ascending order, and where in there the own ones are.

    Those that are not finite stand as 0: the result will be NaN, and sorting NaN helps nobody.

    Args:
        device: for positives and places; None: that of the logits.

    Returns:
        positives: (P,) float64, ascending.
        index: (n,) int64, flat places of the own positives in the logits.
        places: (n,) int64, which of `positives` they are.
        num_wrong: how many of the own ones are not finite.
    """
    scores, index = find_positives(logits, labels, mask)
    is_finite = torch.isfinite(scores)
    scores = torch.where(is_finite, scores, 0.0).to(device or logits.device)
    whole, own = concatenated(scores, group)
    positives, order = whole.sort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    return positives, index, places[own], (~is_finite).sum()


# The O(P) work between the passes has sizes that only the data tell, which torch.compile cannot
# guess. It gets the two functions above as operators, that is as closed boxes.
_ARGUMENTS = "Tensor logits, Tensor labels, Tensor? mask, str weights, str step, float delta"
_bins_operator = custom_op(
    "rankdet::rank_by_bins",
    rank_by_bins,
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
_sigmoids_operator = custom_op(
    "rankdet::rank_by_sigmoids",
    rank_by_sigmoids,
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
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
        value.new_empty(num_positives),
        value.new_empty(num_positives),
        count.new_empty(num_positives),
        value.new_empty(num_positives),
    )


def _fake_scalars(logits: Tensor) -> tuple[Tensor, Tensor]:
    value = logits.new_empty((), dtype=torch.float64)
    return value, logits.new_empty((), dtype=torch.int64)
