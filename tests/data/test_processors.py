"""How many workers there are unless the user says so."""

from __future__ import annotations

import os

import pytest

from rankdet.data.processors import usual_num_workers


@pytest.mark.parametrize(
    ("num_processors", "world_size", "expected"),
    [(1, "1", 1), (6, "1", 6), (64, "1", 8), (64, "16", 4), (4, "16", 1)],
)
def test_the_number_of_workers_fits_the_machine(
    num_processors: int, world_size: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usable = set(range(num_processors))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: usable, raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", world_size)
    assert usual_num_workers(most=8) == expected


def test_every_processor_counts_where_the_system_does_not_say_which_may_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for num_processors, expected in ((None, 1), (3, 3), (64, 16)):
        monkeypatch.setattr(os, "cpu_count", lambda n=num_processors: n)
        assert usual_num_workers(most=16) == expected
