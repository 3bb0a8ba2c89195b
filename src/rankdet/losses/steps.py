"""What the step does between the two passes over the scores: O(P) work on sorted positives.

A step f says how far one score stands above another (section 3.4.2 of the paper). Each class below
holds the sorted positives p and answers two questions in terms of bins of scores:

    above(counts, sums)   sum over the binned scores n of f(n - p_i), for every positive i
    profile(weights)      sum over positives i of w_i f(n - p_i), as a function of n

The suffix of a local name gives its axes: P positives, Q knots, B = Q + 1 bins.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


class HeavisideStep:
    """f(x) = 1 where x >= 0, else 0 (Eq. 4): the positives themselves are the knots."""

    needs_sums = False

    def __init__(self, positives: Tensor, delta: float) -> None:
        """
        Args:
            positives: (P,) float64, ascending.
            delta: not used.
        """
        self.positives = positives
        self.knots = positives

    def above(self, counts: Tensor, sums: Tensor) -> Tensor:
        """(P,) float64: how many of the binned scores are at or above each positive.

        Tied positives have empty bins between them, so each sees the scores above all of them.
        """
        return (counts.sum() - counts.cumsum(0)[:-1]).double()

    def above_positives(self) -> Tensor:
        """(P,) float64: a_i, how many positives stand at or above i, itself counted as 1."""
        num_below = torch.searchsorted(self.positives, self.positives)
        return (self.positives.shape[0] - num_below).double()

    def profile(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """(Q + 1,) intercepts and slopes of sum_i w_i f(n - p_i), the slopes all 0."""
        intercepts = pad(weights.cumsum(0), (1, 0))
        return intercepts, torch.zeros_like(intercepts)


class PiecewiseStep:
    """f(x) = clip(x / (2 delta) + 1/2, 0, 1) (Eq. 21): it has a knot at p - delta and p + delta.

    Lengths are measured in widths of the step, 2 delta, and a knot's place is split into a whole
    number of widths (integers, exact) and a fraction. Then all float sums stay of the size of the
    counts, and a small delta on large scores costs no accuracy.
    """

    needs_sums = True

    def __init__(self, positives: Tensor, delta: float) -> None:
        """
        Args:
            positives: (P,) float64, ascending.
            delta: half the width of the step, > 0.
        """
        self.positives = positives
        self.width = 2 * delta
        self.knots, self.order = torch.cat([positives - delta, positives + delta]).sort(stable=True)
        place = torch.empty_like(self.order)
        place[self.order] = torch.arange(self.order.shape[0], device=place.device)
        self.lower, self.upper = place.chunk(2)  # (P,) which knot is p_i - delta, p_i + delta
        opened = torch.ones_like(positives, dtype=torch.int64)
        num_open_Q = torch.cat([opened, -opened])[self.order].cumsum(0)
        self.is_open = num_open_Q > 0  # (Q,) whether bin q + 1 lies inside the ramp of a positive

    def above(self, counts: Tensor, sums: Tensor) -> Tensor:
        """(P,) float64: sum of f(n - p_i) over binned scores, given by counts and sums per bin.

        Scores from the upper knot on count 1, those between the knots of i by their place there.
        """
        whole_Q = (self.knots / self.width).floor()
        fraction_Q = self.knots / self.width - whole_Q
        counts_Q, sums_Q = counts[1:], sums[1:]
        offsets_Q = (sums_Q - self.knots * counts_Q) / self.width + fraction_Q * counts_Q
        # Bins outside all ramps may be wide, and their offsets huge: nobody asks for them.
        offsets_Q = torch.where(self.is_open, offsets_Q, 0.0)

        number = _sum_between(counts_Q, self.lower, self.upper)
        widths = _sum_between(whole_Q.long() * counts_Q, self.lower, self.upper)
        offset = _sum_between(offsets_Q, self.lower, self.upper)
        widths = widths - whole_Q.long()[self.lower] * number
        inside = offset + widths - fraction_Q[self.lower] * number
        num_above_P = counts_Q.sum() - _sum_before(counts_Q)[self.upper]
        return num_above_P + torch.minimum(inside.clamp(min=0), number.double())

    def above_positives(self) -> Tensor:
        """(P,) float64: a_i, how far positives stand above i, itself counted as 1."""
        ends = pad(self.knots, (0, 1), value=float("inf"))
        num_below = torch.searchsorted(self.positives, ends)
        sum_below = _sum_before(self.positives, and_total=True)[num_below]
        counts, sums = (pad(below[1:] - below[:-1], (1, 0)) for below in (num_below, sum_below))
        # The sum has f(0) = 1/2 for i itself, which counts 1.
        return self.above(counts, sums) + 0.5

    def profile(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """(Q + 1,) intercepts and slopes of sum_i w_i f(n - p_i) in each bin.

        The function rises from 0 at the first knot: its height at a knot is the sum of slope *
        length over the bins before, all numbers >= 0.
        """
        slopes_Q = torch.cat([weights, -weights])[self.order].cumsum(0) / self.width
        slopes_Q = torch.where(self.is_open, slopes_Q, 0.0)
        slopes = pad(slopes_Q, (1, 0))
        previous_Q = pad(self.knots, (1, 0))[:-1]
        heights_Q = (slopes[:-1] * (self.knots - previous_Q)).cumsum(0)
        intercepts = pad(heights_Q - slopes_Q * self.knots, (1, 0))
        return intercepts, slopes


def _sum_before(values: Tensor, and_total: bool = False) -> Tensor:
    """(n,) sums of all values before each place; with the total, (n + 1,)."""
    sums = pad(values.cumsum(0), (1, 0))
    return sums if and_total else sums[:-1]


def _sum_between(values: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """(P,) sums of values[start_i : end_i]."""
    sums = _sum_before(values, and_total=True)
    return sums[end] - sums[start]
