"""A training step of torchvision's own RetinaNet, as its reference script does it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone
from torchvision.models.detection.retinanet import RetinaNet
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

from rankdet.data.loading.collate import Batch

# What differs between the peer's step and ours with its anchors, beside the class loss; recorded.
DIFFERENCES = (
    "torchvision normalises and collects the images one by one; they are not resized",
    "torchvision matches and takes its losses image by image, and its box loss is plain L1",
    "torchvision's frozen norms compute in float32 under autocast, ours in bfloat16",
    "our SGD is fused; the script's is torch's default, one kernel for each of its operations",
    "our step checks losses, scores and gradient; the script's logging is left out",
    "both learning rates are 1e-12, so that random weights stay as they are",
)


def make_torchvision(
    backbone: str,
    num_classes: int,
    device: torch.device,
    *,
    side: int,
    is_channels_last: bool,
    is_compiled: bool,
) -> RetinaNet:
    """`retinanet_resnet50_fpn` as with pretrained weights: frozen norms, three stages trained.

    Asked for without weights, that function would make trainable norms and freeze nothing.
    Images of side x side pixels are not resized.
    """
    pyramid = resnet_fpn_backbone(
        backbone_name=backbone,
        weights=None,
        norm_layer=FrozenBatchNorm2d,
        trainable_layers=3,
        returned_layers=[2, 3, 4],
        extra_blocks=LastLevelP6P7(256, 256),
    )
    # Without the last setting, images would go through an interpolation to their own size.
    model = RetinaNet(pyramid, num_classes, min_size=side, max_size=side, _skip_resize=True)
    model = model.to(device).train()
    if is_channels_last:
        model = model.to(memory_format=torch.channels_last)
        _make_channels_last(model)
    if is_compiled:
        model.backbone.compile()
        model.head.compile()
    return model


def _make_channels_last(model: RetinaNet) -> None:
    """Let the model's own batching give images of that layout."""
    batch_images = model.transform.batch_images

    def converted(images: list[Tensor], size_divisible: int = 32) -> Tensor:
        batched: Tensor = batch_images(images, size_divisible)
        return batched.contiguous(memory_format=torch.channels_last)

    model.transform.batch_images = converted


def torchvision_step(
    model: RetinaNet, batch: Batch, *, precision: torch.dtype | None
) -> Callable[[], None]:
    """A function that does one step, as `references/detection/engine.py` without its logging."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # Differs from the script in the learning rate, 0.02 there: with random weights the numbers
    # would soon not be finite. The work is the same.
    optimizer = torch.optim.SGD(parameters, lr=1e-12, momentum=0.9, weight_decay=1e-4)
    images = list(batch.images)
    targets = [{"boxes": target.boxes, "labels": target.labels} for target in batch.targets]
    device_type = batch.images.device.type

    def step() -> None:
        with torch.autocast(device_type, precision, enabled=precision is not None):
            losses = model(images, targets)
            total = sum(losses.values())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()

    return step
