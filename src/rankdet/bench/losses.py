"""What the losses cost, next to torchvision's sigmoid focal loss on the same scores.

Machines are noisy, so a time alone means little: a loss is timed in turn with focal loss, in one
process and with the same threads, and what counts is the median of the ratios; their quartiles are
recorded beside it. Every row has a process of its own, because what earlier rows left in the
allocator changes the cost of fresh memory. A run is forward and backward. Memory is the growth of
the process's peak.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from rankdet import losses
from rankdet.bench.problems import REGIMES, Problem, make_problem
from rankdet.bench.tables import print_tables
from rankdet.output import write_whole
from rankdet.provenance import provenance

# 8 images at 512 x 512: 32,736 anchors each, 20 classes
NUM_ANCHORS, NUM_CLASSES = 8 * 32_736, 20
NUM_POSITIVES = (600, 5_000)

Run = Callable[[Problem], object]
Sizes = tuple[str, int, int, int]  # regime, positives, anchors, classes


def focal(problem: Problem) -> None:
    """The yardstick: torchvision's focal loss on dense targets, forward and backward."""
    from torchvision.ops import sigmoid_focal_loss

    problem.logits.grad = None
    sigmoid_focal_loss(problem.logits, problem.targets, reduction="sum").backward()


def copy(problem: Problem) -> None:
    """One copy of the logits: the floor of what anything can cost."""
    problem.logits.detach().clone()


def reference(problem: Problem) -> None:
    """Algorithm 1 of the paper, a loop over the positives."""
    losses.ap_loss_reference(problem.logits, problem.targets)


def run_of(name: str) -> Run:
    """Forward and backward of one of our losses, or of focal, or a copy."""
    if name in ("focal", "copy"):
        return {"focal": focal, "copy": copy}[name]
    loss: Callable[..., Tensor] = getattr(losses, name)

    def run(problem: Problem) -> None:
        problem.logits.grad = None
        is_dense = name == "binary_ap_loss"
        loss(problem.logits, problem.targets if is_dense else problem.labels).backward()

    return run


OTHERS = ("auc_loss", "focal_loss", "ghm_loss", "dr_loss", "hinge_ap_loss", "copy")


def seconds(run: Run, problem: Problem) -> float:
    """The time of one run."""
    start = time.perf_counter()
    run(problem)
    return time.perf_counter() - start


def compare(run: Run, yardstick: Run, problem: Problem, rounds: int) -> dict[str, Any]:
    """Median milliseconds of both, and quartiles of their ratio over rounds in turn."""
    for _ in range(3):
        run(problem), yardstick(problem)
    pairs = [(seconds(run, problem), seconds(yardstick, problem)) for _ in range(rounds)]
    return {
        "milliseconds": 1e3 * statistics.median(ours for ours, _ in pairs),
        "yardstick_milliseconds": 1e3 * statistics.median(theirs for _, theirs in pairs),
        **_quartiles([ours / theirs for ours, theirs in pairs]),
    }


def growth(run: Run, large: Problem, small: Problem, rounds: int) -> dict[str, Any]:
    """Quartiles of the ratio of the time on a large problem to that on a small one."""
    for problem in (large, small):
        run(problem)
    return _quartiles([seconds(run, large) / seconds(run, small) for _ in range(rounds)])


def _quartiles(ratios: list[float]) -> dict[str, Any]:
    lower, middle, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"ratio": middle, "ratio_quartiles": [lower, upper]}


def extra_memory(loss_name: str, sizes: Sizes, seed: int, device: str) -> float:
    """The peak memory of a run above what the problem takes, in units of the logits' bytes."""
    problem = make_problem(*sizes, seed=seed, device=device)
    run = run_of(loss_name)
    run(make_problem("initial", 2, 64, 2, seed=seed, device=device))  # loads what is loaded lazily
    size = problem.logits.numel() * problem.logits.element_size()
    # Memory that was freed but is still held would be used again without being seen.
    ctypes.CDLL(None).malloc_trim(0)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to what is in use now
    run(problem)
    return (_memory("VmHWM") - before) / size


