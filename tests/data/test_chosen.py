"""Chosen images are those of the data set they stand in, under other numbers."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from rankdet.data.chosen import ChosenImages
from rankdet.data.dataset import DetectionDataset, open_dataset
from rankdet.data.fingerprint import fingerprint
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.write import synthesise

DATA = SyntheticDataset("val", 6)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> DetectionDataset:
    folder = tmp_path_factory.mktemp("files") / "data"
    synthesise(folder, "voc", train=6, val=0, size=64)
    return open_dataset(folder, "train")


def test_chosen_images_have_new_numbers() -> None:
    chosen = ChosenImages(DATA, [4, 1])
    assert len(chosen) == 2
    assert [chosen.name(number) for number in (0, 1)] == [DATA.name(4), DATA.name(1)]
    assert chosen.size(0) == DATA.size(4)
    assert torch.equal(chosen.image(1), DATA.image(1))
    assert torch.equal(chosen.target(0).boxes, DATA.target(4).boxes)
    assert (chosen.classes, chosen.category_ids) == (DATA.classes, DATA.category_ids)
    assert chosen.is_annotated


def test_there_is_no_image_before_the_first_or_after_the_last() -> None:
    chosen = ChosenImages(DATA, range(2))
    for index in (-1, 2):
        with pytest.raises(IndexError, match=f"image {index} of 2: expected 0 to 1"):
            chosen.image(index)


def test_numbers_of_an_array_are_plain_ones_to_the_data_set() -> None:
    assert type(ChosenImages(DATA, np.array([3])).target(0).image_id) is int


def test_chosen_images_of_chosen_images_are_those_of_the_first() -> None:
    assert ChosenImages(ChosenImages(DATA, [5, 3, 0]), [1]).name(0) == DATA.name(3)


def test_a_copy_for_a_worker_is_one_of_the_data_set_and_the_numbers(
    files: DetectionDataset,
) -> None:
    chosen = ChosenImages(files, np.array([1, 4, 5]))
    content = pickle.dumps(chosen)
    assert len(content) < len(pickle.dumps(files)) + len(pickle.dumps(chosen.indices)) + 500
    copy = pickle.loads(content)
    assert [copy.name(number) for number in range(3)] == [files.name(n) for n in (1, 4, 5)]
    assert torch.equal(copy.image(2), files.image(5))
    assert copy.target(1).image_id == files.target(4).image_id


def test_all_images_have_the_fingerprint_of_the_data_set(files: DetectionDataset) -> None:
    assert fingerprint(ChosenImages(files, range(6))) == fingerprint(files)


@pytest.mark.parametrize("kind", ["files", "drawn"])
def test_a_fingerprint_is_of_the_chosen_images_alone(files: DetectionDataset, kind: str) -> None:
    data = files if kind == "files" else DATA
    prints = [fingerprint(ChosenImages(data, few)) for few in ([0, 1], [0, 2], [1, 0], [0])]
    assert len({*prints, fingerprint(data)}) == 5
    assert fingerprint(ChosenImages(ChosenImages(data, [2, 0, 1]), [1, 2])) == prints[0]


def test_files_have_the_same_fingerprint_however_they_are_looked_at(
    files: DetectionDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ChosenImages(files, [5, 0, 3])
    quick = fingerprint(chosen)
    monkeypatch.setattr("rankdet.data.fingerprint._annotations", lambda dataset: None)
    assert fingerprint(chosen) == quick
