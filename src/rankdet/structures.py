"""What the parts of rankdet hand to each other."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

# Mean and standard deviation of ImageNet's pixels, RGB in 0..1: what pretrained backbones expect.
# The mean also fills what lies outside of an image: it becomes 0 when the detector normalises.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Target:
    """The objects of one image.

    boxes (G, 4) float32, xyxy pixels, edges counted from 0: a box over the whole of a W x H image
    is (0, 0, W, H). labels (G,) int64 in 0..K-1. is_ignored (G,) bool: difficult (VOC) and crowd
    (COCO) objects, neither objects nor background. areas (G,) float32: COCO's area of the mask
    where it is given, otherwise of the box. image_id: the data set's own number of the image.
    size: (height, width) of the image that the boxes belong to. draw: what random choices among the
    boxes of this image depend on (`rankdet.detectors.draws`); the loaders of batches give a sample
    another one in every epoch (`SampleKey.draw`).
    """

    boxes: Tensor
    labels: Tensor
    is_ignored: Tensor
    areas: Tensor
    image_id: int
    size: tuple[int, int]
    draw: int = 0

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


@dataclass(frozen=True)
class Predictions:
    """What one stage of a detector says about its A anchors, in each of B images.

    logits (B, A, C): raw class scores, C = num_logits(K) of the class loss. deltas: boxes relative
    to their anchors, see `rankdet.boxes`; (B, A, 4), or (B, A, K, 4) with one box for each class.
    anchors float32, xyxy pixels of the padded images: (A, 4), the same for all of them, or
    (B, A, 4), of each image its own: the proposals (RoIs) of a second stage. level_sizes: how many
    anchors each level of the pyramid has, in order; their sum is A. is_padding (B, A) bool: there
    is no anchor, because another image has more; its box is any with sides > 0. None: all are.
    """

    name: str
    logits: Tensor
    deltas: Tensor
    anchors: Tensor
    level_sizes: tuple[int, ...]
    is_padding: Tensor | None = None

    @property
    def has_own_anchors(self) -> bool:
        """Whether each image has anchors of its own."""
        return self.anchors.ndim == 3

    def select(self, images: slice) -> Predictions:
        """The predictions of some of the images."""
        return dataclasses.replace(
            self,
            logits=self.logits[images],
            deltas=self.deltas[images],
            anchors=self.anchors[images] if self.has_own_anchors else self.anchors,
            is_padding=None if self.is_padding is None else self.is_padding[images],
        )


@dataclass(frozen=True)
class Detections:
    """What was found in one image, best first.

    boxes (D, 4) float32, xyxy pixels of the image as the data set has it. scores (D,) float32.
    labels (D,) int64 in 0..K-1.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Detections:
        """The same on another device."""
        return Detections(self.boxes.to(device), self.scores.to(device), self.labels.to(device))

    def select(self, keep: Tensor) -> Detections:
        """Those that `keep` (bool mask or indices) picks."""
        return Detections(self.boxes[keep], self.scores[keep], self.labels[keep])
