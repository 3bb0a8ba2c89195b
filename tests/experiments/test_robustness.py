"""The table of attacks: whose detectors were attacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rankdet.experiments.robustness import markdown


@pytest.mark.parametrize(
    ("scale", "changes", "words"),
    [
        ("tiny", [], "those of `losses-voc`."),
        ("voc320", [], "those of `evidence-retinanet` in its long schedule, with the first seed."),
        ("voc320", ["training.epochs=6"], "with the first seed, but for what was changed."),
    ],
)
def test_the_table_says_whose_trainings_they_are(
    hand_made: Callable[..., dict[str, Any]], scale: str, changes: list[str], words: str
) -> None:
    record = hand_made("robustness", ["AP-Loss"], {})
    record["request"] |= {"scale": scale, "changes": changes}
    (line,) = (line for line in markdown(record).splitlines() if "Our trainings" in line)
    assert line.endswith(words)
