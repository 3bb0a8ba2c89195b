"""Bad COCO data: boxes, fields, ids, categories and images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from rankdet.bench.bad_case import COCO_TRAIN, Case, Files, coco_document

FILE = "instances_train2017.json"
DELETED = object()  # stands for the absence of a field
Document = dict[str, Any]


def _edited(edit: Callable[[Document], object]) -> Callable[[Files], None]:
    """A spoiler that changes the document of train."""

    def spoil(files: Files) -> None:
        document = coco_document("train")
        edit(document)
        files[COCO_TRAIN] = json.dumps(document, indent=1).encode()

    return spoil


def set_value(*path: Any, to: object) -> Callable[[Document], None]:
    """An edit of one value: the annotation of b is annotations, 2."""

    def edit(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        if to is DELETED:
            del document[path[-1]]
        else:
            document[path[-1]] = to

    return edit


def coco_case(
    name: str,
    edit: Callable[[Document], object],
    code: str = "",
    field: str = "",
    value: str = "",
    **rest: Any,
) -> Case:
    rest.setdefault("file", FILE if code else "")
    return Case(name, "coco", _edited(edit), code, field=field, value=value, **rest)


def object_case(
    name: str, key: str, to: object, code: str = "", field: str = "", value: str = "", **rest: Any
) -> Case:
    """Another value in the annotation of b."""
    return coco_case(name, set_value("annotations", 2, key, to=to), code, field, value, **rest)


def image_case(
    name: str, key: str, to: object, code: str = "", field: str = "", value: str = "", **rest: Any
) -> Case:
    """Another value in the image entry of b."""
    return coco_case(name, set_value("images", 1, key, to=to), code, field, value, **rest)


def coco_cases() -> Iterator[Case]:
    yield from _boxes()
    yield from _fields()
    yield from _ids()
    yield from _categories()
    yield from _images()


def _boxes() -> Iterator[Case]:
    yield object_case("a COCO box of no width", "bbox", [10, 12, 0, 24], "box-zero-area", "box")
    yield object_case("COCO corners swapped", "bbox", [50, 36, -40, -24], "box-swapped", "box")
    yield object_case("a COCO box a little outside", "bbox", [10, 12, 60, 24], "box-clipped", "box")
    yield object_case(
        "a COCO box far outside", "bbox", [600, 12, 60, 24], "box-outside", "box", "660"
    )
    yield object_case(
        "a COCO box of three numbers", "bbox", [1, 2, 3], "box-not-a-number", "bbox", "[1, 2"
    )
    yield object_case(
        "a COCO box of texts", "bbox", ["1", "2", "9", "9"], "box-not-a-number", "bbox", "'1'"
    )
    yield object_case(
        "a COCO box with null", "bbox", [1, 2, None, 9], "box-not-a-number", "bbox", "None"
    )
    yield object_case(
        "a COCO box with true", "bbox", [1, 2, True, 9], "box-not-a-number", "bbox", "True"
    )
    yield object_case("a COCO box that is null", "bbox", None, "field-missing", "bbox")
    yield object_case(
        "a COCO box that is an object", "bbox", {"x": 1}, "box-not-a-number", "bbox", "x"
    )
    yield object_case("a COCO annotation without box", "bbox", DELETED, "field-missing", "bbox")
    yield object_case(
        "a huge integer in a COCO box", "bbox", [1, 2, 10**400, 9], "box-not-finite", "bbox"
    )
    yield object_case(
        "1e308 in a COCO box", "bbox", [1, 2, 1e308, 9], "box-outside", "box", "1e+308"
    )
    yield object_case("float coordinates in COCO", "bbox", [10.25, 12.5, 39.75, 20.125])

    def many(document: Document) -> None:
        one = document["annotations"].pop()
        document["annotations"] += [{**one, "id": 100 + i} for i in range(1500)]

    yield coco_case(
        "thousands of boxes in a COCO image",
        many,
        "box-count",
        "boxes",
        "1500",
        objects=(1502, 1502),
    )


def _fields() -> Iterator[Case]:
    default = "annotation-field-default"
    yield object_case("a COCO annotation without area", "area", DELETED, default, "area")
    yield object_case("a COCO annotation without iscrowd", "iscrowd", DELETED, default, "iscrowd")
    yield object_case("a COCO crowd", "iscrowd", 1, num_ignored=1)
    yield object_case(
        "iscrowd that is neither 0 nor 1", "iscrowd", 7, "field-invalid", "iscrowd", "7"
    )
    yield object_case("a COCO area that is text", "area", "big", default, "area")
    yield object_case("a COCO area below 0", "area", -5, default, "area")
    rle = {"counts": [10, 20, 3042], "size": [48, 64]}

    def crowd(document: Document) -> None:
        document["annotations"][2].update(iscrowd=1, segmentation=rle)

    yield coco_case("a COCO crowd with a run-length mask", crowd, num_ignored=1)
    yield object_case("a COCO segmentation of nonsense", "segmentation", "nonsense")
    yield object_case(
        "an unknown COCO category id", "category_id", 99, "class-unknown", "category_id", "99"
    )
    yield object_case(
        "a COCO category id as text", "category_id", "2", "class-unknown", "category_id", "'2'"
    )
    yield object_case(
        "a COCO annotation without category",
        "category_id",
        DELETED,
        "field-missing",
        "category_id",
    )
    yield object_case(
        "an annotation of an unknown COCO image",
        "image_id",
        99,
        "annotation-unknown-image",
        "image_id",
        "99",
    )
    yield object_case(
        "a COCO annotation without image_id",
        "image_id",
        DELETED,
        "field-missing",
        "image_id",
    )
    yield coco_case(
        "a COCO annotation that is a number",
        set_value("annotations", 2, to=5),
        "field-invalid",
        "annotation",
        "5",
        also=("annotation-id-changed",),
    )


def _ids() -> Iterator[Case]:
    changed = "annotation-id-changed"
    yield object_case("the COCO annotation id 0", "id", 0, changed, "id", "0")
    yield object_case("a COCO annotation id twice", "id", 1, changed, "id", "1")
    yield object_case("a COCO annotation without id", "id", DELETED, changed, "id")
    yield object_case("a COCO annotation id that is text", "id", "x")
    yield coco_case(
        "COCO image id 0",
        lambda d: (d["images"][1].update(id=0), d["annotations"][2].update(image_id=0)),
    )


def _categories() -> Iterator[Case]:
    def numbered(first: int, second: int) -> Callable[[Document], None]:
        def edit(document: Document) -> None:
            ids = {1: first, 2: second}
            for category in document["categories"]:
                category["id"] = ids[category["id"]]
            for annotation in document["annotations"]:
                annotation["category_id"] = ids[annotation["category_id"]]

        return edit

    yield coco_case("COCO category ids with gaps", numbered(3, 90))
    yield coco_case("COCO category ids from 0", numbered(0, 1))
    for name, key, to, value in (
        ("a COCO category id twice", "id", 1, "1"),
        ("a COCO category name twice", "name", "cat", "cat"),
        ("a COCO category without name", "name", DELETED, ""),
        ("a COCO category name that is a number", "name", 5, "5"),
        ("a COCO category without id", "id", DELETED, ""),
    ):
        edit = set_value("categories", 1, key, to=to)
        yield coco_case(name, edit, "classes-invalid", key, value, is_refused=True)

    def grouped(document: Document) -> None:
        for category in document["categories"]:
            category["supercategory"] = "animals"
        document["categories"].append({"id": 0, "name": "animals", "supercategory": "none"})

    yield coco_case(
        "a COCO category that groups the others", grouped, "category-left-out", "name", "animals"
    )
    owl = {"id": 9, "name": "owl"}
    only_train = _edited(lambda d: d["categories"].append(owl))

    def both_splits(files: Files) -> None:
        only_train(files)
        document = coco_document("val")
        document["categories"].append(owl)
        files["annotations/instances_val2017.json"] = json.dumps(document).encode()

    yield Case("a COCO class without objects", "coco", both_splits, "class-empty", value="owl")
    yield Case(
        "a COCO class that val does not have",
        "coco",
        only_train,
        "split-classes",
        value="'owl'",
        also=("class-empty",),
        found_by="checking",
    )


def _images() -> Iterator[Case]:
    entry = "image-entry-invalid"
    lost: dict[str, Any] = {"images": (2, 1), "objects": (3, 2)}
    unknown = dict(also=("annotation-unknown-image",), **lost)
    yield coco_case(
        "a COCO image without objects",
        lambda d: d["annotations"].pop(),
        "no-objects",
        objects=(2, 2),
    )
    yield coco_case(
        "a COCO split without any object",
        lambda d: d["annotations"].clear(),
        "no-objects",
        count=2,
        also=("class-empty", "class-empty"),
        objects=(0, 0),
    )
    yield image_case(
        "a COCO image without file_name", "file_name", DELETED, entry, "file_name", **lost
    )
    yield image_case(
        "a COCO file_name that is a number", "file_name", 5, entry, "file_name", "5", **lost
    )
    yield image_case("an empty COCO file_name", "file_name", "", entry, "file_name", **lost)
    yield image_case("a COCO image without id", "id", DELETED, entry, "id", **unknown)
    yield coco_case(
        "a COCO image id that is text",
        lambda d: (d["images"][1].update(id="two"), d["annotations"][2].update(image_id="two")),
        "image-id-changed",
        "id",
        "two",
    )
    yield coco_case("a COCO image that is null", set_value("images", 1, to=None), entry, **unknown)
    twice = "image-entry-twice"
    yield image_case("a COCO image id twice", "id", 1, twice, "id", "1", **unknown)
    yield image_case(
        "a COCO image file twice", "file_name", "a.jpg", twice, "file_name", "a.jpg", **lost
    )
    yield coco_case(
        "a COCO image without size",
        lambda d: (d["images"][1].pop("width"), d["images"][1].pop("height")),
        "size-missing",
    )
    for value in (None, "64", 0, -64, 64.5, True, 10**30):
        name, shown = f"the COCO width {str(value)[:10]}", repr(value)[:10]
        yield image_case(name, "width", value, "size-invalid", "size", shown)
