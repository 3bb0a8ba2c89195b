"""A data set and a transform for the tests of loading, in a module that workers can import."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field

import torch

from rankdet.data.randomness import SampleKey, uniforms
from rankdet.data.reading.findings import data_error
from rankdet.structures import Target


@dataclass(frozen=True)
class FakeDataset:
    """Image i has the value i everywhere, i % 3 objects and one of a few sizes."""

    length: int = 10
    sizes: tuple[tuple[int, int], ...] = ((8, 12), (10, 6), (7, 7))
    classes: tuple[str, ...] = ("a", "b", "c", "d")
    category_ids: tuple[int, ...] = (1, 2, 3, 4)
    is_annotated: bool = True

    def __len__(self) -> int:
        return self.length

    def name(self, index: int) -> str:
        return f"image {index}"

    def size(self, index: int) -> tuple[int, int]:
        return self.sizes[index % len(self.sizes)]

    def image(self, index: int) -> torch.Tensor:
        return torch.full((3, *self.size(index)), index % 256, dtype=torch.uint8)

    def target(self, index: int) -> Target:
        count = index % 3
        rows = torch.arange(count, dtype=torch.float32)
        boxes = torch.stack([rows, rows + 1, rows + 2.5, rows + index], dim=1)
        return Target(
            boxes=boxes,
            labels=torch.arange(count) + 1,
            is_ignored=torch.arange(count) == 1,
            areas=rows + index / 7,
            image_id=1000 + index,
            size=self.size(index),
        )


@dataclass(frozen=True)
class FakeTransform:
    """Adds a random number of the sample; `faults` says what goes wrong at which sample."""

    faults: dict[int, str] = field(default_factory=dict)

    def __call__(
        self, image: torch.Tensor, target: Target, key: SampleKey
    ) -> tuple[torch.Tensor, Target]:
        act(self.faults.get(key.index, ""))
        return image / 255 + uniforms([key], 1).item(), target


class OwnError(Exception):
    """Cannot be copied: its constructor needs more than the message."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def act(fault: str) -> None:
    if fault == "data error":
        raise data_error("image-truncated", file="a.jpg", where=3, value=[1], detail="So.")
    if fault == "value error":
        raise ValueError("a bad value")
    if fault == "own error":
        raise OwnError("two", "words")
    if fault == "slow":
        time.sleep(0.7)  # longer than twice the poll of the tests
    if fault == "hang":
        time.sleep(1000)
    if fault == "exit":
        os._exit(3)
    if fault.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, fault))
        time.sleep(1000)


class ThreadCount:
    """A transform whose image holds the number of torch's threads."""

    def __call__(
        self, image: torch.Tensor, target: Target, key: SampleKey
    ) -> tuple[torch.Tensor, Target]:
        return torch.full(image.shape, float(torch.get_num_threads())), target
