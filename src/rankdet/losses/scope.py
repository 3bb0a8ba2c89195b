"""What is ranked together: the whole batch, or each image alone; and what makes a ranking wrong."""

from __future__ import annotations

from collections.abc import Callable

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
    scope: str,
    check_finite: bool | None,
    group: ProcessGroup | None = None,
) -> Tensor:
    """The loss of the batch, or the mean loss of the images that have positives: a scalar.

    float32 for half precision logits, else of their dtype. The arguments are those of `ap_loss`;
    with a group, batch and images are those of all its processes.
    """
    with raised_by_all(group, logits.device):
        check_scope(scope, logits)
        check_inputs(logits, labels, mask)
    labels = widened(labels, logits.shape[-1])
    if check_finite is None:
        check_finite = reads_values(logits)

    is_one_ranking = scope == "batch"
    if is_one_ranking or logits.shape[0] == 0:
        images, image_labels = [logits.flatten(0, -2)], [labels.flatten()]
        image_masks = [None if mask is None else mask.flatten(0, -2)]
    else:
        images, image_labels = list(logits.unbind()), list(labels.unbind())
        image_masks = [None] * len(images) if mask is None else list(mask.unbind())
    values, numbers = [], []
    for image, image_label, image_mask in zip(images, image_labels, image_masks, strict=True):
        value, image_numbers = rank(
            image.contiguous(),
            image_label.contiguous(),
            None if image_mask is None else image_mask.contiguous(),
            group if is_one_ranking else None,
        )
        values.append(value)
        numbers.append(image_numbers)

    if is_one_ranking or (group is None and len(values) == 1):
        value = scaled_for_averaging(values[0], group)  # the fewest operations for the usual case
    else:
        # The loss of an image without positives is 0.
        num_ranked = (torch.stack(numbers)[:, 0] > 0).sum()
        mean = torch.stack(values).sum() / num_ranked.clamp(min=1)
        mean = global_mean(mean, num_ranked, group)
        value = with_nan_gradient(mean)  # the NaN of one image reaches the gradients of all
    if check_finite and bool(value.isnan()):
        with raised_by_all(group, logits.device):
            raise_if_not_finite(logits, counted_entries(labels, mask, logits.shape[-1]))
    return value.to(torch.promote_types(logits.dtype, torch.float32))


def with_nan_gradient(value: Tensor) -> Tensor:
    """The value itself; if it is NaN, so is all of its gradient, because a factor of it is NaN."""
    return value * torch.where(value.detach().isnan(), float("nan"), 1.0)


def check_scope(scope: str, logits: Tensor) -> None:
    """Raise ValueError, with expected and got, unless the logits can be ranked so."""
    require(scope in ("batch", "image"), "scope", "'batch' or 'image'", scope)
    has_images = scope == "batch" or logits.ndim == 3
    require(has_images, "logits", "shape (B, A, K) for scope='image'", tuple(logits.shape))


def poison_unless(is_right: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """0, or NaN if the ranking is not right or a label has no meaning: float64 scalar.

    Added to a result it makes it NaN on the device, without asking the host. Without it a NaN
    score would give a finite loss, because comparisons with NaN are all False.
    """
    is_right = is_right & labels_are_valid(labels, num_classes)
    return torch.where(is_right, 0.0, float("nan")).double()
