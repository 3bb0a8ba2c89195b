"""Augmentation and resizing of one image with its target: the readable form.

Every transform is called as `transform(image, target, key)` with a uint8 (3, H, W) image on the CPU
and returns a float32 (3, h, w) image in 0..1 and its target. Randomness comes from the key alone.
Boxes that a geometric step left narrower or lower than `min_side` pixels are dropped after that
step; the areas of the others change with their boxes. `batched` does the same to whole batches.

Differs from the paper: colours are clamped to 0..1 after each step, saturation is blended with grey
as torchvision does it (not scaled in HSV), and resizing is always bilinear without antialiasing,
where the authors' code draws one of five interpolations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F

from rankdet.data.augmentation.packed import pack_targets
from rankdet.data.augmentation.parameters import (
    LONGEST,
    MIN_SIDE,
    JitterParameters,
    JitterSettings,
    SSDParameters,
    SSDSettings,
    check_pixels,
    resized_size,
    sample_flip,
    sample_jitter,
    sample_ssd,
)
from rankdet.data.randomness import SampleKey
from rankdet.structures import IMAGENET_MEAN, Target


@dataclass(frozen=True)
class SSDAugmentation:
    """The SSD-style chain of the paper: colours, expansion, crop, flip, resize to size x size.

    An image whose longer side passes `longest` is made smaller first: an expansion takes up to 16
    times the image's memory. The images of VOC and COCO are not touched by the default.
    """

    size: int = 512
    settings: SSDSettings = field(default_factory=SSDSettings)
    longest: int = LONGEST

    def __post_init__(self) -> None:
        check_pixels(size=self.size, longest=self.longest)

    def __call__(self, image: Tensor, target: Target, key: SampleKey) -> tuple[Tensor, Target]:
        image, target = shrink(image, target, self.longest, self.settings.min_side)
        parameters = sample_ssd([key], pack_targets([target]), self.settings)
        return augment_image(image, target, parameters, self.size, self.settings.min_side)


@dataclass(frozen=True)
class FlipScaleJitter:
    """The flip and the random scale (shorter side 480..800) of the two-stage experiments."""

    settings: JitterSettings = field(default_factory=JitterSettings)

    def __call__(self, image: Tensor, target: Target, key: SampleKey) -> tuple[Tensor, Target]:
        parameters = sample_jitter([key], pack_targets([target]), self.settings)
        return jitter_image(image, target, parameters, self.settings.min_side)


@dataclass(frozen=True)
class FlipResize:
    """The flip alone, for short trainings: mirrored or not, and stretched to size x size."""

    size: int = 512

    def __post_init__(self) -> None:
        check_pixels(size=self.size)

    def __call__(self, image: Tensor, target: Target, key: SampleKey) -> tuple[Tensor, Target]:
        return jitter_image(image, target, sample_flip([key], self.size))


@dataclass(frozen=True)
class ResizeShorter:
    """For tests: the shorter side as given, unless the longer one would pass `longest`.

    is_flipped: also mirrored, for detections that are merged with those of the plain image.
    """

    shorter: int = 600
    longest: int = 1000
    is_flipped: bool = False

    def __post_init__(self) -> None:
        check_pixels(shorter=self.shorter, longest=self.longest)

    def __call__(self, image: Tensor, target: Target, key: SampleKey) -> tuple[Tensor, Target]:
        result = resize(to_float(image, target), target, self.new_size(target.size), MIN_SIDE)
        return flip(*result) if self.is_flipped else result

    def new_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """What becomes of an image of this height and width."""
        return resized_size(size, self.shorter, self.longest)


@dataclass(frozen=True)
class ResizeFixed:
    """For tests: size x size, whatever the aspect was. is_flipped: also mirrored."""

    size: int = 512
    is_flipped: bool = False

    def __post_init__(self) -> None:
        check_pixels(size=self.size)

    def __call__(self, image: Tensor, target: Target, key: SampleKey) -> tuple[Tensor, Target]:
        result = resize(to_float(image, target), target, self.new_size(target.size), MIN_SIDE)
        return flip(*result) if self.is_flipped else result

    def new_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """What becomes of an image of this height and width."""
        return self.size, self.size


Resize = ResizeFixed | ResizeShorter


@dataclass(frozen=True)
class WithoutIgnored:
    """Another transform, given the target without its ignored objects: they become background."""

    transform: Callable[[Tensor, Target, SampleKey], tuple[Tensor, Target]]

    def __call__(self, image: Tensor, target: Target, key: SampleKey) -> tuple[Tensor, Target]:
        return self.transform(image, without_ignored(target), key)


def without_ignored(target: Target) -> Target:
    """The target without its ignored objects, as the paper's recipes train."""
    return target.select(~target.is_ignored)


def augment_image(
    image: Tensor,
    target: Target,
    parameters: SSDParameters,
    size: int,
    min_side: float = MIN_SIDE,
) -> tuple[Tensor, Target]:
    """The image and target after the SSD chain with these parameters, which are of one sample."""
    pixels = adjust_colours(to_float(image, target), parameters)
    height, width = parameters.canvases[0].tolist()
    top, left = parameters.offsets[0].tolist()
    pixels, target = expand(pixels, target, (height, width), (top, left), min_side)
    x1, y1, x2, y2 = parameters.crops[0].tolist()
    pixels, target = crop(pixels, target, (x1, y1, x2, y2), min_side)
    if parameters.is_flipped.item():
        pixels, target = flip(pixels, target)
    return resize(pixels, target, (size, size), min_side)


