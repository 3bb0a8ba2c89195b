"""Which samples stand in which batch: a function of (seed, epoch) and of nothing else.

Batches are cut from one order of the whole data set, and each process takes its part of every
batch. So the samples of batch b are the same for any number of processes, and a run that is
continued needs to know its epoch and position only. Where each image is looked at alone, as in an
evaluation, the processes may take whole batches in turn instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Keeps the order's random numbers apart from those of the samples (SampleKey): a spawn key, unlike
# a further number in the seed, cannot meet any of them.
_ORDER_STREAM = 1


@dataclass(frozen=True)
class BatchOrder:
    """How `length` samples are cut into batches, and which part of each is this process's own.

    batch_size: images of a batch over all `world_size` processes. drop_last: whether a last batch
    with fewer images is left out. groups (length,): see `aspect_groups`; None: no grouping.
    is_dealt: each process takes whole batches: of `world_size` batches in a row, its own one.
    """

    length: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = True
    rank: int = 0
    world_size: int = 1
    groups: np.ndarray | None = None
    is_dealt: bool = False

    def __len__(self) -> int:
        """Batches in an epoch: the same in every process."""
        return -(-self._num_batches // self.world_size) if self.is_dealt else self._num_batches

    @property
    def _num_batches(self) -> int:
        """Of all processes."""
        whole, rest = divmod(self.length, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def batches(self, epoch: int, start: int = 0) -> list[np.ndarray]:
        """The sample numbers of this process's part of each batch, from batch `start` on.

        A part may be empty: a batch can have fewer images than there are processes, and the last
        ones to be dealt can be fewer.

        >>> order = BatchOrder(5, batch_size=2, shuffle=False, drop_last=False)
        >>> [batch.tolist() for batch in order.batches(epoch=0)]
        [[0, 1], [2, 3], [4]]
        >>> order = BatchOrder(5, 2, 0, False, False, rank=1, world_size=2, is_dealt=True)
        >>> [batch.tolist() for batch in order.batches(epoch=0)]
        [[2, 3], []]
        """
        if self.groups is None:
            order = epoch_order(self.length, self.seed, epoch, self.shuffle)
        else:
            order = grouped_order(self.groups, self.batch_size, self.seed, epoch, self.shuffle)
        end = self._num_batches * self.batch_size  # those after it are left out
        if self.is_dealt:
            own = [number * self.world_size + self.rank for number in range(start, len(self))]
            return [_batch(order[:end], number, self.batch_size) for number in own]
        batches = (_batch(order, number, self.batch_size) for number in range(start, len(self)))
        return [part_of(batch, self.rank, self.world_size) for batch in batches]


def epoch_order(length: int, seed: int, epoch: int, shuffle: bool = True) -> np.ndarray:
    """(length,) int64: the order in which an epoch goes through the samples, each once.

    >>> epoch_order(4, seed=0, epoch=0, shuffle=False).tolist()
    [0, 1, 2, 3]
    """
    return _generator(seed, epoch).permutation(length) if shuffle else np.arange(length)


def grouped_order(
    groups: np.ndarray, batch_size: int, seed: int, epoch: int, shuffle: bool = True
) -> np.ndarray:
    """(N,) int64: an order whose slices of `batch_size` have one group each, wherever possible.

    groups (N,) int. What is left of the groups after their whole batches is put together: those
    batches are mixed, and only the very last one can be smaller.

    >>> grouped_order(np.array([0, 1, 0, 1, 0, 1]), 2, seed=0, epoch=0, shuffle=False).tolist()
    [0, 2, 1, 3, 4, 5]
    """
    generator = _generator(seed, epoch)
    order = generator.permutation(len(groups)) if shuffle else np.arange(len(groups))
    members = [order[groups[order] == group] for group in np.unique(groups)]
    num_whole = [len(part) // batch_size * batch_size for part in members]
    whole = [part[:count] for part, count in zip(members, num_whole, strict=True)]
    left = [part[count:] for part, count in zip(members, num_whole, strict=True)]
    order = np.concatenate([*whole, *left]) if members else order
    count = len(order) // batch_size * batch_size
    batches = order[:count].reshape(-1, batch_size)
    if shuffle:
        batches = generator.permutation(batches)  # of the rows
    return np.concatenate([batches.ravel(), order[count:]])


def aspect_groups(sizes: np.ndarray, num_groups: int = 2) -> np.ndarray:
    """(N,) int64 in 0..num_groups-1: images of similar shape, from narrow to wide.

    sizes (N, 2): (height, width). Two groups are upright (0) and the others (1, squares too). More
    groups divide the ratios from 1:2 to 2:1 evenly on a logarithmic scale.

    >>> aspect_groups(np.array([[20, 10], [10, 10], [10, 20]])).tolist()
    [0, 1, 1]
    """
    ratio = np.log2(sizes[:, 1] / sizes[:, 0])
    edges = np.linspace(-1, 1, num_groups + 1)[1:-1]
    return np.asarray(np.digitize(ratio, edges), dtype=np.int64)


def _batch(order: np.ndarray, number: int, batch_size: int) -> np.ndarray:
    return order[number * batch_size : (number + 1) * batch_size]


def part_of(batch: np.ndarray, rank: int, world_size: int) -> np.ndarray:
    """The contiguous part of a batch that process `rank` loads; sizes differ by at most one.

    >>> [part_of(np.arange(3), rank, world_size=4).tolist() for rank in range(4)]
    [[0], [1], [2], []]
    """
    return np.array_split(batch, world_size)[rank]


def _generator(seed: int, epoch: int) -> np.random.Generator:
    sequence = np.random.SeedSequence([seed, epoch], spawn_key=(_ORDER_STREAM,))
    return np.random.default_rng(sequence)
