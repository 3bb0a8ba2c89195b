"""Which tensors the fused kernels take, and on which device they run; with and without Triton."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rankdet.losses import fused

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def test_only_floats_on_cuda_that_exist_are_for_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused, "_HAS_TRITON", True)

    def tensor(device: str = "cuda", dtype: torch.dtype = torch.float32, size: int = 3) -> Any:
        return SimpleNamespace(device=torch.device(device), dtype=dtype, numel=lambda: size)

    assert all(fused.can_read(tensor(dtype=dtype)) for dtype in DTYPES)
    assert not fused.can_read(tensor(dtype=torch.float64))
    assert not fused.can_read(tensor("cpu"))
    assert not fused.can_read(tensor("mps"))
    assert not fused.can_read(tensor(size=0))


def test_that_triton_is_missing_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fused, "_HAS_TRITON", False)
    monkeypatch.setattr(fused, "_told", [])
    there, here = (
        SimpleNamespace(device=torch.device(name), dtype=torch.float32, numel=lambda: 3)
        for name in ("cuda", "cpu")
    )
    with caplog.at_level(logging.WARNING, logger="rankdet"):
        assert not fused.can_read(here)  # type: ignore[arg-type]
        assert caplog.records == []
        assert not fused.can_read(there)  # type: ignore[arg-type]
        assert not fused.can_read(there)  # type: ignore[arg-type]
    (record,) = caplog.records
    assert record.getMessage().startswith("Triton is not installed")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cuda:1", [1, 0]),
        ("cuda:0", []),  # the current one
        ("cpu", []),  # interpreted
    ],
)
def test_kernels_run_where_the_tensor_is(
    name: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    current, devices = [0], []

    class Device:
        """As torch.cuda.device: the device is another inside, and as before behind it."""

        def __init__(self, device: torch.device) -> None:
            self.index = device.index

        def __enter__(self) -> None:
            self.before, current[0] = current[0], self.index
            devices.append(current[0])

        def __exit__(self, *_: object) -> None:
            current[0] = self.before
            devices.append(current[0])

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", Device)
    device = torch.device(name)
    there: Any = SimpleNamespace(
        device=device, is_cuda=device.type == "cuda", get_device=lambda: device.index
    )
    with fused.on_device_of(there):
        assert current[0] == (device.index or 0)
    assert current == [0]
    assert devices == expected


def test_without_a_device_cuda_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise AssertionError("torch.cuda was asked for its device")

    monkeypatch.setattr(torch.cuda, "current_device", fail)
    with fused.on_device_of(torch.zeros(1)):
        pass
