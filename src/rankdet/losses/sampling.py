"""Choosing a few of the many negatives before a loss sees them: by score, or at random.

Each function takes (logits, labels) and returns a mask of the logits' shape, to be handed to any
loss of this package as `mask`: `ap_loss(logits, labels, mask=hard_negatives(logits, labels))`.
The paper's appendix A4.2.1 puts such a choice in front of AP-loss to see whether it helps.

All positives are kept. The number of negatives is ratio x (number of positives), rounded down, so
without positives none is kept: there is nothing to rank them against, and AP-loss is 0 either way.
How many are kept depends on the labels, so an accelerator is waited for, and `torch.compile` has to
leave these functions out of its graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rankdet.losses.labels import check_inputs, counted_entries, positive_entries, require
from rankdet.losses.scope import Scope, check_scope, images_together

# The highest entries are searched for in blocks: `topk` works on a copy four times the size of its
# input, which should not grow with the logits.
_BLOCK = 2**20


@torch.no_grad()
def hard_negatives(
    logits: Tensor, labels: Tensor, *, ratio: float = 3.0, scope: Scope = "batch"
) -> Tensor:
    """Mask that keeps every positive and the highest scored negatives.

    Args:
        logits: (R, K) or (B, A, K) scores. NaN counts as the highest, so that it stays in sight.
        labels: (R,) or (B, A) integers: 0..K-1, BACKGROUND or IGNORED.
        ratio: negatives for each positive, 0 or more.
        scope: "batch" (one choice among all entries), "image" (each image keeps ratio x its own
            positives; needs a batch axis) or how many images choose together, as in `ap_loss`.

    Returns:
        Bool of the logits' shape: True = counted. Exactly min(floor(ratio * P), N) negative entries
        are True, also among tied scores. Entries of ignored anchors are False.

    >>> hard_negatives(torch.tensor([[0.0, 2.0], [1.0, 3.0]]), torch.tensor([0, -1]), ratio=2.0)
    tensor([[ True,  True],
            [False,  True]])
    """
    check_sampling(logits, labels, ratio=ratio, scope=scope)
    return _keep_highest(logits, labels, ratio=ratio, scope=scope)


@torch.no_grad()
def random_negatives(
    logits: Tensor,
    labels: Tensor,
    *,
    ratio: float = 3.0,
    scope: Scope = "batch",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mask that keeps every positive and a uniformly random choice of the negatives.

    Args:
        logits: (R, K) or (B, A, K) scores; only their shape and device are used.
        labels: (R,) or (B, A) integers: 0..K-1, BACKGROUND or IGNORED.
        ratio: negatives for each positive, 0 or more.
        scope: as in `hard_negatives`.
        generator: source of the random numbers, on the logits' device; None: torch's default one.

    Returns:
        Bool of the logits' shape: True = counted. Exactly min(floor(ratio * P), N) negative entries
        are True, every subset of that size being equally likely.

    >>> mask = random_negatives(torch.zeros(5, 2), torch.tensor([0, -1, -1, -2, 1]), ratio=1.0)
    >>> int(mask.sum()), mask[0, 0].item(), mask[3].any().item()
    (4, True, False)
    """
    check_sampling(logits, labels, ratio=ratio, scope=scope)
    # 31 random bits for each entry. The 24 bits of a float32 would tie too often in a large batch,
    # and ties are not broken at random.
    keys = torch.empty(logits.shape, dtype=torch.int32, device=logits.device)
    return _keep_highest(keys.random_(generator=generator), labels, ratio=ratio, scope=scope)


def negative_quota(num_positives: Tensor, ratio: float) -> Tensor:
    """How many negatives go with so many positives: floor(ratio * num_positives), int64.

    >>> negative_quota(torch.tensor([0, 1, 100]), ratio=0.29)
    tensor([ 0,  0, 29])
    """
    # In floating point 0.29 * 100 is a little less than 29, which is not what the user meant.
    return (num_positives.double() * ratio + 1e-9).floor().long()


