"""Common corruptions: what they do to simple images, and that severities are in order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from rankdet.robustness.corruptions import (
    PARAMETERS,
    SEVERITIES,
    brighten,
    corrupt,
    gaussian_blur,
    jpeg_compression,
    lower_contrast,
)


def photograph() -> Tensor:
    """A uint8 image with edges, slopes and colours."""
    y, x = torch.meshgrid(torch.arange(48), torch.arange(64), indexing="ij")
    stripes = ((x // 8) % 2) * 90
    planes = [60 + stripes, 40 + 2 * y, 200 - 2 * x]
    return torch.stack(planes).to(torch.uint8)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_higher_severity_changes_more(name: str) -> None:
    image = photograph()
    distances = []
    for severity in SEVERITIES:
        result = corrupt(image, name, severity, np.random.default_rng(0))
        assert (result.dtype, result.shape) == (torch.uint8, image.shape)
        distances.append((result.float() - image.float()).square().mean().item())
    assert distances[0] > 0
    assert distances == sorted(distances)


@pytest.mark.parametrize("name", PARAMETERS)
def test_floats_give_nearly_the_same_as_bytes(name: str) -> None:
    image = photograph()
    result = corrupt(image, name, 2, np.random.default_rng(0))
    floats = corrupt(image.float() / 255, name, 2, np.random.default_rng(0))
    assert ((floats * 255).round() - result).abs().max() <= 1


def test_a_blur_of_a_point_is_a_gaussian() -> None:
    image = torch.zeros(3, 31, 31)
    image[:, 15, 15] = 1.0
    result = gaussian_blur(image, 2.0)[0]
    assert result.sum().item() == pytest.approx(1.0, abs=1e-4)
    assert (result[15, 17] / result[15, 15]).item() == pytest.approx(np.exp(-0.5), rel=1e-3)


def test_a_blur_leaves_an_even_image_and_a_tiny_one_alone() -> None:
    assert torch.allclose(gaussian_blur(torch.full((3, 9, 9), 0.3), 1.0), torch.tensor(0.3))
    tiny = torch.rand(3, 1, 5)
    assert torch.equal(gaussian_blur(tiny, 6.0), tiny)


def test_brightness_keeps_hue_and_black_becomes_grey() -> None:
    assert brighten(torch.zeros(3, 1, 1), 0.3).flatten().tolist() == pytest.approx([0.3] * 3)
    bright = brighten(torch.tensor([0.8, 0.4, 0.2]).view(3, 1, 1), 0.5).flatten()
    assert bright.tolist() == pytest.approx([1.0, 0.5, 0.25])


def test_contrast_keeps_the_mean_of_each_channel() -> None:
    image = photograph().float() / 255
    result = lower_contrast(image, 0.3)
    assert torch.allclose(result.mean(dim=(1, 2)), image.mean(dim=(1, 2)), atol=1e-5)
    assert torch.allclose(result.std(dim=(1, 2)), 0.3 * image.std(dim=(1, 2)), atol=1e-5)


def test_a_good_jpeg_is_close_to_the_image() -> None:
    image = photograph()
    good, bad = jpeg_compression(image, 95), jpeg_compression(image, 7)
    near = (good.float() - image.float()).abs().mean()
    assert near < 4
    assert near < (bad.float() - image.float()).abs().mean()


def test_unknown_names_and_severities_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one of"):
        corrupt(photograph(), "fog", 1, np.random.default_rng(0))
    with pytest.raises(ValueError, match="severity: expected 1 to 5, got 6"):
        corrupt(photograph(), "jpeg", 6, np.random.default_rng(0))
