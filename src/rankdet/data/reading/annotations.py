"""From what a format's reader has parsed to boxes that can be trusted, packed into few arrays.

The readers (VOC, COCO, YOLO) turn files into `RawImage`s and know nothing of the rules for boxes;
`assemble` applies the rules, the same for all formats, and keeps the counts.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rankdet.data.reading import images
from rankdet.data.reading.findings import Finding, Findings
from rankdet.errors import DataError

Corners = tuple[float, float, float, float]

_MANY_BOXES = 1000
_ROUNDING = 0.02  # pixels over the edge that come from two decimals in a file: not worth a note
_SMALLEST_AREA = 1e-30  # square pixels: less is soon no area in float32
_SMALLEST_INSIDE = 0.5  # of a box's area: with less inside of the image, the box is dropped


@dataclass
class RawObject:
    """One object as a file gives it. corners: (left, top, right, bottom), edges counted from 0.

    area: above 0, or None where the file gives none.
    """

    corners: Corners
    label: int
    is_ignored: bool = False
    area: float | None = None
    where: int | str = ""


@dataclass
class RawImage:
    """One image as the annotations give it.

    path: the image file. file, where: the annotation, for messages. declared_size: (width, height).
    is_fraction: whether the corners are fractions of the image's size instead of pixels.
    num_dropped: objects of the image that the reader has left out.
    """

    path: Path
    file: str
    image_id: int
    where: int | str = ""
    declared_size: tuple[int, int] | None = None
    objects: list[RawObject] = field(default_factory=list)
    is_fraction: bool = False
    num_dropped: int = 0


@dataclass(frozen=True)
class Annotations:
    """N images with M boxes in all. Arrays only: worker processes share or copy them in no time.

    paths (N,) bytes; image_ids (N,) int64; sizes (N, 2) int32 as (width, height); the objects of
    image i are rows offsets[i] to offsets[i + 1] of boxes (M, 4) float32 xyxy, labels (M,) int64,
    is_ignored (M,) bool and areas (M,) float32.
    """

    paths: np.ndarray
    image_ids: np.ndarray
    sizes: np.ndarray
    offsets: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray
    is_ignored: np.ndarray
    areas: np.ndarray

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> Path:
        return Path(os.fsdecode(self.paths[index]))

    def rows(self, index: int) -> slice:
        """Where the objects of an image stand in boxes, labels, is_ignored and areas."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def take(self, indices: np.ndarray) -> Annotations:
        """Those images alone, in that order; `indices` may be a mask."""
        starts, lengths = self.offsets[:-1][indices], np.diff(self.offsets)[indices]
        offsets = _offsets(lengths)
        rows = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Annotations(
            paths=self.paths[indices],
            image_ids=self.image_ids[indices],
            sizes=self.sizes[indices],
            offsets=offsets,
            **{name: getattr(self, name)[rows] for name in _OBJECT_FIELDS},
        )

    @staticmethod
    def concatenate(parts: list[Annotations]) -> Annotations:
        """All images of all parts. Image ids are numbered anew if two images share one."""
        starts = np.cumsum([0] + [len(part.boxes) for part in parts])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=False)]
        joined = {
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("paths", "image_ids", "sizes", *_OBJECT_FIELDS)
        }
        if len(np.unique(joined["image_ids"])) < len(joined["image_ids"]):
            joined["image_ids"] = np.arange(len(joined["image_ids"]), dtype=np.int64)
        return Annotations(offsets=np.concatenate([*offsets, starts[-1:]]), **joined)


_OBJECT_FIELDS = ("boxes", "labels", "is_ignored", "areas")


