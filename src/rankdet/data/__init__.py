"""Data sets: VOC, COCO and YOLO files and an embedded set, read, judged, augmented and loaded.

The names below are imported when they are first used, so that reading annotations does not wait
for torch.

>>> from rankdet.data import DataError, read_split
>>> try:
...     read_split("no/such/folder", "train")
... except DataError as error:
...     print(error)
no/such/folder: there is no such file or folder. Check the path.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in _HOME, for type checkers and editors
    from rankdet.data.augmentation.batched import (
        BatchedFlipResize,
        BatchedFlipScaleJitter,
        BatchedSSDAugmentation,
    )
    from rankdet.data.augmentation.parameters import JitterSettings, SSDSettings
    from rankdet.data.augmentation.store import ImageStore
    from rankdet.data.augmentation.transforms import (
        FlipResize,
        FlipScaleJitter,
        ResizeFixed,
        ResizeShorter,
        SSDAugmentation,
        WithoutIgnored,
        without_ignored,
    )
    from rankdet.data.dataset import DetectionDataset, FileDataset, open_dataset
    from rankdet.data.loading.collate import Batch
    from rankdet.data.loading.held import HeldLoader, make_held_loader
    from rankdet.data.loading.loader import Loader, make_loader
    from rankdet.data.reading.choice import choose_splits
    from rankdet.data.reading.formats import read_class_list, read_split, recognise, split_names
    from rankdet.data.synthetic.dataset import SyntheticDataset
    from rankdet.errors import DataError

# Where a public name lives.
_HOME = {
    "BatchedFlipResize": "rankdet.data.augmentation.batched",
    "BatchedFlipScaleJitter": "rankdet.data.augmentation.batched",
    "BatchedSSDAugmentation": "rankdet.data.augmentation.batched",
    "ImageStore": "rankdet.data.augmentation.store",
    "JitterSettings": "rankdet.data.augmentation.parameters",
    "SSDSettings": "rankdet.data.augmentation.parameters",
    "FlipResize": "rankdet.data.augmentation.transforms",
    "FlipScaleJitter": "rankdet.data.augmentation.transforms",
    "ResizeFixed": "rankdet.data.augmentation.transforms",
    "ResizeShorter": "rankdet.data.augmentation.transforms",
    "SSDAugmentation": "rankdet.data.augmentation.transforms",
    "WithoutIgnored": "rankdet.data.augmentation.transforms",
    "without_ignored": "rankdet.data.augmentation.transforms",
    "DetectionDataset": "rankdet.data.dataset",
    "FileDataset": "rankdet.data.dataset",
    "open_dataset": "rankdet.data.dataset",
    "Batch": "rankdet.data.loading.collate",
    "HeldLoader": "rankdet.data.loading.held",
    "make_held_loader": "rankdet.data.loading.held",
    "Loader": "rankdet.data.loading.loader",
    "make_loader": "rankdet.data.loading.loader",
    "choose_splits": "rankdet.data.reading.choice",
    "read_class_list": "rankdet.data.reading.formats",
    "read_split": "rankdet.data.reading.formats",
    "recognise": "rankdet.data.reading.formats",
    "split_names": "rankdet.data.reading.formats",
    "SyntheticDataset": "rankdet.data.synthetic.dataset",
    "DataError": "rankdet.errors",
}

__all__ = [
    "Batch",
    "BatchedFlipResize",
    "BatchedFlipScaleJitter",
    "BatchedSSDAugmentation",
    "DataError",
    "DetectionDataset",
    "FileDataset",
    "FlipResize",
    "FlipScaleJitter",
    "HeldLoader",
    "ImageStore",
    "JitterSettings",
    "Loader",
    "ResizeFixed",
    "ResizeShorter",
    "SSDAugmentation",
    "SSDSettings",
    "SyntheticDataset",
    "WithoutIgnored",
    "choose_splits",
    "make_held_loader",
    "make_loader",
    "open_dataset",
    "read_class_list",
    "read_split",
    "recognise",
    "split_names",
    "without_ignored",
]


def __getattr__(name: str) -> Any:
    """The public name, imported now and kept."""
    if name not in _HOME:
        raise AttributeError(f"module 'rankdet.data' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The names that can be asked for, imported already or not."""
    return sorted(set(globals()) | set(__all__))
