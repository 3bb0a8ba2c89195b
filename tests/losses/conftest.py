"""Helpers of the loss tests, as fixtures: test files cannot import each other."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankdet.losses import BACKGROUND, IGNORED, ap_loss_reference


def _numpy_step(difference: np.ndarray, step: str, delta: float) -> np.ndarray:
    if step == "heaviside":
        return np.where(difference >= 0, 1.0, 0.0)
    if step == "sigmoid":
        return 1 / (1 + np.exp(np.clip(-difference / delta, -700, 700)))
    return np.minimum(np.maximum(difference / (2 * delta) + 0.5, 0), 1)


def _dense_ap(
    scores: np.ndarray, targets: np.ndarray, step: str, delta: float, interpolate: bool
) -> tuple[float, np.ndarray]:
    p, n = scores[targets == 1], scores[targets == 0]
    update = np.zeros_like(scores)
    if len(p) == 0:
        return 0.0, update
    above_P = _numpy_step(p[None, :] - p[:, None], step, delta)
    np.fill_diagonal(above_P, 1.0)
    above_N = _numpy_step(n[None, :] - p[:, None], step, delta)
    terms = above_N / (above_P.sum(1) + above_N.sum(1))[:, None]  # L_ij, (P, N)
    error = terms.sum(1)
    if interpolate:
        lowest = np.array([error[p <= score].min() for score in p])
        terms = terms * np.divide(lowest, error, out=np.zeros_like(error), where=error > 0)[:, None]
    update[targets == 1] = -terms.sum(1) / len(p)
    update[targets == 0] = terms.sum(0) / len(p)
    return terms.sum() / len(p), update


@pytest.fixture(scope="session")
def interpreter_that_can_loop() -> None:
    """Skips tests of kernels with loops where this Triton's interpreter cannot run them.

    Triton before 3.7 keeps scalars as arrays (1,), which a new numpy does not take in range.
    """
    triton = pytest.importorskip("triton")
    if torch.cuda.is_available() or tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7):
        return
    try:
        int(np.zeros(1))
    except TypeError:
        pytest.skip("this numpy cannot interpret loops of this Triton")


@pytest.fixture(scope="session")
def numpy_step() -> Callable[..., np.ndarray]:
    """The step f of an array of differences, written once more."""
    return _numpy_step


@pytest.fixture(scope="session")
def dense_ap() -> Callable[..., tuple[float, np.ndarray]]:
    """AP-loss and update of flat float64 scores from the matrix of all pairs (P, N), in numpy."""
    return _dense_ap


def _with_gradient(
    loss: Callable[..., Tensor],
    logits: Tensor,
    *inputs: Tensor,
    grad_output: float | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor]:
    leaf = logits.detach().clone().requires_grad_()
    value = loss(leaf, *inputs, **settings)
    value.backward(None if grad_output is None else torch.full_like(value, grad_output))
    assert leaf.grad is not None
    return value.detach(), leaf.grad


@pytest.fixture(scope="session")
def with_gradient() -> Callable[..., tuple[Tensor, Tensor]]:
    """(loss, logits, labels, **settings) -> the value and the gradient of the logits."""
    return _with_gradient


def _judge(
    logits: Tensor, labels: Tensor, mask: Tensor | None = None, **settings: Any
) -> tuple[Tensor, Tensor]:
    targets = (labels.unsqueeze(-1) == torch.arange(logits.shape[-1])).long()
    counted = (labels != IGNORED).unsqueeze(-1).expand(logits.shape)
    counted = counted if mask is None else counted & mask
    return ap_loss_reference(logits, targets, mask=counted, **settings)


@pytest.fixture(scope="session")
def judge() -> Callable[..., tuple[Tensor, Tensor]]:
    """`ap_loss_reference` with the arguments of `ap_loss`: float64 value and update."""
    return _judge


def _column(*scores: float) -> Tensor:
    return torch.tensor(scores, dtype=torch.float64).unsqueeze(-1)


@pytest.fixture(scope="session")
def column() -> Callable[..., Tensor]:
    """(*scores) -> float64 logits (R, 1) of a single class."""
    return _column


def _mixed_problem(seed: int, *shape: int, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(*shape, 3, dtype=torch.float64, generator=generator)
    kinds = torch.tensor([IGNORED, BACKGROUND, BACKGROUND, BACKGROUND, 0, 1])
    return logits, kinds[torch.randint(0, 6, shape, generator=generator)]


@pytest.fixture(scope="session")
def mixed_problem() -> Callable[..., tuple[Tensor, Tensor]]:
    """(seed, *shape, scale) -> float64 logits (*shape, 3) and labels (*shape) of every kind.

    The labels are valid for three columns or, with OHEM, K + 1 = 3.
    """
    return _mixed_problem


def _dense_targets(labels: Tensor, num_classes: int) -> Tensor:
    one_hot = torch.nn.functional.one_hot(labels.clamp(min=0), num_classes).double()
    return torch.where((labels >= 0).unsqueeze(-1), one_hot, 0.0)


@pytest.fixture(scope="session")
def dense_targets() -> Callable[[Tensor, int], Tensor]:
    """(labels, num_classes) -> float64 targets (..., num_classes), 1 at a positive and else 0."""
    return _dense_targets


@pytest.fixture(scope="session")
def kernel_device() -> str:
    """Where Triton's kernels run: "cuda", or else "cpu", interpreted (see tests/conftest.py)."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def process_worlds() -> Iterator[Any]:
    """The module process_worlds.py, which the processes that it starts must find by its name."""
    sys.path.insert(0, str(Path(__file__).parent))
    yield importlib.import_module("process_worlds")
    sys.path.remove(str(Path(__file__).parent))


@pytest.fixture(scope="session")
def worlds(process_worlds: Any) -> Iterator[Callable[[int], Any]]:
    """(number) -> a `World` of so many processes on the CPU, the same one for all tests."""
    started: dict[int, Any] = {}

    def world(size: int) -> Any:
        if size not in started:
            started[size] = process_worlds.World(size)
        return started[size]

    yield world
    for each in started.values():
        each.close()
