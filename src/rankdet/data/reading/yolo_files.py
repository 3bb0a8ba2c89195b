"""The image files of a YOLO split and the label file of each, in the same order everywhere."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rankdet.data.reading.findings import Finding, Findings
from rankdet.data.reading.images import EXTENSIONS
from rankdet.data.reading.parsing import MAX_LIST_BYTES, read_lines
from rankdet.data.reading.paths import contained, entries_in, is_folder

# Text files that lie among labels and are none.
_NOT_LABELS = ("classes.txt", "names.txt")


@dataclass
class SplitFiles:
    """images and their labels (which need not exist), and label files that have no image."""

    images: list[Path] = field(default_factory=list)
    labels: list[Path] = field(default_factory=list)
    has_label: list[bool] = field(default_factory=list)
    orphans: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class _Candidate:
    """An image before it is accepted. file, where: what names it, a list or the image itself."""

    image: Path
    file: Path
    where: int | str = ""
    is_outside: bool = False


def find_files(
    root: Path, sources: Iterable[Path], allow_outside: bool, findings: Findings
) -> SplitFiles:
    """The files of a split. Images that lie outside or stand there twice are counted and left out.

    sources: folders of images, or text files with a path of an image on each line.
    """
    files = SplitFiles()
    owners: dict[Path, Path] = {}
    label_files: dict[Path, None] = {}
    used: set[Path] = set()
    for source in sources:
        if is_folder(source):
            candidates = _in_folder(source, root, allow_outside)
            label_files.update(dict.fromkeys(_labels_in(source, root, allow_outside)))
        else:
            candidates = _in_list(source, root, allow_outside)
        for candidate in candidates:
            label = label_path(candidate.image, root)
            used.add(label)
            fault = _fault(candidate, label, owners)
            if fault is not None:
                findings.leave_out_image(fault)
                continue
            files.images.append(candidate.image)
            files.labels.append(label)
            files.has_label.append(os.path.lexists(label))
    files.orphans = [path for path in label_files if path not in used]
    return files


def _fault(candidate: _Candidate, label: Path, owners: dict[Path, Path]) -> Finding | None:
    """Why an image cannot be taken; owners: label files (or images without one) and whose it is."""
    image, file, where = candidate.image, candidate.file, candidate.where
    value = None if file == image else str(image)
    if candidate.is_outside:
        return Finding.of("image-outside", file=file, where=where, field="path", value=value)
    other = owners.setdefault(label if os.path.lexists(label) else image, image)
    if other is image:
        return None
    detail = "" if other == image else f"It has the same label file as {other.name}: {label}."
    return Finding.of(
        "image-entry-twice", file=file, where=where, field="path", value=value, detail=detail
    )


def label_path(image: Path, root: Path) -> Path:
    """The last folder `images` in the path becomes `labels`; without one, the label is beside it.

    >>> label_path(Path("set/images/train/a.jpg"), Path("set")).as_posix()
    'set/labels/train/a.txt'
    >>> label_path(Path("images/set/a.jpg"), Path("images/set")).as_posix()
    'images/set/a.txt'
    """
    return _labels_of(image.parent, root) / f"{image.stem}.txt"


def walk(
    folder: Path, extensions: tuple[str, ...], root: Path, allow_outside: bool
) -> tuple[list[Path], list[Path]]:
    """(files with such extensions in a folder and below it, links that lead outside), both sorted.

    Hidden files and folders do not count. A link to a folder inside of `folder` is not followed,
    since its files are met anyway, nor is any folder entered twice: links can go round in circles.
    """
    found: list[Path] = []
    outside: list[Path] = []
    start, real_root = Path(os.path.realpath(folder)), os.path.realpath(root)
    entered = {start}
    waiting = [folder]
    while waiting:
        for entry in entries_in(waiting.pop()):
            path = Path(entry.path)
            is_link = entry.is_symlink()
            is_directory = is_folder(path) if is_link else entry.is_dir()
            if not is_directory and path.suffix.lower() not in extensions:
                continue
            real = Path(os.path.realpath(path)) if is_link or is_directory else path
            is_below = not is_link or real.is_relative_to(start)
            if is_directory and (real in entered or (is_link and is_below)):
                continue
            if not (is_below or allow_outside or real.is_relative_to(real_root)):
                outside.append(path)
            elif is_directory:
                waiting.append(path)
                entered.add(real)
            else:  # whoever opens a pipe, or a link that leads nowhere, tells about it
                found.append(path)
    return sorted(found), sorted(outside)


def _in_folder(folder: Path, root: Path, allow_outside: bool) -> list[_Candidate]:
    found, outside = walk(folder, tuple(EXTENSIONS), root, allow_outside)
    inside = [_Candidate(path, path) for path in found]
    return inside + [_Candidate(path, path, is_outside=True) for path in outside]


def _in_list(file: Path, root: Path, allow_outside: bool) -> list[_Candidate]:
    """The images of a text file, one on each line."""
    candidates = []
    for number, line in enumerate(read_lines(file, MAX_LIST_BYTES), start=1):
        name = line.strip()
        if name:
            path = _listed_image(file, name, root, allow_outside)
            is_outside = path is None
            candidates.append(_Candidate(path or Path(name), file, number, is_outside))
    return candidates


def _listed_image(file: Path, name: str, root: Path, allow_outside: bool) -> Path | None:
    """The image of one line: from the folder of the list after `./`, otherwise from `root`."""
    folder = file.parent if name.startswith(("./", ".\\")) else root
    path = contained(folder, name, allow_outside)
    if "\\" in name and (path is None or not os.path.lexists(path)):  # written on Windows
        path = contained(folder, name.replace("\\", "/"), allow_outside)
    return path


@functools.lru_cache(maxsize=100)  # the same folder for every image in it
def _labels_of(folder: Path, root: Path) -> Path:
    """The folder of the labels for a folder of images."""
    # Only below the root: the data set may itself lie in some folder called images.
    inside = folder.relative_to(root) if folder.is_relative_to(root) else folder
    parts = list(inside.parts)
    if "images" not in parts:
        return folder
    last = len(parts) - 1 - parts[::-1].index("images")
    parts[last] = "labels"
    return root / Path(*parts)  # an absolute path stays what it is


def _labels_in(source: Path, root: Path, allow_outside: bool) -> list[Path]:
    """The label files that belong to a folder of images."""
    folder = _labels_of(source, root)
    found, outside = walk(folder, (".txt",), root, allow_outside)
    return [
        path
        for path in (*found, *outside)
        if path.name not in _NOT_LABELS and not path.name.lower().startswith("readme")
    ]
