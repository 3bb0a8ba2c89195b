"""The embedded data set: always the same, without files."""

import pickle
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch

from rankdet.data.dataset import DetectionDataset
from rankdet.data.synthetic.dataset import SyntheticDataset, open_synthetic
from rankdet.errors import DataError

CHECKSUM_OF_FIRST = 1831780652


def checksum(image):
    return zlib.crc32(image.numpy().tobytes())


def as_lists(target):
    return target.boxes.tolist(), target.labels.tolist(), target.is_ignored.tolist()


def test_images_and_targets_stay_the_same_for_ever():
    data = SyntheticDataset("train", 1)
    boxes = [[10, 11, 96, 81], [2, 87, 29, 114]]
    assert as_lists(data.target(0)) == (boxes, [1, 1], [False, False])
    assert checksum(data.image(0)) == CHECKSUM_OF_FIRST
    data = SyntheticDataset("val", 26, seed=3, size=96)
    boxes = [[37, 43, 64, 75], [27, 0, 80, 31]]
    assert as_lists(data.target(25)) == (boxes, [4, 3], [True, False])
    assert checksum(data.image(25)) == 223581792
    assert data.image(25).float().mean((1, 2)).tolist() == pytest.approx(
        [161.3624, 166.3827, 164.281], abs=1e-3
    )


def test_another_process_draws_the_same():
    # Without torch, which takes long to import.
    code = (
        "import zlib\nfrom rankdet.data.synthetic import painting, scenes\n"
        "key = (0, 0, 0, 160)\nimage = painting.render(scenes.arrange(key, 160), key)\n"
        "print(zlib.crc32(image.tobytes()))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) == CHECKSUM_OF_FIRST


def test_it_offers_what_every_data_set_offers():
    data: DetectionDataset = SyntheticDataset("val", 12, size=96)
    assert len(data) == 12
    assert len(data.classes) == len(set(data.classes)) == 6
    assert data.category_ids == (1, 2, 3, 4, 5, 6)
    assert data.is_annotated
    assert data.name(11) == "synthetic/val/000011"
    assert data.size(0) == (96, 96)
    image, target = data.image(7), data.target(7)
    assert image.shape == (3, 96, 96)
    assert image.dtype == torch.uint8
    assert image.is_contiguous()
    assert target.boxes.dtype == target.areas.dtype == torch.float32
    assert target.labels.dtype == torch.int64
    assert target.is_ignored.dtype == torch.bool
    assert target.image_id == 7
    assert target.size == (96, 96)


def test_boxes_lie_in_the_image_on_whole_pixels():
    data = SyntheticDataset("train", 100)
    for index in range(100):
        target = data.target(index)
        boxes = target.boxes
        assert boxes.shape == (len(target), 4)
        assert torch.equal(boxes, boxes.round())
        assert bool((boxes[:, :2] >= 0).all() and (boxes[:, 2:] <= 160).all())
        assert bool((boxes[:, 2:] > boxes[:, :2]).all())
        sides = boxes[:, 2:] - boxes[:, :2]
        assert torch.equal(target.areas, sides.prod(1))
        assert bool((target.labels >= 0).all() and (target.labels < 8).all())


def test_an_image_does_not_depend_on_the_length_or_the_order():
    short, long = SyntheticDataset("train", 6), SyntheticDataset("train", 1000)
    forward = [checksum(short.image(index)) for index in range(6)]
    backward = [checksum(long.image(index)) for index in reversed(range(6))]
    assert forward == backward[::-1]
    for index in range(6):
        assert as_lists(short.target(index)) == as_lists(long.target(index))


def test_no_two_images_are_the_same():
    seen = set()
    for split in ("train", "val"):
        for seed in (0, 1):
            data = SyntheticDataset(split, 40, seed=seed, size=64)
            seen |= {checksum(data.image(index)) for index in range(40)}
    assert len(seen) == 160
    first = SyntheticDataset("train", 1, size=64).target(0)
    assert as_lists(first) != as_lists(SyntheticDataset("train", 1, size=65).target(0))


def test_train_and_val_are_drawn_alike():
    means = {}
    for split in ("train", "val"):
        data = SyntheticDataset(split, 400)
        targets = [data.target(index) for index in range(400)]
        count = np.mean([len(target) for target in targets])
        side = torch.cat([target.areas for target in targets]).sqrt().mean().item()
        means[split] = (count, side)
    assert means["train"] == pytest.approx(means["val"], rel=0.1)


def test_a_target_can_be_changed_without_harm():
    data = SyntheticDataset("train", 1)
    target, image = data.target(0), data.image(0)
    for tensor in (target.boxes, target.labels, target.is_ignored, target.areas, image):
        tensor.zero_()
    assert data.target(0).labels.tolist() == [1, 1]
    assert checksum(data.image(0)) == CHECKSUM_OF_FIRST


def test_a_copy_for_a_worker_is_small_and_equal():
    data = SyntheticDataset("val", 10, seed=4, size=96)
    data.image(2)
    content = pickle.dumps(data)
    assert len(content) < 1000
    assert checksum(pickle.loads(content).image(2)) == checksum(data.image(2))


@pytest.mark.parametrize("method", ["name", "size", "image", "target"])
@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside_is_an_index_error(method, index):
    data = SyntheticDataset("train", 5)
    with pytest.raises(IndexError, match=f"expected an index of 0 to 4, got {index}"):
        getattr(data, method)(index)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": -1}, "expected a length of 0 or more, got -1"),
        ({"seed": -2}, "expected a seed of 0 or more, got -2"),
        ({"size": 63}, "expected a size of 64 to 2048 pixels, got 63"),
        ({"size": 2049}, "expected a size of 64 to 2048 pixels, got 2049"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SyntheticDataset(**{"split": "train", "length": 5, **arguments})


@pytest.mark.parametrize(
    ("text", "split", "length"),
    [
        ("train", "train", 2000),
        ("val", "val", 500),
        ("train:800", "train", 800),
        ("val:0", "val", 0),
    ],
)
def test_splits_by_text(text, split, length):
    data = open_synthetic(text, seed=5, size=64)
    assert (data.split, len(data), data.seed) == (split, length, 5)
    assert data.side == 64


@pytest.mark.parametrize(
    "text", ["", "test", "train:", "train:-1", "train:1.5", "val: 5", "train+val", "train:٣", "Val"]
)
def test_an_unknown_split_is_refused_with_what_exists(text):
    with pytest.raises(DataError) as caught:
        open_synthetic(text)
    assert caught.value.code == "split-unknown"
    assert f"split = {text!r}" in str(caught.value)
    assert "There are train and val" in str(caught.value)


def test_an_unknown_split_is_refused_by_the_class_too():
    with pytest.raises(DataError, match="split = 'test': there is no such split"):
        SyntheticDataset("test", 5)


def test_the_data_set_can_be_had_from_its_folder():
    from rankdet.data import synthetic

    assert synthetic.SyntheticDataset is SyntheticDataset
    with pytest.raises(AttributeError, match="no attribute 'Syntetic'"):
        synthetic.Syntetic  # noqa: B018
