"""Pretrained weights for a detector's backbone, from a file or by torchvision's name."""

from __future__ import annotations

import http.client
from pathlib import Path
from urllib.parse import urlparse

import torch
import torchvision
from torchvision.models import WeightsEnum

from rankdet.detectors.detector import Detector
from rankdet.detectors.weight_files import read_tensors
from rankdet.detectors.weight_fit import (
    backbone_name,
    check_fit,
    copy_tensors,
    detector_kind,
    fitting_settings,
    is_detector,
)
from rankdet.errors import WeightsError, message, shorten

__all__ = ["is_detector", "load_backbone", "read_tensors"]


def load_backbone(detector: Detector, source: Path | str) -> str:
    """Put pretrained weights into the body of the detector's backbone; says what was loaded.

    source: a file (see `read_tensors`) with the names of torchvision's network, with or without its
    classifier, which is left out; or a name of torchvision's weights for this backbone: "imagenet"
    (the best), "IMAGENET1K_V1", "ResNet50_Weights.IMAGENET1K_V2", ...: downloaded, or taken from
    torch's cache. Values are converted to the parameters' dtype.
    """
    body = detector.body.state_dict()
    path = _find(str(source), backbone_name(body))
    tensors = read_tensors(path)
    if is_detector(tensors):
        rule = f"is of a whole detector ({detector_kind(tensors).title}); expected a backbone"
        raise WeightsError(message(rule, file=str(path)))
    # The bodies of MobileNetV2 and VGG-16 are torchvision's `features` themselves.
    tensors = {
        name if name in body else name.removeprefix("features."): tensor
        for name, tensor in tensors.items()
    }
    check_fit(tensors, body, file=str(path), hint=fitting_settings(tensors, body))
    copy_tensors(tensors, body)
    return f"backbone {backbone_name(body)} from {path}"


def _find(source: str, backbone: str) -> Path:
    """The file that is meant; one that torchvision publishes is fetched."""
    published = _published_weights(backbone)
    if source in published:
        return _download(published[source])
    path = Path(source).expanduser()
    if not path.exists():
        names = ", ".join(name for name in published if "." not in name) or "there are none"
        rule = f"is neither a file nor a name of torchvision's weights for {backbone} ({names})"
        raise WeightsError(message(rule, field="weights", value=shorten(source)))
    return path


def _published_weights(backbone: str) -> dict[str, WeightsEnum]:
    """torchvision's weights for a backbone, by their short and long names."""
    if backbone not in torchvision.models.list_models(torchvision.models):
        return {}
    weights = torchvision.models.get_model_weights(backbone)
    names = {item.name: item for item in weights}
    return {"imagenet": weights.DEFAULT, **names, **{str(item): item for item in weights}}


def _download(weights: WeightsEnum) -> Path:
    """The file of published weights, from torch's cache or from the network."""
    path = Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(weights.url).path).name)
    if path.exists():
        return path
    hash_prefix = path.stem.rpartition("-")[2]  # torchvision names its files so
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(weights.url, str(path), hash_prefix)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        rule = f"cannot download {weights.url}: {str(error) or type(error).__name__}"
        hint = f"Put the file at {path}, or give a file that is here with --weights FILE."
        raise WeightsError(message(rule, field=str(weights), hint=hint)) from None
    return path
