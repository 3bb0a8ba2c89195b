"""Which exceptions a worker process sends as they are, and what becomes of the others."""

from __future__ import annotations

import pytest

from rankdet.data.loading.workers import _portable
from rankdet.errors import RankdetError


class Named(str):
    """A text that only this process knows."""


class Own(Exception):
    """An exception that only this process knows."""


def with_attribute() -> Exception:
    error = ValueError("text")
    error.callback = lambda: None  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("text"),
        KeyError(3),
        FileNotFoundError(2, "No such file or directory", "a.jpg"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        MemoryError(),
    ],
)
def test_an_exception_of_pythons_own_is_sent_as_it_is(error: Exception) -> None:
    assert _portable(error) is error
    assert error.__notes__[0].startswith("Raised in a worker process:")


@pytest.mark.parametrize(
    "error",
    [
        Own("text"),
        ValueError(lambda: None),
        ValueError(Named("text")),
        ExceptionGroup("several", [Own("one")]),
        with_attribute(),
    ],
)
def test_any_other_becomes_its_description(error: Exception) -> None:
    sent = _portable(error)
    assert type(sent) is RuntimeError
    assert str(sent) == f"{type(error).__name__}: {error}"
    assert sent.__notes__ == error.__notes__


def test_an_error_of_ours_needs_no_traceback() -> None:
    error = RankdetError("text")
    assert _portable(error) is error
    assert not hasattr(error, "__notes__")
