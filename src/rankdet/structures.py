"""What the parts of rankdet hand to each other."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

# Fills what lies outside of an image: it becomes 0 when the detector normalises. RGB in 0..1.
IMAGENET_MEAN = (0.485, 0.456, 0.406)


@dataclass(frozen=True)
class Target:
    """The objects of one image.

    boxes (G, 4) float32, xyxy pixels, edges counted from 0: a box over the whole of a W x H image
    is (0, 0, W, H). labels (G,) int64 in 0..K-1. is_ignored (G,) bool: difficult (VOC) and crowd
    (COCO) objects, neither objects nor background. areas (G,) float32: COCO's area of the mask
    where it is given, otherwise of the box. image_id: the data set's own number of the image.
    size: (height, width) of the image that the boxes belong to.
    """

    boxes: Tensor
    labels: Tensor
    is_ignored: Tensor
    areas: Tensor
    image_id: int
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Target:
        """The same on another device."""
        moved = {
            name: getattr(self, name).to(device, non_blocking=non_blocking)
            for name in ("boxes", "labels", "is_ignored", "areas")
        }
        return dataclasses.replace(self, **moved)

    def select(self, keep: Tensor) -> Target:
        """The objects that `keep` (bool mask or indices) picks."""
        return dataclasses.replace(
            self,
            boxes=self.boxes[keep],
            labels=self.labels[keep],
            is_ignored=self.is_ignored[keep],
            areas=self.areas[keep],
        )
