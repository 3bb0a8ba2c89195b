"""The structured hinge loss on AP: the second family of methods that the paper compares with.

After Yue et al. 2007 and Mohapatra et al. 2018. A ranking R of all scores is worth
F(R) = 1 / (|P| |N|) sum_ij R_ij (p_i - n_j), with R_ij = 1 where positive i stands above negative j
and -1 where below. The loss is the largest, over all rankings, of

    1 - AP(R) + F(R) - F(the perfect ranking)

It is convex in the scores, and never below the AP-loss of the Heaviside step. Sort both sets
downwards, and let c_k be the number of negatives above the k-th positive: then the term to maximise
is

    sum_k  c_k / (k + c_k) / |P|  +  2 / (|P| |N|) (sum of the top c_k negatives - c_k p_k)

over 0 <= c_1 <= ... <= c_P. The j-th negative can choose its place alone (Yue et al.): it goes
above the positives k > r_j, where r_j makes the sum of gain_j(k) over k > r_j largest, with

    gain_j(k) = k / ((k + j - 1) (k + j)) / |P| + 2 / (|P| |N|) (n_j - p_k)

and r_j grows with j. Mohapatra et al. find the places by divide and conquer, without sorting the
negatives, and so do we: an interval of scores whose ends have the same place is settled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn.functional import pad

from rankdet.losses.collectives import (
    eager_where_synchronized,
    largest,
    own_group,
    summed,
    summed_together,
)
from rankdet.losses.error_driven import sorted_positives
from rankdet.losses.kernels import attach_update, bin_negatives
from rankdet.losses.module import ClassLoss
from rankdet.losses.scope import Scope, poison_unless, rank_scopes

_PARTS = 8  # of an interval in one round: 11 rounds settle the 32 bits of a float32, 22 a float64


@eager_where_synchronized
def hinge_ap_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    scope: Scope = "batch",
    mask: Tensor | None = None,
    check_finite: bool | None = None,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """The structured hinge loss on AP: a scalar >= 1 - AP, with a subgradient as gradient.

    Exact, in O((P + N) log P) time and O(P) extra memory; the arguments are those of `ap_loss`.
    Negatives that are tied share what the ranking gives to them together.

    >>> logits = torch.tensor([[3.0], [0.0]], requires_grad=True)
    >>> hinge_ap_loss(logits, torch.tensor([0, -1])).item()  # wide apart
    0.0
    >>> logits = torch.tensor([[0.0], [0.0]], requires_grad=True)
    >>> loss = hinge_ap_loss(logits, torch.tensor([0, -1]))
    >>> loss.backward()
    >>> loss.item(), logits.grad.flatten().tolist()
    (0.5, [-2.0, 2.0])
    """
    # Sizes in there depend on the data: the compiler has to call it, not to trace it.
    rank = torch.compiler.disable(_rank)
    group = own_group(synchronize, process_group)
    return rank_scopes(
        rank, logits, labels, mask=mask, scope=scope, check_finite=check_finite, group=group
    )


def _rank(
    logits: Tensor, labels: Tensor, mask: Tensor | None, group: ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """The loss of one ranking, and how many positives it has: (1,)."""
    with torch.no_grad():
        ascending, index, places, num_wrong = sorted_positives(logits, labels, mask, group)
        positives = ascending.flip(0)
        counts, _, num_wrong_negatives = bin_negatives(logits, labels, mask, ascending[:0], False)
        poison = poison_unless(num_wrong + num_wrong_negatives == 0, labels, logits.shape[1])
        counts, poison = summed_together((counts, poison), group)
        num_above, thresholds = _most_violating_ranking(
            logits, labels, mask, group, positives, int(counts.sum())
        )
        # The negatives above a threshold stand above its positive, and a share of those at it.
        knots, order = torch.cat([thresholds, _next_above(thresholds)]).sort(stable=True)
        counts, sums, _ = bin_negatives(logits, labels, mask, knots, True)
        counts, sums = summed_together((counts, sums), group)
        num_from = (counts.sum() - counts.cumsum(0)[:-1])[order.argsort()].double()
        num_at_or_above, num_over = num_from.chunk(2)
        num_at = num_at_or_above - num_over
        share = torch.where(num_at > 0, (num_above[num_above > 0] - num_over) / num_at, 1.0)
        shares = torch.cat([share, 1 - share])[order]

        scale = 2 / max(1, len(positives) * int(counts.sum()))
        rank = torch.arange(1, len(positives) + 1, device=logits.device)
        loss = (num_above / (rank + num_above)).sum() / max(1, len(positives))
        top_negatives = (shares * (sums.sum() - sums.cumsum(0)[:-1])).sum()
        value = loss + scale * (top_negatives - (num_above * positives).sum()) + poison
        update = (-scale * num_above + poison).flip(0)[places]
        intercepts = pad(scale * shares.cumsum(0), (1, 0)) + poison
    if logits.requires_grad:
        slopes = torch.zeros_like(intercepts)
        value = attach_update(value, logits, labels, mask, knots, intercepts, slopes, index, update)
    return value, torch.tensor([len(positives)], device=logits.device)


@dataclass
class _Segments:
    """Runs of the negatives, in order of score, whose places are not settled; each tensor (S,).

    The scores lie in [low, high) as keys (`_to_key`). num_low and num_high are the numbers of
    negatives at or above either end, so the run is made of the negatives number num_high + 1 to
    num_low from the top. Their places r go from place_high up to place_low.
    """

    low: Tensor
    high: Tensor
    num_low: Tensor
    num_high: Tensor
    place_low: Tensor
    place_high: Tensor

    def keep(self, chosen: Tensor) -> _Segments:
        return _Segments(*(values[chosen] for values in vars(self).values()))

    def split(self, keys: Tensor, numbers: Tensor, places: Tensor) -> _Segments:
        """The segments between neighbours of (S, m) inner points, from low to high."""
        ends = []
        for low, inner, high in (
            (self.low, keys, self.high),
            (self.num_low, numbers, self.num_high),
            (self.place_low, places, self.place_high),
        ):
            points = torch.cat([low[:, None], inner, high[:, None]], 1)
            ends += [points[:, :-1].flatten(), points[:, 1:].flatten()]
        segments = _Segments(*ends)
        is_open = segments.place_low > segments.place_high
        return segments.keep(is_open & (segments.num_low > segments.num_high))


def _most_violating_ranking(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    group: ProcessGroup | None,
    positives: Tensor,
    num_negatives: int,
) -> tuple[Tensor, Tensor]:
    """Where the negatives go in the ranking that is worst for the loss.

    Args:
        positives: (P,) float64, descending.

    Returns:
        num_above: (P,) float64, c_k, how many negatives stand above the k-th positive.
        thresholds: (T,) float64, for each c_k > 0 the score of the lowest of these negatives, or
            any score between it and the next.
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    limit = int(_to_key(torch.tensor(torch.finfo(dtype).max, dtype=dtype, device="cpu")))
    whole = [-limit, limit + 1, num_negatives, 0, len(positives), 0]
    open_segments = _Segments(*torch.tensor(whole, device=logits.device)[:, None])
    open_segments = open_segments.keep(open_segments.num_low * open_segments.place_low > 0)
    found = [[torch.zeros_like(open_segments.low), *[torch.zeros_like(open_segments.low)] * 2]]
    tied = []  # segments of a single score
    while len(open_segments.low):
        keys = _inner_points(open_segments.low, open_segments.high)
        scores = _from_key(keys, dtype).double()
        counts = summed(bin_negatives(logits, labels, mask, scores.flatten(), False)[0], group)
        numbers = (counts.sum() - counts.cumsum(0)[:-1]).view_as(keys)
        places = _best_places(numbers, scores, open_segments, positives, num_negatives)
        # Rounding may decide between equals, and the processes must take the same way from here.
        places = largest(places, group)
        found.append([numbers, places, scores])
        segments = open_segments.split(keys, numbers, places)
        is_wide = segments.high - segments.low > 1
        tied.append(segments.keep(~is_wide & (segments.num_low - segments.num_high > 1)))
        open_segments = segments.keep(is_wide)
    for segments in tied:
        while len(segments.low):
            numbers = _inner_points(segments.num_high, segments.num_low).flip(1)
            scores = _from_key(segments.low, dtype).double()[:, None].expand(numbers.shape)
            places = _best_places(numbers, scores, segments, positives, num_negatives)
            found.append([numbers, places, scores])
            segments = segments.split(segments.low[:, None].expand(numbers.shape), numbers, places)
            segments = segments.keep(segments.num_low - segments.num_high > 1)

    numbers, places, scores = (
        torch.cat([part.flatten() for part in parts]) for parts in zip(*found, strict=True)
    )
    # c_k is the largest number found with a place below k.
    num_above = torch.zeros(len(positives) + 1, dtype=torch.int64, device=logits.device)
    num_above = num_above.scatter_reduce(0, places, numbers, "amax").cummax(0).values[:-1]
    numbers, order = numbers.sort(stable=True)
    thresholds = scores.double()[order][torch.searchsorted(numbers, num_above[num_above > 0])]
    return num_above.double(), thresholds


