"""One VOC annotation: an XML file with the size of an image and its objects.

Everything that can be wrong with a single object is kept with the object as a finding; what is
wrong with the whole file is a DataError.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element

from rankdet.data.reading.annotations import Corners
from rankdet.data.reading.classes import MAX_NAME
from rankdet.data.reading.findings import Finding, data_error
from rankdet.data.reading.parsing import read_xml
from rankdet.errors import DataError

# Stricter than float(), which takes 1_0 and digits of all scripts.
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?(nan|inf|infinity)", re.IGNORECASE)
_LONGEST_NUMBER = 100  # characters
_SIDES = ("xmin", "ymin", "xmax", "ymax")


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


def read_annotation(path: Path) -> Annotation:
    """The annotation of one image; DataError if the file is not one."""
    root = _read_root(path)
    file = str(path)
    size, findings = _size(root, file)
    # Only direct children are objects: a person can have parts (head, hand, foot) with boxes.
    objects = [_object(item, i, file) for i, item in enumerate(root.findall("object"), start=1)]
    return Annotation(file, _text(root, "filename"), size, objects, findings)


def read_names(path: Path) -> set[str]:
    """The class names in a file; none if the file cannot be read."""
    try:
        root = _read_root(path)
    except DataError:
        return set()
    names = {_text(item, "name") for item in root.findall("object")}
    return {name for name in names if _is_name(name)}


def number(text: str) -> float | str:
    """The number that a text is, or the code of the rule that it breaks.

    >>> number("12.5"), number("nan"), number("1_0")
    (12.5, 'box-not-finite', 'box-not-a-number')
    """
    if _NOT_FINITE.fullmatch(text):
        return "box-not-finite"
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        return "box-not-a-number"
    value = float(text)
    return value if math.isfinite(value) else "box-not-finite"


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
    size = []
    for name in ("width", "height"):
        text = _text(root, f"size/{name}")
        value = number(text) if text else 0.0
        if isinstance(value, str) or value < 0 or not value.is_integer():
            finding = Finding.of("size-invalid", file=file, where="size", field=name, value=text)
            return None, [finding]
        size.append(int(value))
    if 0 in size:  # some tools write 0 for "not known"
        return None, [Finding.of("size-missing", file=file, where="size")]
    return (size[0], size[1]), []


def _object(element: Element, index: int, file: str) -> Object:
    where = f"object[{index}]"
    name = _text(element, "name")

    def refused(code: str, field: str, value: object = None, where: str = where) -> Object:
        finding = Finding.of(code, file=file, where=where, field=field, value=value)
        return Object(where, name if _is_name(name) else None, finding=finding)

    if not name:
        return refused("field-missing", "name")
    if not _is_name(name):
        return refused("field-invalid", "name", name)
    box = element.find("bndbox")
    if box is None:
        return refused("field-missing", "bndbox")
    values = []
    for side in _SIDES:
        text = _text(box, side)
        value = number(text) if text else "field-missing"
        if isinstance(value, str):
            return refused(value, side, text or None, f"{where}/bndbox")
        values.append(value)
    difficult = element.find("difficult")
    flag = "0" if difficult is None else (difficult.text or "").strip()
    if flag not in ("0", "1"):
        return refused("field-invalid", "difficult", flag)
    left, top, right, bottom = values
    # VOC counts pixels from 1 and includes the last one; we count edges from 0.
    return Object(where, name, (left - 1, top - 1, right, bottom), flag == "1")
