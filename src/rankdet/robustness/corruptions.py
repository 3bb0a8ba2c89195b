"""Common corruptions of photographs in five severities, after Hendrycks and Dietterich (2019).

Pure functions of an image (3, H, W), uint8 in 0..255 or float in 0..1. The parameters of each
severity are those of ImageNet-C; they were chosen there for images of 224 pixels, and a blur of so
many pixels changes a larger image less. Not part of the paper's table.
"""

from __future__ import annotations

import io
import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from rankdet.robustness.noise import as_before, as_floats, gaussian_noise

SEVERITIES = (1, 2, 3, 4, 5)
# name: what its number is, and the number at each severity.
PARAMETERS: dict[str, tuple[str, tuple[float, ...]]] = {
    "gaussian-noise": ("standard deviation, of values in 0..1", (0.08, 0.12, 0.18, 0.26, 0.38)),
    "gaussian-blur": ("standard deviation in pixels", (1, 2, 3, 4, 6)),
    "jpeg": ("quality", (25, 18, 15, 10, 7)),
    "brightness": ("added to the value of HSV, in 0..1", (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": ("factor of the distance to the mean", (0.4, 0.3, 0.2, 0.1, 0.05)),
}


def corrupt(image: Tensor, name: str, severity: int, random: np.random.Generator) -> Tensor:
    """The image after one of the corruptions; of the same type, uint8 rounded.

    name: of `PARAMETERS`. severity: 1 to 5. random: only noise draws from it.
    """
    if name not in PARAMETERS:
        raise ValueError(f"name: expected one of {', '.join(PARAMETERS)}, got {name!r}")
    if severity not in SEVERITIES:
        raise ValueError(f"severity: expected 1 to 5, got {severity!r}")
    amount = PARAMETERS[name][1][severity - 1]
    if name == "gaussian-noise":
        return gaussian_noise(image, random, variance=amount**2)
    if name == "gaussian-blur":
        return gaussian_blur(image, amount)
    if name == "jpeg":
        return jpeg_compression(image, int(amount))
    return brighten(image, amount) if name == "brightness" else lower_contrast(image, amount)


def gaussian_blur(image: Tensor, sigma: float) -> Tensor:
    """The image seen through a Gaussian that is cut off after 4 sigma, mirrored at its edges."""
    # Mirrored pixels must be there: a small image has a shorter kernel.
    radius = min(math.ceil(4 * sigma), image.shape[1] - 1, image.shape[2] - 1)
    if radius < 1:
        return image.clone()
    blurred = transforms.gaussian_blur(as_floats(image), [2 * radius + 1] * 2, [sigma, sigma])
    return as_before(blurred, image.dtype)


def jpeg_compression(image: Tensor, quality: int) -> Tensor:
    """The image as a JPEG file of this quality (1 to 95) has it."""
    pixels = (as_floats(image).clamp(0, 1) * 255).round().to(torch.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy()).save(stream, "JPEG", quality=quality)
    with Image.open(stream) as decoded:
        result = torch.from_numpy(np.array(decoded)).permute(2, 0, 1).contiguous()
    return as_before(result.to(image.device).float() / 255, image.dtype)


def brighten(image: Tensor, amount: float) -> Tensor:
    """The image with `amount` added to its value, the largest channel; hue and saturation stay.

    >>> brighten(torch.tensor([0.4, 0.2, 0.0]).view(3, 1, 1), 0.2).flatten()
    tensor([0.6000, 0.3000, 0.0000])
    """
    pixels = as_floats(image)
    value = pixels.amax(dim=0, keepdim=True)
    wanted = (value + amount).clamp(0, 1)
    scaled = pixels * (wanted / value.clamp(min=1e-12))
    return as_before(torch.where(value > 0, scaled, wanted), image.dtype)


def lower_contrast(image: Tensor, factor: float) -> Tensor:
    """The image, each channel brought closer to its mean over the image.

    >>> lower_contrast(torch.tensor([[[0.0, 1.0]]] * 3), 0.5)[0]
    tensor([[0.2500, 0.7500]])
    """
    pixels = as_floats(image)
    mean = pixels.mean(dim=(1, 2), keepdim=True)
    return as_before((pixels - mean) * factor + mean, image.dtype)
