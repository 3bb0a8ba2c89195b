"""How far a training is: a live display on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from rankdet.errors import printable
from rankdet.progress import say

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_SECONDS_PER_LINE = 10.0
_SECONDS_PER_PICTURE = 0.25
_SECONDS_OF_RATE = 20.0  # how far back the images per second look


class TrainingDisplay:
    """Shows the steps of a training on standard error; a context manager.

    start_step: done by earlier sessions of the run. Most calls of `step` do nothing but look at the
    clock, and no thread is started: one that held a lock during a fork would block the new process.
    """

    def __init__(self, *, num_steps: int, num_epochs: int, start_step: int = 0) -> None:
        self.num_steps = num_steps
        self.num_epochs = num_epochs
        self._clock = _Clock()
        self._start_step = self._step = start_step
        self._epoch = 0
        self._row: dict[str, float] = {}
        self._live: Live | None = None
        self._shown_step = start_step
        self._shown_time = time.monotonic()

    def __enter__(self) -> TrainingDisplay:
        self._shown_time = time.monotonic()
        self._live = _make_live()
        if self._live is not None:
            with suppress(OSError):  # here and below: a terminal that is gone stops no training
                self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()
            self._live = None
            self._shown_step = self._start_step  # what it showed is gone from the screen
        if self._shown_step != self._step:
            self._show()

    def step(
        self, step: int, epoch: int, row: Mapping[str, float] | None = None, num_images: int = 0
    ) -> None:
        """Tell that `step` steps are done, the last with num_images images, in this epoch (from 0).

        row: numbers to show, by name; those of earlier steps stay. Plain numbers: to write out a
        tensor, the device would have to finish its work.
        """
        self._step = step
        self._epoch = epoch
        if row:
            self._row.update(row)
        self._clock.advance(num_images)
        seconds = _SECONDS_PER_LINE if self._live is None else _SECONDS_PER_PICTURE
        if step == self.num_steps or time.monotonic() - self._shown_time >= seconds:
            self._show()

    def note(self, text: str) -> None:
        """Print the text, above a live display."""
        lines = "\n".join(printable(line) for line in text.splitlines())
        if self._live is None:
            say(lines)
            return
        with suppress(OSError):
            self._live.console.print(lines, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Make room for something that shows its own progress, such as an evaluation.

        Its time does not count for the images per second, but does for the time left.
        """
        with self._clock.paused():
            if self._live is not None:
                with suppress(OSError):
                    self._live.stop()
            try:
                yield
            finally:
                if self._live is not None:
                    with suppress(OSError):
                        self._live.start()

    def _show(self) -> None:
        self._shown_step = self._step
        self._shown_time = time.monotonic()
        text = _line(
            epoch=min(self._epoch + 1, self.num_epochs),
            num_epochs=self.num_epochs,
            step=self._step,
            num_steps=self.num_steps,
            row=self._row,
            images_per_second=self._clock.images_per_second(),
            seconds_left=self._clock.seconds_left(self.num_steps - self._step),
        )
        if self._live is None:
            say(text)
            return
        with suppress(OSError):
            self._live.update(_picture(self._step, self.num_steps, text), refresh=True)


class _Clock:
    """The speed of this session. It is taken from the end of the first step, the slowest of all."""

    def __init__(self) -> None:
        self.num_images = 0
        self.num_steps = 0
        self.start: float | None = None
        self.pause = 0.0
        # Time without pauses, and images done by then: one mark each second of the last few.
        self.marks: deque[tuple[float, int]] = deque()

    def advance(self, num_images: int) -> None:
        now = time.monotonic()
        if self.start is None:
            self.start = now
            self.marks.append((now - self.pause, 0))
            return
        self.num_steps += 1
        self.num_images += num_images
        if now - self.pause - self.marks[-1][0] >= 1.0:
            self.marks.append((now - self.pause, self.num_images))
        while len(self.marks) > 2 and now - self.pause - self.marks[1][0] >= _SECONDS_OF_RATE:
            self.marks.popleft()

    @contextmanager
    def paused(self) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.pause += time.monotonic() - start

    def images_per_second(self) -> float | None:
        """Of the last seconds, without pauses; None before the second step's end."""
        if not self.num_images:
            return None
        then, num_images = self.marks[0]
        seconds = time.monotonic() - self.pause - then
        return (self.num_images - num_images) / seconds if seconds > 0 else None

    def seconds_left(self, num_steps: int) -> float | None:
        """For so many steps, at the rate of the session with its pauses; None if not known yet."""
        if self.start is None or not self.num_steps:
            return None
        return num_steps * (time.monotonic() - self.start) / self.num_steps


def _make_live() -> Live | None:
    """A live display, or None where standard error cannot show one."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if console.is_dumb_terminal:
        return None
    return Live(console=console, auto_refresh=False, transient=True)


def _picture(step: int, num_steps: int, text: str) -> Table:
    """A bar over the whole width, and the text below."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    picture = Table.grid(expand=True)
    picture.add_row(ProgressBar(total=num_steps, completed=step))
    picture.add_row(Text(text))
    return picture


def _line(
    *,
    epoch: int,
    num_epochs: int,
    step: int,
    num_steps: int,
    row: Mapping[str, float],
    images_per_second: float | None,
    seconds_left: float | None,
) -> str:
    """
    >>> _line(epoch=2, num_epochs=60, step=150, num_steps=6000, row={"class": 0.51234, "AP": 0.4},
    ...       images_per_second=61.2, seconds_left=1530.0)
    'epoch 2 of 60, step 150 of 6000: class 0.5123, AP 0.4, 61.2 images/s, 25 min left'
    """
    parts = [
        f"{name.replace('_', ' ')} {value:.4g}"
        for name, value in row.items()
        if not math.isnan(value)  # the AP of batches without an object: there is none
    ]
    if images_per_second is not None:
        parts.append(f"{images_per_second:.3g} images/s")
    if seconds_left is not None:
        parts.append(f"{_duration(seconds_left)} left")
    head = f"epoch {epoch} of {num_epochs}, step {step} of {num_steps}"
    return f"{head}: {', '.join(parts)}" if parts else head


def _duration(seconds: float) -> str:
    """
    >>> [_duration(seconds) for seconds in (59.2, 3599, 5000, 200_000)]
    ['59 s', '59 min', '1 h 23 min', '2 d 7 h']
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
