"""What makes one error-driven loss different from another: errors and weights, in O(P).

Each function takes how many stand above each positive and returns its error, error_i = sum_j L_ij,
and the weight of its pairs, L_ij = weight_i f(n_j - p_i). All are (P,) float64, the positives in
ascending order of score. A new loss of pairs is a new function here and its line in WEIGHTS.
"""

from __future__ import annotations

import torch
from torch import Tensor


def ap_weights(
    positives_above: Tensor, negatives_above: Tensor, num_negatives: Tensor
) -> tuple[Tensor, Tensor]:
    """Errors 1 - precision, and L_ij of Eq. 3.

    Args:
        positives_above: how many positives stand at or above each positive, itself counted as 1.
        negatives_above: how many negatives stand above it.
        num_negatives: int64 scalar, |N|.
    """
    ranks = positives_above + negatives_above
    return negatives_above / ranks, 1 / ranks


def interpolated_ap_weights(
    positives_above: Tensor, negatives_above: Tensor, num_negatives: Tensor
) -> tuple[Tensor, Tensor]:
    """The same after interpolation (Algorithm 1, lines 11 to 14).

    Works on errors, not precisions: near 1 a precision has no digits left for its distance from 1.
    """
    errors, _ = ap_weights(positives_above, negatives_above, num_negatives)
    errors = errors.cummin(0).values
    return errors, torch.where(negatives_above > 0, errors / negatives_above, 0.0)


def auc_weights(
    positives_above: Tensor, negatives_above: Tensor, num_negatives: Tensor
) -> tuple[Tensor, Tensor]:
    """Shares of the negatives that stand above each positive, and L_ij = f(x_ij) / |N| of Eq. 7."""
    weight = 1 / num_negatives.clamp(min=1).double()
    return negatives_above * weight, weight.expand_as(negatives_above)


WEIGHTS = {"ap": ap_weights, "interpolated_ap": interpolated_ap_weights, "auc": auc_weights}
