"""Formats recognised, splits and sums of them read, whatever the format."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rankdet.data
from rankdet.data.reading import formats, voc
from rankdet.data.reading.classes import checked_classes, did_you_mean
from rankdet.data.reading.split import Split
from rankdet.errors import DataError


def annotation(*objects: str) -> str:
    """A VOC annotation of a 32 x 24 image. An object is a class name; "!" in front: difficult."""
    parts = ["<annotation><size><width>32</width><height>24</height></size>"]
    for i, name in enumerate(objects):
        parts.append(
            f"<object><name>{name.lstrip('!')}</name><difficult>{int(name[0] == '!')}</difficult>"
            f"<bndbox><xmin>{i + 1}</xmin><ymin>1</ymin><xmax>{i + 9}</xmax><ymax>8</ymax></bndbox>"
            "</object>"
        )
    return "".join([*parts, "</annotation>"])


def write_year(folder: Path, lists: Mapping[str, Mapping[str, str | None]]) -> Path:
    """A year with lists {list name: {image id: annotation}}."""
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for name, contents in lists.items():
        (folder / "ImageSets/Main" / f"{name}.txt").write_text("\n".join(contents))
        for image_id, content in contents.items():
            Image.new("RGB", (32, 24)).save(folder / "JPEGImages" / f"{image_id}.jpg")
            if content is not None:
                (folder / "Annotations" / f"{image_id}.xml").write_text(content)
    return folder


@pytest.fixture
def devkit(tmp_path: Path) -> Path:
    folder = tmp_path / "VOCdevkit"
    early = {"1": annotation("cat", "!dog"), "2": annotation()}
    write_year(folder / "VOC2007", {"trainval": early, "test": {"3": annotation("bird")}})
    late = {"1": annotation("!bus"), "5": "<broken"}
    write_year(folder / "VOC2012", {"trainval": late, "test": {"6": None}})
    return folder


def write_coco(folder: Path, categories: Mapping[str, list[str]]) -> Path:
    """A COCO set {split: class names} with one image and one object in each split."""
    (folder / "annotations").mkdir(parents=True)
    for number, (split, names) in enumerate(categories.items(), start=1):
        (folder / split).mkdir()
        Image.new("RGB", (32, 24)).save(folder / split / f"{number}.jpg")
        content = {
            "images": [{"id": number, "file_name": f"{number}.jpg", "width": 32, "height": 24}],
            "annotations": [
                {"id": 1, "image_id": number, "category_id": 1, "bbox": [1, 2, 10, 12], "area": 120}
                | {"iscrowd": 0}
            ],
            "categories": [{"id": i, "name": name} for i, name in enumerate(names, start=1)],
        }
        path = folder / "annotations" / f"instances_{split}.json"
        path.write_text(json.dumps(content))
    return folder


def reads(*arguments: Any, **keywords: Any) -> Split:
    """read_split, after a look at the counts."""
    split = formats.read_split(*arguments, **keywords)
    assert split.findings.images.reconciles()
    assert split.findings.objects.reconciles()
    assert split.findings.images.used == len(split)
    assert split.findings.objects.used == len(split.annotations.boxes)
    return split


def refused(code: str, *arguments: Any, **keywords: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        formats.read_split(*arguments, **keywords)
    assert caught.value.code == code
    return caught.value


# Recognition


def test_voc_and_coco_are_recognised(devkit: Path, tmp_path: Path) -> None:
    coco = write_coco(tmp_path / "coco", {"train2017": ["a"], "val2017": ["a"]})
    assert formats.FORMATS == ("voc", "coco", "yolo")
    assert formats.recognise(devkit) == "voc"
    assert formats.recognise(str(devkit / "VOC2007")) == "voc"
    assert formats.recognise(coco) == "coco"
    assert formats.split_names(coco) == ("train2017", "val2017")
    assert formats.split_names(str(devkit)) == (
        *("2007_trainval", "2007_test", "2012_trainval", "2012_test"),
    )


def test_yolo_is_recognised_and_summed(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for part in ("images", "labels"):
            (tmp_path / part / split).mkdir(parents=True)
        Image.new("RGB", (32, 24)).save(tmp_path / "images" / split / f"{split}.jpg")
        (tmp_path / "labels" / split / f"{split}.txt").write_text("1 0.5 0.5 0.25 0.5\n")
    (tmp_path / "data.yaml").write_text("train: images/train\nval: images/val\nnames: [a, b]\n")
    assert formats.recognise(tmp_path) == "yolo"
    split = reads(tmp_path, "train+val")
    assert (split.format, split.classes) == ("yolo", ("a", "b"))
    assert split.annotations.boxes.tolist() == [[12, 6, 20, 18]] * 2


def test_what_was_looked_for_is_told(tmp_path: Path) -> None:
    for call in (formats.recognise, formats.split_names):
        with pytest.raises(DataError) as caught:
            call(tmp_path)
        assert caught.value.code == "data-unrecognised"
        for word in ("JPEGImages", "JSON", "data.yaml", "--format"):
            assert word in str(caught.value)


@pytest.mark.parametrize("name", ["nothing", "file/below", "null\0character"])
def test_a_path_to_nothing_is_data_missing(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    for call in (formats.recognise, formats.split_names):
        with pytest.raises(DataError) as caught:
            call(tmp_path / name)
        assert caught.value.code == "data-missing"
    refused("data-missing", tmp_path / name, "train", format="voc")


def test_a_path_that_the_system_refuses_is_told(tmp_path: Path) -> None:
    error = refused("file-unreadable", tmp_path / ("n" * 5000), "train")
    assert "too long" in error.detail


def test_two_formats_at_once_must_be_told_apart(
    devkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SimpleNamespace(matches=lambda path: True)
    monkeypatch.setitem(formats._READERS, "yolo", other)
    with pytest.raises(DataError) as caught:
        formats.recognise(devkit)
    assert caught.value.code == "data-unrecognised"
    assert "voc and like yolo" in str(caught.value)
    assert "--format" in str(caught.value)
    assert reads(devkit, "2007_test", format="voc").format == "voc"
    error = refused("format-differs", devkit, "2007_test", format="coco")
    assert "It looks like VOC and like YOLO." in error.detail


def test_a_pipe_is_no_data_set(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert unrecognised(tmp_path / "pipe").startswith("Looked for")


def test_what_the_system_says_in_a_reader_is_told(
    devkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> bool:
        raise PermissionError(13, "Permission denied", "some/file")

    reader = SimpleNamespace(matches=fails, split_names=fails, parse=fails)
    monkeypatch.setitem(formats._READERS, "yolo", reader)
    error = refused("file-unreadable", devkit, "2007_test")
    assert error.file == "some/file"
    assert "Permission denied" in str(error)
    refused("file-unreadable", devkit, "2007_test", format="yolo")
    reader.split_names = lambda path: ("train",)
    refused("file-unreadable", devkit, "train", format="yolo")


def test_a_format_that_does_not_exist_is_a_value_error(devkit: Path) -> None:
    with pytest.raises(ValueError, match=r"expected one of voc, coco, yolo, got 'VOC'"):
        formats.read_split(devkit, "2007_test", format="VOC")


def test_a_format_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, write_coco(tmp_path / "coco", {"train2017": ["a"]})):
        error = refused("format-differs", folder, "train2017", format="voc")
        assert "JPEGImages" in error.detail
        assert "data.yaml" not in error.detail
        assert ("It looks like COCO." in error.detail) == (folder.name == "coco")
        with pytest.raises(DataError) as caught:
            formats.split_names(folder, "yolo")
        assert caught.value.code == "format-differs"
        assert "data.yaml" in caught.value.detail


# What is no data set


def unrecognised(path: Path) -> str:
    """The detail for a path of which no format is recognised."""
    with pytest.raises(DataError) as caught:
        formats.recognise(path)
    assert caught.value.code == "data-unrecognised"
    return caught.value.detail


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path) -> None:
    assert "The folder is empty." in unrecognised(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    assert "empty" not in unrecognised(tmp_path)


@pytest.mark.parametrize("name", ["a.zip", "a.TAR", "a.tar.gz", "a.json.gz", "a.rar", "a.7z"])
def test_an_archive_must_be_unpacked(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    assert "Unpack it first." in unrecognised(tmp_path / name)
    assert f"the archive {name}. Unpack it first." in unrecognised(tmp_path)
    (tmp_path / name).rename(tmp_path / "notes.txt")
    assert "Unpack" not in unrecognised(tmp_path / "notes.txt")


@pytest.mark.parametrize("kind", ["zip", "tar", "gztar", "bztar", "xztar"])
def test_an_archive_is_known_by_its_content_too(tmp_path: Path, kind: str) -> None:
    folder = write_coco(tmp_path / "coco", {"train2017": ["a"]})
    packed = Path(shutil.make_archive(str(tmp_path / "packed"), kind, folder))
    for name in ("packed.json", "data.yaml", "packed"):
        packed = packed.rename(tmp_path / name)
        assert "Unpack it first." in unrecognised(packed)
        error = refused("format-differs", packed, "train", format="coco")
        assert "Unpack it first." in error.detail


def test_inside_of_a_data_set_the_folder_above_is_meant(tmp_path: Path, devkit: Path) -> None:
    coco = write_coco(tmp_path / "coco", {"train2017": ["a"]})
    year = devkit / "VOC2007"
    parts = [year / name for name in ("Annotations", "ImageSets", "JPEGImages")]
    for folder in (coco / "annotations", *parts):
        assert "Give the folder above." in unrecognised(folder)
    assert "above" not in unrecognised(coco / "train2017")
    (tmp_path / "other" / "images").mkdir(parents=True)
    (tmp_path / "other" / "images" / "a.txt").write_text("x")
    assert "above" not in unrecognised(tmp_path / "other" / "images")


# One split


def test_a_split_is_read(devkit: Path) -> None:
    split = reads(devkit, "2007_trainval")
    assert (split.name, split.format, split.classes) == ("2007_trainval", "voc", voc.CLASSES)
    assert split.category_ids == tuple(range(1, 21))
    assert split.is_annotated
    assert split.annotations.boxes.tolist() == [[0, 0, 9, 8], [1, 0, 10, 8]]
    assert split.annotations.is_ignored.tolist() == [False, True]
    assert split.findings.counts["no-objects"] == 1


def test_an_unknown_split_is_refused_with_those_that_exist(devkit: Path) -> None:
    error = refused("split-unknown", devkit, "2007_trainvel")
    assert error.value == "'2007_trainvel'"
    assert error.detail.startswith("Did you mean '2007_trainval'?")
    for name in formats.split_names(devkit):
        assert name in error.detail
    for split in ("", "+", "2007_test+", "2007_test+xyz", "2007_test++2012_test"):
        assert refused("split-unknown", devkit, split).field == "split"
    for split, text in (("", "The name is empty."), ("+", "A part of the sum has no name.")):
        error = refused("split-unknown", devkit, split)
        assert (error.value, error.detail.startswith(text)) == (repr(split), True)
        assert "2007_trainval" in error.detail


def test_an_unknown_split_of_a_data_set_without_any(
    devkit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voc, "split_names", lambda path: ())
    assert refused("split-unknown", devkit, "zzz").detail == "There is none."


def test_a_test_set_has_no_notes_about_objects(devkit: Path) -> None:
    split = reads(devkit, "2012_test")
    assert not split.is_annotated
    assert len(split) == 1
    assert split.findings.counts == {}
    assert split.findings.examples == {}


def test_classes_without_objects_are_noted(tmp_path: Path) -> None:
    folder = write_year(tmp_path, {"train": {"1": annotation("cat", "!dog", "cat")}})
    split = reads(folder, "train", classes=["dog", "cat", "bird"])
    notes = split.findings.examples["class-empty"]
    assert [note.value for note in notes] == ["'dog'", "'bird'"]
    assert [note.detail for note in notes] == ["All 1 are difficult or crowd.", ""]
    assert split.findings.num_faults == 0


def test_the_limit_of_pixels_reaches_the_images(devkit: Path) -> None:
    error = refused("data-empty", devkit, "2007_test", max_pixels=32 * 24 - 1)
    assert "more pixels than the limit" in error.detail
    assert len(reads(devkit, "2007_test", max_pixels=32 * 24)) == 1


def test_images_outside_are_used_if_they_are_allowed(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "voc", {"train": {"1": annotation("cat")}})
    image = folder / "JPEGImages" / "1.jpg"
    image.rename(tmp_path / "1.jpg")
    image.symlink_to(tmp_path / "1.jpg")
    error = refused("data-empty", folder, "train")
    assert "leaves the folder" in error.detail
    assert "--allow-outside" in error.detail
    assert len(reads(folder, "train", allow_outside=True)) == 1


def test_progress_is_told_for_every_image(devkit: Path) -> None:
    for split, expected in (("2012_trainval", 2), ("2007_trainval+2012_trainval+2007_test", 5)):
        calls: list[int] = []
        reads(devkit, split, on_start=calls.append, on_image=lambda calls=calls: calls.append(-1))
        assert calls == [expected] + [-1] * expected


# Nothing to read


def test_an_empty_list_is_refused(tmp_path: Path) -> None:
    folder = write_year(tmp_path, {"train": {}})
    error = refused("data-empty", folder, "train")
    assert (error.field, error.value) == ("split", "'train'")
    assert error.detail == "It lists no image."


def test_the_commonest_reason_for_an_empty_split_is_told(tmp_path: Path) -> None:
    train = {"1": "<broken", "2": annotation("cat"), "3": annotation("cat")}
    folder = write_year(tmp_path, {"train": train})
    for image_id in "23":
        (folder / "JPEGImages" / f"{image_id}.jpg").unlink()
    error = refused("data-empty", folder, "train")
    assert error.detail.startswith("3 images were seen. Of 2: the image file does not exist")
    assert "2.jpg" in error.detail


# Sums


def test_a_sum_has_the_images_of_all_parts(devkit: Path) -> None:
    name = "2007_trainval+2007_test+2012_trainval"
    split = reads(devkit, name)
    assert split.name == name
    annotations = split.annotations
    paths = [annotations.path(i) for i in range(len(split))]
    assert [f"{path.parts[-3]}/{path.stem}" for path in paths] == [
        *("VOC2007/1", "VOC2007/2", "VOC2007/3", "VOC2012/1"),
    ]
    assert annotations.offsets.tolist() == [0, 2, 2, 3, 4]
    names = [split.classes[label] for label in annotations.labels]
    assert names == ["cat", "dog", "bird", "bus"]
    assert annotations.is_ignored.tolist() == [False, True, False, True]
    assert len(np.unique(annotations.image_ids)) == 4
    assert split.is_annotated
    assert split.findings.images.as_dict() == {
        "seen": 5,
        "used": 4,
        "dropped": {"xml-malformed": 1},
    }
    assert split.findings.num_ignored == 2
    assert split.findings.counts["class-empty"] == 18  # once, for the sum


def test_the_order_of_the_parts_and_spaces_around_them(devkit: Path) -> None:
    split = reads(devkit, "2007_test + 2007_trainval")
    assert [split.annotations.path(i).stem for i in range(3)] == ["3", "1", "2"]


def test_a_part_may_be_without_images(devkit: Path) -> None:
    (devkit / "VOC2012/ImageSets/Main/val.txt").write_text("")
    assert len(reads(devkit, "2012_val+2007_test")) == 1
    refused("data-empty", devkit, "2012_val")


def test_a_part_that_is_named_twice_is_refused(devkit: Path) -> None:
    error = refused("split-overlap", devkit, "2007_test+2012_test+2007_test")
    assert error.detail == "'2007_test' stands there 2 times."


def test_parts_that_share_images_are_refused(tmp_path: Path) -> None:
    train = {"1": annotation("cat"), "2": annotation("cat")}
    folder = write_year(
        tmp_path / "VOC2012", {"train": train, "trainval": {**train, "3": annotation("cat")}}
    )
    error = refused("split-overlap", folder, "train+trainval")
    assert error.detail.startswith("2 images stand in two parts, such as ")
    assert error.detail.endswith("1.jpg.")
    refused("split-overlap", folder, "train+2012_train")


def test_a_split_may_have_a_plus_in_its_name(tmp_path: Path) -> None:
    lists = {"a": {"1": annotation("cat")}, "b": {"2": annotation("cat")}}
    folder = write_year(tmp_path, {**lists, "a+b": {"3": annotation("cat")}})
    assert reads(folder, "a+b").annotations.path(0).stem == "3"


def test_years_with_names_of_their_own_share_one_list(tmp_path: Path) -> None:
    usual, other = {"1": annotation("cat", "sofa")}, {"2": annotation("zebra", "cat")}
    write_year(tmp_path / "VOC2007", {"train": usual})
    write_year(tmp_path / "VOC2012", {"train": other})
    expected = ("cat", "sofa", "zebra")
    for name in ("2007_train+2012_train", "2012_train+2007_train"):
        split = reads(tmp_path, name)
        assert split.classes == expected
        names = {split.classes[label] for label in split.annotations.labels}
        assert names == set(expected)
        assert split.findings.objects.as_dict() == {"seen": 4, "used": 4, "dropped": {}}


def test_parts_with_different_classes_are_refused(tmp_path: Path) -> None:
    folder = write_coco(tmp_path, {"train2017": ["a", "b"], "val2017": ["a", "c", "d"]})
    error = refused("classes-differ", folder, "train2017+val2017")
    assert "'train2017' has 2, 'val2017' 3" in error.detail
    assert "'b', 'c', 'd'" in error.detail


def test_parts_with_the_same_classes_in_another_order_are_refused(tmp_path: Path) -> None:
    folder = write_coco(tmp_path, {"train2017": ["a", "b"], "val2017": ["b", "a"]})
    assert "in another order" in refused("classes-differ", folder, "train2017+val2017").detail
    split = reads(folder, "train2017+val2017", classes=["b", "a"])
    assert split.classes == ("b", "a")
    assert split.annotations.labels.tolist() == [1, 0]


# Class lists


def test_a_given_class_list_is_used(devkit: Path) -> None:
    split = reads(devkit, "2007_trainval", classes=["dog", "yak"])
    assert split.classes == ("dog", "yak")
    assert split.annotations.labels.tolist() == [0]
    assert split.findings.objects.dropped == {"class-unknown": 1}


@pytest.mark.parametrize(
    ("classes", "word"),
    [
        ([], "no names"),
        (["cat", "cat"], "twice"),
        (["cat", ""], "1 to 200"),
        (["cat", "  "], "1 to 200"),
        (["c" * 201], "1 to 200"),
        ("cat", "not a list"),
        (["cat", 3], "a text"),
    ],
)
def test_a_class_list_must_have_different_names(devkit: Path, classes: Any, word: str) -> None:
    assert word in refused("classes-invalid", devkit, "2007_test", classes=classes).detail


def test_a_class_list_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "names.txt"
    file.write_bytes(b"\xef\xbb\xbftraffic light\r\n\r\n  cat\r\n")
    assert formats.read_class_list(file) == ("traffic light", "cat")
    assert formats.read_class_list(str(file)) == ("traffic light", "cat")
    for content in (b"", b"\n\n", b"cat\ndog\ncat\n"):
        file.write_bytes(content)
        with pytest.raises(DataError) as caught:
            formats.read_class_list(file)
        assert caught.value.code == "classes-invalid"
        assert caught.value.file == str(file)
    with pytest.raises(DataError) as caught:
        formats.read_class_list(tmp_path / "nothing")
    assert caught.value.code == "data-missing"


def test_the_longest_name_is_a_name() -> None:
    assert checked_classes(["c" * 200], file="x") == ("c" * 200,)


def test_the_nearest_name_is_found_whatever_its_case() -> None:
    assert did_you_mean("PERSON", ("cat", "Person")) == "Did you mean 'Person'?"
    assert did_you_mean("xyz", ("cat", "Person")) == ""
    assert did_you_mean("cat" * 100, ("cat" * 99,)) == ""


# The package


@pytest.mark.parametrize("name", rankdet.data.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(rankdet.data, name) is not None
    assert name in dir(rankdet.data)
    assert name in rankdet.data._HOME


def test_the_names_agree_and_no_other_can_be_had() -> None:
    assert sorted(rankdet.data._HOME) == sorted(rankdet.data.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = rankdet.data.nonsense


def test_reading_does_not_import_torch() -> None:
    code = (
        "import sys, rankdet.data; rankdet.data.read_split, rankdet.data.split_names;"
        "assert 'rankdet.data.reading.voc' in sys.modules;"
        "assert not {'torch', 'torchvision'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_sum_with_a_test_set_is_refused(devkit: Path) -> None:
    with pytest.raises(DataError, match=r"There are none for '2012_test'\.") as caught:
        formats.read_split(devkit, "2007_trainval+2012_test")
    assert caught.value.code == "split-unannotated"


@pytest.mark.parametrize("split", [None, 3, b"train"])
def test_a_split_is_a_text(devkit: Path, split: Any) -> None:
    with pytest.raises(ValueError, match="split: expected a text, got"):
        formats.read_split(devkit, split)


def test_classes_may_come_from_a_generator_or_an_array() -> None:
    assert checked_classes((name for name in ("cat", "dog")), file="a") == ("cat", "dog")
    assert checked_classes(np.array(["cat", "dog"]), file="a") == ("cat", "dog")
    with pytest.raises(DataError, match="1 to 200 characters"):
        checked_classes(["\ud800"], file="a")


@pytest.mark.parametrize("place", ["", "VOCdevkit", "VOCdevkit/VOC2007"])
def test_the_class_file_of_a_voc_set_is_found_wherever_the_set_is_opened(
    tmp_path: Path, place: str
) -> None:
    lists = {"train": {"1": annotation("cat")}}
    write_year(tmp_path / "VOCdevkit" / "VOC2007", lists)
    (tmp_path / place / "classes.txt").write_text("dog\ncat\n")
    assert formats.read_split(tmp_path, "2007_train").classes == ("dog", "cat")


def test_the_class_file_of_one_year_is_not_that_of_two(tmp_path: Path) -> None:
    for year in ("VOC2007", "VOC2012"):
        write_year(tmp_path / year, {"train": {"1": annotation("cat")}})
    (tmp_path / "VOC2007" / "classes.txt").write_text("dog\ncat\n")
    assert formats.read_split(tmp_path, "2007_train").classes == voc.CLASSES


def test_a_given_class_without_objects_may_stand_in_the_class_file(tmp_path: Path) -> None:
    write_year(tmp_path, {"train": {"1": annotation("cat")}})
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    split = formats.read_split(tmp_path, "train", classes=("dog",))
    assert split.findings.objects.dropped == {"class-unknown": 1}
    with pytest.raises(DataError, match="none of the given classes occurs"):
        formats.read_split(tmp_path, "train", classes=("zebra",))


@pytest.mark.parametrize("name", ["latest", "contest", "my_contest"])
def test_a_list_whose_name_only_sounds_like_test_is_annotated(tmp_path: Path, name: str) -> None:
    write_year(tmp_path, {name: {"1": annotation("cat"), "2": None, "3": None}})
    split = formats.read_split(tmp_path, name)
    assert split.is_annotated
    assert split.findings.images.dropped == {"annotation-missing": 2}


def test_a_link_to_a_year_has_the_year_of_its_own_name(tmp_path: Path) -> None:
    write_year(tmp_path / "other", {"train": {"1": annotation("cat")}})
    (tmp_path / "VOC2012").symlink_to(tmp_path / "other")
    assert len(formats.read_split(tmp_path / "VOC2012", "2012_train")) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_among_the_lists_is_not_waited_for(tmp_path: Path) -> None:
    write_year(tmp_path, {"train": {"1": annotation("cat")}})
    os.mkfifo(tmp_path / "ImageSets/Main/x_train.txt")
    assert "train" in formats.split_names(tmp_path)
    with pytest.raises(DataError, match="not a plain file"):
        formats.read_split(tmp_path, "x_train")
