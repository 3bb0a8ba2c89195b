"""Where the kernels of the detectors run in tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session")
def kernel_device() -> str:
    """Where Triton's kernels run: "cuda", or else "cpu", interpreted (see tests/conftest.py)."""
    pytest.importorskip("triton")
    return "cuda" if torch.cuda.is_available() else "cpu"
