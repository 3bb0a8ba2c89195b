"""What only a CUDA device can tell of a run: time, memory, synchronisations, graphs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

# Smaller requests than this are served from other blocks than larger ones.
_SMALL_BYTES = 1 << 19
_LEAST_POISON = 1 << 26
_HEAD_START = 20_000_000  # cycles: some 10 ms, in which the host enqueues hundreds of operations


def use(device: str) -> dict[str, Any]:
    """Make a device the current one, and say what it is and which Triton compiles for it."""
    index = torch.device(device).index  # None: the current one
    if index is not None:
        torch.cuda.set_device(index)
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "memory_gib": properties.total_memory / 2**30,
        "num_multiprocessors": properties.multi_processor_count,
        "cache_mib": properties.L2_cache_size / 2**20,
        "triton": _triton_version(),
    }


def _triton_version() -> str | None:
    if find_spec("triton") is None:
        return None
    import triton

    return str(triton.__version__)  # its distributions have several names


def milliseconds(
    runs: Sequence[Callable[[], object]], *, with_head_start: bool = False
) -> list[float]:
    """The time of each run on the device, by events, all enqueued back to back.

    What is cheap for the device waits for the host, and that counts, as in an idle training loop.
    With a head start the host is ahead all the time: the time of the device alone.
    """
    starts = [torch.cuda.Event(enable_timing=True) for _ in runs]
    ends = [torch.cuda.Event(enable_timing=True) for _ in runs]
    torch.cuda.synchronize()
    if with_head_start:
        torch.cuda._sleep(_HEAD_START)
    for run, start, end in zip(runs, starts, ends, strict=True):
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [float(start.elapsed_time(end)) for start, end in zip(starts, ends, strict=True)]


def peak_bytes(run: Callable[[], object]) -> int:
    """The most memory that a run takes, above what is in use before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def num_synchronisations(run: Callable[[], object]) -> int:
    """How often a run makes the host wait for the device."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(warning.message) for warning in caught)


def capture(run: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
    """A replay of a run as a CUDA graph, and the tensors that every replay writes.

    RuntimeError if it cannot be captured, as with a synchronisation in it.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles, and allocates, what a capture must not
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, result


def poison(device: str, num_bytes: int) -> None:
    """Leave NaN in the memory that is handed out next: what a run does not write shows itself."""
    torch.cuda.empty_cache()
    sizes = [max(num_bytes, _LEAST_POISON)] + 8 * [_SMALL_BYTES]
    # Every float of nothing but ones is NaN.
    blocks = [torch.full((size,), 255, dtype=torch.uint8, device=device) for size in sizes]
    del blocks


def forget() -> None:
    """Give back the memory that earlier rows have used: no row has another's blocks."""
    torch.cuda.empty_cache()
