"""The COCO reader, on small complete data sets."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from PIL import Image

from rankdet.bench.bad_data import fingerprint
from rankdet.data.reading import coco, coco_json
from rankdet.data.reading.annotations import Annotations, assemble
from rankdet.data.reading.findings import Findings
from rankdet.data.reading.split import Parsed
from rankdet.errors import DataError

SIZE = (64, 48)
JSON = "annotations/instances_train2017.json"


def save_image(path: Path, size: tuple[int, int] = SIZE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "gray").save(path)


def image_entry(number: Any, name: Any, **rest: Any) -> dict[str, Any]:
    return {"id": number, "file_name": name, "width": SIZE[0], "height": SIZE[1], **rest}


def annotation(number: Any, image: Any, category: Any = 1, **rest: Any) -> dict[str, Any]:
    box = {"bbox": [8, 4, 16, 12], "area": 100.0, "iscrowd": 0}
    return {"id": number, "image_id": image, "category_id": category, **box, **rest}


def document(**parts: Any) -> dict[str, Any]:
    """Two images: the first (id 7) has a cat and a crowd of dogs, the second (id 3) a dog."""
    whole = {
        "images": [image_entry(7, "a.png"), image_entry(3, "b.png")],
        "annotations": [
            annotation(1, 7, 1),
            annotation(2, 3, 5, bbox=[0, 0, 10.5, 20]),
            annotation(3, 7, 5, iscrowd=1, bbox=[1, 2, 60, 40]),
        ],
        "categories": [{"id": 5, "name": "dog"}, {"id": 1, "name": "cat"}],
    }
    return {**whole, **parts}


def write(root: Path, content: Any = None, file: str = JSON, images: str = "train2017") -> Path:
    """A COCO data set in `root`."""
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document() if content is None else content))
    for name in ("a.png", "b.png"):
        save_image(root / images / name)
    return root


def parse(path: Path, split: str = "train2017", **options: Any) -> tuple[Parsed, Findings]:
    findings = Findings()
    options = {"classes": None, "allow_outside": False, **options}
    return coco.parse(path, split, findings=findings, **options), findings


def read(
    path: Path, split: str = "train2017", **options: Any
) -> tuple[Parsed, Annotations, Findings]:
    """Everything, with the checks that hold for every data set."""
    before = fingerprint(path if path.is_dir() else path.parent)
    parsed, findings = parse(path, split, **options)
    annotations = assemble(parsed.images, findings, is_annotated=parsed.is_annotated)
    assert findings.images.reconciles()
    assert findings.objects.reconciles()
    assert fingerprint(path if path.is_dir() else path.parent) == before
    return parsed, annotations, findings


def names(annotations: Annotations) -> list[str]:
    return [annotations.path(index).name for index in range(len(annotations))]


def refused(path: Path, split: str = "train2017", **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        read(path, split, **options)
    return caught.value


# ---- what a sound file gives


def test_a_sound_data_set_gives_images_boxes_and_classes_as_written(tmp_path: Path) -> None:
    parsed, annotations, findings = read(write(tmp_path))
    assert (parsed.classes, parsed.category_ids) == (("cat", "dog"), (1, 5))
    assert parsed.is_annotated
    assert parsed.num_images == 2
    assert names(annotations) == ["a.png", "b.png"]
    assert annotations.image_ids.tolist() == [7, 3]
    assert annotations.offsets.tolist() == [0, 2, 3]
    expected = [[8, 4, 24, 16], [1, 2, 61, 42], [0, 0, 10.5, 20]]
    assert annotations.boxes.tolist() == expected
    assert annotations.labels.tolist() == [0, 1, 1]
    assert annotations.is_ignored.tolist() == [False, True, False]
    assert annotations.areas.tolist() == [100, 100, 100]
    assert not findings.counts
    assert findings.num_ignored == 1


def test_where_says_which_annotation_and_image_it_is(tmp_path: Path) -> None:
    content = document()
    content["annotations"][0]["bbox"] = [8, 4, 0, 12]
    content["images"][1]["width"] = 65
    _, _, findings = read(write(tmp_path, content))
    (box,) = findings.examples["box-zero-area"]
    assert box.where == "annotations[0]"
    assert box.file.endswith(JSON)
    (size,) = findings.examples["image-size-differs"]
    assert size.where == "images[1]"


def test_an_image_without_annotations_is_background(tmp_path: Path) -> None:
    _, annotations, findings = read(write(tmp_path, document(annotations=[])))
    assert len(annotations) == 2
    assert findings.counts == {"no-objects": 2}


def test_the_key_ignore_counts_as_crowd(tmp_path: Path) -> None:
    values = (1, 0, True, "no")
    items = [annotation(i, 7, ignore=value) for i, value in enumerate(values, start=1)]
    _, annotations, _ = read(write(tmp_path, document(annotations=items)))
    assert annotations.is_ignored.tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("first", "second"), [(0, 1), (1, 2), (0, 90), (-3, 7), (2.0, 4), (1 - 2**31, 2**31 - 1)]
)
def test_category_ids_may_be_any_whole_numbers(tmp_path: Path, first: int, second: int) -> None:
    categories = [{"id": second, "name": "dog"}, {"id": first, "name": "cat"}]
    content = document(
        categories=categories, annotations=[annotation(1, 7, second), annotation(2, 3, first)]
    )
    parsed, annotations, _ = read(write(tmp_path, content))
    assert (parsed.classes, parsed.category_ids) == (("cat", "dog"), (first, second))
    assert annotations.labels.tolist() == [1, 0]


@hypothesis.given(
    st.lists(
        st.tuples(
            st.floats(0, 40),
            st.floats(0, 30),
            st.floats(0.5, 24),
            st.floats(0.5, 18),
            st.booleans(),
        ),
        max_size=30,
    )
)
@hypothesis.settings(max_examples=25, deadline=None)
def test_random_boxes_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, boxes: list[tuple[float, ...]]
) -> None:
    root = tmp_path_factory.mktemp("coco")
    items = [
        annotation(number, 7 if is_first else 3, bbox=box, area=number)
        for number, (*box, is_first) in enumerate(boxes, start=1)
    ]
    _, annotations, findings = read(write(root, document(annotations=items)))
    ordered = [item for image in (7, 3) for item in items if item["image_id"] == image]
    expected = [[x, y, x + w, y + h] for x, y, w, h in (item["bbox"] for item in ordered)]
    assert np.allclose(annotations.boxes, np.array(expected).reshape(-1, 4), atol=1e-4)
    assert annotations.areas.tolist() == [item["area"] for item in ordered]
    assert findings.objects.used == len(boxes)


# ---- where things lie


@pytest.mark.parametrize("folder", ["train2017", "images/train2017", "images", "."])
def test_images_are_found_in_each_usual_folder(tmp_path: Path, folder: str) -> None:
    _, annotations, findings = read(write(tmp_path, images=folder))
    assert len(annotations) == 2
    assert not findings.counts


def test_the_folder_of_the_split_comes_before_the_others(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, images="images")
    _, annotations, _ = read(tmp_path)
    assert annotations.path(0) == tmp_path / "train2017" / "a.png"


def test_a_file_name_may_have_folders(tmp_path: Path) -> None:
    images = [image_entry(7, "train2017/a.png"), image_entry(3, "sub/b.png")]
    write(tmp_path, document(images=images))
    save_image(tmp_path / "train2017" / "sub" / "b.png")
    _, annotations, findings = read(tmp_path)
    assert len(annotations) == 2
    assert not findings.counts


def test_backslashes_are_slashes_unless_there_is_such_a_file(tmp_path: Path) -> None:
    images = [image_entry(7, "sub\\a.png"), image_entry(3, "x\\b.png")]
    write(tmp_path, document(images=images))
    save_image(tmp_path / "train2017" / "sub" / "a.png")
    save_image(tmp_path / "train2017" / "x\\b.png")
    _, annotations, _ = read(tmp_path)
    assert annotations.path(0) == tmp_path / "train2017" / "sub" / "a.png"
    assert annotations.path(1) == tmp_path / "train2017" / "x\\b.png"


def test_a_missing_image_is_named_where_it_should_be(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "train2017" / "a.png").unlink()
    _, annotations, findings = read(tmp_path)
    assert names(annotations) == ["b.png"]
    (missing,) = findings.examples["image-missing"]
    assert missing.file == str(tmp_path / "train2017" / "a.png")
    assert findings.objects.dropped == {"image-missing": 2}


def test_a_missing_image_is_named_in_a_folder_that_exists_and_with_slashes(tmp_path: Path) -> None:
    images = [image_entry(7, "sub\\gone.png"), image_entry(3, "b.png")]
    _, _, findings = read(write(tmp_path, document(images=images), images="images"))
    (missing,) = findings.examples["image-missing"]
    assert missing.file == str(tmp_path / "images" / "sub" / "gone.png")


def test_a_link_to_nowhere_is_a_missing_image_even_if_another_folder_has_one(
    tmp_path: Path,
) -> None:
    write(tmp_path, images="images")
    write(tmp_path)
    (tmp_path / "train2017" / "a.png").unlink()
    (tmp_path / "train2017" / "a.png").symlink_to("gone.png")
    _, annotations, findings = read(tmp_path)
    assert names(annotations) == ["b.png"]
    assert findings.images.dropped == {"image-missing": 1}


def test_images_that_vanish_after_the_annotations_are_read_are_missing(tmp_path: Path) -> None:
    parsed, findings = parse(write(tmp_path / "set"))
    shutil.rmtree(tmp_path / "set")
    assert len(assemble(parsed.images, findings)) == 0
    first = findings.examples["image-missing"][0]
    assert first.file == str(tmp_path / "set" / "train2017" / "a.png")


def test_the_folder_above_is_outside_too(tmp_path: Path) -> None:
    content = document(images=[5, image_entry(7, ".."), image_entry(3, "b.png")])
    _, annotations, findings = read(write(tmp_path, content))
    assert names(annotations) == ["b.png"]
    (outside,) = findings.examples["image-outside"]
    assert (outside.where, outside.value) == ("images[1]", "'..'")


@pytest.mark.parametrize("name", ["../secret.png", "/etc/secret.png", "..\\secret.png"])
def test_a_file_name_that_leads_outside_is_refused_unless_allowed(
    tmp_path: Path, name: str
) -> None:
    root = tmp_path / "set"
    save_image(tmp_path / "secret.png")
    save_image(root / "secret.png")
    write(root, document(images=[image_entry(7, name), image_entry(3, "b.png")]))
    _, annotations, findings = read(root)
    assert names(annotations) == ["b.png"]
    (outside,) = findings.examples["image-outside"]
    assert outside.where == "images[0]"
    assert outside.field == "file_name"
    assert outside.value == repr(name)
    assert findings.objects.dropped == {"image-outside": 2}
    if not name.startswith("/"):
        _, annotations, _ = read(root, allow_outside=True)
        assert len(annotations) == 2


def test_a_link_that_leads_outside_is_refused_unless_allowed(tmp_path: Path) -> None:
    root = tmp_path / "set"
    save_image(tmp_path / "secret.png")
    write(root)
    (root / "train2017" / "a.png").unlink()
    (root / "train2017" / "a.png").symlink_to(tmp_path / "secret.png")
    _, annotations, findings = read(root)
    assert names(annotations) == ["b.png"]
    assert findings.counts["image-outside"] == 1
    _, annotations, _ = read(root, allow_outside=True)
    assert names(annotations) == ["a.png", "b.png"]


def test_the_folder_of_the_images_may_be_a_link(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write(root)
    (root / "train2017").rename(tmp_path / "elsewhere")
    (root / "train2017").symlink_to(tmp_path / "elsewhere")
    assert len(read(root)[1]) == 2


# ---- splits


def test_the_splits_are_those_with_a_file_and_the_aliases_are_understood(tmp_path: Path) -> None:
    for split in ("val2017", "train2017", "mini"):
        write(tmp_path, file=f"annotations/instances_{split}.json", images=split)
    for other in ("captions_train2017", "person_keypoints_val2017", "panoptic_x", "stuff_y"):
        (tmp_path / "annotations" / f"{other}.json").write_text("{}")
    (tmp_path / "annotations" / "extra.json").write_text("{}")
    assert coco.matches(tmp_path)
    assert coco.split_names(tmp_path) == ("train2017", "val2017", "mini")
    for alias, folder in (("trainval35k", "train2017"), ("minival", "val2017"), ("mini", "mini")):
        _, annotations, _ = read(tmp_path, alias)
        assert annotations.path(0).parent.name == folder


def test_test_dev_has_no_annotations_and_its_images_are_those_of_the_test_set(
    tmp_path: Path,
) -> None:
    content = document()
    del content["annotations"]
    for name in ("test-dev2017", "test2017"):
        write(tmp_path, content, f"annotations/image_info_{name}.json", "test2017")
    assert coco.split_names(tmp_path) == ("test-dev2017", "test2017")
    for name in ("test-dev", "test-dev2017", "test2017"):
        parsed, annotations, findings = read(tmp_path, name)
        assert not parsed.is_annotated
        assert parsed.category_ids == (1, 5)
        assert len(annotations) == 2
        assert not findings.counts


def test_annotations_win_over_a_list_of_images(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, file="annotations/image_info_train2017.json")
    assert read(tmp_path)[0].is_annotated


def test_plain_names_are_splits_if_there_are_no_others(tmp_path: Path) -> None:
    write(tmp_path, file="annotations/train.json", images="train")
    write(tmp_path, file="annotations/val.json", images="val")
    (tmp_path / "annotations" / "captions_val.json").write_text("{}")
    assert coco.split_names(tmp_path) == ("train", "val")
    assert len(read(tmp_path, "valid")[1]) == 2


def test_a_folder_for_each_split_with_its_file_beside_the_images(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        write(tmp_path, file=f"{split}/_annotations.coco.json", images=split)
    assert coco.matches(tmp_path)
    assert coco.split_names(tmp_path) == ("train", "valid", "test")
    assert read(tmp_path, "val")[1].path(0).parent.name == "valid"
    assert coco.split_names(tmp_path / "train") == ("all",)
    assert len(read(tmp_path / "train", "all")[1]) == 2


def test_the_images_of_a_splits_folder_may_lie_in_a_folder_of_their_own(tmp_path: Path) -> None:
    write(tmp_path, file="train/_annotations.coco.json", images="train/images")
    assert read(tmp_path, "train")[1].path(0) == tmp_path / "train" / "images" / "a.png"


def test_the_folder_of_annotations_wins_over_a_file_beside_the_images(tmp_path: Path) -> None:
    write(tmp_path, document(images=[]), "train/_annotations.coco.json", "train")
    write(tmp_path, file="annotations/instances_train.json", images="train")
    assert len(read(tmp_path, "train")[1]) == 2


def test_a_folder_is_no_annotation_file(tmp_path: Path) -> None:
    (write(tmp_path) / "annotations" / "instances_old.json").mkdir()
    assert coco.split_names(tmp_path) == ("train2017",)


def test_a_data_set_may_be_called_like_its_split(tmp_path: Path) -> None:
    assert len(read(write(tmp_path / "train2017"), "train2017")[1]) == 2


def test_a_list_of_images_by_itself_is_not_annotated(tmp_path: Path) -> None:
    content = document()
    del content["annotations"]
    path = write(tmp_path, content, "x/image_info_test2017.json", "test2017") / "x"
    for split in ("all", "test2017", "image_info_test2017"):
        parsed, annotations, findings = read(path / "image_info_test2017.json", split)
        assert not parsed.is_annotated
        assert len(annotations) == 2
        assert not findings.counts


def test_the_folder_above_one_json_file_is_not_searched_itself(tmp_path: Path) -> None:
    path = write(tmp_path, file="x/set.json", images=".") / "x/set.json"
    assert read(path, "all")[2].images.dropped == {"image-missing": 2}


def test_one_json_file_may_be_named_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path / "annotations")
    assert len(read(Path("instances_train2017.json"), "all")[1]) == 2


@pytest.mark.parametrize(
    ("file", "images"),
    [
        ("x/set.json", "x"),
        ("x/set.json", "x/images"),
        ("x/set.json", "x/set"),
        ("x/SET.JSON", "x"),
        ("annotations/instances_val2017.json", "val2017"),
        ("annotations/instances_val2017.json", "images/val2017"),
        ("annotations/instances_val2017.json", "images"),
    ],
)
def test_one_json_file_by_itself_is_the_split_all(tmp_path: Path, file: str, images: str) -> None:
    write(tmp_path, file=file, images=images)
    path = tmp_path / file
    assert coco.matches(path)
    assert coco.split_names(path) == ("all",)
    for name in ("all", path.stem, path.stem.removeprefix("instances_")):
        _, annotations, findings = read(path, name)
        assert len(annotations) == 2
        assert not findings.counts


def test_an_unknown_split_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    error = refused(write(tmp_path), "../train2017")
    assert error.code == "split-unknown"
    assert "train2017" in error.detail


def test_other_folders_and_files_are_not_coco(tmp_path: Path) -> None:
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "a.xml").write_text("<a/>")
    (tmp_path / "annotations" / "captions_a.json").write_text("{}")
    assert not coco.matches(tmp_path)
    assert coco.split_names(tmp_path) == ()
    assert not coco.matches(tmp_path / "annotations" / "a.xml")
    assert not coco.matches(tmp_path / "missing")
    assert refused(tmp_path / "missing").code == "data-missing"


# ---- classes


def test_given_classes_are_matched_by_name(tmp_path: Path) -> None:
    parsed, annotations, findings = read(write(tmp_path), classes=("dog", "bird", "cat"))
    assert parsed.classes == ("dog", "bird", "cat")
    assert parsed.category_ids == (5, 6, 1)
    assert annotations.labels.tolist() == [2, 0, 0]
    assert not findings.counts


def test_objects_of_a_class_that_is_not_given_are_unknown(tmp_path: Path) -> None:
    parsed, annotations, findings = read(write(tmp_path), classes=("dog",))
    assert parsed.category_ids == (5,)
    assert annotations.labels.tolist() == [0, 0]
    assert findings.objects.dropped == {"class-unknown": 1}


def test_given_classes_of_which_the_file_has_none_are_refused(tmp_path: Path) -> None:
    error = refused(write(tmp_path), classes=("bird",))
    assert error.code == "classes-foreign"
    assert "cat, dog" in error.detail


def test_an_image_whose_annotations_are_all_dropped_is_not_said_to_have_none(
    tmp_path: Path,
) -> None:
    content = document()
    content["annotations"][1]["bbox"] = [1, 2, "wide", 4]  # the only one of image 3
    findings = read(write(tmp_path, content))[2]
    assert findings.counts == {"box-not-a-number": 1, "all-objects-dropped": 1}
    assert findings.examples["all-objects-dropped"][0].where == "images[1]"
    content["annotations"][1]["image_id"] = 99
    findings = read(write(tmp_path, content))[2]
    assert findings.counts == {"annotation-unknown-image": 1, "no-objects": 1}


def test_a_category_0_that_only_groups_the_others_is_left_out(tmp_path: Path) -> None:
    group = {"id": 0, "name": "pets", "supercategory": "none"}
    others = [
        {"id": 1, "name": "cat", "supercategory": "pets"},
        {"id": 5, "name": "dog", "supercategory": "pets"},
    ]
    parsed, annotations, findings = read(write(tmp_path, document(categories=[group, *others])))
    assert (parsed.classes, parsed.category_ids) == (("cat", "dog"), (1, 5))
    assert annotations.labels.tolist() == [0, 1, 1]
    assert findings.counts == {"category-left-out": 1}
    parsed, _, _ = read(tmp_path, classes=("cat", "dog", "pets"))
    assert parsed.category_ids == (1, 5, 0)
    parsed, _, findings = read(tmp_path, classes=("dog", "cat"))
    assert parsed.category_ids == (5, 1)
    assert findings.counts == {"category-left-out": 1}


def test_in_a_test_set_nobody_knows_whether_category_0_has_objects(tmp_path: Path) -> None:
    group = {"id": 0, "name": "pets", "supercategory": "none"}
    content = document(categories=[group, {"id": 1, "name": "cat", "supercategory": "pets"}])
    write(tmp_path, content, "annotations/image_info_test2017.json", "test2017")
    parsed, _, findings = read(tmp_path, "test2017")
    assert parsed.classes == ("pets", "cat")
    assert not findings.counts


@pytest.mark.parametrize("change", ["has objects", "no group", "other id"])
def test_any_other_category_is_kept(tmp_path: Path, change: str) -> None:
    group = {"id": 9 if change == "other id" else 0, "name": "pets", "supercategory": "pets"}
    super_name = "animals" if change == "no group" else "pets"
    content = document(categories=[group, {"id": 1, "name": "cat", "supercategory": super_name}])
    category = 0 if change == "has objects" else 1
    content["annotations"] = [annotation(1, 7, category)]
    parsed, _, findings = read(write(tmp_path, content))
    assert set(parsed.classes) == {"pets", "cat"}
    assert "category-left-out" not in findings.counts


# ---- the whole file is wrong


@pytest.mark.parametrize(
    ("content", "where", "field"),
    [
        ([], "", "type"),
        ("text", "", "type"),
        (document(images=None), "", "images"),
        (document(images={}), "", "images"),
        (document(annotations="x"), "", "annotations"),
        (document(categories=[]), "", "categories"),
        ({"images": [], "annotations": []}, "", "categories"),
        ({"categories": [], "annotations": []}, "", "images"),
        ({"images": [], "categories": []}, "", "annotations"),
        (document(categories=[5]), "categories[0]", ""),
        (document(categories=[{"name": "cat"}]), "categories[0]", "id"),
        (document(categories=[{"id": "1", "name": "cat"}]), "categories[0]", "id"),
        (document(categories=[{"id": True, "name": "cat"}]), "categories[0]", "id"),
        (document(categories=[{"id": 10**30, "name": "cat"}]), "categories[0]", "id"),
        (document(categories=[{"id": -(2**31), "name": "cat"}]), "categories[0]", "id"),
        (document(categories=[{"id": 1}]), "categories[0]", "name"),
        (document(categories=[{"id": 1, "name": " "}]), "categories[0]", "name"),
        (document(categories=[{"id": 1, "name": 5}]), "categories[0]", "name"),
        (document(categories=[{"id": 1, "name": "\ud800"}]), "categories[0]", "name"),
        (
            document(categories=[{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]),
            "categories[1]",
            "id",
        ),
        (
            document(categories=[{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]),
            "categories[1]",
            "name",
        ),
    ],
)
def test_a_file_that_is_no_coco_is_refused(
    tmp_path: Path, content: Any, where: str, field: str
) -> None:
    error = refused(write(tmp_path, content))
    code = "classes-invalid" if where else "json-structure"
    assert (error.code, error.where, error.field) == (code, where, field)
    assert error.file.endswith(JSON)
    if field in ("images", "annotations", "categories") and field not in content:
        assert error.detail == "It is missing."
    elif field in ("images", "annotations"):
        assert error.detail == "It is not a list."


def test_broken_json_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / JSON).write_text('{"images": [NaN]}')
    assert refused(tmp_path).code == "json-not-finite"


# ---- entries of images


@pytest.mark.parametrize(
    ("entry", "field", "num_lost"),
    [
        (None, "", 0),
        ([], "", 0),
        ({"file_name": "a.png"}, "id", 0),
        (image_entry(None, "a.png"), "id", 0),
        (image_entry(True, "a.png"), "id", 0),
        (image_entry(7.5, "a.png"), "id", 0),
        (image_entry([7], "a.png"), "id", 0),
        ({"id": 7}, "file_name", 2),
        (image_entry(7, None), "file_name", 2),
        (image_entry(7, 5), "file_name", 2),
        (image_entry(7, " "), "file_name", 2),
        (image_entry(7, "a\0.png"), "file_name", 2),
        (image_entry(7, "\ud800.png"), "file_name", 2),
    ],
)
def test_an_invalid_image_entry_is_skipped_with_its_objects(
    tmp_path: Path, entry: Any, field: str, num_lost: int
) -> None:
    content = document(images=[entry, image_entry(3, "b.png")])
    _, annotations, findings = read(write(tmp_path, content))
    assert names(annotations) == ["b.png"]
    (fault,) = findings.examples["image-entry-invalid"]
    assert (fault.where, fault.field) == ("images[0]", field)
    assert findings.images.dropped == {"image-entry-invalid": 1}
    assert findings.objects.seen == 3
    assert findings.objects.dropped["image-entry-invalid"] == num_lost
    assert findings.counts["annotation-unknown-image"] == 2 - num_lost


def test_entries_with_invalid_names_are_not_the_same_image(tmp_path: Path) -> None:
    content = document(images=[image_entry(7, None), image_entry(3, " "), {"file_name": "a.png"}])
    _, _, findings = read(write(tmp_path, content))
    assert findings.images.dropped == {"image-entry-invalid": 3}
    details = {found.detail for found in findings.examples["image-entry-invalid"]}
    assert details == {"It must be the name of a file.", "It is missing."}


def test_an_image_id_used_twice_belongs_to_the_first(tmp_path: Path) -> None:
    content = document(images=[image_entry(7, "a.png"), image_entry(7, "b.png")])
    content["annotations"] = [annotation(1, 7), annotation(2, 7)]
    _, annotations, findings = read(write(tmp_path, content))
    assert names(annotations) == ["a.png"]
    assert len(annotations.boxes) == 2
    (fault,) = findings.examples["image-entry-twice"]
    assert (fault.where, fault.field, fault.value) == ("images[1]", "id", "7")


def test_a_file_listed_twice_is_skipped_the_second_time_with_its_objects(tmp_path: Path) -> None:
    content = document(images=[image_entry(7, "a.png"), image_entry(3, "a.png")])
    _, annotations, findings = read(write(tmp_path, content))
    assert annotations.image_ids.tolist() == [7]
    assert findings.objects.dropped == {"image-entry-twice": 1}


@pytest.mark.parametrize("spelling", ["./a.png", "x/../a.png", ".\\a.png"])
def test_another_spelling_of_a_listed_file_is_the_same_file(tmp_path: Path, spelling: str) -> None:
    content = document(images=[image_entry(7, "a.png"), image_entry(3, spelling)])
    _, annotations, findings = read(write(tmp_path, content))
    assert annotations.image_ids.tolist() == [7]
    assert findings.images.dropped == {"image-entry-twice": 1}
    assert findings.objects.dropped == {"image-entry-twice": 1}
    (fault,) = findings.examples["image-entry-twice"]
    assert (fault.where, fault.field, fault.value) == ("images[1]", "file_name", repr(spelling))


def test_an_overlong_file_name_is_a_finding(tmp_path: Path) -> None:
    content = document(images=[image_entry(7, "a" * 5000), image_entry(3, "x/" + "a" * 5000)])
    _, annotations, findings = read(write(tmp_path, content))
    assert len(annotations) == 0
    assert findings.images.dropped.total() == 2


@pytest.mark.parametrize("number", ["00012", "x", 2**63, -(2**70)])
def test_image_ids_that_cannot_be_kept_are_numbered_anew(tmp_path: Path, number: Any) -> None:
    content = document(images=[image_entry(number, "a.png"), image_entry(3, "b.png")])
    content["annotations"] = [annotation(1, number), annotation(2, 3, 5), annotation(3, 3, 1)]
    _, annotations, findings = read(write(tmp_path, content))
    assert annotations.image_ids.tolist() == [1, 2]
    assert annotations.labels.tolist() == [0, 1, 0]
    assert findings.counts == {"image-id-changed": 1}


def test_the_largest_and_zero_image_ids_are_kept(tmp_path: Path) -> None:
    content = document(images=[image_entry(2**63 - 1, "a.png"), image_entry(0.0, "b.png")])
    content["annotations"] = [annotation(1, 0)]
    _, annotations, findings = read(write(tmp_path, content))
    assert annotations.image_ids.tolist() == [2**63 - 1, 0]
    assert annotations.offsets.tolist() == [0, 0, 1]
    assert findings.counts == {"no-objects": 1}


def test_a_size_may_be_missing_or_written_with_a_point(tmp_path: Path) -> None:
    content = document()
    content["images"] = [
        {"id": 7, "file_name": "a.png"},
        image_entry(3, "b.png", width=64.0, height=48.0),
    ]
    _, annotations, findings = read(write(tmp_path, content))
    assert len(annotations) == 2
    assert annotations.sizes.tolist() == [[64, 48], [64, 48]]
    assert findings.counts == {"size-missing": 1}
    assert findings.examples["size-missing"][0].where == "images[0]"


@pytest.mark.parametrize("side", [None, "64", 0, -64, 64.5, True, 1e300, 10**30])
def test_an_invalid_size_is_a_fault_but_the_image_is_used(tmp_path: Path, side: Any) -> None:
    content = document()
    content["images"][0]["height"] = side
    _, annotations, findings = read(write(tmp_path, content))
    assert len(annotations) == 2
    assert findings.counts == {"size-invalid": 1}


# ---- entries of annotations


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"image_id": None}, "field-missing", "image_id"),
        ({"image_id": True}, "field-invalid", "image_id"),
        ({"image_id": [7]}, "field-invalid", "image_id"),
        ({"image_id": 8}, "annotation-unknown-image", "image_id"),
        ({"image_id": "7"}, "annotation-unknown-image", "image_id"),
        ({"category_id": None}, "field-missing", "category_id"),
        ({"category_id": 2}, "class-unknown", "category_id"),
        ({"category_id": True}, "class-unknown", "category_id"),
        ({"category_id": "1"}, "class-unknown", "category_id"),
        ({"category_id": [1]}, "class-unknown", "category_id"),
        ({"bbox": None}, "field-missing", "bbox"),
        ({"bbox": 5}, "box-not-a-number", "bbox"),
        ({"bbox": []}, "box-not-a-number", "bbox"),
        ({"bbox": [1, 2, 3]}, "box-not-a-number", "bbox"),
        ({"bbox": [1, 2, 3, 4, 5]}, "box-not-a-number", "bbox"),
        ({"bbox": {"0": 1, "1": 2, "2": 3, "3": 4}}, "box-not-a-number", "bbox"),
        ({"bbox": "1234"}, "box-not-a-number", "bbox"),
        ({"bbox": [1, 2, "3", 4]}, "box-not-a-number", "bbox"),
        ({"bbox": [1, 2, True, 4]}, "box-not-a-number", "bbox"),
        ({"bbox": [1, 2, None, 4]}, "box-not-a-number", "bbox"),
        ({"bbox": [1, 10**400, 3, 4]}, "box-not-finite", "bbox"),
        ({"bbox": [-(10**400), 2, 3, 4]}, "box-not-finite", "bbox"),
        ({"bbox": [1, 2, 10**400, 4]}, "box-not-finite", "bbox"),
        ({"bbox": [1, 2, 3, 10**400]}, "box-not-finite", "bbox"),
        ({"bbox": [1, 2, -3, 4]}, "box-swapped", "bbox"),
        ({"bbox": [1, 2, 3, -4]}, "box-swapped", "bbox"),
        ({"bbox": [1, 2, 0, 4]}, "box-zero-area", "box"),
        ({"bbox": [1, 2, 1e308, 4]}, "box-outside", "box"),
        ({"iscrowd": 2}, "field-invalid", "iscrowd"),
        ({"iscrowd": "0"}, "field-invalid", "iscrowd"),
        ({"iscrowd": [0]}, "field-invalid", "iscrowd"),
    ],
)
def test_an_invalid_annotation_is_dropped(
    tmp_path: Path, change: dict[str, Any], code: str, field: str
) -> None:
    content = document()
    content["annotations"][0].update(change)
    content["annotations"][0]["id"] = 77
    _, annotations, findings = read(write(tmp_path, content))
    assert len(annotations.boxes) == 2
    assert findings.counts == {code: 1}
    (fault,) = findings.examples[code]
    assert (fault.where, fault.field) == ("annotations[0]", field)
    if field != "box":
        assert "77" in fault.detail
    assert findings.objects.seen == 3


def test_the_finding_for_an_annotation_says_what_is_wrong_and_the_start_of_its_id(
    tmp_path: Path,
) -> None:
    content = document(annotations=[annotation("x" * 1000, 7, iscrowd=2)])
    (fault,) = read(write(tmp_path, content))[2].examples["field-invalid"]
    assert fault.detail == f"It must be 0 or 1. The annotation's id is {'x' * 40}."


def test_the_objects_of_an_image_keep_the_order_of_the_file(tmp_path: Path) -> None:
    items = [annotation(i, 7 if i % 3 else 3, area=i) for i in range(1, 301)]
    _, annotations, _ = read(write(tmp_path, document(annotations=items)))
    expected = [i for i in range(1, 301) if i % 3] + list(range(3, 301, 3))
    assert annotations.areas.tolist() == expected


def test_a_number_too_large_for_json_is_not_finite(tmp_path: Path) -> None:
    write(tmp_path)
    text = json.dumps(document()).replace("[8, 4, 16, 12]", "[8, 4, 1e999, 12]")
    (tmp_path / JSON).write_text(text)
    assert read(tmp_path)[2].counts == {"box-not-finite": 1}


@pytest.mark.parametrize("item", [None, 5, "x", []])
def test_an_annotation_that_is_no_object_is_dropped(tmp_path: Path, item: Any) -> None:
    content = document(annotations=[item, annotation(1, 7)])
    _, annotations, findings = read(write(tmp_path, content))
    assert len(annotations.boxes) == 1
    assert findings.counts["field-invalid"] == 1
    assert findings.examples["field-invalid"][0].where == "annotations[0]"


def test_a_missing_iscrowd_is_0_with_one_note_for_the_file(tmp_path: Path) -> None:
    content = document()
    content["annotations"].append(annotation(4, 99))
    for item in content["annotations"][:2]:
        del item["iscrowd"]
    _, annotations, findings = read(write(tmp_path, content))
    assert annotations.is_ignored.tolist() == [False, True, False]
    assert findings.counts == {"annotation-field-default": 1, "annotation-unknown-image": 1}
    (note,) = findings.examples["annotation-field-default"]
    assert note.field == "iscrowd"
    assert "2 of 4" in note.detail


@pytest.mark.parametrize(
    "area", [None, "100", -1, 0, True, 1e300, 10**400, [1], math.ldexp(1.0, 127)]
)
def test_a_missing_or_invalid_area_is_that_of_the_box(tmp_path: Path, area: Any) -> None:
    content = document()
    content["annotations"][0]["area"] = area
    _, annotations, findings = read(write(tmp_path, content))
    assert annotations.areas.tolist() == [16 * 12, 100, 100]
    assert findings.counts == {"annotation-field-default": 1}
    assert findings.examples["annotation-field-default"][0].field == "area"
    assert "1 of 3" in findings.examples["annotation-field-default"][0].detail


@pytest.mark.parametrize(("value", "is_crowd"), [(True, True), (False, False), (1, True)])
def test_iscrowd_may_be_a_truth_value(tmp_path: Path, value: Any, is_crowd: bool) -> None:
    content = document(annotations=[annotation(1, 7, iscrowd=value)])
    _, annotations, findings = read(write(tmp_path, content))
    assert annotations.is_ignored.tolist() == [is_crowd]
    assert findings.counts == {"no-objects": 1}


@pytest.mark.parametrize("number", [None, 0, 3, "", [1]])
def test_bad_annotation_ids_are_one_note_for_the_file(tmp_path: Path, number: Any) -> None:
    content = document()
    content["annotations"][0]["id"] = 3
    content["annotations"][1]["id"] = number
    _, annotations, findings = read(write(tmp_path, content))
    assert len(annotations.boxes) == 3
    assert findings.counts == {"annotation-id-changed": 1}
    (note,) = findings.examples["annotation-id-changed"]
    assert note.where == "annotations[1]"
    assert "2 of 3" in note.detail


def test_masks_are_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = document()
    content["annotations"][0]["segmentation"] = [[1, 2, 3, 4]]
    seen = []
    real: Callable[..., Any] = coco_json.read_json

    def spy(*arguments: Any, **options: Any) -> Any:
        seen.append(real(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr(coco_json, "read_json", spy)
    read(write(tmp_path, content))
    assert "segmentation" not in seen[0]["annotations"][0]
    assert seen[0]["annotations"][0]["bbox"] == [8, 4, 16, 12]
