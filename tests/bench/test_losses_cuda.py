"""The bench on a CUDA device, without one: its rows, its bars, its tables, and what it does wrong.

What only a device can tell (rankdet.bench.gpu) is replaced; `gpu`-marked tests ask a real one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

from rankdet import cli, losses
from rankdet.bench import (
    correctness,
    gpu,
    graphs_cuda,
    losses_cuda,
    rows_cuda,
    tables_cuda,
    times_cuda,
)
from rankdet.bench import losses as losses_cpu
from rankdet.bench.problems import REGIMES, make_problem
from rankdet.bench.rows_cuda import Row, all_rows, bars
from rankdet.errors import RankdetError

ROOT = Path(__file__).parent.parent.parent


def stand_in_capture(run: Callable[[], tuple[Tensor, ...]]) -> tuple[Callable[[], None], Any]:
    """A replay that runs again and writes into the same tensors, if there are any."""
    result = run()

    def replay() -> None:
        for ours, new in zip(result or (), run() or (), strict=True):
            ours.copy_(new)

    return replay, result


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> str:
    """The CPU in place of a CUDA device: every run takes 2 ms and 40 MiB, and waits once."""

    def milliseconds(
        runs: Sequence[Callable[[], object]], *, with_head_start: bool = False
    ) -> list[float]:
        runs[0]()  # one is enough to see that it can run
        return [2.0] * len(runs)

    monkeypatch.setattr(gpu, "use", lambda device: {"name": "Made-up GPU", "triton": "3.6"})
    monkeypatch.setattr(gpu, "milliseconds", milliseconds)
    monkeypatch.setattr(gpu, "peak_bytes", lambda run: 40 * 2**20)
    monkeypatch.setattr(gpu, "num_synchronisations", lambda run: 1)
    monkeypatch.setattr(gpu, "capture", stand_in_capture)
    for module in (rows_cuda, losses_cuda):
        monkeypatch.setattr(module, "QUICK_SIZES", {"small": (6, 60, 5)})
    monkeypatch.setattr(correctness, "all_checks", few_checks)
    return "cpu"


def few_checks(quick: bool, seed: int, device: str) -> list[Callable[[], dict[str, Any]]]:
    case = correctness.Case("ap_loss", "piecewise", "float32", "half-trained", False)
    return [lambda: correctness.check(case, 200, 4, seed, device)]


def made_row(**changes: Any) -> dict[str, Any]:
    """A row of a record as it is written, half a millisecond for AP-loss."""
    times = {
        name: {
            "milliseconds": milliseconds,
            "quartiles": [milliseconds - 0.06, milliseconds + 0.1],
            "least": milliseconds - 0.07,
        }
        for name, milliseconds in (
            ("ap_loss", 0.5),
            ("focal", 4.0),
            ("our_focal", 0.7),
            ("sort", 1.0),
            ("ap_loss_graph", 0.32),
            ("focal_graph", 3.2),
        )
    }
    return {
        "size": "middle",
        "scores": 20_951_040,
        "positives": 1_000,
        "regime": "initial",
        "dtype": "float32",
        **times,
        "copy": {"milliseconds": 0.06, "quartiles": [0.06, 0.06]},
        "loop": {"milliseconds": 605.4},
        "ratio": 0.125,
        "gigabytes_per_second": 503.0,
        "floor_milliseconds": 0.09,
        "times_floor": 5.6,
        "graph_ratio": 0.1,
        "graph_times_floor": 3.56,
        "extra_mib": 1.5,
        "focal_extra_mib": 800.0,
        "bars": {},
        **changes,
    }


NO_GRAPHS = {
    **{name: {"milliseconds": None} for name in ("ap_loss_graph", "focal_graph")},
    **dict.fromkeys(("graph_ratio", "graph_times_floor")),
}
RATIOS = [("initial", 0.1), ("half-trained", 0.2), ("trained", 0.3)]
RECORD = {
    "provenance": {
        "command": "rankdet bench losses --device cuda",
        "commit": "abc",
        "seed": 0,
        "versions": {"torch": "2.11"},
    },
    "gpu": {"name": "Made-up GPU", "triton": "3.6"},
    "rows": [
        *(made_row(regime=regime, ratio=ratio) for regime, ratio in RATIOS),
        made_row(
            size="",
            positives=50_000,
            regime="half-trained",
            loop={"milliseconds": None},
            **NO_GRAPHS,
        ),
    ],
    "details": {
        regime: {
            **{
                name: {"milliseconds": 0.11 + number / 100}
                for number, name in enumerate(tables_cuda._DETAILS)
            },
            "synchronisations": 7,
        }
        for regime in REGIMES
    },
    "checks": [
        correctness.judged(
            correctness.Case("ap_loss", "piecewise", dtype, "trained", False),
            {"value": 1e-8, "gradient": error, "negatives": 0.0, "ignored": 0.0},
        )
        for dtype, error in (("float32", 2e-7), ("float32", float("nan")), ("float16", 3e-5))
    ],
    "problems": ["something is [red] wrong"],
}


def plain(shown: str) -> str:
    """Without colours, and with single spaces in place of borders."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│┃]", " ", shown).split())


