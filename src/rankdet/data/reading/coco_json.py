"""The content of a COCO file, judged entry by entry and packed; the parsed JSON is then dropped.

Where the whole file makes no sense there is a DataError; a bad entry is a finding, and reading
goes on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from rankdet.data.reading.classes import ClassList, choose_classes, is_class_name
from rankdet.data.reading.coco_annotations import (
    ImageKey,
    Objects,
    image_key,
    read_annotations,
    whole,
)
from rankdet.data.reading.findings import Finding, Findings, data_error
from rankdet.data.reading.parsing import read_json
from rankdet.errors import DataError

# Not needed for boxes, and most of a COCO file.
_UNUSED = frozenset(("segmentation", "keypoints", "caption", "segments_info"))
_LARGEST_ID = 2**63 - 1  # of an image: ids are stored as int64
_LARGEST_CATEGORY_ID = 2**31 - 1
_LARGEST_SIDE = 2**31 - 1


@dataclass(frozen=True)
class ImageEntry:
    """One entry of `images`. size: (width, height) or None. fault: why it cannot be used."""

    position: int
    key: ImageKey
    name: str = ""
    size: tuple[int, int] | None = None
    fault: Finding | None = None


@dataclass(frozen=True)
class Content:
    """What a COCO file says. image_ids: as in the file, or new ones where those cannot be kept."""

    class_list: ClassList
    images: list[ImageEntry]
    image_ids: Sequence[int]
    objects: Objects


def read_content(
    path: Path, *, is_annotated: bool, classes: tuple[str, ...] | None, findings: Findings
) -> Content:
    """What a COCO file says. Without annotations (a test set) images and categories are enough."""
    data = read_json(path, unused=_UNUSED)
    if not isinstance(data, dict):
        raise data_error("json-structure", file=path, field="type", value=type(data).__name__)
    images = _list_of(data, "images", path)
    categories = _list_of(data, "categories", path)
    annotations = _list_of(data, "annotations", path) if is_annotated else []
    own = _categories(categories, path)
    if is_annotated:
        own = _without_group(own, categories, annotations, classes, path, findings)
    class_list = choose_classes(own, classes, path)
    entries = _image_entries(images, path, findings)
    keys = [entry.key for entry in entries]
    objects = read_annotations(annotations, keys, class_list.labels, path, findings)
    return Content(class_list, entries, _image_ids(keys, path, findings), objects)


def _list_of(data: dict[str, Any], name: str, path: Path) -> list[Any]:
    value = data.get(name)
    if not isinstance(value, list):
        detail = "It is missing." if name not in data else "It is not a list."
        raise data_error("json-structure", file=path, field=name, value=value, detail=detail)
    return value


def _categories(categories: list[Any], path: Path) -> dict[str, int]:
    """Name -> id, in the order of the ids."""
    pairs: list[tuple[int, str]] = []
    ids: set[int] = set()
    names: set[str] = set()

    def refused(position: int, name: str, value: object, detail: str) -> DataError:
        where = f"categories[{position}]"
        return data_error(
            "classes-invalid", file=path, where=where, field=name, value=value, detail=detail
        )

    for position, item in enumerate(categories):
        if not isinstance(item, dict):
            raise refused(position, "", item, "A category must be an object.")
        number, name = whole(item.get("id")), item.get("name")
        if number is None or abs(number) > _LARGEST_CATEGORY_ID:
            raise refused(position, "id", item.get("id"), "It must be a whole number.")
        if not is_class_name(name):
            raise refused(position, "name", name, "The name of a category must be a text.")
        if number in ids:
            raise refused(position, "id", number, "Two categories have this id.")
        if name in names:
            raise refused(position, "name", name, "Two categories have this name.")
        ids.add(number)
        names.add(name)
        pairs.append((number, name))
    if not pairs:
        raise data_error(
            "json-structure", file=path, field="categories", value=[], detail="The list is empty."
        )
    return {name: number for number, name in sorted(pairs)}


def _without_group(
    own: dict[str, int],
    categories: list[Any],
    annotations: list[Any],
    classes: tuple[str, ...] | None,
    path: Path,
    findings: Findings,
) -> dict[str, int]:
    """The categories less the one that some exports put first: id 0, it only groups the others."""
    name = next((name for name, number in own.items() if number == 0), None)
    groups = [item.get("supercategory") for item in categories if item["name"] != name]
    if name is None or name not in groups or (classes is not None and name in classes):
        return own
    if any(isinstance(item, dict) and item.get("category_id") == 0 for item in annotations):
        return own
    findings.add(
        Finding.of("category-left-out", file=path, where="categories", field="name", value=name)
    )
    return {other: number for other, number in own.items() if other != name}


def _image_entries(images: list[Any], path: Path, findings: Findings) -> list[ImageEntry]:
    """The images by position. Those without a usable id are counted here and left out."""
    entries: list[ImageEntry] = []
    keys: set[ImageKey] = set()
    names: set[str] = set()
    for position, item in enumerate(images):
        where = f"images[{position}]"
        key = image_key(item.get("id")) if isinstance(item, dict) else None
        fault = None
        if not isinstance(item, dict):
            fault = _image_fault(path, where, "", item, "It is not an object.")
        elif key is None:
            detail = "It is missing." if item.get("id") is None else "It is no number or text."
            fault = _image_fault(path, where, "id", item.get("id"), detail)
        elif key in keys:
            fault = Finding.of("image-entry-twice", file=path, where=where, field="id", value=key)
        if fault is not None:
            findings.leave_out_image(fault)
            continue
        assert key is not None
        keys.add(key)
        entry = _image_entry(item, position, key, path, findings)
        if entry.name in names:  # its objects are lost with it: two lists cannot both be right
            fault = Finding.of(
                "image-entry-twice", file=path, where=where, field="file_name", value=entry.name
            )
            entry = replace(entry, fault=fault)
        if entry.fault is None:
            names.add(entry.name)
        entries.append(entry)
    return entries


def _image_entry(
    item: dict[str, Any], position: int, key: ImageKey, path: Path, findings: Findings
) -> ImageEntry:
    where = f"images[{position}]"
    name = item.get("file_name")
    if not _is_file_name(name):
        detail = "It must be the name of a file."
        fault = _image_fault(path, where, "file_name", name, detail)
        return ImageEntry(position, key, fault=fault)
    width, height = _side(item.get("width")), _side(item.get("height"))
    if width is not None and height is not None:
        return ImageEntry(position, key, name, (width, height))
    given = (item.get("width"), item.get("height"))
    if given == (None, None):
        findings.add(Finding.of("size-missing", file=path, where=where))
    else:
        findings.add(Finding.of("size-invalid", file=path, where=where, field="size", value=given))
    return ImageEntry(position, key, name)


def _is_file_name(value: object) -> TypeGuard[str]:
    """Whether the system can have a file of this name."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        return False
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def _image_ids(keys: Sequence[ImageKey], path: Path, findings: Findings) -> Sequence[int]:
    """The ids of the images: their own, or 1, 2, 3... if one is a text or too long to be stored."""
    ids = [key for key in keys if isinstance(key, int) and abs(key) <= _LARGEST_ID]
    if len(ids) == len(keys):
        return ids
    example = next(key for key in keys if not isinstance(key, int) or abs(key) > _LARGEST_ID)
    findings.add(
        Finding.of("image-id-changed", file=path, where="images", field="id", value=example)
    )
    return range(1, len(keys) + 1)


def _image_fault(path: Path, where: str, name: str, value: object, detail: str) -> Finding:
    return Finding.of(
        "image-entry-invalid", file=path, where=where, field=name, value=value, detail=detail
    )


def _side(value: object) -> int | None:
    """A width or height in pixels, or None."""
    number = whole(value)
    return number if number is not None and 0 < number <= _LARGEST_SIDE else None
