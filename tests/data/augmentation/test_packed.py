"""Targets and images held together: what comes out of the package is what was put in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankdet.data.augmentation.packed import (
    ImageStore,
    pack_targets,
    pad_images,
    to_device,
    unpack_targets,
)
from rankdet.errors import RankdetError
from rankdet.structures import Target


def make_target(image_id: int, num_objects: int, size: tuple[int, int] = (6, 8)) -> Target:
    """Numbers that tell the images and objects apart."""
    numbers = torch.arange(num_objects)
    boxes = torch.tensor([0.5, 1.0, 2.5, 3.0]) + 10 * image_id + numbers[:, None]
    return Target(
        boxes=boxes,
        labels=100 * image_id + numbers,
        is_ignored=numbers % 2 == 1,
        areas=boxes[:, 0] / 4,
        image_id=image_id,
        size=size,
    )


def assert_same(found: Target, expected: Target) -> None:
    for name in ("boxes", "labels", "is_ignored", "areas"):
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), rtol=0, atol=0, msg=name
        )
    assert (found.image_id, found.size) == (expected.image_id, expected.size)


class CountingDataset:
    """Images of different sizes whose values are their numbers; counts how many were read."""

    classes = ("a",)
    category_ids = (0,)
    is_annotated = True
    sizes = ((2, 5), (4, 3), (3, 6), (1, 1))  # the last one is padded: nothing stands behind it

    def __init__(self) -> None:
        self.num_read = 0

    def __len__(self) -> int:
        return len(self.sizes)

    def name(self, index: int) -> str:
        return str(index)

    def size(self, index: int) -> tuple[int, int]:
        return self.sizes[index]

    def image(self, index: int) -> Tensor:
        self.num_read += 1
        height, width = self.sizes[index]
        return (torch.arange(3 * height * width) + 60 * index).view(3, height, width).byte()

    def target(self, index: int) -> Target:
        return make_target(index, num_objects=index, size=self.sizes[index])


def test_targets_come_out_as_they_went_in() -> None:
    targets = [make_target(3, 2), make_target(1, 0), make_target(7, 3, size=(9, 4))]
    packed = pack_targets(targets)
    assert len(packed) == 3
    assert packed.rows.tolist() == [0, 0, 2, 2, 2]
    for found, expected in zip(unpack_targets(packed), targets, strict=True):
        assert_same(found, expected)


def test_targets_without_any_object_can_be_packed() -> None:
    targets = [make_target(3, 0), make_target(1, 0)]
    for found, expected in zip(unpack_targets(pack_targets(targets)), targets, strict=True):
        assert_same(found, expected)


def test_no_targets_can_be_packed() -> None:
    assert unpack_targets(pack_targets([])) == []


def test_select_keeps_the_images_that_lose_all_objects() -> None:
    packed = pack_targets([make_target(0, 1), make_target(1, 2), make_target(2, 1)])
    kept = packed.select(torch.tensor([True, False, False, True]))
    assert kept.counts.tolist() == [1, 0, 1]
    assert kept.rows.tolist() == [0, 2]
    assert [len(target) for target in unpack_targets(kept)] == [1, 0, 1]


def test_take_picks_images_in_the_order_asked_for_and_again() -> None:
    targets = [make_target(index, num_objects) for index, num_objects in enumerate((2, 0, 3, 1))]
    order = [2, 3, 1, 2, 0]
    taken = pack_targets(targets).take(order)
    assert taken.rows.tolist() == [0, 0, 0, 1, 3, 3, 3, 4, 4]
    for found, index in zip(unpack_targets(taken), order, strict=True):
        assert_same(found, targets[index])


def test_padded_images_stand_in_the_upper_left_corner() -> None:
    first = torch.full((3, 2, 4), 7, dtype=torch.uint8)
    second = torch.full((3, 3, 1), 9, dtype=torch.uint8)
    padded = pad_images([first, second])
    assert padded.pixels.shape == (2, 3, 3, 4)
    assert padded.sizes.tolist() == [[2, 4], [3, 1]]
    assert torch.equal(padded.pixels[0, :, :2], first)
    assert torch.equal(padded.pixels[1, :, :, :1], second)


@pytest.mark.parametrize("indices", [[0], [3, 1], [2, 0, 1, 3, 0]])
def test_the_store_gives_the_images_and_targets_of_the_data_set(indices: list[int]) -> None:
    dataset = CountingDataset()
    images, targets = ImageStore.from_dataset(dataset, "cpu").batch(indices)
    height, width = (max(dataset.size(index)[axis] for index in indices) for axis in range(2))
    assert images.pixels.shape == (len(indices), 3, height, width)
    assert images.pixels.dtype == torch.uint8
    for row, (index, target) in enumerate(zip(indices, unpack_targets(targets), strict=True)):
        height, width = dataset.size(index)
        assert images.sizes[row].tolist() == [height, width]
        assert torch.equal(images.pixels[row, :, :height, :width], dataset.image(index))
        assert_same(target, dataset.target(index))


def test_the_store_takes_indices_as_a_tensor() -> None:
    store = ImageStore.from_dataset(CountingDataset(), "cpu")
    by_list, by_tensor = store.batch([3, 0])[0], store.batch(torch.tensor([3, 0]))[0]
    assert torch.equal(by_list.pixels, by_tensor.pixels)
    assert len(store) == 4


def test_the_store_says_what_it_needs_without_reading_an_image() -> None:
    dataset = CountingDataset()
    assert ImageStore.num_bytes(dataset) == 3 * (10 + 12 + 1 + 18)
    assert dataset.num_read == 0


def test_a_data_set_over_the_limit_is_refused_before_it_is_read() -> None:
    dataset = CountingDataset()
    with pytest.raises(RankdetError, match=r"4 images need 0\.00 GiB on cpu.*limit is"):
        ImageStore.from_dataset(dataset, "cpu", max_bytes=122)
    assert dataset.num_read == 0
    assert ImageStore.from_dataset(dataset, "cpu", max_bytes=123).pixels.numel() == 123


def test_progress_is_told_of_each_image() -> None:
    told: list[int] = []
    ImageStore.from_dataset(CountingDataset(), "cpu", on_image=lambda: told.append(1))
    assert len(told) == 4


@pytest.mark.gpu
def test_the_store_on_a_gpu_gives_the_same_batch() -> None:
    on_cpu, on_gpu = (ImageStore.from_dataset(CountingDataset(), kind) for kind in ("cpu", "cuda"))
    images, targets = on_gpu.batch([2, 0, 3])
    expected, _ = on_cpu.batch([2, 0, 3])
    assert images.pixels.is_cuda
    assert torch.equal(images.pixels.cpu(), expected.pixels)
    assert torch.equal(images.sizes, expected.sizes)
    assert not targets.boxes.is_cuda


@pytest.mark.gpu
def test_targets_reach_the_gpu_unchanged() -> None:
    targets = [make_target(3, 2), make_target(1, 0)]
    found = unpack_targets(pack_targets(targets), "cuda")
    assert all(target.boxes.is_cuda for target in found)
    for target, expected in zip(found, targets, strict=True):
        assert_same(target.to("cpu"), expected)
    assert to_device(torch.ones(2), "cuda").is_cuda
