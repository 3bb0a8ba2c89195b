"""Complete data sets in the formats that we read: VOC, COCO and YOLO.

Images are PNG files, so that their pixels come back as they were. All three formats come back to
the same images, classes, labels and boxes, VOC and COCO also to the same ignored objects (difficult
or crowd). YOLO has no such mark: there an ignored object becomes an ordinary one, because without
its box it would count as background. The same data give the same bytes: no times, no paths.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import yaml
from PIL import Image

from rankdet.data.reading.classes import checked_classes
from rankdet.data.reading.findings import data_error
from rankdet.data.synthetic import scenes
from rankdet.errors import system_reason

if TYPE_CHECKING:  # torch takes seconds to import
    from rankdet.data.dataset import DetectionDataset
    from rankdet.structures import Target

_SPLIT_NAME = re.compile(r"[A-Za-z0-9_-]+")
_YOLO_SPLITS = ("train", "val", "test")
# What XML cannot hold, what ends a line, and the mark that is dropped at the start of a file.
_NOT_IN_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufeff\ufffe\uffff]")

_OnImage = Callable[[], None]


def synthesise(
    out: Path | str,
    format: str,
    *,
    train: int = 2000,
    val: int = 500,
    seed: int = 0,
    size: int = scenes.DEFAULT_SIZE,
    on_start: Callable[[int], None] | None = None,
    on_image: _OnImage | None = None,
) -> None:
    """Write the embedded data set: `train` and `val` images. A split of 0 images is left out."""
    from rankdet.data.synthetic.dataset import SyntheticDataset

    datasets: dict[str, DetectionDataset] = {
        "train": SyntheticDataset("train", train, seed=seed, size=size),
        "val": SyntheticDataset("val", val, seed=seed, size=size),
    }
    datasets = {split: dataset for split, dataset in datasets.items() if len(dataset)}
    write_dataset(datasets, out, format, on_start=on_start, on_image=on_image)


def write_dataset(
    datasets: Mapping[str, DetectionDataset],
    out: Path | str,
    format: str,
    *,
    on_start: Callable[[int], None] | None = None,
    on_image: _OnImage | None = None,
) -> None:
    """Write all splits (by name) as one data set of a format: "voc", "coco" or "yolo".

    `out` is a new or an empty folder, otherwise DataError. It appears when everything is written;
    until then the files are in a hidden folder beside it, which is removed if something fails.
    on_start is called with the number of images, then on_image as many times.
    """
    out = Path(out)
    writers = {"voc": _write_voc, "coco": _write_coco, "yolo": _write_yolo}
    if format not in writers:
        raise ValueError(f"format: expected one of {', '.join(writers)}, got {format!r}")
    _check(datasets, out)
    if format == "yolo" and not set(datasets) <= set(_YOLO_SPLITS):
        expected = ", ".join(_YOLO_SPLITS)
        raise ValueError(f"split: YOLO has {expected} only, got {', '.join(datasets)}")
    with _appearing_folder(out) as folder:
        if on_start is not None:
            on_start(sum(len(dataset) for dataset in datasets.values()))
        writers[format](datasets, folder, on_image or (lambda: None))


def _check(datasets: Mapping[str, DetectionDataset], out: Path) -> None:
    """Whether these can be written together; ValueError or DataError if not."""
    if not datasets:
        raise ValueError("datasets: expected at least one split with images, got none")
    first_split, first = next(iter(datasets.items()))
    for split, dataset in datasets.items():
        if not _SPLIT_NAME.fullmatch(split):
            raise ValueError(f"split: expected a name of letters, digits, - and _, got {split!r}")
        if not dataset.is_annotated:
            raise ValueError(f"split: expected annotated images, but {split!r} has none")
        if dataset.classes != first.classes:
            detail = f"{first_split!r} and {split!r} do."
            raise data_error(
                "classes-differ", file=out, field="classes", value=dataset.classes, detail=detail
            )
    for name in checked_classes(first.classes, file=out):
        if name != name.strip() or _NOT_IN_NAMES.search(name):
            detail = "Not every format can hold space around a name, line breaks and the like."
            raise data_error("classes-invalid", file=out, field="class", value=name, detail=detail)


@contextmanager
def _appearing_folder(out: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `out` at the end, or vanishes if there is an error."""
    out = Path(os.path.realpath(out))
    try:
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            detail = "" if out.is_dir() else "It is a file."
            raise data_error("out-not-empty", file=out, detail=detail)
        out.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(tempfile.mkdtemp(prefix=".rankdet-", dir=out.parent))
        try:
            # One level deeper, since only the owner may enter a folder that mkdtemp makes.
            folder = hidden / "data"
            folder.mkdir()
            yield folder
            folder.rename(out)  # an empty folder is replaced, one that has been filled is not
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
    except OSError as error:
        detail = f"The system says: {system_reason(error)}."
        raise data_error("out-unwritable", file=out, detail=detail) from error


def _write_voc(datasets: Mapping[str, DetectionDataset], folder: Path, on_image: _OnImage) -> None:
    classes = next(iter(datasets.values())).classes
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    _write_text(folder / "classes.txt", "".join(f"{name}\n" for name in classes))
    for split, dataset in datasets.items():
        ids = [f"{split}_{_stem(index)}" for index in range(len(dataset))]
        for index, image_id in enumerate(ids):
            _write_image(folder / "JPEGImages" / f"{image_id}.png", dataset, index)
            root = _voc_annotation(f"{image_id}.png", dataset.target(index), classes)
            ElementTree.indent(root)
            text = ElementTree.tostring(root, encoding="unicode")
            _write_text(folder / "Annotations" / f"{image_id}.xml", f"{text}\n")
            on_image()
        lines = "".join(f"{image_id}\n" for image_id in ids)
        _write_text(folder / "ImageSets" / "Main" / f"{split}.txt", lines)