def _best_places(
    numbers: Tensor, scores: Tensor, segments: _Segments, positives: Tensor, num_negatives: int
) -> Tensor:
    """(S, m) int64: the place r of the number-th negative if it had the given score.

    The r between place_high and place_low that makes the sum of gain(k) over k > r largest; of
    equal ones the highest r, so that a negative rises only where that is worse for the loss.

    Args:
        numbers, scores: (S, m), m candidates in each segment.
        positives: (P,) float64, descending.
    """
    places = segments.place_high[:, None].expand(numbers.shape).clone()
    lengths = segments.place_low - segments.place_high
    # Segments of similar length go together, so that at most half of the table is padding.
    sizes = 2 ** lengths.double().log2().ceil().long()
    for size in sizes.unique().tolist():
        chosen = (sizes == size).nonzero()[:, 0]
        first = segments.place_high[chosen, None, None]
        rank = first + torch.arange(1, size + 1, device=positives.device)
        number = numbers[chosen][:, :, None].clamp(min=1)
        gain = rank / ((rank + number - 1.0) * (rank + number))
        opponent = positives[(rank - 1).clamp(max=len(positives) - 1)]
        gain = gain + 2 / num_negatives * (scores[chosen][:, :, None] - opponent)
        # The sum over k > r is largest where the sum over k <= r is smallest.
        sums = pad(gain.cumsum(2), (1, 0))
        candidate = first + torch.arange(size + 1, device=positives.device)
        sums = sums.where(candidate <= segments.place_low[chosen, None, None], float("inf"))
        is_best = sums <= sums.amin(2, keepdim=True)
        places[chosen] = candidate.where(is_best, first).amax(2)
    return places.where(numbers > 0, segments.place_high[:, None])


