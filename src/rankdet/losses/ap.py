"""AP-loss: average precision as a training loss (Chen et al., TPAMI 2020)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rankdet.losses.collectives import eager_where_synchronized, own_group, raised_by_all
from rankdet.losses.error_driven import error_driven_loss
from rankdet.losses.labels import BACKGROUND, raise_if_not_finite, reads_values, require
from rankdet.losses.module import ClassLoss
from rankdet.losses.sampling import hard_negatives, random_negatives
from rankdet.losses.scope import Scope


@eager_where_synchronized
def ap_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    delta: float = 1.0,
    step: str = "piecewise",
    interpolate: bool = True,
    scope: Scope = "batch",
    mask: Tensor | None = None,
    check_finite: bool | None = None,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """1 - AP of ranking every object above every background box: a scalar from 0 to 1.

    Backward gives the error-driven update of Algorithm 1, which is not the derivative of the value.
    Exact, in O((P + N) log P) time for P positives and N negatives; the sigmoid step is O(P N).

    Args:
        logits: (R, K) or (B, A, K), raw scores of all anchors and classes of the mini-batch;
            float16, bfloat16, float32 or float64.
        labels: (R,) or (B, A) integers: the class's column 0..K-1, BACKGROUND or IGNORED.
        delta: half the width of the piecewise step, or the k of the sigmoid step; > 0. float64 has
            no place for score +- delta where |score| / delta is beyond 1e15, and few digits for
            it beyond 1e10; real scores are far from that.
        step: "piecewise" (Eq. 21), "heaviside" (Eq. 4, delta is not used) or "sigmoid".
        interpolate: whether precision is made monotone in the rank (section 3.4.3).
        scope: "batch" ranks all images together. "image" ranks each alone (section 3.4.1), and a
            number, such as 4, so many successive ones; the loss is then the mean over the rankings
            that have positives.
        mask: None, or bool of the logits' shape; False marks a single entry as ignored.
        check_finite: True raises FloatingPointError if a counted score is NaN or infinite; False
            makes value and gradient NaN instead; None checks on the CPU only.
        synchronize: whether to rank the entries of all processes together, as if one had them all
            (and other scopes average over the rankings of all, each of one process's images). The
            value is then that of the global batch; the gradient is that of the own logits, times
            the number of processes, because DistributedDataParallel averages. O(P) numbers travel.
            Every process must call it, also without images; what one raises, all raise. Has no
            effect while torch.distributed is not initialised.
        process_group: the processes that rank together; None: all of them.

    >>> logits = torch.tensor([[0.0, 2.0], [3.0, 1.0]], requires_grad=True)
    >>> loss = ap_loss(logits, torch.tensor([1, BACKGROUND]))
    >>> loss.backward()
    >>> loss.item(), logits.grad.tolist()
    (0.5, [[0.0, -0.5], [0.5, 0.0]])
    """
    return error_driven_loss(
        logits,
        labels,
        "interpolated_ap" if interpolate else "ap",
        delta=delta,
        step=step,
        scope=scope,
        mask=mask,
        check_finite=check_finite,
        synchronize=synchronize,
        process_group=process_group,
    )


@eager_where_synchronized
def binary_ap_loss(
    scores: Tensor,
    targets: Tensor,
    *,
    delta: float = 1.0,
    step: str = "piecewise",
    interpolate: bool = True,
    mask: Tensor | None = None,
    check_finite: bool | None = None,
    synchronize: bool = False,
    process_group: ProcessGroup | None = None,
) -> Tensor:
    """1 - AP of the plain ranking problem, as in retrieval: a scalar; see `ap_loss`.

    Args:
        scores: any shape and float dtype.
        targets: 0 or 1 (or bool), of the same shape: 1 is to rank above 0.
        mask: None, or bool of the same shape; False marks an entry as ignored.
        synchronize, process_group: as in `ap_loss`; the processes' shapes may differ.

    >>> binary_ap_loss(torch.tensor([3.0, 0.0, 5.0]), torch.tensor([1, 0, 0])).item()
    0.5
    """
    group = own_group(synchronize, process_group)
    with raised_by_all(group, scores.device):
        labels = _binary_labels(scores, targets, mask)
    loss = ap_loss(
        scores.reshape(-1, 1),
        labels.reshape(-1),
        delta=delta,
        step=step,
        interpolate=interpolate,
        mask=None if mask is None else mask.reshape(-1, 1),
        check_finite=False,
        synchronize=synchronize,
        process_group=process_group,
    )
    if check_finite is None:
        check_finite = reads_values(scores)
    if check_finite and bool(loss.isnan()):  # here, to speak of the scores as the caller sees them
        counted = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
        with raised_by_all(group, scores.device):
            raise_if_not_finite(scores, counted, name="scores")
    return loss


def _binary_labels(scores: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """int8 labels for a single class: 0 where the target is 1, else BACKGROUND.

    A target that counts and is neither 0 nor 1 is an error, or 3, which is no label. Few and small
    temporaries: there is a label for every score.
    """
    for name, tensor in (("targets", targets), ("mask", mask)):
        if tensor is not None and tensor.shape != scores.shape:
            expected = f"the scores' shape {tuple(scores.shape)}"
            raise ValueError(f"{name}: expected {expected}, got {tuple(tensor.shape)}")
    labels = (targets == 1).view(torch.int8).sub_(1)
    if targets.dtype != torch.bool:
        is_wrong = (targets != 0).logical_and_(labels == BACKGROUND)
        if mask is not None:
            is_wrong.logical_and_(mask)
        if reads_values(scores) and bool(is_wrong.any()):
            raise ValueError(f"targets: expected 0 or 1, got {targets[is_wrong][0].item()}")
        labels.masked_fill_(is_wrong, 3)
    return labels


_SAMPLERS: dict[str, Callable[..., Tensor] | None] = {
    "all": None,
    "hardest": hard_negatives,
    "random": random_negatives,
}


class APLoss(ClassLoss):
    """`ap_loss` with its settings.

    negatives: "all"; or "hardest" or "random", of which `ratio` for each positive are ranked, as
    appendix A4.2.1 tries (`rankdet.losses.sampling`; each process chooses among its own). That
    is for comparison: a detector learned nothing from the three hardest for each positive.

    >>> APLoss(delta=0.5)(torch.zeros(3, 2), torch.tensor([0, BACKGROUND, BACKGROUND])).item()
    0.7142857313156128
    """

    def __init__(
        self,
        delta: float = 1.0,
        step: str = "piecewise",
        interpolate: bool = True,
        scope: Scope = "batch",
        check_finite: bool | None = None,
        negatives: str = "all",
        ratio: float = 3.0,
        *,
        synchronize: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(synchronize, process_group)
        require(negatives in _SAMPLERS, "negatives", f"one of {', '.join(_SAMPLERS)}", negatives)
        self.delta = delta
        self.step = step
        self.interpolate = interpolate
        self.scope = scope
        self.check_finite = check_finite
        self.negatives = negatives
        self.ratio = ratio

    def forward(self, logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        sampler = _SAMPLERS[self.negatives]
        if sampler is not None:
            chosen = sampler(logits, labels, ratio=self.ratio, scope=self.scope)
            mask = chosen if mask is None else mask & chosen
        return ap_loss(
            logits,
            labels,
            delta=self.delta,
            step=self.step,
            interpolate=self.interpolate,
            scope=self.scope,
            mask=mask,
            check_finite=self.check_finite,
            synchronize=self.synchronize,
            process_group=self.process_group,
        )
