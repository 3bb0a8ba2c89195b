"""A full disk: the old checkpoint stays, and one line says what is missing."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

from rankdet.bench.faults.announcements import BEGIN, Announcements
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
            if not is_mounted:
                ended = _resumed_with_limit(trial, run)
            elif number % 2 == 0:
                ended = _resumed_while_it_fills_up(trial, run)
            else:
                ended = _resumed(trial, run)
            outcome.add(_problem(ended, run, expected, is_mounted))
            trial.advance()
        if not trial.is_broken:
            _must_succeed(trial.server.rankdet(*_arguments(run)).wait())  # there is room again
    how = "a tmpfs" if is_mounted else "RLIMIT_FSIZE: no right to mount a tmpfs"
    outcome.worst = f"{_LEAST / 1e6:.1f} to {_MOST / 1e6:.0f} MB free of 6.5 needed; {how}"
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


def _resumed(trial: Trial, run: Path) -> Ended:
    """How the run ends that finds the disk nearly full."""
    with _filled(trial, run):
        return trial.server.rankdet(*_arguments(run), patches=trial.patches).wait()


def _resumed_while_it_fills_up(trial: Trial, run: Path) -> Ended:
    """How the run ends that has looked at the free space before others took it."""
    with _filled(trial, run) as filler, Announcements(trial.folder / "announcements") as saves:
        patches = (*trial.patches, Patch(overlook_space), saves.patch)
        child = trial.server.rankdet(*_arguments(run), patches=patches)
        saves.wait_for(BEGIN, child)
        while not child.has_ended():
            with suppress(OSError), filler.open("ab") as stream:
                stream.write(bytes(2**20))
        return child.wait()


def _resumed_with_limit(trial: Trial, run: Path) -> Ended:
    """How the run ends whose files may not become as large as those of a checkpoint."""
    limit = Patch(limit_file_sizes, (trial.chance.randint(_LEAST, _MOST // 2),))
    return trial.server.rankdet(*_arguments(run), patches=(*trial.patches, limit)).wait()


@contextmanager
def _filled(trial: Trial, run: Path) -> Iterator[Path]:
    """A file that leaves little on the disk."""
    filler = run.parent / "filler"
    size = shutil.disk_usage(run).free - trial.chance.randint(_LEAST, _MOST)
    filler.write_bytes(bytes(size))
    try:
        yield filler
    finally:
        filler.unlink()


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


def overlook_space() -> None:
    """The look at the free space comes too early to see anything."""
    mock.patch("rankdet.engine.sealed_folder._check_space").start()


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
