"""What all fused kernels, in Triton, have to ask: which tensors they read, and where they run."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

import torch
from torch import Tensor

_HAS_TRITON = find_spec("triton") is not None
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_HERE: AbstractContextManager[None] = nullcontext()
_told: list[bool] = []


def can_read(logits: Tensor) -> bool:
    """True on a CUDA device with Triton, for half precision and float32, unless it is empty; else
    plain torch runs."""
    if logits.device.type != "cuda" or logits.dtype not in _DTYPES or logits.numel() == 0:
        return False
    if not _HAS_TRITON and not torch.compiler.is_compiling() and not _told:
        _told.append(True)
        logging.getLogger("rankdet").warning(
            "Triton is not installed: losses on CUDA take plain torch operations, which give the "
            "same results and are several times slower."
        )
    return _HAS_TRITON


def divide_up(number: int, size: int) -> int:
    """How many of a size hold the number; `triton.cdiv` costs the host some microseconds.

    >>> divide_up(9, 4), divide_up(8, 4), divide_up(0, 4)
    (3, 2, 0)
    """
    return -(-number // size)


def on_device_of(tensor: Tensor) -> AbstractContextManager[None]:
    """A context in which kernels run where the tensor is: Triton launches on the current device.

    Mostly that is the one already, and to ask costs the host less than to set it.
    """
    if not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
        return _HERE
    return torch.cuda.device(tensor.device)
