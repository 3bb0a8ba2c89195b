"""The perturbations of the paper's table and the common corruptions, by name."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rankdet.errors import ConfigError
from rankdet.robustness.corruptions import PARAMETERS, SEVERITIES, corrupt
from rankdet.robustness.noise import gaussian_noise
from rankdet.robustness.patches import black_patches, flip_patches, paste_patch, random_patches
from rankdet.robustness.perturbed import Perturbation

ORIGINAL = "original"
DEEPFOOL = "deepfool"
ADVERSARIAL = "adversarial"
# In the order of the paper's table.
PERTURBATIONS = ("black", "random", "flip", ADVERSARIAL, "noise")


@dataclass(frozen=True)
class Selection:
    """What is to be measured. perturbations and corruptions: names, in the order of the tables."""

    perturbations: tuple[str, ...]
    corruptions: tuple[str, ...]
    has_deepfool: bool


def select(only: Sequence[str] = (), *, with_corruptions: bool = False) -> Selection:
    """The perturbations of the paper, or `only` those named; ConfigError if a name is unknown.

    >>> select(["noise", "black"])
    Selection(perturbations=('black', 'noise'), corruptions=(), has_deepfool=False)
    """
    known = (*PERTURBATIONS, DEEPFOOL, *PARAMETERS)
    for name in only:
        if name not in known:
            raise ConfigError(f"--only {name}: expected one of {', '.join(known)}.")
    if not only:
        return Selection(PERTURBATIONS, tuple(PARAMETERS) if with_corruptions else (), True)
    wanted = {*only, *(PARAMETERS if with_corruptions else ())}
    return Selection(
        tuple(name for name in PERTURBATIONS if name in wanted),
        tuple(name for name in PARAMETERS if name in wanted),
        DEEPFOOL in wanted,
    )


def perturbation(name: str, patch: Tensor | None = None) -> Perturbation:
    """The perturbation of this name; "adversarial" needs a patch (3, h, w), float in 0..1."""
    if name == ADVERSARIAL:
        if patch is None:
            raise ValueError("patch: expected one for the adversarial patch, got None")
        return functools.partial(_adversarial, patch=patch)
    plain: dict[str, Perturbation] = {
        "black": _black,
        "random": random_patches,
        "flip": flip_patches,
        "noise": _noise,
    }
    if name not in plain:
        raise ValueError(f"name: expected one of {', '.join(PERTURBATIONS)}, got {name!r}")
    return plain[name]


def corruption(name: str, severity: int) -> Perturbation:
    """A common corruption at a severity of 1 to 5."""
    if name not in PARAMETERS or severity not in SEVERITIES:
        got = f"{name!r} and {severity!r}"
        raise ValueError(f"expected one of {', '.join(PARAMETERS)} and 1 to 5, got {got}")
    return functools.partial(_corrupted, name=name, severity=severity)


def _black(image: Tensor, boxes: Tensor, random: np.random.Generator) -> Tensor:
    return black_patches(image, boxes)


def _noise(image: Tensor, boxes: Tensor, random: np.random.Generator) -> Tensor:
    return gaussian_noise(image, random)


def _adversarial(
    image: Tensor, boxes: Tensor, random: np.random.Generator, *, patch: Tensor
) -> Tensor:
    return paste_patch(image, boxes, patch)


def _corrupted(
    image: Tensor, boxes: Tensor, random: np.random.Generator, *, name: str, severity: int
) -> Tensor:
    return corrupt(image, name, severity, random)
