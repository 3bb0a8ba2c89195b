"""Moments on a device, to tell what passed between them."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch


class Clock:
    """Moments on a device, by name; a CUDA device is not waited for until they are read."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._moments: list[tuple[str, Any]] = []

    def mark(self, name: str) -> None:
        """Now; what was done since the last mark is part of `name`."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._moments.append((name, event))
        else:
            self._moments.append((name, time.perf_counter()))

    def milliseconds(self) -> list[tuple[str, float]]:
        """The time from each mark's predecessor to it, without the first, by the mark's name."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        pairs = itertools.pairwise(self._moments)
        return [(name, self._between(before, now)) for (_, before), (name, now) in pairs]

    def _between(self, before: Any, now: Any) -> float:
        if self.device.type == "cuda":
            return float(before.elapsed_time(now))
        return 1e3 * float(now - before)
