"""Shared by the tests of the bench."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankdet.bench.faults.processes import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """What starts children that have torch at once; made once, for it takes seconds itself."""
    with Server(tmp_path_factory.mktemp("faults")) as server:
        yield server
