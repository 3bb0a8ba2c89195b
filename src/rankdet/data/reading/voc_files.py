"""The files of a VOC data set: its years, their lists, and the image and annotation of each id."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from rankdet.data.reading import images, voc_xml
from rankdet.data.reading.findings import Finding, data_error
from rankdet.data.reading.parsing import MAX_LIST_BYTES, read_lines
from rankdet.data.reading.paths import contained, entries_in, is_file
from rankdet.errors import DataError

LOOKED_FOR = "VOC: folders JPEGImages and Annotations, here or in VOC<year> folders"

_LISTS = ("train", "val", "trainval", "test")  # the usual ones, in the order of `split_names`
_COLUMN = re.compile(r"(.*\S)\s+(-1|0|1)")  # an id, and whether a class is in the image


@dataclass(frozen=True)
class Entry:
    """An image id of a list. file, line: where it stands."""

    image_id: str
    file: Path
    line: int | str

    def finding(self, code: str) -> Finding:
        value = self.image_id
        return Finding.of(code, file=self.file, where=self.line, field="id", value=value)


class _Files:
    """The files of a folder by their names without extension. Every folder is listed only once."""

    def __init__(self, folder: Path, extensions: tuple[str, ...]) -> None:
        self.folder = folder
        self.extensions = extensions
        self._listings: dict[str, dict[str, tuple[str, bool]]] = {}

    def find(self, image_id: str) -> tuple[str, bool] | None:
        """(path below the folder, whether it is a link), or None if there is no such file."""
        parent, stem = os.path.split(image_id)
        if parent not in self._listings:
            try:
                self._listings[parent] = self._listing(self.folder / parent)
            except DataError:
                if not parent:
                    raise
                self._listings[parent] = {}  # an id may be nonsense; its image is then missing
        found = self._listings[parent].get(stem)
        if found is None:
            return None
        return (f"{parent}/{found[0]}" if parent else found[0]), found[1]

    def _listing(self, folder: Path) -> dict[str, tuple[str, bool]]:
        listing: dict[str, tuple[int, str, bool]] = {}
        for entry in entries_in(folder):
            name, is_link = entry.name, entry.is_symlink()
            stem, dot, ending = name.rpartition(".")
            extension = (dot + ending).lower()
            if extension not in self.extensions:
                continue
            # Of a.jpg and a.png the first of `extensions` is taken, in every run.
            ranked = (self.extensions.index(extension), name, is_link)
            listing[stem] = min(listing.get(stem, ranked), ranked)
        return {stem: (name, is_link) for stem, (_, name, is_link) in listing.items()}

    def stems(self) -> list[str]:
        """All ids, sorted, those in folders below left out."""
        self.find("")
        return sorted(self._listings[""])


@dataclass
class Year:
    """The folder of a year, and one list of it. root: the folder of the whole data set."""

    root: Path
    folder: Path
    allow_outside: bool
    images: _Files = field(init=False)
    annotations: _Files = field(init=False)
    entries: list[Entry] = field(init=False)

    def __post_init__(self) -> None:
        self.images = _Files(self.folder / "JPEGImages", tuple(images.EXTENSIONS))
        self.annotations = _Files(self.folder / "Annotations", (".xml",))
        self.entries = []

    def leaves(self, image_id: str) -> bool:
        """Whether an id leads out of the folder by its name."""
        is_inside = not image_id.startswith("/") and ".." not in image_id.split("/")
        return not (is_inside or self.allow_outside)

    def num_annotated(self) -> int:
        """How many images of the list have an annotation file."""
        ids = (entry.image_id for entry in self.entries)
        return sum(not self.leaves(item) and bool(self.annotations.find(item)) for item in ids)

    def read(self, image_id: str) -> voc_xml.Annotation | DataError:
        """The annotation of an image, or why there is none."""
        try:
            return voc_xml.read_annotation(self.annotation_path(image_id))
        except DataError as error:
            return error

    def annotation_path(self, image_id: str) -> Path:
        """The annotation file, if there is one and no link leads out of the data set to it."""
        folder = self.annotations.folder
        found = None if self.leaves(image_id) else self.annotations.find(image_id)
        if found is None:
            detail = self._extension_detail(image_id)
            raise data_error("annotation-missing", file=folder / f"{image_id}.xml", detail=detail)
        name, is_link = found
        path = folder / name
        if (is_link or "/" in name) and not self.allow_outside:
            inside = contained(folder, name) or contained(self.root, str(path.absolute()))
            if inside is None:
                raise data_error("file-outside", file=path)
        return path

    def _extension_detail(self, image_id: str) -> str:
        stem, dot, ending = image_id.rpartition(".")
        is_file_name = (dot + ending).lower() in (*images.EXTENSIONS, ".xml")
        if not is_file_name or self.leaves(image_id) or self.annotations.find(stem) is None:
            return ""
        return "The list names files without extension."

    def image_path(self, image_id: str, filename: str) -> Path | None:
        """The image file, which need not exist; None if it lies outside of the folder.

        `filename` is what the XML says. It is often wrong in copies of data sets, and therefore
        asked only if no file is named after the id.
        """
        folder = self.images.folder
        found = self.images.find(image_id)
        if found is None:
            path = contained(folder, filename, self.allow_outside)
            return path if path is None or is_file(path) else folder / f"{image_id}.jpg"
        name, is_link = found
        # To resolve a path takes a system call per folder: not for plain files, which cannot leave.
        if is_link or "/" in name:
            return contained(folder, name, self.allow_outside)
        return folder / name


def years_of(path: Path) -> list[tuple[str, Path]]:
    """(what the names of its splits begin with, folder) for every year."""
    if _is_year(path):
        return [("", path)]
    for devkit in (path, path / "VOCdevkit"):
        names = [e.name for e in entries_in(devkit) if re.fullmatch("VOC[0-9]+", e.name)]
        years = [(f"{name[3:]}_", devkit / name) for name in names if _is_year(devkit / name)]
        if years:
            return years
    return []


def _is_year(folder: Path) -> bool:
    has_lists = (folder / "ImageSets" / "Main").is_dir()
    has_annotations = (folder / "Annotations").is_dir()
    return (folder / "JPEGImages").is_dir() and (has_annotations or has_lists)


def lists_of(folder: Path) -> dict[str, Path]:
    """The lists of a year by name; without any, the one list `all`, which is the folder itself."""
    main = folder / "ImageSets" / "Main"
    if not main.is_dir():
        main = folder / "ImageSets"
    files = {e.name[:-4]: main / e.name for e in entries_in(main) if e.name.endswith(".txt")}
    lists = [name for name in files if not _is_class_list(name, files)]
    lists.sort(key=lambda name: (_LISTS.index(name) if name in _LISTS else len(_LISTS), name))
    return {name: files[name] for name in lists} or {"all": folder / "Annotations"}


def _is_class_list(name: str, files: dict[str, Path]) -> bool:
    """Whether a list is `<class>_<list>`, which says of each image whether it shows the class.

    A list of somebody's own, such as my_train, differs from it by having one column only.
    """
    ending = name.rpartition("_")[2]
    if "_" not in name or not (ending in _LISTS or ending in files):
        return False
    if not is_file(files[name]):  # to open a pipe would wait for ever
        return False
    try:
        with files[name].open("rb") as stream:
            start = stream.read(1000).decode("utf-8-sig", errors="replace")
    except OSError:  # whoever asks for this split is told
        return False
    lines = start.split("\n")[:-1] or [start]  # the last one may have been cut
    first = next((line.strip() for line in lines if line.strip()), "")
    return _COLUMN.fullmatch(first) is not None


def locate(path: Path, split: str, allow_outside: bool) -> Year:
    """The year and list of a split."""
    years = years_of(path)
    if not years:
        raise data_error("data-unrecognised", file=path, detail=f"Looked for {LOOKED_FOR}.")
    for prefix, folder in years:
        lists = lists_of(folder)
        name = split.removeprefix(prefix)
        if not prefix and name not in lists:
            name = _without_year(split, path)
        if split.startswith(prefix) and name in lists:
            year = Year(path, folder, allow_outside)
            year.entries = entries_of(lists[name], year)
            return year
    raise data_error("split-unknown", file=path, field="split", value=split)


def _without_year(split: str, folder: Path) -> str:
    """`train` of `2012_train`, if the folder's name, or that of what it links to, ends in 2012."""
    for name in (folder.absolute().name, folder.resolve().name):
        ending = re.search("[0-9]{4}$", name)
        if ending and split.startswith(f"{ending[0]}_"):
            return split.removeprefix(f"{ending[0]}_")
    return split


def entries_of(file: Path, year: Year) -> list[Entry]:
    """The entries of a list; of a folder of annotations, one for each of its files."""
    if file == year.annotations.folder:
        return [Entry(stem, file, "") for stem in year.annotations.stems()]
    entries = []
    for number, line in enumerate(read_lines(file, MAX_LIST_BYTES), start=1):
        image_id = line.strip()
        column = _COLUMN.fullmatch(image_id)
        # "holiday 1" may be an id of its own.
        if column and not (year.annotations.find(image_id) or year.images.find(image_id)):
            image_id = column[1]
        if image_id:
            entries.append(Entry(image_id, file, number))
    return entries
