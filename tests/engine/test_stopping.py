"""Requests to stop: real signals to real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rankdet.engine.stopping import StopRequest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

# Steps until it is asked to stop; then takes some time to save.
PROGRAM = """
import sys, time
from rankdet.engine.stopping import StopRequest

with StopRequest() as stop:
    print("ready", flush=True)
    while not stop:
        time.sleep(0.01)
    time.sleep(float(sys.argv[1]))
    print("saved", stop.signal, flush=True)
sys.exit(stop.exit_code)
"""


def _with_usual_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def child(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that starts this test in the background, or nohup, would have it ignore them.
        preexec_fn=_with_usual_signals,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


def message_of(process: subprocess.Popen[str]) -> str:
    """What it says once it has seen the signal."""
    assert process.stderr is not None
    assert process.stderr.readline() == "\n"
    return process.stderr.readline()


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_the_first_signal_lets_the_step_be_finished_and_saved(name: str, code: int) -> None:
    number = signal.Signals[name]
    with child("0.1") as process:
        process.send_signal(number)
        output, errors = process.communicate(timeout=10)
    assert output == f"saved {int(number)}\n"
    assert process.returncode == code
    assert errors.strip() == (
        f"{number.name}: finishing this step, saving; once more to stop at once."
    )


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_stops_at_once(second: signal.Signals) -> None:
    with child("30") as process:
        process.send_signal(signal.SIGINT)
        assert "once more" in message_of(process)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.2)
        process.send_signal(second)
        output, errors = process.communicate(timeout=5)
    assert process.returncode == -second
    assert output == errors == ""  # neither saved, nor said a second time


def test_a_signal_that_is_passed_on_at_once_is_the_same_request() -> None:
    with child("1.5") as process:
        process.send_signal(signal.SIGINT)
        assert "once more" in message_of(process)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=10)
    assert output == f"saved {int(signal.SIGINT)}\n"
    assert process.returncode == 130  # by the first
    assert errors == ""


def test_handlers_of_before_are_back_afterwards() -> None:
    seen = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    before = signal.getsignal(signal.SIGINT)
    try:
        with StopRequest() as stop:
            assert signal.getsignal(signal.SIGINT) != before
            signal.raise_signal(signal.SIGTERM)
            assert stop
            assert seen == []
        assert signal.getsignal(signal.SIGINT) is before
        signal.raise_signal(signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_handlers_are_back_after_an_exception() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), StopRequest():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) is before


def test_without_a_signal_nothing_is_asked() -> None:
    with StopRequest() as stop:
        assert not stop
    assert stop.signal is None
    assert stop.exit_code == 0


def test_outside_of_the_main_thread_nothing_is_installed() -> None:
    before = signal.getsignal(signal.SIGTERM)
    results = []

    def work() -> None:
        with StopRequest() as stop:
            results.append((bool(stop), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [(False, before)]


def test_a_fork_of_the_process_is_not_kept_alive() -> None:
    program = (
        "import os, signal, sys, time\n"
        "from rankdet.engine.stopping import StopRequest\n"
        "with StopRequest() as stop:\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        time.sleep(30)\n"
        "        os._exit(0)\n"
        "    time.sleep(0.2)\n"
        "    os.kill(pid, signal.SIGTERM)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), bool(stop))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=15)
    assert done.stdout.decode() == f"{-signal.SIGTERM} False\n"
    assert done.stderr == b""


def test_on_a_terminal_the_cursor_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(os, "isatty", lambda descriptor: True)
    monkeypatch.setattr(os, "write", lambda descriptor, text: written.append(text))
    with StopRequest():
        signal.raise_signal(signal.SIGTERM)
    assert b"".join(written).startswith(b"\x1b[?25h\nSIGTERM: finishing")


def test_a_terminal_that_is_gone_does_not_keep_from_saving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(descriptor: int, text: bytes) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "write", fail)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
    assert stop


# Several processes


def test_a_stop_is_what_all_agree_on() -> None:
    asked: list[int | None] = []
    answers = iter([None, 15, 15])

    def agree(own: int | None) -> int | None:
        asked.append(own)
        return next(answers)

    stop = StopRequest(agree)
    assert not stop.agreed()
    assert stop.agreed()  # the signal has come to another process
    assert (stop.signal, stop.exit_code) == (15, 143)
    assert stop.agreed()
    assert asked == [None, None, 15]


def test_a_signal_that_comes_while_the_others_are_asked_is_kept_for_the_next_time() -> None:
    answers = iter([None, 2])

    def agree(own: int | None) -> int | None:
        signal.raise_signal(signal.SIGINT) if own is None else None
        return next(answers)

    with StopRequest(agree) as stop:
        assert not stop.agreed()
        assert stop.signal == signal.SIGINT
        assert stop.agreed()


def test_the_first_signal_of_a_process_does_not_end_it_though_another_had_one() -> None:
    """torchrun passes a signal on to all: it may come after the others have agreed to stop."""
    with StopRequest(lambda own: 15) as stop:
        assert stop.agreed()
        signal.raise_signal(signal.SIGTERM)
        assert stop.exit_code == 143


def test_a_silent_one_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for is_silent in (True, False):
        with StopRequest(is_silent=is_silent):
            signal.raise_signal(signal.SIGTERM)
        assert capfd.readouterr().err == ("" if is_silent else SAID)


SAID = "\nSIGTERM: finishing this step, saving; once more to stop at once.\n"
