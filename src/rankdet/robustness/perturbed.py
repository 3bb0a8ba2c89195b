"""A data set whose images are changed, and nothing else: loaders and metrics take it as any other.

The perturbation is applied to the image as the data set has it, before any resizing, as the paper
perturbs its test set.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from rankdet.data.dataset import DetectionDataset
from rankdet.structures import Target

# image (3, H, W) uint8, boxes (G, 4) of its objects, random numbers -> the changed image.
Perturbation = Callable[[Tensor, Tensor, np.random.Generator], Tensor]


class PerturbedDataset:
    """Another data set through a perturbation.

    Random numbers are those of (seed, image number) alone: an image is the same in any batch, order
    and worker process. The paper puts patches on "each object instance": objects with `is_ignored`
    (VOC's difficult ones, COCO's crowds) are none that the metrics count, and get no patch.
    """

    def __init__(self, base: DetectionDataset, perturbation: Perturbation, seed: int = 0) -> None:
        self.base = base
        self.perturbation = perturbation
        self.seed = seed
        self.classes = base.classes
        self.category_ids = base.category_ids
        self.is_annotated = base.is_annotated

    def __len__(self) -> int:
        return len(self.base)

    def name(self, index: int) -> str:
        return self.base.name(index)

    def size(self, index: int) -> tuple[int, int]:
        return self.base.size(index)

    def image(self, index: int) -> Tensor:
        target = self.base.target(index)
        boxes = target.boxes[~target.is_ignored]
        return self.perturbation(self.base.image(index), boxes, random_of(self.seed, index))

    def target(self, index: int) -> Target:
        return self.base.target(index)


def random_of(seed: int, index: int) -> np.random.Generator:
    """The random numbers of an image: a function of both numbers alone."""
    return np.random.default_rng([seed, index])
