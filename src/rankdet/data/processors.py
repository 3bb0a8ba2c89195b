"""How many processes may work on images at the same time."""

from __future__ import annotations

import os


def usual_num_workers(most: int) -> int:
    """The processors that this process may use, shared among torchrun's processes; 1 to `most`."""
    if hasattr(os, "sched_getaffinity"):
        num_processors = len(os.sched_getaffinity(0))
    else:
        num_processors = os.cpu_count() or 1
    return max(1, min(most, num_processors // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
