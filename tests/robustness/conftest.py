"""Detectors of coloured squares, trained once for all tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # where squares.py is found by its name

from squares import Squares, trained

from rankdet.workflows.robustness_measures import Subject


@pytest.fixture(scope="session")
def subject() -> Subject:
    """A detector of squares, trained with AP-loss: sigmoid."""
    return trained("ap", 60)


@pytest.fixture(scope="session")
def softmax_subject() -> Subject:
    """The same with a softmax and a background column."""
    return trained("ohem", 60)


@pytest.fixture(scope="session")
def validation() -> Squares:
    return Squares(24, seed=2)
