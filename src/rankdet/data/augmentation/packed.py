"""Many images and targets held as few tensors: what augmentation of a whole batch works on.

The pixels may live on any device. The targets stay on the CPU, where the random parameters are
made from them; there are few numbers in them, and nothing has to wait for the device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankdet.data.loading.collate import unpack_objects
from rankdet.errors import RankdetError
from rankdet.structures import Target

if TYPE_CHECKING:
    from rankdet.data.dataset import DetectionDataset  # all readers hang on it

GIBIBYTE = 2**30


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
    columns = torch.stack([packed.areas, packed.labels, packed.is_ignored], dim=1)
    objects = to_device(torch.cat([packed.boxes, columns], dim=1), device)
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


def pad_images(images: Sequence[Tensor]) -> PaddedImages:
    """The (3, h, w) uint8 images, which are on one device, in one tensor."""
    sizes = torch.tensor([image.shape[-2:] for image in images], dtype=torch.int64)
    height, width = sizes.amax(dim=0).tolist()
    pixels = images[0].new_zeros(len(images), 3, height, width)
    for row, image in zip(pixels, images, strict=True):
        row[:, : image.shape[1], : image.shape[2]] = image
    return PaddedImages(pixels, sizes)


class ImageStore:
    """All images of a data set on one device, packed without gaps, with their targets.

    Made by `from_dataset`; `batch` picks images in a handful of launches, whatever their number.
    """

    def __init__(
        self, pixels: Tensor, starts: Tensor, sizes: Tensor, targets: PackedTargets
    ) -> None:
        """pixels: (bytes,) uint8; starts, sizes: (M,) and (M, 2) int64 on the CPU."""
        self.pixels = pixels
        self.sizes = sizes
        self.targets = targets
        self._layout = torch.cat([starts[:, None], sizes], dim=1).to(pixels.device)

    @staticmethod
    def num_bytes(dataset: DetectionDataset) -> int:
        """What the images of a data set take when they are held; none is read for this."""
        return sum(3 * height * width for height, width in map(dataset.size, range(len(dataset))))

    @classmethod
    def from_dataset(
        cls,
        dataset: DetectionDataset,
        device: torch.device | str,
        *,
        max_bytes: int = 16 * GIBIBYTE,
        on_image: Callable[[], None] | None = None,
    ) -> ImageStore:
        """The store of all images; refuses a data set that needs more than `max_bytes`."""
        needed = cls.num_bytes(dataset)
        if needed > max_bytes:
            raise RankdetError(
                f"the {len(dataset)} images need {needed / GIBIBYTE:.2f} GiB on {device}, and the"
                f" limit is {max_bytes / GIBIBYTE:.2f} GiB. Load them from the disk, or raise the"
                " limit."
            )
        sizes = torch.tensor(
            [dataset.size(index) for index in range(len(dataset))], dtype=torch.int64
        ).view(-1, 2)
        lengths = 3 * sizes.prod(dim=1)
        pixels = torch.empty(needed, dtype=torch.uint8, device=device)
        for index, place in enumerate(pixels.split(lengths.tolist())):
            height, width = sizes[index].tolist()
            place.view(3, height, width).copy_(dataset.image(index))
            if on_image is not None:
                on_image()
        targets = pack_targets([dataset.target(index) for index in range(len(dataset))])
        return cls(pixels, lengths.cumsum(0) - lengths, sizes, targets)

    def __len__(self) -> int:
        return len(self.sizes)

    def batch(self, indices: Sequence[int] | Tensor) -> tuple[PaddedImages, PackedTargets]:
        """The images with these numbers, padded to the largest of them, and their targets."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        sizes = self.sizes[chosen]
        max_height, max_width = sizes.amax(dim=0).tolist()
        device = self.pixels.device
        layout = self._layout[to_device(chosen, device)]
        start, height, width = layout.view(-1, 3, 1, 1, 1).unbind(dim=1)
        # Outside of an image its edge is repeated: every address is then one of its own.
        row = torch.arange(max_height, device=device).view(1, 1, -1, 1).minimum(height - 1)
        column = torch.arange(max_width, device=device).view(1, 1, 1, -1).minimum(width - 1)
        channel = torch.arange(3, device=device).view(1, 3, 1, 1)
        address = (row * width + column) + (start + channel * (height * width))
        return PaddedImages(self.pixels.take(address), sizes), self.targets.take(chosen)
