"""A child that says when a save begins and ends, through a named pipe."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

from rankdet.bench.faults.changes import is_change
from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.processes import HANG_SECONDS, Child
from rankdet.workflows.recording import Recorder

BEGIN, END = b"(", b")"


class Announcements:
    """The pipe; a context manager. patch: what makes a child use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rest = b""

    def __enter__(self) -> Announcements:
        self.path.unlink(missing_ok=True)
        os.mkfifo(self.path)
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    @property
    def patch(self) -> Patch:
        return Patch(announce_saves, (str(self.path),))

    def wait_for(self, sign: bytes, child: Child) -> bool:
        """Whether the sign has come; False once the child has ended."""
        deadline = time.monotonic() + HANG_SECONDS
        while sign not in self._rest and time.monotonic() < deadline:
            if child.has_ended():
                return False
            readable, _, _ = select.select([self._descriptor], [], [], 0.1)
            if readable and not (received := os.read(self._descriptor, 100)):
                time.sleep(0.001)  # nobody has opened the other end yet, or not any more
            elif readable:
                self._rest += received
        _, _, self._rest = self._rest.partition(sign)
        return True


def announce_saves(file: str) -> None:
    """From now on, the first change on the disk and the end of every save go through the pipe."""
    descriptor = os.open(file, os.O_WRONLY)
    original = Recorder.save
    is_awaited = False

    def announce(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal is_awaited
        if is_awaited and is_change(event, arguments):
            is_awaited = False
            os.write(descriptor, BEGIN)

    def save(self: Recorder, *arguments: Any) -> None:
        nonlocal is_awaited
        is_awaited = True  # before it writes, a save copies and hashes for a while
        original(self, *arguments)
        os.write(descriptor, END)

    sys.addaudithook(announce)
    mock.patch.object(Recorder, "save", save).start()
