"""A row of the table: a fault, how often it was tried and survived, also on broken builds."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.processes import Server
from rankdet.errors import RankdetError

_MOST_PROBLEMS = 20  # of a row that are kept word by word


@dataclass(frozen=True)
class Trial:
    """What a fault is tried with. patches: those of a broken build; none for the real one.

    folder: empty, and removed afterwards. advance: to be called after every try.
    """

    server: Server
    folder: Path
    chance: random.Random
    is_quick: bool
    patches: tuple[Patch, ...] = ()
    advance: Callable[[], None] = lambda: None

    @property
    def is_broken(self) -> bool:
        """Whether a protection was patched away: then a few tries are enough."""
        return bool(self.patches)

    def count(self, full: int, quick: int) -> int:
        """How often to try."""
        return quick if self.is_quick else full


@dataclass
class Outcome:
    """How often a fault was tried and survived; worst: the nearest miss, in a few words."""

    tried: int = 0
    survived: int = 0
    worst: str = ""
    problems: list[str] = field(default_factory=list)

    def add(self, problem: str | None) -> None:
        """One more try, with what went wrong if something did."""
        self.tried += 1
        self.survived += problem is None
        if problem is not None:
            self.problems.append(problem)


@dataclass(frozen=True)
class BrokenBuild:
    """The package without one of its protections. what: in a few words."""

    what: str
    patches: tuple[Patch, ...]


@dataclass(frozen=True)
class Fault:
    """A row. name: a word for --only. tries: (full, quick), for the progress alone."""

    name: str
    title: str
    try_it: Callable[[Trial], Outcome]
    broken: tuple[BrokenBuild, ...]
    tries: tuple[int, int]


def tried(
    fault: Fault, server: Server, *, quick: bool, seed: int, advance: Callable[[], None]
) -> dict[str, Any]:
    """The row, ready for JSON. Its problems are those of the real build, and broken ones unseen."""
    start = time.monotonic()
    outcome = _outcome(fault, server, quick, seed, (), advance)
    seconds = time.monotonic() - start
    problems = list(outcome.problems)
    broken = []
    for build in fault.broken:
        found = _outcome(fault, server, True, seed, build.patches, lambda: None)
        broken.append({"build": build.what, "tried": found.tried, "survived": found.survived})
        if found.survived == found.tried:
            problems.append(f"a broken build was not noticed: {build.what}")
    if outcome.tried == 0 or outcome.survived + len(outcome.problems) != outcome.tried:
        problems.append("the counts do not add up")
    return {
        "name": fault.name,
        "title": fault.title,
        "tried": outcome.tried,
        "survived": outcome.survived,
        "worst": outcome.worst,
        "seconds": round(seconds, 1),
        "broken": broken,
        "problems": _first(problems),
    }


def _outcome(
    fault: Fault,
    server: Server,
    quick: bool,
    seed: int,
    patches: tuple[Patch, ...],
    advance: Callable[[], None],
) -> Outcome:
    chance = random.Random(f"{fault.name} {seed}")
    with tempfile.TemporaryDirectory(prefix="rankdet-", dir=server.folder) as name:
        trial = Trial(server, Path(name), chance, quick, patches, advance)
        try:
            return fault.try_it(trial)
        except RankdetError as error:  # a process that hangs, a run that fails without a fault
            raise RankdetError(f"{fault.title}: it could not be tried: {error}") from error


def _first(problems: Sequence[str]) -> list[str]:
    """The first of them, and how many more there are."""
    more = len(problems) - _MOST_PROBLEMS
    return [*problems[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
