"""Killed and hung processes that load data: named with their signal and file, and the run saved."""

from __future__ import annotations

import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any
from unittest import mock

from rankdet.bench.faults.fault import BrokenBuild, Fault, Outcome, Trial
from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.training import train_arguments
from rankdet.bench.faults.watching import (
    data_workers,
    last_step,
    problem_with_saving,
    send,
    wait_until,
)
from rankdet.data.loading.workers import WorkerPool
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.write import write_dataset
from rankdet.errors import RankdetError

_NUM_WORKERS = 2
_TRIES, _TRIES_QUICK = 10, 2
_DEADLY = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS)
# Large images, small in the training: the workers have most of the work, and are met at a file.
_NUM_DRAWN, _NUM_COPIES, _SIDE = 2, 20, 1000
_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 4.0  # of the run, for one batch
_START_SECONDS = 120.0  # each time torch is imported once more
_END_SECONDS = 60.0
_END_SECONDS_BROKEN = 7.0  # a wait without end is as good as one of minutes


def try_data_workers(trial: Trial) -> Outcome:
    """Kill one of two workers, or stop it, in turn; look at what is said, saved and left."""
    data = _large_images(trial)
    outcome = Outcome()
    slowest, num_files = 0.0, 0
    for number in range(trial.count(_TRIES, _TRIES_QUICK)):
        which = signal.SIGSTOP if number % 2 else _DEADLY[number // 2 % len(_DEADLY)]
        problem, seconds, has_file = _tried(trial, trial.folder / f"run-{number}", data, which)
        slowest, num_files = max(slowest, seconds), num_files + has_file
        outcome.add(problem and f"{which.name}: {problem}")
        trial.advance()
    outcome.worst = f"{num_files} at a file; told after {slowest:.1f} s"
    return outcome


def _large_images(trial: Trial) -> Path:
    """A data set of few images under many names; made once."""
    data: Path = trial.server.references.get("large", trial.server.folder / "large")
    if not data.exists():
        write_dataset(
            {
                "train": SyntheticDataset("train", _NUM_DRAWN, size=_SIDE),
                "val": SyntheticDataset("val", 3, size=64),
            },
            data,
            "yolo",
        )
        for file in [*(data / "images/train").iterdir(), *(data / "labels/train").iterdir()]:
            for number in range(1, _NUM_COPIES):
                shutil.copyfile(file, file.with_stem(f"{file.stem}-{number}"))
        trial.server.references["large"] = data
    return data


def _tried(
    trial: Trial, run: Path, data: Path, which: signal.Signals
) -> tuple[str | None, float, bool]:
    """(what went wrong, seconds from the signal to the end, whether a file was named)."""
    patches = [Patch(be_impatient, (_PATIENCE_SECONDS,)), *trial.patches]
    if trial.is_quick:  # tenths of a second, not the many that a fresh process needs for torch
        patches.insert(0, Patch(fork_workers))
    child = trial.server.rankdet(*_arguments(run, data), patches=patches)
    first = trial.chance.randint(1, 4)
    wait_until(lambda: last_step(run) >= first or child.has_ended(), _START_SECONDS)
    time.sleep(trial.chance.uniform(0, 0.1))
    workers = data_workers(child.pid)
    if len(workers) != _NUM_WORKERS:
        child.kill()
        return f"found {len(workers)} workers: {child.wait().last_line}", 0.0, False
    number = trial.chance.randrange(_NUM_WORKERS)
    start = time.monotonic()
    send(workers[number], which)
    try:
        ended = child.wait(_END_SECONDS_BROKEN if trial.is_broken else _END_SECONDS)
    except RankdetError as error:
        return str(error), 0.0, False
    finally:
        child.kill()
    seconds = time.monotonic() - start
    named = f"worker {number} (process {workers[number]})"
    told = f"{named} gave no batch" if which == signal.SIGSTOP else f"{named} was ended by "
    if told not in ended.output or (which != signal.SIGSTOP and which.name not in ended.output):
        return f"expected {told!r}, got {ended.last_line!r}", seconds, False
    if ended.status != 1:
        return f"the status is {ended.status}", seconds, False
    file = re.search(r"It was at (\S+)\.", ended.output)
    if file and not list(data.rglob(Path(file[1]).name)):
        return f"there is no such file: {file[1]}", seconds, False
    return problem_with_saving(run), seconds, file is not None


def _arguments(run: Path, data: Path) -> list[str]:
    arguments = train_arguments(run, epochs=2, save_every=1000)
    arguments[1] = str(data)
    return [*arguments, "--train-split", "train", "--val-split", "val", "--workers", "2"]


# Patches


def be_impatient(seconds: float) -> None:
    """Wait so long for a batch, once the workers have given the first."""
    mock.patch("rankdet.data.loading.workers._POLL_SECONDS", _POLL_SECONDS).start()
    original = WorkerPool._next

    def next_result(pool: WorkerPool, number: int) -> Any:
        if number > 0:
            pool.timeout = seconds
        return original(pool, number)

    mock.patch.object(WorkerPool, "_next", next_result).start()


def fork_workers() -> None:
    """Start the workers by a fork of this process, which has one thread."""
    for module in ("loader", "workers"):
        name = f"rankdet.data.loading.{module}.default_start_method"
        mock.patch(name, return_value="fork").start()


def do_not_watch() -> None:
    """Wait for whatever DataLoader gives, for as long as it takes."""

    def next_result(pool: WorkerPool, number: int) -> Any:
        while True:
            try:
                return next(pool.iterator)  # type: ignore[arg-type]
            except RuntimeError as error:
                if "timed out" not in str(error):
                    raise

    mock.patch.object(WorkerPool, "_next", next_result).start()


DATA_WORKERS = Fault(
    name="worker",
    title="killed and hung data workers: named, the run saved, exit 1",
    try_it=try_data_workers,
    broken=(BrokenBuild("nobody watches the workers", (Patch(do_not_watch),)),),
    tries=(_TRIES, _TRIES_QUICK),
)
