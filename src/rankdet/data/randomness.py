"""Random numbers of a sample: a function of (seed, epoch, index) and of nothing else.

So a sample is augmented in the same way by any number of workers and processes, and a run that is
continued needs to know its epoch and position only.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class SampleKey:
    """What the randomness of one sample depends on; all are integers from 0 to 2**32 - 1."""

    seed: int
    epoch: int
    index: int

    def __post_init__(self) -> None:
        # NumPy cuts larger ones into pieces, and two different keys can then give the same numbers.
        if not all(0 <= part < 2**32 for part in (self.seed, self.epoch, self.index)):
            raise ValueError(f"expected integers from 0 to 2**32 - 1, got {self}")

    @property
    def draw(self) -> int:
        """A number from 0 to 2**32 - 1 for choices that are made later; see `Target`.

        >>> SampleKey(0, 1, 5).draw == SampleKey(0, 2, 5).draw
        False
        """
        return zlib.crc32(f"{self.seed} {self.epoch} {self.index}".encode())


def uniforms(keys: Sequence[SampleKey], count: int) -> Tensor:
    """(len(keys), count) float64 in [0, 1): row i depends on keys[i] alone.

    >>> both = uniforms([SampleKey(0, 0, 1), SampleKey(0, 0, 2)], 4)
    >>> torch.equal(both[1:], uniforms([SampleKey(0, 0, 2)], 4))
    True
    """
    rows = np.empty((len(keys), count))
    for row, key in zip(rows, keys, strict=True):
        np.random.default_rng([key.seed, key.epoch, key.index]).random(out=row)
    return torch.from_numpy(rows)