def printed(print_it: Callable[..., None], record: dict[str, Any], width: int = 200) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    print_it(record, console)
    return console.export_text(styles=True)


# The rows, and what they are held to


def test_the_rows_are_sizes_by_dtypes_by_regimes_then_positives_then_a_huge_batch() -> None:
    rows = all_rows(quick=False)
    assert len(rows) == 3 * 2 * 3 + 3 + 1
    assert [row.num_scores for row in rows[:18:6]] == [5_237_760, 20_951_040, 128_000_000]
    assert [row.num_positives for row in rows[:18:6]] == [600, 1_000, 3_000]
    assert {(row.dtype, row.regime) for row in rows[:6]} == {
        (dtype, regime) for dtype in ("float32", "bfloat16") for regime in REGIMES
    }
    assert [row.num_positives for row in rows[18:21]] == [600, 5_000, 50_000]
    assert {(row.num_scores, row.regime) for row in rows[18:21]} == {(20_951_040, "half-trained")}
    assert (rows[21].num_scores, rows[21].dtype) == (256_000_000, "float32")
    assert all(row.num_scores < 200_000 for row in all_rows(quick=True))


def test_the_loop_runs_where_it_is_bearable() -> None:
    left_out = [row for row in all_rows(quick=False) if not row.with_loop]
    assert {row.dtype for row in left_out[:9]} == {"bfloat16"}
    assert [(row.num_positives, row.size) for row in left_out[9:]] == [(50_000, ""), (6_000, "")]


def test_the_inputs_that_take_turns_do_not_fit_into_the_cache() -> None:
    for row in all_rows(quick=False):
        assert row.num_sets * row.num_bytes > 256e6
        assert row.num_sets >= 4 or (row.num_bytes > 2 * 60e6 and row.num_sets == 2)
    assert Row("", "trained", 1, 100, 10, "bfloat16").num_bytes == 2000


def test_graphs_are_for_rows_up_to_128_million_scores_one_alone_if_it_is_beyond_the_cache() -> None:
    *rows, huge = all_rows(quick=False)
    assert all(row.with_graphs for row in rows)
    assert not huge.with_graphs
    for row in rows:
        assert row.num_graph_sets == (1 if row.num_scores == 128_000_000 else row.num_sets)
        assert row.most_rounds == (50 if row.num_scores == 128_000_000 else 200)


@pytest.mark.parametrize(
    ("size", "regime", "dtype", "expected"),
    [
        ("small", "initial", "float32", {"ratio": 0.5, "milliseconds": 0.35}),
        ("small", "trained", "bfloat16", {"ratio": 0.5, "milliseconds": 0.35}),
        ("middle", "half-trained", "float32", {"ratio": 0.25}),
        ("large", "initial", "float32", {"ratio": 0.25, "times_floor": 4}),
        ("large", "half-trained", "float32", {"ratio": 0.25, "times_floor": 8}),
        ("large", "half-trained", "bfloat16", {"ratio": 0.25}),
        ("", "half-trained", "float32", {}),
    ],
)
def test_bars(size: str, regime: str, dtype: str, expected: dict[str, float]) -> None:
    assert bars(Row(size, regime, 1, 1, 1, dtype)) == {"extra_mib": 32, **expected}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_problems_are_of_the_row_and_all_different(dtype: str) -> None:
    problems = Row("", "trained", 5, 50, 3, dtype).problems(0, "cpu", 3)
    assert len(problems) == 3
    assert not torch.equal(problems[0].logits, problems[1].logits)
    for problem in problems:
        assert problem.logits.shape == problem.targets.shape == (50, 3)
        assert problem.logits.dtype == problem.targets.dtype == getattr(torch, dtype)
        assert problem.logits.requires_grad
        assert problem.targets.sum() == (problem.labels >= 0).sum() == 5


