"""Checkpoints and files of weights made for harm: refused with one line, without effect."""

from __future__ import annotations

import atexit
import itertools
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import safetensors.torch
import torch
from torch import Tensor

from rankdet.bench.faults.fault import BrokenBuild, Fault, Outcome, Trial
from rankdet.bench.faults.hostile_files import HostileFile, hostile_files, write_special
from rankdet.bench.faults.hostile_runs import RUNS, HostileRun, newest
from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.processes import Ended
from rankdet.bench.faults.training import resume_arguments, train_arguments, trained_run
from rankdet.bench.fuzz import peak_megabytes
from rankdet.engine.checkpoint import BEST, load_checkpoint
from rankdet.errors import RankdetError
from rankdet.workflows.run import CHECKPOINTS

_MOST_SECONDS = 10.0  # of processor time: other programs do not count
_HANG_SECONDS = 60.0
_MOST_MEGABYTES = 200.0
_BODY = "backbone.body."  # in front of the names of a detector's backbone
_QUICK = {
    "code by os.system",
    "a zip bomb",
    "a storage beyond its file",
    "a named pipe",
    "numbers outside of the file",
    "weights that are not numbers",
    "a manifest that names a file above",
    "momentum of another shape",
    "a pipe in place of the manifest",
}
_NUM_CASES = 96
_FOR_BROKEN = {"code by os.system", "a zip bomb"}


@dataclass(frozen=True)
class _Case:
    """arguments: of the command that meets the hostile file, which lies in the folder."""

    name: str
    folder: Path
    arguments: list[str]

    @property
    def marker(self) -> Path:
        """What a payload would write."""
        return self.folder / "marker"


def try_hostile(trial: Trial) -> Outcome:
    """Give each of them to the command that would read it."""
    sound = trained_run(trial)
    outcome = Outcome()
    slowest = most = 0.0
    if not trial.is_broken:
        _check_that_sound_ones_are_taken(trial, sound)
    for case in itertools.chain(_file_cases(trial, sound), _run_cases(trial, sound)):
        problem, seconds, megabytes = _judged(trial, case)
        slowest, most = max(slowest, seconds), max(most, megabytes)
        outcome.add(problem and f"{case.name}: {problem}")
        shutil.rmtree(case.folder)
        trial.advance()
    outcome.worst = f"{slowest:.1f} s, {most:.0f} MB more than before"
    return outcome


def _is_wanted(trial: Trial, name: str) -> bool:
    if trial.is_broken:
        return name in _FOR_BROKEN
    return name in _QUICK or not trial.is_quick


def _file_cases(trial: Trial, sound: Path) -> Iterator[_Case]:
    folder = trial.folder / "file"
    for hostile in hostile_files(folder / "marker", _body(sound)):
        if _is_wanted(trial, hostile.name):
            folder.mkdir()
            yield _file_case(hostile, folder)


def _body(run: Path) -> dict[str, Tensor]:
    """The weights of a run's backbone, as in a file of it."""
    weights = load_checkpoint(newest(run)).weights
    return {name.removeprefix(_BODY): weights[name] for name in weights if _BODY in name}


def _file_case(hostile: HostileFile, folder: Path) -> _Case:
    path = folder / "weights.pth"
    if hostile.content is None:
        write_special(hostile.name, path)
    else:
        path.write_bytes(hostile.content)
    arguments = [*train_arguments(folder / "out", epochs=1), "--weights", str(path)]
    return _Case(hostile.name, folder, arguments)


def _run_cases(trial: Trial, sound: Path) -> Iterator[_Case]:
    for hostile in RUNS:
        if _is_wanted(trial, hostile.name):
            yield _run_case(hostile, sound, trial.folder / "run")


