"""What the labels mean, and the checks that every loss makes on its inputs.

Labels are compact: one integer per anchor, not a dense 0 / 1 tensor of the size of the logits.
An anchor of class c is a positive in column c and a negative in all others; a background anchor is
a negative in every column; an ignored anchor counts nowhere (section 3.1.1 of the paper).
"""

from __future__ import annotations

import torch
from torch import Tensor

BACKGROUND = -1
IGNORED = -2

_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def check_inputs(
    logits: Tensor, labels: Tensor, mask: Tensor | None = None, *, num_classes: int | None = None
) -> None:
    """Raise ValueError, with expected and got, unless the inputs fit together.

    Args:
        logits: (R, K) or (B, A, K) scores, or K + 1 columns for a softmax loss.
        labels: (R,) or (B, A) integers: 0..K-1, BACKGROUND or IGNORED.
        mask: None, or bool of the logits' shape; False marks a single entry as ignored.
        num_classes: K, where it is not the number of columns.

    Label values are read on the CPU only: on an accelerator the host would have to wait for them.
    There, and under `torch.compile`, a wrong label makes the loss NaN (`labels_are_valid`).
    """
    if logits.dtype not in _FLOATS:
        raise ValueError(f"logits: expected a floating point tensor, got {logits.dtype}")
    if logits.ndim not in (2, 3):
        raise ValueError(
            f"logits: expected shape (R, K) or (B, A, K), got {tuple(logits.shape)}; "
            "for a plain ranking of scores with 0 / 1 targets use binary_ap_loss"
        )
    if labels.dtype not in _INTEGERS:
        raise ValueError(f"labels: expected an integer tensor, got {labels.dtype}")
    if labels.shape != logits.shape[:-1]:
        raise ValueError(
            f"labels: expected shape {tuple(logits.shape[:-1])}, one integer for each anchor of "
            f"logits {tuple(logits.shape)}, got {tuple(labels.shape)}"
        )
    if mask is not None and (mask.dtype != torch.bool or mask.shape != logits.shape):
        raise ValueError(
            f"mask: expected torch.bool of shape {tuple(logits.shape)}, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    for name, tensor in (("labels", labels), ("mask", mask)):
        if tensor is not None and tensor.device != logits.device:
            raise ValueError(f"{name}: expected on {logits.device} as logits, got {tensor.device}")
    if num_classes is None:
        num_classes = logits.shape[-1]
    if reads_values(logits) and not bool(labels_are_valid(labels, num_classes)):
        lowest, highest = (int(value) for value in labels.aminmax())
        raise ValueError(
            f"labels: expected 0..{num_classes - 1} for a class, {BACKGROUND} for background or "
            f"{IGNORED} for ignored, got values from {lowest} to {highest}"
        )


def require(holds: bool, name: str, expected: str, got: object) -> None:
    """Raise ValueError, with expected and got, unless the condition holds."""
    if not holds:
        raise ValueError(f"{name}: expected {expected}, got {got!r}")


def reads_values(tensor: Tensor) -> bool:
    """Whether checks may read the tensor's values: on the CPU, outside of `torch.compile`."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def widened(labels: Tensor, num_classes: int) -> Tensor:
    """The labels in a dtype that can be compared with every label's meaning.

    Torch wraps a bound into a narrow dtype: -2 is 254 in uint8, and 200 is -56 in int8.
    """
    is_wide = labels.dtype.is_signed and num_classes <= torch.iinfo(labels.dtype).max
    return labels if is_wide else labels.long()


def labels_are_valid(labels: Tensor, num_classes: int) -> Tensor:
    """True (a bool scalar tensor) if every label is a class, BACKGROUND or IGNORED."""
    labels = widened(labels, num_classes)
    return ((labels >= IGNORED) & (labels < num_classes)).all()


def positive_entries(labels: Tensor, num_classes: int) -> Tensor:
    """(..., K) bool: where an anchor meets its own class's column.

    >>> positive_entries(torch.tensor([1, BACKGROUND]), num_classes=2)
    tensor([[False,  True],
            [False, False]])
    """
    columns = torch.arange(num_classes, device=labels.device)
    return labels.unsqueeze(-1) == columns


def counted_entries(labels: Tensor, mask: Tensor | None, num_classes: int) -> Tensor:
    """(..., K) bool: the entries that enter the loss: not of an ignored anchor, not masked.

    >>> counted_entries(torch.tensor([0, IGNORED]), None, num_classes=2)
    tensor([[ True,  True],
            [False, False]])
    """
    labels = widened(labels, num_classes)
    counted = (labels != IGNORED).unsqueeze(-1).expand(*labels.shape, num_classes)
    return counted if mask is None else counted & mask


def num_positives(labels: Tensor, mask: Tensor | None, num_classes: int) -> Tensor:
    """How many entries are positives: an int64 scalar, from the labels alone.

    >>> num_positives(torch.tensor([1, 1, BACKGROUND]), None, num_classes=2)
    tensor(2)
    """
    is_positive = labels >= 0
    if mask is not None:
        column = labels.long().clamp(0, num_classes - 1).unsqueeze(-1)
        is_positive = is_positive & mask.gather(-1, column).squeeze(-1)
    return is_positive.sum()


def raise_if_not_finite(logits: Tensor, counted: Tensor, name: str = "logits") -> None:
    """Raise FloatingPointError that says how many of the counted entries are not finite, and where.

    Args:
        logits: scores of any shape.
        counted: bool of the same shape; entries that are not counted are not looked at.
    """
    wrong = counted & ~torch.isfinite(logits)
    num_wrong = int(wrong.sum())
    if num_wrong == 0:
        return
    num_nan = int((wrong & torch.isnan(logits)).sum())
    first = tuple(wrong.nonzero()[0].tolist())
    raise FloatingPointError(
        f"{name}: {num_wrong} of {int(counted.sum())} scores are not finite ({num_nan} NaN, "
        f"{num_wrong - num_nan} infinite), the first at index {first}: {logits[first].item()}. "
        "The model has diverged or its input is broken; check_finite=False returns NaN instead."
    )
