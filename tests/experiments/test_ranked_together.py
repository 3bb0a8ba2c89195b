"""AP-loss over more images: nothing else changes with their number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankdet.experiments import ranked_together
from rankdet.experiments.experiment import Request
from rankdet.experiments.record import SCALES


@pytest.mark.parametrize("scale", SCALES)
def test_every_step_has_16_images_in_parts_that_are_ranked_together(scale: str) -> None:
    request = Request(scale, Path("out"), voc="VOCdevkit")
    rows = ranked_together.EXPERIMENT.plan(request)
    assert [row.key for row in rows] == ["1", "2", "4", "8", "16"]
    trainings = [row.trainings[0].training for row in rows]
    assert [training.batch_size for training in trainings] == [16] * 5
    assert {training.accumulate for training in trainings} == {1}
    losses = [row.trainings[0].loss for row in rows]
    assert {loss.name for loss in losses} == {"ap"}
    assert [loss.settings for loss in losses] == [{"scope": size} for size in (1, 2, 4, 8, 16)]


@pytest.mark.parametrize("scale", SCALES)
def test_all_else_is_the_same_and_so_is_the_learning_rate(scale: str) -> None:
    request = Request(scale, Path("out"), voc="VOCdevkit")
    first, *others = (row.trainings[0] for row in ranked_together.EXPERIMENT.plan(request))
    for other in others:
        assert replace(other, loss=first.loss) == first
