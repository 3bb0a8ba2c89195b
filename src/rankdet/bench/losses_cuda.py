"""What the losses cost on a CUDA device: first whether they are right, then times, then memory.

Times are of forward + backward, by events, runs enqueued back to back; several sets of inputs take
turns, so that the device's cache does not have them. AP-loss stands beside torchvision's focal loss
on the same scores, and beside its floor: it must read the scores twice and write the gradient once,
which at the bandwidth of a copy (one read, one write) takes one and a half copies. Eager times, as
users have them, are the host's at small sizes; the device's own are those of CUDA graphs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from rankdet import losses
from rankdet.bench import correctness, gpu
from rankdet.bench.graphs_cuda import (
    found_in_graphs,
    measure_all_graphs,
    measure_graphs,
    with_graphs,
)
from rankdet.bench.problems import REGIMES, Problem
from rankdet.bench.rows_cuda import QUICK_SIZES, SIZES, Row, all_rows, bars
from rankdet.bench.tables_cuda import print_checks, print_tables
from rankdet.bench.times_cuda import (
    copy,
    focal,
    on_one_thread,
    run_of,
    sort,
    timed,
    timed_backward,
    timed_in_turn,
)
from rankdet.errors import RankdetError
from rankdet.output import write_whole
from rankdet.provenance import provenance

_MOST_LOOP = 20_000.0  # milliseconds: a slower loop over the positives is left out


def measure_row(row: Row, seed: int, device: str, quick: bool) -> dict[str, Any]:
    """Everything about one row."""
    problems = row.problems(seed, device, 4 if quick else row.num_sets)
    ap_loss = run_of("ap_loss")
    runs = {"ap_loss": ap_loss, "focal": focal, "our_focal": run_of("focal_loss")}
    times = {
        **timed_in_turn(runs, problems, row.most_rounds),
        "sort": timed(sort, problems),
        "copy": timed(copy, problems, with_head_start=True),  # the floor knows no host
    }
    extra_mib = {
        name: (gpu.peak_bytes(partial(run, problems[0])) - row.num_bytes) / 2**20
        for name, run in (("ap_loss", ap_loss), ("focal", focal))
    }
    loop = measure_loop(problems[0]) if row.with_loop else {"milliseconds": None}
    return {
        "size": row.size,
        "scores": row.num_scores,
        "positives": row.num_positives,
        "regime": row.regime,
        "dtype": row.dtype,
        "sets": len(problems),
        **times,
        "loop": loop,
        **derived(
            row.num_bytes, *(times[key]["milliseconds"] for key in ("ap_loss", "focal", "copy"))
        ),
        "extra_mib": extra_mib["ap_loss"],
        "focal_extra_mib": extra_mib["focal"],
        "bars": {} if quick else bars(row),
    }


def derived(num_bytes: int, ap_loss: float, focal: float, copy: float) -> dict[str, float]:
    """Ratio to focal loss, bandwidth and floor, from three times in milliseconds.

    >>> derived(400_000_000, ap_loss=0.6, focal=3.0, copy=0.2)
    {'ratio': 0.2, 'gigabytes_per_second': 2000.0, 'floor_milliseconds': 0.3, 'times_floor': 2.0}
    """
    floor = 3 * copy / 2
    return {
        "ratio": round(ap_loss / focal, 6),
        "gigabytes_per_second": round(3 * num_bytes / ap_loss / 1e6, 3),
        "floor_milliseconds": round(floor, 6),
        "times_floor": round(ap_loss / floor, 6),
    }


def measure_loop(problem: Problem) -> dict[str, Any]:
    """The time of Algorithm 1, if it is bearable, and how far AP-loss is from its result."""
    num_positives = int(problem.targets.sum(dtype=torch.float64))

    def loop(targets: Tensor) -> tuple[Tensor, Tensor]:
        return losses.ap_loss_reference(problem.logits, targets)

    few, more = (_lowest(problem, number) for number in (2, 8))
    loop(few)
    short, longer = gpu.milliseconds([partial(loop, few), partial(loop, more)])
    estimate = short + (num_positives - 2) * max(longer - short, 0.0) / 6
    if estimate > _MOST_LOOP:
        return {"milliseconds": None, "estimate_milliseconds": estimate}
    exact: list[Tensor] = []
    (milliseconds,) = gpu.milliseconds([lambda: exact.extend(loop(problem.targets))])
    result = run_of("ap_loss")(problem)
    errors = correctness.differences(result, (exact[0], exact[1]), problem.labels, None)
    return {"milliseconds": milliseconds, "estimate_milliseconds": estimate, "errors": errors}


def _lowest(problem: Problem, number: int) -> Tensor:
    """Targets with the few lowest positives, against which as many negatives count as of all."""
    places = problem.targets.flatten().nonzero()[:, 0]
    lowest = problem.logits.detach().flatten()[places].argsort()[:number]
    targets = torch.zeros_like(problem.targets)
    targets.view(-1)[places[lowest]] = 1
    return targets


def measure_details(row: Row, seed: int, device: str, quick: bool) -> dict[str, Any]:
    """Forward and backward apart, other losses and steps, and how often the host must wait."""
    problems = row.problems(seed, device, 4 if quick else row.num_sets)
    whole = run_of("ap_loss")
    runs: dict[str, Callable[[Problem], object]] = {"ap_loss": whole, "focal": focal}
    runs |= {f"{name}_one_thread": on_one_thread(run) for name, run in runs.items()}
    return {
        **timed_in_turn(runs, problems, row.most_rounds),
        "forward": timed(lambda problem: losses.ap_loss(problem.logits, problem.labels), problems),
        "backward": timed_backward(problems),
        "auc_loss": timed(run_of("auc_loss"), problems),
        "heaviside": timed(run_of("ap_loss", step="heaviside"), problems),
        "sigmoid": timed(run_of("ap_loss", step="sigmoid", delta=0.5), problems),
        "synchronisations": gpu.num_synchronisations(partial(whole, problems[0])),
    }


def measure(quick: bool, device: str, seed: int, advance: Callable[[str], None]) -> dict[str, Any]:
    """All numbers of the tables; `advance` is told what comes next. Graphs last: they may fail."""
    start = time.perf_counter()
    checks = run_checks(quick, seed, device, advance)
    if found := found_problems(checks):
        return {"checks": checks, "problems": found}

    def each(function: Callable[..., Any], rows: Sequence[Row]) -> list[dict[str, Any]]:
        found = []
        for row in rows:
            words = f"{row.regime}, {row.num_scores:,} x {row.dtype}, {row.num_positives:,}"
            advance(f"{function.__name__}: {words}")
            found.append(function(row, seed, device, quick))
            gpu.forget()
        return found

    records = each(measure_row, all_rows(quick))
    (size, numbers), *_ = (QUICK_SIZES if quick else SIZES).items()
    small = [Row(size, regime, *numbers) for regime in REGIMES]
    details = dict(zip(REGIMES, each(measure_details, small), strict=True))
    graphs = measure_all_graphs(all_rows(quick), lambda row: each(measure_graphs, [row])[0])
    rows = list(map(with_graphs, records, graphs))
    return {
        "rows": rows,
        "details": details,
        "checks": checks,
        "problems": found_in_rows(rows) + found_in_graphs(rows),
        "seconds": time.perf_counter() - start,
    }


def run_checks(
    quick: bool, seed: int, device: str, advance: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The records of all checks of correctness."""
    checks = []
    for number, check in enumerate(correctness.all_checks(quick, seed, device), 1):
        advance(f"check {number}")
        checks.append(check())
        gpu.forget()
    return checks


