"""Files by number: pixels, targets, copies for workers; and the one door to all data sets."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rankdet.data.dataset import FileDataset, open_dataset
from rankdet.errors import DataError

NUM_OBJECTS = (2, 0, 1)


def pixels_of(index: int) -> np.ndarray:
    """(height, width, 3) of an image whose pixels are all different; sizes differ too."""
    height, width = 12, 16 + index
    return (np.arange(height * width * 3) % 251).astype(np.uint8).reshape(height, width, 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images with 2, 0 and 1 objects in VOC's layout; the second object is difficult."""
    root = tmp_path / "voc"
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / part).mkdir(parents=True)
    for index, num_objects in enumerate(NUM_OBJECTS):
        Image.fromarray(pixels_of(index)).save(root / "JPEGImages" / f"{index}.png")
        objects = "".join(
            f"<object><name>{('cat', 'dog')[i]}</name><difficult>{i}</difficult><bndbox>"
            f"<xmin>{1 + i}</xmin><ymin>2</ymin><xmax>{9 + index}</xmax><ymax>8</ymax>"
            "</bndbox></object>"
            for i in range(num_objects)
        )
        text = f"<annotation><size/>{objects}</annotation>"
        (root / "Annotations" / f"{index}.xml").write_text(text)
    (root / "ImageSets/Main/train.txt").write_text("0\n1\n2\n")
    (root / "ImageSets/Main/val.txt").write_text("2\n")
    return root


def open_files(folder: Path, split: str = "train") -> FileDataset:
    dataset = open_dataset(folder, split, classes=["cat", "dog"])
    assert isinstance(dataset, FileDataset)
    return dataset


def test_a_data_set_says_what_it_holds(folder: Path) -> None:
    dataset = open_files(folder)
    assert len(dataset) == 3
    assert dataset.classes == ("cat", "dog")
    assert dataset.category_ids == (1, 2)
    assert dataset.is_annotated
    assert dataset.name(1) == str(folder / "JPEGImages" / "1.png")
    assert dataset.findings.images.as_dict() == {"seen": 3, "used": 3, "dropped": {}}
    assert len(dataset.findings.examples["size-missing"]) == 3


def test_an_image_is_channels_first_and_exact(folder: Path) -> None:
    dataset = open_files(folder)
    for index in range(3):
        image = dataset.image(index)
        assert image.dtype == torch.uint8
        assert image.is_contiguous()
        assert np.array_equal(image.numpy().transpose(1, 2, 0), pixels_of(index))
        assert dataset.size(index) == image.shape[1:] == (12, 16 + index)


def test_a_target_has_the_objects_of_its_image(folder: Path) -> None:
    dataset = open_files(folder)
    first, second, third = (dataset.target(i) for i in range(3))
    assert first.boxes.tolist() == [[0, 1, 9, 8], [1, 1, 9, 8]]
    assert first.labels.tolist() == [0, 1]
    assert first.is_ignored.tolist() == [False, True]
    assert first.areas.tolist() == [63, 56]
    assert second.boxes.shape == (0, 4)
    assert len(second) == 0
    assert third.boxes.tolist() == [[0, 1, 11, 8]]
    assert [target.image_id for target in (first, second, third)] == [0, 1, 2]
    assert third.size == (12, 18)
    types = [value.dtype for value in (first.boxes, first.labels, first.is_ignored, first.areas)]
    assert types == [torch.float32, torch.int64, torch.bool, torch.float32]


def test_a_target_is_a_copy(folder: Path) -> None:
    dataset = open_files(folder)
    target = dataset.target(0)
    for values in (target.boxes, target.labels, target.is_ignored, target.areas):
        values.zero_()
    again = dataset.target(0)
    assert again.boxes.sum() == 37
    assert again.labels.sum() == again.is_ignored.sum() == 1
    assert again.areas.sum() == 119


@pytest.mark.parametrize("index", [-1, -3, 3, 10**20])
@pytest.mark.parametrize("method", ["name", "size", "image", "target"])
def test_an_index_beyond_the_images_is_an_error(folder: Path, method: str, index: int) -> None:
    with pytest.raises(IndexError, match="expected 0 to 2"):
        getattr(open_files(folder), method)(index)


