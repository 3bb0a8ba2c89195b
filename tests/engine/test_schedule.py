"""The learning rate of every step, by hand with the paper's numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdet.engine.schedule import learning_rate_factor, scaled_learning_rate

# VOC 2007 + 2012 trainval: 16,551 images, 16 in a batch.
STEPS_PER_EPOCH = 1034
VOC: dict[str, Any] = {
    "schedule": "steps",
    "num_steps": 160 * STEPS_PER_EPOCH,
    "steps_per_epoch": STEPS_PER_EPOCH,
    "milestones": (110.0, 140.0),
    "decay": 0.1,
    "warmup_steps": 500,
    "warmup_start": 1 / 3,
}


@pytest.mark.parametrize(
    ("step", "factor"),
    [
        (0, 1 / 3),
        (125, 1 / 2),  # a quarter of the way from 1/3 to 1
        (250, 2 / 3),
        (499, 1 - (2 / 3) / 500),
        (500, 1.0),
        (501, 1.0),
        (110 * STEPS_PER_EPOCH - 1, 1.0),
        (110 * STEPS_PER_EPOCH, 0.1),
        (140 * STEPS_PER_EPOCH - 1, 0.1),
        (140 * STEPS_PER_EPOCH, 0.01),
        (160 * STEPS_PER_EPOCH - 1, 0.01),
    ],
)
def test_the_papers_schedule_for_voc(step: int, factor: float) -> None:
    assert learning_rate_factor(step, **VOC) == pytest.approx(factor, rel=1e-12)


def test_a_milestone_within_the_warm_up_counts_too() -> None:
    settings = VOC | {"steps_per_epoch": 100, "milestones": (2.5,)}
    assert learning_rate_factor(249, **settings) == pytest.approx(1 / 3 + (2 / 3) * 249 / 500)
    assert learning_rate_factor(250, **settings) == pytest.approx(0.1 * 2 / 3)


def test_a_milestone_in_parts_of_an_epoch_is_a_whole_step() -> None:
    settings = VOC | {"steps_per_epoch": 50, "milestones": (1.1,), "warmup_steps": 0}
    assert 1.1 * 50 > 55  # in floating point
    assert [learning_rate_factor(step, **settings) for step in (54, 55)] == [1.0, 0.1]


def test_one_cycle_rises_on_a_line_and_falls_on_a_cosine() -> None:
    settings = VOC | {"schedule": "one_cycle", "num_steps": 1100, "warmup_steps": 100}
    factors = [learning_rate_factor(step, **settings) for step in (0, 50, 100, 350, 600, 850)]
    assert factors == pytest.approx(
        [1 / 3, 2 / 3, 1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125)]
    )
    assert 0 < learning_rate_factor(1099, **settings) < 1e-5
    assert learning_rate_factor(1100, **settings) == pytest.approx(0.0)
    assert learning_rate_factor(5000, **settings) == 0.0


def test_milestones_mean_nothing_to_one_cycle() -> None:
    settings = VOC | {"schedule": "one_cycle"}
    other = settings | {"milestones": (), "decay": 7.0}
    for step in (0, 700, 120 * STEPS_PER_EPOCH):
        assert learning_rate_factor(step, **settings) == learning_rate_factor(step, **other)


def test_a_run_shorter_than_its_warm_up_is_only_a_warm_up() -> None:
    settings = VOC | {"schedule": "one_cycle", "num_steps": 50, "warmup_steps": 100}
    assert learning_rate_factor(49, **settings) == pytest.approx(1 / 3 + (2 / 3) * 0.49)


@given(
    step=st.integers(0, 3000),
    schedule=st.sampled_from(["steps", "one_cycle"]),
    warmup_steps=st.integers(0, 500),
    num_steps=st.integers(1, 2000),
    milestones=st.lists(st.floats(0, 20), max_size=3),
)
def test_the_factor_is_never_above_1_nor_negative(
    step: int, schedule: str, warmup_steps: int, num_steps: int, milestones: list[float]
) -> None:
    factor = learning_rate_factor(
        step,
        schedule=schedule,
        num_steps=num_steps,
        steps_per_epoch=100,
        milestones=milestones,
        warmup_steps=warmup_steps,
    )
    assert 0 <= factor <= 1


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="got 'cosine'"):
        learning_rate_factor(0, **VOC | {"schedule": "cosine"})
    with pytest.raises(ValueError, match="got -1"):
        learning_rate_factor(-1, **VOC)


def test_the_learning_rate_grows_with_the_batch() -> None:
    assert scaled_learning_rate(0.001, 16, 16) == 0.001
    assert scaled_learning_rate(0.001, 64, 16) == 0.004
    assert scaled_learning_rate(0.001, 2, 16) == 0.000125