def found_problems(checks: Sequence[dict[str, Any]]) -> list[str]:
    return [problem for check in checks for problem in check["problems"]]


def found_in_rows(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong in the rows that were compared with Algorithm 1."""
    cases = (
        (correctness.Case("ap_loss", "piecewise", row["dtype"], row["regime"], False), row)
        for row in rows
        if "errors" in row["loop"]
    )
    return [
        f"{row['scores']:,} scores: {problem}"
        for case, row in cases
        for problem in correctness.judged(case, row["loop"]["errors"])["problems"]
    ]


def main(*, quick: bool, json_file: Path | None, device: str, seed: int) -> None:
    """Check, measure, print the tables, and write them as JSON if asked.

    RankdetError if a loss is wrong: then there are no times, unless they led to the discovery.
    """
    console = Console()
    if not console.is_terminal:  # into a file or a pipe: there is no edge to keep to
        console = Console(width=160)
    machine = gpu.use(device)
    num_steps = sum(1 for _ in correctness.all_checks(quick, seed, device))
    rows = all_rows(quick)
    num_steps += len(rows) + len(REGIMES) + sum(row.with_graphs for row in rows)
    # A bar that draws itself at any moment would take the host from the runs.
    with Progress(console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("starting", total=num_steps)

        def advance(text: str) -> None:
            progress.update(task, description=text, advance=1, refresh=True)

        results = measure(quick, device, seed, advance)
    print_checks(results, console)
    if "rows" in results:
        print_tables(results, console)
        if quick:
            console.print("--quick: at small sizes launches are all; bars are for the full run.")
        record = {
            "provenance": provenance(seed=seed, device=device, quick=quick),
            "gpu": machine,
            **results,
        }
        if json_file is not None:
            write_whole(json_file, (json.dumps(record, indent=2) + "\n").encode())
            console.print(f"wrote {json_file}")
    if results["problems"]:
        others = len(results["problems"]) - 1
        more = f" (and {others} more)" if others else ""
        raise RankdetError(f"the losses are not right: {results['problems'][0]}{more}")
