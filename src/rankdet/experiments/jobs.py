"""Several trainings at the same time, each in a process of `rankdet train`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO

from rankdet.config import Config, dump
from rankdet.errors import counted
from rankdet.experiments.arms import (
    alone_with,
    folders_of,
    has_outcome,
    keep_outcome,
    unfinished_trainings,
)
from rankdet.experiments.experiment import Request, Row, Stopped
from rankdet.output import write_whole
from rankdet.progress import say

_SECONDS_BETWEEN_LOOKS = 0.2
# As a training takes them; the last is unknown to Windows.
_STOPPING = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]

# What is closed when a process has ended: its log, and the word that this command trains it.
Running = dict[subprocess.Popen[bytes], tuple[Path, ExitStack]]


def rows_as_trained(rows: Sequence[Row], request: Request) -> Iterator[Row]:
    """The rows, each as soon as it can be run, while their trainings run in processes.

    One that is the outcome of its trainings comes when these are finished, and the others train on.
    All else comes at the end, when nothing shares the machine: what works with the runs themselves,
    and rows with a training that failed, which try it again and tell why. Stopped if a signal came,
    after the rows that were finished by then; the trainings have saved themselves.
    """
    left = {row.key: row for row in rows}
    unfinished = unfinished_trainings(rows, request)

    def ready() -> list[Row]:
        found = [
            row
            for row in left.values()
            if row.is_outcome and unfinished.keys().isdisjoint(folders_of(row, request))
        ]
        return [left.pop(row.key) for row in found]

    yield from ready()
    with closing(train_together(dict(unfinished), request)) as finished:
        for folder in finished:
            del unfinished[folder]
            yield from ready()
    yield from left.values()


def train_together(configs: Mapping[Path, Config], request: Request) -> Generator[Path, None, None]:
    """Train these, by their folders, request.jobs at a time; gives each folder when it is finished.

    One that another command trains is left to it; it comes when that has finished it, or is trained
    here when that has ended. One that fails is passed over. A signal is handed on to the processes:
    they save themselves, and Stopped comes when all have ended. So it does if one of them was
    stopped, after the others.
    """
    from rankdet.engine.stopping import StopRequest

    waiting, num_left, status, is_told = dict(configs), len(configs), 0, False
    running: Running = {}
    of_others: set[Path] = set()
    with ExitStack() as stack:
        stop = stack.enter_context(StopRequest(is_silent=True))
        stack.callback(_end, running)  # nothing goes on where this one ends by an error
        while waiting or running:
            if stop and not is_told:
                say(f"A signal came, for {counted(len(running), 'training')} to end and save.")
                waiting, status, is_told = {}, stop.exit_code, True
                for process in running:
                    process.terminate()
            for path in _start(waiting, running, of_others, request):
                num_left -= 1
                yield path
            for process in [process for process in running if process.poll() is not None]:
                path, resources = running.pop(process)
                if process.returncode == 0:
                    num_left -= 1
                    keep_outcome(path, configs[path], request)
                elif ended := _signal_status(process.returncode):
                    waiting, status = {}, status or ended
                resources.close()
                how = "finished" if process.returncode == 0 else f"ended ({process.returncode})"
                left = f"{counted(num_left, 'training')} of {len(configs)} left"
                say(f"{path.name} {how}; {left}.")
                if process.returncode == 0:
                    yield path
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    if status:
        raise Stopped(status)


def _start(
    waiting: dict[Path, Config], running: Running, of_others: set[Path], request: Request
) -> list[Path]:
    """Start what there is room for; gives what was finished by other commands meanwhile.

    Both are taken out of what waits. of_others: what was told to be trained by others.
    """
    from rankdet.engine.sealed_folder import TakenError

    finished = []
    for path in list(waiting):
        if len(running) >= request.jobs:
            break
        resources = ExitStack()
        try:
            resources.enter_context(alone_with(path))
        except TakenError:
            if path not in of_others:
                of_others.add(path)
                say(f"{path.name}: another command trains it.")
            continue
        config = waiting.pop(path)
        if path in of_others and has_outcome(path, config):
            resources.close()
            finished.append(path)
        else:
            say(f"Training {path.name}; it speaks in {path}.log")
            running[_started(path, config, request, resources)] = path, resources
    return finished


def _signal_status(code: int) -> int:
    """The status of a process that a signal has stopped, as shells call it; 0 for any other end.

    >>> [_signal_status(code) for code in (143, -15, -9, 1, 0)]
    [143, 143, 0, 0, 0]
    """
    number = code - 128 if code > 128 else -code
    return 128 + number if number in _STOPPING else 0


def _end(running: Running) -> None:
    for process in running:
        process.terminate()
    for process, (_, resources) in running.items():
        process.wait()
        resources.close()


def _started(
    path: Path, config: Config, request: Request, resources: ExitStack
) -> subprocess.Popen[bytes]:
    """A process of `rankdet train` with these settings; its log is closed with `resources`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(Path(f"{path}.yaml"), dump(config).encode())
    log: IO[bytes] = resources.enter_context(Path(f"{path}.log").open("ab"))  # noqa: SIM115
    # Processes that each take all processors wait for each other most of the time.
    threads = str(max((os.cpu_count() or 1) // request.jobs, 1))
    return subprocess.Popen(
        _command(path, request),
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
        env={"OMP_NUM_THREADS": threads, **os.environ},
    )


def _command(path: Path, request: Request) -> list[str]:
    from rankdet.workflows.run import is_run

    words = [sys.executable, "-m", "rankdet", "train", "--config", f"{path}.yaml"]
    words += ["--out", str(path)]
    words += ["--device", request.device] if request.device else []
    return [*words, "--resume"] if is_run(path) else words