def _inner_points(low: Tensor, high: Tensor) -> Tensor:
    """(S, 7) integers that cut [low, high) into 8 parts: low < point < high, ascending."""
    step = ((high >> 3) - (low >> 3)).clamp(min=1)[:, None]  # high - low could overflow
    steps = torch.arange(1, _PARTS, device=low.device)
    return torch.minimum(low[:, None] + steps * step, high[:, None] - 1)


def _to_key(scores: Tensor) -> Tensor:
    """int64 in the order of the scores, neighbouring floats giving neighbouring integers."""
    integer = torch.int64 if scores.dtype == torch.float64 else torch.int32
    return scores.abs().view(integer).long() * scores.sign().long()


def _from_key(keys: Tensor, dtype: torch.dtype) -> Tensor:
    integer = torch.int64 if dtype == torch.float64 else torch.int32
    return keys.abs().to(integer).view(dtype) * keys.sign()


def _next_above(scores: Tensor) -> Tensor:
    return torch.nextafter(scores, torch.full_like(scores, float("inf")))


class HingeAPLoss(ClassLoss):
    """`hinge_ap_loss` with its settings.

    >>> HingeAPLoss()(torch.zeros(2, 1), torch.tensor([0, -1])).item()
    0.5
    """

    def __init__(
        self,
        scope: Scope = "batch",
        check_finite: bool | None = None,
        *,
        synchronize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(synchronize, process_group)
        self.scope = scope
        self.check_finite = check_finite

    def forward(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        return hinge_ap_loss(
            logits,
            labels,
            scope=self.scope,
            mask=mask,
            check_finite=self.check_finite,
            synchronize=self.synchronize,
            process_group=self.process_group,
        )