def test_numbers_of_numpy_are_indices_and_fractions_are_not(folder: Path) -> None:
    dataset = open_files(folder)
    assert dataset.size(np.int64(2)) == (12, 18)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        dataset.size(1.0)  # type: ignore[arg-type]


def test_an_image_that_was_replaced_is_noticed(folder: Path) -> None:
    dataset = open_files(folder)
    path = folder / "JPEGImages" / "0.png"
    Image.fromarray(pixels_of(1)).save(path)
    with pytest.raises(DataError) as caught:
        dataset.image(0)
    assert caught.value.code == "image-size-differs"
    assert caught.value.file == str(path)
    assert caught.value.value == "(17, 12)"
    assert "It was 16 x 12" in str(caught.value)
    Image.fromarray(pixels_of(0).transpose(1, 0, 2)).save(path)
    with pytest.raises(DataError, match=r"\(12, 16\)"):
        dataset.image(0)
    path.unlink()
    with pytest.raises(DataError) as caught:
        dataset.image(0)
    assert caught.value.code == "image-missing"


def test_the_limit_of_pixels_holds_for_decoding(folder: Path) -> None:
    dataset = open_dataset(folder, "val", max_pixels=12 * 18)
    assert dataset.image(0).shape == (3, 12, 18)
    Image.new("RGB", (18, 13)).save(folder / "JPEGImages" / "2.png")
    with pytest.raises(DataError) as caught:
        dataset.image(0)
    assert caught.value.code == "image-too-large"


def test_a_copy_for_a_worker_has_everything_but_examples(folder: Path) -> None:
    dataset = open_files(folder)
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(copy) == 3
    assert torch.equal(copy.image(2), dataset.image(2))
    assert torch.equal(copy.target(0).boxes, dataset.target(0).boxes)
    assert (copy.classes, copy.category_ids) == (dataset.classes, dataset.category_ids)
    assert copy.max_pixels == dataset.max_pixels
    assert copy.findings.counts == dataset.findings.counts
    assert copy.findings.images.as_dict() == dataset.findings.images.as_dict()
    assert copy.findings.examples == {}
    assert dataset.findings.examples  # those of the original are still there


def test_keywords_and_sums_reach_the_reader(folder: Path) -> None:
    (folder / "ImageSets/Main/train.txt").write_text("0\n1\n")
    calls: list[int] = []
    dataset = open_dataset(
        str(folder),
        "train+val",
        format="voc",
        classes=("dog",),
        on_start=calls.append,
        on_image=lambda: calls.append(-1),
    )
    assert len(dataset) == 3
    assert dataset.classes == ("dog",)
    assert calls == [3, -1, -1, -1]
    with pytest.raises(DataError) as caught:
        open_dataset(folder, "train", format="coco")
    assert caught.value.code == "format-differs"


def test_images_outside_are_used_if_they_are_allowed(folder: Path, tmp_path: Path) -> None:
    path = folder / "JPEGImages" / "2.png"
    path.rename(tmp_path / "2.png")
    path.symlink_to(tmp_path / "2.png")
    with pytest.raises(DataError, match="outside"):
        open_dataset(folder, "val")
    assert len(open_dataset(folder, "val", allow_outside=True)) == 1


def test_the_embedded_set_opens_by_its_name() -> None:
    dataset = open_dataset("synthetic", "train:5")
    assert len(dataset) == 5
    assert len(dataset.classes) >= 6
    height, width = dataset.size(3)
    assert dataset.image(3).shape == (3, height, width)
    for keywords in ({"classes": ["cat"]}, {"format": "voc"}):
        with pytest.raises(ValueError, match="synthetic"):
            open_dataset("synthetic", "train:5", **keywords)  # type: ignore[arg-type]


def test_a_folder_that_is_called_synthetic_can_be_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    folder.rename(folder.parent / "synthetic")
    assert len(open_dataset("./synthetic", "val")) == 1
    assert len(open_dataset(Path("synthetic"), "val")) == 1
