"""PASCAL VOC: lists of image ids, and for each image an XML file with 1-based, inclusive boxes.

The folder of a year holds JPEGImages, Annotations and ImageSets/Main; a VOCdevkit holds years. Any
class names will do. What stands in an XML file is judged in `voc_xml`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankdet.data.reading import images, voc_xml
from rankdet.data.reading.annotations import RawImage, RawObject
from rankdet.data.reading.classes import did_you_mean, read_class_list
from rankdet.data.reading.findings import Finding, Findings, data_error
from rankdet.data.reading.parsing import MAX_LIST_BYTES, read_lines
from rankdet.data.reading.paths import contained
from rankdet.data.reading.split import Parsed
from rankdet.errors import DataError

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)
LOOKED_FOR = "VOC: folders JPEGImages and Annotations, here or in VOC<year> folders"

_LISTS = ("train", "val", "trainval", "test")  # the usual ones, in the order of `split_names`
_COLUMN = re.compile(r"(.*\S)\s+(-1|0|1)")  # an id, and whether a class is in the image


def matches(path: Path) -> bool:
    """Whether `path` is a VOCdevkit, a folder that holds one, or the folder of one year."""
    return bool(_years(path))


def split_names(path: Path) -> tuple[str, ...]:
    """`<year>_<list>` for every list of a devkit, `<list>` for the folder of one year.

    The folder of one year answers to `<year>_<list>` too, if its name ends with the year.
    """
    return tuple(prefix + name for prefix, folder in _years(path) for name in _lists(folder))


def parse(
    path: Path,
    split: str,
    *,
    classes: tuple[str, ...] | None,
    findings: Findings,
    allow_outside: bool,
) -> Parsed:
    """The images of a split. num_images counts the entries of the list, unusable ones included.

    Without a class list, and without a classes.txt in `path`: the 20 classes of VOC if the split
    has no others, or else all names of the data set, sorted, so that its splits agree.
    """
    year = _located(path, split, allow_outside)
    is_annotated = year.has_annotations() or not split.endswith("test")
    if classes is None and (path / "classes.txt").is_file():
        classes = read_class_list(path / "classes.txt")
    ready: dict[str, voc_xml.Annotation | DataError] = {}
    if classes is None:
        ready = {entry.image_id: year.read(entry.image_id) for entry in year.entries}
        classes = _classes_of(path, year, ready)
    return Parsed(
        classes=classes,
        category_ids=tuple(range(1, len(classes) + 1)),
        is_annotated=is_annotated,
        images=_raw_images(year, ready, classes, findings, is_annotated),
        num_images=len(year.entries),
    )


@dataclass(frozen=True)
class _Entry:
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
        for name, is_link in _scan(folder):
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
class _Year:
    """The folder of a year, and one list of it."""

    folder: Path
    allow_outside: bool
    images: _Files = field(init=False)
    annotations: _Files = field(init=False)
    entries: list[_Entry] = field(init=False)

    def __post_init__(self) -> None:
        self.images = _Files(self.folder / "JPEGImages", tuple(images.EXTENSIONS))
        self.annotations = _Files(self.folder / "Annotations", (".xml",))
        self.entries = []

    def leaves(self, image_id: str) -> bool:
        """Whether an id leads out of the folder by its name."""
        is_inside = not image_id.startswith("/") and ".." not in image_id.split("/")
        return not (is_inside or self.allow_outside)

    def has_annotations(self) -> bool:
        """Whether any image of the list has one."""
        ids = (entry.image_id for entry in self.entries)
        return any(not self.leaves(item) and self.annotations.find(item) for item in ids)

    def read(self, image_id: str) -> voc_xml.Annotation | DataError:
        """The annotation of an image, or why there is none."""
        found = None if self.leaves(image_id) else self.annotations.find(image_id)
        if found is None:
            file = self.annotations.folder / f"{image_id}.xml"
            return data_error("annotation-missing", file=file)
        try:
            return voc_xml.read_annotation(self.annotations.folder / found[0])
        except DataError as error:
            return error

    def image_path(self, image_id: str, filename: str) -> Path | None:
        """The image file, which need not exist; None if it lies outside of the folder.

        `filename` is what the XML says. It is often wrong in copies of data sets, and therefore
        asked only if no file is named after the id.
        """
        folder = self.images.folder
        found = self.images.find(image_id)
        if found is None:
            path = contained(folder, filename, self.allow_outside)
            return path if path is None or _is_file(path) else folder / f"{image_id}.jpg"
        name, is_link = found
        # To resolve a path takes a system call per folder: not for plain files, which cannot leave.
        if is_link or "/" in name:
            return contained(folder, name, self.allow_outside)
        return folder / name


def _years(path: Path) -> list[tuple[str, Path]]:
    """(what the names of its splits begin with, folder) for every year."""
    if _is_year(path):
        return [("", path)]
    for devkit in (path, path / "VOCdevkit"):
        names = sorted(name for name, _ in _scan(devkit) if re.fullmatch("VOC[0-9]+", name))
        years = [(f"{name[3:]}_", devkit / name) for name in names if _is_year(devkit / name)]
        if years:
            return years
    return []


def _is_year(folder: Path) -> bool:
    has_lists = (folder / "ImageSets" / "Main").is_dir()
    has_annotations = (folder / "Annotations").is_dir()
    return (folder / "JPEGImages").is_dir() and (has_annotations or has_lists)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, for one
        return False


def _scan(folder: Path) -> list[tuple[str, bool]]:
    """(name, whether it is a link) of everything in a folder; nothing if there is no folder."""
    try:
        with os.scandir(folder) as found:
            return [(item.name, item.is_symlink()) for item in found if item.name[0] != "."]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise data_error("file-unreadable", file=folder, detail=f"{reason}.") from error


def _lists(folder: Path) -> dict[str, Path]:
    """The lists of a year by name; without any, the one list `all`, which is the folder itself."""
    main = folder / "ImageSets" / "Main"
    if not main.is_dir():
        main = folder / "ImageSets"
    files = {name[:-4]: main / name for name, _ in _scan(main) if name.endswith(".txt")}
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
    try:
        with files[name].open("rb") as stream:
            start = stream.read(1000).decode("utf-8-sig", errors="replace")
    except OSError:  # whoever asks for this split is told
        return False
    lines = start.split("\n")[:-1] or [start]  # the last one may have been cut
    first = next((line.strip() for line in lines if line.strip()), "")
    return _COLUMN.fullmatch(first) is not None


def _located(path: Path, split: str, allow_outside: bool) -> _Year:
    """The year and list of a split."""
    years = _years(path)
    if not years:
        raise data_error("data-unrecognised", file=path, detail=f"Looked for {LOOKED_FOR}.")
    for prefix, folder in years:
        lists = _lists(folder)
        name = split.removeprefix(prefix)
        if not prefix and name not in lists:
            ending = re.search("[0-9]{4}$", path.resolve().name)
            name = split.removeprefix(f"{ending[0]}_") if ending else split
        if split.startswith(prefix) and name in lists:
            year = _Year(folder, allow_outside)
            year.entries = _entries(lists[name], year)
            return year
    raise data_error("split-unknown", file=path, field="split", value=split)


def _entries(file: Path, year: _Year) -> list[_Entry]:
    """The entries of a list; of a folder of annotations, one for each of its files."""
    if file == year.annotations.folder:
        return [_Entry(stem, file, "") for stem in year.annotations.stems()]
    entries = []
    for number, line in enumerate(read_lines(file, MAX_LIST_BYTES), start=1):
        image_id = line.strip()
        column = _COLUMN.fullmatch(image_id)
        # "holiday 1" may be an id of its own.
        if column and not (year.annotations.find(image_id) or year.images.find(image_id)):
            image_id = column[1]
        if image_id:
            entries.append(_Entry(image_id, file, number))
    return entries


def _classes_of(
    path: Path, year: _Year, ready: dict[str, voc_xml.Annotation | DataError]
) -> tuple[str, ...]:
    """The class list that the names in the annotations make."""
    names: set[str] = set()
    for annotation in ready.values():
        if isinstance(annotation, voc_xml.Annotation):
            names.update(item.name for item in annotation.objects if item.name is not None)
    if names and names <= set(CLASSES):
        return CLASSES
    for _, folder in _years(path):
        files = _Files(folder / "Annotations", (".xml",))
        for stem in files.stems():
            found = files.find(stem)
            if found is not None and not (folder == year.folder and stem in ready):
                names |= voc_xml.read_names(files.folder / found[0])
    return CLASSES if names <= set(CLASSES) else tuple(sorted(names))


def _raw_images(
    year: _Year,
    ready: dict[str, voc_xml.Annotation | DataError],
    classes: tuple[str, ...],
    findings: Findings,
    is_annotated: bool,
) -> Iterator[RawImage]:
    """The images that can be used as far as the annotations tell; the others are counted."""
    labels = {name: label for label, name in enumerate(classes)}
    seen: set[str] = set()
    for position, entry in enumerate(year.entries):
        if entry.image_id in seen:
            _skip(entry.finding("image-entry-twice"), findings)
            continue
        seen.add(entry.image_id)
        if year.leaves(entry.image_id):
            _skip(entry.finding("image-outside"), findings)
            continue
        annotation: voc_xml.Annotation | DataError
        if is_annotated:
            annotation = ready.pop(entry.image_id, None) or year.read(entry.image_id)
        else:
            annotation = voc_xml.Annotation(file=str(year.images.folder / entry.image_id))
        if isinstance(annotation, DataError):
            _skip(Finding.from_error(annotation), findings)
            continue
        path = year.image_path(entry.image_id, annotation.filename)
        if path is None:
            _skip(_outside(year, entry, annotation), findings, len(annotation.objects))
            continue
        for note in annotation.findings:
            findings.add(note)
        yield RawImage(
            path=path,
            file=annotation.file,
            image_id=position,
            declared_size=annotation.size,
            objects=_raw_objects(annotation, labels, findings),
        )


def _skip(finding: Finding, findings: Findings, num_objects: int = 0) -> None:
    """Count an image that `assemble` will not see."""
    findings.images.seen += 1
    findings.objects.seen += num_objects
    findings.skip_image(finding, num_objects)


def _outside(year: _Year, entry: _Entry, annotation: voc_xml.Annotation) -> Finding:
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
            findings.objects.seen += 1
            findings.drop_object(finding)
            continue
        assert item.name is not None
        assert item.corners is not None
        kept.append(RawObject(item.corners, labels[item.name], item.is_ignored, where=item.where))
    return kept
