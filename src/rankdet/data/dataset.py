"""Images with their targets by number: the interface that training and evaluation see."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rankdet.data.reading import formats, images
from rankdet.data.reading.findings import Findings, data_error
from rankdet.data.reading.split import Split
from rankdet.structures import Target


class DetectionDataset(Protocol):
    """What every data set offers: files of any format, and the embedded one.

    An image is (3, height, width) uint8 RGB. `size` and `target` do not touch the pixels.
    """

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    is_annotated: bool

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """What messages call the image: its file, or how it was drawn."""

    def size(self, index: int) -> tuple[int, int]:
        """(height, width)."""

    def image(self, index: int) -> Tensor: ...

    def target(self, index: int) -> Target: ...


def open_dataset(
    path: Path | str,
    split: str,
    *,
    format: str | None = None,
    classes: Sequence[str] | None = None,
    allow_outside: bool = False,
    max_pixels: int = images.MAX_PIXELS,
    on_start: Callable[[int], None] | None = None,
    on_image: Callable[[], None] | None = None,
) -> DetectionDataset:
    """A split of a data set, or a sum of splits, ready to be loaded; keywords as of `read_split`.

    The path "synthetic" means the embedded set, with splits such as "train:500"; a folder of that
    name is "./synthetic". What was found wrong with files is in the result's `findings`.
    """
    if path != "synthetic":
        result = formats.read_split(
            path,
            split,
            format=format,
            classes=classes,
            allow_outside=allow_outside,
            max_pixels=max_pixels,
            on_start=on_start,
            on_image=on_image,
        )
        return FileDataset(result, max_pixels)
    if format is not None or classes is not None:
        raise ValueError("the synthetic data set has no other format or classes: expected None")
    from rankdet.data.synthetic.dataset import open_synthetic  # it imports this module

    return open_synthetic(split)


class FileDataset:
    """The images of a split, decoded when they are asked for. Indices are 0 to len - 1.

    findings: what was found when the split was read. A copy for a worker process is mostly arrays:
    of the findings it has the counts, but not the examples, which can be many.
    """

    def __init__(self, split: Split, max_pixels: int = images.MAX_PIXELS) -> None:
        self.classes = split.classes
        self.category_ids = split.category_ids
        self.is_annotated = split.is_annotated
        self.annotations = split.annotations
        self.findings = split.findings
        self.max_pixels = max_pixels

    def __getstate__(self) -> dict[str, Any]:
        counts = Findings()
        counts.merge(self.findings)
        counts.examples.clear()
        return {**self.__dict__, "findings": counts}

    def __len__(self) -> int:
        return len(self.annotations)

    def name(self, index: int) -> str:
        return str(self.annotations.path(self._checked(index)))

    def size(self, index: int) -> tuple[int, int]:
        width, height = self.annotations.sizes[self._checked(index)].tolist()
        return height, width

    def image(self, index: int) -> Tensor:
        """The pixels; DataError if the file cannot be decoded or has changed its size."""
        path = self.annotations.path(self._checked(index))
        pixels = images.decode(path, self.max_pixels)
        height, width = self.size(index)
        if pixels.shape[:2] != (height, width):
            raise data_error(
                "image-size-differs",
                file=path,
                field="size",
                value=(pixels.shape[1], pixels.shape[0]),
                detail=f"It was {width} x {height} when the data set was read.",
            )
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def target(self, index: int) -> Target:
        rows = self.annotations.rows(self._checked(index))
        return Target(
            boxes=torch.from_numpy(self.annotations.boxes[rows].copy()),
            labels=torch.from_numpy(self.annotations.labels[rows].copy()),
            is_ignored=torch.from_numpy(self.annotations.is_ignored[rows].copy()),
            areas=torch.from_numpy(self.annotations.areas[rows].copy()),
            image_id=int(self.annotations.image_ids[index]),
            size=self.size(index),
        )

    def _checked(self, index: int) -> int:
        # A negative index would find the wrong boxes: the rows of -1 are offsets[-1] to offsets[0].
        position = operator.index(index)
        if not 0 <= position < len(self):
            raise IndexError(f"image {position} of {len(self)}: expected 0 to {len(self) - 1}")
        return position
