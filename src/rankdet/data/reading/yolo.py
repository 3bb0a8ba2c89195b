"""Reads YOLO: a text file of labels for each image, a line `class x y width height` for each box.

x and y are the centre of the box; all four are fractions of the image's size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankdet.data.reading.annotations import RawImage, RawObject
from rankdet.data.reading.classes import choose_classes
from rankdet.data.reading.findings import BrokenRule, Finding, Findings, data_error
from rankdet.data.reading.parsing import parse_number, read_lines
from rankdet.data.reading.paths import contained, exists
from rankdet.data.reading.split import Parsed
from rankdet.data.reading.split_naming import find_split
from rankdet.data.reading.yolo_config import Config, existing_splits, is_yolo, locate, read_config
from rankdet.data.reading.yolo_files import SplitFiles, find_files
from rankdet.errors import DataError

_PIXELS = 1.5  # a fraction cannot be so large, even for a box that reaches over the edge
_MAX_UNNAMED = 20_000  # classes that have only ids: a mistyped id must not make millions

# When boxes look like corners: two corners are always in order, and read as centre and size
# many of them leave the image. Real centres and sizes may be in order (large objects), but
# then they do not leave the image.
_LEAVING = 0.05  # of the image's side
_SMALLEST_LEAVING = 3
_LEAVING_SHARE = 0.2
_ORDERED_SHARE = 0.95


def matches(path: Path) -> bool:
    """Whether this is a YAML file, or a folder with one or with images and labels."""
    return is_yolo(path)


def split_names(path: Path) -> tuple[str, ...]:
    """The splits of the YAML file or of the folders; "all" for a folder of images without parts."""
    return existing_splits(read_config(path, allow_outside=True))


def parse(
    path: Path,
    split: str,
    *,
    classes: tuple[str, ...] | None,
    findings: Findings,
    allow_outside: bool,
) -> Parsed:
    """One split, its images sorted by path or as a list has them. Labels are read on the way.

    num_images counts those images too whose label file turns out to be unreadable.
    """
    config = read_config(path, allow_outside)
    name = find_split(split, config.sources, path)
    sources = locate(config, name, allow_outside)
    files = find_files(config.root, sources, allow_outside, findings)
    is_annotated = any(files.has_label) or name != "test"
    if is_annotated and files.images and not any(files.has_label):
        detail = f"The first image is {files.images[0]}; its labels should be {files.labels[0]}."
        raise data_error(
            "labels-missing", file=config.file, field="split", value=split, detail=detail
        )
    names = config.names or _numbers_as_names(config, allow_outside)
    class_list = choose_classes({name: i for i, name in enumerate(names)}, classes, config.file)
    reader = _LabelReader(class_list.labels, config.names, config.root, allow_outside, findings)
    return Parsed(
        classes=class_list.classes,
        category_ids=class_list.category_ids,
        is_annotated=is_annotated,
        images=_raw_images(files, reader, is_annotated, findings),
        num_images=len(files.images),
    )


def _numbers_as_names(config: Config, allow_outside: bool) -> tuple[str, ...]:
    """ "0", "1", ... up to the highest class id in any split, so that the splits agree."""
    highest = 0
    for split in config.sources:
        sources = locate(config, split, allow_outside)
        files = find_files(config.root, sources, allow_outside, Findings())
        for label, has_label in zip(files.labels, files.has_label, strict=True):
            lines = _lines_if_readable(label, config.root, allow_outside) if has_label else []
            for columns in map(str.split, lines):
                number = _class_id(columns[0]) if len(columns) == 5 else None
                if number is not None and number < _MAX_UNNAMED:
                    highest = max(highest, number)
    return tuple(str(number) for number in range(highest + 1))


def _label_lines(path: Path, root: Path, allow_outside: bool) -> list[str]:
    """The lines of a label file; DataError if it is a link that leads out of the data set."""
    is_checked = path.is_symlink() and not allow_outside
    if is_checked and contained(root, str(path.absolute())) is None:
        raise data_error("file-outside", file=path)
    return read_lines(path)


def _lines_if_readable(path: Path, root: Path, allow_outside: bool) -> list[str]:
    try:
        return _label_lines(path, root, allow_outside)
    except DataError:  # found again, and reported, when its split is read
        return []


def _raw_images(
    files: SplitFiles, reader: _LabelReader, is_annotated: bool, findings: Findings
) -> Iterator[RawImage]:
    for orphan in files.orphans:
        findings.leave_out_image(Finding.of("label-without-image", file=orphan))
    entries = zip(files.images, files.labels, files.has_label, strict=True)
    for number, (image, label, has_label) in enumerate(entries, start=1):
        objects: list[RawObject] = []
        num_dropped = 0
        if has_label:
            try:
                objects, num_dropped = reader.read(label)
            except DataError as error:
                findings.leave_out_image(Finding.from_error(error))
                continue
        elif is_annotated and exists(image):  # a missing image is told of later
            findings.add(Finding.of("image-without-label", file=image))
        yield RawImage(
            path=image,
            file=str(label if has_label else image),
            image_id=number,
            objects=objects,
            is_fraction=True,
            num_dropped=num_dropped,
        )
    reader.conclude()


@dataclass
class _LabelReader:
    """Reads label files, and remembers what only all of them together can tell.

    labels: class id -> label. names: of all classes, or None if the ids are the names.
    """

    labels: dict[int, int]
    names: tuple[str, ...] | None
    root: Path
    allow_outside: bool
    findings: Findings
    num_boxes: int = 0
    num_ordered: int = 0
    leaving: list[tuple[Path, int]] = field(default_factory=list)
    has_zero: bool = False
    beyond: tuple[Path, int] | None = None  # where an id equals the number of classes

    def read(self, path: Path) -> tuple[list[RawObject], int]:
        """(objects of one file, number of lines that break a rule: counted and left out)."""
        objects = []
        num_dropped = 0
        lines = _label_lines(path, self.root, self.allow_outside)
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                objects.append(self._object(line.split(), path, number))
            except BrokenRule as fault:
                num_dropped += 1
                self.findings.leave_out_object(fault.finding(file=path, where=number))
        return objects, num_dropped

    def _object(self, columns: list[str], path: Path, line: int) -> RawObject:
        if len(columns) != 5 or any(column.startswith("#") for column in columns):
            raise BrokenRule(
                "line-columns", "line", " ".join(columns[:12]), _columns_detail(columns)
            )
        class_id = _class_id(columns[0])
        if class_id is None:
            raise BrokenRule("field-invalid", "class", columns[0], "It must be a whole number.")
        self.has_zero = self.has_zero or class_id == 0
        if self.names is not None and class_id == len(self.names) and self.beyond is None:
            self.beyond = (path, line)
        if class_id not in self.labels:
            raise BrokenRule("class-unknown", "class", columns[0], self._class_detail(class_id))
        x, y, width, height = _fractions(columns[1:])
        self._remember(x, y, width, height, path, line)
        corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        return RawObject(corners=corners, label=self.labels[class_id], where=line)

    def _class_detail(self, class_id: int) -> str:
        if self.names is None:
            return ""
        if 0 <= class_id < len(self.names):
            return f"It is {self.names[class_id]!r}."
        return f"The ids of {len(self.names)} classes are 0 to {len(self.names) - 1}."

    def _remember(
        self, x: float, y: float, width: float, height: float, path: Path, line: int
    ) -> None:
        self.num_boxes += 1
        self.num_ordered += width > x and height > y
        lowest = min(x - width / 2, y - height / 2)
        highest = max(x + width / 2, y + height / 2)
        if lowest < -_LEAVING or highest > 1 + _LEAVING:
            self.leaving.append((path, line))

    def conclude(self) -> None:
        """Add what was found over all files, once they are read."""
        if self.beyond is not None and not self.has_zero:
            file, line = self.beyond
            self.findings.add(
                Finding.of("class-ids-from-one", file=file, where=line, field="class")
            )
        if (
            len(self.leaving) >= _SMALLEST_LEAVING
            and len(self.leaving) > _LEAVING_SHARE * self.num_boxes
            and self.num_ordered >= _ORDERED_SHARE * self.num_boxes
        ):
            file, line = self.leaving[0]
            detail = (
                f"Read as centre and size, {len(self.leaving)} of {self.num_boxes} boxes leave"
                " their image."
            )
            self.findings.add(
                Finding.of("coordinates-as-corners", file=file, where=line, detail=detail)
            )


def _columns_detail(columns: list[str]) -> str:
    if any(column.startswith("#") for column in columns):
        return "Comments are not part of the format: remove it."
    if len(columns) == 6:
        return "A sixth column looks like a confidence: remove it."
    if len(columns) >= 7 and len(columns) % 2 == 1:
        return "It looks like a polygon: write the box around it."
    if len(columns) == 1 and "," in columns[0]:
        return "Separate the columns by blanks, not by commas."
    return f"There are {len(columns)}."


def _class_id(text: str) -> int | None:
    """The class id. Some programs write every column as a decimal: 3.0 or 3.000e+00 is 3."""
    value = parse_number(text)
    return None if value is None or not value.is_integer() else int(value)


def _fractions(columns: list[str]) -> tuple[float, float, float, float]:
    names = ("x centre", "y centre", "width", "height")
    numbers = []
    for name, text in zip(names, columns, strict=True):
        value = parse_number(text)
        if value is None:
            detail = "Decimals are written with a point." if "," in text else ""
            raise BrokenRule("box-not-a-number", name, text, detail)
        if not math.isfinite(value):
            raise BrokenRule("box-not-finite", name, text)
        numbers.append(value)
    if max(numbers) > _PIXELS:
        raise BrokenRule("coordinates-in-pixels", "box", " ".join(columns))
    x, y, width, height = numbers
    if width < 0 or height < 0:
        name, text = ("width", columns[2]) if width < 0 else ("height", columns[3])
        raise BrokenRule("box-swapped", name, text, "It must not be negative.")
    return x, y, width, height
