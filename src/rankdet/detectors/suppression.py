"""Class-wise non-maximum suppression of many images at once, for devices that are asked rarely.

Suppressing the boxes of each image by itself waits for the device several times an image. Here the
host waits a few times for a whole batch, which matters most where programs share a GPU.

Axes: B images, D candidates of each, M of these that are looked at.
"""

from __future__ import annotations

import torch
from torch import Tensor

FIRST_LOOK = 1024  # candidates; most images have enough detections among them
_PAIRS_AT_ONCE = 2**25  # of candidates: 0.1 GB for each float32 temporary
_ROUNDS = 16  # between two questions to the device whether all is settled


def suppress_together(
    boxes: Tensor,
    labels: Tensor,
    counts: Tensor,
    *,
    nms_iou: float,
    max_detections: int,
    first_look: int = FIRST_LOOK,
) -> list[Tensor]:
    """For each image the places (at most `max_detections`) of what is kept, best first.

    A box is dropped if its IoU with a better one of its class that is kept is greater than
    `nms_iou`.

    Args:
        boxes: (B, D, 4), best first.
        labels: (B, D) int64.
        counts: (B,) int64: how many of an image's D are candidates; what follows is padding.
        first_look: how many of an image's candidates are compared at first. What becomes of a box
            depends on better ones alone: if enough of these are kept, no other matters.
    """
    kept = [labels.new_empty(0)] * len(boxes)
    waiting = list(range(len(boxes)))
    num_seen = min(first_look, boxes.shape[1])
    while waiting and num_seen:
        at_once = max(1, _PAIRS_AT_ONCE // num_seen**2)
        parts = [waiting[start : start + at_once] for start in range(0, len(waiting), at_once)]
        waiting = []
        for part in parts:
            chosen = slice(None) if len(part) == len(boxes) else part
            places, nums_kept, nums_candidates = _kept_among(
                boxes[chosen][:, :num_seen],
                labels[chosen][:, :num_seen],
                counts[chosen],
                nms_iou,
            )
            for row, image in enumerate(part):
                kept[image] = places[row, : min(nums_kept[row], max_detections)]
                if nums_kept[row] < max_detections and nums_candidates[row] > num_seen:
                    waiting.append(image)
        num_seen = min(2 * num_seen, boxes.shape[1])
    return kept


def _kept_among(
    boxes: Tensor, labels: Tensor, counts: Tensor, nms_iou: float
) -> tuple[Tensor, list[int], list[int]]:
    """(B, M) the places of what is kept first; how many these are; and `counts`, which is (B,)."""
    is_candidate = torch.arange(boxes.shape[1], device=boxes.device) < counts[:, None]
    is_kept = greedy_suppression(boxes, labels, is_candidate, nms_iou)
    places = (~is_kept).to(torch.uint8).sort(dim=1, stable=True).indices
    nums_kept, nums_candidates = torch.stack([is_kept.sum(dim=1), counts]).tolist()
    return places, nums_kept, nums_candidates


def greedy_suppression(
    boxes: Tensor, labels: Tensor, is_candidate: Tensor, nms_iou: float
) -> Tensor:
    """(B, M) bool: which of the boxes (B, M, 4), best first, are kept.

    All start as kept; then, again and again, a box is kept if no better box that was kept drops it.
    After round n at least the n best of each image are settled, so that this ends, and with the one
    answer that going through them from the best to the worst gives; chains of boxes that drop each
    other are short, and so are the rounds few.

    >>> boxes = torch.tensor([[[0.0, 0, 10, 10], [3, 0, 13, 10], [6, 0, 16, 10]]])
    >>> greedy_suppression(boxes, torch.zeros(1, 3), torch.ones(1, 3) > 0, nms_iou=0.5)
    tensor([[ True, False,  True]])
    """
    is_rival = (labels[:, :, None] == labels[:, None, :]) & (_iou(boxes) > nms_iou)
    drops = is_rival.to(boxes.dtype).triu_(diagonal=1)  # row: the better box
    is_kept = is_candidate
    for _ in range(0, boxes.shape[1] + 1, _ROUNDS):
        for _ in range(_ROUNDS):
            before = is_kept
            num_droppers = torch.bmm(is_kept.to(boxes.dtype)[:, None], drops)[:, 0]
            is_kept = is_candidate & (num_droppers == 0)
        if torch.equal(is_kept, before):
            break
    return is_kept


def _iou(boxes: Tensor) -> Tensor:
    """(B, M, M) intersection over union of all pairs of boxes (B, M, 4) of an image."""
    x1, y1, x2, y2 = boxes.unbind(dim=2)
    width = _shared(x1, x2).clamp_(min=0)
    shared = _shared(y1, y2).clamp_(min=0).mul_(width)
    areas = (x2 - x1) * (y2 - y1)
    return shared / (areas[:, :, None] + areas[:, None, :] - shared)


def _shared(low: Tensor, high: Tensor) -> Tensor:
    """(B, M, M) the length that intervals (B, M) have in common; negative if they are apart."""
    return torch.minimum(high[:, :, None], high[:, None, :]).sub_(
        torch.maximum(low[:, :, None], low[:, None, :])
    )
