"""Counts and sizes of a split's images and objects, as plain numbers ready for tables and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rankdet.data.reading.split import Split

PERCENTILES = (1, 10, 50, 90, 99)
SMALL, LARGE = 32.0**2, 96.0**2  # COCO's bounds of an object's area, in pixels


@dataclass(frozen=True)
class Spread:
    """The least, the middle and the greatest of some numbers; None of an empty list."""

    least: float
    median: float
    greatest: float

    @classmethod
    def of(cls, values: np.ndarray) -> Spread | None:
        """
        >>> Spread.of(np.array([4, 1, 3]))
        Spread(least=1.0, median=3.0, greatest=4.0)
        """
        if not len(values):
            return None
        return cls(float(values.min()), float(np.median(values)), float(values.max()))


def image_sizes(split: Split) -> dict[str, Spread | None]:
    """The spread of the images' width and height, and of their number of objects."""
    sizes, offsets = split.annotations.sizes, split.annotations.offsets
    return {
        "width": Spread.of(sizes[:, 0]),
        "height": Spread.of(sizes[:, 1]),
        "objects": Spread.of(np.diff(offsets)),
    }


def num_by_area(split: Split) -> dict[str, int]:
    """How many objects are small, medium and large, as COCO counts them."""
    areas = split.annotations.areas
    num_small, num_large = int((areas < SMALL).sum()), int((areas > LARGE).sum())
    return {"small": num_small, "medium": len(areas) - num_small - num_large, "large": num_large}


def box_sizes(split: Split) -> dict[str, list[float] | None]:
    """Percentiles of the boxes' size: the square root of their area, in pixels and as a fraction.

    The fraction is of the square root of the image's area. None without boxes.
    """
    annotations = split.annotations
    if not len(annotations.boxes):
        return {"pixels": None, "fraction": None}
    left, top, right, bottom = annotations.boxes.astype(np.float64).T
    size = np.sqrt((right - left) * (bottom - top))
    image_size = np.sqrt(annotations.sizes.astype(np.float64).prod(axis=1))
    fraction = size / np.repeat(image_size, np.diff(annotations.offsets))
    return {
        "pixels": np.percentile(size, PERCENTILES).round(2).tolist(),
        "fraction": np.percentile(fraction, PERCENTILES).round(4).tolist(),
    }


@dataclass(frozen=True)
class ClassCount:
    """Objects of one class (num_ignored of them difficult or crowd), and images that hold any."""

    name: str
    num_objects: int
    num_ignored: int
    num_images: int


def class_counts(split: Split) -> list[ClassCount]:
    """One row for each class, in the order of the class list."""
    annotations, num_classes = split.annotations, len(split.classes)
    image_of_object = np.repeat(np.arange(len(annotations)), np.diff(annotations.offsets))
    pairs = np.unique(np.stack([annotations.labels, image_of_object]), axis=1)
    num_objects = np.bincount(annotations.labels, minlength=num_classes)
    ignored_labels = annotations.labels[annotations.is_ignored]
    num_ignored = np.bincount(ignored_labels, minlength=num_classes)
    num_images = np.bincount(pairs[0], minlength=num_classes)
    rows = zip(split.classes, num_objects, num_ignored, num_images, strict=True)
    return [ClassCount(name, int(a), int(b), int(c)) for name, a, b, c in rows]


def as_dict(split: Split) -> dict[str, Any]:
    """Everything above, ready for JSON."""
    return {
        "sizes": {name: _spread_dict(spread) for name, spread in image_sizes(split).items()},
        "objects_by_area": num_by_area(split),
        "box_size_percentiles": {"percentiles": list(PERCENTILES), **box_sizes(split)},
        "classes": [asdict(row) for row in class_counts(split)],
    }


def _spread_dict(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)
