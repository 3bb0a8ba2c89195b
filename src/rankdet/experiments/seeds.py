"""Rows that differ in the seed alone: their names and values."""

from __future__ import annotations

import re

from rankdet.experiments.record import Record, results_of

_SEED = re.compile(r"(?:^|: )seed (\d+)$")  # at the end of a row's name


def seed_key(key: str, seed: int) -> str:
    """The name of a row of this seed.

    >>> seed_key("short: AP-Loss", 2)
    'short: AP-Loss: seed 2'
    """
    return f"{key}: seed {seed}"


def has_seed(key: str) -> bool:
    """Whether a row's name says its seed.

    >>> has_seed("delta 1: seed 2"), has_seed("delta 1")
    (True, False)
    """
    return _SEED.search(key) is not None


def without_seed(key: str) -> str:
    """
    >>> without_seed("delta 1: seed 2"), without_seed("delta 1")
    ('delta 1', 'delta 1')
    """
    return _SEED.sub("", key)


def number_of_seeds(record: Record) -> int:
    """How many seeds the plan of a record has. A name without one means the request's own."""
    found = map(_SEED.search, record["plan"])
    return len({int(match[1]) if match else record["request"]["seed"] for match in found})


def values_of_row(record: Record, key: str, metric: str) -> list[float]:
    """What the finished rows of this name have of a metric, one of each seed."""
    return [
        value
        for name, result in results_of(record).items()
        if without_seed(name) == key
        and (value := (result.get("metrics") or {}).get(metric)) is not None
    ]
