"""The colours of runs and classes can be told apart, also by readers who see fewer of them."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pytest

from rankdet.report.templates import source

Values = npt.NDArray[np.float64]

# What linear red, green and blue look like: Machado, Oliveira and Fernandes, 2009, full strength.
SIGHTS = {
    "all colours": np.eye(3),
    "no green": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "no red": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
TO_XYZ = np.array(
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
) / np.array([[0.9505], [1.0], [1.089]])


def lab(colours: list[str], sight: Values) -> Values:
    """CIE Lab of colours such as #0072b2, as they look with this sight."""
    parts = np.array([[int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)] for colour in colours])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    xyz = np.clip(linear @ sight.T, 0, 1) @ TO_XYZ.T
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    first, second, third = f.T
    return np.stack([116 * second - 16, 500 * (first - second), 200 * (second - third)], axis=1)


def smallest_difference(colours: list[str], sight: Values) -> float:
    places = lab(colours, sight)
    distances = np.linalg.norm(places[:, None] - places[None], axis=2)
    return float(distances[np.triu_indices(len(colours), 1)].min())


def test_lab_by_hand() -> None:
    black, white, grey = lab(["#000000", "#ffffff", "#777777"], np.eye(3))
    assert black == pytest.approx([0, 0, 0], abs=0.1)
    assert white == pytest.approx([100, 0, 0], abs=0.1)
    assert grey == pytest.approx([50, 0, 0], abs=0.2)
    red, green = lab(["#a06000", "#807000"], SIGHTS["no green"])
    assert np.linalg.norm(red - green) < 15, "they look alike"


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("theme", [0, 1, 2], ids=["light", "dark", "print"])
def test_series_can_be_told_apart(theme: int, sight: str) -> None:
    content = re.findall(r":root \{(.*?)\}", source("style.css"), re.DOTALL)[theme]
    series = re.findall(r"--series-\d: (#[0-9a-f]{6});", content)
    assert len(series) == 8
    assert smallest_difference(series[:4], SIGHTS[sight]) > 30
    assert smallest_difference(series, SIGHTS[sight]) > 15
