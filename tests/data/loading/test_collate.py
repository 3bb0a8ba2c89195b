"""Samples put together into a batch."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from rankdet.data.loading.collate import Batch, check_sample, pad_images
from rankdet.structures import IMAGENET_MEAN, Target


def target_of(count: int, size: tuple[int, int] = (20, 30)) -> Target:
    rows = torch.arange(count, dtype=torch.float32)
    return Target(
        boxes=torch.stack([rows, rows + 0.1, rows + 5, rows + 7], dim=1),
        labels=torch.arange(count) + 1,
        is_ignored=torch.arange(count) % 2 == 1,
        areas=rows / 3,
        image_id=70 + count,
        size=size,
    )


def assert_same(found: Target, expected: Target) -> None:
    assert_close(vars(found), vars(expected), rtol=0, atol=0)


def batch_of(targets: list[Target]) -> Batch:
    images = torch.rand(len(targets), 3, 4, 4)
    sizes = torch.tensor([target.size for target in targets]).reshape(-1, 2)
    names = tuple(f"image {index}" for index in range(len(targets)))
    return Batch(images, targets, sizes, torch.arange(len(targets)), names)


def test_an_image_stands_at_the_top_left_of_its_padding() -> None:
    padded = pad_images([torch.full((3, 2, 3), 0.5), torch.ones(3, 1, 5)], None, 4, (0.1, 0.2, 0.3))
    assert padded.shape == (2, 3, 4, 8)
    assert padded.dtype == torch.float32
    for channel, value in enumerate((0.1, 0.2, 0.3)):
        expected = torch.full((2, 4, 8), value)
        expected[0, :2, :3] = 0.5
        expected[1, :1, :5] = 1
        assert torch.equal(padded[:, channel], expected)


def test_a_multiple_is_not_rounded_up_further() -> None:
    assert pad_images([torch.ones(3, 4, 8)], None, 4, (0, 0, 0)).shape == (1, 3, 4, 8)


def test_a_fixed_size_is_kept_whatever_the_multiple() -> None:
    assert pad_images([torch.ones(3, 5, 7)], (5, 7), 4, (0, 0, 0)).shape == (1, 3, 5, 7)


def test_no_images_still_make_a_batch_that_a_detector_can_take() -> None:
    assert pad_images([], None, 32, IMAGENET_MEAN).shape == (0, 3, 32, 32)
    assert pad_images([], (5, 7), 32, IMAGENET_MEAN).shape == (0, 3, 5, 7)


def test_padding_becomes_0_after_normalisation() -> None:
    mean = torch.tensor(IMAGENET_MEAN)[:, None, None]
    padded = pad_images([torch.zeros(3, 1, 1)], None, 2, IMAGENET_MEAN)
    assert torch.equal((padded - mean)[0, :, 1, 1], torch.zeros(3))


def test_a_batch_that_is_there_already_is_not_copied() -> None:
    batch = batch_of([target_of(2), target_of(0), target_of(3)])
    assert batch.to("cpu") is batch
    assert batch.to(torch.device("cpu"), non_blocking=True) is batch


def test_targets_are_moved_though_the_images_are_there_already() -> None:
    batch = batch_of([target_of(0), target_of(2)])
    there = batch.to("meta")
    mixed = Batch(there.images, batch.targets, batch.sizes, batch.indices, batch.names)
    assert mixed.to("meta").targets[1].labels.device.type == "meta"


def test_a_moved_batch_is_the_same() -> None:
    batch = batch_of([target_of(2), target_of(0), target_of(3)])
    moved = batch.to("meta")
    assert moved.images.shape == batch.images.shape
    assert torch.equal(moved.sizes, batch.sizes)
    assert torch.equal(moved.indices, batch.indices)
    assert moved.names == batch.names
    for one, other in zip(batch.targets, moved.targets, strict=True):
        assert (one.image_id, one.size) == (other.image_id, other.size)
        assert one.boxes.shape == other.boxes.shape
    assert len(moved) == 3


def test_moving_goes_to_the_device() -> None:
    moved = batch_of([target_of(2), target_of(0)]).to("meta")
    tensors = [moved.images]
    for target in moved.targets:
        tensors += [target.boxes, target.labels, target.is_ignored, target.areas]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert [len(target) for target in moved.targets] == [2, 0]


def test_an_empty_batch_can_be_moved() -> None:
    moved = batch_of([]).to("cpu")
    assert len(moved) == 0
    assert moved.targets == []


def test_a_good_sample_passes() -> None:
    check_sample(torch.zeros(3, 20, 30), target_of(1), None, "a")
    check_sample(torch.zeros(3, 20, 30), target_of(1), (20, 30), "a")


@pytest.mark.parametrize(
    ("image", "size", "text"),
    [
        (torch.zeros(3, 20, 30, dtype=torch.uint8), None, r"^a\.jpg: .*float32.*got .*uint8"),
        (torch.zeros(1, 20, 30), None, r"^a\.jpg: .*got \(1, 20, 30\)"),
        (torch.zeros(20, 30), None, r"^a\.jpg: .*got \(20, 30\)"),
        (torch.zeros(3, 30, 20), None, r"^a\.jpg: .*size \(30, 20\), got \(20, 30\)"),
        (torch.zeros(3, 20, 30), (30, 20), r"^a\.jpg: .*size \(30, 20\).*got \(20, 30\)"),
    ],
)
def test_a_bad_sample_is_refused_by_name(
    image: torch.Tensor, size: tuple[int, int] | None, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        check_sample(image, target_of(1), size, "a.jpg")


@pytest.mark.gpu
def test_a_pinned_batch_moves_to_the_gpu_without_waiting() -> None:
    batch = batch_of([target_of(2), target_of(0), target_of(3)]).pin_memory()
    assert batch.images.is_pinned()
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # about half a second of work
    done = torch.cuda.Event()
    done.record()
    moved = batch.to("cuda", non_blocking=True)
    assert not done.query(), "the copy waited for the GPU"
    assert torch.equal(moved.images.cpu(), batch.images)
    for one, other in zip(batch.targets, moved.targets, strict=True):
        assert_same(one, other.to("cpu"))
