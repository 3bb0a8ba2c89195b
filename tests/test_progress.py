"""What a long command shows of its progress."""

from __future__ import annotations

import sys

import pytest

from rankdet import progress


def test_progress_is_a_line_now_and_then_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.progress("Decoding") as meter:
        meter.expect(6)
        for _ in range(6):
            now[0] += 4.0
            meter.advance()
    assert capsys.readouterr().err.splitlines() == [
        "Decoding: 3 of 6 images, 0.25 per second, 12 s left",
        "Decoding: 6 of 6 images, 0.25 per second, 0 s left",
    ]


LINE = "Detecting: 4 of 6 images, 0.2 per second, 10 s left\n"


def detect_four_of_six_images_in_20_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.progress("Detecting") as meter:
        meter.expect(6)
        now[0] = 20.0
        meter.advance(4)


def test_several_images_can_be_done_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    detect_four_of_six_images_in_20_seconds(monkeypatch)
    assert capsys.readouterr().err == LINE


def test_progress_is_a_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress.progress("Reading [red]x") as meter:
        meter.expect(2)
        meter.advance()
        meter.expect(3)
        meter.advance()
        meter.advance(3)
    printed = capsys.readouterr().err
    assert "Reading [red]x" in printed
    assert "5/5" in printed


def test_progress_is_in_lines_on_a_terminal_that_cannot_move_its_cursor(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    detect_four_of_six_images_in_20_seconds(monkeypatch)
    assert capsys.readouterr().err == LINE
