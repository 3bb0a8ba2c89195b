"""What trainings that differ in the seed alone say: mean, deviation, and intervals of differences.

Written here because SciPy is no dependency of the package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

_NUM_PARTS = 2000  # of Simpson's rule; even. Errors are below 1e-8 then.
_NUM_HALVINGS = 60


@dataclass(frozen=True)
class Spread:
    """The mean of some values, and their standard deviation (None: of a single one)."""

    mean: float
    deviation: float | None
    number: int


def spread(values: Sequence[float]) -> Spread | None:
    """
    >>> spread([1.0, 2.0, 3.0])
    Spread(mean=2.0, deviation=1.0, number=3)
    """
    if not values:
        return None
    return Spread(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def welch_interval(
    first: Sequence[float], second: Sequence[float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """The difference of the means of two samples, and half the width of its confidence interval.

    Welch's interval, for variances that need not be the same. With s^2 the variances and n the
    sizes of the samples:

        mean(first) - mean(second) +- t * sqrt(s1^2 / n1 + s2^2 / n2)

    where t is the quantile (1 + confidence) / 2 of Student's distribution with

        (s1^2 / n1 + s2^2 / n2)^2 / ((s1^2 / n1)^2 / (n1 - 1) + (s2^2 / n2)^2 / (n2 - 1))

    degrees of freedom. None if a sample has fewer than two values.
    """
    if min(len(first), len(second)) < 2:
        return None
    difference = fmean(first) - fmean(second)
    parts = [(variance(sample) / len(sample), len(sample) - 1) for sample in (first, second)]
    total = sum(part for part, _ in parts)
    if total == 0:
        return difference, 0.0
    # By shares, whose squares do not vanish.
    freedom = 1 / sum((part / total) ** 2 / degrees for part, degrees in parts)
    return difference, t_quantile((1 + confidence) / 2, freedom) * math.sqrt(total)


def t_quantile(probability: float, freedom: float) -> float:
    """Where Student's distribution with so many degrees of freedom has this probability below.

    probability: from 0.5 to below 1. freedom: at least 1, not necessarily whole.

    >>> round(t_quantile(0.975, 4), 4)
    2.7764
    """
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < probability:
        low, high = high, 2 * high
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        if t_probability(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_probability(value: float, freedom: float) -> float:
    """The probability that Student's t is at most this value, which is not negative.

    With t = sqrt(freedom) * tan(angle), the density becomes cos(angle)^(freedom - 1) / B(1 / 2,
    freedom / 2): a smooth function over a finite range, for Simpson's rule.
    """
    end = math.atan(value / math.sqrt(freedom))
    width = end / _NUM_PARTS
    powers = [math.cos(index * width) ** (freedom - 1) for index in range(_NUM_PARTS + 1)]
    odd, even = math.fsum(powers[1:-1:2]), math.fsum(powers[2:-1:2])
    integral = width / 3 * (powers[0] + 4 * odd + 2 * even + powers[-1])
    logarithm = math.lgamma(0.5) + math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)
    return 0.5 + integral / math.exp(logarithm)
