"""Whether the fused kernels, written in Triton, can read a tensor."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import torch
from torch import Tensor

_HAS_TRITON = find_spec("triton") is not None
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_told: list[bool] = []


def can_read(logits: Tensor) -> bool:
    """True on a CUDA device with Triton, for half precision and float32; else plain torch runs."""
    if logits.device.type != "cuda" or logits.dtype not in _DTYPES or logits.numel() == 0:
        return False
    if not _HAS_TRITON and not torch.compiler.is_compiling() and not _told:
        _told.append(True)
        logging.getLogger("rankdet").warning(
            "Triton is not installed: losses on CUDA take plain torch operations, which give the "
            "same results and are several times slower."
        )
    return _HAS_TRITON
