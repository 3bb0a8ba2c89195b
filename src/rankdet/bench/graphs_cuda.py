"""The device's own time, without the host: forward + backward as CUDA graphs that are replayed.

Small batches take the host longer than the device: Python, launches, autograd's thread. A training
step that keeps the device busy does not feel that; what the device needs, it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from rankdet.bench import gpu
from rankdet.bench.problems import Problem
from rankdet.bench.rows_cuda import Row
from rankdet.bench.times_cuda import focal, run_of, timed

_NOT_TRIED = "not tried, because a capture before it failed"


def measure_graphs(row: Row, seed: int, device: str, quick: bool) -> dict[str, dict[str, Any]]:
    """AP-loss and torchvision's focal loss, and whether the graphs of AP-loss are right.

    After a capture that fails, CUDA may not be usable: then nothing more is tried.
    """
    problems = row.problems(seed, device, 4 if quick else row.num_graph_sets)
    ap_loss = replayed(run_of("ap_loss"), problems, row.most_rounds)
    if "reason" not in ap_loss:
        ap_loss |= compare_replays(row, seed, device)
    if "reason" in ap_loss:
        return {"ap_loss_graph": ap_loss, "focal_graph": missing(_NOT_TRIED)}
    return {
        "ap_loss_graph": ap_loss,
        "focal_graph": replayed(focal, problems, row.most_rounds),
    }


def measure_all_graphs(
    rows: Sequence[Row], measure: Callable[[Row], dict[str, dict[str, Any]]]
) -> list[dict[str, dict[str, Any]]]:
    """`measure` of each row that is for graphs, until a capture fails."""
    found: list[dict[str, dict[str, Any]]] = []
    reason = None
    for row in rows:
        if not row.with_graphs or reason:
            found.append({key: missing(reason) for key in ("ap_loss_graph", "focal_graph")})
            continue
        found.append(measure(row))
        if any("reason" in graph for graph in found[-1].values()):
            reason = _NOT_TRIED
    return found


def missing(reason: str | None) -> dict[str, Any]:
    """What stands in place of a time, with the reason if it should have been measured."""
    return {"milliseconds": None, **({"reason": reason} if reason else {})}


def replayed(
    run: Callable[[Problem], object], problems: Sequence[Problem], most_rounds: int
) -> dict[str, Any]:
    """Times of the replays, one graph for each problem, or the reason why there are none."""
    try:
        replays = [gpu.capture(partial(run, problem))[0] for problem in problems]
    except RuntimeError as error:
        return missing(_first_line(error))
    return timed(lambda replay: replay(), replays, most_rounds=most_rounds, with_head_start=True)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def compare_replays(row: Row, seed: int, device: str) -> dict[str, Any]:
    """Whether a replay of AP-loss gives what an eager run gives.

    The inputs are then replaced, by a batch with another number of positives too: a graph must not
    have kept any of it.
    """
    (problem,) = row.problems(seed, device, 1)
    other = replace(row, num_positives=row.num_positives // 2)
    (replacement,) = other.problems(seed + 1000, device, 1)
    run = run_of("ap_loss")
    try:
        replay, result = gpu.capture(partial(run, problem))
    except RuntimeError as error:
        return {"reason": _first_line(error)}
    is_equal = _replays_equal(replay, result, run(problem))
    problem.logits.data.copy_(replacement.logits.detach())
    problem.labels.copy_(replacement.labels)
    is_equal_after = _replays_equal(replay, result, run(replacement))
    return {"is_equal": is_equal, "is_equal_on_other_inputs": is_equal_after}


def _replays_equal(replay: Callable[[], None], result: Any, expected: Any) -> bool:
    """Whether a replay writes the same bits into `result`."""
    for tensor in result:
        tensor.fill_(float("nan"))
    replay()
    return all(torch.equal(ours, theirs) for ours, theirs in zip(result, expected, strict=True))


def with_graphs(row: dict[str, Any], graphs: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The record of a row with its graphs, their ratio, and that of AP-loss to the floor.

    >>> graphs = {"ap_loss_graph": {"milliseconds": 0.2}, "focal_graph": {"milliseconds": 0.8}}
    >>> found = with_graphs({"floor_milliseconds": 0.1}, graphs)
    >>> found["graph_ratio"], found["graph_times_floor"]
    (0.25, 2.0)
    """
    ap_loss, focal = (graphs[key]["milliseconds"] for key in ("ap_loss_graph", "focal_graph"))
    return {
        **row,
        **graphs,
        "graph_ratio": _divided(ap_loss, focal),
        "graph_times_floor": _divided(ap_loss, row["floor_milliseconds"]),
    }


def _divided(value: float | None, by: float | None) -> float | None:
    return None if value is None or by is None else round(value / by, 6)


def found_in_graphs(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A graph that cannot be captured is slow; one that gives other numbers is wrong."""
    return [
        f"a CUDA graph, {row['scores']:,} x {row['dtype']}, {row['regime']} scores: its replay "
        f"differs from the eager run ({name})"
        for row in rows
        for name in ("is_equal", "is_equal_on_other_inputs")
        if not row["ap_loss_graph"].get(name, True)
    ]
