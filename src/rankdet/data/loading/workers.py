"""Processes that prepare results ahead of time, and what to say when one of them dies or hangs.

Built on torch's DataLoader, which starts them and keeps the order. Added here: a worker's exception
arrives as it was raised, and a worker that died or hangs is named together with its sample.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from rankdet.errors import LoaderError, RankdetError, printable

# make(key, report): the result of a key; calls report(index) before it turns to a sample.
Make = Callable[[Any, Callable[[int], None]], Any]

_POLL_SECONDS = 5.0  # how long to wait for a result before looking whether all workers live
_NO_SAMPLE = -1
_PLAIN = (str, bytes, int, float, type(None))  # arguments of an exception that can be copied
# The fork server imports these once, before it starts the first worker.
_PRELOADED = ["rankdet.data.loading.loader", "rankdet.data.augmentation.transforms"]

_FEWER = "Use fewer workers, a smaller batch, or smaller images."
_SIGNALS = {  # what such a death usually means, and what to do
    "SIGKILL": ("probably because the memory was used up", _FEWER),
    "SIGBUS": (
        "probably because shared memory was used up",
        "Give more shared memory (/dev/shm; with Docker: --shm-size or --ipc=host). " + _FEWER,
    ),
    "SIGSEGV": ("a library crashed", "Run `rankdet check` on the data to find such an image."),
}


def default_start_method() -> str:
    """How workers start unless told otherwise: never by a fork of this process.

    By now this process has threads (torch's, CUDA's), and a fork can copy a lock that one of them
    holds. Linux: a small server without threads forks them, quick after its first start. Elsewhere
    they start from nothing, which is slow but safe.
    """
    return "forkserver" if sys.platform == "linux" else "spawn"


class WorkerPool:
    """Workers that live until `close`. With num_workers = 0 everything happens in this process.

    make is copied to every worker. prefetch: results that each worker prepares ahead. timeout:
    seconds to wait for one result; 0: for ever. name: what messages call a sample.
    """

    def __init__(
        self,
        make: Make,
        name: Callable[[int], str],
        *,
        num_workers: int,
        start_method: str,
        prefetch: int,
        timeout: float,
        pin_memory: bool,
    ) -> None:
        self.name = name
        self.timeout = timeout
        self.is_broken = False
        self._last_words = ""
        self.progress = torch.full((max(1, num_workers),), _NO_SAMPLE).share_memory_()
        self.keys: list[Any] = []  # DataLoader goes through this list each time it is started
        self.iterator: Iterator[Any] | None = None
        has_workers = num_workers > 0
        self.data_loader: DataLoader[Any] = DataLoader(
            _Tasks(make, self.progress),
            sampler=self.keys,
            batch_size=None,
            collate_fn=_unchanged,
            worker_init_fn=_end_with_parent,
            num_workers=num_workers,
            multiprocessing_context=worker_context(start_method) if has_workers else None,
            prefetch_factor=prefetch if has_workers else None,
            persistent_workers=has_workers,
            pin_memory=pin_memory,
            timeout=_POLL_SECONDS if has_workers else 0,
            generator=torch.Generator(),  # or it would draw from torch's global one
        )

    def start(self, keys: Sequence[Any]) -> None:
        """Begin to work on `keys`; all results of the keys before must have been taken."""
        self.keys[:] = keys
        try:
            with _own_signal_handlers():
                self.iterator = iter(self.data_loader)
        except (ConnectionError, EOFError) as error:
            raise LoaderError(
                f"the workers cannot be started ({error}): the process that starts them has ended, "
                "by a signal or for want of memory. Try again, or set num_workers=0."
            ) from error
        except (RuntimeError, OSError):
            raise
        except Exception as error:  # pickle raises whatever it meets
            raise LoaderError(
                f"the data set or the transform cannot be sent to worker processes ({error}). "
                "Define it at the top level of a module, or set num_workers=0."
            ) from error

    def results(self) -> Iterator[Any]:
        """The result of each key, in order. What `make` raised is raised here."""
        for number in range(len(self.keys)):
            yield self._next(number)

    def close(self) -> None:
        """End all workers."""
        if self.is_broken:
            # A stopped process does not hear anything milder; a lock may be held by a dead one.
            for worker in self._workers():
                with suppress(RuntimeError):  # torch reports the death of a child of this process
                    worker.kill()
                    worker.join(_POLL_SECONDS)
        workers = self._workers()
        # DataLoader has no public way to end its workers, and an exception that is being handled
        # keeps it alive: without this they would go on for as long.
        getattr(self.iterator, "_shutdown_workers", lambda: None)()
        self.iterator = None
        for worker in workers:
            if worker.is_alive():  # stopped: Python would wait for it at its end
                worker.kill()

    def _next(self, number: int) -> Any:
        assert self.iterator is not None
        started = time.monotonic()
        with self._limited(number):
            while True:
                try:
                    result = next(self.iterator)
                    break
                except Exception as error:
                    self.is_broken = True
                    if self._last_words:
                        raise LoaderError(self._last_words) from None
                    is_late = "timed out" in str(error)
                    self._raise_if_dead(wait=0 if is_late else 1)
                    if not is_late:
                        raise
                    if self.timeout and time.monotonic() - started > self.timeout:
                        raise LoaderError(self._hang_message(number)) from None
                    self.is_broken = False  # only slow: go on waiting
        if isinstance(result, Exception):
            raise result
        return result

    @contextmanager
    def _limited(self, number: int) -> Iterator[None]:
        """Kill the workers if the time is up and nothing is said about it.

        The images of a result are fetched from the process that made them, and if that one was
        stopped, the call waits for it without end.
        """

        def give_up() -> None:
            self._last_words = self._hang_message(number)
            for worker in self._workers():
                worker.kill()

        if not self.timeout or not self._workers():
            yield
            return
        timer = threading.Timer(self.timeout + _POLL_SECONDS, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _raise_if_dead(self, wait: float) -> None:
        workers = self._workers()
        if wait:  # a process can be gone for us a little before the system says so
            multiprocessing.connection.wait([worker.sentinel for worker in workers], wait)
        for number, worker in enumerate(workers):
            if worker.exitcode is not None:
                message = death_message(number, worker.pid, worker.exitcode, self._sample(number))
                raise LoaderError(message) from None

    def _hang_message(self, number: int) -> str:
        workers = self._workers()
        late = number % len(workers)  # DataLoader deals out the keys in turn
        stopped = [other for other, worker in enumerate(workers) if _is_stopped(worker.pid)]
        if stopped and late not in stopped:
            late = stopped[0]
        return (
            f"worker {late} (process {workers[late].pid}) gave no batch within {self.timeout:g} "
            f"seconds{': it was stopped' if stopped else ''}. {_place(self._sample(late))}. Check "
            "the file and the disk that it is on, or allow more time with timeout=."
        )

    def _sample(self, number: int) -> str:
        index = int(self.progress[number])
        return "" if index == _NO_SAMPLE else printable(self.name(index))

    def _workers(self) -> list[BaseProcess]:
        # Not public in DataLoader, but nothing else knows how a worker ended.
        return list(getattr(self.iterator, "_workers", ()))


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Undo DataLoader's handler of SIGCHLD afterwards.

    When a child has died it raises whatever the main thread is doing, in the middle of a step or a
    save. `_next` looks for the dead itself.
    """
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() != threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if before is None else before)


