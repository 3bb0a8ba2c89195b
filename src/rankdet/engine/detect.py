"""Every image of a data set through a detector: detections in the images' own pixels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import safetensors.torch
import torch
from torch import Tensor, nn

from rankdet.engine.distributed import ALONE, Processes
from rankdet.errors import TrainingError, listed
from rankdet.structures import Detections, Predictions, Target

_MOST_NAMES = 8  # files that a message names


class AnyBatch(Protocol):
    """B images with padding; see `rankdet.data.Batch`."""

    @property
    def images(self) -> Tensor: ...

    @property
    def targets(self) -> list[Target]: ...

    @property
    def sizes(self) -> Tensor: ...

    @property
    def indices(self) -> Tensor: ...

    @property
    def names(self) -> tuple[str, ...]: ...


class _Loader(Protocol):
    def epoch(self, epoch: int) -> Iterator[AnyBatch]: ...


class _Postprocess(Protocol):
    """Detections of each image in the pixels that the detector saw; see `rankdet.detectors`."""

    def __call__(self, stages: list[Predictions], sizes: Tensor) -> list[Detections]: ...

    def candidates(self, stages: list[Predictions], sizes: Tensor) -> list[Detections]: ...

    def suppress(self, detections: Detections) -> Detections: ...


@dataclass(frozen=True)
class View:
    """All images in one size, in the order of the data set; is_flipped: left and right exchanged.

    loader: gives the batches with `epoch(0)`, not shuffled. Several processes take them in turn;
    the last ones may be empty.
    """

    loader: _Loader
    is_flipped: bool = False


@dataclass(frozen=True)
class Detected:
    """The detections of every image, in the order of the data set, on the CPU, and their time.

    seconds: from the moment that the first batch is loaded (worker processes start before) to the
    last detection; waiting for images included, but not `on_outputs` of `detect`.
    network_seconds: the part of it without waiting, which is copying to the device, network and
    postprocessing.
    """

    detections: list[Detections]
    seconds: float
    network_seconds: float

    @property
    def images_per_second(self) -> float:
        """Loading, network and postprocessing together. 0 without images."""
        return len(self.detections) / self.seconds if self.seconds else 0.0

    @property
    def network_images_per_second(self) -> float:
        """Without the time that the network waited for images. 0 without images."""
        return len(self.detections) / self.network_seconds if self.network_seconds else 0.0


def detect(
    detector: nn.Module,
    postprocess: _Postprocess,
    views: Sequence[View],
    original_size: Callable[[int], tuple[int, int]],
    *,
    device: torch.device | str,
    channels_last: bool = False,
    on_batch: Callable[[int], None] | None = None,
    on_outputs: Callable[[list[Predictions], AnyBatch], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    processes: Processes = ALONE,
) -> Detected | None:
    """The detections of all images of the views; None if `should_stop` said so between batches.

    With several views (sizes, and each mirrored: the "+" rows of the paper), the candidates of all
    of them are put together before the class-wise suppression. original_size(index): the (height,
    width) of an image of the data set. on_batch is told how many images were done; on_outputs gets
    what the detector said about each batch of the first view. The detector comes back in the mode
    that it had.

    With several processes, each looks at its own batches. Process 0 gets all detections, the others
    an empty list; what one raises, all raise, and `should_stop` must say the same to all.
    """
    if not views:
        raise ValueError("expected at least one view, got none")
    found: dict[int, Detections] = {}
    start = None
    network_seconds = aside = 0.0
    run = _Network(detector, torch.device(device), channels_last)
    # Not inference_mode: anchors that a detector keeps for later could then not be trained with.
    with _evaluation_mode(detector), _as_written(detector), torch.no_grad():
        rounds = zip(*(view.loader.epoch(0) for view in views), strict=True)
        while True:
            with processes.together():
                batches = next(rounds, None)
            if batches is None:  # for all processes at the same time
                break
            if should_stop is not None and should_stop():
                return None
            now = time.perf_counter()
            start = now if start is None else start
            with processes.together():
                indices = _common_indices(batches)
                sizes = [original_size(index) for index in indices]
                if not indices:  # the other processes have the last batches
                    continue
                stages = run(batches[0])
                results = _results(run, postprocess, views, batches, sizes, stages)
                for index, detections in zip(indices, results, strict=True):
                    assert index not in found, f"image {index} came twice"
                    found[index] = detections
                done = time.perf_counter()
                network_seconds += done - now
                if on_outputs is not None:
                    on_outputs(stages, batches[0])
                    run.wait()
                    aside += time.perf_counter() - done
                del stages  # or it would lie in memory beside those of the next batch
            if on_batch is not None:
                on_batch(len(indices))
    found = _of_all(found, processes)
    seconds = 0.0 if start is None else time.perf_counter() - start - aside
    assert set(found) == set(range(len(found))), "an image is missing"
    return Detected([found[index] for index in range(len(found))], seconds, network_seconds)


def to_original(
    detections: Detections,
    seen: tuple[int, int],
    original: tuple[int, int],
    is_flipped: bool = False,
) -> Detections:
    """The detections in the pixels of the original image, clipped to it.

    seen: (height, width) that the boxes belong to, without padding; original: of the image itself.

    >>> found = Detections(torch.tensor([[0.0, 5, 10, 20]]), torch.ones(1), torch.zeros(1).long())
    >>> to_original(found, (20, 40), (40, 60)).boxes
    tensor([[ 0., 10., 15., 40.]])
    >>> to_original(found, (20, 40), (40, 60), is_flipped=True).boxes
    tensor([[45., 10., 60., 40.]])
    """
    (seen_height, seen_width), (height, width) = seen, original
    x1, y1, x2, y2 = detections.boxes.float().unbind(dim=1)
    if is_flipped:
        x1, x2 = seen_width - x2, seen_width - x1
    across, down = width / seen_width, height / seen_height
    x1, x2 = (x1 * across).clamp(0, width), (x2 * across).clamp(0, width)
    y1, y2 = (y1 * down).clamp(0, height), (y2 * down).clamp(0, height)
    boxes = torch.stack([x1, y1, x2, y2], dim=1)
    return Detections(boxes, detections.scores, detections.labels)


def _of_all(found: dict[int, Detections], processes: Processes) -> dict[int, Detections]:
    """What all processes have found, by image; for process 0 alone."""
    if processes.is_alone:
        return found
    of_all: dict[int, Detections] = {}
    for content in processes.gathered(_packed(found)):
        of_all |= _unpacked(content)
    return of_all


def _packed(found: dict[int, Detections]) -> bytes:
    none = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    parts = [none, *found.values()]  # not empty, and with the right types
    return safetensors.torch.save(
        {
            "images": torch.tensor(list(found), dtype=torch.int64),
            "counts": torch.tensor([len(part) for part in found.values()], dtype=torch.int64),
            "boxes": torch.cat([part.boxes for part in parts]),
            "scores": torch.cat([part.scores for part in parts]),
            "labels": torch.cat([part.labels for part in parts]),
        }
    )


def _unpacked(content: bytes) -> dict[int, Detections]:
    tensors = safetensors.torch.load(content)
    counts = tensors["counts"].tolist()
    columns = (tensors[name].split(counts) for name in ("boxes", "scores", "labels"))
    images = tensors["images"].tolist()
    return {image: Detections(*parts) for image, *parts in zip(images, *columns, strict=True)}


@dataclass(frozen=True)
class _Network:
    """The detector with all that its calls have in common."""

    detector: nn.Module
    device: torch.device
    channels_last: bool

    def __call__(self, batch: AnyBatch) -> list[Predictions]:
        layout = torch.channels_last if self.channels_last else torch.preserve_format
        images = batch.images.to(self.device, non_blocking=True, memory_format=layout)
        # Without autocast: in bfloat16 many scores would be equal, and AP is about their order.
        stages: list[Predictions] = self.detector(images, sizes=batch.sizes)
        _check_finite(stages, batch.names)
        return stages

    def wait(self) -> None:
        """Until the device has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _results(
    run: _Network,
    postprocess: _Postprocess,
    views: Sequence[View],
    batches: Sequence[AnyBatch],
    sizes: list[tuple[int, int]],
    first: list[Predictions],
) -> list[Detections]:
    """The detections of each image of a batch, which comes once for each view, on the CPU.

    first: what the detector said in the first view.
    """
    if len(views) == 1:
        found = _on_cpu(postprocess(first, batches[0].sizes))
        return _all_to_original(found, batches[0], sizes, views[0].is_flipped)
    of_views = [
        _all_to_original(
            postprocess.candidates(run(batch) if number else first, batch.sizes),
            batch,
            sizes,
            view.is_flipped,
        )
        for number, (view, batch) in enumerate(zip(views, batches, strict=True))
    ]
    merged = map(_merged, zip(*of_views, strict=True))
    return _on_cpu([postprocess.suppress(of_image) for of_image in merged])


