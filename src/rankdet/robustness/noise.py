"""Gaussian noise over the whole image."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

VARIANCE = 0.01  # of the paper's Gaussian-Noise images, for pixels in 0..1


def gaussian_noise(
    image: Tensor, random: np.random.Generator, variance: float = VARIANCE
) -> Tensor:
    """The image with N(0, variance) added to each value of each pixel, clipped to the range.

    image: (3, H, W) uint8 in 0..255 or float in 0..1; the result has the same type. The variance is
    that of values in 0..1. A uint8 image is rounded, because that is what a file could hold.

    The paper: "zero mean and 0.01 variance is added on each pixel of normalized image", read here
    as pixels in 0..1, of which all three channels have noise of their own.

    >>> image = torch.full((3, 1, 2), 128, dtype=torch.uint8)
    >>> gaussian_noise(image, np.random.default_rng(0), variance=0.0).unique()
    tensor([128], dtype=torch.uint8)
    """
    noise = random.standard_normal(tuple(image.shape), dtype=np.float32) * np.float32(variance**0.5)
    pixels = as_floats(image) + torch.from_numpy(noise).to(image.device)
    return as_before(pixels, image.dtype)


def as_floats(image: Tensor) -> Tensor:
    """The image as floats in 0..1."""
    return image.float() / 255 if image.dtype == torch.uint8 else image


def as_before(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Floats, clipped to 0..1, as the type that the image had; uint8 is rounded."""
    pixels = pixels.clamp(0, 1)
    return (pixels * 255).round().to(dtype) if dtype == torch.uint8 else pixels.to(dtype)
