"""Looking at a training from outside: how far it is, and which processes belong to it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rankdet.engine.checkpoint import newest_checkpoint
from rankdet.engine.records import read_metrics
from rankdet.workflows.run import CHECKPOINTS, METRICS_FILE

POLL_SECONDS = 0.002


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def last_step(run: Path) -> int:
    """The last step that the run has a row of; 0 before the first. Needs training.log_every = 1."""
    with suppress(FileNotFoundError):
        rows = read_metrics(run / METRICS_FILE)
        return max((row["step"] for row in rows if row["kind"] == "step"), default=0)
    return 0


def saved_step(run: Path) -> int:
    """The step of the newest whole checkpoint; 0 without one."""
    newest = newest_checkpoint(run / CHECKPOINTS)
    return int(newest.name.split("-")[1][:8]) if newest else 0


def problem_with_saving(run: Path) -> str | None:
    """What is wrong if the last step that was finished is not the last that was saved."""
    finished, saved = last_step(run), saved_step(run)
    if finished == 0:
        return "there is no finished step"
    return None if finished == saved else f"step {finished} was finished, step {saved} was saved"


def descendants(pid: int) -> list[int]:
    """The processes that this one has started, and those that they have; oldest first."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                status = (entry / "stat").read_text()
                parents[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
    found: list[int] = []
    wanted = {pid}
    while wanted:
        wanted = {child for child, parent in parents.items() if parent in wanted}
        found += wanted
    return sorted(found)


def data_workers(pid: int) -> list[int]:
    """The processes that load data for this one, whichever way they were started; oldest first."""
    helpers = ("resource_tracker", "forkserver")
    servers = {child for child in descendants(pid) if "forkserver" in _command(child)}
    found = []
    for child in descendants(pid):
        is_helper = any(word in _command(child) for word in helpers)
        if not is_helper or (child in servers and _parent(child) in servers):
            found.append(child)
    return found


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def is_alive(pid: int) -> bool:
    """Whether there is such a process, other than one that nobody has asked how it ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