def jitter_image(
    image: Tensor, target: Target, parameters: JitterParameters, min_side: float = MIN_SIDE
) -> tuple[Tensor, Target]:
    """The image and target after flip and scaling with these parameters, of one sample."""
    pixels = to_float(image, target)
    if parameters.is_flipped.item():
        pixels, target = flip(pixels, target)
    height, width = parameters.sizes[0].tolist()
    return resize(pixels, target, (height, width), min_side)


def to_float(image: Tensor, target: Target) -> Tensor:
    """The image as float32 in 0..1; checks that it is what the target belongs to."""
    if image.dtype != torch.uint8 or image.shape != (3, *target.size):
        raise ValueError(
            f"expected a uint8 image of shape {(3, *target.size)}, got {image.dtype} of shape"
            f" {tuple(image.shape)}"
        )
    pixels: Tensor = F.to_dtype(image, torch.float32, scale=True)
    return pixels


def adjust_colours(image: Tensor, parameters: SSDParameters) -> Tensor:
    """The image (3, H, W) with brightness, contrast, saturation, hue and lighting changed."""
    contrast, hue = parameters.contrast.item(), parameters.hue.item()
    is_contrast_first = parameters.is_contrast_first.item()
    image = (image + parameters.brightness.item()).clamp_(0, 1)
    if is_contrast_first:
        image = F.adjust_brightness(image, contrast)  # torchvision's word for a factor
    image = F.adjust_saturation(image, parameters.saturation.item())
    if hue != 0:  # saves time: this is the dearest step
        image = F.adjust_hue(image, hue)
    if not is_contrast_first:
        image = F.adjust_brightness(image, contrast)
    return (image + parameters.lighting.view(3, 1, 1)).clamp_(0, 1)


def expand(
    image: Tensor,
    target: Target,
    canvas: tuple[int, int],
    offset: tuple[int, int],
    min_side: float,
) -> tuple[Tensor, Target]:
    """The image inside of a larger canvas (height, width) of the mean colour, at (top, left)."""
    (height, width), (top, left) = target.size, offset
    padding = [left, top, canvas[1] - width - left, canvas[0] - height - top]
    boxes = F.pad(_boxes(target), padding)
    image = F.pad(image, padding, fill=list(IMAGENET_MEAN))
    return image, _with_boxes(target, boxes, canvas, min_side)


def crop(
    image: Tensor, target: Target, window: tuple[int, int, int, int], min_side: float
) -> tuple[Tensor, Target]:
    """What lies in the window (xyxy); a box stays, clipped, if its centre lies inside."""
    left, top, right, bottom = window
    x, y = (target.boxes[:, :2] + target.boxes[:, 2:]).div(2).unbind(dim=1)
    target = target.select((left < x) & (x < right) & (top < y) & (y < bottom))
    place = (top, left, bottom - top, right - left)
    boxes = F.crop(_boxes(target), *place)
    visible = _sides(boxes).prod(dim=1) / _sides(target.boxes).prod(dim=1)
    target = dataclasses.replace(target, areas=target.areas * visible)
    return F.crop(image, *place), _with_boxes(target, boxes, place[2:], min_side)


def flip(image: Tensor, target: Target) -> tuple[Tensor, Target]:
    """Left and right exchanged. No box becomes smaller, so that none is dropped."""
    boxes = F.horizontal_flip(_boxes(target)).as_subclass(Tensor)
    return F.horizontal_flip(image), dataclasses.replace(target, boxes=boxes)


def resize(
    image: Tensor, target: Target, size: tuple[int, int], min_side: float
) -> tuple[Tensor, Target]:
    """The image stretched to (height, width)."""
    image = F.resize(image, list(size), antialias=False)
    # Interpolated values can pass 1 by a rounding error.
    return image.clamp_(0, 1), _resized_boxes(target, size, min_side)


def shrink(image: Tensor, target: Target, longest: int, min_side: float) -> tuple[Tensor, Target]:
    """The uint8 image, scaled down (pixels are averaged) to a longer side of `longest`."""
    if max(target.size) <= longest:
        return image, target
    size = resized_size(target.size, longest, longest)
    image = F.resize(image, list(size), antialias=True)
    return image, _resized_boxes(target, size, min_side)


def _boxes(target: Target) -> tv_tensors.BoundingBoxes:
    return tv_tensors.BoundingBoxes(
        target.boxes,
        format=tv_tensors.BoundingBoxFormat.XYXY,
        canvas_size=target.size,
    )


def _resized_boxes(target: Target, size: tuple[int, int], min_side: float) -> Target:
    boxes = F.resize(_boxes(target), list(size))
    scale = (size[0] / target.size[0]) * (size[1] / target.size[1])
    target = dataclasses.replace(target, areas=target.areas * scale)
    return _with_boxes(target, boxes, size, min_side)


def _sides(boxes: Tensor) -> Tensor:
    """(G, 2): width and height."""
    return boxes[:, 2:] - boxes[:, :2]


def _with_boxes(target: Target, boxes: Tensor, size: tuple[int, int], min_side: float) -> Target:
    """The target with its new boxes and size, without those that became too small."""
    boxes = boxes.as_subclass(Tensor)
    target = dataclasses.replace(target, boxes=boxes, size=size)
    return target.select((_sides(boxes) >= min_side).all(dim=1))