def _memory(field: str) -> int:
    """A line of Linux's account of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status: no field {field}")


def cost(loss_name: str, sizes: Sizes, seed: int, device: str, rounds: int) -> dict[str, Any]:
    """A loss against focal loss on one problem."""
    return compare(run_of(loss_name), focal, make_problem(*sizes, seed=seed, device=device), rounds)


def growth_cost(sizes: Sizes, seed: int, device: str, rounds: int) -> dict[str, Any]:
    """How the time of AP-loss grows with eight times the positives, and the anchors."""
    regime, positives, anchors, classes = sizes
    run = run_of("ap_loss")
    small, more_positives, more_anchors = (
        make_problem(regime, *numbers, classes, seed=seed, device=device)
        for numbers in ((positives, anchors), (8 * positives, anchors), (positives, 8 * anchors))
    )
    return {
        "positives": growth(run, more_positives, small, rounds),
        "anchors": growth(run, more_anchors, small, max(3, rounds // 3)),
    }


def reference_cost(sizes: Sizes, seed: int, device: str) -> dict[str, Any]:
    """One run of Algorithm 1, too slow for more, against the median of a few of AP-loss."""
    problem = make_problem(*sizes, seed=seed, device=device)
    run = run_of("ap_loss")
    run(problem)
    ours = statistics.median(seconds(run, problem) for _ in range(5))
    theirs = seconds(reference, problem)
    return {"seconds": theirs, "ap_loss_seconds": ours, "ratio": theirs / ours}


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of one of the functions here in a new process: no row has another's memory."""
    program = (
        f"import json; from {__name__} import {function.__name__} as run; "
        f"print(json.dumps(run(*{arguments!r})))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if answer.returncode != 0:
        raise RuntimeError(f"{function.__name__}{arguments} failed:\n{answer.stderr}")
    return json.loads(answer.stdout)


def measure(quick: bool, device: str, seed: int, advance: Callable[[str], None]) -> dict[str, Any]:
    """All numbers of the tables; `advance` is told what comes next."""
    anchors, rounds = (NUM_ANCHORS // 32, 5) if quick else (NUM_ANCHORS, 11)
    few, many = (60, 500) if quick else NUM_POSITIVES

    def sizes(regime: str, positives: int) -> Sizes:
        return regime, positives, anchors, NUM_CLASSES

    def row(function: Callable[..., Any], *arguments: Any) -> Any:
        advance(" ".join(map(str, (function.__name__, *arguments))))
        return in_fresh_process(function, *arguments)

    costs = [
        {
            "loss": name,
            "regime": regime,
            "positives": positives,
            **row(cost, name, sizes(regime, positives), seed, device, rounds),
        }
        for name, numbers in (("ap_loss", (few, many)), ("binary_ap_loss", (few,)))
        for positives in numbers
        for regime in REGIMES
    ]
    half_trained = sizes("half-trained", few)
    others = {
        name: row(cost, name, half_trained, seed, device, max(3, rounds // 3)) for name in OTHERS
    }
    memory = []
    for name in ("ap_loss", "binary_ap_loss", "focal"):
        for regime in REGIMES:
            used = _memory_row(row, name, sizes(regime, few), seed, device)
            memory.append({"loss": name, "regime": regime, "ratio": used})
    growths = {
        regime: row(growth_cost, sizes(regime, few), seed, device, max(3, rounds // 2))
        for regime in REGIMES
    }
    references = {
        regime: row(reference_cost, sizes(regime, few), seed, device) for regime in REGIMES
    }
    return {
        "scores": anchors * NUM_CLASSES,
        "rounds": rounds,
        "cost": costs,
        "others": others,
        "memory": memory,
        "growth": growths,
        "reference": references,
    }


def _memory_row(
    row: Callable[..., Any], name: str, sizes: Sizes, seed: int, device: str
) -> float | None:
    try:
        return float(row(extra_memory, name, sizes, seed, device))
    except RuntimeError:  # no /proc or no malloc_trim: not Linux with glibc
        return None


def main(*, quick: bool, json_file: Path | None, device: str, seed: int) -> None:
    """Measure, print the tables, and write them as JSON if asked."""
    if torch.device(device).type == "cuda":  # other questions: bandwidth, launches, graphs
        from rankdet.bench import losses_cuda

        losses_cuda.main(quick=quick, json_file=json_file, device=device, seed=seed)
        return
    console = Console()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        results = measure(quick, device, seed, lambda text: progress.update(task, description=text))
    print_tables(results, console, with_bars=not quick)
    if quick:
        console.print("--quick: at small sizes fixed costs weigh more; bars are for the full run.")
    if json_file is not None:
        record = {"provenance": provenance(seed=seed, device=device, quick=quick), **results}
        write_whole(json_file, (json.dumps(record, indent=2) + "\n").encode())
        console.print(f"wrote {json_file}")
