"""PASCAL VOC: lists of image ids, and for each image an XML file with 1-based, inclusive boxes.

The folder of a year holds JPEGImages, Annotations and ImageSets/Main; a VOCdevkit holds years. Any
class names will do. What stands in an XML file is judged in `voc_xml`; the files are found by
`voc_files`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rankdet.data.reading import voc_xml
from rankdet.data.reading.annotations import RawImage, RawObject
from rankdet.data.reading.classes import did_you_mean, read_class_list
from rankdet.data.reading.findings import Finding, Findings
from rankdet.data.reading.split import Parsed
from rankdet.data.reading.voc_classes import CLASSES, check_given, classes_of
from rankdet.data.reading.voc_files import LOOKED_FOR, Entry, Year, lists_of, locate, years_of
from rankdet.errors import DataError

__all__ = ["CLASSES", "LOOKED_FOR", "matches", "parse", "split_names"]


def matches(path: Path) -> bool:
    """Whether `path` is a VOCdevkit, a folder that holds one, or the folder of one year."""
    return bool(years_of(path))


def split_names(path: Path) -> tuple[str, ...]:
    """`<year>_<list>` for every list of a devkit, `<list>` for the folder of one year.

    The folder of one year answers to `<year>_<list>` too, if its name ends with the year.
    """
    return tuple(prefix + name for prefix, folder in years_of(path) for name in lists_of(folder))


def parse(
    path: Path,
    split: str,
    *,
    classes: tuple[str, ...] | None,
    findings: Findings,
    allow_outside: bool,
) -> Parsed:
    """The images of a split. num_images counts the entries of the list, unusable ones included.

    Without a class list, and without a classes.txt, `classes_of` makes one. A list `test` is
    annotated only if half of its images are: the official test archive brings files for some,
    which belong to other tasks.
    """
    year = locate(path, split, allow_outside)
    num_annotated = year.num_annotated()
    is_test = split.rpartition("_")[2] == "test"
    is_annotated = not is_test or 0 < len(year.entries) <= 2 * num_annotated
    if num_annotated and not is_annotated:
        detail = f"{num_annotated} of {len(year.entries)} images have one."
        findings.add(Finding.of("annotations-unused", file=year.entries[0].file, detail=detail))
    class_file = _class_file(path, year)
    if classes is None and class_file is not None:
        classes, class_file = read_class_list(class_file), None
    ready: dict[str, voc_xml.Annotation | DataError] = {}
    if classes is None:
        ready = {entry.image_id: year.read(entry.image_id) for entry in year.entries}
        classes = classes_of(year, ready)
    return Parsed(
        classes=classes,
        category_ids=tuple(range(1, len(classes) + 1)),
        is_annotated=is_annotated,
        images=_raw_images(year, ready, classes, findings, is_annotated, class_file),
        num_images=len(year.entries),
    )


def _class_file(path: Path, year: Year) -> Path | None:
    """The classes.txt of the data set: in its own folder, the VOCdevkit's, or its only year's."""
    folders = [path]
    if year.folder != path:
        folders.append(year.folder.parent)
    if len(years_of(path)) == 1:
        folders.append(year.folder)
    files = (folder / "classes.txt" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def _raw_images(
    year: Year,
    ready: dict[str, voc_xml.Annotation | DataError],
    classes: tuple[str, ...],
    findings: Findings,
    is_annotated: bool,
    class_file: Path | None,
) -> Iterator[RawImage]:
    """The images that can be used as far as the annotations tell; the others are counted.

    class_file: the data set's own class list, where another one was given.
    """
    labels = {name: label for label, name in enumerate(classes)}
    seen: set[str] = set()
    names: set[str] = set()
    for position, entry in enumerate(year.entries):
        if entry.image_id in seen:
            findings.leave_out_image(entry.finding("image-entry-twice"))
            continue
        seen.add(entry.image_id)
        if year.leaves(entry.image_id):
            findings.leave_out_image(entry.finding("image-outside"))
            continue
        annotation: voc_xml.Annotation | DataError
        if is_annotated:
            annotation = ready.pop(entry.image_id, None) or year.read(entry.image_id)
        else:
            annotation = voc_xml.Annotation(file=str(year.images.folder / entry.image_id))
        if isinstance(annotation, DataError):
            findings.leave_out_image(Finding.from_error(annotation))
            continue
        names |= annotation.names()
        path = year.image_path(entry.image_id, annotation.filename)
        if path is None:
            findings.leave_out_image(_outside(year, entry, annotation), len(annotation.objects))
            continue
        for note in annotation.findings:
            findings.add(note)
        objects = _raw_objects(annotation, labels, findings)
        yield RawImage(
            path=path,
            file=annotation.file,
            image_id=position,
            declared_size=annotation.size,
            objects=objects,
            num_dropped=len(annotation.objects) - len(objects),
        )
    if names and not names & labels.keys():
        check_given(year, classes, class_file)


def _outside(year: Year, entry: Entry, annotation: voc_xml.Annotation) -> Finding:
    """The finding for an image file outside of the folder: by a link, or by <filename>."""
    if year.images.find(entry.image_id) is not None:
        return entry.finding("image-outside")
    value = annotation.filename
    return Finding.of("image-outside", file=annotation.file, field="filename", value=value)


def _raw_objects(
    annotation: voc_xml.Annotation, labels: dict[str, int], findings: Findings
) -> list[RawObject]:
    """The objects with a box and a known class; the others are counted."""
    kept = []
    for item in annotation.objects:
        finding = item.finding
        if finding is None and item.name not in labels:
            finding = Finding.of(
                "class-unknown",
                file=annotation.file,
                where=item.where,
                field="name",
                value=item.name,
                detail=did_you_mean(item.name or "", tuple(labels)),
            )
        if finding is not None:
            findings.leave_out_object(finding)
            continue
        assert item.name is not None
        assert item.corners is not None
        kept.append(RawObject(item.corners, labels[item.name], item.is_ignored, where=item.where))
    return kept
