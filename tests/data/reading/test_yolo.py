"""The YOLO reader, on small complete data sets."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from PIL import Image

from rankdet.bench.bad_data import fingerprint
from rankdet.data.reading import yolo
from rankdet.data.reading.annotations import Annotations, assemble
from rankdet.data.reading.findings import Findings
from rankdet.data.reading.split import Parsed
from rankdet.errors import DataError

SIZE = (64, 48)
YAML = "path: .\ntrain: images/train\nval: images/val\nnames: [cat, dog]\n"


def save_image(path: Path, size: tuple[int, int] = SIZE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "gray").save(path)


def save_text(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def write(root: Path, yaml: str | None = YAML) -> Path:
    """train: a.png with a cat and a dog, b.png with a dog; val: c.png with a cat."""
    if yaml is not None:
        save_text(root / "data.yaml", yaml)
    for split, labels in (
        ("train", {"a": "0 0.5 0.5 0.5 0.25\n1 0.25 0.5 0.5 1\n", "b": "1 0.5 0.5 1 1\n"}),
        ("val", {"c": "0 0.5 0.5 0.1 0.1\n"}),
    ):
        for name, text in labels.items():
            save_image(root / "images" / split / f"{name}.png")
            save_text(root / "labels" / split / f"{name}.txt", text)
    return root


def write_label(root: Path, text: str | bytes, yaml: str = YAML) -> Path:
    """The same with another label file for b."""
    write(root, yaml)
    save_text(root / "labels/train/b.txt", text)
    return root


def read(path: Path, split: str = "train", **options: Any) -> tuple[Parsed, Annotations, Findings]:
    """Everything, with the checks that hold for every data set."""
    root = path if path.is_dir() else path.parent
    before = fingerprint(root)
    findings = Findings()
    options = {"classes": None, "allow_outside": False, **options}
    parsed = yolo.parse(path, split, findings=findings, **options)
    annotations = assemble(parsed.images, findings, is_annotated=parsed.is_annotated)
    assert findings.images.reconciles()
    assert findings.objects.reconciles()
    assert fingerprint(root) == before
    return parsed, annotations, findings


def names(annotations: Annotations) -> list[str]:
    return [annotations.path(index).name for index in range(len(annotations))]


def refused(path: Path, split: str = "train", **options: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        read(path, split, **options)
    return caught.value


# ---- what a sound data set gives


def test_a_sound_data_set_gives_boxes_in_pixels(tmp_path: Path) -> None:
    parsed, annotations, findings = read(write(tmp_path))
    assert (parsed.classes, parsed.category_ids) == (("cat", "dog"), (0, 1))
    assert parsed.is_annotated
    assert parsed.num_images == 2
    assert names(annotations) == ["a.png", "b.png"]
    assert annotations.image_ids.tolist() == [1, 2]
    assert annotations.boxes.tolist() == [[16, 18, 48, 30], [0, 0, 32, 48], [0, 0, 64, 48]]
    assert annotations.labels.tolist() == [0, 1, 1]
    assert annotations.areas.tolist() == [32 * 12, 32 * 48, 64 * 48]
    assert not annotations.is_ignored.any()
    assert not findings.counts


@hypothesis.given(
    st.lists(
        st.tuples(st.floats(0, 50), st.floats(0, 40), st.floats(0.5, 14), st.floats(0.5, 8)),
        max_size=20,
    )
)
@hypothesis.settings(max_examples=25, deadline=None)
def test_random_boxes_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, boxes: list[tuple[float, ...]]
) -> None:
    root = tmp_path_factory.mktemp("yolo")
    width, height = SIZE
    lines = [
        f"1 {(x + w / 2) / width:.8f} {(y + h / 2) / height:.8f} {w / width:.8f} {h / height:.8f}\n"
        for x, y, w, h in boxes
    ]
    _, annotations, findings = read(write_label(root, "".join(lines)))
    expected = np.array([(x, y, x + w, y + h) for x, y, w, h in boxes]).reshape(-1, 4)
    assert np.allclose(annotations.boxes[annotations.rows(1)], expected, atol=1e-4)
    assert "coordinates-as-corners" not in findings.counts


@pytest.mark.parametrize(
    "text",
    [
        "1\t0.5\t0.5\t0.5\t0.5",
        "\n  1   0.5 0.5 .5 5e-1  \r\n\r\n",
        "1.0 0.5 0.5 0.5 0.5",
        "1.000000000000000000e+00 5.0E-01 +0.5 0.5 0.50\n",
        "\ufeff1 0.5 0.5 0.5 0.5\r",
        "1 0.5 0.5 0.5 0.5\n".encode("utf-16"),
    ],
)
def test_lines_are_read_however_they_are_written(tmp_path: Path, text: str | bytes) -> None:
    _, annotations, findings = read(write_label(tmp_path, text))
    assert annotations.boxes[2:].tolist() == [[16, 12, 48, 36]]
    assert annotations.labels.tolist() == [0, 1, 1]
    assert not findings.counts


def test_an_empty_label_file_means_background(tmp_path: Path) -> None:
    _, annotations, findings = read(write_label(tmp_path, ""))
    assert len(annotations) == 2
    assert findings.counts == {"no-objects": 1}
    assert findings.examples["no-objects"][0].file.endswith("b.txt")


def test_repeated_lines_are_all_kept(tmp_path: Path) -> None:
    assert len(read(write_label(tmp_path, "1 0.5 0.5 0.5 0.5\n" * 3))[1].boxes) == 5


# ---- lines that break a rule


@pytest.mark.parametrize(
    ("line", "code", "field", "value"),
    [
        ("1 0.5 0.5 0.5", "line-columns", "line", "'1 0.5 0.5 0.5'"),
        ("1 0.5 0.5 0.5 0.5 0.9", "line-columns", "line", "'1 0.5 0.5 0.5 0.5 0.9'"),
        ("1 0.1 0.1 0.9 0.1 0.5 0.9", "line-columns", "line", None),
        ("1,0.5,0.5,0.5,0.5", "line-columns", "line", None),
        ("hello", "line-columns", "line", "'hello'"),
        ("2 0.5 0.5 0.5 0.5", "class-unknown", "class", "'2'"),
        ("-1 0.5 0.5 0.5 0.5", "class-unknown", "class", "'-1'"),
        ("1e300 0.5 0.5 0.5 0.5", "class-unknown", "class", "'1e300'"),
        ("0.5 0.5 0.5 0.5 0.5", "field-invalid", "class", "'0.5'"),
        ("dog 0.5 0.5 0.5 0.5", "field-invalid", "class", "'dog'"),
        ("nan 0.5 0.5 0.5 0.5", "field-invalid", "class", "'nan'"),
        ("inf 0.5 0.5 0.5 0.5", "field-invalid", "class", "'inf'"),
        ("1e999 0.5 0.5 0.5 0.5", "field-invalid", "class", "'1e999'"),
        ("1 left 0.5 0.5 0.5", "box-not-a-number", "x centre", "'left'"),
        ("1 0.5 0,5 0.5 0.5", "box-not-a-number", "y centre", "'0,5'"),
        ("1 0.5 0.5 0_5 0.5", "box-not-a-number", "width", "'0_5'"),
        ("1 0.5 0.5 0.5 ٠.٥", "box-not-a-number", "height", "'٠.٥'"),
        ("1 0.5 0.5 0.5 0x1", "box-not-a-number", "height", "'0x1'"),
        ("1 0.5 0.5 0.5 " + "1" * 101, "box-not-a-number", "height", None),
        ("1 NaN 0.5 0.5 0.5", "box-not-finite", "x centre", "'NaN'"),
        ("1 0.5 -Infinity 0.5 0.5", "box-not-finite", "y centre", "'-Infinity'"),
        ("1 0.5 0.5 1e999 0.5", "box-not-finite", "width", "'1e999'"),
        ("1 30 0.5 0.5 0.5", "coordinates-in-pixels", "box", "'30 0.5 0.5 0.5'"),
        ("1 0.5 0.5 0.5 24", "coordinates-in-pixels", "box", "'0.5 0.5 0.5 24'"),
        ("1 0.5 0.5 -0.5 0.5", "box-swapped", "width", "'-0.5'"),
        ("1 0.5 0.5 0.5 -0.1", "box-swapped", "height", "'-0.1'"),
        ("1 0.5 0.5 0 0.5", "box-zero-area", "box", None),
        ("1 1.2 0.5 0.2 0.5", "box-outside", "box", None),
    ],
)
def test_a_bad_line_is_dropped_with_its_number(
    tmp_path: Path, line: str, code: str, field: str, value: str | None
) -> None:
    text = f"\n{line}\n1 0.5 0.5 0.5 0.5\n"
    yaml = YAML if not line.startswith("2") else YAML + "nc: 2\n"
    _, annotations, findings = read(write_label(tmp_path, text, yaml))
    assert len(annotations.boxes) == 3
    assert findings.objects.seen == 4
    assert findings.counts == {code: 1}
    (fault,) = findings.examples[code]
    assert fault.file == str(tmp_path / "labels/train/b.txt")
    assert (fault.where, fault.field) == (2, field)
    if value is not None:
        assert fault.value == value


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("1 0.5 0.5 0.5 0.5 0.9", "confidence"),
        ("1 0.1 0.1 0.9 0.1 0.5 0.9", "polygon"),
        ("1 .1 .1 .9 .1 .5 .9 .4 .4", "polygon"),
        ("1 .1 .1 .9 .1 .5 .9 .4", "There are 8."),
        ("1,0.5,0.5,0.5,0.5", "commas"),
        ("1,0.5 0.5", "There are 2."),
        ("hello", "There are 1."),
        ("1 0.5", "2"),
        ("1 0.5 0.5 0.5 0.5 # a dog", "Comments are not part"),
        ("1 0.5 0.5 0.5 #0.5", "Comments are not part"),
        ("# boxes", "Comments are not part"),
        ("1 0.5 0,5 0.5 0.5", "point"),
        ("7 0.5 0.5 0.5 0.5", "0 to 1"),
        ("-1 0.5 0.5 0.5 0.5", "0 to 1"),
    ],
)
def test_the_usual_mistakes_are_explained(tmp_path: Path, line: str, words: str) -> None:
    _, _, findings = read(write_label(tmp_path, line))
    (finding,) = (
        found[0] for code, found in findings.examples.items() if code != "all-objects-dropped"
    )
    assert words in finding.detail


@pytest.mark.parametrize("width", ["1.1", "1.5"])
def test_a_box_a_little_over_the_edge_is_clipped(tmp_path: Path, width: str) -> None:
    _, annotations, findings = read(write_label(tmp_path, f"1 0.5 0.5 {width} 0.5\n"))
    assert annotations.boxes[2].tolist() == [0, 12, 64, 36]
    assert findings.counts == {"box-clipped": 1}


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\xd8", b"\xe9\xe9", b"0 0.5 0.5\0"])
def test_a_label_file_that_cannot_be_decoded_skips_its_image(
    tmp_path: Path, content: bytes
) -> None:
    _, annotations, findings = read(write_label(tmp_path, content))
    assert names(annotations) == ["a.png"]
    assert findings.images.dropped == {"file-encoding": 1}
    assert findings.examples["file-encoding"][0].file.endswith("b.txt")


def test_a_folder_in_place_of_a_label_file_skips_its_image(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "labels/train/b.txt").unlink()
    (tmp_path / "labels/train/b.txt").mkdir()
    assert read(tmp_path)[2].images.dropped == {"file-unreadable": 1}


def test_class_ids_from_one_are_noticed_once(tmp_path: Path) -> None:
    write_label(tmp_path, "2 0.5 0.5 0.5 0.5\n2 0.5 0.5 0.5 0.5\n")
    save_text(tmp_path / "labels/train/a.txt", "1 0.5 0.5 0.5 0.5\n")
    _, annotations, findings = read(tmp_path)
    assert annotations.labels.tolist() == [1]
    assert findings.counts["class-unknown"] == 2
    assert findings.counts["class-ids-from-one"] == 1
    (finding,) = findings.examples["class-ids-from-one"]
    assert (finding.file, finding.where) == (str(tmp_path / "labels/train/b.txt"), 1)


@pytest.mark.parametrize("text", ["0 0.5 0.5 0.5 0.5\n2 0.5 0.5 0.5 0.5\n", "3 0.5 0.5 0.5 0.5\n"])
def test_other_unknown_ids_do_not_look_like_ids_from_one(tmp_path: Path, text: str) -> None:
    write_label(tmp_path, text)
    save_text(tmp_path / "labels/train/a.txt", "1 0.5 0.5 0.5 0.5\n")
    findings = read(tmp_path)[2]
    assert findings.counts["class-unknown"] == 1
    assert "class-ids-from-one" not in findings.counts


# ---- corners in place of centre and size


def as_lines(boxes: list[tuple[float, ...]]) -> str:
    return "".join("1 " + " ".join(f"{value:.6f}" for value in box) + "\n" for box in boxes)


def random_corners(generator: random.Random, count: int) -> list[tuple[float, ...]]:
    boxes = []
    for _ in range(count):
        left, right = sorted((generator.random(), generator.random()))
        top, bottom = sorted((generator.random(), generator.random()))
        boxes.append((left, top, right + 1e-3, bottom + 1e-3))
    return boxes


@hypothesis.given(st.integers(0, 10**6), st.integers(20, 60))
@hypothesis.settings(max_examples=25, deadline=None)
def test_boxes_given_as_corners_are_noticed_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int
) -> None:
    root = write(tmp_path_factory.mktemp("yolo"))
    corners = random_corners(random.Random(seed), count)
    save_text(root / "labels/train/a.txt", as_lines(corners[:10]))
    save_text(root / "labels/train/b.txt", as_lines(corners[10:]))
    findings = read(root)[2]
    assert findings.counts["coordinates-as-corners"] == 1
    assert f"of {count} boxes" in findings.examples["coordinates-as-corners"][0].detail


@hypothesis.given(st.integers(0, 10**6), st.floats(0.01, 1), st.floats(0, 0.04))
@hypothesis.settings(max_examples=40, deadline=None)
def test_sound_boxes_of_any_size_never_look_like_corners(
    tmp_path_factory: pytest.TempPathFactory, seed: int, smallest: float, noise: float
) -> None:
    """Even if all are large, as where one object fills each picture, and a little too large."""
    generator = random.Random(seed)
    boxes = []
    for _ in range(20):
        width, height = generator.uniform(smallest, 1), generator.uniform(smallest, 1)
        x = generator.uniform(width / 2, 1 - width / 2)
        y = generator.uniform(height / 2, 1 - height / 2)
        boxes.append((x, y, width + noise, height + noise))
    root = write_label(tmp_path_factory.mktemp("yolo"), as_lines(boxes))
    assert "coordinates-as-corners" not in read(root)[2].counts


@pytest.mark.parametrize("box", [(0.95, 0.5, 0.3, 0.6), (0.5, 0.95, 0.6, 0.3)])
def test_unordered_boxes_over_the_edge_do_not_look_like_corners(
    tmp_path: Path, box: tuple[float, ...]
) -> None:
    save_text(write_label(tmp_path, as_lines([box] * 10)) / "labels/train/a.txt", "")
    assert read(tmp_path)[2].counts == {"box-clipped": 10, "no-objects": 1}


def test_two_boxes_are_too_few_to_look_like_corners(tmp_path: Path) -> None:
    save_text(write(tmp_path) / "labels/train/a.txt", "")
    corners = [(0.7, 0.7, 0.9, 0.9)] * 3
    for count, is_noticed in ((2, False), (3, True)):
        save_text(tmp_path / "labels/train/b.txt", as_lines(corners[:count]))
        assert ("coordinates-as-corners" in read(tmp_path)[2].counts) is is_noticed


@pytest.mark.parametrize(
    "box", [(0.1, 0.4, 0.5, 0.5), (0.4, 0.1, 0.5, 0.5), (0.7, 0.3, 0.9, 0.4), (0.3, 0.7, 0.4, 0.9)]
)
def test_corners_are_noticed_whichever_side_the_boxes_leave(
    tmp_path: Path, box: tuple[float, ...]
) -> None:
    save_text(write(tmp_path) / "labels/train/a.txt", "")
    save_text(tmp_path / "labels/train/b.txt", as_lines([(0.5, 0.5, 0.6, 0.6), *[box] * 3]))
    (finding,) = read(tmp_path)[2].examples["coordinates-as-corners"]
    assert (finding.file, finding.where) == (str(tmp_path / "labels/train/b.txt"), 2)
    assert "3 of 4 boxes" in finding.detail


def test_a_few_boxes_over_the_edge_do_not_look_like_corners(tmp_path: Path) -> None:
    inside, outside = (0.5, 0.5, 0.9, 0.9), (0.7, 0.7, 0.9, 0.9)
    boxes = [inside] * 17 + [outside] * 3
    findings = read(write_label(tmp_path, as_lines(boxes)))[2]
    assert findings.counts == {"box-clipped": 3}


# ---- images and labels


def test_an_image_without_a_label_file_is_background_with_a_note(tmp_path: Path) -> None:
    (write(tmp_path) / "labels/train/b.txt").unlink()
    _, annotations, findings = read(tmp_path)
    assert annotations.offsets.tolist() == [0, 2, 2]
    assert findings.counts == {"image-without-label": 1, "no-objects": 1}
    assert findings.examples["image-without-label"][0].file.endswith("b.png")


def test_a_split_without_any_label_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    for file in (tmp_path / "labels/train").iterdir():
        file.unlink()
    error = refused(tmp_path)
    assert error.code == "labels-missing"
    assert str(Path("labels/train/a.txt")) in error.detail


def test_a_file_in_place_of_the_folder_of_labels_leaves_them_missing(tmp_path: Path) -> None:
    (write(tmp_path) / "labels/train").rename(tmp_path / "moved")
    save_text(tmp_path / "labels/train", "x")
    assert refused(tmp_path).code == "labels-missing"


def test_a_split_without_images_lists_none(tmp_path: Path) -> None:
    write(tmp_path, YAML.replace("images/train", "images/empty"))
    (tmp_path / "images/empty").mkdir()
    parsed, annotations, findings = read(tmp_path)
    assert (parsed.num_images, len(annotations), findings.counts) == (0, 0, {})


def test_a_test_split_may_have_no_labels(tmp_path: Path) -> None:
    write(tmp_path, YAML + "test: images/test\n")
    save_image(tmp_path / "images/test/t.png")
    parsed, annotations, findings = read(tmp_path, "test")
    assert not parsed.is_annotated
    assert len(annotations) == 1
    assert not findings.counts
    save_text(tmp_path / "labels/test/t.txt", "0 0.5 0.5 0.5 0.5")
    assert read(tmp_path, "test")[0].is_annotated


def test_a_split_whose_name_only_sounds_like_test_needs_labels(tmp_path: Path) -> None:
    save_image(tmp_path / "images/train/a.png")
    save_text(tmp_path / "labels/train/a.txt", "0 0.5 0.5 0.5 0.5")
    save_image(tmp_path / "images/latest/b.png")
    with pytest.raises(DataError) as caught:
        read(tmp_path, "latest")
    assert caught.value.code == "labels-missing"


def test_a_label_file_without_an_image_is_counted(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "images/train/b.png").unlink()
    save_text(tmp_path / "labels/train/classes.txt", "cat\ndog\n")
    save_text(tmp_path / "labels/train/sub/x.txt", "")
    _, annotations, findings = read(tmp_path)
    assert names(annotations) == ["a.png"]
    assert findings.counts == {"label-without-image": 2}
    assert findings.images.seen == 3
    files = {finding.file for finding in findings.examples["label-without-image"]}
    assert files == {
        str(tmp_path / "labels/train/b.txt"),
        str(tmp_path / "labels/train/sub/x.txt"),
    }


def test_two_images_cannot_have_one_label_file(tmp_path: Path) -> None:
    save_image(write(tmp_path) / "images/train/a.bmp")
    _, annotations, findings = read(tmp_path)
    assert names(annotations) == ["a.bmp", "b.png"]
    assert findings.counts == {"image-entry-twice": 1}
    (finding,) = findings.examples["image-entry-twice"]
    assert (finding.file, finding.value) == (str(tmp_path / "images/train/a.png"), None)
    assert "the same label file as a.bmp" in finding.detail


def test_images_of_one_name_without_a_label_file_are_both_used(tmp_path: Path) -> None:
    write(tmp_path)
    for name in ("x.png", "x.jpg"):
        save_image(tmp_path / "images/train" / name)
    assert names(read(tmp_path)[1]) == ["a.png", "b.png", "x.jpg", "x.png"]


def test_folders_are_walked_in_order_and_other_files_do_not_count(tmp_path: Path) -> None:
    write(tmp_path)
    for name in ("z/y.PNG", "c/d.JPG", "c/a.png"):
        save_image(tmp_path / "images/train" / name)
    save_text(tmp_path / "labels/train/c/d.txt", "0 0.5 0.5 0.5 0.5")
    for name in ("notes.txt", "a.json", ".hidden.png", ".git/a.png", "movie.mp4"):
        save_text(tmp_path / "images/train" / name, "x")
    _, annotations, findings = read(tmp_path)
    assert [annotations.path(i).relative_to(tmp_path).as_posix() for i in range(5)] == [
        "images/train/a.png",
        "images/train/b.png",
        "images/train/c/a.png",
        "images/train/c/d.JPG",
        "images/train/z/y.PNG",
    ]
    assert findings.objects.used == 4
    assert findings.counts["image-without-label"] == 2
    assert len(annotations) == 5


def test_links_that_go_in_circles_or_lead_outside_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write(root)
    save_image(tmp_path / "outside/x.png")
    images = root / "images/train"
    (images / "loop").symlink_to(images)
    (images / "itself.png").symlink_to(images / "itself.png")
    (images / "up").symlink_to(root)
    (images / "folder").symlink_to(tmp_path / "outside")
    (images / "x.png").symlink_to(tmp_path / "outside/x.png")
    save_text(root / "labels/train/x.txt", "0 0.5 0.5 0.5 0.5")
    findings = Findings()
    parsed = yolo.parse(root, "train", classes=None, findings=findings, allow_outside=False)
    paths = [raw.path.relative_to(root).as_posix() for raw in parsed.images]
    assert "images/train/a.png" in paths
    assert "images/train/itself.png" in paths
    assert not [path for path in paths if "loop" in path or "folder" in path or "x.png" in path]
    assert sum(path.endswith("/a.png") for path in paths) == 1
    assert findings.counts["image-outside"] == 2
    assert "label-without-image" not in findings.counts
    found = yolo.parse(root, "train", classes=None, findings=Findings(), allow_outside=True)
    allowed = [raw.path.relative_to(root).as_posix() for raw in found.images]
    assert {"images/train/x.png", "images/train/folder/x.png"} <= set(allowed)


def test_a_folder_is_entered_by_its_own_name_and_only_once(tmp_path: Path) -> None:
    images = write(tmp_path) / "images/train"
    save_image(images / "sub/s.png")
    (images / "alias").symlink_to("sub")
    save_image(tmp_path / "more/m.png")
    (tmp_path / "more/round").symlink_to(tmp_path / "more")
    (images / "more").symlink_to(tmp_path / "more")
    _, annotations, _ = read(tmp_path)
    paths = [annotations.path(i).relative_to(images).as_posix() for i in range(len(annotations))]
    assert paths == ["a.png", "b.png", "more/m.png", "sub/s.png"]


def test_links_between_the_images_of_a_linked_folder_are_fine(tmp_path: Path) -> None:
    root = write(tmp_path / "set", None)
    (root / "images/train/a2.png").symlink_to("a.png")
    (root / "images").rename(tmp_path / "elsewhere")
    (root / "images").symlink_to(tmp_path / "elsewhere")
    assert names(read(root)[1]) == ["a.png", "a2.png", "b.png"]


def test_label_files_that_are_links_are_told_if_they_lead_nowhere_or_have_no_image(
    tmp_path: Path,
) -> None:
    root = write(tmp_path / "set")
    (root / "labels/train/b.txt").unlink()
    (root / "labels/train/b.txt").symlink_to("gone.txt")
    save_text(tmp_path / "outside.txt", "0 0.5 0.5 0.5 0.5\n")
    (root / "labels/train/c.txt").symlink_to(tmp_path / "outside.txt")
    _, annotations, findings = read(root)
    assert names(annotations) == ["a.png"]
    assert findings.images.dropped == {"data-missing": 1, "label-without-image": 1}


def test_a_pipe_in_place_of_an_image_is_told_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(write(tmp_path) / "images/train/c.png")
    _, annotations, findings = read(tmp_path)
    assert names(annotations) == ["a.png", "b.png"]
    assert findings.images.dropped == {"image-unreadable": 1}


def test_a_label_file_through_a_link_that_stays_inside_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = write(tmp_path) / "labels/train/b.txt"
    label.rename(tmp_path / "labels/shared.txt")
    label.symlink_to("../shared.txt")
    monkeypatch.chdir(tmp_path.parent)
    for root in (tmp_path, Path(tmp_path.name)):
        assert names(read(root)[1]) == ["a.png", "b.png"]


def test_a_label_file_through_a_link_to_the_outside_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "set")
    save_text(tmp_path / "secret.txt", "1 0.5 0.5 0.5 0.5\n")
    label = root / "labels/train/b.txt"
    label.unlink()
    label.symlink_to(tmp_path / "secret.txt")
    monkeypatch.chdir(tmp_path)
    for path in (root, Path("set")):
        _, annotations, findings = read(path)
        assert names(annotations) == ["a.png"]
        assert findings.images.dropped == {"file-outside": 1}
        assert len(read(path, allow_outside=True)[1].boxes) == 3


def test_ids_behind_a_link_to_the_outside_make_no_classes(tmp_path: Path) -> None:
    root = write(tmp_path / "set", None)
    save_text(tmp_path / "secret.txt", "3 0.5 0.5 0.5 0.5\n")
    (root / "labels/val/c.txt").unlink()
    (root / "labels/val/c.txt").symlink_to(tmp_path / "secret.txt")
    assert read(root)[0].classes == ("0", "1")
    assert read(root, allow_outside=True)[0].classes == ("0", "1", "2", "3")


@pytest.mark.parametrize("part", ["images", "labels"])
def test_a_folder_that_cannot_be_looked_into_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Nobody knows what is in there: to go on would be to train on a part of the data."""
    (write(tmp_path) / part / "train/closed").mkdir()
    scan = os.scandir

    def refuse(folder: Any) -> Iterator[Any]:
        if Path(folder).name == "closed":
            raise PermissionError(13, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    error = refused(tmp_path)
    assert (error.code, error.detail) == ("file-unreadable", "Permission denied.")
    assert error.file == str(tmp_path / part / "train/closed")


def test_only_the_last_folder_called_images_becomes_labels(tmp_path: Path) -> None:
    root = tmp_path / "images" / "set"
    save_text(root / "data.yaml", "train: images/images/x\nnames: [cat]\n")
    save_image(root / "images/images/x/a.png")
    save_text(root / "images/labels/x/a.txt", "0 0.5 0.5 0.5 0.5")
    assert len(read(root)[1].boxes) == 1


def test_labels_lie_beside_the_images_if_no_folder_is_called_images(tmp_path: Path) -> None:
    root = tmp_path / "images"  # which is above the data set and does not count
    save_text(root / "data.yaml", "train: pictures\nnames: [cat]\n")
    save_image(root / "pictures/a.png")
    save_text(root / "pictures/a.txt", "0 0.5 0.5 0.5 0.5")
    save_text(root / "pictures/README.txt", "read me")
    _, annotations, findings = read(root)
    assert len(annotations.boxes) == 1
    assert not findings.counts


# ---- data.yaml


@pytest.mark.parametrize(
    "yaml",
    [
        "train: images/train\nnames:\n  0: cat\n  1: dog\n",
        "train: images/train\nnames: {1: dog, 0: cat}\nnc: 2\n",
        "train: ./images/train/\nnames: [cat, dog]\ndownload: rm -rf x\nval: images/val\n",
        "path: ''\ntrain: [images/train]\nnames: [cat, dog]\ntest:\n",
        "path: ../images\ntrain: ../train\nnames: [cat, dog]\n",
        "train: ../images/train\nnames: [cat, dog]\n",
        "train: ../../images/train\nnames: [cat, dog]\n",
        "train: images\\train\nnames: [cat, dog]\n",
        "train: ..\\images\\train\nnames: [cat, dog]\n",
    ],
)
def test_the_yaml_may_be_written_in_several_ways(tmp_path: Path, yaml: str) -> None:
    root = write(tmp_path / "set", yaml)
    if yaml.startswith("path: ../images"):  # labels then lie beside the images
        for file in (root / "labels/train").iterdir():
            file.rename(root / "images/train" / file.name)
    for path in (root, root / "data.yaml"):
        parsed, annotations, findings = read(path)
        assert parsed.classes == ("cat", "dog")
        assert len(annotations.boxes) == 3
        assert not findings.counts


@pytest.mark.parametrize(
    ("yaml", "field"),
    [
        ("", "type"),
        ("- a\n- b\n", "type"),
        ("train: images/train\n", "names"),
        ("train: images/train\nnames:\n", "names"),
        ("train: images/train\nnames: []\n", "names"),
        ("train: images/train\nnames: {}\n", "names"),
        ("train: images/train\nnames: cat\n", "names"),
        ("train: images/train\nnames: [cat, no]\n", "names"),
        ("train: images/train\nnames: [cat, 1]\n", "names"),
        ("train: images/train\nnames: [cat, [dog]]\n", "names"),
        ("train: images/train\nnames: [cat, '']\n", "names"),
        ("train: images/train\nnames: [cat, cat]\n", "names"),
        ("train: images/train\nnames: {0: cat, 2: dog}\n", "names"),
        ("train: images/train\nnames: {1: cat, 2: dog}\n", "names"),
        ("train: images/train\nnames: {a: cat}\n", "names"),
        ("train: images/train\nnames: {false: cat}\n", "names"),
        ("train: images/train\nnames: [cat, dog]\nnc: 3\n", "nc"),
        ("train: images/train\nnames: [cat, dog]\nnc: 1\n", "nc"),
        ("train: images/train\nnames: [cat, dog]\nnc: '2'\n", "nc"),
        ("train: images/train\nnames: [cat]\nnc: true\n", "nc"),
        ("train: images/train\nnames: [cat, dog]\npath: 5\n", "path"),
        ("train: 5\nnames: [cat, dog]\n", "train"),
        ("train:\nnames: [cat, dog]\n", "train"),
        ("train:\nval:\nnames: [cat, dog]\n", "train"),
        ("train: ' '\nnames: [cat, dog]\n", "train"),
        ("train: [images/train, '']\nnames: [cat, dog]\n", "train"),
        ("train: []\nnames: [cat, dog]\n", "train"),
        ("train: [images/train, 5]\nnames: [cat, dog]\n", "train"),
        ("train: {a: b}\nnames: [cat, dog]\n", "train"),
        ("names: [cat, dog]\n", "train"),
    ],
)
def test_a_wrong_yaml_is_refused_with_the_field(tmp_path: Path, yaml: str, field: str) -> None:
    error = refused(write(tmp_path, yaml))
    is_about_classes = field in ("names", "nc") and error.value is not None
    code = "classes-invalid" if is_about_classes else "yaml-structure"
    assert (error.code, error.field) == (code, field)
    assert error.file.endswith("data.yaml")


def test_a_name_that_yaml_reads_as_something_else_is_explained(tmp_path: Path) -> None:
    error = refused(write(tmp_path, "train: images/train\nnames: [cat, no]\n"))
    assert error.value == "False"
    assert "quotes" in error.detail
    for names in ("[cat, '']", "[cat, null]", "[cat, [dog]]"):
        error = refused(write(tmp_path, f"train: images/train\nnames: {names}\n"))
        assert error.detail == "The name of class 1 is not a text."


def test_ids_with_a_gap_are_told_in_their_order(tmp_path: Path) -> None:
    error = refused(write(tmp_path, "train: images/train\nnames: {2: dog, 0: cat}\n"))
    assert error.value == "[0, 2]"
    assert error.detail == "The ids must be 0 to 1; 1 is missing."


@pytest.mark.parametrize("entry", ["../other/images", "/etc", "images/../../other/images"])
def test_a_yaml_path_that_leads_outside_is_refused_unless_allowed(
    tmp_path: Path, entry: str
) -> None:
    write(tmp_path / "other")
    root = write(tmp_path / "set", f"train: {entry}\nnames: [cat, dog]\n")
    error = refused(root)
    assert (error.code, error.field, error.value) == ("file-outside", "train", repr(entry))
    if entry != "/etc":
        assert len(read(root, allow_outside=True)[1]) == 3


def test_the_folder_above_is_outside_and_not_the_folder_itself(tmp_path: Path) -> None:
    error = refused(write(tmp_path / "set", "train: ../\nnames: [cat, dog]\n"))
    assert (error.code, error.field) == ("file-outside", "train")


def test_labels_of_images_outside_are_found_beside_them_if_that_is_allowed(tmp_path: Path) -> None:
    other = write(tmp_path / "other")
    root = write(tmp_path / "set", f"train: {other / 'images/train'}\nnames: [cat, dog]\n")
    _, annotations, findings = read(root, allow_outside=True)
    assert annotations.path(0) == other / "images/train/a.png"
    assert len(annotations.boxes) == 3
    assert not findings.counts


def test_the_key_path_must_not_lead_outside_unless_allowed(tmp_path: Path) -> None:
    other = write(tmp_path / "other")
    root = tmp_path / "set"
    save_text(root / "data.yaml", f"path: {other}\ntrain: images/train\nnames: [cat, dog]\n")
    assert (refused(root).code, refused(root).field) == ("file-outside", "path")
    assert yolo.split_names(root) == ("train",)
    assert len(read(root, allow_outside=True)[1].boxes) == 3


@pytest.mark.parametrize(
    ("yaml", "field"),
    [
        ("train: images/none\nnames: [cat, dog]\n", "train"),
        ("path: none\ntrain: images/train\nnames: [cat, dog]\n", "path"),
        ("train: " + "x" * 5000 + "\nnames: [cat, dog]\n", "train"),
        ("path: " + "x" * 5000 + "\ntrain: x\nnames: [cat, dog]\n", "path"),
    ],
)
def test_a_yaml_path_that_does_not_exist_is_refused(tmp_path: Path, yaml: str, field: str) -> None:
    error = refused(write(tmp_path, yaml))
    assert (error.code, error.field) == ("data-missing", field)


def test_several_folders_make_one_split(tmp_path: Path) -> None:
    yaml = "train: [images/train, images/val, images/train]\nnames: [cat, dog]\n"
    _, annotations, findings = read(write(tmp_path, yaml))
    assert names(annotations) == ["a.png", "b.png", "c.png"]
    assert findings.counts == {"image-entry-twice": 2}
    assert findings.examples["image-entry-twice"][0].detail == ""


def test_a_list_of_images_keeps_its_order(tmp_path: Path) -> None:
    write(tmp_path, "train: lists/train.txt\nnames: [cat, dog]\n")
    save_image(tmp_path / "lists/images/x.png")
    save_text(tmp_path / "lists/labels/x.txt", "0 0.5 0.5 0.5 0.5")
    lines = (
        "images/train/b.png",
        "",
        "./images/x.png",
        " images\\train\\a.png ",
        "images/train/b.png",
        "../secret\\.png",
        "/etc/passwd",
        "images/train/missing.png",
    )
    save_text(tmp_path / "lists/train.txt", "\r\n".join(lines))
    _, annotations, findings = read(tmp_path)
    assert names(annotations) == ["b.png", "x.png", "a.png"]
    assert findings.images.dropped == {
        "image-entry-twice": 1,
        "image-outside": 2,
        "image-missing": 1,
    }
    places = [finding.where for finding in findings.examples["image-outside"]]
    assert places == [6, 7]
    assert findings.examples["image-entry-twice"][0].where == 5
    assert findings.examples["image-entry-twice"][0].file.endswith("train.txt")
    assert findings.examples["image-entry-twice"][0].value == repr(
        str(tmp_path / "images/train/b.png")
    )


def test_a_list_may_be_long_and_written_on_windows(tmp_path: Path) -> None:
    write(tmp_path, "train: lists/train.txt\nnames: [cat, dog]\n")
    for name in ("lists/images/x.png", "images/train/y\\z.png"):
        save_image(tmp_path / name)
    lines = [" " * 1023] * 1100 + ["images/train/a.png", ".\\images\\x.png"]
    save_text(tmp_path / "lists/train.txt", "\r\n".join([*lines, "images/train/y\\z.png"]))
    assert names(read(tmp_path)[1]) == ["a.png", "x.png", "y\\z.png"]


# ---- splits and layouts


def test_the_splits_are_those_of_the_yaml(tmp_path: Path) -> None:
    write(tmp_path, YAML + "test: images/test\n")
    assert yolo.split_names(tmp_path) == ("train", "val")
    save_image(tmp_path / "images/test/t.png")
    assert yolo.split_names(tmp_path) == ("train", "val", "test")
    assert len(read(tmp_path, "valid")[1]) == 1
    error = refused(tmp_path, "other")
    assert error.code == "split-unknown"
    assert "train, val" in error.detail


def test_a_split_that_is_wanted_is_named_even_if_it_is_missing(tmp_path: Path) -> None:
    write(tmp_path, YAML.replace("images/val", "images/none"))
    assert yolo.split_names(tmp_path) == ("train", "val")


def test_a_test_split_is_named_if_a_part_of_it_is_there(tmp_path: Path) -> None:
    write(tmp_path, YAML + "test: [images/none, images/val]\n")
    assert yolo.split_names(tmp_path) == ("train", "val", "test")


def test_a_folder_called_like_the_yaml_file_is_none(tmp_path: Path) -> None:
    write(tmp_path, None)
    (tmp_path / "data.yaml").mkdir()
    assert yolo.split_names(tmp_path) == ("train", "val")


def test_a_yaml_file_may_have_the_other_extension_and_lie_beside_others(tmp_path: Path) -> None:
    save_text(write(tmp_path, None) / "data.yml", YAML)
    save_text(tmp_path / "other.yaml", "names: [bird]\n")
    assert read(tmp_path)[0].classes == ("cat", "dog")
    (tmp_path / "data.yml").rename(tmp_path / "SET.YAML")
    assert yolo.matches(tmp_path / "SET.YAML")
    assert read(tmp_path / "SET.YAML")[0].classes == ("cat", "dog")


def test_a_folder_of_images_may_be_empty(tmp_path: Path) -> None:
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
    assert yolo.split_names(tmp_path) == ("all",)


def test_a_yaml_file_that_cannot_be_opened_is_not_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_text(tmp_path / "set.yaml", YAML)
    assert yolo.matches(tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert not yolo.matches(tmp_path)


def test_folders_without_yaml_take_their_names_from_a_text_file(tmp_path: Path) -> None:
    write(tmp_path, None)
    save_text(tmp_path / "classes.txt", "cat\ndog\n\n")
    save_image(tmp_path / "images/.cache/a.png")
    assert yolo.matches(tmp_path)
    assert yolo.split_names(tmp_path) == ("train", "val")
    parsed, annotations, findings = read(tmp_path)
    assert parsed.classes == ("cat", "dog")
    assert len(annotations.boxes) == 3
    assert not findings.counts


def test_without_any_names_the_ids_of_all_splits_are_the_names(tmp_path: Path) -> None:
    write(tmp_path, None)
    save_text(tmp_path / "labels/val/c.txt", "3 0.5 0.5 0.5 0.5\n99999999 0.5 0.5 0.5 0.5\n")
    for split in ("train", "val"):
        parsed, _, findings = read(tmp_path, split)
        assert parsed.classes == ("0", "1", "2", "3")
    assert findings.counts == {"class-unknown": 1}


def test_without_names_a_label_file_that_cannot_be_read_skips_its_image_alone(
    tmp_path: Path,
) -> None:
    write(tmp_path, None)
    save_text(tmp_path / "labels/train/b.txt", b"\xff\xff")
    parsed, annotations, findings = read(tmp_path)
    assert parsed.classes == ("0", "1")
    assert names(annotations) == ["a.png"]
    assert findings.counts == {"file-encoding": 1}


def test_without_names_and_labels_there_is_still_one_class(tmp_path: Path) -> None:
    write(tmp_path, None)
    for file in ("train/a.txt", "train/b.txt", "val/c.txt"):
        save_text(tmp_path / "labels" / file, "")
    assert read(tmp_path)[0].classes == ("0",)


def test_only_whole_lines_with_ids_below_the_limit_make_unnamed_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yolo, "_MAX_UNNAMED", 4)
    write(tmp_path, None)
    lines = ["3 .5 .5 .5 .5 .9", "2 .5", "4 .5 .5 .5 .5", "-1 .5 .5 .5 .5", "x .5 .5 .5 .5", ""]
    save_text(tmp_path / "labels/val/c.txt", "\n".join(lines))
    assert read(tmp_path)[0].classes == ("0", "1")
    save_text(tmp_path / "labels/val/c.txt", "3 .5 .5 .5 .5\n")
    assert read(tmp_path)[0].classes == ("0", "1", "2", "3")


def test_a_folder_of_images_without_parts_is_the_split_all(tmp_path: Path) -> None:
    for name in ("a.png", "sub/b.png"):
        save_image(tmp_path / "images" / name)
    save_text(tmp_path / "labels/a.txt", "0 0.5 0.5 0.5 0.5")
    save_text(tmp_path / "labels/sub/b.txt", "1 0.5 0.5 0.5 0.5")
    save_text(tmp_path / "labels/classes.txt", "cat\ndog")
    assert yolo.split_names(tmp_path) == ("all",)
    parsed, annotations, findings = read(tmp_path, "all")
    assert parsed.classes == ("cat", "dog")
    assert annotations.labels.tolist() == [0, 1]
    assert not findings.counts


def test_a_folder_for_each_split_with_images_and_labels(tmp_path: Path) -> None:
    for split in ("valid", "train"):
        save_image(tmp_path / split / "images/a.png")
        save_text(tmp_path / split / "labels/a.txt", "0 0.5 0.5 0.5 0.5")
    save_image(tmp_path / "test/images/a.png")
    save_image(tmp_path / "other/images/a.png")
    assert yolo.matches(tmp_path)
    assert yolo.split_names(tmp_path) == ("train", "valid", "test")
    assert len(read(tmp_path, "val")[1].boxes) == 1
    assert not read(tmp_path, "test")[0].is_annotated
    yaml = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\nnc: 1\nnames: [x]\n"
    save_text(tmp_path / "data.yaml", yaml)
    assert yolo.split_names(tmp_path) == ("train", "val", "test")
    assert len(read(tmp_path, "valid")[1].boxes) == 1


def test_the_folder_of_the_images_may_be_a_link(tmp_path: Path) -> None:
    root = write(tmp_path / "set", None)
    (root / "images").rename(tmp_path / "elsewhere")
    (root / "images").symlink_to(tmp_path / "elsewhere")
    assert names(read(root)[1]) == ["a.png", "b.png"]


def test_only_what_looks_like_yolo_matches(tmp_path: Path) -> None:
    assert not yolo.matches(tmp_path)
    assert not yolo.matches(tmp_path / "missing")
    save_text(tmp_path / "config.yaml", "learning_rate: 1\n")
    assert not yolo.matches(tmp_path)
    assert yolo.matches(tmp_path / "config.yaml")
    save_text(tmp_path / "config.yaml", "path: x\nnames: [cat]\n")
    assert yolo.matches(tmp_path)
    save_text(tmp_path / "other.yml", "names: [cat]\n")
    assert not yolo.matches(tmp_path)
    save_text(tmp_path / "unknown/config.yaml", b"names: [cat]\n\xff\xff")
    assert not yolo.matches(tmp_path / "unknown")
    save_image(tmp_path / "unlabelled/images/a.png")
    assert not yolo.matches(tmp_path / "unlabelled")
    save_image(tmp_path / "unlabelled/test/images/a.png")
    assert not yolo.matches(tmp_path / "unlabelled" / "test")
    (tmp_path / "unlabelled" / "images").rename(tmp_path / "unlabelled" / "pictures")
    assert not yolo.matches(tmp_path / "unlabelled")
    save_text(tmp_path / "a.txt", "names: [cat]\n")
    assert not yolo.matches(tmp_path / "a.txt")
    save_image(tmp_path / "train/images/a.png")
    assert not yolo.matches(tmp_path)
    assert refused(tmp_path / "missing").code == "data-missing"


def test_given_classes_are_matched_by_name(tmp_path: Path) -> None:
    parsed, annotations, findings = read(write(tmp_path), classes=("dog", "bird", "cat"))
    assert (parsed.classes, parsed.category_ids) == (("dog", "bird", "cat"), (1, 2, 0))
    assert annotations.labels.tolist() == [2, 0, 0]
    assert not findings.counts
    parsed, annotations, findings = read(tmp_path, classes=("dog",))
    assert annotations.labels.tolist() == [0, 0]
    assert findings.counts == {"class-unknown": 1}
    assert "cat" in findings.examples["class-unknown"][0].detail
    assert refused(tmp_path, classes=("bird",)).code == "classes-foreign"


def test_a_split_that_is_left_blank_is_absent(tmp_path: Path) -> None:
    write(tmp_path)
    for key in ("val", "valid", "test"):
        save_text(tmp_path / "data.yaml", f"train: images/train\n{key}:\nnames: [cat, dog]\n")
        assert yolo.split_names(tmp_path) == ("train",)
        assert len(read(tmp_path)[1]) == 2
        assert refused(tmp_path, key).code == "split-unknown"


def test_a_listed_image_that_is_missing_is_told_of_once(tmp_path: Path) -> None:
    write(tmp_path)
    yaml = "train: train.txt\nnames: [cat, dog]\n"
    save_text(tmp_path / "data.yaml", yaml)
    save_text(tmp_path / "train.txt", "images/train/a.png\nimages/train/gone.png\n")
    assert read(tmp_path)[2].counts == {"image-missing": 1}


def test_an_image_whose_lines_are_all_dropped_is_not_said_to_have_none(tmp_path: Path) -> None:
    findings = read(write_label(tmp_path, "7 0.5 0.5 0.5 0.5\n1 0.5\n"))[2]
    assert findings.counts == {"class-unknown": 1, "line-columns": 1, "all-objects-dropped": 1}
    assert findings.examples["all-objects-dropped"][0].file.endswith("b.txt")
