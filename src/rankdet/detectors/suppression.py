"""Class-wise non-maximum suppression of many images at once, for devices that are asked rarely.

Suppressing the boxes of each image by itself waits for the device several times an image. Here the
host waits once for a whole batch, which matters most where programs share a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor


def suppress_together(
    boxes: Tensor, labels: Tensor, counts: Tensor, *, nms_iou: float, max_detections: int
) -> list[Tensor]:
    """For each of B images the places (at most `max_detections`) of what is kept, best first.

    A box is dropped if its IoU with a better one of its class that is kept is greater than
    `nms_iou`. Memory grows with the candidates, and time with these times `max_detections`: neither
    with the pairs of candidates.

    Args:
        boxes: (B, D, 4), best first.
        labels: (B, D) int64.
        counts: (B,) int64: how many of an image's D are candidates; what follows is padding.
    """
    num_images, num_places = labels.shape
    num_rounds = min(max_detections, num_places)
    if not num_images or not num_rounds:
        return [labels.new_empty(0)] * num_images
    kept = _kept_in_rounds(boxes, labels, counts, nms_iou, num_rounds)
    nums_kept = (kept < num_places).sum(dim=1).tolist()
    return [places[:number] for places, number in zip(kept, nums_kept, strict=True)]


def _kept_in_rounds(
    boxes: Tensor, labels: Tensor, counts: Tensor, nms_iou: float, num_rounds: int
) -> Tensor:
    """(B, num_rounds) the places of what is kept, best first; D where nothing was left.

    Each round keeps the best box that is left of each image, and drops those of its class that it
    overlaps.
    """
    num_places = labels.shape[1]
    place = torch.arange(num_places, device=boxes.device)
    areas = (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])
    is_left = place < counts[:, None]
    kept = []
    for _ in range(num_rounds):
        best = torch.where(is_left, place, num_places).amin(dim=1, keepdim=True)
        kept.append(best)
        # Where nothing is left this is the last place, and drops nothing that matters.
        row = best.clamp(max=num_places - 1)
        box = boxes.gather(1, row.unsqueeze(2).expand(-1, -1, 4))
        low = torch.maximum(boxes[..., :2], box[..., :2])
        sides = torch.minimum(boxes[..., 2:], box[..., 2:]).sub_(low).clamp_(min=0)
        shared = sides[..., 0] * sides[..., 1]
        iou = shared / (areas + areas.gather(1, row) - shared)
        is_rival = (iou > nms_iou) & (labels == labels.gather(1, row))
        is_left &= ~is_rival & (place > best)
    return torch.cat(kept, dim=1)
