"""Gaussian noise: its size, its limits, its seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankdet.robustness.noise import gaussian_noise


def test_noise_has_mean_0_and_variance_0_01() -> None:
    image = torch.full((3, 200, 200), 0.5)
    noise = gaussian_noise(image, np.random.default_rng(0)) - 0.5
    assert abs(noise.mean().item()) < 1e-3
    assert noise.var().item() == pytest.approx(0.01, rel=0.02)
    channels = torch.corrcoef(noise.flatten(1))
    assert (channels - torch.eye(3)).abs().max() < 0.03


def test_the_result_is_clipped() -> None:
    dark = gaussian_noise(torch.zeros(3, 50, 50), np.random.default_rng(0))
    bright = gaussian_noise(torch.ones(3, 50, 50), np.random.default_rng(0))
    assert dark.min() == 0
    assert bright.max() == 1
    assert (dark == 0).float().mean().item() == pytest.approx(0.5, abs=0.02)


def test_bytes_are_the_rounded_floats() -> None:
    image = torch.randint(0, 256, (3, 9, 7), dtype=torch.uint8)
    result = gaussian_noise(image, np.random.default_rng(3))
    floats = gaussian_noise(image.float() / 255, np.random.default_rng(3))
    assert result.dtype == torch.uint8
    assert torch.equal(result, (floats * 255).round().to(torch.uint8))
