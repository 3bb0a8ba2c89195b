"""Checkpoints whose files have changed on the disk: noticed, and the one before is taken."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from rankdet.bench.faults.fault import BrokenBuild, Fault, Outcome, Trial
from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.training import final_hash, resume_arguments, trained_run
from rankdet.engine.checkpoint import (
    STATE,
    TRAINING,
    WEIGHTS,
    checkpoints,
    load_checkpoint,
    newest_checkpoint,
)
from rankdet.engine.sealed_folder import MANIFEST
from rankdet.errors import CheckpointError
from rankdet.workflows.run import CHECKPOINTS

_NUM_FILES, _NUM_FILES_QUICK = 200, 12
_NUM_RESUMED, _NUM_RESUMED_QUICK = 6, 1  # by a real `rankdet train --resume`
_FILES = (WEIGHTS, TRAINING, STATE, MANIFEST)

# Changes a file, and says how.
Damage = Callable[[Path, random.Random], str]


def flip(file: Path, chance: random.Random) -> str:
    """Change one bit."""
    content = bytearray(file.read_bytes())
    position, bit = chance.randrange(len(content)), chance.randrange(8)
    content[position] ^= 1 << bit
    file.write_bytes(content)
    return f"bit {bit} of byte {position} of {file.name}"


def truncate(file: Path, chance: random.Random) -> str:
    """Cut off the end, all of it, or the file itself."""
    size = file.stat().st_size
    kept = chance.choice([0, size - 1, size // 2, chance.randrange(size), None])
    if kept is None:
        file.unlink()
        return f"{file.name} removed"
    file.write_bytes(file.read_bytes()[:kept])
    return f"{file.name} cut after {kept} of {size} bytes"


def try_flips(trial: Trial) -> Outcome:
    """Flip bits in the newest checkpoint."""
    return _try_damage(trial, flip)


def try_truncated(trial: Trial) -> Outcome:
    """Cut off files of the newest checkpoint."""
    return _try_damage(trial, truncate)


def _try_damage(trial: Trial, damage: Damage) -> Outcome:
    """Most are judged by the functions that a training uses; for some, a training goes on."""
    whole = trained_run(trial)
    expected = final_hash(whole)
    outcome = Outcome()
    count = trial.count(_NUM_FILES, _NUM_FILES_QUICK)
    num_resumed = 0 if trial.is_broken else trial.count(_NUM_RESUMED, _NUM_RESUMED_QUICK)
    arguments = (str(whole), damage.__name__, trial.chance.getrandbits(32), count - num_resumed)
    for problem in trial.server.call(problems, *arguments, patches=trial.patches):
        outcome.add(problem)
        trial.advance()
    for number in range(num_resumed):
        run = Path(shutil.copytree(whole, trial.folder / f"run-{number}"))
        outcome.add(_problem_of_resume(trial, run, damage, _FILES[number % 4], expected))
        trial.advance()
    outcome.worst = f"all files in turn; {num_resumed} of them by rankdet train --resume"
    return outcome


def problems(run: str, damage: str, seed: int, count: int) -> list[str | None]:
    """For each damage to the newest checkpoint: what is wrong with the answer. In the child."""
    chance = random.Random(seed)
    spoil = {"flip": flip, "truncate": truncate}[damage]
    newest = checkpoints(Path(run) / CHECKPOINTS)[-1]
    found = []
    for number in range(count):
        file = newest / _FILES[number % 4]
        content = file.read_bytes()
        how = spoil(file, chance)
        problem = _problem_of_reading(newest)
        file.write_bytes(content)
        found.append(problem and f"{how}: {problem}")
    return found


def _problem_of_reading(damaged: Path) -> str | None:
    """None if the damaged checkpoint is refused, and another one found in its place."""
    *_, before, _ = sorted(damaged.parent.glob("step-*"))
    warnings: list[str] = []
    try:
        if newest_checkpoint(damaged.parent, warnings.append) != before:
            return "it is still the newest"
        if len(warnings) != 1 or "passed over" not in warnings[0]:
            return f"the warnings are {warnings}"
        load_checkpoint(damaged)
    except CheckpointError:
        return None
    except Exception as error:  # the very thing that must not happen
        return f"{type(error).__name__}: {error}"
    return "it is loaded as if nothing had happened"


def _problem_of_resume(
    trial: Trial, run: Path, damage: Damage, file: str, expected: str
) -> str | None:
    """None if the training goes on from the checkpoint before, and ends with the same numbers."""
    newest = checkpoints(run / CHECKPOINTS)[-1]
    how = damage(newest / file, trial.chance)
    ended = trial.server.rankdet(*resume_arguments(run), patches=trial.patches).wait()
    if ended.status != 0:
        return f"{how}: cannot go on: {ended.last_line}"
    if f"{newest.name} is passed over: " not in ended.output:
        return f"{how}: no warning"
    return None if final_hash(run) == expected else f"{how}: it ends with other numbers"


# A broken build


def trust_files() -> None:
    """Files are read as they are, without a look at sizes and hashes."""
    mock.patch("rankdet.engine.checkpoint.read_file", _read).start()


def _read(path: Path, name: str) -> bytes:
    return (path / name).read_bytes()


_BROKEN = (BrokenBuild("sizes and hashes are not compared", (Patch(trust_files),)),)

FLIPS = Fault(
    name="bit-flip",
    title="a flipped bit in the newest checkpoint: noticed, and the one before is taken",
    try_it=try_flips,
    broken=_BROKEN,
    tries=(_NUM_FILES, _NUM_FILES_QUICK),
)
TRUNCATED = Fault(
    name="truncated",
    title="a file of the newest checkpoint cut off or missing: likewise",
    try_it=try_truncated,
    broken=_BROKEN,
    tries=(_NUM_FILES, _NUM_FILES_QUICK),
)
