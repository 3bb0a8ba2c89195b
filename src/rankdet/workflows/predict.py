"""Detections in a user's own images: pictures with boxes, and files for other programs."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankdet import __version__
from rankdet.data.processors import usual_num_workers
from rankdet.data.reading.images import EXTENSIONS, decode
from rankdet.errors import (
    DataError,
    RankdetError,
    counted,
    listed,
    printable,
    system_reason,
)
from rankdet.output import refuse_foreign, write_whole
from rankdet.progress import progress
from rankdet.structures import Detections
from rankdet.workflows import pictures
from rankdet.workflows.load import TrainedDetector, load

PICTURES = "pictures"
JSON_FILE = "detections.json"
CSV_FILE = "detections.csv"
FORMATS = ("json", "csv", "both")

_JSON_MARK = "detections by rankdet"
_CSV_HEADER = ("file", "class", "score", "x1", "y1", "x2", "y2")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # with these a spreadsheet's formula begins
_LONGEST_STEM = 200  # bytes of a file's name; systems allow 255 with suffix
_MOST_CLASSES = 10  # that the summary names


def predict(
    run: Path,
    images: Sequence[Path],
    out: Path,
    *,
    threshold: float | None = None,
    checkpoint: str = "best",
    format: str = "both",
    with_pictures: bool = True,
    batch_size: int | None = None,
    device: str | None = None,
    is_forced: bool = False,
) -> None:
    """Detect in the images, write the results into the folder `out` and print a summary.

    images: files, and folders of which the images are taken (not those of folders inside). Written
    are out/pictures/NAME.jpg, out/detections.json (COCO format) and out/detections.csv; former ones
    of ours are replaced, other files never, unless is_forced. threshold: the lowest score; None:
    that of each class. format: "json", "csv" or "both". An image that cannot be read is told and
    left out; in the end there is then a RankdetError.
    """
    if format not in FORMATS:
        raise ValueError(f"format: expected one of {FORMATS}, got {format!r}")
    entries = name_entries(find_images(images))
    outputs = _outputs(out, entries, format, with_pictures)
    _check_outputs(out, outputs, entries, is_forced)
    trained = load(run, checkpoint=checkpoint, device=device)
    if threshold is None:
        for note in trained.notes:
            print(f"note: {note}", file=sys.stderr)
    results = _detect_all(trained, entries, threshold, batch_size, out if with_pictures else None)
    if format != "csv":
        content = coco_content(results.found, trained, threshold, run)
        write_whole(out / JSON_FILE, (json.dumps(content, indent=1) + "\n").encode())
    if format != "json":
        write_whole(out / CSV_FILE, csv_content(results.found, trained.classes))
    _report(results, trained, outputs, threshold)


@dataclass(frozen=True)
class Entry:
    """An image to look at. name: in our files; picture: the name of its picture."""

    path: Path
    name: str
    picture: str


@dataclass(frozen=True)
class Found:
    """What was found in an image of this (height, width)."""

    entry: Entry
    size: tuple[int, int]
    detections: Detections


@dataclass
class Results:
    """What was found, and which images could not be read."""

    found: list[Found] = field(default_factory=list)
    failures: list[DataError] = field(default_factory=list)


def find_images(given: Iterable[Path]) -> list[Path]:
    """The files as they are, and the images of each folder, sorted by name; each file once.

    Of a folder, files count that have a suffix of an image and are not hidden. DataError if a
    folder has none, or cannot be read.
    """
    found: list[Path] = []
    for path in given:
        found += _images_in(path) if path.is_dir() else [path]
    first: dict[Path, Path] = {}
    for path in found:
        first.setdefault(_absolute(path), path)
    return list(first.values())


def _absolute(path: Path) -> Path:
    """From the root, without `..`; links are not followed: an image keeps the name of its link."""
    return Path(os.path.normpath(path.absolute()))


def _images_in(folder: Path) -> list[Path]:
    try:
        files = sorted(folder.iterdir())
    except OSError as error:
        reason = f"{system_reason(error)}."
        raise DataError("the folder cannot be read", file=str(folder), detail=reason) from error
    images = [
        file
        for file in files
        if not file.name.startswith(".") and file.suffix.lower() in EXTENSIONS and not file.is_dir()
    ]
    if not images:
        raise DataError(
            "there is no image in the folder",
            file=str(folder),
            detail=f"Files count that end with {', '.join(EXTENSIONS)}.",
            hint="Folders inside are not searched: give them by name.",
        )
    return images


def name_entries(paths: Sequence[Path]) -> list[Entry]:
    """The images with names: relative to the folder that holds them all; a picture for each.

    >>> [(entry.name, entry.picture) for entry in name_entries([Path("x/a.jpg"), Path("x/a.png")])]
    [('a.jpg', 'a.jpg'), ('a.png', 'a-2.jpg')]
    """
    if not paths:
        raise RankdetError("there is no image to look at. Give files or folders.")
    absolute = [_absolute(path) for path in paths]
    folder = os.path.commonpath([path.parent for path in absolute])
    entries = []
    taken: set[str] = set()
    for path, place in zip(paths, absolute, strict=True):
        stem = _shortened(place.stem)
        number, picture = 1, f"{stem}.jpg"
        while picture.lower() in taken:  # some systems take A.jpg and a.jpg for one file
            number += 1
            picture = f"{stem}-{number}.jpg"
        taken.add(picture.lower())
        entries.append(Entry(path, place.relative_to(folder).as_posix(), picture))
    return entries


def _shortened(stem: str) -> str:
    while len(os.fsencode(stem)) > _LONGEST_STEM:
        stem = stem[:-1]
    return stem


def _outputs(
    out: Path, entries: Sequence[Entry], format: str, with_pictures: bool
) -> dict[Path, str]:
    """Every file that will be written, with the mark that one of ours has."""
    outputs = {}
    if format != "csv":
        outputs[out / JSON_FILE] = _JSON_MARK
    if format != "json":
        outputs[out / CSV_FILE] = ",".join(_CSV_HEADER)
    if with_pictures:
        outputs |= {out / PICTURES / entry.picture: pictures.MARK for entry in entries}
    return outputs


def _check_outputs(
    out: Path, outputs: dict[Path, str], entries: Sequence[Entry], is_forced: bool
) -> None:
    """RankdetError if the folder cannot be used, or something of the user's would be lost."""
    try:
        for folder in {path.parent for path in outputs} | {out}:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = system_reason(error)
        raise RankdetError(f"{out}: the folder cannot be made: {reason}.") from error
    inputs = {os.path.realpath(entry.path) for entry in entries}
    for path, mark in outputs.items():
        if os.path.realpath(path) in inputs:
            raise RankdetError(f"{path}: this is one of the images. Give another folder for --out.")
        refuse_foreign(path, mark, is_forced)


