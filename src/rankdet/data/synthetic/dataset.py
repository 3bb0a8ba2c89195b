"""The embedded data set: textured shapes on clutter, drawn when they are asked for.

Nothing is downloaded or stored. An image and its objects are functions of (seed, split, index,
size) alone: the same in every process and on every machine, whatever the length of the split.

Each image has 0 to 8 objects of 6 classes, turned, stretched, lit and textured at random, from
about 20 pixels to over half of the image's side, over a background of faint patterns, strokes,
blobs and shapes of no class. They may cover each other and be cut by the image's edge, but at least
a quarter of each is to be seen. A box holds the whole shape as far as it lies within the image,
parts that others cover included (as in VOC), and its edges are whole pixels. Objects of which less
than 40 % is to be seen, or whose box has a side below 10 pixels, are ignored.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from rankdet.data.reading.findings import data_error
from rankdet.data.synthetic import painting, scenes
from rankdet.data.synthetic.scenes import DEFAULT_SIZE, MAX_SIZE, MIN_SIZE
from rankdet.structures import Target

SplitName = Literal["train", "val"]
SPLITS: tuple[SplitName, ...] = get_args(SplitName)
DEFAULT_LENGTHS: dict[SplitName, int] = {"train": 2000, "val": 500}


class SyntheticDataset:
    """`length` images of size x size pixels; "train" and "val" are drawn alike, but never the same.

    >>> data = SyntheticDataset("val", 10)
    >>> data.name(3), data.size(3), tuple(data.image(3).shape)
    ('synthetic/val/000003', (160, 160), (3, 160, 160))
    """

    is_annotated = True

    def __init__(
        self, split: SplitName, length: int, *, seed: int = 0, size: int = DEFAULT_SIZE
    ) -> None:
        if split not in SPLITS:
            raise _unknown_split(split)
        if length < 0:
            raise ValueError(f"expected a length of 0 or more, got {length}")
        if seed < 0:
            raise ValueError(f"expected a seed of 0 or more, got {seed}")
        if not MIN_SIZE <= size <= MAX_SIZE:
            raise ValueError(f"expected a size of {MIN_SIZE} to {MAX_SIZE} pixels, got {size}")
        self.split = split
        self.length = length
        self.seed = seed
        self.side = size
        self.classes: tuple[str, ...] = scenes.CLASSES
        self.category_ids = tuple(range(1, len(self.classes) + 1))

    def __len__(self) -> int:
        return self.length

    def name(self, index: int) -> str:
        return f"synthetic/{self.split}/{self._checked(index):06d}"

    def size(self, index: int) -> tuple[int, int]:
        self._checked(index)
        return self.side, self.side

    def image(self, index: int) -> Tensor:
        """(3, size, size) uint8 RGB."""
        return torch.from_numpy(painting.render(self._scene(index), self._key(index)))

    def target(self, index: int) -> Target:
        """The objects, from back to front. Areas are those of the boxes."""
        scene = self._scene(index)
        boxes = torch.from_numpy(scene.boxes).float()
        return Target(
            boxes=boxes,
            labels=torch.from_numpy(scene.labels).clone(),
            is_ignored=torch.from_numpy(scene.is_ignored).clone(),
            areas=(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]),
            image_id=index,
            size=(self.side, self.side),
        )

    def _scene(self, index: int) -> scenes.Scene:
        return _arrange(self._key(index), self.side)

    def _key(self, index: int) -> tuple[int, ...]:
        return self.seed, SPLITS.index(self.split), self._checked(index), self.side

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(f"expected an index of 0 to {self.length - 1}, got {index}")
        return index


# A loader asks for image and target of an index in turn: the scene is then arranged once.
_arrange = lru_cache(maxsize=4)(scenes.arrange)


def open_synthetic(text: str, *, seed: int = 0, size: int = DEFAULT_SIZE) -> SyntheticDataset:
    """The split that a text such as "train" or "val:100" (100 images) names; else DataError.

    >>> len(open_synthetic("train")), len(open_synthetic("val:100"))
    (2000, 100)
    """
    match = re.fullmatch(r"(train|val)(?::([0-9]{1,9}))?", text)
    if match is None:
        raise _unknown_split(text)
    split: SplitName = "train" if match[1] == "train" else "val"
    length = DEFAULT_LENGTHS[split] if match[2] is None else int(match[2])
    return SyntheticDataset(split, length, seed=seed, size=size)


def _unknown_split(value: object) -> Exception:
    return data_error(
        "split-unknown",
        file="synthetic",
        field="split",
        value=value,
        detail="There are train and val, also with a number of images, such as train:500.",
    )
