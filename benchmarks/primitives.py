"""What torch's operations cost per element on this CPU, on a block that fits its cache.

    python benchmarks/primitives.py [--json FILE]

The choices in lookup.py and kernels.py follow from these costs; NOTES.md says how.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rankdet.provenance import provenance

NUM_ELEMENTS = 1 << 17
NUM_KNOTS = 10_000


def nanoseconds(run: Callable[[], object], rounds: int = 50) -> float:
    """The least time of a run, per element: the rest is other programs' doing."""
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e9 * min(times) / NUM_ELEMENTS


def operations() -> dict[str, Callable[[], object]]:
    """The operations that a pass over the scores can be built of."""
    torch.manual_seed(0)
    scores = torch.randn(NUM_ELEMENTS) - 6
    wide = scores.double()
    few, many = scores > -3.1, scores > -7.2
    knots = (torch.randn(NUM_KNOTS) * 1.5 - 1.5).double().sort().values
    bins = torch.bucketize(wide, knots, out_int32=True)
    long_bins = bins.long()
    table = torch.randn(NUM_KNOTS + 1, dtype=torch.float64)
    result = torch.empty_like(wide)
    cells = torch.empty(NUM_ELEMENTS, dtype=torch.int32)
    return {
        "copy float32 to float64": lambda: result.copy_(scores),
        "multiply, float64": lambda: torch.mul(wide, 1.5, out=result),
        "convert float64 to int32": lambda: cells.copy_(wide),
        "aminmax": lambda: scores.aminmax(),
        "sum, float64": lambda: wide.sum(),
        "compare to bool": lambda: wide > -3.1,
        "nonzero of a bool, few": lambda: few.nonzero(),
        "nonzero of a bool, most": lambda: many.nonzero(),
        "clamp int32": lambda: bins.clamp(max=0),
        "look up: index_select, int32 index": lambda: table.index_select(0, bins),
        "look up: take, int64 index": lambda: table.take(long_bins),
        "look up: table[index]": lambda: table[long_bins],
        "binary search in 10,000 knots": lambda: torch.bucketize(wide, knots, out_int32=True),
        "bincount": lambda: torch.bincount(bins, minlength=NUM_KNOTS + 1),
        "bincount with weights": lambda: torch.bincount(bins, weights=wide),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    costs = {name: round(nanoseconds(run), 3) for name, run in operations().items()}
    for name, cost in costs.items():
        print(f"{name:36} {cost:6.2f} ns")
    if arguments.json is not None:
        record = {"provenance": provenance(elements=NUM_ELEMENTS), "nanoseconds": costs}
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
