"""What attacks by gradient need of a detector, whichever it is.

Axes: B images, A anchors, K classes, C columns of the logits: K for "sigmoid", K + 1 for "softmax",
whose column 0 is background.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from rankdet.structures import Target


class Batch(Protocol):
    """B images with padding; see `rankdet.data.Batch`."""

    @property
    def images(self) -> Tensor: ...

    @property
    def targets(self) -> list[Target]: ...

    @property
    def sizes(self) -> Tensor: ...


def own_columns(labels: Tensor, activation: str) -> Tensor:
    """The columns of the logits that belong to these classes.

    >>> own_columns(torch.tensor([0, 4]), "softmax")
    tensor([1, 5])
    """
    if activation not in ("sigmoid", "softmax"):
        raise ValueError(f"activation: expected 'sigmoid' or 'softmax', got {activation!r}")
    return labels + 1 if activation == "softmax" else labels


def log_odds(logits: Tensor, labels: Tensor, activation: str) -> Tensor:
    """(N,): log(p / (1 - p)) of the score p of each row's class.

    logits (N, C), labels (N,) in 0..K-1. For a sigmoid this is the logit itself; for a softmax the
    own logit minus the logsumexp of all others. It orders as the score does, and unlike the score
    and its logarithm does not go flat where the detector is sure.

    >>> log_odds(torch.tensor([[0.0, 3.0, 0.0]]), torch.tensor([0]), "softmax")
    tensor([2.3069])
    """
    columns = own_columns(labels, activation).unsqueeze(1)
    own = logits.gather(1, columns).squeeze(1)
    if activation == "sigmoid":
        return own
    return own - logits.scatter(1, columns, -torch.inf).logsumexp(dim=1)


@contextmanager
def held_still(detector: nn.Module) -> Iterator[None]:
    """The detector in evaluation mode and without gradients of its weights; then as before."""
    modes = [(module, module.training) for module in detector.modules()]
    trained = [parameter for parameter in detector.parameters() if parameter.requires_grad]
    detector.eval().requires_grad_(False)
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training
        for parameter in trained:
            parameter.requires_grad_(True)


def inside(images: Tensor, sizes: Tensor | Sequence[tuple[int, int]]) -> Tensor:
    """(B, 1, H, W) of 1 where an image is, and 0 in its padding at the right and at the bottom."""
    sizes = torch.as_tensor(sizes).reshape(-1, 2).to(images.device)
    rows = torch.arange(images.shape[2], device=images.device) < sizes[:, :1]
    columns = torch.arange(images.shape[3], device=images.device) < sizes[:, 1:]
    return (rows.unsqueeze(2) & columns.unsqueeze(1)).unsqueeze(1).to(images.dtype)