def _run_case(hostile: HostileRun, sound: Path, folder: Path) -> _Case:
    run = Path(shutil.copytree(sound, folder / "out"))
    (run / CHECKPOINTS / BEST).unlink(missing_ok=True)
    only = newest(run)
    for path in (run / CHECKPOINTS).glob("step-*"):
        if path != only:
            shutil.rmtree(path)  # or it would be taken instead
    which = "best" if "best" in hostile.name else only.name
    arguments = _run_arguments(run, which, is_resumed=hostile.is_resumed)
    case = _Case(hostile.name, folder, arguments)
    hostile.spoil(run, case.marker)
    return case


def _run_arguments(run: Path, checkpoint: str, *, is_resumed: bool) -> list[str]:
    if is_resumed:
        return [*resume_arguments(run), "--epochs", "3"]
    return ["evaluate", str(run), "--device", "cpu", "--force", "--checkpoint", checkpoint]


def _check_that_sound_ones_are_taken(trial: Trial, sound: Path) -> None:
    """Or all could be refused for another reason."""
    run = Path(shutil.copytree(sound, trial.folder / "sound"))
    weights = trial.folder / "sound.safetensors"
    weights.write_bytes(safetensors.torch.save(_body(sound)))
    for arguments in (
        _run_arguments(run, newest(run).name, is_resumed=False),
        _run_arguments(run, newest(run).name, is_resumed=True),
        [*train_arguments(trial.folder / "out", epochs=1), "--weights", str(weights)],
    ):
        ended = trial.server.rankdet(*arguments).wait()
        if ended.status != 0:
            raise RankdetError(f"what is sound is refused: {ended.last_line}")


def _judged(trial: Trial, case: _Case) -> tuple[str | None, float, float]:
    """What is wrong with the answer, and what it took: seconds and megabytes."""
    before = _outside(case)
    cost = trial.folder / "cost.json"
    cost.write_text("[0, 0]")
    patches = (*trial.patches, Patch(report_cost, (str(cost),)))
    child = trial.server.rankdet(*case.arguments, patches=patches)
    try:
        ended = child.wait(_HANG_SECONDS)
    except RankdetError:
        return "it hangs", _HANG_SECONDS, 0.0
    seconds, megabytes = json.loads(cost.read_text())
    problem = _problem(ended, seconds, megabytes)
    if case.marker.exists():
        problem = "its code was run"
    elif _outside(case) != before:
        problem = "files were changed outside of the run"
    return problem, seconds, megabytes


def _outside(case: _Case) -> set[Path]:
    return {path for path in case.folder.rglob("*") if case.folder / "out" not in path.parents}


def _problem(ended: Ended, seconds: float, megabytes: float) -> str | None:
    lines = ended.output.strip().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    if ended.status != 1 or len(errors) != 1 or lines[-1] != errors[0]:
        return f"ended with {ended.status}: {ended.last_line}"
    if len(errors[0]) > 2000 or not errors[0].isprintable():
        return f"the error is not a line: {errors[0][:200]}"
    if seconds > _MOST_SECONDS:
        return f"{seconds:.0f} s"
    if megabytes > _MOST_MEGABYTES:
        return f"{megabytes:.0f} MB"
    return None


# In the child


def report_cost(file: str) -> None:
    """At the end, the processor time and the megabytes needed more than now go into the file."""
    start = peak_megabytes()

    def report() -> None:
        Path(file).write_text(json.dumps([time.process_time(), peak_megabytes() - start]))

    atexit.register(report)


def load_anything() -> None:
    """`torch.load` unpickles whatever is there."""
    original = torch.load

    def load(*arguments: Any, **settings: Any) -> Any:
        return original(*arguments, **{**settings, "weights_only": False})

    mock.patch("torch.load", load).start()


def trust_archives() -> None:
    """The sizes of the members of an archive are not looked at."""
    mock.patch("rankdet.detectors.weight_files._check_archive").start()


HOSTILE = Fault(
    name="hostile",
    title="hostile checkpoints and files of weights: refused with one line",
    try_it=try_hostile,
    broken=(
        BrokenBuild("torch.load unpickles anything", (Patch(load_anything),)),
        BrokenBuild("sizes in archives are not checked", (Patch(trust_archives),)),
    ),
    tries=(_NUM_CASES, len(_QUICK)),
)
