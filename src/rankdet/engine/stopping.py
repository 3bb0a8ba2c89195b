"""Signals that ask a training to stop: remembered, so that the step can be finished and saved."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

# torchrun passes on the Ctrl-C that the terminal has sent to everyone already: the same request.
_SECONDS_OF_ONE_REQUEST = 1.0
_HANG_UP = getattr(signal, "SIGHUP", None)  # the terminal was closed; unknown to Windows
_SIGNALS = (signal.SIGINT, signal.SIGTERM, *([_HANG_UP] if _HANG_UP else []))
_SHOW_CURSOR = "\x1b[?25h"  # which a live display has hidden


class StopRequest:
    """True once SIGINT, SIGTERM or SIGHUP came; the second one ends the process at once.

    with StopRequest() as stop:
        for step in steps:
            if stop.agreed():
                break
    sys.exit(stop.exit_code)

    Outside of the main thread signals cannot be handled: then nothing is installed. signal: the
    first that came, None before. agree: given the signal that came here, the one that the processes
    of a training have agreed on (`Processes.agreed_signal`). is_silent: say nothing when one comes.

    >>> with StopRequest() as stop:
    ...     before = bool(stop)
    ...     signal.raise_signal(signal.SIGTERM)
    >>> before, bool(stop), stop.exit_code
    (False, True, 143)
    """

    def __init__(
        self,
        agree: Callable[[int | None], int | None] = lambda signal: signal,
        *,
        is_silent: bool = False,
    ) -> None:
        self._agree = agree
        self._is_silent = is_silent
        self.signal: int | None = None
        self._came_here = False  # or the signal is that of another process
        self._time = 0.0
        self._process = os.getpid()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if number == _HANG_UP and signal.getsignal(number) is signal.SIG_IGN:
                    continue  # nohup has asked for it
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            # None: installed by something other than Python, which cannot install it again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    def __bool__(self) -> bool:
        return self.signal is not None

    def agreed(self) -> bool:
        """Whether all processes are to stop: all must ask, and get the same answer."""
        agreed = self._agree(self.signal)
        if agreed is not None:  # else one may have come here meanwhile: for the next time
            self.signal = agreed
        return agreed is not None

    @property
    def exit_code(self) -> int:
        """What shells call a process that a signal ended, as 130 or 143; 0 without one."""
        return 0 if self.signal is None else 128 + self.signal

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork of this process: the request is not for it
            _end(number)
        elif not self._came_here:
            self._came_here = True
            if self.signal is None:
                self.signal = number
            self._time = time.monotonic()
            name = signal.Signals(number).name
            if not self._is_silent:
                _say(f"\n{name}: finishing this step, saving; once more to stop at once.\n")
        elif time.monotonic() - self._time > _SECONDS_OF_ONE_REQUEST:
            _end(number)


def _end(number: int) -> None:
    """End this process as the signal does by default."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _say(text: str) -> None:
    # Not by print: the signal may have come in the middle of one, which then cannot be entered.
    if os.isatty(2):
        text = _SHOW_CURSOR + text  # a second signal would leave it hidden
    with suppress(OSError):  # the terminal is gone: all the more reason to save
        os.write(2, text.encode())
