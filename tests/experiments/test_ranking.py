"""The ranking experiment: small parts against independent judges, and a tiny run of the whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from sklearn.metrics import average_precision_score
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal

from rankdet.experiments import ranking, ranking_problem

TINY = ranking.Settings(
    negatives_per_positive=100,
    train_positives=12,
    validation_positives=8,
    test_positives=8,
    batch_positives=4,
    num_hidden=4,
    learning_rates=(0.003, 0.03),
    num_evaluations=2,
)


def test_average_precision_is_that_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    positives = (1 + torch.randn(30, generator=generator)).round(decimals=1)  # with ties
    negatives = torch.randn(500, generator=generator).round(decimals=1)
    targets = torch.tensor([1] * 30 + [0] * 500)
    judge = average_precision_score(targets, torch.cat([positives, negatives]))
    assert ranking_problem.average_precision(positives, negatives) == pytest.approx(judge, rel=1e-5)


def test_precision_recall_curve() -> None:
    recall, precision = ranking_problem.precision_recall(
        torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0, 1.5])
    )
    assert recall.tolist() == [0.5, 1.0]
    assert precision.tolist() == [1.0, 0.5]


def test_best_possible_score_is_the_likelihood_ratio() -> None:
    generator = torch.Generator().manual_seed(1)
    world = ranking_problem.make_world(TINY.num_features, TINY.hard_fraction, generator)
    points = 3 * torch.randn(50, TINY.num_features, generator=generator)
    identity = torch.eye(TINY.num_features)

    def mixture(weights: torch.Tensor, means: torch.Tensor) -> MixtureSameFamily:
        return MixtureSameFamily(Categorical(weights), MultivariateNormal(means, identity))

    positive = mixture(torch.ones(3), world.positive_means)
    hard = torch.full((3,), world.hard_fraction / 3)
    weights = torch.cat([hard, torch.tensor([1 - world.hard_fraction])])
    means = torch.cat([world.hard_means, torch.zeros(1, TINY.num_features)])
    expected = positive.log_prob(points) - mixture(weights, means).log_prob(points)
    ratio = ranking_problem.likelihood_ratio(world, points)
    torch.testing.assert_close(ratio.float(), expected, rtol=1e-3, atol=1e-3)


def test_every_loss_starts_from_the_same_weights() -> None:
    first, second = (ranking.make_model(TINY, 0.01, seed=3) for _ in range(2))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_tiny_run_writes_its_files(tmp_path: Path) -> None:
    results = ranking.run(tmp_path, seed=2, steps=4, settings=TINY)

    stored = json.loads((tmp_path / "ranking.json").read_text())
    assert stored["losses"] == results["losses"]
    assert (tmp_path / "ranking.png").stat().st_size > 10_000
    assert [row["loss"] for row in stored["losses"]] == list(ranking.CONTENDERS)
    for row in stored["losses"]:
        assert 0 <= row["test_ap"] <= 1
        assert row["steps"] == [0, 2, 4]
        assert len(row["validation_ap_at_steps"]) == 3
        assert all(0 <= value <= 1 for value in row["validation_ap_at_steps"])
        tried = row["validation_ap_of_learning_rates"]
        assert tried.keys() == {"0.003", "0.03"}
        assert tried[str(row["learning_rate"])] == max(tried.values()) == row["validation_ap"]
        assert row["seconds"] > 0
    assert 0 <= stored["best_possible_test_ap"] <= 1
    assert stored["settings"]["negatives_per_positive"] == 100
    assert stored["provenance"]["seed"] == 2
    assert stored["provenance"]["steps"] == 4
    assert stored["provenance"]["versions"]["torch"] == torch.__version__


def test_seed_decides_the_result(tmp_path: Path) -> None:
    runs = [
        ranking.run(tmp_path / str(i), seed=seed, steps=2, settings=TINY)
        for i, seed in enumerate((0, 0, 1))
    ]
    first, again, other = ([row["test_ap"] for row in run["losses"]] for run in runs)
    assert first == again
    assert first != other