def _detect_all(
    trained: TrainedDetector,
    entries: Sequence[Entry],
    threshold: float | None,
    batch_size: int | None,
    out: Path | None,
) -> Results:
    """Every image through the detector; out: where pictures are written, None for none."""
    results = Results()
    step = trained.config.evaluation.batch_size if batch_size is None else batch_size
    with progress("Detecting") as meter:
        meter.expect(len(entries))
        for chunk in _decoded(entries, step, trained.config.data.max_pixels):
            good = [(entry, pixels) for entry, pixels in chunk if isinstance(pixels, np.ndarray)]
            results.failures += [error for _, error in chunk if isinstance(error, DataError)]
            tensors = [torch.from_numpy(pixels).permute(2, 0, 1) for _, pixels in good]
            all_detections = trained.predict(tensors, threshold, batch_size=step)
            for (entry, pixels), detections in zip(good, all_detections, strict=True):
                height, width = pixels.shape[:2]
                results.found.append(Found(entry, (height, width), detections))
                if out is not None:
                    image = pictures.picture(pixels, detections, trained.classes)
                    write_whole(out / PICTURES / entry.picture, pictures.jpeg(image))
            meter.advance(len(chunk))
    return results


_Decoded = tuple[Entry, np.ndarray | DataError]


def _decoded(entries: Sequence[Entry], step: int, max_pixels: int) -> Iterator[list[_Decoded]]:
    """The images in groups, each with its pixels or the reason why there are none.

    Threads decode the next group while the detector looks at this one.
    """

    def read(entry: Entry) -> _Decoded:
        try:
            return entry, decode(entry.path, max_pixels)
        except DataError as error:
            return entry, error

    with ThreadPoolExecutor(max(1, usual_num_workers(most=8))) as pool:
        ahead: Iterator[_Decoded] = iter(())
        for start in range(0, len(entries), step):
            group = list(ahead)
            ahead = pool.map(read, entries[start : start + step])
            if group:
                yield group
        yield list(ahead)