def test_batches_drawn_on_the_cpu_are_those_of_the_recorded_results() -> None:
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(40, 3, generator=generator) * 1.0 + -6.0
    anchors = torch.randperm(40, generator=generator)[:5]
    classes = torch.randint(3, (5,), generator=generator)
    logits[anchors, classes] = torch.randn(5, generator=generator) * 1.5 + -1.5
    problem = make_problem("half-trained", 5, 40, 3, seed=7)
    assert torch.equal(problem.logits, logits)
    assert torch.equal(problem.labels[anchors], classes)


# Times


def test_a_number_is_the_median_of_as_many_runs_as_the_budget_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    batches: list[tuple[int, bool]] = []

    def milliseconds(runs: Any, *, with_head_start: bool = False) -> list[float]:
        for run in runs:
            run()
        batches.append((len(runs), with_head_start))
        return [float(25 + number % 3) for number in range(len(runs))]

    monkeypatch.setattr(gpu, "milliseconds", milliseconds)
    result = times_cuda.timed(seen.append, ["a", "b", "c"], with_head_start=True)
    assert batches == [(2, False), (38, True)]  # 1000 ms / 26 ms
    assert result == {"milliseconds": 26, "quartiles": [25, 27], "least": 25, "rounds": 38}
    assert seen[:5] == ["a", "b", "c", "a", "b"]  # warm-up, trial
    assert seen[5:11] == ["a", "b", "c", "a", "b", "c"]


def test_several_kinds_of_runs_take_turns_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def milliseconds(runs: Any) -> list[float]:
        before = len(seen)
        for run in runs:
            run()
        return [4.0 if kind == "x" else 2.0 for kind, _ in seen[before:]]

    monkeypatch.setattr(gpu, "milliseconds", milliseconds)
    runs = {kind: lambda name, kind=kind: seen.append(kind + name) for kind in "xy"}
    result = times_cuda.timed_in_turn(runs, ["a", "b", "c"], most_rounds=50)
    assert [result["x"]["milliseconds"], result["y"]["milliseconds"]] == [4, 2]
    assert result["x"]["rounds"] == result["y"]["rounds"] == 50
    timed = seen[2 * (3 + 2) :]  # after warm-up and trial of both
    assert [run[0] for run in timed] == [*20 * "x", *20 * "y"] * 2 + [*10 * "x", *10 * "y"]
    of_x = [run[1] for run in timed if run[0] == "x"]
    assert of_x == [*(16 * "abc"), "a", "b"]
    slow = times_cuda.timed_in_turn({**runs, "z": runs["x"]}, ["a"], most_rounds=400)
    assert slow["y"]["rounds"] == 250  # 1000 ms / 4 ms: as many as of the slowest


def test_backward_can_run_on_the_calling_thread() -> None:
    seen: list[bool] = []
    run = times_cuda.on_one_thread(lambda _: seen.append(torch._C._is_multithreading_enabled()))
    run(make_problem("trained", 2, 5, 3, seed=0))
    assert seen == [False]
    assert torch._C._is_multithreading_enabled()


