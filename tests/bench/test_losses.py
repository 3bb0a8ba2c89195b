"""The bench: problems as described, ratios that are ratios, tables that say what is missed."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from rankdet import losses
from rankdet.bench import losses as bench
from rankdet.bench.problems import REGIMES, make_problem
from rankdet.bench.tables import markdown, print_tables

RECORD = {
    "provenance": {
        "command": "rankdet bench losses",
        "commit": "abc",
        "seed": 0,
        "threads": 2,
        "versions": {"torch": "2.11"},
        "machine": "Linux",
    },
    "scores": 5_000_000,
    "rounds": 3,
    "cost": [
        {
            "loss": loss,
            "regime": regime,
            "positives": 600,
            "milliseconds": 10.0,
            "yardstick_milliseconds": 8.0,
            "ratio": 1.25,
            "ratio_quartiles": [1.2, 1.3],
        }
        for loss in ("ap_loss", "binary_ap_loss")
        for regime in REGIMES
    ],
    "others": {"auc_loss": {"milliseconds": 1.0, "yardstick_milliseconds": 2.0, "ratio": 0.5}},
    "growth": {
        regime: {"positives": {"ratio": 1.1}, "anchors": {"ratio": 8.0}} for regime in REGIMES
    },
    "reference": {regime: {"ratio": 250.0} for regime in REGIMES},
    "memory": [
        {"loss": loss, "regime": regime, "ratio": ratio}
        for loss, ratio in (("ap_loss", 1.2), ("focal", None))
        for regime in REGIMES
    ],
}


@pytest.mark.parametrize("regime", REGIMES)
def test_a_problem_has_the_scores_of_its_regime_and_labels_that_fit_its_targets(
    regime: str,
) -> None:
    problem = make_problem(regime, 400, 5000, 4, seed=0)
    (mean, deviation), (background_mean, background_deviation) = REGIMES[regime]
    is_positive = problem.targets == 1
    assert int(is_positive.sum()) == 400
    assert torch.equal(is_positive.any(1), problem.labels >= 0)
    assert torch.equal(is_positive.nonzero()[:, 1], problem.labels[problem.labels >= 0])
    positives, negatives = problem.logits[is_positive], problem.logits[~is_positive]
    assert positives.mean().item() == pytest.approx(mean, abs=5 * deviation / 400**0.5)
    assert negatives.std().item() == pytest.approx(background_deviation, rel=0.05)
    assert negatives.mean().item() == pytest.approx(background_mean, abs=0.1)


def test_the_same_seed_gives_the_same_problem() -> None:
    one, same, other = (make_problem("trained", 5, 50, 3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.logits, same.logits)
    assert not torch.equal(one.logits, other.logits)


def test_every_run_of_the_bench_leaves_a_gradient() -> None:
    problem = make_problem("half-trained", 5, 50, 3, seed=0)
    for name in (*bench.OTHERS, "ap_loss", "binary_ap_loss", "focal"):
        problem.logits.grad = None
        bench.run_of(name)(problem)
        assert name == "copy" or (problem.logits.grad is not None and problem.logits.grad.any())


def test_the_ratio_of_two_runs_is_that_of_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def lasts(seconds: float) -> Callable[[object], None]:
        def run(problem: object) -> None:
            nonlocal now
            now += seconds

        return run

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    problem = make_problem("trained", 5, 50, 3, seed=0)
    numbers = bench.compare(lasts(0.5), lasts(0.25), problem, rounds=5)
    assert numbers == {
        "milliseconds": 500,
        "yardstick_milliseconds": 250,
        "ratio": 2,
        "ratio_quartiles": [2, 2],
    }
    assert bench.growth(lasts(1.0), problem, problem, rounds=3)["ratio"] == 1


def test_a_row_is_measured_in_a_process_of_its_own() -> None:
    sizes = ("trained", 5, 200, 3)
    row = bench.in_fresh_process(bench.cost, "ap_loss", sizes, 0, "cpu", 3)
    assert row["ratio"] > 0
    with pytest.raises(RuntimeError, match=r"cost.*no_such_loss"):
        bench.in_fresh_process(bench.cost, "no_such_loss", sizes, 0, "cpu", 3)


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's account of the process")
def test_memory_is_counted_in_units_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (logits + torch.ones(3, *logits.shape)).sum()  # 3 for the ones, 3 for the sum

    monkeypatch.setattr(losses, "greedy", greedy, raising=False)
    used = bench.extra_memory("greedy", ("trained", 5, 100_000, 50), 0, "cpu")
    assert 5 < used < 9


def test_the_tables_mark_what_misses_its_bar(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(RECORD, Console(width=120))
    text = capsys.readouterr().out
    assert "1.25 (not ≤ 1)" in text  # initial and trained
    assert text.count("not ≤") == 2  # half-trained may cost 2 x; dense targets have no bar
    assert "n/a" in text
    print_tables(RECORD, Console(width=120), with_bars=False)
    assert "not ≤" not in capsys.readouterr().out


def test_the_readme_table_names_command_commit_seed_and_machine() -> None:
    table = markdown(RECORD)
    assert "| AP-loss / focal loss, 600 positives | 1.25 x | 1.25 x | 1.25 x |" in table
    assert "| the loop of Algorithm 1 / AP-loss | 250 x | 250 x | 250 x |" in table
    assert "`rankdet bench losses`, commit abc, seed 0, 2 threads, torch 2.11, Linux." in table


def test_main_writes_the_record_with_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = {key: value for key, value in RECORD.items() if key != "provenance"}
    monkeypatch.setattr(bench, "measure", lambda *arguments: results)
    target = tmp_path / "losses.json"
    bench.main(quick=True, json_file=target, device="cpu", seed=3)
    record = json.loads(target.read_text())
    assert record["cost"] == RECORD["cost"]
    assert record["provenance"]["seed"] == 3
    assert {"command", "commit", "machine", "versions"} <= record["provenance"].keys()
    assert "--quick" in capsys.readouterr().out
