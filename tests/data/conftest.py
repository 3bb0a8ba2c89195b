"""Shared by the tests of the data layer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is not a fault of the code.
settings.register_profile("any speed", deadline=None)
settings.load_profile("any speed")


@pytest.fixture
def tree_state() -> Callable[[Path], dict[str, tuple[str, int]]]:
    """A function: the content hash and time of every file under a folder, to see changes by."""

    def state(folder: Path) -> dict[str, tuple[str, int]]:
        return {
            path.relative_to(folder).as_posix(): (
                hashlib.sha256(path.read_bytes()).hexdigest(),
                path.stat().st_mtime_ns,
            )
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    return state
