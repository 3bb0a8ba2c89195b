"""The class list of a VOC data set, which no file of the format gives.

It is a property of the whole data set: were it one of a split, the same label could mean another
class in the next split.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from rankdet.data.reading import voc_xml
from rankdet.data.reading.classes import read_class_list
from rankdet.data.reading.findings import data_error
from rankdet.data.reading.parsing import MAX_XML_BYTES, read_bytes
from rankdet.data.reading.voc_files import Year, entries_of, lists_of, years_of
from rankdet.errors import DataError

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)

_NAMES = frozenset(CLASSES)
_NAMES_AS_BYTES = frozenset(name.encode() for name in CLASSES)
_OBJECT = re.compile(rb"<object\b")
_NAMED_OBJECT = re.compile(rb"<object\b[^>]*>\s*<name\b[^>]*>([^<]*)<")


def classes_of(year: Year, ready: Mapping[str, voc_xml.Annotation | DataError]) -> tuple[str, ...]:
    """VOC's 20 classes if no object of the data set has another name, or else all names, sorted.

    ready: what is read already, by the ids of `year`.
    """
    names: set[str] = set()
    for annotation in ready.values():
        if isinstance(annotation, voc_xml.Annotation):
            names |= annotation.names()
    others = list(_annotation_files(year, ready))
    if names <= _NAMES and all(map(_has_usual_names, others)):
        return CLASSES
    for path in others:
        names |= _names_in(path)
    return tuple(sorted(names))


def check_given(year: Year, classes: tuple[str, ...], class_file: Path | None) -> None:
    """DataError if the data set has names, but none of the given ones.

    class_file: its classes.txt, which may name classes that have no object.
    """
    names = set() if class_file is None else set(read_class_list(class_file))
    for path in _annotation_files(year, ()):
        names |= _names_in(path)
    if names and not names & set(classes):
        detail = f"It has {', '.join(sorted(names)[:10])}."
        raise data_error(
            "classes-foreign", file=year.root, field="classes", value=classes, detail=detail
        )


def _annotation_files(year: Year, without: Container[str]) -> Iterator[Path]:
    """The annotations of all years, less those that belong to ids `without` of this year."""
    for _, folder in years_of(year.root):
        other = Year(year.root, folder, year.allow_outside)
        for image_id in _ids(other):
            if folder == year.folder and image_id in without:
                continue
            try:
                yield other.annotation_path(image_id)
            except DataError:  # found again, and reported, when its split is read
                continue


def _ids(year: Year) -> list[str]:
    """The ids of all annotations of a year: those in folders below stand only in lists."""
    ids = dict.fromkeys(year.annotations.stems())
    for file in lists_of(year.folder).values():
        try:
            entries = entries_of(file, year)
        except DataError:  # as above
            continue
        ids.update(dict.fromkeys(item.image_id for item in entries if "/" in item.image_id))
    return list(ids)


def _names_in(path: Path) -> set[str]:
    """The names of the objects of a file; none if it cannot be read."""
    try:
        return voc_xml.read_annotation(path).names()
    except DataError:
        return set()


def _has_usual_names(path: Path) -> bool:
    """Whether all objects of a file have names of VOC's 20 classes.

    To look at the bytes takes a fraction of the time of parsing. It is enough where each object
    begins with its name, and no comment or CDATA can hide a part of it.
    """
    try:
        content = read_bytes(path, MAX_XML_BYTES)
    except DataError:  # as above
        return True
    is_readable = b"<annotation" in content  # and not in UTF-16, for one
    if is_readable and b"<!" not in content and content.find(b"<?", len("<?xml")) < 0:
        names = [name.strip() for name in _NAMED_OBJECT.findall(content)]
        if len(names) == len(_OBJECT.findall(content)) and _NAMES_AS_BYTES.issuperset(names):
            return True
    return _names_in(path) <= _NAMES
