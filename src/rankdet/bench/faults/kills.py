"""kill -9 at any time: the run goes on with --resume, and ends as if nothing had happened."""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from rankdet.bench.faults.changes import count_changes, die_at_change
from rankdet.bench.faults.fault import BrokenBuild, Fault, Outcome, Trial
from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.processes import Child
from rankdet.bench.faults.training import (
    STEPS_PER_EPOCH,
    final_hash,
    resume_arguments,
    train_arguments,
)
from rankdet.engine.checkpoint import checkpoint_name, checkpoints
from rankdet.engine.records import read_metrics
from rankdet.engine.train import Position
from rankdet.errors import RankdetError
from rankdet.workflows import resume
from rankdet.workflows.run import CHECKPOINTS, METRICS_FILE, is_run

_NUM_RUNS, _NUM_KILLS = 12, 5  # of each run
_NUM_CHANGES = 40
_POLL_SECONDS = 0.002


def try_kills(trial: Trial) -> Outcome:
    """Kill each of the runs several times, let it end, and compare it with one let alone."""
    whole = _let_alone(trial)
    outcome = Outcome()
    moments: Counter[str] = Counter()
    for number in range(trial.count(_NUM_RUNS, 1)):
        run = trial.folder / f"run-{number}"
        for kill in range(trial.count(_NUM_KILLS, 1 if trial.is_broken else 3)):
            _kill(trial, run, whole.seconds, is_aimed=kill == 0)
            moments[_moment(run)] += 1
            trial.advance()
        outcome.add(_problem_at_end(trial, run, whole.hash))
    outcome.worst = "killed " + ", ".join(f"{n}x {moment}" for moment, n in moments.most_common())
    return outcome


@dataclass(frozen=True)
class _Whole:
    """What a run comes to that is let alone. num_changes: of files and folders."""

    hash: str
    seconds: float
    num_changes: int


def _let_alone(trial: Trial) -> _Whole:
    """The run without a fault, of the real build; made once for all that want it."""
    name = f"kills-{_num_epochs(trial)}"
    if name not in trial.server.references:
        run, changes = trial.folder / "whole", trial.folder / "changes.txt"
        changes.touch()
        ended = trial.server.rankdet(
            *_train_arguments(trial, run),
            patches=[Patch(count_changes, (str(run), str(changes)))],
        ).wait()
        if ended.status != 0:
            raise RankdetError(f"a run without faults: {ended.last_line}")
        whole = _Whole(final_hash(run), ended.seconds, changes.stat().st_size)
        trial.server.references[name] = whole
    found: _Whole = trial.server.references[name]
    return found


def _start(trial: Trial, run: Path, *patches: Patch) -> Child:
    """The training, or what is left of it."""
    arguments = resume_arguments(run) if is_run(run) else _train_arguments(trial, run)
    return trial.server.rankdet(*arguments, patches=(*trial.patches, *patches))


def _train_arguments(trial: Trial, run: Path) -> list[str]:
    return train_arguments(run, epochs=_num_epochs(trial), save_every=1)


def _num_epochs(trial: Trial) -> int:
    return trial.count(4, 2)


def _kill(trial: Trial, run: Path, seconds: float, is_aimed: bool) -> None:
    """Start it and kill it after a random time, or once it has come to the middle of an epoch.

    seconds: what a run takes. One that has ended before is started again, to be killed sooner.
    """
    while True:
        child = _start(trial, run)
        if is_aimed:
            _wait_for_middle(trial, run, child)
        else:
            time.sleep(trial.chance.uniform(0, seconds))
        child.kill()
        if child.wait().status == -signal.SIGKILL:
            return
        seconds /= 2


def _wait_for_middle(trial: Trial, run: Path, child: Child) -> None:
    """Until there is a checkpoint of a step in the middle of an epoch."""
    epoch = trial.chance.randrange(_num_epochs(trial) - 1)
    path = run / CHECKPOINTS / checkpoint_name(STEPS_PER_EPOCH * epoch + 2)
    while not path.exists() and not child.has_ended():
        time.sleep(_POLL_SECONDS)


def _problem_at_end(trial: Trial, run: Path, expected: str) -> str | None:
    """What is wrong with the run once it has been let go to its end; None if nothing is."""
    ended = _start(trial, run).wait()
    if ended.status != 0:
        return f"{run.name} cannot go on: {ended.last_line}"
    found = final_hash(run)
    return None if found == expected else f"{run.name} ends with other numbers ({found[:8]})"


def _moment(run: Path) -> str:
    """In the middle of what a run was killed."""
    if not is_run(run):
        return "at the start"
    folder = run / CHECKPOINTS
    names = {path.name.split("-")[0] for path in folder.iterdir()} if folder.is_dir() else set()
    if ".saving" in names:
        return "in a save"
    if ".removing" in names:
        return "in the removal of an old checkpoint"
    found = checkpoints(folder)
    if not found:
        return "before the first checkpoint"
    step = int(found[-1].name.split("-")[1][:8])
    rows = read_metrics(run / METRICS_FILE)
    evaluated = {row["step"] for row in rows if row["kind"] == "evaluation"}
    is_due = step % STEPS_PER_EPOCH == 0 and step not in evaluated
    return "in an evaluation" if is_due else "between"


# At each change on the disk


def try_changes(trial: Trial) -> Outcome:
    """Let runs die right before one of their changes on the disk, spread over all of them."""
    whole = _let_alone(trial)
    outcome = Outcome()
    count = 1 if trial.is_broken else trial.count(_NUM_CHANGES, 2)
    for number in range(count):
        run = trial.folder / f"run-{number}"
        place = (number + trial.chance.random()) / count
        if trial.is_broken:
            place = 0.7  # where there are checkpoints, which it does not go on from as it should
        change = int(place * whole.num_changes)
        child = _start(trial, run, Patch(die_at_change, (str(run), change)))
        status = child.wait().status
        if status == -signal.SIGKILL:
            outcome.add(_problem_at_end(trial, run, whole.hash))
        else:
            outcome.add(f"{run.name} was not killed at change {change}: it ended with {status}")
        trial.advance()
    outcome.worst = f"one of {whole.num_changes} changes of files and folders"
    return outcome


# Broken builds


def forget_optimizer() -> None:
    """Resume without the optimiser's momentum."""
    mock.patch("rankdet.workflows.resume.restore_optimizer").start()


def forget_position() -> None:
    """Resume at the start of the epoch."""
    original = resume.restore

    def restore(*arguments: Any) -> Position:
        return replace(original(*arguments), batch=0)

    mock.patch("rankdet.workflows.train.restore", restore).start()


_BROKEN = (
    BrokenBuild("resume forgets the optimiser", (Patch(forget_optimizer),)),
    BrokenBuild("resume forgets the position", (Patch(forget_position),)),
)

KILLS = Fault(
    name="kill",
    title="kill -9 at random times, 5 in each run: same final hash",
    try_it=try_kills,
    broken=_BROKEN,
    tries=(_NUM_RUNS * _NUM_KILLS, 3),
)
CHANGES = Fault(
    name="kill-write",
    title="kill -9 right before a change on the disk: same final hash",
    try_it=try_changes,
    broken=_BROKEN[:1],
    tries=(_NUM_CHANGES, 2),
)
