"""AP with the step replaced by a sigmoid, followed by its true gradient.

This is the first family of methods that the paper compares AP-loss with (section 4.2.3, after Song
et al. 2016 and Henderson & Ferrari 2016). Its value is that of `ap_loss(step="sigmoid",
interpolate=False)`; what differs is the way down: here the derivative, there the error.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rankdet.losses.collectives import eager_where_synchronized, own_group, summed_together
from rankdet.losses.error_driven import check_step, sorted_positives
from rankdet.losses.labels import BACKGROUND
from rankdet.losses.module import ClassLoss
from rankdet.losses.scope import Scope, poison_unless, rank_scopes, with_nan_gradient
from rankdet.losses.sigmoid import (
    attach_sigmoid_update,
    sum_sigmoids,
    sum_sigmoids_of_positives,
    write_sigmoid_update,
)


@eager_where_synchronized
def smooth_ap_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    delta: float = 1.0,
    log_space: bool = False,
    epsilon: float = 1e-6,
    scope: Scope = "batch",
    mask: Tensor | None = None,
    check_finite: bool | None = None,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """1 - AP by sigmoids of width delta, or -log(AP + epsilon): a scalar with its true gradient.

    The F of appendix A2, in O(P N) time and bounded memory.

    Args:
        logits, labels, scope, mask, check_finite, synchronize, process_group: as for `ap_loss`.
        delta: the k of the sigmoid 1 / (1 + exp(-x / k)), > 0.
        log_space: whether to take -log(AP + epsilon), which is steep where AP is near 0.
        epsilon: keeps the logarithm finite, > 0.

    >>> logits = torch.tensor([[0.0], [0.0]], requires_grad=True)
    >>> loss = smooth_ap_loss(logits, torch.tensor([0, BACKGROUND]))
    >>> loss.backward()
    >>> round(loss.item(), 6), [round(g, 6) for g in logits.grad.flatten().tolist()]
    (0.333333, [-0.111111, 0.111111])
    """
    check_step("sigmoid", delta)
    if not epsilon > 0:
        raise ValueError(f"epsilon: expected > 0, got {epsilon}")

    rank = partial(_rank, delta=delta, epsilon=epsilon if log_space else None)
    # Sizes in there depend on the data: the compiler has to call it, not to trace it.
    rank = torch.compiler.disable(rank)
    group = own_group(synchronize, process_group)
    return rank_scopes(
        rank, logits, labels, mask=mask, scope=scope, check_finite=check_finite, group=group
    )


@torch.no_grad()
def _smooth_ap(
    logits: Tensor, labels: Tensor, mask: Tensor | None, group: ProcessGroup | None, delta: float
) -> tuple[Tensor, ...]:
    """1 - AP and AP (two scalars), and the derivative of the first.

    Returns also the positives (P,) in ascending order and for each the weight of S'(n - p_i) in the
    derivative by a negative n; the places of the own ones in the logits, and the derivative by
    each; and 0, or NaN if a score is not finite or a label has no meaning. With a_i and b_i the
    numbers of positives and negatives above i, and r_i = a_i + b_i, each positive adds b_i / r_i,
    with differential (a_i db_i - b_i da_i) / r_i^2.
    """
    positives, index, places, num_wrong = sorted_positives(logits, labels, mask, group)
    negatives_above, negatives_slope, _, num_wrong_negatives = sum_sigmoids(
        logits, labels, mask, positives, delta
    )
    poison = poison_unless(num_wrong + num_wrong_negatives == 0, labels, logits.shape[1])
    negatives_above, negatives_slope, poison = summed_together(
        (negatives_above, negatives_slope, poison), group
    )
    positives_above, positives_slope = sum_sigmoids_of_positives(positives, delta)
    positives_above = positives_above + 0.5  # S(0) = 1/2 for i itself, which counts 1
    own_slope = (
        0.25 / delta
    )  # S'(0), in positives_slope but not in the derivative: p_i - p_i stays 0
    ranks = positives_above + negatives_above
    num_positives = max(len(positives), 1)
    by_negatives = positives_above / ranks.square() / num_positives
    by_positives = negatives_above / ranks.square() / num_positives
    # sum_k by_positives_k S'(p_i - p_k): how p_i enters the a_k of the others
    from_others = write_sigmoid_update(
        torch.ones((), dtype=torch.float64, device=logits.device),
        positives[:, None],
        torch.full_like(positives, BACKGROUND, dtype=torch.int64),
        None,
        positives,
        by_positives,
        delta,
        True,
        index[:0],
        positives[:0],
    )[:, 0]
    derivative = (
        by_positives * (positives_slope - own_slope)
        - by_negatives * negatives_slope
        - (from_others - by_positives * own_slope)
    )
    value = (negatives_above / ranks).sum() / num_positives
    precision = (positives_above / ranks).sum() / num_positives
    return (
        value,
        precision,
        positives,
        by_negatives,
        index,
        derivative[places],
        poison,
    )


def _rank(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    group: ProcessGroup | None,
    *,
    delta: float,
    epsilon: float | None,
) -> tuple[Tensor, Tensor]:
    """The loss of one ranking, and how many positives it has: (1,)."""
    value, precision, positives, weights, index, derivative, poison = _smooth_ap(
        logits, labels, mask, group, delta
    )
    if epsilon is not None and len(positives) > 0:
        value = -torch.log(precision + epsilon)
        weights, derivative = (part / (precision + epsilon) for part in (weights, derivative))
    value = value + poison
    if logits.requires_grad:
        value = attach_sigmoid_update(
            value,
            logits,
            labels,
            mask,
            positives,
            weights + poison,
            delta,
            True,
            index,
            derivative + poison,
        )
        value = with_nan_gradient(value)  # without positives there is no weight to be NaN
    return value, torch.tensor([len(positives)], device=logits.device)


class SmoothAPLoss(ClassLoss):
    """`smooth_ap_loss` with its settings.

    >>> SmoothAPLoss(delta=0.5)(torch.zeros(2, 1), torch.tensor([0, BACKGROUND])).item()
    0.3333333432674408
    """

    def __init__(
        self,
        delta: float = 1.0,
        log_space: bool = False,
        epsilon: float = 1e-6,
        scope: Scope = "batch",
        check_finite: bool | None = None,
        *,
        synchronize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(synchronize, process_group)
        self.delta = delta
        self.log_space = log_space
        self.epsilon = epsilon
        self.scope = scope
        self.check_finite = check_finite

    def forward(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        return smooth_ap_loss(
            logits,
            labels,
            delta=self.delta,
            log_space=self.log_space,
            epsilon=self.epsilon,
            scope=self.scope,
            mask=mask,
            check_finite=self.check_finite,
            synchronize=self.synchronize,
            process_group=self.process_group,
        )
