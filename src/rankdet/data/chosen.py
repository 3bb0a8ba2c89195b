"""Some images of a data set, as a data set of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from rankdet.data.dataset import DetectionDataset
from rankdet.structures import Target


class ChosenImages:
    """Images of another data set, numbered anew in the order that is given; nothing is changed.

    A copy for a worker process is that of the other data set, and the numbers.
    """

    def __init__(self, base: DetectionDataset, indices: Sequence[int] | np.ndarray) -> None:
        self.base = base
        self.indices = indices
        self.classes = base.classes
        self.category_ids = base.category_ids
        self.is_annotated = base.is_annotated

    def __len__(self) -> int:
        return len(self.indices)

    def name(self, index: int) -> str:
        return self.base.name(self._number(index))

    def size(self, index: int) -> tuple[int, int]:
        return self.base.size(self._number(index))

    def image(self, index: int) -> Tensor:
        return self.base.image(self._number(index))

    def target(self, index: int) -> Target:
        return self.base.target(self._number(index))

    def _number(self, index: int) -> int:
        """Of the image in the other data set; a plain int, since it may end up in a JSON file."""
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}: expected 0 to {len(self) - 1}")
        return int(self.indices[index])
