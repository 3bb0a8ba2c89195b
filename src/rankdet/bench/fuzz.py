"""Reads spoilt files by the thousand, in child processes that may crash or hang without harm.

Allowed is success with counts that reconcile, or a DataError with all its parts; anything else is a
failure, as is more than a second or 400 MB for one file. `repeat` reads a file again.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rankdet.bench import bad_case
from rankdet.bench.bad_case import TRAIN
from rankdet.bench.spoilt import IMAGE_KINDS, Place, sound_files, spoilt_image, spoilt_text
from rankdet.data.reading import formats, images
from rankdet.data.reading.rules import RULES
from rankdet.data.reading.split import Split
from rankdet.errors import DataError, RankdetError

MAX_SECONDS = 1.0
MAX_MEGABYTES = 400.0
HANG_SECONDS = 10.0
_START_SECONDS = 60.0
START_METHOD = "spawn"  # a fresh process: its memory is its own
_MOST_ADDRESSES = 8 * 2**30  # bytes: a file that wants more must not take the machine with it
_TRIES = 3  # a slow file is timed again: the first time may be the machine's fault


T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What came of one file: "read", "refused", or "failed" with the reason."""

    index: int
    outcome: str
    reason: str = ""
    milliseconds: float = 0.0  # of processor time: other programs do not count
    megabytes: float = 0.0  # more than the process needed at its start


@dataclass
class Tally:
    """What came of all files of a kind."""

    kind: str
    tried: int = 0
    read: int = 0
    refused: int = 0
    slowest: float = 0.0  # milliseconds
    megabytes: float = 0.0
    failures: list[Answer] = field(default_factory=list)

    def add(self, answer: Answer) -> None:
        self.tried += 1
        self.read += answer.outcome == "read"
        self.refused += answer.outcome == "refused"
        if answer.outcome == "failed":
            self.failures.append(answer)
        self.slowest = max(self.slowest, answer.milliseconds)
        self.megabytes = max(self.megabytes, answer.megabytes)


# One file


def read_image(content: bytes, folder: Path) -> str:
    """ "read" or "refused"; AssertionError or whatever else is raised: a failure."""
    path = folder / "image.jpg"
    path.write_bytes(content)
    header = _or_refusal(lambda: images.read_header(path))
    pixels = _or_refusal(lambda: images.decode(path))
    if isinstance(pixels, DataError):
        return "refused"
    assert not isinstance(header, DataError), f"the header was refused, the pixels not: {header}"
    assert pixels.shape == (header.height, header.width, 3), f"{header}, {pixels.shape}"
    assert pixels.dtype == np.uint8
    return "read"


def read_text(place: Place, content: bytes, folder: Path) -> str:
    """ "read" or "refused"; AssertionError or whatever else is raised: a failure."""
    data = folder / place.format
    path = data / place.path
    path.write_bytes(content)
    try:
        split = _or_refusal(lambda: formats.read_split(data, TRAIN[place.format]))
        if isinstance(split, DataError):
            return "refused"
        assert_sound(split)
        return "refused" if split.findings.images.dropped else "read"  # one file of many
    finally:
        path.write_bytes(sound_files(place.format)[place.path])


def _or_refusal(function: Callable[[], T]) -> T | DataError:
    try:
        return function()
    except DataError as error:
        assert_complete(error)
        return error


def assert_complete(error: DataError) -> None:
    """Nothing, if an error has all that a user needs, on one line."""
    text = str(error)
    assert error.code in RULES, f"unknown code {error.code!r}"
    for part in ("file", "rule", "hint"):
        assert getattr(error, part), f"no {part}: {text}"
    assert text.isprintable(), f"not one plain line: {text!r}"
    assert len(text) < 10_000, f"a text of {len(text)} characters"


def assert_sound(split: Split) -> None:
    """Nothing, if what was read can be trusted: counts, boxes, labels and texts."""
    found = split.findings
    for tally in (found.images, found.objects):
        assert tally.reconciles(), f"does not reconcile: {tally.as_dict()}"
        assert min(tally.seen, tally.used, *tally.dropped.values(), 0) >= 0
    taken = split.annotations
    assert len(split) == found.images.used > 0
    assert len(taken.boxes) == len(taken.labels) == taken.offsets[-1] == found.objects.used
    assert len(split.classes) == len(set(split.classes)) > 0
    sizes = np.repeat(taken.sizes, np.diff(taken.offsets), axis=0)
    left, top, right, bottom = taken.boxes.T
    assert np.isfinite(taken.boxes).all()
    assert ((left >= 0) & (left < right) & (right <= sizes[:, 0])).all(), "boxes outside"
    assert ((top >= 0) & (top < bottom) & (bottom <= sizes[:, 1])).all(), "boxes outside"
    assert ((taken.labels >= 0) & (taken.labels < len(split.classes))).all(), "labels"
    assert np.isfinite(taken.areas).all(), "areas"
    for examples in found.examples.values():
        for finding in examples:
            assert finding.file, "a finding without file"
            assert str(finding).isprintable(), f"not one plain line: {str(finding)!r}"
            json.dumps(finding.as_dict(), ensure_ascii=False).encode("utf-8", "surrogatepass")


