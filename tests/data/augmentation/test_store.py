"""Images held on a device: batches of them are what the data set gives."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rankdet.data.augmentation import store
from rankdet.data.augmentation.packed import unpack_targets
from rankdet.data.augmentation.parameters import MIN_SIDE
from rankdet.data.augmentation.store import ImageStore
from rankdet.data.augmentation.transforms import shrink
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
    assert_close(vars(found), vars(expected), rtol=0, atol=0)


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
    held = ImageStore.from_dataset(CountingDataset(), "cpu")
    by_list, by_tensor = held.batch([3, 0])[0], held.batch(torch.tensor([3, 0]))[0]
    assert torch.equal(by_list.pixels, by_tensor.pixels)
    assert len(held) == 4


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


def test_a_long_image_is_held_as_the_chain_for_one_image_would_make_it_smaller() -> None:
    # Otherwise one image of 1 x 10,000 pixels would widen the whole batch.
    dataset = CountingDataset()
    expected = [
        shrink(dataset.image(index), dataset.target(index), longest=4, min_side=MIN_SIDE)
        for index in range(4)
    ]
    held = ImageStore.from_dataset(dataset, "cpu", longest=4)
    assert held.sizes.tolist() == [[2, 4], [4, 3], [2, 4], [1, 1]]
    assert held.pixels.numel() == ImageStore.num_bytes(dataset, longest=4) == 3 * (8 + 12 + 8 + 1)
    images, targets = held.batch(range(4))
    assert images.pixels.shape == (4, 3, 4, 4)
    for row, (target, (image, smaller)) in enumerate(
        zip(unpack_targets(targets), expected, strict=True)
    ):
        height, width = smaller.size
        assert torch.equal(images.pixels[row, :, :height, :width], image)
        assert_same(target, smaller)


def test_only_images_of_more_than_1536_pixels_are_held_smaller() -> None:
    dataset = CountingDataset()
    dataset.sizes = ((1, 1536), (1, 1537), (3, 5000), (1, 1))
    held = ImageStore.from_dataset(dataset, "cpu")
    assert held.sizes.tolist() == [[1, 1536], [1, 1536], [1, 1536], [1, 1]]


def test_progress_is_told_of_each_image() -> None:
    told: list[int] = []
    ImageStore.from_dataset(CountingDataset(), "cpu", on_image=lambda: told.append(1))
    assert len(told) == 4


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("piece", [1, 40, 10**6])
def test_threads_and_pieces_change_nothing(
    monkeypatch: pytest.MonkeyPatch, num_threads: int, piece: int
) -> None:
    class Slow(CountingDataset):
        def image(self, index: int) -> Tensor:
            time.sleep(0.01 * (4 - index))  # the last one is the first to be read
            return super().image(index)

    expected = ImageStore.from_dataset(CountingDataset(), "cpu", num_threads=1)
    monkeypatch.setattr(store, "_PIECE", piece)
    got = ImageStore.from_dataset(Slow(), "cpu", num_threads=num_threads)
    assert torch.equal(got.pixels, expected.pixels)
    assert_close(vars(got.targets), vars(expected.targets), rtol=0, atol=0)


def test_torch_works_alone_in_each_thread_and_afterwards_as_before() -> None:
    class Asking(CountingDataset):
        nums_threads: ClassVar[list[int]] = []

        def image(self, index: int) -> Tensor:
            self.nums_threads.append(torch.get_num_threads())
            return super().image(index)

    usual = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        ImageStore.from_dataset(Asking(), "cpu", num_threads=2)
        assert Asking.nums_threads == [1, 1, 1, 1]
        assert torch.get_num_threads() == 3
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(usual)


@pytest.mark.parametrize("error", [RankdetError("image 1 is broken"), KeyboardInterrupt()])
def test_an_error_ends_the_reading_and_what_is_not_begun_is_not_read(error: BaseException) -> None:
    class Broken(CountingDataset):
        sizes = ((2, 5),) * 200

        def image(self, index: int) -> Tensor:
            if index >= 1:
                time.sleep(0.002)
                raise error if index == 1 else RankdetError(f"image {index} is broken")
            return super().image(index)

        def target(self, index: int) -> Target:
            self.num_read += 1
            return super().target(index)

    dataset = Broken()
    num_before = threading.active_count()
    with pytest.raises(type(error), match=f"^{error}$"):
        ImageStore.from_dataset(dataset, "cpu", num_threads=2)
    assert threading.active_count() == num_before
    assert dataset.num_read < 100


def test_no_image_is_a_store_of_none() -> None:
    dataset = CountingDataset()
    dataset.sizes = ()
    assert len(ImageStore.from_dataset(dataset, "cpu")) == 0


@pytest.mark.gpu
def test_the_store_on_a_gpu_gives_the_same_batch() -> None:
    on_cpu, on_gpu = (ImageStore.from_dataset(CountingDataset(), kind) for kind in ("cpu", "cuda"))
    images, targets = on_gpu.batch([2, 0, 3])
    expected, _ = on_cpu.batch([2, 0, 3])
    assert images.pixels.is_cuda
    assert torch.equal(images.pixels.cpu(), expected.pixels)
    assert torch.equal(images.sizes, expected.sizes)
    assert not targets.boxes.is_cuda
