"""What a training shows on standard error: lines, or a live display on a terminal."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections.abc import Callable

import pytest

from rankdet.engine import display
from rankdet.engine.display import TrainingDisplay


class Time:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(display.time, "monotonic", clock)
    return clock


class Screen(io.StringIO):
    """A terminal that remembers what was written to it."""

    def isatty(self) -> bool:
        return True

    def new(self) -> str:
        """What was written since the last look."""
        text = self.getvalue()
        self.seek(0)
        self.truncate()
        return text


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Screen]:
    """Makes standard error a terminal; to be called within the test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")

    def start() -> Screen:
        screen = Screen()
        monkeypatch.setattr(sys, "stderr", screen)
        return screen

    return start


def test_elsewhere_a_line_appears_every_ten_seconds_and_at_the_end(
    clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    with TrainingDisplay(num_steps=9, num_epochs=3) as shown:
        for step in range(1, 10):
            clock.now += 3.0
            row = {"class": 1 / step, "learning_rate": 0.001}
            shown.step(step, epoch=step // 3, row=row, num_images=6)
        shown.note("done")
    assert capsys.readouterr().err.splitlines() == [
        "epoch 2 of 3, step 4 of 9: class 0.25, learning rate 0.001, 2 images/s, 15 s left",
        "epoch 3 of 3, step 8 of 9: class 0.125, learning rate 0.001, 2 images/s, 3 s left",
        "epoch 3 of 3, step 9 of 9: class 0.1111, learning rate 0.001, 2 images/s, 0 s left",
        "done",
    ]


def test_a_run_that_is_stopped_shows_its_last_step(
    clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    with TrainingDisplay(num_steps=9, num_epochs=1) as shown:
        shown.step(1, 0)
        clock.now += 2
        shown.step(2, 0, {}, 8)
    assert capsys.readouterr().err == "epoch 1 of 1, step 2 of 9: 4 images/s, 14 s left\n"


def test_a_run_without_a_step_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingDisplay(num_steps=9, num_epochs=1, start_step=5):
        pass
    assert capsys.readouterr().err == ""


def test_after_a_resume_the_time_left_is_by_the_rate_of_this_session(
    clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    with TrainingDisplay(num_steps=1100, num_epochs=2, start_step=1000) as shown:
        clock.now += 60.0  # compiling: no step will take that long again
        shown.step(1001, 1, {"AP": 0.5}, 8)
        for step in range(1002, 1011):
            clock.now += 2.0
            shown.step(step, 1, {"AP": 0.5}, 8)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "epoch 2 of 2, step 1001 of 1100: AP 0.5"  # no rate is known yet
    assert lines[-1] == "epoch 2 of 2, step 1010 of 1100: AP 0.5, 4 images/s, 3 min left"


def test_images_per_second_are_of_late(clock: Time, capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingDisplay(num_steps=1000, num_epochs=1) as shown:
        for step in range(1, 101):  # two images per second
            clock.now += 1.0
            shown.step(step, 0, num_images=2)
        for step in range(101, 141):  # then eight
            clock.now += 1.0
            shown.step(step, 0, num_images=8)
    lines = capsys.readouterr().err.splitlines()
    assert ", step 100 of 1000: 2 images/s, " in lines[9]
    assert ", step 120 of 1000: 8 images/s, " in lines[11]
    assert ", step 140 of 1000: 8 images/s, 14 min left" in lines[13]  # 860 steps, one per second


def test_a_pause_counts_for_the_time_left_only(
    clock: Time, capsys: pytest.CaptureFixture[str]
) -> None:
    with TrainingDisplay(num_steps=12, num_epochs=1) as shown:
        for step in (1, 2):
            clock.now += 1.0
            shown.step(step, 0, num_images=4)
        with shown.paused():
            clock.now += 8.0
        clock.now += 1.0
        shown.step(3, 0, num_images=4)
    # Two steps since the first took 10 s; eight images took 2 s without the pause.
    assert capsys.readouterr().err == "epoch 1 of 1, step 3 of 12: 4 images/s, 45 s left\n"


def test_numbers_of_earlier_steps_stay(clock: Time, capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingDisplay(num_steps=5, num_epochs=1) as shown:
        shown.step(1, 0, {"class": 1.0, "batch_ap": 0.25})
        shown.step(2, 0, {"class": 0.5})
        shown.step(3, 0)
    assert capsys.readouterr().err == (
        "epoch 1 of 1, step 3 of 5: class 0.5, batch ap 0.25, 0 s left\n"
    )


def test_a_number_that_does_not_exist_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingDisplay(num_steps=1, num_epochs=1) as display:
        display.step(1, 0, {"class_loss": 0.0, "batch_ap": float("nan")})
    assert capsys.readouterr().err == "epoch 1 of 1, step 1 of 1: class loss 0\n"


def test_a_row_is_taken_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"class": 1.0}
    with TrainingDisplay(num_steps=5, num_epochs=1) as shown:
        shown.step(1, 0, row)
        row["class"] = 2.0
    assert "class 1" in capsys.readouterr().err


def test_a_note_is_printed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingDisplay(num_steps=5, num_epochs=1) as shown:
        shown.note("AP 12.3\nbest: [red]step-1\x1b")
        assert capsys.readouterr().err == "AP 12.3\nbest: [red]step-1\\x1b\n"


# On a terminal


def visible(text: str) -> str:
    """Without the sequences that move the cursor and set colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_on_a_terminal_a_bar_and_a_line_are_redrawn(
    clock: Time, terminal: Callable[[], Screen]
) -> None:
    screen = terminal()
    with TrainingDisplay(num_steps=8, num_epochs=1) as shown:
        for step in range(1, 9):
            clock.now += 0.1
            shown.step(step, 0, {"class": 0.5}, 4)
    pictures = visible(screen.new())
    assert "━━━━" in pictures
    # Not each step: after a quarter of a second, and at the end.
    drawn = re.findall(r"step (\d) of 8: class 0.5, 40 images/s", pictures)
    assert list(dict.fromkeys(drawn)) == ["3", "6", "8"]
    assert pictures.splitlines()[-1].endswith("step 8 of 8: class 0.5, 40 images/s, 0 s left")


def test_on_a_terminal_a_note_stands_above_and_is_not_markup(
    clock: Time, terminal: Callable[[], Screen]
) -> None:
    screen = terminal()
    with TrainingDisplay(num_steps=8, num_epochs=1) as shown:
        shown.step(1, 0)
        clock.now += 1
        shown.step(2, 0)
        shown.note("saved [red]step-2")
    lines = visible(screen.new()).splitlines()
    note = next(i for i, line in enumerate(lines) if "saved [red]step-2" in line)
    assert any("step 2 of 8" in line for line in lines[:note])  # was there before,
    assert any("━━━━" in line for line in lines[note:])  # and is drawn again below


def test_on_a_terminal_a_pause_makes_room(clock: Time, terminal: Callable[[], Screen]) -> None:
    screen = terminal()
    with TrainingDisplay(num_steps=8, num_epochs=1) as shown:
        shown.step(1, 0)
        clock.now += 1
        shown.step(2, 0)
        screen.new()
        with shown.paused():
            assert "\x1b[?25h" in screen.new()  # the cursor is back
            shown.note("evaluating")
            assert screen.new() == "evaluating\n"  # nothing is drawn below
        clock.now += 1
        shown.step(3, 0)
        assert "step 3 of 8" in visible(screen.new())


def test_the_cursor_comes_back_after_an_error(terminal: Callable[[], Screen]) -> None:
    screen = terminal()
    with pytest.raises(ZeroDivisionError), TrainingDisplay(num_steps=8, num_epochs=1, start_step=3):
        raise ZeroDivisionError
    printed = screen.new()
    assert printed.rindex("\x1b[?25h") > printed.rindex("\x1b[?25l")
    assert "step" not in printed  # there was none


def test_no_thread_is_started(terminal: Callable[[], Screen]) -> None:
    terminal()
    before = threading.active_count()
    with TrainingDisplay(num_steps=8, num_epochs=1) as shown:
        shown.step(1, 0)
        assert threading.active_count() == before


def test_the_loop_is_not_slowed(terminal: Callable[[], Screen]) -> None:
    terminal()
    with TrainingDisplay(num_steps=10**9, num_epochs=1) as shown:
        start = time.perf_counter()
        for step in range(5000):
            shown.step(step, 0, {"class": 0.5}, 16)
        seconds = time.perf_counter() - start
    assert seconds / 5000 < 2e-4  # a picture costs some milliseconds, a step of a network tens


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    clock: Time, terminal: Callable[[], Screen], monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = terminal()
    monkeypatch.setenv("TERM", "dumb")
    with TrainingDisplay(num_steps=8, num_epochs=1) as shown:
        shown.step(1, 0)
        clock.now += 10.0
        shown.step(2, 0)
        assert screen.new() == "epoch 1 of 1, step 2 of 8: 1 min left\n"
