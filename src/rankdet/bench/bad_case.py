"""What a case of bad data is, and the small sound data sets that the cases spoil.

Every set has the splits train (a.jpg with a cat and a dog, b.jpg with a dog) and val (c.jpg with
both). A case changes the files of one of them, mostly b, and says what a user must then be told.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from rankdet.data.reading.rules import RULES

SIZE = (64, 48)  # width, height of every sound picture
CLASSES = ("cat", "dog")
BOXES = {  # (class, left, top, right, bottom), edges counted from 0
    "a": [("cat", 8, 8, 24, 28), ("dog", 30, 10, 60, 40)],
    "b": [("dog", 10, 12, 50, 36)],
    "c": [("cat", 4, 6, 40, 30), ("dog", 20, 12, 62, 44)],
}
SPLITS = {"train": ("a", "b"), "val": ("c",)}


@dataclass(frozen=True)
class Link:
    """A symbolic link in a data set."""

    target: str


@dataclass(frozen=True)
class Pipe:
    """A named pipe in a data set: opening it waits for ever."""


@dataclass(frozen=True)
class Folder:
    """An empty folder where a file should be."""


Files = dict[str, "bytes | Link | Pipe | Folder"]  # content by path in the data set's folder


@dataclass(frozen=True)
class Case:
    """One way in which a data set is bad (or only unusual), and what must come of it.

    code: the rule that is broken; "" if the data is sound and nothing is to be said. count: how
    often. also: other codes that come with it. file, field, value: what the message must hold.
    is_refused: the whole data set is, by a DataError. found_by: "reading" the split, "decoding" the
    pixels, or "checking" all splits together. images, objects: (seen, used) of the split train
    after reading; None: as the rule's outcome gives it. num_ignored: difficult and crowd objects.
    """

    name: str
    format: Literal["voc", "coco", "yolo"]
    spoil: Callable[[Files], None]
    code: str = ""
    file: str = ""
    field: str = ""
    value: str = ""
    count: int = 1
    also: tuple[str, ...] = ()
    is_refused: bool = False
    found_by: Literal["reading", "decoding", "checking"] = "reading"
    images: tuple[int, int] | None = None
    objects: tuple[int, int] | None = None
    num_ignored: int = 0
    allow_outside: bool = False

    def write(self, folder: Path) -> None:
        """Make the data set in `folder`, beside nothing else of value."""
        files = SOUND[self.format]()
        self.spoil(files)
        write_files(files, folder)

    @property
    def is_fault(self) -> bool:
        """Whether `rankdet check` must exit with 1."""
        return any(RULES[code].level == "fault" for code in (self.code, *self.also) if code)

    def expected_images(self) -> tuple[int, int]:
        """(seen, used) of the split train after reading."""
        is_skipped = self.found_by == "reading" and self._outcome() == "image skipped"
        return self.images or ((2, 1) if is_skipped else (2, 2))

    def expected_objects(self) -> tuple[int, int]:
        is_lost = self._outcome() in ("image skipped", "object dropped")
        return self.objects or ((3, 2) if is_lost and self.found_by == "reading" else (3, 3))

    def _outcome(self) -> str:
        return RULES[self.code].outcome if self.code else "kept"


def write_files(files: Files, folder: Path) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.target)
        elif isinstance(content, Pipe):
            os.mkfifo(path)
        elif isinstance(content, Folder):
            path.mkdir()
        else:
            path.write_bytes(content)


def picture(seed: int, size: tuple[int, int] = SIZE) -> Image.Image:
    """A smooth colourful RGB picture, another one for every seed."""
    width, height = size
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    waves = [np.sin(x / (5 + seed % 7) + k) * np.cos(y / 7 + seed * k) for k in range(3)]
    return Image.fromarray((127 + 100 * np.stack(waves, axis=2)).astype(np.uint8))


def encode(image: Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    """The bytes of an image file."""
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def voc_object(name: str, *edges: float, rest: str = "<difficult>0</difficult>") -> str:
    """An <object>; VOC counts pixels from 1 and includes the last one."""
    left, top, right, bottom = edges
    values = {"xmin": left + 1, "ymin": top + 1, "xmax": right, "ymax": bottom}
    box = "".join(f"<{key}>{value}</{key}>" for key, value in values.items())
    return f"<object><name>{name}</name>{rest}<bndbox>{box}</bndbox></object>"


def voc_xml(name: str, objects: str | None = None, size: tuple[int, int] | None = SIZE) -> str:
    """A VOC annotation; `objects` instead of the picture's own."""
    if objects is None:
        objects = "\n".join(voc_object(*item) for item in BOXES[name])
    given = "<size><width>{}</width><height>{}</height><depth>3</depth></size>\n"
    return (
        f"<annotation>\n<filename>{name}.jpg</filename>\n{given.format(*size) if size else ''}"
        f"{objects}\n</annotation>\n"
    )