def test_the_details_have_both_losses_with_and_without_another_thread(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[bool]] = {}

    def timed_in_turn(runs: Any, problems: Any, most_rounds: int) -> dict[str, Any]:
        for name, run in runs.items():
            seen[name] = []
            run(problems[0])
        return {}

    def note(problem: object) -> None:
        list(seen.values())[-1].append(torch._C._is_multithreading_enabled())

    monkeypatch.setattr(losses_cuda, "timed_in_turn", timed_in_turn)
    monkeypatch.setattr(losses_cuda, "run_of", lambda *names, **settings: note)
    monkeypatch.setattr(losses_cuda, "focal", note)
    monkeypatch.setattr(losses_cuda, "timed", lambda *arguments: {})
    losses_cuda.measure_details(GRAPH_ROW, 0, device, True)
    assert seen == {
        "ap_loss": [True],
        "focal": [True],
        "ap_loss_one_thread": [False],
        "focal_one_thread": [False],
    }


def test_our_runs_give_value_and_gradient_and_leave_none_behind() -> None:
    problem = make_problem("half-trained", 5, 50, 3, seed=0)
    value, gradient = times_cuda.run_of("ap_loss", step="heaviside")(problem)
    expected = losses.ap_loss(problem.logits, problem.labels, step="heaviside")
    assert value == expected
    assert not value.requires_grad
    assert torch.equal(gradient, torch.autograd.grad(expected, problem.logits)[0])
    assert problem.logits.grad is None


def test_backward_is_timed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [make_problem("trained", 5, 50, 3, seed=seed) for seed in (0, 1)]
    forward_passes: list[int] = []
    ap_loss = losses.ap_loss

    def counting(*inputs: Tensor) -> Tensor:
        forward_passes.append(1)
        return ap_loss(*inputs)

    def milliseconds(runs: Any) -> list[float]:
        before = len(forward_passes)
        for run in runs:
            run()
        assert len(forward_passes) == before == len(runs)
        return [3.0] * len(runs)

    monkeypatch.setattr(losses, "ap_loss", counting)
    monkeypatch.setattr(gpu, "milliseconds", milliseconds)
    assert times_cuda.timed_backward(problems)["rounds"] == 30


# The loop over the positives


def test_the_loop_is_timed_and_compared_with_ap_loss(device: str) -> None:
    problem = make_problem("half-trained", 20, 200, 4, seed=0)
    loop = losses_cuda.measure_loop(problem)
    assert loop["milliseconds"] == loop["estimate_milliseconds"] == 2
    assert max(loop["errors"].values()) < 1e-6


def test_a_loop_that_would_take_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem("half-trained", 20, 200, 4, seed=0)
    calls: list[int] = []

    def milliseconds(runs: Any) -> list[float]:
        calls.append(len(runs))
        return [1000.0, 16_000.0]  # with 2 and with 8 positives: 2.5 s for each

    monkeypatch.setattr(gpu, "milliseconds", milliseconds)
    loop = losses_cuda.measure_loop(problem)
    assert loop == {"milliseconds": None, "estimate_milliseconds": 1000 + 18 * 2500}
    assert calls == [2]


def test_the_estimate_looks_at_the_lowest_positives() -> None:
    problem = make_problem("half-trained", 20, 200, 4, seed=0)
    targets = losses_cuda._lowest(problem, 8)
    assert targets.sum() == 8
    of_all = problem.logits[problem.targets == 1].sort().values
    assert torch.equal(problem.logits[targets == 1].sort().values, of_all[:8])


# Everything together


