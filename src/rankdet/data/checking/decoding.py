"""Decodes many image files in worker processes; one that crashes or hangs costs only its own image.

A worker answers after every image, so that it is always known which file a lost worker was on.
That file gets a second try, since a machine out of memory kills whom it likes; the rest of the
lost worker's files go to the others.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from rankdet.data.reading import images
from rankdet.data.reading.findings import Finding, data_error
from rankdet.errors import DataError, RankdetError, system_reason

MAX_SECONDS = 60.0  # for one image; the largest that the limit of pixels lets through need about 2

_CHUNK = 16  # images that a worker is given at once
_TRIES = 2
_MAX_SECONDS_TO_START = 60.0
_READY = "ready"
_START_HINT = "Try --workers 0, which needs none."

Decode = Callable[[Path, int], np.ndarray]


@dataclass(frozen=True)
class Outcome:
    """What became of one file: the hash of its bytes, or the finding that says what is wrong."""

    digest: bytes | None
    finding: Finding | None = None


def decode_all(
    paths: Sequence[Path],
    *,
    num_workers: int,
    max_pixels: int = images.MAX_PIXELS,
    max_seconds: float = MAX_SECONDS,
    decode: Decode = images.decode,
    on_image: Callable[[], None] | None = None,
) -> list[Outcome]:
    """The outcome of every file, in the order of `paths`. Without workers: all in this process.

    `decode` must be importable by name: the workers are fresh processes (nothing is forked).
    """
    outcomes: dict[int, Outcome] = {}
    if num_workers == 0:
        source = ((i, examine(path, max_pixels, decode)) for i, path in enumerate(paths))
    else:
        source = _examined_by_workers(paths, num_workers, max_pixels, max_seconds, decode)
    with closing(source):  # on Ctrl-C the workers end now, not when the generator is freed
        for index, outcome in source:
            outcomes[index] = outcome
            if on_image is not None:
                on_image()
    return [outcomes[index] for index in range(len(paths))]


def examine(path: Path, max_pixels: int, decode: Decode = images.decode) -> Outcome:
    """Decode one file fully and hash its bytes."""
    try:
        decode(path, max_pixels)
        try:
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16))
        except OSError as error:
            detail = f"{system_reason(error)}."
            raise data_error("image-unreadable", file=path, detail=detail) from error
    except DataError as error:
        return Outcome(None, Finding.from_error(error))
    except MemoryError:
        detail = "The memory does not suffice for it."
        return Outcome(None, Finding.of("image-crashes", file=path, detail=detail))
    return Outcome(digest.digest())


@dataclass
class _Worker:
    """A process, and the files that it was given and has not answered for, in its order."""

    process: BaseProcess
    connection: Connection
    pending: deque[int] = field(default_factory=deque)
    last_sign: float = 0.0  # when it last answered or was given work
    is_ready: bool = False  # it has started, and said so

    def is_lost(self, max_seconds: float) -> bool:
        """Whether it has ended, or has been silent for too long."""
        allowed = max_seconds if self.is_ready else max(max_seconds, _MAX_SECONDS_TO_START)
        return self.connection.closed or time.monotonic() - self.last_sign > allowed


def _examined_by_workers(
    paths: Sequence[Path], num_workers: int, max_pixels: int, max_seconds: float, decode: Decode
) -> Generator[tuple[int, Outcome]]:
    """(index, outcome) of every file, in the order in which they are done."""
    # Small data sets are not one worker's alone.
    chunk = max(1, min(_CHUNK, len(paths) // (2 * num_workers)))
    queue = deque(range(len(paths)))
    tries = [0] * len(paths)
    workers: list[_Worker] = []
    try:
        while queue or workers:
            while queue and len(workers) < num_workers:
                workers.append(_start(max_pixels, decode))
                _give(workers[-1], queue, chunk, paths)
            _wait_for_any(workers, max_seconds)
            for worker in list(workers):
                yield from _answers(worker)
                if worker.is_lost(max_seconds):
                    workers.remove(worker)
                    reason = _stop(worker)
                    if not worker.is_ready:
                        raise RankdetError(
                            f"a worker process did not start. {reason} {_START_HINT}"
                        )
                    culprit = worker.pending.popleft() if worker.pending else None
                    queue.extendleft(reversed(worker.pending))
                    if culprit is not None:
                        tries[culprit] += 1
                        if tries[culprit] < _TRIES:
                            queue.append(culprit)
                        else:
                            yield culprit, _crashed(paths[culprit], reason)
                elif not worker.pending:
                    if queue:
                        _give(worker, queue, chunk, paths)
                    else:
                        workers.remove(worker)
                        _stop(worker)
    finally:  # also on Ctrl-C
        for worker in workers:
            _stop(worker)


def _start(max_pixels: int, decode: Decode) -> _Worker:
    # "spawn": a fork would copy threads' locks, and everything that this process has loaded.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, max_pixels, decode), daemon=True)
    with _interrupts_held_back():
        process.start()
    theirs.close()  # so that the end of the process is the end of the connection
    return _Worker(process, ours, last_sign=time.monotonic())


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Ctrl-C reaches this process after the block, and a process started in it never."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _work(connection: Connection, max_pixels: int, decode: Decode) -> None:
    """The life of a worker: files come in, an outcome for each goes out, until nobody listens."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        connection.send(_READY)
        while True:
            for index, name in connection.recv():
                path = Path(os.fsdecode(name))
                connection.send((index, examine(path, max_pixels, decode)))
    except (EOFError, OSError):
        pass


def _give(worker: _Worker, queue: deque[int], chunk: int, paths: Sequence[Path]) -> None:
    """Hand the next files to an idle worker."""
    taken = [queue.popleft() for _ in range(min(chunk, len(queue)))]
    worker.pending.extend(taken)
    worker.last_sign = time.monotonic()
    with suppress(OSError):  # if it has died, that shows when its answers are looked for
        worker.connection.send([(index, os.fsencode(paths[index])) for index in taken])


def _wait_for_any(workers: Sequence[_Worker], max_seconds: float) -> None:
    """Sleep until a worker answers or ends, or the first of them has been silent for too long."""
    silent_since = min(worker.last_sign for worker in workers)
    timeout = max(0.0, silent_since + max_seconds - time.monotonic())
    wait([worker.connection for worker in workers], timeout)


def _answers(worker: _Worker) -> Iterator[tuple[int, Outcome]]:
    """What the worker has sent so far."""
    try:
        while worker.connection.poll():
            answer = worker.connection.recv()
            worker.last_sign = time.monotonic()
            if answer == _READY:
                worker.is_ready = True
                continue
            index, outcome = answer
            assert worker.pending.popleft() == index
            yield index, outcome
    except (EOFError, OSError):
        worker.connection.close()  # the mark of a worker that is no more


def _stop(worker: _Worker) -> str:
    """End a worker; how it ended, as a sentence."""
    is_silent = not worker.connection.closed
    worker.connection.close()
    if not is_silent:
        worker.process.join(5)  # it is about to end by itself, and then tells its status
    worker.process.kill()
    worker.process.join()
    if is_silent:
        return "It did not answer in time."
    code = worker.process.exitcode or 0
    return f"It was ended by signal {-code}." if code < 0 else f"It ended with status {code}."


def _crashed(path: Path, reason: str) -> Outcome:
    return Outcome(None, Finding.of("image-crashes", file=path, detail=reason))
