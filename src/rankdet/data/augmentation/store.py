"""All images of a data set held on one device, from which batches are picked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankdet.data.augmentation.packed import PackedTargets, PaddedImages, pack_targets, to_device
from rankdet.data.augmentation.parameters import LONGEST, MIN_SIDE, resized_size
from rankdet.data.augmentation.transforms import shrink
from rankdet.errors import RankdetError

if TYPE_CHECKING:
    from rankdet.data.dataset import DetectionDataset  # all readers hang on it

GIBIBYTE = 2**30


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
    def num_bytes(dataset: DetectionDataset, longest: int = LONGEST) -> int:
        """What the images of a data set take when they are held; none is read for this."""
        return 3 * int(_held_sizes(dataset, longest).prod(dim=1).sum())

    @classmethod
    def from_dataset(
        cls,
        dataset: DetectionDataset,
        device: torch.device | str,
        *,
        longest: int = LONGEST,
        max_bytes: int = 16 * GIBIBYTE,
        on_image: Callable[[], None] | None = None,
    ) -> ImageStore:
        """The store of all images; refuses a data set that needs more than `max_bytes`.

        An image whose longer side passes `longest` is held smaller, as `SSDAugmentation` makes it:
        a batch is as high and as wide as the largest of its images.
        """
        needed = cls.num_bytes(dataset, longest)
        if needed > max_bytes:
            raise RankdetError(
                f"the {len(dataset)} images need {needed / GIBIBYTE:.2f} GiB on {device}, and the"
                f" limit is {max_bytes / GIBIBYTE:.2f} GiB. Load them from the disk, or raise the"
                " limit."
            )
        sizes = _held_sizes(dataset, longest)
        lengths = 3 * sizes.prod(dim=1)
        pixels = torch.empty(needed, dtype=torch.uint8, device=device)
        targets = []
        for index, place in enumerate(pixels.split(lengths.tolist())):
            image, target = shrink(dataset.image(index), dataset.target(index), longest, MIN_SIDE)
            place.view(image.shape).copy_(image)
            targets.append(target)
            if on_image is not None:
                on_image()
        return cls(pixels, lengths.cumsum(0) - lengths, sizes, pack_targets(targets))

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


def _held_sizes(dataset: DetectionDataset, longest: int) -> Tensor:
    """(M, 2) int64: height and width of each image as an `ImageStore` holds it."""
    sizes = [
        size if max(size) <= longest else resized_size(size, longest, longest)
        for size in map(dataset.size, range(len(dataset)))
    ]
    return torch.tensor(sizes, dtype=torch.int64).view(-1, 2)
