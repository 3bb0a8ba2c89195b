"""SIGTERM and SIGINT at any moment: the step is finished and saved, and the status says why."""

from __future__ import annotations

import functools
import os
import pkgutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from rankdet.bench.faults.fault import BrokenBuild, Fault, Outcome, Trial
from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.processes import Child
from rankdet.bench.faults.training import (
    STEPS_PER_EPOCH,
    final_hash,
    resume_arguments,
    train_arguments,
)
from rankdet.bench.faults.watching import (
    POLL_SECONDS,
    last_step,
    problem_with_saving,
    wait_until,
)
from rankdet.engine.checkpoint import checkpoint_name
from rankdet.engine.stopping import StopRequest
from rankdet.workflows.recording import Recorder
from rankdet.workflows.run import CHECKPOINTS

_NUM_SIGNALS, _NUM_SIGNALS_QUICK = 40, 3
_EPOCHS, _EPOCHS_QUICK = 4, 2
_SECONDS = 5.0  # from the signal to the checkpoint, and to the end of the process
_HANG_SECONDS = 20.0
_START_SECONDS = 30.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# What a training is doing, and what does it: the child says when it begins with one of them.
_MOMENTS = {
    "a step": "rankdet.engine.train:training_step",
    "an evaluation": "rankdet.workflows.recording:Recorder.evaluate",
    "a save": "rankdet.workflows.recording:Recorder.save",
    "the data": "rankdet.data.loading.loader:_MakeBatch.__call__",
}
_LONGEST_DELAY = {"a step": 0.04, "the data": 0.02, "a save": 0.04, "an evaluation": 0.08}


def try_signals(trial: Trial) -> Outcome:
    """Stop runs in the middle of everything; some go on, and are compared with one let alone."""
    count = 1 if trial.is_broken else trial.count(_NUM_SIGNALS, _NUM_SIGNALS_QUICK)
    expected = None if trial.is_broken else _hash_of_whole_run(trial)
    outcome = Outcome()
    slowest = {"saved": 0.0, "gone": 0.0}
    for number in range(count):
        run = trial.folder / f"run-{number}"
        moment = list(_MOMENTS)[number % len(_MOMENTS)]
        which = _SIGNALS[(number + number // len(_MOMENTS)) % 2]  # every moment with both
        problem, seconds = _stopped(trial, run, moment, which)
        slowest = {name: max(slowest[name], seconds[name]) for name in slowest}
        if problem is None and expected is not None and number % 5 == 0:
            problem = _problem_of_going_on(trial, run, expected)
        outcome.add(problem and f"{which.name} in {moment}: {problem}")
        trial.advance()
    outcome.worst = f"saved after {slowest['saved']:.2f} s, gone after {slowest['gone']:.2f} s"
    return outcome


def _hash_of_whole_run(trial: Trial) -> str:
    whole = trial.folder / "whole"
    trial.server.rankdet(*_arguments(trial, whole)).wait()
    return final_hash(whole)


def _arguments(trial: Trial, run: Path) -> list[str]:
    # Saved at the end of each epoch only.
    return train_arguments(run, epochs=_num_epochs(trial), save_every=1000)


def _num_epochs(trial: Trial) -> int:
    return trial.count(_EPOCHS, _EPOCHS_QUICK)


def _stopped(
    trial: Trial, run: Path, moment: str, which: signal.Signals
) -> tuple[str | None, dict[str, float]]:
    """Send a signal in the middle of something; what went wrong, and how long things took."""
    announced = trial.folder / f"{run.name}.txt"
    announced.touch()
    child = trial.server.rankdet(
        *_arguments(trial, run),
        patches=[Patch(announce, (str(announced),)), *trial.patches],
    )
    # In steps and data: those in the middle of an epoch. At its end the step is saved anyway.
    per_epoch = {"a step": STEPS_PER_EPOCH, "the data": STEPS_PER_EPOCH + 1}  # and one to evaluate
    wanted = trial.chance.randrange(_num_epochs(trial) - 1) * per_epoch.get(moment, 1)
    wanted += 2 if moment in per_epoch else 1

    def has_come() -> bool:
        return announced.read_text().split("\n").count(moment) >= wanted or child.has_ended()

    if not wait_until(has_come, _START_SECONDS):
        child.kill()
        return "the moment did not come", {"saved": 0.0, "gone": 0.0}
    time.sleep(trial.chance.uniform(0, _LONGEST_DELAY[moment]))
    child.send(which)
    # Quick: beside other tests, where a process with torch takes seconds just to end.
    return _judged(run, child, 128 + which, _HANG_SECONDS if trial.is_quick else _SECONDS)


def _judged(
    run: Path, child: Child, status: int, most_seconds: float
) -> tuple[str | None, dict[str, float]]:
    """Watch how a run that was told to stop ends, which may take so many seconds."""
    start = time.monotonic()
    seen: dict[str, float] = {}  # checkpoint: when it came
    while not child.has_ended() and time.monotonic() - start < _HANG_SECONDS:
        for path in (run / CHECKPOINTS).glob("step-*"):
            seen.setdefault(path.name, time.monotonic() - start)
        time.sleep(POLL_SECONDS)
    gone = time.monotonic() - start
    saved = seen.get(checkpoint_name(last_step(run)), gone)
    seconds = {"saved": saved, "gone": gone}
    if not child.has_ended():
        child.kill()
        return f"it still ran after {gone:.1f} s", seconds
    ended = child.wait()
    if problem := problem_with_saving(run):
        return problem, seconds
    if ended.status != status:
        return f"ended with {ended.status}: {ended.last_line}", seconds
    if saved > _SECONDS or gone > most_seconds:
        return f"saved after {saved:.1f} s, gone after {gone:.1f} s", seconds
    return None, seconds


def _problem_of_going_on(trial: Trial, run: Path, expected: str) -> str | None:
    ended = trial.server.rankdet(*resume_arguments(run)).wait()
    if ended.status != 0:
        return f"it cannot go on: {ended.last_line}"
    return None if final_hash(run) == expected else "it ends with other numbers"


# Patches


def announce(file: str) -> None:
    """Write a line into the file at the beginning of each of the moments."""
    stream = os.open(file, os.O_WRONLY | os.O_APPEND)
    for moment, name in _MOMENTS.items():
        wrap(name, functools.partial(os.write, stream, f"{moment}\n".encode()))


def wrap(name: str, first: Callable[[], Any]) -> None:
    """Let the function "package.module:Class.method" call `first` at its beginning."""
    original = pkgutil.resolve_name(name)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        first()
        return original(*arguments, **options)

    mock.patch(name.replace(":", "."), wrapped).start()


def install_no_handler() -> None:
    """Leave the signals to what Python does with them."""
    mock.patch.object(StopRequest, "__enter__", lambda stop: stop).start()


def save_nothing_at_the_end() -> None:
    """Stop without the save of the last step."""
    original = Recorder.save

    def save(recorder: Recorder, *arguments: Any) -> None:
        if not recorder.stop:
            original(recorder, *arguments)

    mock.patch.object(Recorder, "save", save).start()


SIGNALS = Fault(
    name="signal",
    title="SIGTERM / SIGINT at random moments: saved within 5 s, exit 143 / 130",
    try_it=try_signals,
    broken=(
        BrokenBuild("no handler", (Patch(install_no_handler),)),
        BrokenBuild("no save at the end", (Patch(save_nothing_at_the_end),)),
    ),
    tries=(_NUM_SIGNALS, _NUM_SIGNALS_QUICK),
)