def _on_cpu(found: list[Detections]) -> list[Detections]:
    """The detections of each image on the CPU, by one copy: every copy waits for the device."""
    if not found:
        return []
    together = _merged(found)
    columns = (together.boxes, together.scores[:, None], together.labels[:, None])
    # float64 has every float32 and every label exactly.
    numbers = torch.cat([column.double() for column in columns], dim=1).cpu()
    return [
        Detections(part[:, :4].float(), part[:, 4].float(), part[:, 5].long())
        for part in numbers.split([len(detections) for detections in found])
    ]


def _all_to_original(
    found: list[Detections], batch: AnyBatch, sizes: list[tuple[int, int]], is_flipped: bool
) -> list[Detections]:
    return [
        to_original(detections, (height, width), size, is_flipped)
        for detections, (height, width), size in zip(
            found, batch.sizes.tolist(), sizes, strict=True
        )
    ]


def _merged(parts: Sequence[Detections]) -> Detections:
    """All of the detections, one part after the other."""
    return Detections(
        torch.cat([detections.boxes for detections in parts]),
        torch.cat([detections.scores for detections in parts]),
        torch.cat([detections.labels for detections in parts]),
    )


def _common_indices(batches: Sequence[AnyBatch]) -> list[int]:
    """The images of a batch, which must be the same in all views."""
    indices: list[list[int]] = [batch.indices.tolist() for batch in batches]
    if any(others != indices[0] for others in indices):
        raise ValueError(f"expected the same images in every view, got {indices}")
    return indices[0]


