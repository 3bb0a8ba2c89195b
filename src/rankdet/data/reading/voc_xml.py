"""One VOC annotation: an XML file with the size of an image and its objects.

Everything that can be wrong with a single object is kept with the object as a finding; what is
wrong with the whole file is a DataError.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element

from rankdet.data.reading.annotations import Corners
from rankdet.data.reading.classes import MAX_NAME
from rankdet.data.reading.findings import Finding, data_error
from rankdet.data.reading.parsing import parse_number, read_xml
from rankdet.errors import DataError

# Stricter than float(), which takes 1_0 and digits of all scripts.
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_UNKNOWN_FLAGS = ("", "unspecified")  # what tools write in `difficult` that nobody filled in
_FLAGS = {"0": False, "1": True, "false": False, "true": True} | dict.fromkeys(
    _UNKNOWN_FLAGS, False
)


@dataclass(frozen=True)
class Object:
    """One object. corners are edges counted from 0, and None where `finding` says what is wrong."""

    where: str
    name: str | None
    corners: Corners | None = None
    is_ignored: bool = False
    finding: Finding | None = None


@dataclass(frozen=True)
class Annotation:
    """What a file says. size: (width, height). findings: what concerns no single object."""

    file: str
    filename: str = ""
    size: tuple[int, int] | None = None
    objects: list[Object] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def names(self) -> set[str]:
        """The classes of the objects, those included whose box cannot be used."""
        return {item.name for item in self.objects if item.name is not None}


def read_annotation(path: Path) -> Annotation:
    """The annotation of one image; DataError if the file is not one."""
    root = _read_root(path)
    file = str(path)
    size, findings = _size(root, file)
    objects = list(_objects(root, file, findings))
    return Annotation(file, _text(root, "filename"), size, objects, findings)


def _read_root(path: Path) -> Element:
    try:
        root = read_xml(path)
    except DataError as error:
        if error.code not in ("data-missing", "file-unreadable"):
            raise
        raise data_error("annotation-unreadable", file=path, detail=error.detail) from error
    if root.tag != "annotation":
        raise data_error("xml-not-voc", file=path, field="element", value=root.tag)
    return root


def _text(element: Element, name: str) -> str:
    """The text of a child without the white space around it; empty if there is none."""
    return (element.findtext(name) or "").strip()


def _is_name(text: str) -> bool:
    return 0 < len(text) <= MAX_NAME


def _size(root: Element, file: str) -> tuple[tuple[int, int] | None, list[Finding]]:
    """((width, height) or None, what there is to say about it)."""
    odd = _odd_child(root, ("size",)) or _odd_child(root.find("size"), ("width", "height"))
    if odd is not None:
        name, detail = odd
        return None, [Finding.of("size-invalid", file=file, field=name, detail=detail)]
    size = []
    for name in ("width", "height"):
        text = _text(root, f"size/{name}")
        value = parse_number(text) if text else 0.0
        if value is None or value < 0 or not value.is_integer():
            finding = Finding.of("size-invalid", file=file, where="size", field=name, value=text)
            return None, [finding]
        size.append(int(value))
    if 0 in size:  # some tools write 0 for "not known"
        return None, [Finding.of("size-missing", file=file, where="size")]
    return (size[0], size[1]), []


def _odd_child(element: Element | None, names: tuple[str, ...]) -> tuple[str, str] | None:
    """(tag, what is odd) of a child that should be one of `names`, once, but is not quite."""
    seen = set()
    for child in () if element is None else element:
        if child.tag in seen:
            return child.tag, "It stands there twice."
        if child.tag in names:
            seen.add(child.tag)
        elif child.tag.lower() in names:
            return child.tag, f"Write it in lower case: {child.tag.lower()}."
    return None


def _objects(root: Element, file: str, notes: list[Finding]) -> Iterator[Object]:
    """The objects, and whatever looks like one; notes: where what concerns used ones is added."""
    # Only direct children are objects: a person can have parts (head, hand, foot) with boxes.
    found = [child for child in root if child.tag.lower() == "object"]
    for index, element in enumerate(found, start=1):
        where = f"{element.tag}[{index}]"
        yield _object(element, where, file, notes)
        for inner in element:
            if inner.tag.lower() == "object":
                detail = "An object cannot stand in an object."
                finding = Finding.of(
                    "field-invalid", file=file, where=where, field=inner.tag, detail=detail
                )
                yield Object(where, None, finding=finding)


def _object(element: Element, where: str, file: str, notes: list[Finding]) -> Object:
    name: str | None = None

    def refused(code: str, field: str, value: object = None, detail: str = "") -> Object:
        place = f"{where}/bndbox" if field.lower() in _SIDES else where
        finding = Finding.of(code, file=file, where=place, field=field, value=value, detail=detail)
        return Object(place, name, finding=finding)

    if element.tag != "object":
        return refused("field-invalid", element.tag, detail="Write it in lower case: object.")
    odd = _odd_child(element, ("name", "bndbox", "difficult"))
    if odd is not None:
        return refused("field-invalid", odd[0], detail=odd[1])
    text = _text(element, "name")
    if not text:
        return refused("field-missing", "name")
    if not _is_name(text):
        return refused("field-invalid", "name", text)
    name = text
    box = element.find("bndbox")
    if box is None:
        return refused("field-missing", "bndbox")
    odd = _odd_child(box, _SIDES)
    if odd is not None:
        return refused("field-invalid", odd[0], detail=odd[1])
    values = []
    for side in _SIDES:
        text = _text(box, side)
        if not text:
            return refused("field-missing", side)
        value = parse_number(text)
        if value is None:
            return refused("box-not-a-number", side, text)
        if not math.isfinite(value):
            return refused("box-not-finite", side, text)
        values.append(value)
    difficult = element.find("difficult")
    flag = "0" if difficult is None else (difficult.text or "").strip()
    is_difficult = _FLAGS.get(flag.lower())
    if is_difficult is None:
        return refused("field-invalid", "difficult", flag, "It must be 0 or 1.")
    if flag.lower() in _UNKNOWN_FLAGS:
        notes.append(
            Finding.of(
                "annotation-field-default",
                file=file,
                where=where,
                field="difficult",
                value=flag,
                detail="Taken as 0.",
            )
        )
    left, top, right, bottom = values
    # VOC counts pixels from 1 and includes the last one; we count edges from 0.
    return Object(where, name, (left - 1, top - 1, right, bottom), is_difficult)