def _offsets(lengths: np.ndarray) -> np.ndarray:
    """Where each image's objects begin, and where the last image's end: (N + 1,) int64."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])


@dataclass
class _Objects:
    """The kept objects as they are stored: a tuple for each would need ten times the memory."""

    boxes: array[float] = field(default_factory=lambda: array("f"))
    labels: array[int] = field(default_factory=lambda: array("q"))
    is_ignored: bytearray = field(default_factory=bytearray)
    areas: array[float] = field(default_factory=lambda: array("f"))

    def __len__(self) -> int:
        return len(self.labels)

    def append(self, box: Corners, item: RawObject) -> None:
        left, top, right, bottom = box
        self.boxes.extend(box)
        self.labels.append(item.label)
        self.is_ignored.append(item.is_ignored)
        self.areas.append((right - left) * (bottom - top) if item.area is None else item.area)


def assemble(
    raw_images: Iterable[RawImage],
    findings: Findings,
    *,
    is_annotated: bool = True,
    max_pixels: int = images.MAX_PIXELS,
    on_image: Callable[[], None] | None = None,
) -> Annotations:
    """The images whose header can be read, with the boxes that keep the rules; the rest is counted.

    is_annotated: False for a test set, where that an image has no objects is nothing to note.
    on_image is called after every image (for a progress bar). Images and objects are counted as
    seen here; a reader that leaves out an image or object counts it itself (`Findings`).
    """
    paths: list[bytes] = []
    image_ids: list[int] = []
    sizes: list[tuple[int, int]] = []
    counts: list[int] = []
    objects = _Objects()
    for raw in raw_images:
        findings.images.seen += 1
        findings.objects.seen += len(raw.objects)
        size = _real_size(raw, findings, max_pixels)
        if size is not None:
            num_kept = _keep_objects(raw, size, objects, findings)
            if is_annotated and not num_kept:
                code = "all-objects-dropped" if raw.objects or raw.num_dropped else "no-objects"
                findings.add(Finding.of(code, file=raw.file, where=raw.where))
            counts.append(num_kept)
            paths.append(os.fsencode(raw.path))
            image_ids.append(raw.image_id)
            sizes.append(size)
        if on_image is not None:
            on_image()
    findings.images.used += len(paths)
    findings.objects.used += len(objects)
    findings.num_ignored += sum(objects.is_ignored)
    return Annotations(
        paths=np.array(paths, dtype=np.bytes_),
        image_ids=np.array(image_ids, dtype=np.int64),
        sizes=np.array(sizes, dtype=np.int32).reshape(-1, 2),
        offsets=_offsets(np.array(counts, dtype=np.int64)),
        boxes=np.array(objects.boxes, dtype=np.float32).reshape(-1, 4),
        labels=np.array(objects.labels, dtype=np.int64),
        is_ignored=np.array(objects.is_ignored, dtype=np.bool_),
        areas=np.array(objects.areas, dtype=np.float32),
    )


def _real_size(raw: RawImage, findings: Findings, max_pixels: int) -> tuple[int, int] | None:
    """(width, height) of the image file, or None and a finding if the image cannot be used."""
    try:
        header = images.read_header(raw.path, max_pixels)
    except DataError as error:
        findings.skip_image(Finding.from_error(error), len(raw.objects))
        return None
    for note in images.image_findings(raw.path, header):
        findings.add(note)
    size = (header.width, header.height)
    if raw.declared_size is not None and raw.declared_size != size:
        detail = f"The image {raw.path} is {size[0]} x {size[1]}."
        if header.orientation >= 5:
            detail += f" It has EXIF orientation {header.orientation}: save it rotated."
        findings.skip_image(
            Finding.of(
                "image-size-differs",
                file=raw.file,
                where=raw.where,
                field="size",
                value=raw.declared_size,
                detail=detail,
            ),
            len(raw.objects),
        )
        return None
    return size


def _keep_objects(
    raw: RawImage, size: tuple[int, int], objects: _Objects, findings: Findings
) -> int:
    """How many objects of one image keep the rules for boxes; these are added to `objects`."""
    if len(raw.objects) > _MANY_BOXES:
        value = len(raw.objects)
        findings.add(
            Finding.of("box-count", file=raw.file, where=raw.where, field="boxes", value=value)
        )
    num_before = len(objects)
    for item in raw.objects:
        corners = item.corners
        if raw.is_fraction:
            width, height = size
            left, top, right, bottom = corners
            corners = (left * width, top * height, right * width, bottom * height)
        code, clipped = judge_box(corners, size)
        finding = None
        if code is not None:
            shown = tuple(round(edge, 6) for edge in item.corners)  # 240.01000000000002 is 240.01
            finding = Finding.of(code, file=raw.file, where=item.where, field="box", value=shown)
        if clipped is None:
            assert finding is not None
            findings.drop_object(finding)
            continue
        if finding is not None:
            findings.add(finding)
            findings.num_clipped += 1
        objects.append(clipped, item)
    return len(objects) - num_before


def judge_box(corners: Corners, size: tuple[int, int]) -> tuple[str | None, Corners | None]:
    """(code of the rule that the box breaks or None, the box to use or None).

    >>> judge_box((10.0, 10.0, 20.0, 30.0), (100, 50))
    (None, (10.0, 10.0, 20.0, 30.0))
    >>> judge_box((90.0, 10.0, 105.0, 30.0), (100, 50))
    ('box-clipped', (90.0, 10.0, 100.0, 30.0))
    >>> judge_box((20.0, 10.0, 10.0, 30.0), (100, 50))
    ('box-swapped', None)
    """
    left, top, right, bottom = corners
    if not math.isfinite(left + top + right + bottom) and not all(map(math.isfinite, corners)):
        return "box-not-finite", None
    if right < left or bottom < top:
        return "box-swapped", None
    if right == left or bottom == top:
        return "box-zero-area", None
    width, height = float(size[0]), float(size[1])
    inside = (
        min(max(left, 0.0), width),
        min(max(top, 0.0), height),
        min(max(right, 0.0), width),
        min(max(bottom, 0.0), height),
    )
    area_inside = (inside[2] - inside[0]) * (inside[3] - inside[1])
    if not area_inside >= _SMALLEST_INSIDE * (right - left) * (bottom - top):
        return "box-outside", None
    # As the box is stored: a width of 1e-9 pixels far from 0 is no width in float32.
    stored = array("f", inside)
    if not (stored[2] - stored[0]) * (stored[3] - stored[1]) > _SMALLEST_AREA:
        return "box-zero-area", None
    if inside == corners:
        return None, inside
    overflow = max(abs(a - b) for a, b in zip(inside, corners, strict=True))
    return ("box-clipped" if overflow > _ROUNDING else None), inside
