"""Killed workers of torchrun: it starts all of them again, and the run goes on by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from unittest import mock

from rankdet.bench.faults import kills
from rankdet.bench.faults.fault import BrokenBuild, Fault, Outcome, Trial
from rankdet.bench.faults.patches import Patch, command
from rankdet.bench.faults.training import final_hash, train_arguments
from rankdet.bench.faults.watching import descendants, is_alive, last_step, send, wait_until
from rankdet.bench.faults.worlds import all_ended, start_world
from rankdet.errors import RankdetError

_NUM_RUNS, _NUM_KILLS = 5, 4  # of each run
_WORLD = 2
_EPOCHS, _EPOCHS_QUICK = 16, 2
_BETWEEN_KILLS = 8  # steps at most: all kills come long before the last step
_START_SECONDS = 240.0  # each time torch is imported by three processes
_END_SECONDS = 300.0
_LONGEST_START = 5.0  # seconds in which the first kill comes: torch is being imported


def try_killed_workers(trial: Trial) -> Outcome:
    """Kill one of two workers at random times; compare the end with that of a run let alone.

    Quick: without torchrun itself. All processes are started once more, as it does, and know by
    the same variable that it is not the first time.
    """
    expected = _hash_of_whole_run(trial)
    outcome = Outcome()
    longest = 0.0
    for number in range(trial.count(_NUM_RUNS, 1)):
        run = trial.folder / f"run-{number}"
        try:
            seconds = _with_restarts(trial, run) if trial.is_quick else _under_torchrun(trial, run)
            problem = None if final_hash(run) == expected else "it ends with other numbers"
            longest = max([longest, *seconds])
        except RankdetError as error:
            problem, seconds = str(error), []
        for _ in range(trial.count(_NUM_KILLS, 1)):  # the last hash is a verdict on all of them
            outcome.add(problem and f"{run.name}: {problem}")
            trial.advance()
    outcome.worst = f"back after {longest:.1f} s"
    return outcome


def _hash_of_whole_run(trial: Trial) -> str:
    """That of a run let alone, of the real build; made once."""
    name = f"torchrun-{trial.is_quick}"
    if name not in trial.server.references:
        whole = trial.folder / "whole"
        world = start_world(trial.server, _WORLD, *_arguments(trial, whole))
        _raise_unless_zero([end.status for end in all_ended(world, _END_SECONDS)], world[0].output)
        trial.server.references[name] = final_hash(whole)
    return str(trial.server.references[name])


def _arguments(trial: Trial, run: Path) -> list[str]:
    return train_arguments(run, epochs=trial.count(_EPOCHS, _EPOCHS_QUICK), save_every=1)


def _with_restarts(trial: Trial, run: Path) -> list[float]:
    """A run whose process 1 is killed once; seconds until all others had ended, too."""
    world = start_world(trial.server, _WORLD, *_arguments(trial, run), patches=trial.patches)
    target = trial.chance.randint(2, 5)
    try:
        wait_until(lambda: last_step(run) >= target or world[0].has_ended(), _START_SECONDS)
        start = time.monotonic()
        world[1].send(signal.SIGKILL)
        first = world[0].wait(60)
        seconds = time.monotonic() - start
    finally:
        for child in world:
            child.kill()
    if first.status == 0 or "process 1" not in first.output:
        raise RankdetError(f"process 0 does not say that process 1 is gone: {first.last_line}")
    again = start_world(
        trial.server,
        _WORLD,
        *_arguments(trial, run),
        patches=trial.patches,
        environment={"TORCHELASTIC_RESTART_COUNT": "1"},
    )
    _raise_unless_zero([end.status for end in all_ended(again, _END_SECONDS)], again[0].output)
    return [seconds]


def _under_torchrun(trial: Trial, run: Path) -> list[float]:
    """A run with several kills; for each the seconds until the next step was done."""
    output = trial.folder / f"{run.name}.txt"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = ["--nproc-per-node", str(_WORLD), "--max-restarts", str(_NUM_KILLS)]
    environment = {
        **os.environ,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "OMP_NUM_THREADS": "1",
    }
    with output.open("wb") as stream:
        launcher = subprocess.Popen(
            [*torchrun, *options, *command(trial.patches, *_arguments(trial, run))[1:]],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )
    try:
        seconds = []
        for kill in range(_NUM_KILLS):
            seconds.append(_killed_once(trial, run, launcher, kill))
        _raise_unless_zero([launcher.wait(_END_SECONDS)], output)
    except subprocess.TimeoutExpired as error:
        raise RankdetError(f"torchrun still ran: {output.read_text()[-500:]}") from error
    finally:
        left = _workers(launcher.pid)  # each has a session of its own
        with suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
        for pid in left:
            send(pid, signal.SIGKILL)
        launcher.wait()
    return seconds


def _killed_once(trial: Trial, run: Path, launcher: subprocess.Popen[bytes], kill: int) -> float:
    """Kill a worker; the seconds until new ones have gone on."""

    def is_over() -> bool:
        return launcher.poll() is not None

    if not wait_until(lambda: len(_workers(launcher.pid)) == _WORLD or is_over(), _START_SECONDS):
        raise RankdetError(f"kill {kill}: the workers did not start")
    if kill == 0:  # at any time of the start
        time.sleep(trial.chance.uniform(0, _LONGEST_START))
    else:
        target = last_step(run) + trial.chance.randint(1, _BETWEEN_KILLS)
        wait_until(lambda: last_step(run) >= target or is_over(), _START_SECONDS)
        time.sleep(trial.chance.uniform(0, 0.1))
    if is_over():
        raise RankdetError(f"kill {kill}: torchrun had ended with {launcher.returncode}")
    before = _workers(launcher.pid)
    start = time.monotonic()
    send(trial.chance.choice(before), signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, before)) or is_over(), _START_SECONDS)
    done = last_step(run)
    wait_until(lambda: last_step(run) > done or is_over(), _START_SECONDS)
    return time.monotonic() - start


def _workers(launcher: int) -> list[int]:
    """The processes that torchrun has started to train."""
    found = []
    for pid in descendants(launcher):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"train" in words and b"torch.distributed.run" not in words and is_alive(pid):
                found.append(pid)
    return found


def _raise_unless_zero(statuses: list[int], output: Path) -> None:
    if any(statuses):
        text = output.read_text(errors="replace").strip()[-500:]
        raise RankdetError(f"it ended with {statuses}: {text}")


# A broken build


def begin_anew() -> None:
    """After a restart, look for no run to go on with."""
    mock.patch("rankdet.workflows.run.is_run", return_value=False).start()


ELASTIC = Fault(
    name="torchrun",
    title="killed worker of torchrun: all start again, same final hash",
    try_it=try_killed_workers,
    broken=(
        BrokenBuild("resume forgets the optimiser", (Patch(kills.forget_optimizer),)),
        BrokenBuild("a restart does not look for the run", (Patch(begin_anew),)),
    ),
    tries=(_NUM_RUNS * _NUM_KILLS, 1),
)