def sound_voc() -> Files:
    """A VOC data set without a fault."""
    files: Files = {"classes.txt": b"cat\ndog\n"}
    for split, names in SPLITS.items():
        files[f"ImageSets/Main/{split}.txt"] = "".join(f"{name}\n" for name in names).encode()
        for name in names:
            files[f"JPEGImages/{name}.jpg"] = encode(picture(ord(name)))
            files[f"Annotations/{name}.xml"] = voc_xml(name).encode()
    return files


def coco_document(split: str) -> dict[str, Any]:
    """The annotations of a split as COCO writes them."""
    width, height = SIZE
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, name in enumerate(SPLITS[split], 1):
        entry = {"id": number, "file_name": f"{name}.jpg", "width": width, "height": height}
        images.append(entry)
        for label, left, top, right, bottom in BOXES[name]:
            box = [left, top, right - left, bottom - top]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": CLASSES.index(label) + 1,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
    categories = [{"id": index, "name": name} for index, name in enumerate(CLASSES, 1)]
    return {"images": images, "annotations": annotations, "categories": categories}


COCO_TRAIN = "annotations/instances_train2017.json"


def sound_coco() -> Files:
    """A COCO data set without a fault."""
    files: Files = {}
    for split, names in SPLITS.items():
        document = json.dumps(coco_document(split), indent=1)
        files[f"annotations/instances_{split}2017.json"] = document.encode()
        for name in names:
            files[f"{split}2017/{name}.jpg"] = encode(picture(ord(name)))
    return files


def yolo_text(name: str) -> str:
    """The label file of a picture: class, x centre, y centre, width, height, as fractions."""
    width, height = SIZE
    lines = []
    for label, left, top, right, bottom in BOXES[name]:
        x, y = (left + right) / 2 / width, (top + bottom) / 2 / height
        w, h = (right - left) / width, (bottom - top) / height
        lines.append(f"{CLASSES.index(label)} {x:.6f} {y:.6f} {w:.6f} {h:.6f}\n")
    return "".join(lines)


YOLO_YAML = "path: .\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n"


def sound_yolo() -> Files:
    """A YOLO data set without a fault."""
    files: Files = {"data.yaml": YOLO_YAML.encode()}
    for split, names in SPLITS.items():
        for name in names:
            files[f"images/{split}/{name}.jpg"] = encode(picture(ord(name)))
            files[f"labels/{split}/{name}.txt"] = yolo_text(name).encode()
    return files


SOUND: dict[str, Callable[[], Files]] = {"voc": sound_voc, "coco": sound_coco, "yolo": sound_yolo}
TRAIN = {"voc": "train", "coco": "train2017", "yolo": "train"}  # the split that cases spoil


def replace(path: str, content: str | bytes | Link | Pipe | Folder) -> Callable[[Files], None]:
    """A spoiler that puts other content in place of a file; text is written as UTF-8."""

    def spoil(files: Files) -> None:
        files[path] = content.encode() if isinstance(content, str) else content

    return spoil


def remove(path: str) -> Callable[[Files], None]:
    def spoil(files: Files) -> None:
        del files[path]

    return spoil