def hardest_negatives(
    loss: Tensor, is_positive: Tensor, is_negative: Tensor, *, ratio: float
) -> Tensor:
    """Bool of the loss's shape: each image's negative anchors of highest loss, ratio x positives.

    Args:
        loss: (R,) of one image, or (B, A): one number for each anchor, not NaN.
        is_positive, is_negative: bool of the same shape; an anchor may be neither.

    Sorts, because images differ in how many anchors they keep and a sort needs no answer from an
    accelerator. That is cheap for one number for each anchor, not for each class of each anchor.

    >>> is_positive = torch.tensor([True, False, False])
    >>> hardest_negatives(torch.tensor([5.0, 1.0, 2.0]), is_positive, ~is_positive, ratio=1.0)
    tensor([False, False,  True])
    """
    num_images = loss.shape[0] if loss.ndim == 2 else 1
    shape = (num_images, loss.shape[-1])
    hardness = torch.where(is_negative, loss, -math.inf).view(shape)
    order = hardness.argsort(dim=1, descending=True, stable=True)
    quota = negative_quota(is_positive.view(shape).sum(dim=1, keepdim=True), ratio)
    is_in_quota = torch.arange(shape[1], device=loss.device) < quota
    is_hard = torch.zeros_like(is_in_quota).scatter(1, order, is_in_quota)
    return is_hard.view(loss.shape) & is_negative


def check_sampling(logits: Tensor, labels: Tensor, *, ratio: float, scope: Scope) -> None:
    """Raise ValueError, with expected and got, unless inputs and settings fit together."""
    check_inputs(logits, labels)
    require(0 <= ratio < math.inf, "ratio", "a finite number >= 0", ratio)
    check_scope(scope, logits)


def _keep_highest(keys: Tensor, labels: Tensor, *, ratio: float, scope: Scope) -> Tensor:
    """Mask of the positives and, in each ranking, of the negatives with the highest keys."""
    labels = labels.long()
    num_classes = keys.shape[-1]
    is_positive = positive_entries(labels, num_classes)
    is_negative = counted_entries(labels, None, num_classes) & ~is_positive
    if keys.numel() == 0:
        return is_positive

    size = images_together(scope, len(keys))
    keep = is_positive.clone(memory_format=torch.contiguous_format)
    rankings = zip(keep.split(size), is_negative.split(size), keys.split(size), strict=True)
    num_positives = torch.stack([one.sum() for one in is_positive.split(size)])
    quotas = negative_quota(num_positives, ratio).tolist()  # one answer of the device for all
    for (keep_one, candidates, keys_one), quota in zip(rankings, quotas, strict=True):
        keep_one.view(-1)[_highest(keys_one.flatten(), candidates.flatten(), quota)] = True
    # A quota above the number of negatives has reached for ignored entries, too.
    return keep & (is_positive | is_negative)


def _highest(keys: Tensor, is_candidate: Tensor, num: int) -> Tensor:
    """(num,) int64: the places of the highest keys among the candidates, in no order.

    All candidates, and some others, if there are fewer candidates than that.
    """
    lowest = -1 if keys.dtype == torch.int32 else -math.inf
    best_keys, best_places = keys[:0], torch.empty(0, dtype=torch.int64, device=keys.device)
    for start in range(0, len(keys), _BLOCK):
        block = slice(start, start + _BLOCK)
        block_keys = keys[block].masked_fill(~is_candidate[block], lowest)
        top = block_keys.topk(min(num, len(block_keys)), sorted=False)
        best_keys = torch.cat([best_keys, top.values])
        best_places = torch.cat([best_places, top.indices + start])
        kept = best_keys.topk(min(num, len(best_keys)), sorted=False).indices
        best_keys, best_places = best_keys[kept], best_places[kept]
    return best_places
