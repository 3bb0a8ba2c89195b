"""The weights that a training starts from: none, a backbone's, or a whole detector's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankdet.config import DetectorConfig
from rankdet.detectors.class_mapping import load_detector
from rankdet.detectors.detector import Detector
from rankdet.detectors.weight_fit import detector_kind
from rankdet.detectors.weights import is_detector, load_backbone, read_tensors
from rankdet.workflows.run import is_run, read_checkpoint, read_run


def load_initial_weights(
    detector: Detector, config: DetectorConfig, classes: Sequence[str], activation: str
) -> str:
    """Load what `config.weights` names; gives a sentence that says what was loaded."""
    source = config.weights
    path = Path(source).expanduser()
    if source == "none":
        return "The weights are random. Pretrained ones (--weights) need far fewer images."
    if path.is_dir() and is_run(path):
        return _from_run(detector, path, classes, activation)
    if path.is_file():
        tensors = read_tensors(path)
        if is_detector(tensors):
            mapping = load_detector(
                detector,
                tensors,
                source_classes=None,  # torchvision's for COCO, if the file has as many
                classes=classes,
                activation=activation,
                source_activation=detector_kind(tensors).activation,
                file=source,
            )
            return f"{source}: {mapping.describe()}"
    return load_backbone(detector, source)


def _from_run(detector: Detector, path: Path, classes: Sequence[str], activation: str) -> str:
    record = read_run(path)
    mapping = load_detector(
        detector,
        read_checkpoint(path).weights,
        source_classes=record.classes,
        classes=classes,
        activation=activation,
        source_activation=record.activation,
        file=str(path),
    )
    return f"{path}: {mapping.describe()}"
