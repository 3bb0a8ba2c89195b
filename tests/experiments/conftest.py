"""Data sets of a few images in the layouts of VOC and COCO, for the scales that need them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.write import write_dataset


@pytest.fixture(scope="session")
def hand_made() -> Callable[..., dict[str, Any]]:
    """Makes a record of an item: its plan, and the results of some of its rows."""

    def record(item: str, plan: list[str], results: dict[str, Any]) -> dict[str, Any]:
        return {
            "item": item,
            "labels": [],
            "request": {"scale": "smoke", "seed": 0},
            "plan": plan,
            "rows": {key: {"result": result} for key, result in results.items()},
        }

    return record


def _images(number: int, seed: int) -> SyntheticDataset:
    return SyntheticDataset("train", number, seed=seed, size=64)


@pytest.fixture(scope="session")
def voc_devkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VOCdevkit with VOC2007 and VOC2012, whose test images have no annotations."""
    root = tmp_path_factory.mktemp("voc") / "VOCdevkit"
    root.mkdir()
    write_dataset({"trainval": _images(8, 0), "test": _images(3, 1)}, root / "VOC2007", "voc")
    write_dataset({"trainval": _images(8, 2), "test": _images(2, 3)}, root / "VOC2012", "voc")
    names = (root / "VOC2012" / "ImageSets" / "Main" / "test.txt").read_text().split()
    for name in names:
        (root / "VOC2012" / "Annotations" / f"{name}.xml").unlink()
    return root


@pytest.fixture(scope="session")
def voc_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in VOC's layout with the splits train and val, as at voc320."""
    root = tmp_path_factory.mktemp("voc") / "VOC2012"
    write_dataset({"train": _images(16, 4), "val": _images(4, 5)}, root, "voc")
    return root


@pytest.fixture(scope="session")
def coco_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """COCO with train2017, val2017, and two images of test-dev2017 without annotations."""
    root = tmp_path_factory.mktemp("coco") / "coco"
    splits = {"train2017": _images(6, 6), "val2017": _images(3, 7), "test2017": _images(2, 8)}
    write_dataset(splits, root, "coco")
    file = root / "annotations" / "instances_test2017.json"
    content = json.loads(file.read_text())
    del content["annotations"]
    (root / "annotations" / "image_info_test-dev2017.json").write_text(json.dumps(content))
    file.unlink()
    return root
