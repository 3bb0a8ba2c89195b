"""The VOC reader: trees made by hand, and what is read of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from rankdet.data.reading import voc, voc_classes, voc_xml
from rankdet.data.reading.annotations import assemble
from rankdet.data.reading.findings import Findings
from rankdet.errors import DataError

SIZE = (64, 48)


def box(xmin: object = 1, ymin: object = 1, xmax: object = 10, ymax: object = 10) -> str:
    return (
        f"<bndbox><xmin>{xmin}</xmin><ymin>{ymin}</ymin>"
        f"<xmax>{xmax}</xmax><ymax>{ymax}</ymax></bndbox>"
    )


def an_object(name: str = "cat", bndbox: str = "", difficult: str = "", more: str = "") -> str:
    return f"<object><name>{name}</name>{difficult}{bndbox or box()}{more}</object>"


SIZE_XML = f"<size><width>{SIZE[0]}</width><height>{SIZE[1]}</height><depth>3</depth></size>"


def xml(*objects: str, size: str = SIZE_XML, filename: str = "") -> str:
    name = f"<filename>{filename}</filename>" if filename else ""
    return f"<annotation>{name}{size}{''.join(objects)}</annotation>"


def write_image(path: Path, size: tuple[int, int] = SIZE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (10, 200, 30)).save(path, format="PNG")


def write_text(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def write_year(
    folder: Path,
    annotations: Mapping[str, str | bytes | None],
    lists: Mapping[str, str | bytes] | None = None,
) -> Path:
    """A year with an image for each id of `annotations`; without `lists`, all are in train."""
    for image_id, content in annotations.items():
        write_image(folder / "JPEGImages" / f"{image_id}.png")
        if content is not None:
            write_text(folder / "Annotations" / f"{image_id}.xml", content)
    if lists is None:
        lists = {"train": "".join(f"{image_id}\n" for image_id in annotations)}
    for name, text in lists.items():
        write_text(folder / "ImageSets" / "Main" / f"{name}.txt", text)
    return folder


def read(
    path: Path,
    split: str = "train",
    classes: tuple[str, ...] | None = ("cat", "dog"),
    allow_outside: bool = False,
) -> Any:
    """What the reader and `assemble` make of a split, after a look at the counts."""
    findings = Findings()
    parsed = voc.parse(path, split, classes=classes, findings=findings, allow_outside=allow_outside)
    annotations = assemble(parsed.images, findings, is_annotated=parsed.is_annotated)
    assert findings.images.reconciles()
    assert findings.objects.reconciles()
    assert findings.images.seen == parsed.num_images
    assert findings.images.used == len(annotations)
    assert findings.objects.used == len(annotations.boxes)
    return SimpleNamespace(
        parsed=parsed,
        annotations=annotations,
        findings=findings,
        counts=dict(findings.counts),
        names=[annotations.path(i).stem for i in range(len(annotations))],
    )


def only(result: Any, code: str) -> Any:
    """The one finding of a kind."""
    assert result.counts.get(code) == 1, result.counts
    return result.findings.examples[code][0]


def read_one(tmp_path: Path, *objects: str, **keywords: Any) -> Any:
    """A data set with a single image, read."""
    return read(write_year(tmp_path / "VOC2012", {"a": xml(*objects, **keywords)}))


# Boxes


def test_coordinates_are_counted_from_one_and_include_the_last_pixel(tmp_path: Path) -> None:
    result = read_one(
        tmp_path, an_object("dog", box(1, 1, 64, 48)), an_object("cat", box(5, 6, 5, 7))
    )
    assert result.annotations.boxes.tolist() == [[0, 0, 64, 48], [4, 5, 5, 7]]
    assert result.annotations.labels.tolist() == [1, 0]
    assert result.annotations.areas.tolist() == [64 * 48, 2]
    assert result.counts == {}


def test_decimals_and_exponents_are_read(tmp_path: Path) -> None:
    result = read_one(tmp_path, an_object(bndbox=box("2.25", "+3.", " 1.5e1\n", "10.75")))
    assert result.annotations.boxes.tolist() == [[1.25, 2, 15, 10.75]]


@pytest.mark.parametrize("side", ["xmin", "ymin", "xmax", "ymax"])
@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("nan", "box-not-finite"),
        ("-Infinity", "box-not-finite"),
        ("inf", "box-not-finite"),
        ("1e999", "box-not-finite"),
        ("left", "box-not-a-number"),
        ("1_0", "box-not-a-number"),
        ("1,5", "box-not-a-number"),
        ("0x10", "box-not-a-number"),
        ("٣", "box-not-a-number"),
        ("１", "box-not-a-number"),
        (".", "box-not-a-number"),
        ("1 2", "box-not-a-number"),
        ("1" * 101, "box-not-a-number"),
        ("", "field-missing"),
        ("  ", "field-missing"),
    ],
)
def test_a_coordinate_that_is_no_number_drops_the_object(
    tmp_path: Path, side: str, value: str, code: str
) -> None:
    bad = an_object(bndbox=box(**{side: value}))
    result = read_one(tmp_path, an_object(), bad, an_object("dog"))
    finding = only(result, code)
    assert finding.where == "object[2]/bndbox"
    assert finding.field == side
    assert finding.value == (repr(value) if value.strip() else None)
    assert finding.file.endswith("a.xml")
    assert result.findings.objects.dropped == {code: 1}
    assert result.findings.objects.seen == 3
    assert result.annotations.labels.tolist() == [0, 1]


@pytest.mark.parametrize("side", ["xmin", "ymin", "xmax", "ymax"])
def test_a_coordinate_that_is_not_there_is_a_missing_field(tmp_path: Path, side: str) -> None:
    bndbox = box().replace(f"<{side}>", "<other>").replace(f"</{side}>", "</other>")
    finding = only(read_one(tmp_path, an_object(bndbox=bndbox)), "field-missing")
    assert (finding.where, finding.field) == ("object[1]/bndbox", side)


def test_an_object_without_a_box_is_dropped(tmp_path: Path) -> None:
    result = read_one(tmp_path, "<object><name>cat</name></object>")
    finding = only(result, "field-missing")
    assert (finding.where, finding.field) == ("object[1]", "bndbox")
    assert result.findings.objects.dropped == {"field-missing": 1}


@pytest.mark.parametrize(
    ("bndbox", "code"),
    [
        (box(10, 1, 5, 10), "box-swapped"),
        (box(6, 1, 5, 10), "box-zero-area"),
        (box(200, 1, 300, 10), "box-outside"),
    ],
)
def test_the_rules_for_boxes_hold(tmp_path: Path, bndbox: str, code: str) -> None:
    result = read_one(tmp_path, an_object(bndbox=bndbox))
    assert only(result, code).where == "object[1]"
    assert result.findings.objects.dropped == {code: 1}
    assert result.names == ["a"]


def test_the_parts_of_a_person_are_no_objects(tmp_path: Path) -> None:
    part = f"<part><name>head</name>{box(2, 2, 4, 4)}</part>"
    nested = f"<part><object><name>dog</name>{box(3, 3, 4, 4)}</object></part>"
    result = read_one(tmp_path, an_object("cat", box(1, 1, 20, 20), more=part + nested))
    assert result.annotations.boxes.tolist() == [[0, 0, 20, 20]]
    assert result.findings.objects.seen == 1


def test_a_box_inside_of_a_part_does_not_stand_for_the_objects_own(tmp_path: Path) -> None:
    result = read_one(tmp_path, f"<object><name>cat</name><part>{box()}</part></object>")
    assert only(result, "field-missing").field == "bndbox"


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 30, width=32),
            st.floats(0, 20, width=32),
            st.floats(1, 30, width=32),
            st.floats(1, 20, width=32),
            st.sampled_from(["cat", "dog"]),
            st.booleans(),
        ),
        max_size=8,
    )
)
def test_boxes_that_are_written_are_read_back(tmp_path: Path, rows: list[Any]) -> None:
    objects = []
    for left, top, width, height, name, is_difficult in rows:
        corners = box(*map(repr, (left + 1, top + 1, left + width, top + height)))
        objects.append(an_object(name, corners, f"<difficult>{int(is_difficult)}</difficult>"))
    annotations = read_one(tmp_path, *objects).annotations
    expected = [[left, top, left + width, top + height] for left, top, width, height, *_ in rows]
    np.testing.assert_allclose(
        annotations.boxes, np.array(expected).reshape(-1, 4), rtol=1e-6, atol=1e-5
    )
    assert annotations.labels.tolist() == [["cat", "dog"].index(row[4]) for row in rows]
    assert annotations.is_ignored.tolist() == [row[5] for row in rows]


# Difficult objects, names, sizes


def test_difficult_objects_are_kept_and_ignored(tmp_path: Path) -> None:
    flags = ["<difficult>1</difficult>", "<difficult> 0 </difficult>", ""]
    result = read_one(tmp_path, *(an_object(difficult=flag) for flag in flags))
    assert result.annotations.is_ignored.tolist() == [True, False, False]
    assert result.findings.num_ignored == 1


@pytest.mark.parametrize(
    ("value", "is_ignored"), [("true", True), ("TRUE", True), ("False", False), (" 1 ", True)]
)
def test_difficult_may_be_true_or_false(tmp_path: Path, value: str, is_ignored: bool) -> None:
    result = read_one(tmp_path, an_object(difficult=f"<difficult>{value}</difficult>"))
    assert result.annotations.is_ignored.tolist() == [is_ignored]
    assert result.counts == {}


@pytest.mark.parametrize("value", ["Unspecified", "unspecified", "", " "])
def test_difficult_that_nobody_filled_in_is_0_with_a_note(tmp_path: Path, value: str) -> None:
    result = read_one(tmp_path, an_object(difficult=f"<difficult>{value}</difficult>"))
    assert result.annotations.is_ignored.tolist() == [False]
    note = only(result, "annotation-field-default")
    assert (note.where, note.field, note.detail) == ("object[1]", "difficult", "Taken as 0.")
    assert result.findings.num_faults == 0


@pytest.mark.parametrize("value", ["2", "yes", "maybe", "1.0", "-1"])
def test_any_other_value_of_difficult_drops_the_object(tmp_path: Path, value: str) -> None:
    result = read_one(tmp_path, an_object(difficult=f"<difficult>{value}</difficult>"))
    finding = only(result, "field-invalid")
    assert (finding.where, finding.field, finding.value) == ("object[1]", "difficult", repr(value))
    assert finding.detail == "It must be 0 or 1."
    assert result.findings.objects.dropped == {"field-invalid": 1}


def test_white_space_around_a_name_does_not_count(tmp_path: Path) -> None:
    result = read_one(tmp_path, an_object(" \n dog\t"))
    assert result.annotations.labels.tolist() == [1]


@pytest.mark.parametrize("head", ["<name></name>", "<name>  </name>", "<name/>", ""])
def test_an_object_without_a_name_is_dropped(tmp_path: Path, head: str) -> None:
    result = read_one(tmp_path, f"<object>{head}{box()}</object>")
    finding = only(result, "field-missing")
    assert (finding.where, finding.field) == ("object[1]", "name")


def test_the_longest_name_and_the_longest_number_are_read(tmp_path: Path) -> None:
    annotation = xml(an_object("n" * 200, box(xmin="0" * 99 + "5")))
    result = read(write_year(tmp_path / "VOC2012", {"a": annotation}), classes=None)
    assert result.parsed.classes == ("n" * 200,)
    assert result.annotations.boxes.tolist() == [[4, 0, 10, 10]]


def test_a_name_of_endless_length_is_no_name(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object("n" * 201), an_object("zebra"))})
    result = read(folder, classes=None)
    assert only(result, "field-invalid").field == "name"
    assert result.parsed.classes == ("zebra",)


def test_an_unknown_class_drops_the_object_and_the_nearest_name_is_told(tmp_path: Path) -> None:
    result = read_one(tmp_path, an_object("Dogg"), an_object("xylophone"), an_object("dog"))
    first, second = result.findings.examples["class-unknown"]
    assert (first.where, first.field, first.value) == ("object[1]", "name", "'Dogg'")
    assert first.detail == "Did you mean 'dog'?"
    assert second.detail == ""
    assert result.findings.objects.dropped == {"class-unknown": 2}
    assert result.annotations.labels.tolist() == [1]


@pytest.mark.parametrize(
    "size",
    [
        "",
        "<size/>",
        "<size><width>64</width></size>",
        "<size><width>0</width><height>0</height></size>",
        "<size><width>64</width><height>0</height></size>",
        "<size><width></width><height>48</height></size>",
    ],
)
def test_a_missing_size_is_a_note(tmp_path: Path, size: str) -> None:
    result = read_one(tmp_path, an_object(), size=size)
    only(result, "size-missing")
    assert result.annotations.sizes.tolist() == [list(SIZE)]
    assert result.findings.num_faults == 0


@pytest.mark.parametrize("value", ["wide", "-64", "64.5", "nan", "6_4"])
def test_a_size_that_is_no_whole_number_is_a_fault_but_the_image_is_used(
    tmp_path: Path, value: str
) -> None:
    size = f"<size><width>64</width><height>{value}</height></size>"
    result = read_one(tmp_path, an_object(), size=size)
    finding = only(result, "size-invalid")
    assert (finding.where, finding.field, finding.value) == ("size", "height", repr(value))
    assert result.names == ["a"]
    assert result.findings.num_faults == 1


def test_another_size_than_the_images_skips_the_image(tmp_path: Path) -> None:
    size = "<size><width>48</width><height>64</height></size>"
    result = read_one(tmp_path, an_object(), an_object(), size=size)
    only(result, "image-size-differs")
    assert result.findings.images.dropped == {"image-size-differs": 1}
    assert result.findings.objects.dropped == {"image-size-differs": 2}


def test_a_size_with_a_decimal_point_is_read(tmp_path: Path) -> None:
    size = "<size><width>64.0</width><height>48.0</height></size>"
    assert read_one(tmp_path, an_object(), size=size).counts == {}


def test_an_image_without_objects_is_background(tmp_path: Path) -> None:
    result = read_one(tmp_path)
    only(result, "no-objects")
    assert result.names == ["a"]


def test_an_image_that_loses_all_objects_is_not_said_to_have_none(tmp_path: Path) -> None:
    result = read_one(tmp_path, an_object(bndbox=box(xmin="left")))
    assert result.counts == {"box-not-a-number": 1, "all-objects-dropped": 1}


# Tags that are almost right


@pytest.mark.parametrize(
    ("bad", "where", "tag"),
    [
        (an_object().replace("object>", "Object>"), "Object[2]", "Object"),
        (an_object().replace("name>", "Name>"), "object[2]", "Name"),
        (an_object().replace("bndbox>", "BndBox>"), "object[2]", "BndBox"),
        (an_object(difficult="<DIFFICULT>1</DIFFICULT>"), "object[2]", "DIFFICULT"),
        (an_object().replace("xmin>", "XMin>"), "object[2]/bndbox", "XMin"),
    ],
)
def test_a_tag_in_other_letters_drops_its_object(
    tmp_path: Path, bad: str, where: str, tag: str
) -> None:
    result = read_one(tmp_path, an_object(), bad, an_object("dog"))
    finding = only(result, "field-invalid")
    assert (finding.where, finding.field) == (where, tag)
    assert finding.detail == f"Write it in lower case: {tag.lower()}."
    assert result.findings.objects.as_dict() == {
        "seen": 3,
        "used": 2,
        "dropped": {"field-invalid": 1},
    }


@pytest.mark.parametrize(
    ("more", "tag"),
    [
        ("<name>dog</name>", "name"),
        (box(2, 2, 5, 5), "bndbox"),
        ("<difficult>0</difficult>" * 2, "difficult"),
    ],
)
def test_a_tag_that_is_repeated_drops_its_object(tmp_path: Path, more: str, tag: str) -> None:
    result = read_one(tmp_path, an_object(more=more), an_object("dog"))
    finding = only(result, "field-invalid")
    assert (finding.where, finding.field, finding.detail) == (
        "object[1]",
        tag,
        "It stands there twice.",
    )
    assert result.annotations.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("size", "tag"),
    [
        (SIZE_XML * 2, "size"),
        (SIZE_XML.replace("size>", "Size>"), "Size"),
        (SIZE_XML.replace("width>", "Width>"), "Width"),
        (SIZE_XML.replace("</size>", "<height>9</height></size>"), "height"),
    ],
)
def test_a_size_that_is_repeated_or_in_other_letters_is_a_fault(
    tmp_path: Path, size: str, tag: str
) -> None:
    result = read_one(tmp_path, an_object(), size=size)
    assert only(result, "size-invalid").field == tag
    assert result.counts == {"size-invalid": 1}
    assert result.names == ["a"]


def test_a_side_that_is_repeated_drops_its_object(tmp_path: Path) -> None:
    twice = an_object(bndbox=box().replace("</bndbox>", "<xmax>12</xmax></bndbox>"))
    finding = only(read_one(tmp_path, twice), "field-invalid")
    assert (finding.where, finding.field) == ("object[1]/bndbox", "xmax")


def test_an_object_inside_of_an_object_is_seen_and_dropped(tmp_path: Path) -> None:
    result = read_one(tmp_path, an_object(more=an_object("dog")), an_object())
    finding = only(result, "field-invalid")
    assert (finding.where, finding.field) == ("object[1]", "object")
    assert result.annotations.labels.tolist() == [0, 0]
    assert result.findings.objects.seen == 3


# Annotation files


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("", "xml-malformed"),
        ("<annotation>", "xml-malformed"),
        ("not xml", "xml-malformed"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><annotation>&b;</annotation>", "xml-forbidden"),
        ("<a>" * 100 + "</a>" * 100, "xml-too-deep"),
        ("<html></html>", "xml-not-voc"),
    ],
)
def test_a_broken_annotation_skips_the_image_alone(tmp_path: Path, content: str, code: str) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": content, "b": xml(an_object())})
    for classes in (("cat", "dog"), None):
        result = read(folder, classes=classes)
        assert only(result, code).file.endswith("a.xml")
        assert result.findings.images.dropped == {code: 1}
        assert result.names == ["b"]


def test_an_annotation_that_cannot_be_opened_skips_the_image(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": None, "b": xml(an_object())})
    (folder / "Annotations" / "a.xml").mkdir()
    result = read(folder)
    finding = only(result, "annotation-unreadable")
    assert finding.file.endswith("a.xml")
    assert finding.detail == "It is not a plain file."
    assert result.names == ["b"]


def test_an_annotation_through_a_link_to_nowhere_skips_the_image(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": None, "b": xml(an_object())})
    (folder / "Annotations" / "a.xml").symlink_to("gone.xml")
    result = read(folder)
    assert only(result, "annotation-unreadable").file.endswith("a.xml")
    assert result.names == ["b"]


def test_other_encodings_are_read(tmp_path: Path) -> None:
    names = ("Käfer", "猫")
    text = xml(an_object("Käfer"))
    folder = write_year(
        tmp_path / "VOC2012",
        {
            "a": b'<?xml version="1.0" encoding="iso-8859-1"?>' + text.encode("latin-1"),
            "b": xml(an_object("猫")).encode("utf-16"),
            "c": text.replace("><", ">\r\n<").encode("utf-8-sig"),
        },
    )
    assert read(folder, classes=names).annotations.labels.tolist() == [0, 1, 0]


def test_a_missing_annotation_is_a_finding_for_each_image(tmp_path: Path) -> None:
    annotations = {"a": None, "b": xml(an_object()), "c": None}
    folder = write_year(tmp_path / "VOC2012", annotations)
    result = read(folder)
    assert result.counts == {"annotation-missing": 2}
    files = [Path(item.file).name for item in result.findings.examples["annotation-missing"]]
    assert files == ["a.xml", "c.xml"]
    assert result.parsed.is_annotated
    assert result.names == ["b"]


def test_a_test_list_without_any_annotation_is_not_annotated(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": None, "b": None}, {"test": "a\nb\n"})
    result = read(folder, "test")
    assert not result.parsed.is_annotated
    assert result.names == ["a", "b"]
    assert result.counts == {}


@pytest.mark.parametrize("split", ["test", "my_test"])
def test_a_test_list_is_annotated_if_half_of_its_images_are(tmp_path: Path, split: str) -> None:
    annotations = {"a": None, "b": xml(an_object()), "c": "<broken"}
    folder = write_year(tmp_path / "VOC2012", annotations, {split: "a\nb\n"})
    result = read(folder, split)
    assert result.parsed.is_annotated
    assert result.counts == {"annotation-missing": 1}
    write_image(folder / "JPEGImages/d.png")
    write_image(folder / "JPEGImages/e.png")
    write_text(folder / f"ImageSets/Main/{split}.txt", "a\nb\nc\nd\ne\n")
    for classes in (None, ("cat",), ("yak",)):
        result = read(folder, split, classes=classes)
        assert not result.parsed.is_annotated
        assert result.names == ["a", "b", "c", "d", "e"]
        assert len(result.annotations.boxes) == 0
        note = only(result, "annotations-unused")
        assert Path(note.file).name == f"{split}.txt"
        assert note.detail == "2 of 5 images have one."
        assert result.counts == {"annotations-unused": 1}


def test_a_train_list_without_any_annotation_is_a_fault(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": None, "b": None})
    (folder / "Annotations").mkdir()
    result = read(folder)
    assert result.parsed.is_annotated
    assert result.counts == {"annotation-missing": 2}


# Image files


@pytest.mark.parametrize("name", ["a.jpg", "a.JPG", "a.JPEG", "a.png", "a.Tif", "a.bmp"])
def test_an_image_may_have_any_known_extension(tmp_path: Path, name: str) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object())})
    (folder / "JPEGImages" / "a.png").rename(folder / "JPEGImages" / name)
    assert read(folder).annotations.path(0) == folder / "JPEGImages" / name


def test_of_two_images_of_one_id_the_jpg_is_taken(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object())})
    for ending in ("bmp", "jpg", "gif", "txt"):
        write_image(folder / "JPEGImages" / f"a.{ending}")
    assert read(folder).annotations.path(0).name == "a.jpg"


def test_a_missing_image_is_skipped_with_its_objects(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object(), an_object()), "b": xml()})
    (folder / "JPEGImages" / "a.png").unlink()
    result = read(folder)
    assert only(result, "image-missing").file == str(folder / "JPEGImages" / "a.jpg")
    assert result.findings.objects.dropped == {"image-missing": 2}
    assert result.names == ["b"]


def test_the_filename_element_is_not_trusted(tmp_path: Path) -> None:
    annotations = {"a": xml(an_object(), filename="b.png"), "b": xml(an_object())}
    result = read(write_year(tmp_path / "VOC2012", annotations))
    assert result.names == ["a", "b"]


def test_the_filename_element_helps_where_no_file_has_the_id(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object(), filename="other.png")})
    (folder / "JPEGImages" / "a.png").rename(folder / "JPEGImages" / "other.png")
    assert read(folder).names == ["other"]


@pytest.mark.parametrize("filename", ["gone.png", "n" * 5000 + ".png", "."])
def test_a_filename_of_no_file_leaves_the_image_missing(tmp_path: Path, filename: str) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(filename=filename)})
    (folder / "JPEGImages" / "a.png").unlink()
    assert only(read(folder), "image-missing").file.endswith("a.jpg")


def test_a_filename_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    name = "../../outside.png"
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object(), filename=name)})
    (folder / "JPEGImages" / "a.png").unlink()
    write_image(tmp_path / "outside.png")
    result = read(folder)
    finding = only(result, "image-outside")
    assert (finding.field, finding.value) == ("filename", repr(name))
    assert result.findings.objects.dropped == {"image-outside": 1}
    assert read(folder, allow_outside=True).names == ["outside"]


def test_an_id_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "other" / "x"
    ids = f"../x\nsub/../../x\n{outside}\nsub/b\n"
    folder = write_year(tmp_path / "VOC2012", {"sub/b": xml(an_object())}, {"train": ids})
    write_image(folder / "x.png")
    write_text(folder / "x.xml", xml(an_object()))
    write_image(outside.with_suffix(".png"))
    write_text(outside.with_suffix(".xml"), xml(an_object()))
    result = read(folder)
    assert result.counts == {"image-outside": 3}
    assert result.findings.objects.seen == 1  # annotations outside are not even opened
    write_text(folder / "x.xml", xml(an_object("yak")))
    assert read(folder, classes=None).parsed.classes == voc.CLASSES
    assert result.findings.images.dropped == {"image-outside": 3}
    first = result.findings.examples["image-outside"][0]
    assert (Path(first.file).name, first.where, first.value) == ("train.txt", 1, "'../x'")
    assert result.names == ["b"]
    assert read(folder, allow_outside=True).names == ["x", "x", "x", "b"]


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object()), "b": xml(an_object())})
    for name in ("a", "b"):
        (folder / "JPEGImages" / f"{name}.png").unlink()
    write_image(tmp_path / "outside.png")
    write_image(folder / "JPEGImages" / "inside.png")
    (folder / "JPEGImages" / "a.png").symlink_to(tmp_path / "outside.png")
    (folder / "JPEGImages" / "b.png").symlink_to(folder / "JPEGImages" / "inside.png")
    result = read(folder)
    assert only(result, "image-outside").value == "'a'"
    assert result.findings.objects.dropped == {"image-outside": 1}
    assert result.names == ["b"]
    assert read(folder, allow_outside=True).names == ["a", "b"]


def test_an_annotation_through_a_link_to_the_outside_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": None, "b": xml(an_object()), "c": None})
    write_text(tmp_path / "secret.xml", xml(an_object("yak")))
    write_text(folder / "shared" / "c.xml", xml(an_object("dog")))
    (folder / "Annotations" / "a.xml").symlink_to(tmp_path / "secret.xml")
    (folder / "Annotations" / "c.xml").symlink_to("../shared/c.xml")
    for classes in (("cat", "dog", "yak"), None):
        result = read(folder, classes=classes)
        assert only(result, "file-outside").file == str(folder / "Annotations" / "a.xml")
        assert result.findings.images.dropped == {"file-outside": 1}
        assert result.names == ["b", "c"]
        assert read(folder, classes=classes, allow_outside=True).names == ["a", "b", "c"]
    monkeypatch.chdir(tmp_path)
    assert read(Path("VOC2012")).names == ["b", "c"]


def test_names_are_not_gathered_through_links_to_the_outside(tmp_path: Path) -> None:
    annotations = {"a": xml(an_object("zebra")), "b": None}
    folder = write_year(tmp_path / "set" / "VOC2012", annotations, {"train": "a\n"})
    write_text(tmp_path / "secret.xml", xml(an_object("yak")))
    (folder / "Annotations" / "b.xml").symlink_to(tmp_path / "secret.xml")
    for path, split in ((folder, "train"), (tmp_path / "set", "2012_train")):
        assert read(path, split, classes=None).parsed.classes == ("zebra",)
        allowed = read(path, split, classes=None, allow_outside=True)
        assert allowed.parsed.classes == ("yak", "zebra")


def test_the_years_of_a_devkit_may_share_annotations_by_links(tmp_path: Path) -> None:
    early = write_year(tmp_path / "VOC2007", {"a": xml(an_object())})
    late = write_year(tmp_path / "VOC2012", {"a": None})
    (late / "Annotations").mkdir()
    (late / "Annotations" / "a.xml").symlink_to(early / "Annotations" / "a.xml")
    assert read(tmp_path, "2012_train").names == ["a"]
    assert read(late).counts == {"file-outside": 1}


def test_a_linked_folder_of_annotations_is_fine_but_none_below_it(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object()), "sub/b": xml(an_object())})
    (folder / "Annotations").rename(tmp_path / "elsewhere")
    (folder / "Annotations").symlink_to(tmp_path / "elsewhere")
    assert read(folder).names == ["a", "b"]
    (tmp_path / "elsewhere" / "sub").rename(tmp_path / "further")
    (tmp_path / "elsewhere" / "sub").symlink_to(tmp_path / "further")
    assert only(read(folder), "file-outside").file.endswith("b.xml")


def test_a_linked_folder_of_images_is_fine(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object())})
    (folder / "JPEGImages").rename(tmp_path / "elsewhere")
    (folder / "JPEGImages").symlink_to(tmp_path / "elsewhere")
    assert read(folder).names == ["a"]


def test_a_link_below_the_folder_of_images_is_followed_for_ids_with_a_folder(
    tmp_path: Path,
) -> None:
    folder = write_year(tmp_path / "VOC2012", {"sub/a": xml(an_object())})
    (folder / "JPEGImages" / "sub").rename(tmp_path / "elsewhere")
    (folder / "JPEGImages" / "sub").symlink_to(tmp_path / "elsewhere")
    assert only(read(folder), "image-outside").value == "'sub/a'"


def test_an_annotation_outside_does_not_make_a_test_list_annotated(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": None}, {"test": "../x\na\n"})
    (folder / "Annotations").mkdir()
    write_text(folder / "x.xml", xml(an_object()))
    result = read(folder, "test")
    assert not result.parsed.is_annotated
    assert result.counts == {"image-outside": 1}
    assert result.names == ["a"]


@pytest.mark.parametrize("name", ["JPEGImages", "Annotations"])
def test_a_folder_that_cannot_be_looked_into_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object())})
    scan = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError) as caught:
        read(folder)
    assert (caught.value.code, caught.value.detail) == ("file-unreadable", "Permission denied.")
    assert caught.value.file == str(folder / name)


def test_an_id_of_nonsense_skips_its_image_alone(tmp_path: Path) -> None:
    ids = f"{'x' * 300}/{'y' * 300}\nb\n"
    folder = write_year(tmp_path / "VOC2012", {"b": xml(an_object())}, {"train": ids})
    result = read(folder)
    assert result.findings.images.dropped == {"annotation-missing": 1}
    assert result.names == ["b"]


# Lists


def test_an_id_that_is_listed_twice_is_used_once(tmp_path: Path) -> None:
    folder = write_year(
        tmp_path / "VOC2012", {"a": xml(an_object()), "b": xml()}, {"train": "a\nb\na\n"}
    )
    result = read(folder)
    finding = only(result, "image-entry-twice")
    assert (Path(finding.file).name, finding.where) == ("train.txt", 3)
    assert (finding.field, finding.value) == ("id", "'a'")
    assert result.names == ["a", "b"]
    assert result.findings.images.dropped == {"image-entry-twice": 1}


def test_images_come_in_the_order_of_the_list_and_are_numbered(tmp_path: Path) -> None:
    annotations = {"b": xml(an_object()), "a": xml(an_object()), "c": xml(an_object())}
    folder = write_year(tmp_path / "VOC2012", annotations, {"train": "c\nx\na\nb\n"})
    result = read(folder)
    assert result.names == ["c", "a", "b"]
    assert result.annotations.image_ids.tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    "text",
    [
        b"a\nb",
        b"a\r\nb\r\n",
        b"\xef\xbb\xbfa\nb\n",
        b"\n\n  a  \n\n\tb\n\n",
        b"a  1\nb -1\n",
        b"a 0\nb\t0\n",
        "a\nb\n".encode("utf-16"),
        b"a\rb\r",
    ],
)
def test_lists_may_be_written_in_many_ways(tmp_path: Path, text: bytes) -> None:
    annotations = {"a": xml(an_object()), "b": xml(an_object())}
    folder = write_year(tmp_path / "VOC2012", annotations, {"train": text})
    result = read(folder)
    assert result.names == ["a", "b"]
    assert result.counts == {}


def test_an_id_may_have_spaces_and_end_with_a_number(tmp_path: Path) -> None:
    annotations = {"my cat 1": xml(an_object()), "dog 2": xml(an_object("dog"))}
    assert read(write_year(tmp_path / "VOC2012", annotations)).names == ["my cat 1", "dog 2"]


def test_a_file_of_either_kind_tells_that_a_number_belongs_to_the_id(tmp_path: Path) -> None:
    annotations = {"cat 1": xml(an_object()), "dog 0": None}
    folder = write_year(tmp_path / "VOC2012", annotations)
    (folder / "JPEGImages" / "cat 1.png").unlink()
    result = read(folder)
    assert only(result, "image-missing").file.endswith("cat 1.jpg")
    assert only(result, "annotation-missing").file.endswith("dog 0.xml")


@pytest.mark.parametrize("image_id", ["a.b.c", "a..b", "sub/b.."])
def test_an_id_may_have_dots(tmp_path: Path, image_id: str) -> None:
    result = read(write_year(tmp_path / "VOC2012", {image_id: xml(an_object())}))
    assert result.names == [Path(image_id).name]


def test_a_list_may_be_longer_than_the_labels_of_an_image(tmp_path: Path) -> None:
    text = (" " * 1023 + "\n") * 1100 + "a\n"
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object())}, {"train": text})
    assert read(folder).names == ["a"]


@pytest.mark.parametrize("name", ["a.jpg", "a.PNG", "a.xml"])
def test_a_list_of_file_names_is_explained(tmp_path: Path, name: str) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object())}, {"train": f"{name}\nb.jpg"})
    found = read(folder).findings.examples["annotation-missing"]
    assert [item.detail for item in found] == ["The list names files without extension.", ""]


def test_a_list_in_no_known_encoding_is_refused(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml()}, {"train": b"\xff\xfa\x80"})
    with pytest.raises(DataError) as caught:
        read(folder)
    assert caught.value.code == "file-encoding"


# Splits


def test_class_lists_are_no_splits_but_lists_of_ones_own_are(tmp_path: Path) -> None:
    lists = {
        "val": "a\n",
        "train": "a\n",
        "cat_train": "\ufeff\na  1\n",
        "cat_test": "a  1\n",
        "cat_val": "a -1\r\n",
        "cat_mine": "a 0",
        "mine": "a\n",
        "my_train": "a\n",
        "two_columns": "a 1\n",
    }
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object())}, lists)
    (folder / "ImageSets" / "Main" / "._train.txt").write_bytes(b"x")
    (folder / "ImageSets" / "Main" / "notes.md").write_bytes(b"x")
    assert voc.split_names(folder) == ("train", "val", "mine", "my_train", "two_columns")
    assert read(folder, "my_train").names == ["a"]
    with pytest.raises(DataError) as caught:
        read(folder, "cat_train")
    assert caught.value.code == "split-unknown"


def test_a_list_that_cannot_be_read_is_told_to_whoever_asks_for_it(tmp_path: Path) -> None:
    lists = {"train": "a\n", "odd_train": b"\x80\x81 1\n\xff"}
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object())}, lists)
    (folder / "ImageSets" / "Main" / "my_train.txt").mkdir()
    assert voc.split_names(folder) == ("train", "my_train")
    assert read(folder).names == ["a"]
    with pytest.raises(DataError) as caught:
        read(folder, "my_train")
    assert caught.value.code == "file-unreadable"


def test_a_long_class_list_is_recognised_too(tmp_path: Path) -> None:
    lines = "".join(f"{i:06d} -1\n" for i in range(1000))
    lists = {"train": "a\n", "cat_train": lines}
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object())}, lists)
    assert voc.split_names(folder) == ("train",)


def make_devkit(folder: Path) -> Path:
    cat, dog = xml(an_object("cat")), xml(an_object("dog"))
    write_year(
        folder / "VOC2007",
        {"000001": cat, "000002": dog},
        {"trainval": "000001\n", "test": "000002\n"},
    )
    write_year(
        folder / "VOC2012",
        {"2008_000001": dog, "2008_000002": None},
        {"trainval": "2008_000001\n", "test": "2008_000002\n", "train": "2008_000001\n"},
    )
    write_year(folder / "VOCother", {"1": cat})
    write_year(folder / "VOC2007copy", {"1": cat})
    (folder / "VOC2010").mkdir()
    return folder


def test_a_devkit_has_the_lists_of_all_years(tmp_path: Path) -> None:
    make_devkit(tmp_path / "VOCdevkit")
    expected = ("2007_trainval", "2007_test", "2012_train", "2012_trainval", "2012_test")
    for path in (tmp_path, tmp_path / "VOCdevkit"):
        assert voc.matches(path)
        assert voc.split_names(path) == expected
        assert read(path, "2007_trainval").names == ["000001"]
        assert read(path, "2007_test").names == ["000002"]
        result = read(path, "2012_test")
        assert result.names == ["2008_000002"]
        assert not result.parsed.is_annotated
    for split in ("trainval", "2007_train", "2010_trainval", "other_train", "", "../x", "2007_"):
        with pytest.raises(DataError) as caught:
            read(tmp_path, split)
        assert caught.value.code == "split-unknown"


def test_the_order_of_splits_is_not_that_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_devkit(tmp_path)
    expected = voc.split_names(tmp_path)
    original = os.scandir
    for is_reversed in (False, True):

        @contextmanager
        def turned(folder: Path, turn: bool = is_reversed) -> Iterator[Any]:
            with original(folder) as entries:
                yield sorted(entries, key=lambda entry: entry.name, reverse=turn)

        monkeypatch.setattr(os, "scandir", turned)
        assert voc.split_names(tmp_path) == expected


def test_a_single_year_answers_with_and_without_its_number(tmp_path: Path) -> None:
    for name in ("VOC2012", "voc2012", "my-2012"):
        folder = write_year(tmp_path / name, {"a": xml(an_object())})
        assert voc.split_names(folder) == ("train",)
        assert read(folder, "2012_train").names == ["a"]
        with pytest.raises(DataError):
            read(folder, "2007_train")


def test_the_year_is_that_of_the_folder_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_year(tmp_path / "VOC2012", {"a": xml(an_object())}))
    assert read(Path(), "2012_train").names == ["a"]


def test_a_list_whose_name_begins_with_the_year_comes_first(tmp_path: Path) -> None:
    annotations = {"a": xml(an_object()), "b": xml(an_object())}
    lists = {"train": "a\n", "2012_train": "b\n"}
    folder = write_year(tmp_path / "VOC2012", annotations, lists)
    assert read(folder, "2012_train").names == ["b"]


@pytest.mark.parametrize("name", ["pets", "2012-pets"])
def test_a_folder_whose_name_does_not_end_with_a_year_has_plain_splits(
    tmp_path: Path, name: str
) -> None:
    folder = write_year(tmp_path / name, {"a": xml(an_object())})
    assert read(folder, "train").names == ["a"]
    with pytest.raises(DataError):
        read(folder, "2012_train")


def test_without_lists_there_is_one_split_of_everything(tmp_path: Path) -> None:
    annotations = {"b": xml(an_object()), "a": xml(an_object("dog"))}
    folder = write_year(tmp_path / "VOC2012", annotations, {})
    write_image(folder / "JPEGImages" / "c.png")
    write_text(folder / "Annotations" / "notes.txt", "x")
    assert voc.split_names(folder) == ("all",)
    assert read(folder, "all").names == ["a", "b"]


def test_lists_directly_in_image_sets_are_read(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object()), "b": xml()}, {})
    write_text(folder / "ImageSets" / "train.txt", "a\n")
    assert voc.split_names(folder) == ("train",)
    assert read(folder).names == ["a"]


@pytest.mark.parametrize("missing", ["JPEGImages", "Annotations"])
def test_other_folders_are_not_voc(tmp_path: Path, missing: str) -> None:
    for name in {"JPEGImages", "Annotations"} - {missing}:
        (tmp_path / name).mkdir()
    assert not voc.matches(tmp_path)
    assert not voc.matches(tmp_path / "nothing")
    write_text(tmp_path / "file", "x")
    assert not voc.matches(tmp_path / "file")
    assert voc.split_names(tmp_path) == ()
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    assert caught.value.code == "data-unrecognised"
    assert "JPEGImages" in str(caught.value)


def test_images_with_lists_but_without_annotations_are_voc(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": None}, {"test": "a\n"})
    assert not (folder / "Annotations").exists()
    assert voc.matches(folder)
    assert read(folder, "test").names == ["a"]


# Classes


def test_the_usual_names_make_the_usual_list(tmp_path: Path) -> None:
    objects = (an_object("tvmonitor"), an_object("aeroplane"), an_object("person"))
    result = read(write_year(tmp_path / "VOC2012", {"a": xml(*objects)}), classes=None)
    assert result.parsed.classes == voc.CLASSES
    assert len(voc.CLASSES) == 20
    assert result.parsed.category_ids == tuple(range(1, 21))
    assert result.annotations.labels.tolist() == [19, 0, 14]


def test_other_names_of_all_splits_make_a_sorted_list(tmp_path: Path) -> None:
    annotations = {
        "a": xml(an_object("zebra"), an_object("cat")),
        "b": xml(an_object("yak"), an_object("xerus", box(xmin="bad"))),
        "c": xml(an_object("wolf", more=f"<part>{an_object('vole')}</part>"), an_object(" ")),
        "d": "<broken",
    }
    lists = {"train": "a\n", "val": "b\n"}
    folder = write_year(tmp_path / "VOC2012", annotations, lists)
    expected = ("cat", "wolf", "xerus", "yak", "zebra")
    for split in ("train", "val"):
        result = read(folder, split, classes=None)
        assert result.parsed.classes == expected
        assert result.parsed.category_ids == (1, 2, 3, 4, 5)
    assert result.annotations.labels.tolist() == [3]
    assert only(read(folder, "val", classes=None), "box-not-a-number").field == "xmin"


def test_a_split_with_the_usual_names_alone_has_the_list_of_the_data_set(tmp_path: Path) -> None:
    annotations = {
        "a": xml(an_object("dog")),
        "b": xml(an_object("dog"), an_object("zebra")),
        "c": "<annotation><object><name>sofa</name>",  # what cannot be read has no names
    }
    lists = {"train": "a\n", "val": "b\n", "trainval": "a\nb\nc\n"}
    folder = write_year(tmp_path / "VOC2012", annotations, lists)
    for split in lists:
        assert read(folder, split, classes=None).parsed.classes == ("dog", "zebra")


def test_annotations_in_folders_below_count_if_a_list_names_them(tmp_path: Path) -> None:
    annotations = {"a": xml(an_object("dog")), "sub/b": xml(an_object("zebra"))}
    lists = {"train": "a\n", "val": "sub/b\n", "broken": b"\xff"}
    folder = write_year(tmp_path / "VOC2012", annotations, lists)
    for split in ("train", "val"):
        assert read(folder, split, classes=None).parsed.classes == ("dog", "zebra")


PART = f"<part><name>head</name>{box()}</part>"
DECLARED = '<?xml version="1.0" encoding="utf-16"?>'
OWNER = "<owner><name>somebody</name></owner>"


@pytest.mark.parametrize(
    ("content", "is_usual", "num_parsed"),
    [
        (xml(an_object("dog"), an_object(" cat\n")), True, 0),
        (xml(an_object("dog", more=PART)).replace("<size>", f"{OWNER}<size>"), True, 0),
        ('<?xml version="1.0"?>\n' + xml(an_object("dog")), True, 0),
        (xml(), True, 0),
        (xml(an_object("zebra")), False, 1),
        (xml(an_object("dog"), an_object("zebra")), False, 1),
        (xml(an_object("dog").replace("<name>", "<pose/><name>")), True, 1),
        (xml(an_object("zebra").replace("<name>", "<pose/><name>")), False, 1),
        (xml("<!--" + an_object("zebra") + "-->"), True, 1),
        (xml(an_object("do<!-- -->gs")), False, 1),
        (xml(an_object("dog<?x?>s")), False, 1),
        (xml(an_object("dog<![CDATA[s]]>")), False, 1),
        (xml(an_object("d&#111;g")), True, 1),
        (xml(an_object("<![CDATA[zebra]]>")), False, 1),
        ((DECLARED + xml(an_object("zebra"))).encode("utf-16"), False, 1),
        (xml(an_object("zebra")).replace("<name>", '<name a="dog">'), False, 1),
        ("<broken", True, 1),
        (b"", True, 1),
    ],
)
def test_a_file_is_parsed_for_its_names_only_where_that_is_needed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str | bytes,
    is_usual: bool,
    num_parsed: int,
) -> None:
    write_text(tmp_path / "a.xml", content)
    parsed = []
    original = voc_xml.read_xml
    monkeypatch.setattr(voc_xml, "read_xml", lambda path: parsed.append(path) or original(path))
    assert voc_classes._has_usual_names(tmp_path / "a.xml") is is_usual
    assert len(parsed) == num_parsed


def test_a_class_list_of_which_the_data_have_none_is_refused(tmp_path: Path) -> None:
    annotations = {"a": xml(an_object("yak")), "b": xml(an_object("cat"))}
    folder = write_year(tmp_path / "VOC2012", annotations, {"train": "a\n", "val": "b\n"})
    with pytest.raises(DataError) as caught:
        read(folder, classes=("dog", "sofa"))
    assert (caught.value.code, caught.value.field) == ("classes-foreign", "classes")
    assert caught.value.detail == "It has cat, yak."
    # That a split happens to have none of them is no mistake.
    assert read(folder, classes=("cat",)).counts == {"class-unknown": 1, "all-objects-dropped": 1}


def test_no_file_is_read_twice_for_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotations = {"a": xml(an_object("zebra")), "b": xml(an_object("yak"))}
    folder = write_year(tmp_path / "VOC2012", annotations, {"train": "a\n"})
    read_files = []
    original = voc_xml.read_xml

    def counted(path: Path) -> Any:
        read_files.append(path.name)
        return original(path)

    monkeypatch.setattr(voc_xml, "read_xml", counted)
    assert read(folder, classes=None).names == ["a"]
    assert read_files == ["a.xml", "b.xml"]


def test_other_names_are_looked_for_in_all_years(tmp_path: Path) -> None:
    write_year(tmp_path / "VOC2007", {"a": xml(an_object("zebra"))})
    write_year(tmp_path / "VOC2012", {"a": xml(an_object("yak"))})
    for split in ("2007_train", "2012_train"):
        assert read(tmp_path, split, classes=None).parsed.classes == ("yak", "zebra")


def test_a_split_without_names_takes_those_of_the_others(tmp_path: Path) -> None:
    annotations = {"a": xml(an_object("zebra")), "b": None}
    folder = write_year(tmp_path / "VOC2012", annotations, {"train": "a\n", "test": "b\n"})
    assert read(folder, "test", classes=None).parsed.classes == ("zebra",)


def test_a_data_set_without_any_name_has_the_usual_list(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml()})
    assert read(folder, classes=None).parsed.classes == voc.CLASSES


def test_a_file_of_classes_beside_the_data_is_used(tmp_path: Path) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object("dog"), an_object("bird"))})
    write_text(folder / "classes.txt", "\ufeffyak\r\n\r\n dog \r\n")
    result = read(folder, classes=None)
    assert result.parsed.classes == ("yak", "dog")
    assert result.annotations.labels.tolist() == [1]
    assert only(result, "class-unknown").value == "'bird'"
    assert read(folder, classes=("bird",)).parsed.classes == ("bird",)


def test_a_class_list_leaves_nothing_to_be_read_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_year(tmp_path / "VOC2012", {"a": xml(an_object()), "b": xml(an_object())})
    read_files = []
    original = voc_xml.read_annotation

    def counted(path: Path) -> voc_xml.Annotation:
        read_files.append(path.name)
        return original(path)

    monkeypatch.setattr(voc_xml, "read_annotation", counted)
    for classes, num_before in ((("cat",), 0), (None, 2)):
        read_files.clear()
        parsed = voc.parse(
            folder, "train", classes=classes, findings=Findings(), allow_outside=False
        )
        assert len(read_files) == num_before
        assert len(list(parsed.images)) == 2
        assert read_files == ["a.xml", "b.xml"]  # each once


# The user's files


@dataclass(frozen=True)
class State:
    kind: str
    content: str
    mtime: int


def state_of(folder: Path) -> dict[str, State]:
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = State(oct(status.st_mode), content, status.st_mtime_ns)
    return found


def test_reading_changes_no_file(tmp_path: Path) -> None:
    make_devkit(tmp_path / "VOCdevkit")
    before = state_of(tmp_path)
    os.chmod(tmp_path / "VOCdevkit" / "VOC2007", 0o555)  # noqa: PTH101
    try:
        for split in voc.split_names(tmp_path):
            read(tmp_path, split)
            read(tmp_path, split, classes=None)
    finally:
        os.chmod(tmp_path / "VOCdevkit" / "VOC2007", 0o755)  # noqa: PTH101
    assert state_of(tmp_path) == before
