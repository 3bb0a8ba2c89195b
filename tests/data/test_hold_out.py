"""What is held out of a data set: always the same images, whatever else is in it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from rankdet.data.dataset import DetectionDataset, open_dataset
from rankdet.data.hold_out import divide, place
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.write import synthesise


def names(dataset: DetectionDataset) -> list[str]:
    return [Path(dataset.name(index)).stem for index in range(len(dataset))]


def held(dataset: DetectionDataset, share: float) -> list[str]:
    return names(divide(dataset, share)[1])


def test_the_hash_of_a_name_is_that_worked_out_by_hand() -> None:
    # printf cat | sha256sum begins with 77af778b, and 0x77af778b / 2^32 is 0.46752...
    assert hashlib.sha256(b"cat").hexdigest().startswith("77af778b")
    assert 0.4675 < place("cat") < 0.4676


@pytest.mark.parametrize(
    "name", ["photos/cat.jpg", "/photos/other/cat.png", "cat", "./cat.jpeg", "dog/cat.JPG"]
)
def test_neither_the_folder_nor_the_ending_counts(name: str) -> None:
    assert place(name) == place("cat")


def test_names_that_are_no_text_have_a_side_too() -> None:
    name = os.fsdecode(b"photos/\xff\xfe.jpg")
    assert 0 < place(name) < 1


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_each_image_is_on_one_side_in_the_order_of_the_data(share: float) -> None:
    data = SyntheticDataset("train", 200)
    train, held_out = divide(data, share)
    assert sorted([*train.indices, *held_out.indices]) == list(range(200))
    assert all(np.all(np.diff(part.indices) > 0) for part in (train, held_out))
    assert not set(names(train)) & set(names(held_out))
    assert train.classes == held_out.classes == data.classes


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_the_share_is_about_as_large_as_it_was_asked_for(share: float) -> None:
    counts = [
        sum(place(f"{prefix}{number:06d}") < share for number in range(5000))
        for prefix in ("", "2007_", "COCO_train2014_", "IMG_")
    ]
    deviation = (5000 * share * (1 - share)) ** 0.5
    assert all(abs(count - 5000 * share) < 4 * deviation for count in counts)


def test_a_larger_share_has_all_that_a_smaller_one_has() -> None:
    data = SyntheticDataset("train", 300)
    assert set(held(data, 0.1)) < set(held(data, 0.2))


def test_images_that_are_added_move_nobody() -> None:
    few, many = (held(SyntheticDataset("train", length), 0.2) for length in (150, 300))
    assert few == many[: len(few)]


def test_the_seed_of_the_data_has_no_say() -> None:
    assert held(SyntheticDataset("train", 99, seed=7), 0.2) == held(
        SyntheticDataset("train", 99), 0.2
    )


@pytest.mark.parametrize("format", ["coco", "yolo"])
def test_files_have_the_same_side_as_elsewhere_in_another_format(
    tmp_path: Path, format: str
) -> None:
    synthesise(tmp_path / "data", format, train=20, val=0, size=64)
    files = open_dataset(tmp_path / "data", "train")
    assert held(files, 0.2) == held(SyntheticDataset("train", 20), 0.2) != []


@pytest.mark.parametrize("length", [2, 3, 4])
@pytest.mark.parametrize(("share", "number_held"), [(1e-6, 1), (1 - 1e-6, -1)])
def test_of_two_images_or_more_each_side_has_one(
    length: int, share: float, number_held: int
) -> None:
    data = SyntheticDataset("train", length)
    ordered = sorted(names(data), key=place)
    assert set(held(data, share)) == set(ordered[:number_held])
