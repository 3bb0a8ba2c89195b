"""A short text that differs when the data differ: whether a run may be continued with them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

import numpy as np
import torch

from rankdet.data.chosen import ChosenImages
from rankdet.data.dataset import DetectionDataset, FileDataset
from rankdet.data.reading.annotations import Annotations
from rankdet.data.synthetic.dataset import SyntheticDataset

_LENGTH = 16  # hexadecimal digits: 64 bits
_DRAWN = 32  # images of the embedded set that are looked at: all are drawn by the same rules


def fingerprint(dataset: DetectionDataset) -> str:
    """16 hexadecimal digits of the classes, the names and sizes of the images, and their objects.

    The same on every machine and wherever the files lie: of a name only the last part counts. The
    pixels do not count: reading them all would take minutes.

    >>> fingerprint(SyntheticDataset("val", 2)) == fingerprint(SyntheticDataset("val", 2))
    True
    >>> fingerprint(SyntheticDataset("val", 2)) == fingerprint(SyntheticDataset("val", 3))
    False
    """
    digest = hashlib.sha256()
    for part in _parts(dataset):
        # With its length: else what moves from the end of one part to the next goes unnoticed.
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:_LENGTH]


def _parts(dataset: DetectionDataset) -> Iterator[bytes]:
    """All that counts, each thing as bytes that do not depend on the machine."""
    if isinstance(dataset, SyntheticDataset):
        settings = (dataset.split, dataset.length, dataset.seed, dataset.side)
        yield repr(settings).encode()
        split, length, seed, side = settings
        dataset = SyntheticDataset(split, min(length, _DRAWN), seed=seed, size=side)
    held = _annotations(dataset)
    names, arrays = _arrays(dataset) if held is None else _arrays_of_files(held)
    yield len(dataset.classes).to_bytes(8, "little")
    yield from (name.encode() for name in dataset.classes)
    yield len(dataset).to_bytes(8, "little")
    yield from map(os.path.basename, names)
    for kind, array in zip(("<i8", "<i8", "<f4", "<i8", "u1"), arrays, strict=True):
        yield np.ascontiguousarray(array, dtype=kind).tobytes()


# What both of these give: names, and sizes (N, 2) as (height, width), counts (N,) of objects,
# boxes (M, 4), labels (M,) and is_ignored (M,) of all objects.
_Arrays = tuple[list[bytes], tuple[np.ndarray, ...]]


def _annotations(dataset: DetectionDataset) -> Annotations | None:
    """The arrays that a data set of files holds, or of the images that were chosen of one."""
    if isinstance(dataset, ChosenImages):
        whole = _annotations(dataset.base)
        return None if whole is None else whole.take(np.asarray(dataset.indices, dtype=np.int64))
    return dataset.annotations if isinstance(dataset, FileDataset) else None


def _arrays_of_files(held: Annotations) -> _Arrays:
    """From the arrays themselves: no image is asked for by its number."""
    arrays = (held.sizes[:, ::-1], np.diff(held.offsets), held.boxes, held.labels, held.is_ignored)
    return held.paths.tolist(), arrays


def _arrays(dataset: DetectionDataset) -> _Arrays:
    indices = range(len(dataset))
    targets = [dataset.target(index) for index in indices]

    def joined(name: str, shape: tuple[int, ...]) -> np.ndarray:
        tensors = [getattr(target, name) for target in targets]
        return (torch.cat(tensors) if tensors else torch.empty(0)).reshape(shape).numpy()

    sizes = np.array([dataset.size(index) for index in indices]).reshape(-1, 2)
    counts = np.array([len(target) for target in targets])
    objects = (joined("boxes", (-1, 4)), joined("labels", (-1,)), joined("is_ignored", (-1,)))
    return [os.fsencode(dataset.name(index)) for index in indices], (sizes, counts, *objects)