def _check_finite(stages: list[Predictions], names: Sequence[str]) -> None:
    """A TrainingError that names the images for which the network gave no numbers.

    A score that is NaN is below every threshold: without this check nothing would be found, and
    nothing would be said.
    """
    is_finite = torch.stack(
        [
            torch.isfinite(values).flatten(1).all(dim=1)
            for stage in stages
            for values in (stage.logits, stage.deltas)
        ]
    ).all(dim=0)
    affected = [
        name for name, is_good in zip(names, is_finite.tolist(), strict=True) if not is_good
    ]
    if not affected:
        return
    raise TrainingError(
        f"{listed(affected, _MOST_NAMES)}: the detector's outputs are not finite (NaN or "
        "infinite). Its weights are damaged: take another checkpoint."
    )


@contextmanager
def _as_written(detector: nn.Module) -> Iterator[None]:
    """Without compiling, where the detector was compiled for training.

    It would be compiled again for float32, and again for a smaller last batch: minutes for seconds
    of work. And the numbers are those of `rankdet evaluate`, which compiles nothing.
    """
    if all(module._compiled_call_impl is None for module in detector.modules()):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def _evaluation_mode(detector: nn.Module) -> Iterator[None]:
    """The detector in evaluation mode; afterwards each part has the mode that it had before."""
    modes = [(module, module.training) for module in detector.modules()]
    detector.eval()
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training
