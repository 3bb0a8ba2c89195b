"""All faults: tried one after the other, and shown as a table."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from rankdet.bench.faults import (
    damage,
    data_workers,
    elastic,
    full_disk,
    hostile,
    kills,
    ranks,
    saves,
    signals,
    soak,
)
from rankdet.bench.faults.fault import Fault, tried
from rankdet.bench.faults.processes import Server
from rankdet.progress import say

FAULTS: tuple[Fault, ...] = (
    kills.KILLS,
    kills.CHANGES,
    saves.SAVES,
    full_disk.FULL_DISK,
    damage.FLIPS,
    damage.TRUNCATED,
    signals.SIGNALS,
    elastic.ELASTIC,
    data_workers.DATA_WORKERS,
    ranks.EMPTY_RANKS,
    ranks.NOT_FINITE,
    hostile.HOSTILE,
    soak.SOAK,
)

# (what, number of tries) -> what to call after each of them
Part = Callable[[str, int], Callable[[], None]]


def try_faults(
    names: Collection[str], *, quick: bool, seed: int, part: Part
) -> list[dict[str, Any]]:
    """The rows of the faults with these names, ready for JSON."""
    chosen = [fault for fault in FAULTS if fault.name in names]
    if not chosen:
        return []
    rows = []
    with (
        _orderly_end(),
        tempfile.TemporaryDirectory(prefix="rankdet-faults-") as name,
        Server(Path(name)) as server,
    ):
        for fault in chosen:
            advance = part(fault.title, fault.tries[quick])
            row = tried(fault, server, quick=quick, seed=seed, advance=advance)
            rows.append(row)
            if not sys.stderr.isatty():  # where no bar shows how far it is
                say(f"  {row['survived']} of {row['tried']} survived, {row['seconds']:.0f} s")
    return rows


@contextmanager
def _orderly_end() -> Iterator[None]:
    """SIGTERM ends the bench as Ctrl-C does: its disk is unmounted, its files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def as_table(rows: Sequence[dict[str, Any]]) -> Table:
    """fault | tried | survived | worst | seconds | on a broken build"""
    columns = ("fault", "tried", "survived", "worst", "seconds", "survived on a broken build")
    table = Table(*columns, title="Faults")
    for row in rows:
        is_fine = row["survived"] == row["tried"]
        survived = str(row["survived"]) if is_fine else f"[red]{row['survived']}[/red]"
        builds = "\n".join(
            f"{build['survived']} of {build['tried']}: {build['build']}" for build in row["broken"]
        )
        table.add_row(
            escape(row["title"]),
            str(row["tried"]),
            survived,
            escape(row["worst"]),
            f"{row['seconds']:.0f}",
            escape(builds),
        )
    return table