def coco_content(
    found: Sequence[Found], trained: TrainedDetector, threshold: float | None, run: Path
) -> dict[str, Any]:
    """The detections as COCO writes annotations, with a score each; ids count from 1."""
    lowest = trained.class_thresholds(threshold)
    annotations: list[dict[str, Any]] = []
    for image_id, item in enumerate(found, start=1):
        for box, score, label in _rows(item.detections):
            x1, y1, x2, y2 = box
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image_id,
                    "category_id": trained.category_ids[label],
                    "bbox": [x1, y1, round(x2 - x1, 3), round(y2 - y1, 3)],
                    "area": round((x2 - x1) * (y2 - y1), 3),
                    "score": score,
                    "iscrowd": 0,
                }
            )
    categories = zip(trained.category_ids, trained.classes, strict=True)
    return {
        "info": {
            "description": _JSON_MARK,
            "version": __version__,
            "run": str(run),
            "checkpoint": trained.checkpoint.name,
            "thresholds": dict(zip(trained.classes, lowest, strict=True)),
        },
        "images": [
            {
                "id": image_id,
                "file_name": item.entry.name,
                "width": item.size[1],
                "height": item.size[0],
            }
            for image_id, item in enumerate(found, start=1)
        ],
        "categories": [{"id": number, "name": name} for number, name in categories],
        "annotations": annotations,
    }


def csv_content(found: Sequence[Found], classes: Sequence[str]) -> bytes:
    """A line for each detection under a heading.

    A name that a spreadsheet would take for a formula is changed: a file gets ./ in front of it,
    which is still the same file, and a class an apostrophe.
    """
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(_CSV_HEADER)
    for item in found:
        file = item.entry.name
        file = f"./{file}" if file.startswith(_FORMULA) else file
        for box, score, label in _rows(item.detections):
            name = classes[label]
            writer.writerow([file, f"'{name}" if name.startswith(_FORMULA) else name, score, *box])
    # Bytes of a file's name that are no UTF-8 stay as they are: the file can then be found.
    return stream.getvalue().encode("utf-8", "surrogateescape")


def _rows(detections: Detections) -> Iterator[tuple[list[float], float, int]]:
    """Box, score and label of each, in numbers of a sensible length."""
    columns = (detections.boxes, detections.scores, detections.labels)
    for box, score, label in zip(*(column.tolist() for column in columns), strict=True):
        # Nine digits are all of a float32: ranking losses leave scores that differ in the last.
        yield [round(edge, 3) for edge in box], float(f"{score:.9g}"), label


def _report(
    results: Results, trained: TrainedDetector, outputs: dict[Path, str], threshold: float | None
) -> None:
    """Print what was found and where it is; RankdetError if images could not be read."""
    counts = Counter(label for item in results.found for label in item.detections.labels.tolist())
    classes = [f"{printable(trained.classes[label])} {n}" for label, n in counts.most_common()]
    print(
        f"{counted(len(results.found), 'image')}, {counted(counts.total(), 'detection')}"
        + (f": {listed(classes, _MOST_CLASSES)}." if classes else ".")
    )
    if not counts and threshold is not None:
        print(f"No score reaches {threshold:g}: leave out --threshold for that of each class.")
    places = sorted({path.parent if path.suffix == ".jpg" else path for path in outputs})
    print(f"Written: {', '.join(map(str, places))}")
    for error in results.failures:
        print(f"left out: {error}", file=sys.stderr)
    if results.failures:
        num_images = len(results.failures) + len(results.found)
        raise RankdetError(
            f"{len(results.failures)} of {counted(num_images, 'image')} could not be read (see "
            "above). The results of the others are complete."
        )
