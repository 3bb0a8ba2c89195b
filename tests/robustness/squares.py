"""Images of coloured squares, and a small detector that learns to find them in seconds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rankdet import build
from rankdet.config import Config, DataConfig, DetectorConfig, EvaluationConfig, TrainingConfig
from rankdet.data.loading.collate import Batch
from rankdet.data.loading.loader import make_loader
from rankdet.structures import Target
from rankdet.workflows.robustness_measures import Subject

SIDE = 64
COLOURS = ((0.62, 0.42, 0.42), (0.42, 0.62, 0.42), (0.42, 0.42, 0.62))


class Squares:
    """Noisy images with two coloured squares; their colour is their class."""

    classes = ("red", "green", "blue")
    category_ids = (1, 2, 3)
    is_annotated = True

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self.seed = seed

    def __len__(self) -> int:
        return self.length

    def name(self, index: int) -> str:
        return f"squares {index}"

    def size(self, index: int) -> tuple[int, int]:
        return SIDE, SIDE

    def target(self, index: int) -> Target:
        random = np.random.default_rng([self.seed, index])
        boxes = []
        for half in (0, 32):  # one at the left, one at the right
            side = int(random.integers(16, 30))
            left, top = half + random.integers(0, 32 - side), random.integers(0, SIDE - side)
            boxes.append([left, top, left + side, top + side])
        table = torch.tensor(boxes, dtype=torch.float32)
        return Target(
            boxes=table,
            labels=torch.from_numpy(random.integers(0, 3, 2)),
            is_ignored=torch.zeros(2, dtype=torch.bool),
            areas=(table[:, 2] - table[:, 0]) * (table[:, 3] - table[:, 1]),
            image_id=index,
            size=(SIDE, SIDE),
        )

    def image(self, index: int) -> Tensor:
        random = np.random.default_rng([self.seed, index, 1])
        image = torch.full((3, SIDE, SIDE), 0.45)
        target = self.target(index)
        for box, label in zip(target.boxes.int().tolist(), target.labels.tolist(), strict=True):
            left, top, right, bottom = box
            image[:, top:bottom, left:right] = torch.tensor(COLOURS[label]).view(3, 1, 1)
        noise = torch.from_numpy(random.normal(0, 0.06, tuple(image.shape))).float()
        return ((image + noise).clamp(0, 1) * 255).to(torch.uint8)


def squares_config(loss: str = "ap") -> Config:
    base = Config()
    return Config(
        data=DataConfig(path="synthetic", workers=0, size=SIDE),
        detector=DetectorConfig(
            backbone="small",
            norm="group",
            head_norm="group",
            anchor_scale=2.5,
            anchor_ratios=(1.0,),
        ),
        loss=type(base.loss)(name=loss),
        training=TrainingConfig(precision="float32", batch_size=8),
        evaluation=EvaluationConfig(fixed_size=SIDE, batch_size=16, protocol="voc"),
    )


def batches(dataset: Squares, num_batches: int, seed: int = 0) -> Iterator[Batch]:
    transform = build.evaluation_transforms(squares_config().evaluation)[0][0]
    loader = make_loader(
        dataset, transform, batch_size=8, seed=seed, size=(SIDE, SIDE), num_workers=0
    )
    for epoch in range(num_batches // len(loader) + 1):
        for batch in loader.epoch(epoch):
            if num_batches:
                num_batches -= 1
                yield batch


def trained(loss_name: str, steps: int) -> Subject:
    config = squares_config(loss_name)
    torch.manual_seed(0)
    loss = build.class_loss(config.loss)
    detector = build.detector(config.detector, 3, loss.activation)
    criterion = build.criterion(config, loss)
    optimizer = torch.optim.AdamW(detector.parameters(), lr=3e-3)
    for step, batch in enumerate(batches(Squares(160, seed=1), steps)):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 10, 2 * (1 - step / steps))
        optimizer.zero_grad()
        criterion(detector(batch.images), batch.targets).total.backward()
        torch.nn.utils.clip_grad_norm_(detector.parameters(), 1.0)
        optimizer.step()
    return Subject(detector.eval(), config, loss.activation, torch.device("cpu"))