def worker_context(start_method: str) -> BaseContext:
    """Python's start method of that name, made ready: a fork server begins with its imports now."""
    context = multiprocessing.get_context(start_method)
    if start_method == "forkserver":
        context.set_forkserver_preload(_PRELOADED)
        # A terminal sends Ctrl-C to all processes, and the server would end at its imports, which
        # take seconds. It inherits what is blocked here, and so do the workers, who do not listen.
        multiprocessing.resource_tracker.ensure_running()  # unblocks signals, where it is not
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return context


def make_ready(num_workers: int | None) -> None:
    """Begin now with what the first batch would wait for; num_workers as of `make_loader`."""
    if num_workers != 0:
        worker_context(default_start_method())


def death_message(number: int, pid: int | None, exitcode: int, sample: str) -> str:
    """What is known of a worker that ended by itself.

    >>> print(death_message(0, 123, -9, "a.jpg"))
    worker 0 (process 123) was ended by SIGKILL, probably because the memory was used up. It was
    at a.jpg. Use fewer workers, a smaller batch, or smaller images.
    """
    if exitcode < 0:
        name = signal.Signals(-exitcode).name
        cause, hint = _SIGNALS.get(name, ("", ""))
        how = f"was ended by {name}" + (f", {cause}" if cause else "")
    else:
        how = f"ended with exit code {exitcode}"
        hint = (
            "Its own message stands above. A script that loads data must protect its start with "
            '`if __name__ == "__main__":`, because workers import it.'
        )
    return f"worker {number} (process {pid}) {how}. {_place(sample)}. {hint}".strip()


def _is_stopped(pid: int | None) -> bool:
    """Whether a signal has stopped the process, as far as this can be known."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    return False


def _place(sample: str) -> str:
    return f"It was at {sample}" if sample else "It was not at a sample"


class _Tasks(Dataset[Any]):
    """What DataLoader takes for a data set: makes the result of a key, in a worker."""

    def __init__(self, make: Make, progress: Tensor) -> None:
        self.make = make
        self.progress = progress

    def __getitem__(self, key: Any) -> Any:
        info = get_worker_info()
        number = info.id if info else 0

        def report(index: int) -> None:
            self.progress[number] = index

        try:
            result = self.make(key, report)
        except Exception as error:
            # As a value: DataLoader would make a new exception of its type and its traceback.
            result = _portable(error) if info else error
        report(_NO_SAMPLE)
        return result


def _portable(error: Exception) -> Exception:
    """The exception with its traceback in a note; a substitute unless it is sure to arrive.

    It is copied to the main process, and one of unknown make can fail in any way when it is.
    """
    if isinstance(error, RankdetError):
        return error
    frames = "".join(traceback.format_tb(error.__traceback__))
    error.add_note(f"Raised in a worker process:\n{frames}")
    is_of_python = type(error).__module__ == "builtins" and vars(error).keys() == {"__notes__"}
    if is_of_python and all(type(part) in _PLAIN for part in error.args):
        return error
    substitute = RuntimeError(f"{type(error).__name__}: {error}")
    for note in error.__notes__:
        substitute.add_note(note)
    return substitute


def _end_with_parent(number: int) -> None:
    """Let this worker end when the main process does, even by a signal that nobody can handle.

    DataLoader's own watch asks for the parent by its process number, and that is the fork server's:
    it would live as long as the workers, and they as long as it.
    """
    # A terminal sends Ctrl-C to all processes; the main one may want to finish its step first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _unchanged(result: Any) -> Any:
    return result