def write_sound_sets(folder: Path) -> None:
    """The sound data sets in which files are replaced."""
    for format in formats.FORMATS:
        bad_case.write_files(dict(sound_files(format)), folder / format)


def answer(kind: str, seed: int, index: int, folder: Path, baseline: float = 0.0) -> Answer:
    """What comes of one spoilt file, with its cost."""
    if kind in IMAGE_KINDS:
        content = spoilt_image(kind, seed, index)
        read = functools.partial(read_image, content, folder)
    else:
        place, content = spoilt_text(kind, seed, index)
        read = functools.partial(read_text, place, content, folder)
    return timed(read, index, baseline)


def timed(read: Callable[[], str], index: int = 0, baseline: float = 0.0) -> Answer:
    """The answer of `read`, with its memory and its processor time (the best of some, if slow)."""
    reason, milliseconds = "", float("inf")
    for _ in range(_TRIES):
        start = time.process_time()
        try:
            outcome = read()
        except Exception as error:
            outcome, reason = "failed", f"{type(error).__name__}: {error}"[:500]
        milliseconds = min(milliseconds, (time.process_time() - start) * 1000)
        if milliseconds < MAX_SECONDS * 1000:
            break
    megabytes = peak_megabytes() - baseline if baseline else 0.0
    if outcome != "failed" and milliseconds > MAX_SECONDS * 1000:
        outcome, reason = "failed", f"{milliseconds:.0f} ms"
    if outcome != "failed" and megabytes > MAX_MEGABYTES:
        outcome, reason = "failed", f"{megabytes:.0f} MB"
    return Answer(index, outcome, reason, milliseconds, megabytes)


def peak_megabytes() -> float:
    """The most memory that this process has held so far."""
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss starts with what the parent process had
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def repeat(kind: str, seed: int, index: int) -> Answer:
    """What comes of one spoilt file, here and now; for looking into a failure.

    >>> repeat("txt", seed=0, index=1).outcome in ("read", "refused")
    True
    """
    with tempfile.TemporaryDirectory() as name:
        write_sound_sets(Path(name))
        return answer(kind, seed, index, Path(name))


# Many files, in children


def limit_addresses() -> None:
    """From now on, what wants all memory of the machine gets a MemoryError."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))


def start_process(work: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """A process that does `work(connection, *arguments)`, and our end of the connection."""
    context: Any = multiprocessing.get_context(START_METHOD)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process is the end of the connection
    return process, ours


def _work(connection: Connection, kind: str, seed: int, indices: range) -> None:
    """The life of a child: an answer for every index goes out."""
    limit_addresses()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libtiff prints a line for every broken file
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sound_sets(folder)
        answer(kind, seed, -1, folder)  # imports and caches are no cost of a single file
        baseline = peak_megabytes()
        connection.send(None)
        for index in indices:
            found = answer(kind, seed, index, folder, baseline)
            connection.send(found)
            if found.megabytes > MAX_MEGABYTES:  # the peak stays: count from there on
                baseline = peak_megabytes()


@dataclass
class _Child:
    """A process, and the indices that it has not answered for."""

    process: BaseProcess
    connection: Connection
    kind: str
    remaining: range
    last_sign: float
    is_ready: bool = False

    def is_late(self) -> bool:
        allowed = HANG_SECONDS if self.is_ready else _START_SECONDS
        return time.monotonic() - self.last_sign > allowed

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _start(kind: str, seed: int, indices: range) -> _Child:
    process, connection = start_process(_work, kind, seed, indices)
    return _Child(process, connection, kind, indices, time.monotonic())


def run(
    num_files: dict[str, int], seed: int, num_children: int = 2
) -> Iterator[tuple[str, Answer]]:
    """(kind, answer) for every file: `num_files[kind]` of each kind. A child does one kind."""
    waiting = [(kind, range(count)) for kind, count in num_files.items() if count]
    children: list[_Child] = []
    try:
        while waiting or children:
            while waiting and len(children) < num_children:
                kind, indices = waiting.pop(0)
                children.append(_start(kind, seed, indices))
            wait([child.connection for child in children], timeout=1.0)
            for child in list(children):
                is_lost = yield from _answers(child)
                if is_lost or child.is_late() or not child.remaining:
                    child.stop()
                    children.remove(child)
                    if child.remaining:
                        if not child.is_ready:
                            raise RankdetError("a child process did not start")
                        yield child.kind, _lost(child, is_lost)
                        waiting.insert(0, (child.kind, child.remaining[1:]))
                        waiting = [(kind, indices) for kind, indices in waiting if indices]
    finally:
        for child in children:
            child.stop()


def _answers(child: _Child) -> Generator[tuple[str, Answer], None, bool]:
    """The answers so far; it returns whether the child has ended too early."""
    try:
        while child.connection.poll():
            received = child.connection.recv()
            child.last_sign = time.monotonic()
            if received is None:
                child.is_ready = True
                continue
            child.remaining = child.remaining[1:]
            yield child.kind, received
    except (EOFError, OSError):
        return bool(child.remaining)
    return False


def _lost(child: _Child, is_dead: bool) -> Answer:
    index = child.remaining[0]
    if is_dead:
        return Answer(index, "failed", f"the process ended with status {child.process.exitcode}")
    return Answer(index, "failed", f"no answer in {HANG_SECONDS:.0f} s", HANG_SECONDS * 1000)
