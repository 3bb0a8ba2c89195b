"""Many images and targets held as few tensors: what augmentation of a whole batch works on.

The pixels may live on any device. The targets stay on the CPU, where the random parameters are
made from them; there are few numbers in them, and nothing has to wait for the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankdet.data.objects import object_rows, unpack_objects
from rankdet.structures import Target


@dataclass(frozen=True)
class PackedTargets:
    """The targets of B images, their N objects one after the other. On the CPU.

    boxes (N, 4), labels (N,), is_ignored (N,) and areas (N,) as in `Target`; rows (N,) int64,
    rising: the image in 0..B-1 that an object belongs to; counts (B,) int64: the objects of each
    image; image_ids (B,) int64; sizes (B, 2) int64: height and width.
    """

    boxes: Tensor
    labels: Tensor
    is_ignored: Tensor
    areas: Tensor
    rows: Tensor
    counts: Tensor
    image_ids: Tensor
    sizes: Tensor

    def __len__(self) -> int:
        return len(self.image_ids)

    def select(self, keep: Tensor) -> PackedTargets:
        """The same images with the objects that the mask `keep` (N,) picks."""
        rows = self.rows[keep]
        return dataclasses.replace(
            self,
            boxes=self.boxes[keep],
            labels=self.labels[keep],
            is_ignored=self.is_ignored[keep],
            areas=self.areas[keep],
            rows=rows,
            counts=torch.bincount(rows, minlength=len(self)),
        )

    def take(self, indices: Sequence[int] | Tensor) -> PackedTargets:
        """The targets of the images with these numbers, in this order; a number may repeat."""
        images = torch.as_tensor(indices, dtype=torch.int64)
        counts = self.counts[images]
        rows = torch.repeat_interleave(counts)
        ends, new_ends = self.counts.cumsum(0), counts.cumsum(0)
        shift = (ends[images] - counts) - (new_ends - counts)
        objects = torch.arange(len(rows)) + shift[rows]
        return PackedTargets(
            boxes=self.boxes[objects],
            labels=self.labels[objects],
            is_ignored=self.is_ignored[objects],
            areas=self.areas[objects],
            rows=rows,
            counts=counts,
            image_ids=self.image_ids[images],
            sizes=self.sizes[images],
        )


def pack_targets(targets: Sequence[Target]) -> PackedTargets:
    """One `PackedTargets` of targets that are on the CPU."""
    counts = torch.tensor([len(target) for target in targets], dtype=torch.int64)
    return PackedTargets(
        boxes=torch.cat([torch.empty(0, 4), *(target.boxes for target in targets)]),
        labels=torch.cat(
            [torch.empty(0, dtype=torch.int64), *(target.labels for target in targets)]
        ),
        is_ignored=torch.cat(
            [torch.empty(0, dtype=torch.bool), *(target.is_ignored for target in targets)]
        ),
        areas=torch.cat([torch.empty(0), *(target.areas for target in targets)]),
        rows=torch.repeat_interleave(counts),
        counts=counts,
        image_ids=torch.tensor([target.image_id for target in targets], dtype=torch.int64),
        sizes=torch.tensor([target.size for target in targets], dtype=torch.int64).view(-1, 2),
    )


def unpack_targets(packed: PackedTargets, device: torch.device | str = "cpu") -> list[Target]:
    """A target per image, on `device`: one copy in all, however many images there are."""
    rows = object_rows(packed.boxes, packed.labels, packed.is_ignored, packed.areas)
    objects = to_device(rows, device)
    sizes = [(height, width) for height, width in packed.sizes.tolist()]
    return unpack_objects(objects, packed.counts.tolist(), packed.image_ids.tolist(), sizes)


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor, which is on the CPU, on `device`; the host does not wait."""
    if torch.device(device).type == "cuda":
        tensor = tensor.pin_memory()  # from ordinary memory the copy may wait for earlier work
    return tensor.to(device, non_blocking=True)


@dataclass(frozen=True)
class PaddedImages:
    """Images of different sizes in one tensor, each in the upper left corner.

    pixels (B, 3, H, W) uint8 on any device: what stands outside of an image has no meaning.
    sizes (B, 2) int64 on the CPU: height and width of each.
    """

    pixels: Tensor
    sizes: Tensor


def padded_images(images: Sequence[Tensor]) -> PaddedImages:
    """The (3, h, w) uint8 images, which are on one device, in one tensor."""
    sizes = torch.tensor([image.shape[-2:] for image in images], dtype=torch.int64)
    height, width = sizes.amax(dim=0).tolist()
    pixels = images[0].new_zeros(len(images), 3, height, width)
    for row, image in zip(pixels, images, strict=True):
        row[:, : image.shape[1], : image.shape[2]] = image
    return PaddedImages(pixels, sizes)
