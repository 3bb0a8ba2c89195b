"""Batches of images that are held on the device: nothing is read, nothing copied."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rankdet.data.augmentation.batched import BatchedResize
from rankdet.data.augmentation.packed import PackedTargets, PaddedImages
from rankdet.data.augmentation.parameters import LONGEST
from rankdet.data.augmentation.store import GIBIBYTE, ImageStore
from rankdet.data.augmentation.transforms import Resize, ResizeFixed
from rankdet.data.loading.collate import Batch
from rankdet.data.loading.loader import Loader, make_loader
from rankdet.data.randomness import SampleKey
from rankdet.structures import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankdet.data.dataset import DetectionDataset  # all readers hang on it

# As BatchedSSDAugmentation, BatchedFlipScaleJitter, BatchedFlipResize and BatchedResize.
BatchedTransform = Callable[
    [PaddedImages, PackedTargets, "Sequence[SampleKey]"], tuple[Tensor, list[Target]]
]

_USUAL_SIDE = 32
_SHARE_OF_FREE = 0.5  # of a GPU's free memory; the training needs the rest
# Of a computer's whole memory; the images to evaluate on may take as much again.
_SHARE_OF_MEMORY = 0.25
_MEMORY_IF_UNKNOWN = 8 * GIBIBYTE


def make_held_loader(
    dataset: DetectionDataset,
    transform: BatchedTransform,
    *,
    device: torch.device | str,
    batch_size: int,
    seed: int = 0,
    num_groups: int = 1,
    drop_ignored: bool = False,
    side: int = _USUAL_SIDE,
    rank: int = 0,
    world_size: int = 1,
    on_image: Callable[[], None] | None = None,
    longest: int = LONGEST,
    max_bytes: int | None = None,
) -> HeldLoader:
    """A loader for training that reads all images now, onto `device`, and makes batches there.

    The samples and their random changes are those of `make_loader` with the same seed and groups
    (shuffled, without a smaller last batch) and the transform for one image; only images whose
    longer side has more than `longest` pixels differ, which are held smaller. drop_ignored: as
    `WithoutIgnored`. side: height and width where this process has no image of a batch: those of
    the others, where the transform gives all images one size. on_image is called for each image
    that was read. max_bytes: RankdetError if the images need more; None: half of the GPU's free
    memory, or a quarter of the computer's.
    """
    order = make_loader(
        dataset,
        _never,
        batch_size=batch_size,
        seed=seed,
        num_groups=num_groups,
        rank=rank,
        world_size=world_size,
        num_workers=0,
    )
    limit = _usual_limit(torch.device(device)) if max_bytes is None else max_bytes
    store = ImageStore.from_dataset(
        dataset, device, longest=longest, max_bytes=limit, on_image=on_image
    )
    if drop_ignored:
        store.targets = store.targets.select(~store.targets.is_ignored)
    return HeldLoader(order, store, transform, seed, dataset.name, side)


def reason_not_to_hold(dataset: DetectionDataset, device: torch.device | str) -> str | None:
    """Why the images are not to be held on the device for evaluations; None: they may be.

    They take at most half of the GPU's free memory, or a quarter of the computer's. Images of more
    than 1536 pixels would be held smaller, and the detections would be others than those of the
    files.
    """
    longest = max((max(dataset.size(index)) for index in range(len(dataset))), default=0)
    if longest > LONGEST:
        return f"one is {longest} pixels long, and those that are held have at most {LONGEST}"
    needed, limit = ImageStore.num_bytes(dataset), _usual_limit(torch.device(device))
    if needed > limit:
        gibibytes = f"{needed / GIBIBYTE:.2f} GiB on {device}"
        return f"they need {gibibytes}, and the limit is {limit / GIBIBYTE:.2f} GiB"
    return None


def make_evaluation_loader(
    dataset: DetectionDataset,
    resize: Resize,
    *,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int | None = None,
    pin_memory: bool = False,
    store: ImageStore | None = None,
) -> Loader | HeldLoader:
    """A loader of all images, resized, in their order; processes take whole batches in turn.

    store: the images of the data set where they are held on the device: no worker reads them then,
    and the pixels are the same but for rounding. Other settings as of `make_loader`.
    """
    settings: dict[str, Any] = {
        "batch_size": batch_size,
        "shuffle": False,
        "rank": rank,
        "world_size": world_size,
        "is_dealt": True,
    }
    if store is not None:
        order = make_loader(dataset, _never, num_workers=0, **settings)
        return HeldLoader(order, store, BatchedResize(resize), 0, dataset.name)
    size = (resize.size, resize.size) if isinstance(resize, ResizeFixed) else None
    return make_loader(
        dataset, resize, size=size, num_workers=num_workers, pin_memory=pin_memory, **settings
    )


class HeldLoader:
    """Batches of any epoch, from any place in it, as of `Loader`.

    Made by `make_held_loader` and `make_evaluation_loader`. Images and targets are on the device
    already; `Batch.to` that device does no copy.
    """

    def __init__(
        self,
        order: Loader,
        store: ImageStore,
        transform: BatchedTransform,
        seed: int,
        name: Callable[[int], str],
        side: int = _USUAL_SIDE,
    ) -> None:
        """order: says which samples stand in which batch; it loads nothing."""
        self.store = store
        self._order = order
        self._transform = transform
        self._seed = seed
        self._name = name
        self._side = side

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._order)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on; those before are not made."""
        return map(partial(self._batch, epoch), self._order.index_batches(epoch, start))

    def close(self) -> None:
        """Nothing: there is no worker to end, and the images go with the loader."""

    def _batch(self, epoch: int, indices: np.ndarray) -> Batch:
        numbers = indices.tolist()
        keys = [SampleKey(self._seed, epoch, index) for index in numbers]
        if numbers:
            images, targets = self._transform(*self.store.batch(numbers), keys)
            targets = [
                replace(target, draw=key.draw) for target, key in zip(targets, keys, strict=True)
            ]
        else:
            device = self.store.pixels.device
            images, targets = torch.zeros(0, 3, self._side, self._side, device=device), []
        return Batch(
            images=images,
            targets=targets,
            sizes=torch.tensor([target.size for target in targets], dtype=torch.int64).view(-1, 2),
            indices=torch.tensor(numbers, dtype=torch.int64),
            names=tuple(map(self._name, numbers)),
        )


def _usual_limit(device: torch.device) -> int:
    if device.type != "cuda":
        return int(_SHARE_OF_MEMORY * _memory())
    free, _ = torch.cuda.mem_get_info(device)
    return int(_SHARE_OF_FREE * free)


def _memory() -> int:
    """Bytes of memory that the computer has; a guess where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # of Windows, and of other systems
        return _MEMORY_IF_UNKNOWN


def _never(image: Tensor, target: Target, key: SampleKey) -> tuple[Tensor, Target]:
    raise AssertionError("the order of the samples was asked to load one")
