"""Written data sets come back as they were; what is in the way stays; nothing is left half done."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
import yaml
from PIL import Image

from rankdet.data.dataset import FileDataset
from rankdet.data.reading import formats, rules
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.write import synthesise, write_dataset
from rankdet.errors import DataError
from rankdet.structures import Target

FORMATS = ("voc", "coco", "yolo")
ODD_NAMES = ("a & b", "<c>", 'it\'s "d"', "e: f", "# g", "größe 猫", "no", "7", "- x", "{y}", "%z")


@dataclass
class Handmade:
    """Two images: one with two objects, one without any."""

    classes: tuple[str, ...] = ("cat", "dog")
    category_ids: tuple[int, ...] = (3, 8)
    is_annotated: bool = True
    boxes: tuple = ((0.0, 0.0, 7.0, 5.0), (2.0, 1.0, 4.0, 3.0))

    def __len__(self):
        return 2

    def name(self, index):
        return f"image {index}"

    def size(self, index):
        return 5, 7

    def image(self, index):
        values = torch.arange(3 * 5 * 7, dtype=torch.uint8).reshape(3, 5, 7)
        return values + 40 * index

    def target(self, index):
        boxes = torch.tensor(self.boxes if index == 0 else ()).reshape(-1, 4)
        labels = torch.arange(len(boxes)) % len(self.classes)
        areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        return Target(boxes, labels, labels == 1, areas, index, (5, 7))


def read(path, split, format=None):
    result = formats.read_split(path, split, format=format)
    faults = {code for code in result.findings.counts if rules.RULES[code].level == "fault"}
    assert not faults
    assert not result.findings.images.dropped
    assert not result.findings.objects.dropped
    assert result.findings.num_clipped == 0
    return FileDataset(result)


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("format", FORMATS)
def test_the_embedded_set_reads_back_equal(tmp_path, format):
    out = tmp_path / "data"
    synthesise(out, format, train=25, val=10, seed=3, size=96)
    assert formats.recognise(out) == format
    assert formats.split_names(out) == ("train", "val")
    num_ignored = 0
    for split, length in (("train", 25), ("val", 10)):
        drawn, found = SyntheticDataset(split, length, seed=3, size=96), read(out, split)
        assert found.classes == drawn.classes
        assert len(found) == length
        for index in range(length):
            assert torch.equal(found.image(index), drawn.image(index))
            one, other = found.target(index), drawn.target(index)
            assert torch.equal(one.boxes, other.boxes)
            assert torch.equal(one.labels, other.labels)
            assert torch.equal(one.areas, other.areas)
            is_ignored = other.is_ignored & (format != "yolo")
            assert torch.equal(one.is_ignored, is_ignored)
            num_ignored += int(is_ignored.sum())
    assert num_ignored > 0 or format == "yolo"


def test_voc_by_hand(tmp_path):
    write_dataset({"test": Handmade()}, tmp_path / "out", "voc")
    out = tmp_path / "out"
    assert sorted(digests(out)) == [
        "Annotations/test_000000.xml",
        "Annotations/test_000001.xml",
        "ImageSets/Main/test.txt",
        "JPEGImages/test_000000.png",
        "JPEGImages/test_000001.png",
        "classes.txt",
    ]
    assert (out / "classes.txt").read_text() == "cat\ndog\n"
    assert (out / "ImageSets/Main/test.txt").read_text() == "test_000000\ntest_000001\n"
    lines = (out / "Annotations/test_000000.xml").read_text().split()
    text = "".join(lines)
    assert "<filename>test_000000.png</filename>" in text
    assert "<size><width>7</width><height>5</height><depth>3</depth></size>" in text
    first, second = text.split("<object>")[1:]
    assert "<name>cat</name>" in first
    assert "<difficult>0</difficult>" in first
    assert "<xmin>1</xmin><ymin>1</ymin><xmax>7</xmax><ymax>5</ymax>" in first
    assert "<name>dog</name>" in second
    assert "<difficult>1</difficult>" in second
    assert "<xmin>3</xmin><ymin>2</ymin><xmax>4</xmax><ymax>3</ymax>" in second
    assert "<object>" not in (out / "Annotations/test_000001.xml").read_text()


def test_coco_by_hand(tmp_path):
    write_dataset({"val2017": Handmade()}, tmp_path / "out", "coco")
    out = tmp_path / "out"
    assert sorted(digests(out)) == [
        "annotations/instances_val2017.json",
        "val2017/000000.png",
        "val2017/000001.png",
    ]
    content = json.loads((out / "annotations/instances_val2017.json").read_text())
    assert content == {
        "images": [
            {"id": 1, "file_name": "000000.png", "width": 7, "height": 5},
            {"id": 2, "file_name": "000001.png", "width": 7, "height": 5},
        ],
        "annotations": [
            {
                "id": 1,
                "image_id": 1,
                "category_id": 3,
                "bbox": [0, 0, 7, 5],
                "area": 35,
                "iscrowd": 0,
            },
            {
                "id": 2,
                "image_id": 1,
                "category_id": 8,
                "bbox": [2, 1, 2, 2],
                "area": 4,
                "iscrowd": 1,
            },
        ],
        "categories": [{"id": 3, "name": "cat"}, {"id": 8, "name": "dog"}],
    }


def test_yolo_by_hand(tmp_path):
    write_dataset({"train": Handmade(), "val": Handmade()}, tmp_path / "out", "yolo")
    out = tmp_path / "out"
    assert sorted(digests(out)) == [
        "data.yaml",
        *(f"images/{split}/00000{i}.png" for split in ("train", "val") for i in (0, 1)),
        *(f"labels/{split}/00000{i}.txt" for split in ("train", "val") for i in (0, 1)),
    ]
    assert yaml.safe_load((out / "data.yaml").read_text()) == {
        "train": "images/train",
        "val": "images/val",
        "names": {0: "cat", 1: "dog"},
    }
    assert (out / "labels/train/000000.txt").read_text() == (
        "0 0.5 0.5 1.0 1.0\n1 0.42857142857142855 0.4 0.2857142857142857 0.4\n"
    )
    assert (out / "labels/train/000001.txt").read_text() == ""


def test_images_are_lossless(tmp_path):
    write_dataset({"train": Handmade()}, tmp_path / "out", "yolo")
    with Image.open(tmp_path / "out/images/train/000001.png") as image:
        assert image.mode == "RGB"
        assert image.size == (7, 5)
        assert image.getpixel((6, 0)) == (46, 81, 116)


@pytest.mark.parametrize("format", FORMATS)
def test_odd_class_names_come_back(tmp_path, format):
    boxes = tuple((0.0, 0.0, 1.0 + i % 7, 1.0 + i % 5) for i in range(len(ODD_NAMES)))
    data = Handmade(classes=ODD_NAMES, category_ids=tuple(range(len(ODD_NAMES))), boxes=boxes)
    write_dataset({"train": data}, tmp_path / "out", format)
    found = read(tmp_path / "out", "train")
    assert found.classes == ODD_NAMES
    assert found.target(0).labels.tolist() == list(range(len(ODD_NAMES)))


@pytest.mark.parametrize("format", FORMATS)
def test_boxes_between_pixels_come_back(tmp_path, format):
    data = Handmade(boxes=((0.3, 0.1, 6.7, 4.9), (1 / 3, 0.7, 1.1, 2.6)))
    write_dataset({"train": data}, tmp_path / "out", format)
    torch.testing.assert_close(
        read(tmp_path / "out", "train").target(0).boxes, data.target(0).boxes, atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("format", FORMATS)
def test_a_data_set_can_be_converted(tmp_path, format):
    synthesise(tmp_path / "first", "voc", train=3, val=2, size=64)
    splits = {name: read(tmp_path / "first", name) for name in ("train", "val")}
    write_dataset(splits, tmp_path / "second", format)
    for name, data in splits.items():
        found = read(tmp_path / "second", name)
        assert found.classes == data.classes
        for index in range(len(data)):
            assert torch.equal(found.target(index).boxes, data.target(index).boxes)
            assert torch.equal(found.image(index), data.image(index))


def test_classes_keep_their_order_in_coco(tmp_path):
    # COCO orders classes by their ids, which here run the other way.
    write_dataset({"train": Handmade(category_ids=(8, 3))}, tmp_path / "out", "coco")
    found = read(tmp_path / "out", "train")
    assert found.classes == ("cat", "dog")
    assert found.category_ids == (1, 2)


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_data_give_the_same_bytes(tmp_path, format):
    for name in ("first", "second"):
        synthesise(tmp_path / name, format, train=2, val=1, size=64)
    assert digests(tmp_path / "first") == digests(tmp_path / "second")


def test_a_moved_data_set_reads_as_before(tmp_path):
    synthesise(tmp_path / "old", "yolo", train=2, val=1, size=64)
    (tmp_path / "old").rename(tmp_path / "new")
    assert len(read(tmp_path / "new", "train")) == 2


def test_progress_is_told(tmp_path):
    told = []
    synthesise(
        tmp_path / "out",
        "coco",
        train=3,
        val=2,
        size=64,
        on_start=told.append,
        on_image=lambda: told.append("image"),
    )
    assert told == [5, *["image"] * 5]


def test_a_split_of_no_images_is_left_out(tmp_path):
    synthesise(tmp_path / "out", "voc", train=0, val=2, size=64)
    assert formats.split_names(tmp_path / "out") == ("val",)
    with pytest.raises(ValueError, match="expected at least one split with images"):
        synthesise(tmp_path / "none", "voc", train=0, val=0)


@pytest.mark.parametrize("format", FORMATS)
def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path, format):
    out = tmp_path / "out"
    out.mkdir()
    (out / ".mine").write_text("precious")
    with pytest.raises(DataError) as caught:
        synthesise(out, format, train=1, val=1, size=64)
    assert caught.value.code == "out-not-empty"
    assert str(out) in str(caught.value)
    assert [path.name for path in out.iterdir()] == [".mine"]
    assert (out / ".mine").read_text() == "precious"
    assert list(tmp_path.iterdir()) == [out]


def test_a_file_in_the_way_is_refused_and_left_alone(tmp_path):
    out = tmp_path / "out"
    out.write_text("precious")
    with pytest.raises(DataError, match="It is a file"):
        synthesise(out, "voc", train=1, val=1, size=64)
    assert out.read_text() == "precious"


def test_an_empty_folder_and_new_parents_are_fine(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for out in (tmp_path / "link", tmp_path / "a/b/new"):
        synthesise(out, "yolo", train=1, val=1, size=64)
        assert len(read(out, "train")) == 1
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "empty", "link"]


def test_the_folder_has_the_rights_of_any_new_folder(tmp_path):
    (tmp_path / "usual").mkdir()
    synthesise(tmp_path / "out", "yolo", train=1, val=0, size=64)
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError, OSError(28, "No space left")])
def test_an_interrupted_write_leaves_nothing(tmp_path, format, fault):
    seen = []

    def stop():
        seen.append(sorted(path.name for path in tmp_path.iterdir()))
        if len(seen) == 2:
            raise fault

    expected = DataError if isinstance(fault, OSError) else fault
    with pytest.raises(expected) as caught:
        synthesise(tmp_path / "out", format, train=3, val=1, size=64, on_image=stop)
    assert "out" not in seen[0]
    assert list(tmp_path.iterdir()) == []
    if isinstance(fault, OSError):
        assert caught.value.code == "out-unwritable"
        assert "No space left" in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_without_rights_is_a_data_error(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(DataError, match="the output cannot be written"):
        synthesise(tmp_path / "closed" / "out", "voc", train=1, val=1, size=64)


def test_a_place_below_a_file_is_a_data_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError) as caught:
        synthesise(tmp_path / "file" / "out", "voc", train=1, val=1, size=64)
    assert caught.value.code == "out-unwritable"


@pytest.mark.parametrize(
    "name", [" cat", "cat\n", "a\nb", "a\x00", "\ufeffcat", "\ud800", "a\x85b"]
)
def test_names_that_a_format_cannot_hold_are_refused(tmp_path, name):
    with pytest.raises(DataError) as caught:
        write_dataset({"train": Handmade(classes=(name, "dog"))}, tmp_path / "out", "voc")
    assert caught.value.code == "classes-invalid"
    assert list(tmp_path.iterdir()) == []


def test_splits_with_other_classes_are_refused(tmp_path):
    splits = {"train": Handmade(), "val": Handmade(classes=("cat", "cow"))}
    with pytest.raises(DataError) as caught:
        write_dataset(splits, tmp_path / "out", "coco")
    assert caught.value.code == "classes-differ"
    assert "'train' and 'val'" in str(caught.value)


@pytest.mark.parametrize(
    ("splits", "format", "message"),
    [
        ({"train": Handmade()}, "pascal", "expected one of voc, coco, yolo, got 'pascal'"),
        ({"../x": Handmade()}, "voc", "expected a name of letters, digits, - and _, got '../x'"),
        ({"": Handmade()}, "voc", "expected a name"),
        ({"names": Handmade()}, "yolo", "YOLO has train, val, test only, got names"),
        ({"test": Handmade(is_annotated=False)}, "coco", "expected annotated images"),
        ({}, "coco", "expected at least one split"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, splits, format, message):
    with pytest.raises(ValueError, match=message):
        write_dataset(splits, tmp_path / "out", format)
    assert list(tmp_path.iterdir()) == []


def test_the_writer_starts_without_torch():
    code = "import sys, rankdet.data.write; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