def _voc_annotation(
    file_name: str, target: Target, classes: tuple[str, ...]
) -> ElementTree.Element:
    """The element <annotation> of an image. VOC counts pixels from 1 and includes the last one."""
    height, width = target.size
    root = ElementTree.Element("annotation")
    _add(root, "folder", "JPEGImages")
    _add(root, "filename", file_name)
    size = _add(root, "size")
    for name, value in (("width", width), ("height", height), ("depth", 3)):
        _add(size, name, value)
    _add(root, "segmented", 0)
    for (left, top, right, bottom), label, is_ignored in _objects(target):
        item = _add(root, "object")
        _add(item, "name", classes[label])
        _add(item, "pose", "Unspecified")
        _add(item, "truncated", 0)
        _add(item, "difficult", int(is_ignored))
        box = _add(item, "bndbox")
        corners = {"xmin": left + 1, "ymin": top + 1, "xmax": right, "ymax": bottom}
        for name, side in corners.items():
            _add(box, name, _plain(side))
    return root


def _add(parent: ElementTree.Element, name: str, value: object = None) -> ElementTree.Element:
    child = ElementTree.SubElement(parent, name)
    child.text = None if value is None else str(value)
    return child


def _write_coco(datasets: Mapping[str, DetectionDataset], folder: Path, on_image: _OnImage) -> None:
    (folder / "annotations").mkdir()
    for split, dataset in datasets.items():
        (folder / split).mkdir()
        category_ids = _category_ids(dataset)
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for index in range(len(dataset)):
            file_name = f"{_stem(index)}.png"
            _write_image(folder / split / file_name, dataset, index)
            target = dataset.target(index)
            height, width = target.size
            images.append(
                {"id": index + 1, "file_name": file_name, "width": width, "height": height}
            )
            for found in _coco_annotations(target, category_ids):
                annotations.append({"id": len(annotations) + 1, "image_id": index + 1, **found})
            on_image()
        categories = [
            {"id": number, "name": name}
            for number, name in zip(category_ids, dataset.classes, strict=True)
        ]
        content = {"images": images, "annotations": annotations, "categories": categories}
        text = json.dumps(content, ensure_ascii=False)
        _write_text(folder / "annotations" / f"instances_{split}.json", f"{text}\n")


def _category_ids(dataset: DetectionDataset) -> tuple[int, ...]:
    """The data set's own ids, or 1, 2, 3... if these do not ascend: COCO orders classes by them."""
    ids = dataset.category_ids
    is_ascending = all(a < b for a, b in itertools.pairwise(ids))
    return ids if is_ascending else tuple(range(1, len(ids) + 1))


def _coco_annotations(target: Target, category_ids: tuple[int, ...]) -> list[dict[str, Any]]:
    areas = target.areas.tolist()
    return [
        {
            "category_id": category_ids[label],
            "bbox": [_plain(side) for side in (left, top, right - left, bottom - top)],
            "area": _plain(area),
            "iscrowd": int(is_ignored),
        }
        for ((left, top, right, bottom), label, is_ignored), area in zip(
            _objects(target), areas, strict=True
        )
    ]


def _write_yolo(datasets: Mapping[str, DetectionDataset], folder: Path, on_image: _OnImage) -> None:
    for split, dataset in datasets.items():
        for part in ("images", "labels"):
            (folder / part / split).mkdir(parents=True)
        for index in range(len(dataset)):
            _write_image(folder / "images" / split / f"{_stem(index)}.png", dataset, index)
            lines = _yolo_lines(dataset.target(index))
            _write_text(folder / "labels" / split / f"{_stem(index)}.txt", lines)
            on_image()
    classes = next(iter(datasets.values())).classes
    # Without `path`, the folders count from the one of this file, wherever it is moved.
    content = {split: f"images/{split}" for split in datasets} | {"names": dict(enumerate(classes))}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    _write_text(folder / "data.yaml", text)


def _yolo_lines(target: Target) -> str:
    """`class x_centre y_centre width height` for each object, as shares of the image's size."""
    height, width = target.size
    lines = []
    for (left, top, right, bottom), label, _ in _objects(target):
        shares = (
            (left + right) / 2 / width,
            (top + bottom) / 2 / height,
            (right - left) / width,
            (bottom - top) / height,
        )
        # With all digits: fewer would bring an edge at 0 back as 0.00000001.
        lines.append(" ".join([str(label), *(repr(share) for share in shares)]) + "\n")
    return "".join(lines)


def _objects(target: Target) -> Iterator[tuple[tuple[float, float, float, float], int, bool]]:
    """(corners, label, is_ignored) of each object."""
    boxes, labels = target.boxes.tolist(), target.labels.tolist()
    for box, label, is_ignored in zip(boxes, labels, target.is_ignored.tolist(), strict=True):
        left, top, right, bottom = box
        yield (left, top, right, bottom), label, is_ignored


def _stem(index: int) -> str:
    """The name of an image's file without its extension."""
    return f"{index:06d}"


def _plain(value: float) -> int | float:
    """12 instead of 12.0: a whole number as VOC and COCO have it."""
    return int(value) if value.is_integer() else value


def _write_image(path: Path, dataset: DetectionDataset, index: int) -> None:
    pixels = dataset.image(index).permute(1, 2, 0).contiguous().numpy()
    Image.fromarray(pixels).save(path, format="PNG")


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
