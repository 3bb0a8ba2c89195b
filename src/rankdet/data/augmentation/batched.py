"""Augmentation of whole batches, where the pixels are: the same as `transforms`, but fast.

Colours are changed with one factor per image. Expansion, crop, flip and resize together map each
pixel of the result to a place of the source along each axis on its own; the result is read from
there, in two passes, with the weights that torch's `interpolate` uses. Boxes are few and are moved
on the CPU, so that no step waits for the device.

Axes: B images, N objects of all images, H and W of the padded images, T pixels of the result
along one axis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankdet.data.augmentation.packed import PackedTargets, PaddedImages, to_device, unpack_targets
from rankdet.data.augmentation.parameters import (
    MIN_SIDE,
    JitterParameters,
    JitterSettings,
    SSDParameters,
    SSDSettings,
    check_pixels,
    sample_flip,
    sample_jitter,
    sample_ssd,
)
from rankdet.data.augmentation.transforms import Resize, ResizeFixed
from rankdet.data.randomness import SampleKey
from rankdet.structures import IMAGENET_MEAN, Target


@dataclass(frozen=True)
class BatchedSSDAugmentation:
    """`transforms.SSDAugmentation` for a batch: (B, 3, size, size) images and their targets.

    It makes no image smaller beforehand: `ImageStore` has done so.
    """

    size: int = 512
    settings: SSDSettings = field(default_factory=SSDSettings)

    def __post_init__(self) -> None:
        check_pixels(size=self.size)

    def __call__(
        self, images: PaddedImages, targets: PackedTargets, keys: Sequence[SampleKey]
    ) -> tuple[Tensor, list[Target]]:
        parameters = sample_ssd(keys, targets, self.settings)
        return augment_batch(images, targets, parameters, self.size, self.settings.min_side)


@dataclass(frozen=True)
class BatchedFlipScaleJitter:
    """`transforms.FlipScaleJitter` for a batch: padded to the largest of its images.

    Height and width of the batch are rounded up to a multiple.
    """

    multiple: int = 32
    settings: JitterSettings = field(default_factory=JitterSettings)

    def __post_init__(self) -> None:
        check_pixels(multiple=self.multiple)

    def __call__(
        self, images: PaddedImages, targets: PackedTargets, keys: Sequence[SampleKey]
    ) -> tuple[Tensor, list[Target]]:
        parameters = sample_jitter(keys, targets, self.settings)
        return jitter_batch(images, targets, parameters, self.multiple, self.settings.min_side)


@dataclass(frozen=True)
class BatchedFlipResize:
    """`transforms.FlipResize` for a batch: (B, 3, size, size) images and their targets."""

    size: int = 512

    def __post_init__(self) -> None:
        check_pixels(size=self.size)

    def __call__(
        self, images: PaddedImages, targets: PackedTargets, keys: Sequence[SampleKey]
    ) -> tuple[Tensor, list[Target]]:
        return jitter_batch(images, targets, sample_flip(keys, self.size))


@dataclass(frozen=True)
class BatchedResize:
    """`transforms.ResizeFixed` or `ResizeShorter` for a batch, mirrored if that one mirrors.

    Images of different sizes are padded to the largest, and this is rounded up to a multiple.
    """

    resize: Resize
    multiple: int = 32

    def __post_init__(self) -> None:
        check_pixels(multiple=self.multiple)

    def __call__(
        self, images: PaddedImages, targets: PackedTargets, keys: Sequence[SampleKey]
    ) -> tuple[Tensor, list[Target]]:
        sizes = [self.resize.new_size((height, width)) for height, width in images.sizes.tolist()]
        parameters = JitterParameters(
            torch.tensor(sizes, dtype=torch.int64),
            is_flipped=torch.full((len(sizes),), self.resize.is_flipped),
        )
        multiple = 1 if isinstance(self.resize, ResizeFixed) else self.multiple
        return jitter_batch(images, targets, parameters, multiple)


def augment_batch(
    images: PaddedImages,
    targets: PackedTargets,
    parameters: SSDParameters,
    size: int,
    min_side: float = MIN_SIDE,
) -> tuple[Tensor, list[Target]]:
    """(B, 3, size, size) float32 in 0..1 and B targets, on the device of the images."""
    _check_sizes(images, targets)
    device = images.pixels.device
    pixels = images.pixels.to(torch.float32).mul_(1 / 255)
    pixels = adjust_colours(pixels, parameters)
    windows = parameters.crops.view(-1, 2, 2).flip(2)  # (B, 2, 2): first and last corner, y and x
    taps = axis_taps(
        source_sizes=images.sizes,
        window_starts=windows[:, 0] - parameters.offsets,
        window_sizes=windows[:, 1] - windows[:, 0],
        new_sizes=torch.full_like(images.sizes, size),
        is_flipped=parameters.is_flipped,
        device=device,
    )
    result = resample(pixels, *taps)
    moved = move_boxes(targets, parameters, size, min_side)
    return result, unpack_targets(moved, device)


def jitter_batch(
    images: PaddedImages,
    targets: PackedTargets,
    parameters: JitterParameters,
    multiple: int = 1,
    min_side: float = MIN_SIDE,
) -> tuple[Tensor, list[Target]]:
    """(B, 3, H', W') float32 in 0..1 and B targets, on the device of the images.

    Each image stands in the upper left, the mean colour around it; H' and W' are those of the
    largest image, rounded up to a multiple.
    """
    _check_sizes(images, targets)
    device = images.pixels.device
    taps = axis_taps(
        source_sizes=images.sizes,
        window_starts=torch.zeros_like(images.sizes),
        window_sizes=images.sizes,
        new_sizes=parameters.sizes,
        is_flipped=parameters.is_flipped,
        multiple=multiple,
        device=device,
    )
    result = resample(images.pixels.to(torch.float32).mul_(1 / 255), *taps)
    flipped = _flipped(targets, parameters.is_flipped)
    return result, unpack_targets(_resized(flipped, parameters.sizes, min_side), device)


def _check_sizes(images: PaddedImages, targets: PackedTargets) -> None:
    if not torch.equal(images.sizes, targets.sizes):
        raise ValueError(
            f"expected targets of images of the sizes {images.sizes.tolist()}, got"
            f" {targets.sizes.tolist()}"
        )


# --- colours


def adjust_colours(images: Tensor, parameters: SSDParameters) -> Tensor:
    """(B, 3, H, W) float32 images in 0..1 with their colours changed; overwrites its input."""
    before = torch.where(parameters.is_contrast_first, parameters.contrast, 1.0)
    after = torch.where(parameters.is_contrast_first, 1.0, parameters.contrast)
    scalars = (parameters.brightness, before, parameters.saturation, parameters.hue, after)
    columns = torch.cat([torch.stack(scalars, dim=1), parameters.lighting], dim=1)
    factors = to_device(columns, images.device)[:, :, None, None]
    brightness, before, saturation, hue, after = factors[:, :5, None].unbind(dim=1)
    images = images.add_(brightness).clamp_(0, 1)
    images = images.mul_(before).clamp_(0, 1)
    images = blend_with_grey(images, saturation)
    images = shift_hue(images, hue)
    images = images.mul_(after).clamp_(0, 1)
    return images.add_(factors[:, 5:]).clamp_(0, 1)


def blend_with_grey(images: Tensor, saturation: Tensor) -> Tensor:
    """(B, 3, H, W) images, saturation * image + (1 - saturation) * its grey; overwrites its input.

    saturation: (B, 1, 1, 1).
    """
    red, green, blue = images.split(1, dim=1)
    grey = (0.2989 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)
    return images.mul_(saturation).add_(grey.mul_(1 - saturation)).clamp_(0, 1)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """(B, 3, H, W) images in 0..1 with the hue turned; turns: (B, 1, 1, 1) in -0.5..0.5.

    With the largest and the smallest of R, G, B, a colour is its hue (in sixths of a turn: red 0,
    green 2, blue 4), and a channel n sixths ahead of red is
    largest - (largest - smallest) * clamp(min(k, 4 - k), 0, 1), where k = (hue + n) mod 6.
    """
    red, green, blue = images.split(1, dim=1)
    smallest, largest = torch.aminmax(images, dim=1, keepdim=True)
    chroma = largest - smallest
    scale = torch.where(chroma > 0, chroma, 1.0).reciprocal_()
    hue = torch.where(
        largest == red,
        (green - blue) * scale,
        torch.where(largest == green, (blue - red) * scale + 2, (red - green) * scale + 4),
    )
    ahead = torch.arange(5, 0, -2, device=images.device).view(1, 3, 1, 1)
    k = (hue.add_(6 * turns) + ahead).remainder_(6)
    return largest - torch.minimum(k, 4 - k).clamp_(0, 1).mul_(chroma)


# --- geometry


@dataclass(frozen=True)
class Taps:
    """Along one axis, the two source pixels that make a pixel of the result.

    indices (2, B, T) int64 and weights (2, B, T) float32: a source pixel outside of the image has
    weight 0 and some index inside.
    """

    indices: Tensor
    weights: Tensor


def axis_taps(
    *,
    source_sizes: Tensor,
    window_starts: Tensor,
    window_sizes: Tensor,
    new_sizes: Tensor,
    is_flipped: Tensor,
    device: torch.device,
    multiple: int = 1,
) -> tuple[Taps, Taps]:
    """The taps of rows and columns of a window of each image, resized and perhaps flipped.

    All (B, 2) int64 on the CPU, (height, width); windows in pixels of the image, over its edges if
    need be; is_flipped: (B,), of the columns. There are as many taps as the largest new size has
    pixels, rounded up to a multiple; past an image's own new size the weights are 0.
    """
    flips = torch.stack([torch.zeros_like(is_flipped), is_flipped], dim=1)
    fields = torch.stack([source_sizes, window_starts, window_sizes, new_sizes, flips.long()])
    num_rows, num_columns = (-(-new_sizes.amax(dim=0) // multiple) * multiple).tolist()
    rows, columns = to_device(fields, device)[..., None].unbind(dim=2)
    return _taps(rows, num_rows), _taps(columns, num_columns)


def _taps(fields: Tensor, num_taps: int) -> Taps:
    """The taps of one axis; fields: (5, B, 1). Arithmetic of `interpolate`, align_corners=False.

    It must be float32, as there: for a window of 2,000 pixels a better place would be another one
    by 1e-4 pixels.
    """
    source_size, start, size, new_size, flip = fields.unbind()
    number = torch.arange(num_taps, device=size.device)
    scale = size.float() / new_size.float()
    place = scale * (number.float() + 0.5) - 0.5
    lower = torch.minimum(place.long(), size - 1)  # of a place before the first pixel: 0
    upper = torch.minimum(lower + 1, size - 1)
    fraction = (place - lower).clamp_(0, 1)
    window_indices = torch.stack([lower, upper])
    window_indices = torch.where(flip > 0, size - 1 - window_indices, window_indices)
    indices = window_indices + start
    is_inside = (indices >= 0) & (indices < source_size) & (number < new_size)
    weights = torch.stack([1 - fraction, fraction]) * is_inside
    return Taps(indices.clamp_(min=0).minimum(source_size - 1), weights)


def resample(images: Tensor, rows: Taps, columns: Taps) -> Tensor:
    """(B, 3, T, T') in 0..1 from (B, 3, H, W): rows, then columns; overwrites its input.

    Outside of an image is the mean colour: 0, while the mean is taken away.
    """
    mean = to_device(torch.tensor(IMAGENET_MEAN), images.device).view(1, 3, 1, 1)
    result = _gather_columns(_gather_rows(images.sub_(mean), rows), columns)
    return result.add_(mean).clamp_(0, 1)


def _gather_rows(images: Tensor, taps: Taps) -> Tensor:
    shape = (-1, images.shape[1], -1, images.shape[3])
    lower, upper = taps.indices[:, :, None, :, None].unbind()
    lower_weight, upper_weight = taps.weights[:, :, None, :, None].unbind()
    result = images.gather(2, lower.expand(shape)).mul_(lower_weight)
    return result.addcmul_(images.gather(2, upper.expand(shape)), upper_weight)


def _gather_columns(images: Tensor, taps: Taps) -> Tensor:
    shape = (-1, images.shape[1], images.shape[2], -1)
    lower, upper = taps.indices[:, :, None, None, :].unbind()
    lower_weight, upper_weight = taps.weights[:, :, None, None, :].unbind()
    result = images.gather(3, lower.expand(shape)).mul_(lower_weight)
    return result.addcmul_(images.gather(3, upper.expand(shape)), upper_weight)


# --- boxes


def move_boxes(
    targets: PackedTargets, parameters: SSDParameters, size: int, min_side: float
) -> PackedTargets:
    """The targets after expansion, crop, flip and resize; each step drops what is too small."""
    offsets = _xyxy(parameters.offsets).float()[targets.rows]
    expanded = _changed(targets, targets.boxes + offsets, parameters.canvases, min_side)
    cropped = _cropped(expanded, parameters.crops, min_side)
    flipped = _flipped(cropped, parameters.is_flipped)
    return _resized(flipped, torch.full_like(targets.sizes, size), min_side)


def _cropped(targets: PackedTargets, windows: Tensor, min_side: float) -> PackedTargets:
    """Boxes with their centre in the window (B, 4) stay, clipped to it."""
    window = windows[targets.rows]
    centres = (targets.boxes[:, :2] + targets.boxes[:, 2:]) / 2
    is_inside = ((window[:, :2] < centres) & (centres < window[:, 2:])).all(dim=1)
    targets = targets.select(is_inside)
    window = window[is_inside].float()
    start, end = window[:, :2], window[:, 2:]
    boxes = (targets.boxes.view(-1, 2, 2) - start[:, None]).clamp_(min=0)
    boxes = boxes.minimum((end - start)[:, None]).view(-1, 4)
    visible = _sides(boxes).prod(dim=1) / _sides(targets.boxes).prod(dim=1)
    sizes = (windows[:, 2:] - windows[:, :2]).flip(1)
    targets = dataclasses.replace(targets, areas=targets.areas * visible)
    return _changed(targets, boxes, sizes, min_side)


def _flipped(targets: PackedTargets, is_flipped: Tensor) -> PackedTargets:
    x1, y1, x2, y2 = targets.boxes.unbind(dim=1)
    width = targets.sizes[targets.rows, 1]
    mirrored = torch.stack([width - x2, y1, width - x1, y2], dim=1)
    boxes = torch.where(is_flipped[targets.rows, None], mirrored, targets.boxes)
    return dataclasses.replace(targets, boxes=boxes)


def _resized(targets: PackedTargets, sizes: Tensor, min_side: float) -> PackedTargets:
    ratios = sizes.double() / targets.sizes.double()
    boxes = targets.boxes * _xyxy(ratios).float()[targets.rows]
    areas = targets.areas * ratios.prod(dim=1).float()[targets.rows]
    return _changed(dataclasses.replace(targets, areas=areas), boxes, sizes, min_side)


def _changed(
    targets: PackedTargets, boxes: Tensor, sizes: Tensor, min_side: float
) -> PackedTargets:
    """The targets with new boxes and image sizes, without the boxes that became too small."""
    targets = dataclasses.replace(targets, boxes=boxes, sizes=sizes)
    return targets.select((_sides(boxes) >= min_side).all(dim=1))


def _xyxy(height_width: Tensor) -> Tensor:
    """(B, 4) of (B, 2)."""
    return height_width.flip(1).repeat(1, 2)


def _sides(boxes: Tensor) -> Tensor:
    """(N, 2): width and height."""
    return boxes[:, 2:] - boxes[:, :2]
