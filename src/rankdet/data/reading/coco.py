"""Reads COCO: a JSON file of images, categories and annotations for each split.

Three layouts: COCO's own (`annotations/instances_train2017.json`, images in `train2017/`), one
JSON file by itself, and a folder for each split with `_annotations.coco.json` beside its images.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rankdet.data.reading.annotations import RawImage
from rankdet.data.reading.coco_json import Content, read_content
from rankdet.data.reading.findings import Finding, Findings, data_error
from rankdet.data.reading.paths import contained
from rankdet.data.reading.split import Parsed
from rankdet.data.reading.split_naming import find_split, in_order

_BESIDE = "_annotations.coco.json"
_ANNOTATED = "instances_"
_NOT_ANNOTATED = "image_info_"
_OTHER_TASKS = ("captions_", "person_keypoints_", "panoptic_", "stuff_")
_WHOLE = "all"  # the split of a JSON file by itself


@dataclass(frozen=True)
class _Source:
    """The JSON file of a split and the folders where its images may be, the likeliest first."""

    file: Path
    folders: tuple[Path, ...]
    is_annotated: bool = True


def matches(path: Path) -> bool:
    """Whether this looks like COCO: a JSON file, or a folder with such files in their places."""
    return bool(_sources(path))


def split_names(path: Path) -> tuple[str, ...]:
    """The splits that have a JSON file; "all" if the path is such a file itself."""
    return in_order(_sources(path))


def parse(
    path: Path,
    split: str,
    *,
    classes: tuple[str, ...] | None,
    findings: Findings,
    allow_outside: bool,
) -> Parsed:
    """One split. Its images come in the order of the file, and are looked up while iterating."""
    if not path.exists():
        raise data_error("data-missing", file=path)
    sources = _sources(path)
    if split in _names_of_file(path):
        split = _WHOLE
    source = sources[find_split(split, in_order(sources), path)]
    content = read_content(
        source.file, is_annotated=source.is_annotated, classes=classes, findings=findings
    )
    return Parsed(
        classes=content.class_list.classes,
        category_ids=content.class_list.category_ids,
        is_annotated=source.is_annotated,
        images=_raw_images(content, source, findings, allow_outside),
        num_images=len(content.images),
    )


def _sources(path: Path) -> dict[str, _Source]:
    """The splits by name."""
    if path.is_file():
        return {_WHOLE: _single(path)} if path.suffix.lower() == ".json" else {}
    if (path / _BESIDE).is_file():
        return {_WHOLE: _single(path / _BESIDE)}
    files = [file for file in sorted((path / "annotations").glob("*.json")) if file.is_file()]
    sources = {}
    for prefix in (_NOT_ANNOTATED, _ANNOTATED):  # where there are both, the annotations win
        for file in files:
            if file.name.startswith(prefix):
                name = file.stem.removeprefix(prefix)
                sources[name] = _Source(file, _image_folders(path, name), prefix == _ANNOTATED)
    if not sources:
        plain = [file for file in files if not file.name.startswith(_OTHER_TASKS)]
        sources = {file.stem: _Source(file, _image_folders(path, file.stem)) for file in plain}
    for file in sorted(path.glob(f"*/{_BESIDE}")):
        folder = file.parent
        sources.setdefault(folder.name, _Source(file, (folder, folder / "images")))
    return sources


def _names_of_file(path: Path) -> tuple[str, ...]:
    """What else the one split of a JSON file may be called: instances_val2017.json is val2017."""
    return (path.stem, _short_name(path)) if path.is_file() else ()


def _short_name(file: Path) -> str:
    return file.stem.removeprefix(_ANNOTATED).removeprefix(_NOT_ANNOTATED)


def _single(file: Path) -> _Source:
    """A JSON file by itself: its images lie beside it or where COCO would have them."""
    name, folder = _short_name(file), file.parent
    folders = (
        folder,
        *_image_folders(folder, name),
        *_image_folders(folder.absolute().parent, name)[:-1],
    )
    return _Source(file, folders, not file.name.startswith(_NOT_ANNOTATED))


def _image_folders(root: Path, name: str) -> tuple[Path, ...]:
    """Where the images of a split may be. test-dev is a part of the test images."""
    names = dict.fromkeys((name, name.replace("test-dev", "test")))
    return (
        *(root / part for part in names),
        *(root / "images" / part for part in names),
        root / "images",
        root,
    )


def _raw_images(
    content: Content, source: _Source, findings: Findings, allow_outside: bool
) -> Iterator[RawImage]:
    # Without any of the folders, the first one stands in every message.
    folders = [folder for folder in source.folders if folder.is_dir()] or [source.folders[0]]
    files: set[str] = set()
    for index, entry in enumerate(content.images):
        objects = content.objects.of_image(index)
        where = f"images[{entry.position}]"
        fault = entry.fault
        path, code = None, "image-outside"
        if fault is None:
            path = _find_image(folders, entry.name, allow_outside)
            # One file has several spellings: a.jpg, ./a.jpg, train/a.jpg.
            if path is not None and os.path.normpath(path) in files:
                path, code = None, "image-entry-twice"
        if path is None:
            fault = fault or Finding.of(
                code, file=source.file, where=where, field="file_name", value=entry.name
            )
            findings.leave_out_image(fault, len(objects))
            continue
        files.add(os.path.normpath(path))
        yield RawImage(
            path=path,
            file=str(source.file),
            image_id=content.image_ids[index],
            where=where,
            declared_size=entry.size,
            objects=objects,
            num_dropped=content.objects.num_dropped[index],
        )


def _find_image(folders: list[Path], name: str, allow_outside: bool) -> Path | None:
    """The image in the first folder that has it, or where it should be; None if it is outside.

    Exports from Windows have backslashes; elsewhere these may be a part of a name.
    """
    spellings = [name, name.replace("\\", "/")] if "\\" in name else [name]
    is_outside = False
    for spelling in spellings:
        for folder in folders:
            path = _inside(folder, spelling, allow_outside)
            if path is None:
                is_outside = True
            elif os.path.lexists(path):
                return path
    return None if is_outside else folders[0] / spellings[-1]


def _inside(folder: Path, name: str, allow_outside: bool) -> Path | None:
    """`contained`, but quicker for the usual case: a plain name can leave only through a link."""
    is_plain = "/" not in name and "\\" not in name and name not in (".", "..")
    # os.path: Path.is_symlink raises if the name is too long.
    if is_plain and not os.path.islink(folder / name):  # noqa: PTH114
        return folder / name
    return contained(folder, name, allow_outside)
