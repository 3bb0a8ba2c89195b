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
        "Decoding: 3 of 6 images, 0 per second, 12 s left",
        "Decoding: 6 of 6 images, 0 per second, 0 s left",
    ]


def test_progress_is_a_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with progress.progress("Reading [red]x") as meter:
        meter.expect(2)
        meter.advance()
        meter.expect(1)
        meter.advance()
        meter.advance()
    printed = capsys.readouterr().err
    assert "Reading [red]x" in printed
    assert "3/3" in printed
