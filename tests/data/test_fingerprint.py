"""A fingerprint tells different data apart, and only different data."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rankdet.data.dataset import DetectionDataset, FileDataset, open_dataset
from rankdet.data.fingerprint import fingerprint
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.write import write_dataset
from rankdet.structures import Target


class Fake:
    """A data set of one image and one object, written down by hand."""

    category_ids = (1, 2)
    is_annotated = True

    def __init__(self, **changes: Any) -> None:
        self.classes: tuple[str, ...] = changes.get("classes", ("cat", "dog"))
        self.names: tuple[str, ...] = changes.get("names", ("data/a.jpg",))
        self.sizes: tuple[tuple[int, int], ...] = changes.get("sizes", ((4, 6),))
        self.box = changes.get("box", [1.0, 2.0, 3.0, 4.0])
        self.label = changes.get("label", 1)
        self.is_ignored = changes.get("is_ignored", True)
        self.owner = changes.get("owner", 0)  # which image the object stands in

    def __len__(self) -> int:
        return len(self.names)

    def name(self, index: int) -> str:
        return self.names[index]

    def size(self, index: int) -> tuple[int, int]:
        return self.sizes[index]

    def image(self, index: int) -> torch.Tensor:
        raise AssertionError("pixels were asked for")

    def target(self, index: int) -> Target:
        target = Target(
            boxes=torch.tensor([self.box]),
            labels=torch.tensor([self.label]),
            is_ignored=torch.tensor([self.is_ignored]),
            areas=torch.tensor([4.0]),
            image_id=index,
            size=self.sizes[index],
        )
        return target if index == self.owner else target.select(torch.zeros(1, dtype=torch.bool))


TWO = {"names": ("a.jpg", "b.jpg"), "sizes": ((4, 6), (4, 6))}


def test_the_bytes_are_those_worked_out_by_hand() -> None:
    parts = [
        (2).to_bytes(8, "little"),
        b"cat",
        b"dog",
        (1).to_bytes(8, "little"),
        b"a.jpg",
        np.array([4, 6], "<i8").tobytes(),
        np.array([1], "<i8").tobytes(),
        np.array([1, 2, 3, 4], "<f4").tobytes(),
        np.array([1], "<i8").tobytes(),
        b"\1",
    ]
    content = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    assert fingerprint(Fake()) == hashlib.sha256(content).hexdigest()[:16]


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ("cat", "bus")},
        {"classes": ("cat",)},
        {"classes": ("dog", "cat")},
        {"classes": ("catd", "og")},
        {"names": ("data/b.jpg",)},
        {"sizes": ((6, 4),)},
        {"box": [1.0, 2.0, 3.0, 4.5]},
        {"label": 0},
        {"is_ignored": False},
    ],
)
def test_any_change_is_seen(change: dict[str, Any]) -> None:
    assert fingerprint(Fake(**change)) != fingerprint(Fake())


def test_the_image_of_an_object_is_seen() -> None:
    assert fingerprint(Fake(**TWO, owner=0)) != fingerprint(Fake(**TWO, owner=1))


def test_the_folder_of_an_image_does_not_count() -> None:
    assert fingerprint(Fake(names=("elsewhere/deep/a.jpg",))) == fingerprint(Fake())


def test_a_data_set_without_images_has_one() -> None:
    assert len(fingerprint(Fake(names=(), sizes=()))) == 16


def test_the_embedded_set_is_told_apart_by_all_of_its_settings() -> None:
    sets = [
        SyntheticDataset("train", 40),
        SyntheticDataset("val", 40),
        SyntheticDataset("train", 41),
        SyntheticDataset("train", 40, seed=1),
        SyntheticDataset("train", 40, size=64),
        SyntheticDataset("train", 0),
    ]
    assert len({fingerprint(dataset) for dataset in sets}) == 6
    assert fingerprint(SyntheticDataset("train", 40)) == fingerprint(sets[0])


def test_another_way_of_drawing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(SyntheticDataset("val", 3))
    original = SyntheticDataset.target

    def target(self: SyntheticDataset, index: int) -> Target:
        found = original(self, index)
        return dataclasses.replace(found, boxes=found.boxes + 1)

    monkeypatch.setattr(SyntheticDataset, "target", target)
    assert fingerprint(SyntheticDataset("val", 3)) != before


def test_few_images_of_a_large_embedded_set_are_looked_at() -> None:
    assert fingerprint(SyntheticDataset("train", 10**9))


class Slow:
    """The same data set, of which only the protocol is to be seen."""

    def __init__(self, source: DetectionDataset) -> None:
        self.classes = source.classes
        self.category_ids = source.category_ids
        self.is_annotated = source.is_annotated
        for name in ("__len__", "name", "size", "image", "target"):
            setattr(self, name, getattr(source, name))
        self.length = len(source)

    def __len__(self) -> int:
        return self.length


def test_files_have_the_same_one_wherever_they_lie_and_however_they_are_read(
    tmp_path: Path,
) -> None:
    write_dataset({"val": SyntheticDataset("val", 4, size=64)}, tmp_path / "here", "voc")
    Image.new("RGB", (30, 20)).save(tmp_path / "here" / "JPEGImages" / "wide.jpg")
    content = "<annotation><object><name>ring</name><bndbox><xmin>1</xmin><ymin>1</ymin>"
    content += "<xmax>9</xmax><ymax>8</ymax></bndbox></object></annotation>"
    (tmp_path / "here" / "Annotations" / "wide.xml").write_text(content)
    with (tmp_path / "here" / "ImageSets" / "Main" / "val.txt").open("a") as stream:
        stream.write("wide\n")
    shutil.copytree(tmp_path / "here", tmp_path / "there" / "deeper")
    here = open_dataset(tmp_path / "here", "val")
    there = open_dataset(tmp_path / "there" / "deeper", "val")
    assert isinstance(here, FileDataset)
    assert len(here.annotations.boxes) > 0
    assert here.size(4) == (20, 30)
    assert fingerprint(here) == fingerprint(there) == fingerprint(Slow(here))  # type: ignore[arg-type]
    moved = FileDataset.__new__(FileDataset)
    moved.__dict__.update(here.__dict__)
    moved.annotations = dataclasses.replace(here.annotations, boxes=here.annotations.boxes + 1)
    assert fingerprint(moved) != fingerprint(here)
