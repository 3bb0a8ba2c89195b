"""Which splits are taken when the user names none."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from rankdet.data.dataset import open_dataset
from rankdet.data.reading.choice import choose_splits, training_pairs
from rankdet.errors import DataError


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["train", "val"], ("train", "val")),
        (["train", "valid", "test"], ("train", "valid")),
        (["train", "validation"], ("train", "validation")),
        (["Train", "Val"], ("Train", "Val")),
        (["train2017", "val2017", "test-dev2017"], ("train2017", "val2017")),
        (["train2014", "val2017"], ("train2014", None)),
        (["2012_train", "2012_trainval", "2012_val"], ("2012_train", "2012_val")),
        (["train", "val", "trainval"], ("train", "val")),
        (["train", "test"], ("train", None)),
        (["2007_trainval", "2007_test"], ("2007_trainval", None)),
        (["all"], ("all", None)),
        (["test"], ("test", None)),
        (["my_train", "my_val"], ("my_train", "my_val")),
        (["retrain", "train"], ("train", None)),
    ],
)
def test_the_choice_is_clear(names: list[str], chosen: tuple[str, str | None]) -> None:
    assert training_pairs(names) == [chosen]


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (["2007_train", "2007_val", "2012_train", "2012_val"], 2),
        (["2007_trainval", "2007_test", "2012_trainval"], 2),
        (["train2014", "train2017", "val2017"], 2),
        (["monday", "tuesday"], 0),
        (["val", "test"], 0),
        ([], 0),
    ],
)
def test_the_choice_is_not_clear(names: list[str], count: int) -> None:
    assert len(training_pairs(names)) == count


def write_yolo(folder: Path, *splits: str) -> Path:
    for split in splits:
        for part in ("images", "labels"):
            (folder / part / split).mkdir(parents=True)
        Image.new("RGB", (32, 24)).save(folder / "images" / split / "a.jpg")
        (folder / "labels" / split / "a.txt").write_text("0 0.5 0.5 0.5 0.5")
    return folder


def test_the_splits_of_a_folder_are_found(tmp_path: Path) -> None:
    assert choose_splits(write_yolo(tmp_path, "train", "val")) == ("train", "val")
    assert choose_splits(str(tmp_path), "yolo") == ("train", "val")


@pytest.mark.parametrize("names", [("monday", "tuesday"), ("1_train", "1_val", "2_train")])
def test_an_unclear_choice_names_the_splits_and_the_options(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    write_yolo(tmp_path, *names)
    with pytest.raises(DataError) as caught:
        choose_splits(tmp_path)
    text = str(caught.value)
    assert caught.value.code == "split-unclear"
    assert text.startswith(f"{tmp_path}: it is not clear which split is for training.")
    assert f"There are {', '.join(names)}." in text
    assert "--train-split" in text
    assert "--val-split" in text


def test_the_embedded_set_has_splits_of_its_own() -> None:
    train, val = choose_splits("synthetic")
    assert (train, val) == ("train:2000", "val:500")
    assert val is not None
    assert len(open_dataset("synthetic", train)) == 2000
    assert len(open_dataset("synthetic", val)) == 500
