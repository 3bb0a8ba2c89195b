"""Images with objects and detections in a few words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from rankdet.structures import Detections, Target

Box = Sequence[float]


@pytest.fixture(scope="session")
def objects() -> Callable[..., Target]:
    """objects((label, box), ..., ignored=rows): the target of an image."""

    def make(*rows: tuple[int, Box], ignored: Sequence[int] = ()) -> Target:
        boxes = torch.tensor([box for _, box in rows], dtype=torch.float32).reshape(-1, 4)
        return Target(
            boxes=boxes,
            labels=torch.tensor([label for label, _ in rows], dtype=torch.int64),
            is_ignored=torch.tensor([i in ignored for i in range(len(rows))], dtype=torch.bool),
            areas=(boxes[:, 2:] - boxes[:, :2]).prod(1),
            image_id=0,
            size=(400, 500),
        )

    return make


@pytest.fixture(scope="session")
def found() -> Callable[..., Detections]:
    """found((label, score, box), ...): the detections of an image."""

    def make(*rows: tuple[int, float, Box]) -> Detections:
        return Detections(
            torch.tensor([box for _, _, box in rows], dtype=torch.float32).reshape(-1, 4),
            torch.tensor([score for _, score, _ in rows], dtype=torch.float32),
            torch.tensor([label for label, _, _ in rows], dtype=torch.int64),
        )

    return make
