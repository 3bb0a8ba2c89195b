"""Gradient harmonising mechanism for classification, GHM-C (Li et al., AAAI 2019)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from rankdet.losses.collectives import (
    eager_where_synchronized,
    global_sum,
    own_group,
    summed_together,
)
from rankdet.losses.entries import either, read_entries, softplus
from rankdet.losses.labels import require
from rankdet.losses.module import ClassLoss


@eager_where_synchronized
def ghm_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    bins: int = 30,
    momentum: float = 0.0,
    running_counts: Tensor | None = None,
    mask: Tensor | None = None,
    check_finite: bool | None = None,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """Gradient-harmonised binary cross-entropy, GHM-C (Li et al., AAAI 2019), averaged.

    The gradient norm g = |sigmoid(logit) - target| of the n counted entries falls into `bins` equal
    parts of [0, 1]. With c the number of entries in an entry's bin and m the number of bins that
    are not empty, each entry weighs n / (c m), and

        loss = sum over entries of n / (c m) * cross-entropy  /  n

    The weights are constants: no gradient flows through g.

    Args:
        logits, labels, mask, check_finite: as in `focal_loss`.
        bins: number of bins, 1 or more; the last one includes g = 1.
        momentum: 0 up to, but not including, 1. c becomes the running count
            momentum * (running count) + (1 - momentum) * (count of this batch),
            which only bins that are not empty in this batch move.
        running_counts: None, or (bins,) floating point, updated IN PLACE as batch normalisation
            does with its running mean; needed for a momentum above 0. It starts at 0, so the first
            batches weigh more, by 1 / (1 - momentum) in the first one, as in the authors' code.
        synchronize, process_group: as in `ap_loss`; entries and bins are then those of all
            processes, and the running counts stay equal on all.

    >>> ghm_loss(torch.tensor([[0.0, 0.0, -9.0]]), torch.tensor([0]))  # (log 2 + log(1 + e^-9)) / 2
    tensor(0.3466)
    """
    _check_histogram(bins, momentum, running_counts)
    group = own_group(synchronize, process_group)
    scores, is_positive, is_counted, soundness = read_entries(
        logits, labels, mask, check_finite, group
    )
    signed = scores * either(is_positive, -1.0, 1.0, scores)
    with torch.no_grad():
        # int32, because index_add and index_select take it and it halves the traffic. The clamp
        # is for g = 1 and for NaN, whose conversion is undefined.
        index = (torch.sigmoid(signed) * bins).int().clamp(0, bins - 1)
        index = torch.where(is_counted, index, bins).flatten()
        one = torch.ones((), dtype=torch.int64, device=index.device)
        counts = one.new_zeros(bins + 1).index_add(0, index, one.expand(index.shape))
        counts, soundness = summed_together((counts, soundness), group)
        soundness = soundness.clamp(max=1)
        counts = torch.where(soundness.isnan(), 0, counts)  # a broken batch leaves no trace
        weights = _harmonised_weights(counts[:bins], momentum, running_counts).to(scores.dtype)
        # The last weight, 0, is that of the ignored entries.
        weight = F.pad(weights, (0, 1)).index_select(0, index).view(scores.shape)
    return global_sum((softplus(signed) * weight).sum() * soundness, group)


def _harmonised_weights(counts: Tensor, momentum: float, running_counts: Tensor | None) -> Tensor:
    """(bins,) float64: 1 / (count in the bin * number of bins not empty), 0 for an empty bin."""
    is_filled = counts > 0
    density = counts.double()  # float32 loses count at 2^24
    if running_counts is not None:
        moved = (momentum * running_counts + (1 - momentum) * density).to(running_counts.dtype)
        running_counts.copy_(torch.where(is_filled, moved, running_counts))
        density = running_counts.double()
    return torch.where(is_filled, 1 / (density * is_filled.sum()), 0.0)


def _check_histogram(bins: object, momentum: float, running_counts: Tensor | None) -> None:
    """Raise ValueError unless the settings of `ghm_loss` fit together."""
    require(isinstance(bins, int) and bins >= 1, "bins", "an integer >= 1", bins)
    require(0 <= momentum < 1, "momentum", "a number from 0 up to, but not including, 1", momentum)
    if running_counts is None:
        expected = f"a tensor of shape ({bins},) for momentum {momentum}"
        require(momentum == 0, "running_counts", expected, None)
        return
    # Half precision ends at 65,504, or at eight bits of a count.
    is_wide = running_counts.dtype in (torch.float32, torch.float64)
    got = f"{running_counts.dtype} of shape {tuple(running_counts.shape)}"
    is_fit = is_wide and running_counts.shape == (bins,)
    require(is_fit, "running_counts", f"float32 or float64 of shape ({bins},)", got)


class GHMLoss(ClassLoss):
    """`ghm_loss` with its settings, and the running counts of the bins in a buffer.

    In evaluation mode the buffer is used and left as it is. Every process keeps its own counts,
    unless it synchronises.

    >>> loss = GHMLoss(bins=2, momentum=0.75)
    >>> value = loss(torch.tensor([[-1.0, 1.0, 1.0]]), torch.tensor([-1]))
    >>> loss.running_counts
    tensor([0.2500, 0.5000])
    """

    running_counts: Tensor

    def __init__(
        self,
        bins: int = 30,
        momentum: float = 0.75,
        check_finite: bool | None = None,
        *,
        synchronize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(synchronize, process_group)
        _check_histogram(bins, momentum, torch.zeros(max(int(bins), 0)))
        self.bins = bins
        self.momentum = momentum
        self.check_finite = check_finite
        self.register_buffer("running_counts", torch.zeros(bins))

    def forward(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        return ghm_loss(
            logits,
            labels,
            bins=self.bins,
            momentum=self.momentum,
            running_counts=self.running_counts if self.training else self.running_counts.clone(),
            mask=mask,
            check_finite=self.check_finite,
            synchronize=self.synchronize,
            process_group=self.process_group,
        )
