"""The batches that are measured on a CUDA device, and what AP-loss is held to there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from rankdet.bench.problems import REGIMES, Problem, make_problem

_CACHE_BYTES = 256e6  # several times the cache of any device
_MOST_EXTRA_MIB = 32.0
_MOST_SCORES_OF_GRAPHS = 128_000_000  # above it the host matters to nobody


@dataclass(frozen=True)
class Row:
    """A batch whose costs are measured; size is "small", "middle", "large" or "" (no bars)."""

    size: str
    regime: str
    num_positives: int
    num_anchors: int
    num_classes: int
    dtype: str = "float32"
    with_loop: bool = True

    @property
    def num_scores(self) -> int:
        return self.num_anchors * self.num_classes

    @property
    def num_bytes(self) -> int:
        """Of the logits, and of their gradient."""
        return self.num_scores * getattr(torch, self.dtype).itemsize

    @property
    def num_sets(self) -> int:
        """How many sets of inputs take turns, so that the cache holds none when its turn comes."""
        if self.num_bytes > _CACHE_BYTES:
            return 2
        return max(4, int(_CACHE_BYTES // self.num_bytes) + 1)

    @property
    def with_graphs(self) -> bool:
        return self.num_scores <= _MOST_SCORES_OF_GRAPHS

    @property
    def num_graph_sets(self) -> int:
        """How many graphs take turns; one that is larger than the cache is enough."""
        return 1 if self.num_bytes >= _CACHE_BYTES else self.num_sets

    @property
    def most_rounds(self) -> int:
        """More for small batches, whose times are the host's, and noisy."""
        return 200 if self.num_scores < 30_000_000 else 50

    def problems(self, seed: int, device: str, num_sets: int) -> list[Problem]:
        """Batches of this kind."""
        sizes = (self.regime, self.num_positives, self.num_anchors, self.num_classes)
        dtype = getattr(torch, self.dtype)
        return [
            make_problem(*sizes, seed=seed + number, device=device, draw_on=device, dtype=dtype)
            for number in range(num_sets)
        ]


# 8 images of 512 x 512 have 32,736 anchors each; 8 large ones 200,000
SIZES = {
    "small": (600, 8 * 32_736, 20),
    "middle": (1_000, 8 * 32_736, 80),
    "large": (3_000, 8 * 200_000, 80),
}
QUICK_SIZES = {"small": (60, 8 * 1_023, 20)}


def all_rows(quick: bool) -> list[Row]:
    """The rows of the table: sizes x dtypes x regimes, more and fewer positives, a huge batch."""
    sizes = QUICK_SIZES if quick else SIZES
    rows = [
        Row(size, regime, *numbers, dtype, with_loop=dtype == "float32")
        for size, numbers in sizes.items()
        for dtype in ("float32", "bfloat16")
        for regime in REGIMES
    ]
    if not quick:
        middle = Row("", "half-trained", *SIZES["middle"])
        rows += [replace(middle, num_positives=number) for number in (600, 5_000)]
        # Of the others the loop would take minutes.
        rows += [replace(middle, num_positives=50_000, with_loop=False)]
        rows += [Row("", "half-trained", 6_000, 16 * 200_000, 80, with_loop=False)]
    return rows


def bars(row: Row) -> dict[str, float]:
    """What AP-loss is held to: the largest ratio to focal loss, time, memory and so on."""
    found = {"extra_mib": _MOST_EXTRA_MIB}
    if row.size:
        found["ratio"] = 0.5 if row.size == "small" else 0.25
    if row.size == "small":
        found["milliseconds"] = 0.35
    if row.size == "large" and row.dtype == "float32":
        found["times_floor"] = 8.0 if row.regime == "half-trained" else 4.0
    return found
