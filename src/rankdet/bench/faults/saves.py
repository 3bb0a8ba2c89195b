"""kill -9 in the middle of a save: a checkpoint that can be read is always there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from rankdet.bench.faults.announcements import BEGIN, END, Announcements
from rankdet.bench.faults.fault import BrokenBuild, Fault, Outcome, Trial
from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.processes import Child
from rankdet.bench.faults.training import (
    STEPS_PER_EPOCH,
    resume_arguments,
    tensors_hash,
    train_arguments,
)
from rankdet.engine import sealed_folder
from rankdet.engine.checkpoint import load_checkpoint, newest_checkpoint
from rankdet.engine.records import read_metrics
from rankdet.errors import CheckpointError, RankdetError
from rankdet.workflows.run import CHECKPOINTS, METRICS_FILE, is_run

_NUM_KILLS, _NUM_KILLS_QUICK = 200, 4
_NUM_STEPS = 12
_OTHER_FILE_SYSTEM = Path("/dev/shm")
_PIECE = 65536  # bytes


def try_saves(trial: Trial) -> Outcome:
    """Kill trainings somewhere between the beginning and the end of a save."""
    hashes, seconds = _let_alone(trial)
    outcome = Outcome()
    count = trial.count(_NUM_KILLS, _NUM_KILLS_QUICK)
    places = [(number + trial.chance.random()) / count for number in range(count)]
    trial.chance.shuffle(places)
    folders = _temporary_folders()
    run = trial.folder / "run-0"
    num_unfinished = 0
    for number, place in enumerate(places):
        environment = {"TMPDIR": folders[number % len(folders)]}
        if not _kill_in_save(trial, run, place * seconds, environment):
            run = trial.folder / f"run-{number + 1}"
            _kill_in_save(trial, run, place * seconds, environment)
        num_unfinished += any(run.glob(f"{CHECKPOINTS}/.saving-*"))
        outcome.add(_problem(run, hashes))
        if outcome.problems:
            run = trial.folder / f"run-{number + 1}"
        trial.advance()
    where = "; TMPDIR half of the time on another file system"
    if len(folders) == 1:
        where = "; there is no other file system for TMPDIR"
    outcome.worst = f"{num_unfinished} saves left unfinished, of {seconds * 1000:.0f} ms{where}"
    return outcome


def _temporary_folders() -> list[str]:
    """The usual folder for temporary files, and one on another file system if there is one."""
    usual = os.environ.get("TMPDIR", "/tmp")
    is_other = os.access(_OTHER_FILE_SYSTEM, os.W_OK) and (
        _OTHER_FILE_SYSTEM.stat().st_dev != Path(usual).stat().st_dev
    )
    return [usual, str(_OTHER_FILE_SYSTEM)] if is_other else [usual]


def _let_alone(trial: Trial) -> tuple[dict[int, str], float]:
    """Of the real build: the hash of each step's checkpoint, and the seconds of a save."""
    run = trial.folder / "whole"
    with Announcements(trial.folder / "announcements") as saves:
        arguments = (*_train_arguments(run), "--set", "training.keep_checkpoints=100")
        child = trial.server.rankdet(*arguments, patches=[saves.patch])
        seconds = []
        while saves.wait_for(BEGIN, child):
            begin = time.monotonic()
            if saves.wait_for(END, child):
                seconds.append(time.monotonic() - begin)
        ended = child.wait()
    if ended.status != 0 or len(seconds) != _NUM_STEPS:
        raise RankdetError(f"a run without faults: {ended.last_line}")
    hashes = {
        step: tensors_hash(load_checkpoint(path))
        for path in (run / CHECKPOINTS).glob("step-*")
        if (step := int(path.name.split("-")[1]))
    }
    return hashes, sorted(seconds)[len(seconds) // 2]


def _start(trial: Trial, run: Path, saves: Announcements, environment: Mapping[str, str]) -> Child:
    arguments = resume_arguments(run) if is_run(run) else _train_arguments(run)
    patches = (*trial.patches, saves.patch)
    return trial.server.rankdet(*arguments, patches=patches, environment=environment)


def _train_arguments(run: Path) -> list[str]:
    return train_arguments(run, epochs=_NUM_STEPS // STEPS_PER_EPOCH, save_every=1)


def _kill_in_save(trial: Trial, run: Path, seconds: float, environment: Mapping[str, str]) -> bool:
    """Go on with the run, and kill it so long after a save has begun; False: it has ended."""
    with Announcements(trial.folder / "announcements") as saves:
        child = _start(trial, run, saves, environment)
        for _ in range(trial.chance.randint(1, 3)):
            saves.wait_for(BEGIN, child)
        time.sleep(seconds)
        child.kill()
        return child.wait().status == -signal.SIGKILL


def _problem(run: Path, hashes: Mapping[int, str]) -> str | None:
    """None if the newest checkpoint is one that was written whole, and not one too old."""
    newest = newest_checkpoint(run / CHECKPOINTS)
    rows = [row["step"] for row in read_metrics(run / METRICS_FILE) if row["kind"] == "step"]
    if newest is None:
        return f"{run.name}: no checkpoint can be read" if max(rows, default=0) > 1 else None
    try:
        read = load_checkpoint(newest)
    except CheckpointError as error:
        return f"{run.name}: {error}"
    if tensors_hash(read) != hashes[read.step]:
        return f"{run.name}: {newest.name} has other numbers"
    if rows and read.step < max(rows) - 1:  # the row of a step is written before it is saved
        return f"{run.name}: {newest.name} is the newest, and {max(rows)} steps were done"
    return None


# A broken build


def write_in_place() -> None:
    """Checkpoints are written over the one before, as by `torch.save` to the same name."""
    mock.patch("rankdet.engine.checkpoint.write_folder", _write_over).start()


def _write_over(path: Path, files: Mapping[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for earlier in sorted(path.parent.glob("step-*"))[-1:]:
        earlier.rename(path)
    path.mkdir(exist_ok=True)
    contents = {**files, sealed_folder.MANIFEST: sealed_folder._manifest_bytes(files)}
    for name, content in contents.items():
        with (path / name).open("wb") as stream:
            for start in range(0, len(content), _PIECE):
                stream.write(content[start : start + _PIECE])
                time.sleep(0.0002)  # a disk of some 300 MB/s


SAVES = Fault(
    name="kill-save",
    title="kill -9 during a save: the newest checkpoint can be read",
    try_it=try_saves,
    broken=(BrokenBuild("files are written in place", (Patch(write_in_place),)),),
    tries=(_NUM_KILLS, _NUM_KILLS_QUICK),
)
