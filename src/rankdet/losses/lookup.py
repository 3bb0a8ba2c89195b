"""Finding the bin of each score on the CPU without a binary search for each."""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

# Cells of the grid per knot: with more, fewer scores share a cell with a knot and need a search,
# but the table leaves the cache.
_CELLS_PER_KNOT = 16
# Where less than this share of a block stands above the first knot, the rest is dropped first.
_FEW = 0.25
# Where more than this share of a block needs a search, all of it is searched.
_MANY = 0.5


def score_range(scores: Tensor, excluded: Tensor) -> tuple[float, float]:
    """The lowest and the highest of the scores that are not excluded, NaN if one of them is.

    Args:
        scores: (n,) float64; the excluded ones are overwritten.
        excluded: (E,) int64, places that are not looked at.
    """
    if len(scores) == 0:
        return math.inf, -math.inf
    lowest = scores.index_fill_(0, excluded, math.inf).amin()
    highest = scores.index_fill_(0, excluded, -math.inf).amax()
    return lowest.item(), highest.item()


class BinLookup:
    """Finds bins: bin(x) is the number of knots <= x, exactly, as torch.bucketize(right=True).

    A uniform grid is laid over the knots. The cell of a score is a monotone function of the score,
    rounding included, so two scores in a cell without a knot are in the same bin, which a table
    gives. Only scores in a cell with a knot are searched for.

    >>> BinLookup(torch.tensor([0.0, 1.0], dtype=torch.float64)).find(
    ...     torch.tensor([-1.0, 0.0, 0.5, 3.0], dtype=torch.float64))[1].tolist()
    [0, 1, 1, 2]
    """

    def __init__(self, knots: Tensor) -> None:
        """
        Args:
            knots: (Q,) float64, ascending; Q may be 0.
        """
        self.knots = knots
        self.lowest = knots[0].item() if len(knots) else 0.0
        highest = knots[-1].item() if len(knots) else 0.0
        self.num_cells = 1 << max(14, (_CELLS_PER_KNOT * len(knots)).bit_length())
        span = highest - self.lowest
        # The last cell is left to the scores that stand well above the last knot.
        self.scale = (self.num_cells - 3) / span if span > 0 else 0.0
        if not math.isfinite(self.scale):
            self.scale = 0.0
        self._scratch = torch.empty(0, dtype=torch.float64)
        self._cells = torch.empty(0, dtype=torch.float64)

    @cached_property
    def table(self) -> Tensor:
        """(cells,) int32: the bin of a cell, or -1 where a knot lies in it.

        Made when it is first needed: for scores that are all alike, that is never.
        """
        num_knots = torch.bincount(self._cell(self.knots), minlength=self.num_cells)
        knots_before = num_knots.cumsum(0) - num_knots
        return torch.where(num_knots == 0, knots_before, -1).int()

    def load(self, block: Tensor) -> Tensor:
        """A flat float64 copy of the block, in a buffer that the next call uses again."""
        if self._scratch.numel() < block.numel():
            self._scratch = torch.empty(block.numel(), dtype=torch.float64)
        scores = self._scratch[: block.numel()]
        scores.view(block.shape).copy_(block)
        return scores

    def only_bin(self, lowest: float, highest: float) -> int | None:
        """The bin of all scores from lowest to highest if it is one and the same, else None.

        At initialisation nearly every block lies between the last lower and the first upper knot.
        """
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            return None
        ends = torch.tensor([lowest, highest], dtype=torch.float64)
        first, last = torch.searchsorted(self.knots, ends, right=True).tolist()
        return first if first == last else None

    def find(self, scores: Tensor) -> tuple[Tensor | None, Tensor]:
        """The bins of the scores, or of the few of them that stand at or above the first knot.

        Args:
            scores: (n,) float64 without NaN; -inf for what is left out.

        Returns:
            above: None, or (m,) int64: the places of the only scores that are not in bin 0.
            bins: (n,) or (m,) integers.
        """
        if len(self.knots) == 0:
            return None, torch.zeros(len(scores), dtype=torch.int32)
        is_above = scores >= self.lowest
        if int(torch.count_nonzero(is_above)) < _FEW * len(scores):
            above = is_above.nonzero()[:, 0]
            return above, self._search(scores[above])
        if self.scale == 0:
            return None, self._search(scores)
        table = self.table  # first: making it uses the buffer of the cells
        bins = table.index_select(0, self._cell(scores))
        # Negative where a search is needed. clamp and nonzero are several times faster here than
        # a comparison and a boolean index.
        searched = bins.clamp(max=0).nonzero()[:, 0]
        if len(searched) > _MANY * len(scores):  # the grid is no help: knots stand close together
            return None, self._search(scores)
        bins.index_copy_(0, searched, self._search(scores.index_select(0, searched)))
        return None, bins

    def _search(self, scores: Tensor) -> Tensor:
        return torch.searchsorted(self.knots, scores, right=True, out_int32=True)

    def _cell(self, scores: Tensor) -> Tensor:
        """(n,) int32 cells: 0 below the first knot, then from 1 on; monotone in the score."""
        if self._cells.numel() < scores.numel():
            self._cells = torch.empty(scores.numel(), dtype=torch.float64)
        cells = self._cells[: scores.numel()]
        torch.sub(scores, self.lowest, out=cells)
        # A score below the first knot ends up in [0, 1): cell 0.
        return cells.mul_(self.scale).clamp_(-1, self.num_cells - 2).add_(1).int()
