"""The most memory that a piece of work holds at one time, counted exactly on either device."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import torch


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes of tensors that `run` holds at one time, above what is held before it.

    As torch's own allocators count them: on a CUDA device by its statistics (in whole blocks of
    512 bytes), on a CPU by the profiler, which sees every allocation and every release, those
    inside of operators and of the backward pass included. What libraries take beside the allocators
    (cuDNN's handles, oneDNN's scratch) is in neither. What is held before must stay until the end.

    >>> def two_at_most():
    ...     first = torch.zeros(1000)  # 4000 bytes
    ...     second = first.clone()  # 8000
    ...     del first
    ...     return second.clone()  # 8000 again
    >>> peak_bytes(two_at_most, torch.device("cpu"))
    8000
    """
    if device.type == "cuda":
        return _peak_on_cuda(run, device)
    return _peak_on_cpu(run)


def _peak_on_cuda(run: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_on_cpu(run: Callable[[], object]) -> int:
    # The profiler's library would print its own start and end; it reads this once.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        run()
    assert profiler.kineto_results is not None
    changes = (
        event.nbytes()
        for event in sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns())
        if event.name() == "[memory]"
    )
    return max(itertools.accumulate(changes, initial=0))
