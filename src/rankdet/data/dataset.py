"""Images with their targets by number: the interface that training and evaluation see."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rankdet.data import images
from rankdet.data.split import Split
from rankdet.structures import Target


class DetectionDataset(Protocol):
    """What every data set offers: files of any format, and the embedded one.

    An image is (3, height, width) uint8 RGB. `size` and `target` do not touch the pixels.
    """

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    is_annotated: bool

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """What messages call the image: its file, or how it was drawn."""

    def size(self, index: int) -> tuple[int, int]:
        """(height, width)."""

    def image(self, index: int) -> Tensor: ...

    def target(self, index: int) -> Target: ...


class FileDataset:
    """The images of a split, decoded when they are asked for. Pickles fast: mostly arrays."""

    def __init__(self, split: Split, max_pixels: int = images.MAX_PIXELS) -> None:
        self.classes = split.classes
        self.category_ids = split.category_ids
        self.is_annotated = split.is_annotated
        self.annotations = split.annotations
        self.max_pixels = max_pixels

    def __len__(self) -> int:
        return len(self.annotations)

    def name(self, index: int) -> str:
        return str(self.annotations.path(index))

    def size(self, index: int) -> tuple[int, int]:
        width, height = self.annotations.sizes[index].tolist()
        return height, width

    def image(self, index: int) -> Tensor:
        pixels = images.decode(self.annotations.path(index), self.max_pixels)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def target(self, index: int) -> Target:
        rows = self.annotations.rows(index)
        return Target(
            boxes=torch.from_numpy(self.annotations.boxes[rows].copy()),
            labels=torch.from_numpy(self.annotations.labels[rows].copy()),
            is_ignored=torch.from_numpy(self.annotations.is_ignored[rows].copy()),
            areas=torch.from_numpy(self.annotations.areas[rows].copy()),
            image_id=int(self.annotations.image_ids[index]),
            size=self.size(index),
        )
