"""Samples of different sizes put together into one batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankdet.data.objects import pack_objects, unpack_objects
from rankdet.structures import Target


@dataclass(frozen=True)
class Batch:
    """B images of one size, with padding at the right and at the bottom.

    images (B, 3, H, W) float32 in [0, 1]. targets: one of each image, boxes in its pixels.
    sizes (B, 2) int64: the (height, width) of each image without its padding. indices (B,) int64:
    the samples' numbers in the data set. names: what messages call them. B may be 0: the last
    batch of an evaluation can have fewer images than there are processes.
    """

    images: Tensor
    targets: list[Target]
    sizes: Tensor
    indices: Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same on another device. `sizes` and `indices` stay: they are read by the host."""
        images = self.images.to(device, non_blocking=non_blocking)
        if all(part.device == images.device for part in self._on_device()):
            return self
        objects = pack_objects(self.targets)
        if self.images.is_pinned():
            # The device would have to finish its work before a copy from ordinary memory.
            objects = objects.pin_memory()
        return dataclasses.replace(
            self,
            images=images,
            targets=unpack_objects(
                objects.to(device, non_blocking=non_blocking), *self._of_images()
            ),
        )

    def _on_device(self) -> list[Tensor]:
        """Something of the images and of each target, to see where they are."""
        return [self.images, *(target.boxes for target in self.targets)]

    def pin_memory(self) -> Batch:
        """The same with its images in page-locked memory: a GPU can copy them while it works."""
        return dataclasses.replace(self, images=self.images.pin_memory())

    def _of_images(self) -> tuple[list[int], list[int], list[tuple[int, int]], list[int]]:
        targets = self.targets
        return (
            [len(target) for target in targets],
            [target.image_id for target in targets],
            [target.size for target in targets],
            [target.draw for target in targets],
        )


def check_sample(image: Tensor, target: Target, size: tuple[int, int] | None, name: str) -> None:
    """A ValueError if what a transform gave cannot stand in a batch (of images of `size`)."""
    if image.dtype != torch.float32 or image.dim() != 3 or image.shape[0] != 3:
        raise ValueError(
            f"{name}: expected the transform to give an image (3, height, width) of float32, got "
            f"{tuple(image.shape)} of {image.dtype}"
        )
    if target.size != tuple(image.shape[1:]):
        raise ValueError(
            f"{name}: expected the transform to give a target of the image's size "
            f"{tuple(image.shape[1:])}, got {target.size}"
        )
    if size is not None and target.size != size:
        raise ValueError(
            f"{name}: expected an image of the fixed size {size} (height, width), got "
            f"{target.size}. Let the transform resize to it, or leave size=None"
        )


def pad_images(
    images: Sequence[Tensor], size: tuple[int, int] | None, multiple: int, fill: Sequence[float]
) -> Tensor:
    """(B, 3, H, W): images (3, h, w) at the top left, `fill` (a value per channel) around them.

    (H, W) is `size`, or else the largest height and width, rounded up to a multiple.

    >>> pad_images([torch.ones(3, 2, 5), torch.ones(3, 3, 4)], None, 4, (0, 0, 0)).shape
    torch.Size([2, 3, 4, 8])
    """
    if size is None:
        highest = max((image.shape[1] for image in images), default=1)
        widest = max((image.shape[2] for image in images), default=1)
        size = (_rounded_up(highest, multiple), _rounded_up(widest, multiple))
    padded = torch.empty(len(images), 3, *size)
    padded[:] = torch.tensor(fill)[:, None, None]
    for row, image in zip(padded, images, strict=True):
        row[:, : image.shape[1], : image.shape[2]] = image
    return padded


def _rounded_up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple
