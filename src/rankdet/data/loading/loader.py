"""Batches of a data set for training and evaluation, loaded by worker processes.

A sample is a function of (seed, epoch, index) alone: batches have the same samples, with the same
random changes, for any number of workers and processes, and from any starting point in an epoch.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rankdet.data.loading.collate import Batch, check_sample, pad_images
from rankdet.data.loading.order import BatchOrder, aspect_groups
from rankdet.data.loading.workers import WorkerPool, default_start_method, worker_context
from rankdet.data.objects import pack_objects, unpack_objects
from rankdet.data.processors import usual_num_workers
from rankdet.data.randomness import SampleKey
from rankdet.errors import DataError
from rankdet.structures import IMAGENET_MEAN, Target

if TYPE_CHECKING:
    from rankdet.data.dataset import DetectionDataset  # all readers hang on it

# image uint8 (3, H, W) and target -> image float32 (3, h, w) in [0, 1] and target
Transform = Callable[[Tensor, Target, SampleKey], tuple[Tensor, Target]]


def make_loader(
    dataset: DetectionDataset,
    transform: Transform,
    *,
    batch_size: int,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool | None = None,
    num_groups: int = 1,
    size: tuple[int, int] | None = None,
    multiple: int = 32,
    fill: Sequence[float] = IMAGENET_MEAN,
    rank: int = 0,
    world_size: int = 1,
    is_dealt: bool = False,
    num_workers: int | None = None,
    prefetch: int = 2,
    timeout: float = 300,
    start_method: str | None = None,
    pin_memory: bool = False,
) -> Loader:
    """A loader of batches of `dataset`, each image changed by `transform(image, target, key)`.

    Which samples: batch_size images over all `world_size` processes, of which this one (`rank`)
    loads its part, which may be empty. is_dealt: it loads whole batches instead, one of every
    `world_size`, and empty ones where none is left for it. drop_last: leave out a last batch with
    fewer images; None: when shuffling. num_groups: above 1, images of similar shape come together
    (2: upright, and the others).

    What shape: size (height, width), which all images must then have; None: each batch is padded
    at the right and at the bottom, with the colour `fill`, to its largest image, rounded up to a
    multiple. The padding, unlike the samples, depends on the images of this process alone.

    Who loads: num_workers processes (0: this one; None: one for each processor, at most 8), each
    with `prefetch` batches ahead, and `timeout` seconds of patience (0: without end). start_method:
    "forkserver", "spawn" or "fork"; with the first two, data set and transform must be defined at
    the top level of a module, and a script must protect its start with `if __name__ ==
    "__main__":`. None: `default_start_method`. pin_memory: for faster copies to a GPU.
    """
    drop_last = shuffle if drop_last is None else drop_last
    num_workers = usual_num_workers(most=8) if num_workers is None else num_workers
    start_method = default_start_method() if start_method is None else start_method
    _check_parts(dataset, transform)
    _check_at_least(0, seed=seed, rank=rank, num_workers=num_workers)
    _check_at_least(1, batch_size=batch_size, num_groups=num_groups, multiple=multiple)
    _check_at_least(1, world_size=world_size, prefetch=prefetch)
    _check_seed(seed)
    _check_order(len(dataset), batch_size, drop_last, rank, world_size)
    _check_rest(size, fill, timeout, start_method)
    if num_workers:
        worker_context(start_method)  # its imports run while the caller goes on
    groups = None
    if num_groups > 1:
        sizes = np.array([dataset.size(index) for index in range(len(dataset))])
        groups = aspect_groups(sizes, num_groups)
    order = BatchOrder(
        len(dataset), batch_size, seed, shuffle, drop_last, rank, world_size, groups, is_dealt
    )
    make = _MakeBatch(dataset, transform, seed, size, multiple, tuple(fill))

    def new_pool() -> WorkerPool:
        return WorkerPool(
            make,
            dataset.name,
            num_workers=num_workers,
            start_method=start_method,
            prefetch=prefetch,
            timeout=timeout,
            pin_memory=pin_memory and torch.cuda.is_available(),
        )

    return Loader(order, new_pool)


class Loader:
    """Batches of any epoch, from any place in it. Made by `make_loader`.

    Worker processes start with the first epoch and stay for the next ones. They end when an epoch
    is left early (an exception, or `break`), with `close`, and with the program.
    """

    def __init__(self, order: BatchOrder, new_pool: Callable[[], WorkerPool]) -> None:
        self.order = order
        self._new_pool = new_pool
        self._idle: WorkerPool | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.order)

    def index_batches(self, epoch: int, start: int = 0) -> list[np.ndarray]:
        """The sample numbers of each batch that `epoch` would load: for images held elsewhere."""
        if epoch < 0 or not 0 <= start <= len(self):
            raise ValueError(
                f"expected epoch >= 0 and start in 0..{len(self)}, got {epoch} and {start}"
            )
        return self.order.batches(epoch, start)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on; those before are not loaded."""
        keys = [(epoch, indices.tolist()) for indices in self.index_batches(epoch, start)]
        return self._batches(keys) if keys else iter(())

    def close(self) -> None:
        """End the workers that wait for the next epoch."""
        if self._idle:
            self._idle.close()
            self._idle = None

    def _batches(self, keys: list[BatchKey]) -> Iterator[Batch]:
        pool = self._started(keys)
        is_complete = False
        try:
            # Not a loop: its variable would keep a batch alive until the next one is there.
            yield from map(_Parcel.open, pool.results())
            is_complete = True
        finally:
            if is_complete and self._idle is None:
                self._idle = pool
            else:
                pool.close()

    def _started(self, keys: list[BatchKey]) -> WorkerPool:
        """A pool for one epoch alone: two epochs at the same time have one each."""
        pool, self._idle = self._idle, None
        if pool is not None:
            try:
                pool.start(keys)
                return pool
            except RuntimeError:  # a worker has died or stopped since the last epoch
                pool.is_broken = True
                pool.close()
        pool = self._new_pool()
        pool.start(keys)
        return pool


BatchKey = tuple[int, list[int]]  # epoch, sample numbers


@dataclass(frozen=True)
class _Parcel:
    """A batch on its way from a worker: one shared tensor; the rest travels by value.

    Every shared tensor is an open file in both processes, and files run out at about 1000.
    """

    images: Tensor
    objects: np.ndarray
    counts: list[int]
    image_ids: list[int]
    sizes: list[tuple[int, int]]
    draws: list[int]
    indices: list[int]
    names: tuple[str, ...]

    def pin_memory(self) -> _Parcel:
        """Called by DataLoader."""
        return dataclasses.replace(self, images=self.images.pin_memory())

    def open(self) -> Batch:
        objects = torch.from_numpy(self.objects)
        return Batch(
            images=self.images,
            targets=unpack_objects(objects, self.counts, self.image_ids, self.sizes, self.draws),
            sizes=torch.tensor(self.sizes, dtype=torch.int64).reshape(-1, 2),
            indices=torch.tensor(self.indices, dtype=torch.int64),
            names=self.names,
        )


@dataclass(frozen=True)
class _MakeBatch:
    """Makes the batch of a key; a copy of it stands in every worker."""

    dataset: DetectionDataset
    transform: Transform
    seed: int
    size: tuple[int, int] | None
    multiple: int
    fill: tuple[float, ...]

    def __call__(self, key: BatchKey, report: Callable[[int], None]) -> _Parcel:
        epoch, indices = key
        images, targets = [], []
        for index in indices:
            report(index)
            image, target = self._sample(SampleKey(self.seed, epoch, index))
            images.append(image)
            targets.append(target)
        return _Parcel(
            images=pad_images(images, self.size, self.multiple, self.fill),
            objects=pack_objects(targets).numpy(),
            counts=[len(target) for target in targets],
            image_ids=[target.image_id for target in targets],
            sizes=[target.size for target in targets],
            draws=[SampleKey(self.seed, epoch, index).draw for index in indices],
            indices=indices,
            names=tuple(self.dataset.name(index) for index in indices),
        )

    def _sample(self, key: SampleKey) -> tuple[Tensor, Target]:
        dataset = self.dataset
        try:
            image, target = self.transform(dataset.image(key.index), dataset.target(key.index), key)
            check_sample(image, target, self.size, dataset.name(key.index))
        except DataError:  # says itself where it is
            raise
        except Exception as error:
            error.add_note(f"While loading {dataset.name(key.index)}: {key}.")
            raise
        return image, target


def _check_seed(seed: int) -> None:
    """Before the first batch: `SampleKey` would refuse it only then."""
    if seed >= 2**32:
        raise ValueError(f"expected seed below 2**32, got {seed}")


def _check_order(length: int, batch_size: int, drop_last: bool, rank: int, world_size: int) -> None:
    if rank >= world_size:
        raise ValueError(f"expected rank below world_size = {world_size}, got {rank}")
    if drop_last and length < batch_size:
        raise ValueError(
            f"expected a data set of at least batch_size = {batch_size} images, got {length}: "
            "with drop_last there is no batch"
        )


def _check_parts(dataset: object, transform: object) -> None:
    if not all(hasattr(dataset, name) for name in ("__len__", "image", "target", "size", "name")):
        raise ValueError(f"expected a data set (see open_dataset), got {dataset!r}")
    if not callable(transform):
        raise ValueError(f"expected a transform(image, target, key), got {transform!r}")


def _check_at_least(low: int, **settings: object) -> None:
    for name, value in settings.items():
        if not isinstance(value, Integral) or value < low:
            raise ValueError(f"expected {name} to be an integer >= {low}, got {value!r}")


def _check_rest(
    size: tuple[int, int] | None, fill: Sequence[float], timeout: float, start_method: str
) -> None:
    is_pair = isinstance(size, tuple | list) and len(size) == 2
    if size is not None and not (is_pair and min(size) >= 1):
        raise ValueError(f"expected size to be (height, width) above 0 or None, got {size!r}")
    if len(fill) != 3:
        raise ValueError(f"expected fill to have 3 values, got {fill!r}")
    if not timeout >= 0:
        raise ValueError(f"expected timeout >= 0 seconds, got {timeout!r}")
    methods = multiprocessing.get_all_start_methods()
    if start_method not in methods:
        raise ValueError(f"expected start_method to be one of {methods}, got {start_method!r}")
