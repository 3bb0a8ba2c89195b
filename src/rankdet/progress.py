"""How far a long command is: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_SECONDS_PER_LINE = 10.0


class Meter(Protocol):
    """Told of the images to come, and of every one that is done."""

    def expect(self, num_images: int) -> None: ...

    def advance(self) -> None: ...


@contextmanager
def progress(what: str) -> Iterator[Meter]:
    """A meter for images, which shows itself on standard error."""
    if not sys.stderr.isatty():
        yield _Lines(what)
        return

    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(what), total=None, rate="")
        total = 0

        class Bar:
            def expect(self, num_images: int) -> None:
                nonlocal total
                total += num_images
                bar.update(task, total=total)

            def advance(self) -> None:
                speed = bar.tasks[0].speed
                bar.update(task, advance=1, rate=f"{speed:.0f} per second" if speed else "")

        yield Bar()


class _Lines:
    def __init__(self, what: str) -> None:
        self.what = what
        self.num_expected = 0
        self.num_done = 0
        self.start = self.last = time.monotonic()

    def expect(self, num_images: int) -> None:
        self.num_expected += num_images

    def advance(self) -> None:
        self.num_done += 1
        now = time.monotonic()
        if now - self.last > _SECONDS_PER_LINE:
            self.last = now
            text = _line(self.what, self.num_done, self.num_expected, now - self.start)
            print(text, file=sys.stderr, flush=True)


def _line(what: str, num_done: int, num_expected: int, seconds: float) -> str:
    """
    >>> _line("Decoding", 50, 200, 10.0)
    'Decoding: 50 of 200 images, 5 per second, 30 s left'
    """
    rate = num_done / seconds
    left = max(0, num_expected - num_done) / rate
    return f"{what}: {num_done} of {num_expected} images, {rate:.0f} per second, {left:.0f} s left"
