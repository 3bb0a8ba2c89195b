"""Changes of files and folders, seen from outside by Python's audit events, in a child."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

_EVENTS = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def count_changes(folder: str, file: str) -> None:
    """From now on a byte goes into the file before every change of what is in the folder."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if is_change(event, arguments, folder):
            os.write(descriptor, b".")

    sys.addaudithook(count)


def die_at_change(folder: str, number: int) -> None:
    """This process will be killed instead of making the change with this number, from 0."""
    num_made = 0

    def die(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal num_made
        if is_change(event, arguments, folder):
            if num_made == number:
                os.kill(os.getpid(), signal.SIGKILL)
            num_made += 1

    sys.addaudithook(die)


def is_change(event: str, arguments: tuple[Any, ...], folder: str = "") -> bool:
    """Whether an audit event is about to change something whose path begins like this."""
    if event == "open":
        is_one = bool(arguments[2] & _WRITING)
    else:
        is_one = event in _EVENTS
    return is_one and str(arguments[0]).startswith(folder)
