"""A split of a data set, read and judged: numbers and names only, no pixels and no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rankdet.data.reading.annotations import Annotations, RawImage
from rankdet.data.reading.findings import Findings


@dataclass(frozen=True)
class Parsed:
    """What the reader of a format gives: RawImages, in a fixed order, and what holds for them all.

    category_ids: the data set's own number of each class, in the order of classes (COCO ids have
    gaps). is_annotated: False for test sets, whose images have no objects because nobody may know.
    images may be an iterator: it is read once, by `assemble`. num_images: how many it gives.
    """

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    is_annotated: bool
    images: Iterable[RawImage]
    num_images: int


@dataclass(frozen=True)
class Split:
    """A split that is ready for use, whatever its format was."""

    name: str
    format: str
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    is_annotated: bool
    annotations: Annotations
    findings: Findings

    def __len__(self) -> int:
        return len(self.annotations)
