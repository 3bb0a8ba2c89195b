"""Children that run `rankdet`, or a function, and can be killed; none is left behind."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rankdet.bench.faults import server
from rankdet.bench.faults.patches import Patch, described, name_of
from rankdet.errors import RankdetError

PRELOADED = ("torch", "rankdet.cli", "rankdet.workflows.train", "rankdet.workflows.evaluate")
HANG_SECONDS = 120.0  # far more than any child needs
_START_SECONDS = 300.0


@dataclass(frozen=True)
class Ended:
    """How a process ended. status: as Popen has it, negative for a signal."""

    status: int
    output: str
    seconds: float

    @property
    def last_line(self) -> str:
        lines = self.output.strip().splitlines()
        return lines[-1] if lines else ""


class Child:
    """A process in a session of its own. output: what it has printed so far is in this file."""

    def __init__(self, server: Server, pid: int, output: Path) -> None:
        self.server = server
        self.pid = pid
        self.output = output
        self.start = time.monotonic()

    def send(self, number: int) -> None:
        """Send a signal to the process alone."""
        if not self.has_ended():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9: the process, and all that it has started."""
        if not self.has_ended():
            for kill in (os.killpg, os.kill):  # it may not have had the time to lead a group
                with suppress(ProcessLookupError):
                    kill(self.pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        self.server.listen(0)
        return self.pid in self.server.ended

    def wait(self, seconds: float = HANG_SECONDS) -> Ended:
        """How it ended; RankdetError, and it is killed, if that takes longer."""
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            left = deadline - time.monotonic()
            if left <= 0:
                self.kill()
                text = self.output.read_text(errors="replace")[-500:]
                raise RankdetError(f"a process still ran after {seconds:.0f} s: {text}")
            self.server.listen(left)
        status, end = self.server.ended[self.pid]
        return Ended(status, self.output.read_text(errors="replace"), end - self.start)


class Server:
    """Starts children; a context manager, at whose end none is left.

    folder: for their output. preloaded: the modules that they need not import themselves.
    """

    def __init__(self, folder: Path, preloaded: Sequence[str] = PRELOADED) -> None:
        self.folder = folder
        self.preloaded = preloaded
        self.ended: dict[int, tuple[int, float]] = {}  # pid: status and time
        self.references: dict[str, Any] = {}  # what rows have found out once for all of them
        self._started: list[int] = []
        self._numbers = itertools.count()
        self._rest = b""
        self._is_ready = False
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", server.__name__, *self.preloaded],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is for the bench, which then ends it
            bufsize=0,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready and time.monotonic() < deadline:
            self.listen(deadline - time.monotonic())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # it kills its children, and ends
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def rankdet(
        self,
        *arguments: str,
        patches: Sequence[Patch] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """A child that runs the command line with these arguments."""
        return self.start(server.run_command, *arguments, patches=patches, environment=environment)

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        patches: Sequence[Patch] = (),
        environment: Mapping[str, str] | None = None,
        seconds: float = HANG_SECONDS,
    ) -> Any:
        """What a function at the top of a module returns, called in a child; JSON in and out."""
        result = self.folder / f"result-{next(self._numbers)}.json"
        called = (str(result), name_of(function), *arguments)
        child = self.start(server.write_result, *called, patches=patches, environment=environment)
        ended = child.wait(seconds)
        if ended.status != 0:
            raise RankdetError(f"{function.__name__} ended with {ended.status}: {ended.last_line}")
        return json.loads(result.read_text(encoding="utf-8"))

    def start(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        patches: Sequence[Patch] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """A child that calls a function at the top of a module."""
        assert self._process is not None
        assert self._process.stdin is not None
        output = self.folder / f"output-{next(self._numbers)}.txt"
        output.touch()
        request = {
            "function": name_of(function),
            "arguments": list(arguments),
            "patches": described(patches),
            "environment": dict(environment or {}),
            "output": str(output),
        }
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        while not self._started:
            self.listen(HANG_SECONDS)
        return Child(self, self._started.pop(), output)

    def listen(self, seconds: float) -> None:
        """Take what the server says, waiting so long for it at most."""
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, seconds))
        if not readable:
            return
        received = os.read(self._process.stdout.fileno(), 65536)
        if not received:
            raise RankdetError("the process that starts the children has ended")
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if "ready" in answer:
                self._is_ready = True
            elif "started" in answer:
                self._started.append(answer["started"])
            else:
                self.ended[answer["ended"]] = (answer["status"], time.monotonic())
