"""How far a long command is: a bar on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

_SECONDS_PER_LINE = 10.0


class Meter(Protocol):
    """Told of the images to come, and of those that are done."""

    def expect(self, num_images: int) -> None: ...

    def advance(self, num_images: int = 1) -> None: ...


def say(text: str) -> None:
    """Print a line on standard error. Where that is gone, the work goes on without words."""
    with suppress(OSError):  # its disk is full, its reader has ended, its terminal was closed
        print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, noun: str = "images") -> Iterator[Meter]:
    """A meter for images, or what else is counted, which shows itself on standard error."""
    if not sys.stderr.isatty():
        yield _Lines(what, noun)
        return

    from rich.console import Console

    console = Console(stderr=True)
    if console.is_dumb_terminal:  # where a bar would show nothing at all
        yield _Lines(what, noun)
        return

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
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(what), total=None, rate="")
        total = 0

        class Bar:
            def expect(self, num_images: int) -> None:
                nonlocal total
                total += num_images
                bar.update(task, total=total)

            def advance(self, num_images: int = 1) -> None:
                speed = bar.tasks[0].speed
                rate = _rate(speed) if speed else ""
                bar.update(task, advance=num_images, rate=rate)

        yield Bar()


class _Lines:
    def __init__(self, what: str, noun: str = "images") -> None:
        self.what = what
        self.noun = noun
        self.num_expected = 0
        self.num_done = 0
        self.start = self.last = time.monotonic()

    def expect(self, num_images: int) -> None:
        self.num_expected += num_images

    def advance(self, num_images: int = 1) -> None:
        self.num_done += num_images
        now = time.monotonic()
        if now - self.last > _SECONDS_PER_LINE:
            self.last = now
            text = _line(self.what, self.num_done, self.num_expected, now - self.start, self.noun)
            say(text)


def _line(what: str, num_done: int, num_expected: int, seconds: float, noun: str = "images") -> str:
    """
    >>> _line("Decoding", 50, 200, 10.0)
    'Decoding: 50 of 200 images, 5 per second, 30 s left'
    """
    rate = num_done / seconds
    left = max(0, num_expected - num_done) / rate
    return f"{what}: {num_done} of {num_expected} {noun}, {_rate(rate)}, {left:.0f} s left"


def _rate(per_second: float) -> str:
    """
    >>> _rate(1234.5), _rate(0.125)
    ('1234 per second', '0.12 per second')
    """
    number = f"{per_second:.0f}" if per_second >= 10 else f"{per_second:.2g}"
    return f"{number} per second"
