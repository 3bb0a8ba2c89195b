"""A long training: memory, open files, threads and temporary files must not grow."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from rankdet.bench.faults.data_workers import fork_workers
from rankdet.bench.faults.fault import BrokenBuild, Fault, Outcome, Trial
from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.processes import Child
from rankdet.bench.faults.training import train_arguments
from rankdet.bench.faults.watching import descendants, last_step
from rankdet.engine import train as engine

_STEPS, _STEPS_QUICK = 3000, 60
_SAVE_EVERY = 25
_SAMPLE_SECONDS, _SAMPLE_SECONDS_QUICK = 0.5, 0.05
_HANG_SECONDS = 1800.0
_WARM_UP = 0.3  # of the samples: until every part has run, and memory was given back and forth
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Sample:
    """What a training holds at one moment: the process itself, and all that it has started."""

    megabytes: float  # resident, of the process itself
    children_megabytes: float
    descriptors: float
    threads: float
    processes: float
    temporary_files: float  # in TMPDIR
    shared_files: float  # of shared memory
    run_files: float


# By how much the typical value of the last samples may be above that of the first. Memory breathes
# by a few megabytes; counts differ while a save or an evaluation is at work: a checkpoint is a
# folder of four files.
_LIMITS = Sample(
    megabytes=16,
    children_megabytes=24,
    descriptors=8,
    threads=3,
    processes=1,
    temporary_files=1,
    shared_files=4,
    run_files=12,
)


def try_soak(trial: Trial) -> Outcome:
    """Train for thousands of steps with workers, saves and evaluations; compare end with start."""
    temporary = trial.folder / "tmp"
    temporary.mkdir()
    run = trial.folder / "run"
    num_steps = trial.count(_STEPS, _STEPS_QUICK)
    patches = [*([Patch(fork_workers)] if trial.is_quick else []), *trial.patches]
    child = trial.server.rankdet(
        *_arguments(run, num_steps), patches=patches, environment={"TMPDIR": str(temporary)}
    )
    samples = _watched(trial, child, run, temporary, num_steps)
    ended = child.wait()
    if ended.status != 0 or last_step(run) != num_steps:
        problems = [f"it ended at step {last_step(run)} with {ended.status}: {ended.last_line}"]
    else:
        problems = grown(samples)
    problems += [f"left behind: {path.name}" for path in temporary.iterdir()]
    outcome = Outcome()
    outcome.add("; ".join(problems) or None)
    outcome.worst = _growth(samples)
    return outcome


def _arguments(run: Path, num_steps: int) -> list[str]:
    """Two workers; epochs of a dozen steps, so that these, too, begin and end often."""
    settings = {
        "training.max_steps": num_steps,
        "training.save_every": _SAVE_EVERY,
        "evaluation.every": 2 if num_steps == _STEPS_QUICK else 25,
    }
    return [
        *train_arguments(run, epochs=num_steps),
        *("--train-split", "train:24", "--workers", "2"),
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
    ]


def _watched(
    trial: Trial, child: Child, run: Path, temporary: Path, num_steps: int
) -> list[Sample]:
    """Samples from the first step to the last; on a busy machine the end may take as long."""
    samples = []
    seconds = _SAMPLE_SECONDS_QUICK if trial.is_quick else _SAMPLE_SECONDS
    shared_before = set(_names(_SHARED_MEMORY))
    told = 0
    deadline = time.monotonic() + _HANG_SECONDS
    while not child.has_ended() and time.monotonic() < deadline:
        step = last_step(run)
        if 0 < step < num_steps:
            samples.append(_sampled(child.pid, run, temporary, shared_before))
        for _ in range(step - told):
            trial.advance()
        told = max(told, step)
        time.sleep(seconds)
    return samples


def _sampled(pid: int, run: Path, temporary: Path, shared_before: set[str]) -> Sample:
    children = descendants(pid)
    everyone = [pid, *children]
    return Sample(
        megabytes=_resident(pid),
        children_megabytes=sum(map(_resident, children)),
        descriptors=sum(len(_names(Path(f"/proc/{each}/fd"))) for each in everyone),
        threads=sum(len(_names(Path(f"/proc/{each}/task"))) for each in everyone),
        processes=len(everyone),
        temporary_files=_num_below(temporary),
        shared_files=sum(
            f"_{each}_" in name
            for name in set(_names(_SHARED_MEMORY)) - shared_before
            for each in everyone
        ),
        run_files=_num_below(run),
    )


def _resident(pid: int) -> float:
    """Megabytes in memory that the process does not share."""
    with suppress(OSError, IndexError):
        words = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(words[1]) - int(words[2])) * os.sysconf("SC_PAGESIZE") / 2**20
    return 0.0


def _names(folder: Path) -> list[str]:
    with suppress(OSError):
        return [path.name for path in folder.iterdir()]
    return []


def _num_below(folder: Path) -> int:
    """Files and folders; some may go while they are counted."""
    return sum(len(folders) + len(files) for _, folders, files in os.walk(folder))


def grown(samples: Sequence[Sample]) -> list[str]:
    """What has grown from the first to the last third after the start, in words.

    >>> steady = Sample(100, 200, 30, 8, 5, 0, 0, 12)
    >>> grown([steady] * 10)
    []
    """
    if len(_at_work(samples)) < 3:
        return ["there are too few samples"]
    found = []
    for each in fields(Sample):
        first, last = _first_and_last(samples, each.name)
        if last - first > getattr(_LIMITS, each.name):
            found.append(f"{each.name.replace('_', ' ')}: {first:.0f}, later {last:.0f}")
    return found


def _at_work(samples: Sequence[Sample]) -> list[Sample]:
    """Without the start, and without evaluations, which have more processes."""
    late = samples[int(len(samples) * _WARM_UP) :]
    if not late:
        return []
    usual = statistics.mode(sample.processes for sample in late)
    return [sample for sample in late if sample.processes == usual]


def _first_and_last(samples: Sequence[Sample], name: str) -> tuple[float, float]:
    """The typical value in the first third, and in the last."""
    values = [getattr(sample, name) for sample in _at_work(samples)]
    size = len(values) // 3
    return statistics.median(values[:size]), statistics.median(values[-size:])


def _growth(samples: Sequence[Sample]) -> str:
    if len(_at_work(samples)) < 3:
        return ""
    texts = []
    names = {
        "megabytes": "MB",
        "children_megabytes": "MB in workers",
        "descriptors": "open files",
        "threads": "threads",
    }
    for name, text in names.items():
        first, last = _first_and_last(samples, name)
        texts.append(f"{last - first:+.0f} {text}")
    return ", ".join(texts)


# Broken builds


def keep_tensors() -> None:
    """Keep four megabytes of every step."""
    kept: list[torch.Tensor] = []
    _in_each_step(lambda: kept.append(torch.ones(2**20)))


def keep_files_open() -> None:
    """Open a file in every step, and never close it."""
    _in_each_step(lambda: os.open(os.devnull, os.O_RDONLY))


def _in_each_step(leak: Callable[[], Any]) -> None:
    original = engine.training_step

    def training_step(*arguments: Any, **options: Any) -> Any:
        leak()
        return original(*arguments, **options)

    mock.patch("rankdet.engine.train.training_step", training_step).start()


SOAK = Fault(
    name="soak",
    title="3,000 steps: no growth of memory, open files, threads, temporary files",
    try_it=try_soak,
    broken=(
        BrokenBuild("keeps four megabytes of each step", (Patch(keep_tensors),)),
        BrokenBuild("opens a file in each step", (Patch(keep_files_open),)),
    ),
    tries=(_STEPS, _STEPS_QUICK),
)
