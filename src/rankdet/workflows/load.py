"""A trained detector, ready to be asked about images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from rankdet import build
from rankdet.config import Config
from rankdet.data.loading.collate import Batch, pad_images
from rankdet.data.loading.loader import Transform
from rankdet.data.randomness import SampleKey
from rankdet.data.reading import images as image_files
from rankdet.detectors.postprocess import Postprocess
from rankdet.engine.detect import View, detect
from rankdet.errors import CheckpointError
from rankdet.metrics.thresholds import usual_thresholds
from rankdet.structures import IMAGENET_MEAN, Detections, Target
from rankdet.workflows.run import RESULTS_FILE, read_checkpoint, read_run, trained_detector

_MULTIPLE = 32  # pixels: height and width of a batch are rounded up to it, as in evaluation

# A file; (3, height, width) or (height, width, 3) uint8 RGB; or a Pillow image.
AnyImage = str | Path | Tensor | np.ndarray | Image.Image


def load(
    run: str | Path, *, checkpoint: str = "best", device: str | torch.device | None = None
) -> TrainedDetector:
    """The detector that `rankdet train` has left in the folder `run`.

    checkpoint: "best", "last", or the name of one. device: None means a GPU where there is one.
    CheckpointError if the folder is not a run or its files are damaged.
    """
    folder = Path(run)
    record = read_run(folder)
    chosen = build.device(None if device is None else str(device))
    stored = read_checkpoint(folder, checkpoint)
    detector = trained_detector(record, stored, chosen)
    thresholds, notes = read_thresholds(folder, stored.path.name)
    return TrainedDetector(
        detector=detector.eval().requires_grad_(False),
        postprocess=build.postprocess(record.config, record.activation),
        classes=record.classes,
        category_ids=record.category_ids,
        thresholds=thresholds,
        activation=record.activation,
        config=record.config,
        device=chosen,
        checkpoint=stored.path,
        notes=notes,
    )


@dataclass(frozen=True, eq=False)
class TrainedDetector:
    """A detector with all that prediction needs. Made by `load`.

    thresholds: for each class by name the score with the best F1 on the validation data, None for
    a class without one; empty if the run was never evaluated. activation: "sigmoid" or "softmax".
    config: the run's settings. detector, postprocess: the network, and what makes detections of its
    outputs. category_ids: the data set's own numbers of the classes. notes: what is to be known
    about the thresholds.
    """

    detector: nn.Module
    postprocess: Postprocess
    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    thresholds: Mapping[str, float | None]
    activation: str
    config: Config
    device: torch.device
    checkpoint: Path
    notes: tuple[str, ...] = ()

    def predict(
        self,
        images: AnyImage | Sequence[AnyImage],
        threshold: float | None = None,
        *,
        batch_size: int | None = None,
    ) -> list[Detections]:
        """What is found in each image: boxes in its own pixels, best first, on the CPU.

        images: one or many: files, uint8 RGB tensors (3, height, width) or arrays (height, width,
        3), or Pillow images; their sizes may differ. They are resized as for the evaluation.
        threshold: the lowest score that counts, for all classes; 0 keeps everything. None: for each
        class its own, see `class_thresholds`. batch_size: None means that of the evaluation.
        A file that cannot be decoded is a DataError.
        """
        if threshold is not None and not 0 <= threshold <= 1:
            raise ValueError(f"threshold: expected None or a number from 0 to 1, got {threshold!r}")
        given = _as_list(images)
        lowest = torch.tensor(self.class_thresholds(threshold), dtype=torch.float64)
        step = self.config.evaluation.batch_size if batch_size is None else batch_size
        if step < 1:
            raise ValueError(f"batch_size: expected at least 1, got {step}")
        found: list[Detections] = []
        for start in range(0, len(given), step):
            chunk = given[start : start + step]
            pixels = [to_tensor(image, self.config.data.max_pixels) for image in chunk]
            names = [_name(image, start + number) for number, image in enumerate(chunk)]
            found += [
                detections.select(detections.scores.double() >= lowest[detections.labels])
                for detections in self._detect(pixels, names)
            ]
        return found

    def class_thresholds(self, threshold: float | None = None) -> tuple[float, ...]:
        """The lowest score that counts for each class; see `predict`.

        A class without a threshold of its own (no object of it in the validation data, or none
        found) has the median of the others: losses of ours rank all classes together, so that
        their scores can be compared. A run that was never evaluated has the score_threshold of
        its evaluation settings for all: expect many false detections.
        """
        if threshold is not None:
            return (threshold,) * len(self.classes)
        own = [self.thresholds.get(name) for name in self.classes]
        return usual_thresholds(own, self.config.evaluation.score_threshold)

    def _detect(self, pixels: list[Tensor], names: list[str]) -> list[Detections]:
        """The detections in images (3, height, width), which fit into one batch."""
        views = [
            View(_OneBatch(_batch(pixels, names, transform)), is_flipped)
            for transform, is_flipped in build.evaluation_transforms(self.config.evaluation)
        ]
        detected = detect(
            self.detector,
            self.postprocess,
            views,
            lambda index: _size(pixels[index]),
            device=self.device,
            channels_last=build.is_channels_last(self.config.training, self.device),
        )
        assert detected is not None  # nothing stops it
        return detected.detections


@dataclass(frozen=True)
class _OneBatch:
    """A loader of one batch."""

    batch: Batch

    def epoch(self, epoch: int) -> Iterator[Batch]:
        yield self.batch


def _batch(pixels: Sequence[Tensor], names: Sequence[str], transform: Transform) -> Batch:
    """The images as a view shows them to the detector."""
    results = [
        transform(image, _nothing_in(image), SampleKey(0, 0, index))
        for index, image in enumerate(pixels)
    ]
    resized = [image for image, _ in results]
    return Batch(
        images=pad_images(resized, None, _MULTIPLE, IMAGENET_MEAN),
        targets=[target for _, target in results],
        sizes=torch.tensor([_size(image) for image in resized], dtype=torch.int64),
        indices=torch.arange(len(resized)),
        names=tuple(names),
    )


def _nothing_in(image: Tensor) -> Target:
    """The target of an image about which nothing is known."""
    return Target(
        boxes=torch.zeros(0, 4),
        labels=torch.zeros(0, dtype=torch.int64),
        is_ignored=torch.zeros(0, dtype=torch.bool),
        areas=torch.zeros(0),
        image_id=0,
        size=_size(image),
    )


def _size(image: Tensor) -> tuple[int, int]:
    return image.shape[1], image.shape[2]


def read_thresholds(run: Path, checkpoint: str) -> tuple[dict[str, float | None], tuple[str, ...]]:
    """The stored threshold of each class by its name, and notes; empty without an evaluation.

    checkpoint: the name of the one that they are wanted for.
    """
    file = run / RESULTS_FILE
    if not file.exists():
        note = (
            "The run was never evaluated, so that no class has a threshold: expect many false "
            f"detections. Find thresholds with `rankdet evaluate {run}`, or give one."
        )
        return {}, (note,)
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        thresholds = {
            str(name): None if value is None else float(value)
            for name, value in content["thresholds"].items()
        }
        if not all(value is None or 0 <= value <= 1 for value in thresholds.values()):
            raise ValueError("a score is from 0 to 1")
        evaluated = str(content["checkpoint"]["name"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file}: the thresholds of the classes cannot be read ({type(error).__name__}). "
            f"Evaluate again: `rankdet evaluate {run} --force`."
        ) from error
    if all(value is None for value in thresholds.values()):
        note = (
            "The evaluation has found none of the objects, or there were none, so that no class "
            "has a threshold: expect many false detections. Give one."
        )
        return thresholds, (note,)
    if evaluated == checkpoint:
        return thresholds, ()
    note = f"The thresholds were found with {evaluated}, and the weights are those of {checkpoint}."
    return thresholds, (note,)


def to_tensor(image: AnyImage, max_pixels: int = image_files.MAX_PIXELS) -> Tensor:
    """(3, height, width) uint8 RGB of whatever a user gives for an image; see `AnyImage`.

    >>> to_tensor(np.zeros((4, 6, 3), dtype=np.uint8)).shape
    torch.Size([3, 4, 6])
    """
    if isinstance(image, str | Path):
        image = image_files.decode(Path(image), max_pixels)
    elif isinstance(image, Image.Image):
        image = image_files.pixels_of(image)
    if isinstance(image, np.ndarray):
        _check_pixels(image, image.dtype == np.uint8, image.shape[2:], "(height, width, 3)")
        return torch.from_numpy(np.array(image, order="C")).permute(2, 0, 1).contiguous()
    if not isinstance(image, Tensor):
        raise ValueError(
            "images: expected files, uint8 tensors or arrays, or Pillow images, got "
            f"{type(image).__name__}"
        )
    _check_pixels(image, image.dtype == torch.uint8, image.shape[:1], "(3, height, width)")
    return image.cpu()


def _check_pixels(
    image: Tensor | np.ndarray, is_uint8: bool, channels: Sequence[int], shape: str
) -> None:
    if is_uint8 and image.ndim == 3 and tuple(channels) == (3,) and 0 not in image.shape:
        return
    kind = "an array" if isinstance(image, np.ndarray) else "a tensor"
    raise ValueError(
        f"images: expected {kind} {shape} of uint8, in the order red, green, blue, got "
        f"{tuple(image.shape)} of {image.dtype}"
    )


def _as_list(images: AnyImage | Sequence[AnyImage]) -> list[AnyImage]:
    """One image is a list of one."""
    if isinstance(images, str | Path | Image.Image):
        return [images]
    if isinstance(images, Tensor | np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    return list(images)


def _name(image: AnyImage, number: int) -> str:
    """What messages call an image."""
    return str(image) if isinstance(image, str | Path) else f"image {number}"
