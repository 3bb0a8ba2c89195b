"""Batches made on the device: the same samples as those of the loader that reads files."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rankdet.data.augmentation.batched import BatchedFlipScaleJitter, BatchedSSDAugmentation
from rankdet.data.augmentation.parameters import JitterSettings
from rankdet.data.augmentation.store import ImageStore
from rankdet.data.augmentation.transforms import (
    FlipScaleJitter,
    Resize,
    ResizeFixed,
    ResizeShorter,
    SSDAugmentation,
    WithoutIgnored,
)
from rankdet.data.loading import held
from rankdet.data.loading.collate import Batch
from rankdet.data.loading.held import (
    HeldLoader,
    make_evaluation_loader,
    make_held_loader,
    reason_not_to_hold,
)
from rankdet.data.loading.loader import Loader, make_loader
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.errors import RankdetError
from rankdet.structures import Target

JITTER = JitterSettings(shorter=(48, 80), longest=100)


class Images:
    """Some images of the embedded set, cut to different sizes; every third object is ignored."""

    def __init__(self, length: int = 10) -> None:
        self.source = SyntheticDataset("train", length, size=96)
        self.classes = self.source.classes
        self.category_ids = self.source.category_ids
        self.is_annotated = True

    def __len__(self) -> int:
        return len(self.source)

    def name(self, index: int) -> str:
        return f"image {index}"

    def size(self, index: int) -> tuple[int, int]:
        return (60 + 4 * (index % 5), 96 - 7 * (index % 4))[:: -1 if index % 2 else 1]

    def image(self, index: int) -> Tensor:
        height, width = self.size(index)
        return self.source.image(index)[:, :height, :width].contiguous()

    def target(self, index: int) -> Target:
        height, width = self.size(index)
        target = self.source.target(index)
        limit = torch.tensor([width, height, width, height], dtype=torch.float32)
        target = dataclasses.replace(
            target, boxes=target.boxes.minimum(limit), size=(height, width), image_id=100 + index
        )
        target = target.select((target.boxes[:, 2:] - target.boxes[:, :2] > 5).all(dim=1))
        return dataclasses.replace(target, is_ignored=torch.arange(len(target)) % 3 == 1)


def held_of(transform: Any = None, length: int = 10, **settings: Any) -> HeldLoader:
    settings = {"batch_size": 4, "device": "cpu", **settings}
    return make_held_loader(Images(length), transform or BatchedSSDAugmentation(32), **settings)


def assert_alike(first: Batch, second: Batch) -> None:
    """The same samples and objects; pixels as close as two ways of computing them can be."""
    assert torch.equal(first.indices, second.indices)
    assert first.indices.dtype == second.indices.dtype
    assert first.names == second.names
    assert torch.equal(first.sizes, second.sizes)
    assert first.sizes.dtype == second.sizes.dtype
    assert_close(first.images, second.images, rtol=0, atol=2e-4)
    assert len({target.draw for target in first.targets}) == len(first)
    for one, other in zip(first.targets, second.targets, strict=True):
        assert_close(vars(one), vars(other), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("drop_ignored", [False, True])
def test_batches_are_those_of_the_loader_for_single_images(drop_ignored: bool) -> None:
    single = SSDAugmentation(32)
    wanted = make_loader(
        Images(),
        WithoutIgnored(single) if drop_ignored else single,
        batch_size=4,
        seed=7,
        num_workers=0,
    )
    got = held_of(seed=7, drop_ignored=drop_ignored)
    assert len(got) == len(wanted) == 2
    num_ignored = num_objects = 0
    for epoch in (0, 3):
        pairs = list(zip(wanted.epoch(epoch), got.epoch(epoch), strict=True))
        assert len(pairs) == 2
        for one, other in pairs:
            assert_alike(one, other)
            num_objects += sum(len(target) for target in other.targets)
            num_ignored += sum(int(target.is_ignored.sum()) for target in other.targets)
    assert num_objects > 0
    assert (num_ignored > 0) != drop_ignored


def test_jittered_batches_are_those_of_the_loader_for_single_images() -> None:
    wanted = make_loader(
        Images(), FlipScaleJitter(JITTER), batch_size=4, seed=1, num_groups=2, num_workers=0
    )
    got = held_of(BatchedFlipScaleJitter(settings=JITTER), seed=1, num_groups=2)
    ungrouped = held_of(BatchedFlipScaleJitter(settings=JITTER), seed=1)
    pairs = zip(ungrouped.epoch(2), got.epoch(2), strict=True)
    assert any(not torch.equal(one.indices, other.indices) for one, other in pairs)
    for one, other in zip(wanted.epoch(2), got.epoch(2), strict=True):
        assert_alike(one, other)
        assert len(set(map(tuple, one.sizes.tolist()))) > 1  # the padding is a part of the test


def test_an_epoch_can_be_entered_in_its_middle() -> None:
    loader = held_of(seed=3)
    whole, rest = list(loader.epoch(1)), list(loader.epoch(1, start=1))
    assert len(rest) == len(whole) - 1
    assert torch.equal(rest[0].images, whole[1].images)
    assert torch.equal(rest[0].indices, whole[1].indices)
    assert list(loader.epoch(1, start=2)) == []


def test_epochs_and_seeds_differ() -> None:
    first = next(iter(held_of(seed=3).epoch(0)))
    for other in (held_of(seed=3).epoch(1), held_of(seed=4).epoch(0)):
        assert not torch.equal(next(iter(other)).indices, first.indices)


def test_a_place_that_is_not_in_the_epoch_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"start in 0\.\.2, got 0 and 3"):
        held_of().epoch(0, start=3)


def test_two_processes_have_the_halves_of_each_batch() -> None:
    whole = next(iter(held_of(seed=5).epoch(0)))
    halves = [next(iter(held_of(seed=5, rank=rank, world_size=2).epoch(0))) for rank in (0, 1)]
    assert torch.equal(torch.cat([half.indices for half in halves]), whole.indices)
    assert_close(torch.cat([half.images for half in halves]), whole.images)


@pytest.mark.parametrize("settings", [{}, {"side": 96}])
def test_a_process_without_images_still_gets_a_batch(settings: dict[str, int]) -> None:
    (batch, *_) = held_of(rank=5, world_size=6, **settings).epoch(0)
    side = settings.get("side", 32)
    assert len(batch) == 0
    assert batch.images.shape == (0, 3, side, side)
    assert batch.images.dtype == torch.float32
    assert batch.sizes.shape == (0, 2)
    assert batch.targets == []


def test_settings_are_checked_before_an_image_is_read() -> None:
    class Unread(Images):
        def image(self, index: int) -> Tensor:
            raise AssertionError("an image was read")

    for settings, word in (
        ({"batch_size": 3, "rank": 2, "world_size": 2}, "rank below world_size"),
        ({"batch_size": 11}, "at least batch_size"),
        ({"batch_size": 4, "seed": 2**32}, "below 2"),
    ):
        with pytest.raises(ValueError, match=word):
            make_held_loader(Unread(), BatchedSSDAugmentation(32), device="cpu", **settings)


def test_more_bytes_than_allowed_are_refused() -> None:
    with pytest.raises(RankdetError, match=r"the limit is 0\.00 GiB"):
        held_of(max_bytes=1000)


def test_the_usual_limit_is_that_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    assert held._usual_limit(torch.device("cpu")) == 1000 * 4096 // 4
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 200))
    assert held._usual_limit(torch.device("cuda")) == 50


@pytest.mark.parametrize("error", [AttributeError, OSError, ValueError])
def test_where_the_memory_is_not_known_two_gibibytes_may_be_held(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> int:
        raise error(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    assert held._usual_limit(torch.device("cpu")) == 2 * 2**30


def test_progress_is_told_of_every_image_and_the_loader_can_be_used_after_close() -> None:
    calls: list[None] = []
    loader = held_of(on_image=lambda: calls.append(None))
    assert len(calls) == 10
    loader.close()
    assert len(list(loader.epoch(0))) == 2


def test_images_are_held_on_the_device_and_no_process_is_got_ready_to_read_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unwanted(*arguments: object) -> None:
        raise AssertionError("a worker was got ready")

    monkeypatch.setattr("rankdet.data.loading.loader.worker_context", unwanted)
    loader = held_of(device="meta")  # a device without numbers, which every machine has
    assert loader.store.pixels.device == torch.device("meta")


# Evaluation


RESIZES = [
    *[ResizeFixed(64), ResizeFixed(64, is_flipped=True)],
    *[ResizeShorter(50, 70), ResizeShorter(90, 400, is_flipped=True)],
]


def evaluation_loaders(
    resize: Resize, device: str = "cpu", **settings: int
) -> tuple[Loader, HeldLoader]:
    """That which reads the images, and that which has them."""
    images = Images()
    settings = {"batch_size": 4, "num_workers": 0, **settings}
    reading = make_evaluation_loader(images, resize, **settings)
    holding = make_evaluation_loader(
        images, resize, store=ImageStore.from_dataset(images, device), **settings
    )
    assert isinstance(reading, Loader)
    assert isinstance(holding, HeldLoader)
    return reading, holding


@pytest.mark.parametrize("resize", RESIZES)
def test_held_images_are_evaluated_as_those_that_are_read(resize: Resize) -> None:
    reading, holding = evaluation_loaders(resize)
    pairs = list(zip(reading.epoch(0), holding.epoch(0), strict=True))
    assert [len(batch) for batch, _ in pairs] == [4, 4, 2]
    for one, other in pairs:
        assert one.images.shape == other.images.shape
        assert_alike(one, other)


def test_processes_are_dealt_whole_batches_of_held_images() -> None:
    for rank, expected in ((0, [[0, 1, 2, 3], [8, 9]]), (1, [[4, 5, 6, 7], []])):
        for loader in evaluation_loaders(ResizeFixed(64), rank=rank, world_size=2):
            assert [batch.indices.tolist() for batch in loader.epoch(0)] == expected


def test_every_setting_reaches_the_loader_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(held, "make_loader", lambda *_, **keywords: calls.append(keywords))
    settings = {"batch_size": 3, "rank": 1, "world_size": 2, "num_workers": 4, "pin_memory": True}
    for resize in (ResizeFixed(64), ResizeShorter(64)):
        make_evaluation_loader(Images(), resize, **settings)
    expected = {**settings, "shuffle": False, "is_dealt": True}
    assert calls == [{**expected, "size": (64, 64)}, {**expected, "size": None}]


def test_images_are_held_for_evaluation_unless_they_are_too_many_or_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert reason_not_to_hold(Images(), "cpu") is None
    assert reason_not_to_hold(Images(0), "cpu") is None
    num_bytes = ImageStore.num_bytes(Images())
    monkeypatch.setattr(held, "_usual_limit", lambda device: num_bytes)
    assert reason_not_to_hold(Images(), "cpu") is None
    monkeypatch.setattr(held, "_usual_limit", lambda device: num_bytes - 1)
    reason = reason_not_to_hold(Images(), "cpu")
    assert reason == "they need 0.00 GiB on cpu, and the limit is 0.00 GiB"
    images = Images()
    monkeypatch.setattr(images, "size", lambda index: (40, 1537))
    reason = reason_not_to_hold(images, "cpu")
    assert reason == "one is 1537 pixels long, and those that are held have at most 1536"


@pytest.mark.gpu
@pytest.mark.parametrize("resize", RESIZES)
def test_images_held_on_a_gpu_are_evaluated_as_those_that_are_read(resize: Resize) -> None:
    for one, other in zip(
        *(loader.epoch(0) for loader in evaluation_loaders(resize, "cuda")), strict=True
    ):
        assert other.images.is_cuda
        assert_alike(one, other.to("cpu"))


@pytest.mark.gpu
def test_batches_on_a_gpu_are_the_same() -> None:
    wanted, got = held_of(seed=2), held_of(seed=2, device="cuda")
    for one, other in zip(wanted.epoch(0), got.epoch(0), strict=True):
        assert other.images.is_cuda
        assert other.targets[0].boxes.is_cuda
        assert not other.indices.is_cuda
        assert_alike(one, other.to("cpu"))
