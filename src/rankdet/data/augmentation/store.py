"""All images of a data set held on one device, from which batches are picked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rankdet.data.augmentation.packed import PackedTargets, PaddedImages, pack_targets, to_device
from rankdet.data.augmentation.parameters import LONGEST, MIN_SIDE, resized_size
from rankdet.data.augmentation.transforms import shrink
from rankdet.data.processors import usual_num_workers
from rankdet.errors import RankdetError
from rankdet.structures import Target

if TYPE_CHECKING:
    from rankdet.data.dataset import DetectionDataset  # all readers hang on it

GIBIBYTE = 2**30
_PIECE = 2**26  # bytes of pixels that are read before they are copied to the device together
_MOST_THREADS = 4


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
        num_threads: int | None = None,
    ) -> ImageStore:
        """The store of all images; refuses a data set that needs more than `max_bytes`.

        An image whose longer side passes `longest` is held smaller, as `SSDAugmentation` makes it:
        a batch is as high and as wide as the largest of its images. on_image is called for each
        image that was read. num_threads: that ask the data set for images at the same time; None:
        one for each processor, at most 4.
        """
        needed = cls.num_bytes(dataset, longest)
        if needed > max_bytes:
            raise RankdetError(
                f"the {len(dataset)} images need {needed / GIBIBYTE:.2f} GiB on {device}, and the"
                f" limit is {max_bytes / GIBIBYTE:.2f} GiB. Load them from the disk in place of"
                " this: --set data.hold=false."
            )
        sizes = _held_sizes(dataset, longest)
        lengths = 3 * sizes.prod(dim=1)
        ends = lengths.cumsum(0)
        pixels = torch.empty(needed, dtype=torch.uint8, device=device)
        targets: list[Target] = []

        def read(index: int, place: Tensor) -> Target:
            image, target = shrink(dataset.image(index), dataset.target(index), longest, MIN_SIDE)
            place.view(image.shape).copy_(image)
            return target

        with _threads(num_threads or usual_num_workers(_MOST_THREADS)) as pool:
            for piece in _pieces(lengths.tolist(), _PIECE):
                part = pixels[ends[piece[0]] - lengths[piece[0]] : ends[piece[-1]]]
                is_there = part.device.type == "cpu"
                read_into = part if is_there else torch.empty(len(part), dtype=torch.uint8)
                places = read_into.split(lengths[piece[0] : piece[-1] + 1].tolist())
                for target in pool.map(read, piece, places):
                    targets.append(target)
                    if on_image is not None:
                        on_image()
                if not is_there:
                    part.copy_(read_into)
        return cls(pixels, ends - lengths, sizes, pack_targets(targets))

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


@contextmanager
def _threads(num_threads: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that end with an error, or with Ctrl-C: what nobody has begun is not done.

    In each of them torch works alone: helpers of its own, for copies of a few hundred kilobytes,
    would fight for the processors, above all where several trainings start at the same time.
    """
    usual = torch.get_num_threads()
    pool = ThreadPoolExecutor(
        num_threads,
        thread_name_prefix="read-images",
        initializer=torch.set_num_threads,
        initargs=(1,),
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(usual)  # what a thread sets, later ones take over


def _pieces(lengths: Sequence[int], most: int) -> Iterator[range]:
    """Images in a row of together at most so many bytes; one that has more is alone.

    >>> list(_pieces([3, 4, 9, 1, 1], most=8))
    [range(0, 2), range(2, 3), range(3, 5)]
    """
    start = size = 0
    for index, length in enumerate(lengths):
        if index > start and size + length > most:
            yield range(start, index)
            start, size = index, 0
        size += length
    if lengths:
        yield range(start, len(lengths))


def _held_sizes(dataset: DetectionDataset, longest: int) -> Tensor:
    """(M, 2) int64: height and width of each image as an `ImageStore` holds it."""
    sizes = [
        size if max(size) <= longest else resized_size(size, longest, longest)
        for size in map(dataset.size, range(len(dataset)))
    ]
    return torch.tensor(sizes, dtype=torch.int64).view(-1, 2)
