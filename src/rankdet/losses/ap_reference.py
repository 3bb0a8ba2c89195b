"""Algorithm 1 of the paper, line by line: slow, in float64, and the judge of every fast path."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_step(difference: Tensor, step: str = "piecewise", delta: float = 1.0) -> Tensor:
    """How far a score stands above another: 0 below, 1 above, of the difference's shape.

    "piecewise" rises in a straight line from -delta to delta (Eq. 21), "heaviside" jumps to 1 at
    difference 0 (Eq. 4; delta is not used), "sigmoid" is 1 / (1 + exp(-difference / delta)).

    >>> soft_step(torch.tensor([-2.0, 0.0, 0.5]))
    tensor([0.0000, 0.5000, 0.7500])
    """
    if step == "piecewise":
        return (difference / (2 * delta) + 0.5).clamp(0, 1)
    if step == "heaviside":
        return (difference >= 0).to(difference.dtype)
    if step == "sigmoid":
        return torch.sigmoid(difference / delta)
    raise ValueError(f"step: expected 'piecewise', 'heaviside' or 'sigmoid', got {step!r}")


def ap_loss_reference(
    scores: Tensor,
    targets: Tensor,
    *,
    delta: float = 1.0,
    step: str = "piecewise",
    interpolate: bool = True,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The AP-loss and its error-driven update, by a loop over the positives (Algorithm 1).

    Args:
        scores: any shape and float dtype; computed in float64.
        targets: 0 or 1, of the same shape.
        mask: bool of the same shape; False entries are in neither set.

    Returns:
        value: float64 scalar, the loss of Eq. 5 (interpolated if asked).
        update: float64 of the scores' shape, the g of Algorithm 1, which stands for the gradient.
        Both are NaN if a score that is not masked is NaN or infinite.

    Differs from the paper: carries the error 1 - Prec, not Prec, because 1 - (1 - x) rounds.

    >>> value, update = ap_loss_reference(torch.tensor([0.0, 2.0]), torch.tensor([1, 0]))
    >>> value.item(), update.tolist()
    (0.5, [-0.5, 0.5])
    """
    score = scores.detach().double().flatten()
    counted = torch.ones_like(score, dtype=torch.bool) if mask is None else mask.flatten()
    _check(targets.flatten()[counted], step, delta)
    if not score[counted].isfinite().all():  # comparisons with NaN are False: it would be hidden
        update = torch.where(counted, float("nan"), 0.0).double()
        return update.sum(), update.reshape(scores.shape)
    positives = ((targets.flatten() == 1) & counted).nonzero()[:, 0]  # lines 1 to 3
    negatives = ((targets.flatten() == 0) & counted).nonzero()[:, 0]
    update = torch.zeros_like(score)
    if len(positives) == 0:
        return update.sum(), update.reshape(scores.shape)

    if step == "piecewise":  # lines 4 and 5: the others change nothing, for this step only
        negatives = negatives[score[negatives] > score[positives].min() - delta]
    smallest_error = torch.tensor(float("inf"), dtype=torch.float64, device=score.device)
    for i in positives[score[positives].argsort()]:  # lines 6 and 7, ascending scores
        others = positives[positives != i]
        above_P = soft_step(score[others] - score[i], step, delta)  # line 8
        above_N = soft_step(score[negatives] - score[i], step, delta)
        error_N = above_N / (1 + above_P.sum() + above_N.sum())  # line 9, Eq. 3
        error = error_N.sum()  # line 10, 1 - Prec
        if error <= smallest_error:  # lines 11 and 12
            smallest_error = error
        elif interpolate:  # lines 13 and 14
            error_N = error_N * (smallest_error / error)
        update[i] = -error_N.sum()  # line 16, Eq. 14
        update[negatives] += error_N  # line 17
    update /= len(positives)  # line 19
    return update[positives].sum().abs(), update.reshape(scores.shape)


def _check(targets: Tensor, step: str, delta: float) -> None:
    """Raise ValueError, with expected and got, unless targets and settings make sense."""
    wrong = targets[(targets != 0) & (targets != 1)]
    if len(wrong):
        raise ValueError(f"targets: expected 0 or 1, got {wrong[0].item()}")
    if step != "heaviside" and not delta > 0:
        raise ValueError(f"delta: expected > 0 for step={step!r}, got {delta}")