def test_quick_measures_checks_tables_and_writes_the_record(
    device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "losses.json"
    losses_cuda.main(quick=True, json_file=target, device=device, seed=3)
    record = json.loads(target.read_text())
    assert record["provenance"]["seed"] == 3
    assert record["gpu"] == {"name": "Made-up GPU", "triton": "3.6"}
    assert record["problems"] == []
    assert len(record["rows"]) == 6
    row = record["rows"][0]
    assert row["sets"] == 4
    assert (row["scores"], row["positives"], row["ratio"]) == (300, 6, 1)
    assert row["extra_mib"] == 40 - 1200 / 2**20
    assert row["bars"] == {}
    assert record["rows"][3]["dtype"] == "bfloat16"
    assert record["rows"][3]["loop"] == {"milliseconds": None}
    for row in record["rows"]:
        assert row["ap_loss_graph"]["milliseconds"] == row["focal_graph"]["milliseconds"] == 2
        assert row["ap_loss_graph"]["is_equal"]
        assert row["ap_loss_graph"]["is_equal_on_other_inputs"]
        assert (row["ratio"], row["graph_ratio"]) == (1, 1)
        assert row["graph_times_floor"] == row["times_floor"] == round(2 / 3, 6)
        assert row["ap_loss"]["rounds"] == row["focal_graph"]["rounds"] == 200
        assert row["copy"]["rounds"] == 50
    details = record["details"]["trained"]
    assert details["synchronisations"] == 1
    for name in ("ap_loss", "focal", "ap_loss_one_thread", "focal_one_thread"):
        assert (details[name]["rounds"], details[name]["least"]) == (200, 2)
    text = capsys.readouterr().out
    assert "--quick" in text
    assert "bars are met" not in text
    assert f"wrote {target}" in text.replace("\n", "")


def test_a_wrong_loss_is_told_and_nothing_is_timed(
    device: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ap_loss = losses.ap_loss
    monkeypatch.setattr(losses, "ap_loss", lambda *a, **k: 1.001 * ap_loss(*a, **k))
    monkeypatch.setattr(losses_cuda, "measure_row", lambda *arguments: pytest.fail("timed"))
    target = tmp_path / "losses.json"
    with pytest.raises(RankdetError, match=r"not right: ap_loss.*value is 0\.001.*and 2 more"):
        losses_cuda.main(quick=True, json_file=target, device=device, seed=0)
    assert not target.exists()
    assert "the error of the gradient" in capsys.readouterr().out


def test_a_difference_to_the_loop_is_told_after_the_tables(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"milliseconds": 1.0, "errors": {"value": 0.0, "gradient": 1e-3}}
    monkeypatch.setattr(losses_cuda, "measure_loop", lambda problem: wrong)
    with pytest.raises(RankdetError, match=r"300 scores: ap_loss.*initial.*gradient is 0\.001"):
        losses_cuda.main(quick=True, json_file=None, device=device, seed=0)
    assert "Forward + backward, ms" in capsys.readouterr().out


GRAPH_ROW = Row("small", "half-trained", 6, 60, 5)
QUARTILES = {"milliseconds": 2.0, "quartiles": [2.0, 2.0], "least": 2.0, "rounds": 200}


def refuse(run: object) -> None:
    raise RuntimeError("not while the stream is captured\nmore words")


def test_the_device_is_timed_by_one_graph_for_each_set_of_inputs(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[tuple[list[int], bool]] = []
    captured: list[int] = []

    def capture(run: Any) -> Any:
        captured.append(len(captured))
        return lambda number=captured[-1]: replays.append(number), None

    def milliseconds(runs: Any, *, with_head_start: bool = False) -> list[float]:
        replays.clear()
        for run in runs:
            run()
        batches.append((replays[:4], with_head_start))
        return [2.0] * len(runs)

    replays: list[int] = []
    monkeypatch.setattr(gpu, "capture", capture)
    monkeypatch.setattr(gpu, "milliseconds", milliseconds)
    problems = GRAPH_ROW.problems(0, device, 3)
    assert graphs_cuda.replayed(times_cuda.focal, problems, 200) == QUARTILES
    assert captured == [0, 1, 2]
    assert batches == [([0, 1], False), ([0, 1, 2, 0], True)]  # the host is ahead: not its time


def test_a_graph_that_keeps_its_inputs_is_told(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remembering(run: Callable[[], tuple[Tensor, ...]]) -> Any:
        result = run()
        first = [tensor.clone() for tensor in result or ()]

        def replay() -> None:
            for ours, kept in zip(result or (), first, strict=True):
                ours.copy_(kept)

        return replay, result

    monkeypatch.setattr(gpu, "capture", remembering)
    graphs = graphs_cuda.measure_graphs(GRAPH_ROW, 0, device, True)
    expected = {**QUARTILES, "is_equal": True, "is_equal_on_other_inputs": False}
    assert graphs == {"ap_loss_graph": expected, "focal_graph": QUARTILES}
    (problem,) = graphs_cuda.found_in_graphs([made_row(regime="trained", **graphs)])
    assert "20,951,040 x float32, trained scores" in problem
    assert "is_equal_on_other_inputs" in problem


def test_a_wrong_graph_is_told_after_the_tables(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "capture", lambda run: (lambda: None, run()))
    with pytest.raises(RankdetError, match=r"a CUDA graph, 300 x float32, initial .* 11 more"):
        losses_cuda.main(quick=True, json_file=None, device=device, seed=0)
    assert "Forward + backward, ms" in capsys.readouterr().out


def test_a_graph_that_writes_nothing_is_not_equal(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "capture", lambda run: (lambda: None, run()))
    assert not graphs_cuda.compare_replays(GRAPH_ROW, 0, device)["is_equal"]


def test_after_a_graph_that_cannot_be_captured_no_other_is_tried(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = Row("", "initial", 6, 2_000_000, 80)
    rows = [huge, *(Row("small", regime, 6, 60, 5) for regime in REGIMES)]
    measured: list[Row] = []

    def measure(row: Row) -> dict[str, dict[str, Any]]:
        measured.append(row)
        if len(measured) == 2:
            monkeypatch.setattr(gpu, "capture", refuse)
        return graphs_cuda.measure_graphs(row, 0, device, True)

    of_huge, *graphs, last = graphs_cuda.measure_all_graphs(rows, measure)
    assert measured == rows[1:3]
    assert of_huge == {
        "ap_loss_graph": {"milliseconds": None},
        "focal_graph": {"milliseconds": None},
    }
    assert graphs[0]["focal_graph"] == QUARTILES
    reason = {"milliseconds": None, "reason": "not while the stream is captured"}
    not_tried = {"milliseconds": None, "reason": "not tried, because a capture before it failed"}
    assert graphs[1] == {"ap_loss_graph": reason, "focal_graph": not_tried}
    assert last == {"ap_loss_graph": not_tried, "focal_graph": not_tried}
    merged = graphs_cuda.with_graphs(made_row(), graphs[1])
    assert merged["graph_ratio"] is merged["graph_times_floor"] is None
    assert graphs_cuda.found_in_graphs([merged]) == []


def test_focal_loss_that_cannot_be_captured_leaves_ap_loss_its_time(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def capture(run: Any) -> Any:
        return stand_in_capture(run) if run.func is not times_cuda.focal else refuse(run)

    monkeypatch.setattr(gpu, "capture", capture)
    graphs = graphs_cuda.measure_graphs(GRAPH_ROW, 0, device, True)
    assert graphs["ap_loss_graph"]["milliseconds"] == 2
    assert graphs["focal_graph"]["reason"] == "not while the stream is captured"
    merged = graphs_cuda.with_graphs(made_row(), graphs)
    assert (merged["graph_ratio"], merged["graph_times_floor"]) == (None, round(2 / 0.09, 6))


def test_a_comparison_that_cannot_be_captured_is_told(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs_cuda, "replayed", lambda *arguments: {"milliseconds": 2.0})
    monkeypatch.setattr(gpu, "capture", refuse)
    graphs = graphs_cuda.measure_graphs(GRAPH_ROW, 0, device, True)
    reason = {"milliseconds": 2.0, "reason": "not while the stream is captured"}
    assert graphs["ap_loss_graph"] == reason
    assert graphs["focal_graph"]["milliseconds"] is None


def test_the_bench_hands_over_for_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(losses_cuda, "main", lambda **options: calls.append(options))
    options = {"quick": True, "json_file": None, "device": "cuda:1", "seed": 4}
    losses_cpu.main(**options)
    assert calls == [options]


# Tables


@pytest.mark.parametrize("kind", ["eager", "device"])
@pytest.mark.parametrize(
    ("field", "value", "bar", "text"),
    [
        ("ratio", 0.3, 0.25, "0.300 (not ≤ 0.25)"),
        ("times_floor", 4.01, 4.0, "4.01 (not ≤ 4)"),
        ("milliseconds", 0.36, 0.35, "0.360 (not ≤ 0.35)"),
    ],
)
def test_a_time_that_misses_its_bar_is_red_and_is_told_apart_from_the_other_kind(
    kind: str, field: str, value: float, bar: float, text: str
) -> None:
    other_kind = {"eager": "device", "device": "eager"}[kind]
    good = {name: made_time(name, field, bar) for name in ("eager", "device")}
    missed = made_row(bars={field: bar}, **{**good[other_kind], **made_time(kind, field, value)})
    shown = printed(tables_cuda.print_tables, {**RECORD, "rows": [missed]})
    assert shown.count("not ≤") == 1
    assert f"\x1b[31m{text}\x1b[0m" in shown
    assert f"{kind}: 0 of 1 bars are met. " in plain(shown) + " "
    assert f"{other_kind}: 1 of 1 bars are met. " in plain(shown) + " "
    assert "memory:" not in shown
    met = made_row(bars={field: bar}, **good["eager"], **good["device"])
    shown = printed(tables_cuda.print_tables, {**RECORD, "rows": [met, missed]})
    assert f"{kind}: 1 of 2 bars are met." in plain(shown)
    assert f"{other_kind}: 2 of 2 bars are met." in plain(shown)


def made_time(kind: str, field: str, value: float) -> dict[str, Any]:
    """The part of a row that a bar is about."""
    if field == "milliseconds":
        name = "ap_loss" if kind == "eager" else "ap_loss_graph"
        return {name: {"milliseconds": value, "quartiles": [0.3, 0.4], "least": 0.2}}
    return {field if kind == "eager" else f"graph_{field}": value}


def test_memory_has_a_bar_of_its_own() -> None:
    rows = [made_row(bars={"extra_mib": 32.0}, extra_mib=extra) for extra in (33.0, 32.0)]
    shown = printed(tables_cuda.print_tables, {**RECORD, "rows": rows})
    assert "\x1b[31m33.0 (not ≤ 32)\x1b[0m" in shown
    assert "memory: 1 of 2 bars are met." in plain(shown)
    assert "eager:" not in plain(shown)


def test_a_graph_that_is_missing_is_a_dash_with_its_reason_and_meets_no_bar() -> None:
    failed = {**NO_GRAPHS, "focal_graph": {"milliseconds": None, "reason": "it [waits]"}}
    rows = [made_row(bars={"ratio": 0.25, "milliseconds": 0.6}, **failed)] * 2
    shown = printed(tables_cuda.print_tables, {**RECORD, "rows": rows})
    assert "0.500 4.00 0.125 - - -" in plain(shown)
    assert plain(shown).count("no CUDA graph: it [waits]") == 1
    assert "eager: 4 of 4 bars are met." in plain(shown)
    assert "device: 0 of 4 bars are met." in plain(shown)


def test_the_tables_have_every_number() -> None:
    shown = plain(printed(tables_cuda.print_tables, RECORD))
    first = "21 M 1,000 initial float32"
    assert f"{first} 0.500 4.00 0.100 0.320 3.20 0.100" in shown  # eager, then the device
    assert f"{first} 0.440-0.600 0.430 3.94-4.10 3.93 0.700 605 1.00 0.060" in shown
    assert f"{first} 503 0.090 5.60 3.56 1.50 800" in shown
    assert "21 M 50,000 half-trained float32 0.500 4.00 0.125 - - -" in shown
    assert "AP-loss, backward on the calling thread 0.130 0.130 0.130" in shown
    assert "times that the host waits 7 7 7" in shown
    assert "bars are met" not in shown


def test_the_tables_fit_into_a_file_of_160_columns() -> None:
    bars = {"ratio": 0.25, "milliseconds": 0.35, "times_floor": 4.0, "extra_mib": 1.0}
    row = made_row(
        bars=bars,
        regime="half-trained",
        dtype="bfloat16",
        ratio=1.5,
        graph_ratio=0.5,
        times_floor=9,
    )
    row["ap_loss"]["milliseconds"] = row["ap_loss_graph"]["milliseconds"] = 0.999
    shown = printed(tables_cuda.print_tables, {**RECORD, "rows": [row]}, width=160)
    assert "…" not in shown
    assert "0.999 (not ≤ 0.35) 4.00 1.50 (not ≤ 0.25) 0.999 (not ≤ 0.35) 3.20" in plain(shown)


def test_the_largest_errors_and_all_problems_are_printed() -> None:
    shown = printed(tables_cuda.print_checks, RECORD)
    assert "3 checks" in shown.replace("\x1b[3m", "")
    assert "nan (not ≤ 1.0e-06)" in shown
    assert "3.0e-05" in shown
    assert "1.0e-08" in shown
    assert "something is [red] wrong" in shown


def test_the_readme_table_has_a_line_for_each_row_with_eager_and_device_beside_each_other() -> None:
    lines = tables_cuda.markdown(RECORD).splitlines()
    assert lines[0].startswith("| scores, positives | dtype | scores are | AP-loss, eager / device")
    assert lines[2] == (
        "| 21 M, 1,000 | float32 | initial | 0.500 / 0.320 | 4.00 / 3.20 | 0.100 / 0.100 "
        "| 605 | 1.00 | 0.060 | 5.60 / 3.56 | 1.50 |"
    )
    assert "| trained | 0.500 / 0.320 | 4.00 / 3.20 | 0.300 / 0.100 |" in lines[4]
    assert lines[5].startswith("| 21 M, 50,000 | float32 | half-trained | 0.500 / - | 4.00 / - |")
    assert "| 0.125 / - | - | 1.00 |" in lines[5]
    assert len({line.count("|") for line in lines[:6]}) == 1
    assert lines[7] == (
        "`rankdet bench losses --device cuda`, commit abc, seed 0, torch 2.11, Triton 3.6, "
        "Made-up GPU."
    )
    assert max(map(len, lines)) <= 160


def test_bench_table_prints_either_kind_of_record(tmp_path: Path) -> None:
    record = tmp_path / "losses-cuda.json"
    record.write_text(json.dumps(RECORD))
    result = CliRunner().invoke(cli.app, ["bench", "table", str(record)])
    assert result.output == tables_cuda.markdown(RECORD) + "\n"
    file = ROOT / "results" / "losses-cpu.json"
    result = CliRunner().invoke(cli.app, ["bench", "table", str(file)])
    assert result.output.startswith("| 5.2 M scores | initial | half-trained | trained |")


@pytest.mark.parametrize(
    "content", ["", "[1]", "{", '{"rows": [{}]}', '{"torchvision": 1}', "\xff", "demo-cpu.json"]
)
def test_bench_table_refuses_other_files_in_one_line(content: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    if content.endswith(".json"):
        content = (ROOT / "results" / content).read_text()
    file.write_bytes(content.encode("latin-1"))
    result = CliRunner().invoke(cli.app, ["bench", "table", str(file)])
    assert isinstance(result.exception, RankdetError)
    assert str(file) in str(result.exception)
    assert "`rankdet bench losses` or `rankdet bench step`" in str(result.exception)


# On a device


@pytest.mark.gpu
def test_events_memory_and_synchronisations_of_known_work() -> None:
    scores = torch.rand(1 << 24, device="cuda")
    short, long = gpu.milliseconds([scores.clone, lambda: [scores.clone() for _ in range(20)]])
    assert 0 < short < long
    assert gpu.peak_bytes(scores.clone) == scores.nbytes
    assert gpu.num_synchronisations(lambda: (scores[0].item(), scores.sum(), scores[1].item())) == 2
    assert gpu.num_synchronisations(scores.sum) == 0


@pytest.mark.gpu
def test_memory_is_poisoned() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for size in (1 << 20, 100):
            gpu.poison("cuda", 1 << 26)  # anew: looking at memory writes into other memory
            assert torch.empty(size, dtype=dtype, device="cuda").isnan().all()


@pytest.mark.gpu
def test_a_captured_run_writes_its_result_again() -> None:
    scores = torch.ones(8, device="cuda")
    replay, (total,) = gpu.capture(lambda: (scores.sum(),))
    scores.fill_(3)
    replay()
    assert total.item() == 24


@pytest.mark.gpu
def test_the_quick_bench_runs(tmp_path: Path) -> None:
    target = tmp_path / "losses.json"
    losses_cuda.main(quick=True, json_file=target, device="cuda", seed=0)
    assert json.loads(target.read_text())["problems"] == []
