"""A full disk: the old checkpoint stays, and one line says what is missing."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from rankdet.bench.faults.fault import BrokenBuild, Fault, Outcome, Trial
from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.processes import Ended
from rankdet.bench.faults.saves import write_in_place
from rankdet.bench.faults.training import resume_arguments, tensors_hash, train_arguments
from rankdet.engine.checkpoint import load_checkpoint, newest_checkpoint
from rankdet.errors import RankdetError
from rankdet.workflows.run import CHECKPOINTS

_NUM_TRIES, _NUM_TRIES_QUICK = 20, 2
_DISK = 48 * 2**20  # bytes: a run needs some 20 million
_LEAST, _MOST = 100_000, 5_000_000  # bytes left on it; a checkpoint has 6.5 million


def try_full_disk(trial: Trial) -> Outcome:
    """Go on with a run on a disk that has no room for another checkpoint."""
    outcome = Outcome()
    with _small_disk(trial.folder / "disk") as is_mounted:
        run = trial.folder / "disk" / "run"
        _must_succeed(trial.server.rankdet(*train_arguments(run, epochs=1)).wait())
        expected = _hash(run)
        for number in range(1 if trial.is_broken else trial.count(_NUM_TRIES, _NUM_TRIES_QUICK)):
            free = trial.chance.randint(_LEAST, _MOST)
            # Every other time the disk fills up after the look at the free space.
            is_found_late = number % 2 == 1 or not is_mounted
            ended = _resumed(trial, run, free, is_mounted, is_found_late)
            outcome.add(_problem(ended, run, expected, is_mounted))
            trial.advance()
        if not trial.is_broken:
            _must_succeed(trial.server.rankdet(*_arguments(run)).wait())  # there is room again
    how = "a tmpfs" if is_mounted else "RLIMIT_FSIZE: no right to mount a tmpfs"
    outcome.worst = f"{_LEAST / 1e6:.1f} to {_MOST / 1e6:.0f} MB too little; {how}"
    return outcome


def _arguments(run: Path) -> list[str]:
    return [*resume_arguments(run), "--epochs", "2"]


def _must_succeed(ended: Ended) -> None:
    if ended.status != 0:
        raise RankdetError(f"a run on a disk with room: {ended.last_line}")


@contextmanager
def _small_disk(folder: Path) -> Iterator[bool]:
    """Make the folder a small disk of its own; False where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)]
    try:
        is_mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _resumed(trial: Trial, run: Path, free: int, is_mounted: bool, is_found_late: bool) -> Ended:
    """How the run ends that has only so many bytes left."""
    patches = list(trial.patches)
    if is_found_late and is_mounted:
        patches.append(Patch(claim_free_space))
    filler = run.parent / "filler"
    if is_mounted:
        with filler.open("wb") as stream:
            stream.write(bytes(shutil.disk_usage(run).free - free))
    else:
        patches.append(Patch(limit_file_sizes, (free // 2,)))
    try:
        return trial.server.rankdet(*_arguments(run), patches=patches).wait()
    finally:
        filler.unlink(missing_ok=True)


def _problem(ended: Ended, run: Path, expected: str | None, is_mounted: bool) -> str | None:
    """None if the old checkpoint is there, and the answer one line that says what to do."""
    errors = [line for line in ended.output.splitlines() if line.startswith("error: ")]
    folder = run / CHECKPOINTS
    if _hash(run) != expected:
        return "the old checkpoint is gone"
    if ended.status != 1 or len(errors) != 1 or "Traceback" in ended.output:
        return f"ended with {ended.status}: {ended.last_line}"
    if str(folder) not in errors[0] or (is_mounted and "MB are free" not in errors[0]):
        return f"the folder or its free space is not named: {errors[0]}"
    if left := [path.name for path in folder.glob(".[rs]*ing-*")]:
        return f"left behind: {left}"
    return None


def _hash(run: Path) -> str | None:
    newest = newest_checkpoint(run / CHECKPOINTS)
    return None if newest is None else tensors_hash(load_checkpoint(newest))


# In the child


def claim_free_space() -> None:
    """The system says that the disk is nearly empty: it fills up only afterwards."""
    usage = shutil.disk_usage("/")._replace(free=2**40)
    mock.patch("shutil.disk_usage", return_value=usage).start()


def limit_file_sizes(num_bytes: int) -> None:
    """No file may become larger than this."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


FULL_DISK = Fault(
    name="full-disk",
    title="a full disk: the old checkpoint stays, and the error says how much is free",
    try_it=try_full_disk,
    broken=(BrokenBuild("files are written in place", (Patch(write_in_place),)),),
    tries=(_NUM_TRIES, _NUM_TRIES_QUICK),
)
