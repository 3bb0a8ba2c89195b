"""What prediction would show in some of the images that a training was judged on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rankdet.experiments.experiment import Request

if TYPE_CHECKING:
    import numpy as np

    from rankdet.structures import Detections, Target

_FEWEST_OBJECTS = 2  # in an image that is shown


@dataclass(frozen=True)
class ShownImage:
    """pixels: (height, width, 3) uint8. detections: from the usual threshold of each class on."""

    name: str
    pixels: np.ndarray
    detections: Detections
    target: Target
    classes: Sequence[str]


def shown_images(
    run: Path, thresholds: Sequence[float | None], num_images: int, request: Request
) -> Iterator[ShownImage]:
    """Images with several objects, evenly spaced over the split.

    thresholds: of each class, as results.json has them.
    """
    import numpy as np

    from rankdet import build
    from rankdet.data.chosen import ChosenImages
    from rankdet.metrics.thresholds import usual_thresholds
    from rankdet.workflows.evaluate import detect_dataset
    from rankdet.workflows.evaluation_data import choose_data, open_data
    from rankdet.workflows.examples import evenly_spaced
    from rankdet.workflows.run import read_checkpoint, read_run, trained_detector

    record = read_run(run)
    choice = choose_data(record, None, None, lambda config: config)
    dataset = open_data(choice, record)
    counts = [int((~dataset.target(index).is_ignored).sum()) for index in range(len(dataset))]
    images = evenly_spaced(np.flatnonzero(np.array(counts) >= _FEWEST_OBJECTS), num_images)
    few = ChosenImages(dataset, images.tolist())
    device = build.device(request.device)
    found = detect_dataset(
        trained_detector(record, read_checkpoint(run, "last"), device),
        few,
        choice.config,
        activation=record.activation,
        device=device,
    )
    assert found is not None  # nobody stops it
    limits = usual_thresholds(thresholds, choice.config.evaluation.score_threshold)
    for number, detections in enumerate(found.detections):
        lowest = detections.scores.new_tensor(
            [limits[label] for label in detections.labels.tolist()]
        )
        yield ShownImage(
            few.name(number),
            few.image(number).permute(1, 2, 0).contiguous().numpy(),
            detections.select((detections.scores >= lowest).nonzero()[:, 0]),
            few.target(number),
            record.classes,
        )
