"""What is ranked together: the whole batch, or each image alone; and what makes a ranking wrong."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rankdet.losses.labels import (
    check_inputs,
    counted_entries,
    labels_are_valid,
    raise_if_not_finite,
    reads_values,
    require,
    widened,
)

# (logits (R, K), labels (R,), mask) -> loss of one ranking, and int64 numbers, of which the first
# two are the number of positives and that of counted scores that are not finite
RankFunction = Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


def rank_scopes(
    rank: RankFunction,
    logits: Tensor,
    labels: Tensor,
    *,
    mask: Tensor | None,
    scope: str,
    check_finite: bool | None,
) -> Tensor:
    """The loss of the batch, or the mean loss of the images that have positives: a scalar.

    float32 for half precision logits, else of their dtype. The arguments are those of `ap_loss`.
    """
    check_scope(scope, logits)
    check_inputs(logits, labels, mask)
    labels = widened(labels, logits.shape[-1])
    if check_finite is None:
        check_finite = reads_values(logits)

    if scope == "batch" or logits.shape[0] == 0:
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
        )
        values.append(value)
        numbers.append(image_numbers)

    if check_finite and any(bool(image_numbers[1] > 0) for image_numbers in numbers):
        raise_if_not_finite(logits, counted_entries(labels, mask, logits.shape[-1]))
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if len(values) == 1:  # nothing to average: the fewest operations for the usual case
        return values[0].to(dtype)
    # The loss of an image without positives is 0.
    num_ranked = (torch.stack(numbers)[:, 0] > 0).sum()
    mean = torch.stack(values).sum() / num_ranked.clamp(min=1)
    mean = with_nan_gradient(mean)  # the NaN of one image reaches the gradients of all
    return mean.to(dtype)


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
