"""What is ranked together: the whole batch, some images, or each alone; and what makes it wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rankdet.losses.collectives import global_mean, raised_by_all, scaled_for_averaging
from rankdet.losses.labels import (
    check_inputs,
    counted_entries,
    labels_are_valid,
    raise_if_not_finite,
    reads_values,
    require,
    widened,
)

# "batch", "image", or how many images are ranked together.
Scope = str | int

# (logits (R, K), labels (R,), mask, group) -> loss of one ranking, NaN if a counted score is not
# finite, and int64 numbers, of which the first is the number of positives. With a group the ranking
# is that of the entries of all processes.
RankFunction = Callable[[Tensor, Tensor, Tensor | None, ProcessGroup | None], tuple[Tensor, Tensor]]


def rank_scopes(
    rank: RankFunction,
    logits: Tensor,
    labels: Tensor,
    *,
    mask: Tensor | None,
    scope: Scope,
    check_finite: bool | None,
    group: ProcessGroup | None = None,
) -> Tensor:
    """The loss of the batch, or the mean loss of its rankings that have positives: a scalar.

    float32 for half precision logits, else of their dtype. The arguments are those of `ap_loss`;
    with a group, the mean is over the rankings of all its processes.
    """
    with raised_by_all(group, logits.device):
        check_scope(scope, logits)
        check_inputs(logits, labels, mask)
    labels = widened(labels, logits.shape[-1])
    if check_finite is None:
        check_finite = reads_values(logits)

    is_one_ranking = scope == "batch"
    size = images_together(scope, len(logits))
    # One part is not split: its gradient would be copied once more. And a compiler may not know how
    # many rows there are.
    is_split = not is_one_ranking and size < len(logits)
    parts = logits.split(size) if is_split else (logits,)
    labels_of_parts = labels.split(size) if is_split else (labels,)
    masks: Sequence[Tensor | None] = [None] * len(parts)
    if mask is not None:
        masks = mask.split(size) if is_split else (mask,)
    values, numbers = [], []
    for part, part_labels, part_mask in zip(parts, labels_of_parts, masks, strict=True):
        value, part_numbers = rank(
            part.flatten(0, -2).contiguous(),
            part_labels.flatten().contiguous(),
            None if part_mask is None else part_mask.flatten(0, -2).contiguous(),
            group if is_one_ranking else None,
        )
        values.append(value)
        numbers.append(part_numbers)

    if is_one_ranking or (group is None and len(values) == 1):
        value = scaled_for_averaging(values[0], group)  # the fewest operations for the usual case
    else:
        # The loss of a ranking without positives is 0.
        num_ranked = (torch.stack(numbers)[:, 0] > 0).sum()
        mean = torch.stack(values).sum() / num_ranked.clamp(min=1)
        mean = global_mean(mean, num_ranked, group)
        value = with_nan_gradient(mean)  # the NaN of one reaches the gradients of all
    if check_finite and bool(value.isnan()):
        with raised_by_all(group, logits.device):
            raise_if_not_finite(logits, counted_entries(labels, mask, logits.shape[-1]))
    return value.to(torch.promote_types(logits.dtype, torch.float32))


def with_nan_gradient(value: Tensor) -> Tensor:
    """The value itself; if it is NaN, so is all of its gradient, because a factor of it is NaN."""
    return value * torch.where(value.detach().isnan(), float("nan"), 1.0)


def images_together(scope: Scope, num_images: int) -> int:
    """How many images a ranking has, at least 1; the last ranking of a batch may have fewer.

    >>> [images_together(scope, 16) for scope in ("batch", "image", 4)]
    [16, 1, 4]
    """
    if isinstance(scope, int):
        return scope
    return max(num_images, 1) if scope == "batch" else 1


def check_scope(scope: Scope, logits: Tensor) -> None:
    """Raise ValueError, with expected and got, unless the logits can be ranked so."""
    is_number = isinstance(scope, int) and not isinstance(scope, bool) and scope >= 1
    is_known = is_number or scope in ("batch", "image")
    require(is_known, "scope", "'batch', 'image' or a number of images from 1 on", scope)
    has_images = scope == "batch" or logits.ndim == 3
    require(has_images, "logits", f"shape (B, A, K) for scope={scope!r}", tuple(logits.shape))


def poison_unless(is_right: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """0, or NaN if the ranking is not right or a label has no meaning: float64 scalar.

    Added to a result it makes it NaN on the device, without asking the host. Without it a NaN
    score would give a finite loss, because comparisons with NaN are all False.
    """
    is_right = is_right & labels_are_valid(labels, num_classes)
    return torch.where(is_right, 0.0, float("nan")).double()
