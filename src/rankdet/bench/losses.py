"""What the losses cost, next to torchvision's sigmoid focal loss on the same scores.

Machines are noisy, so a time alone means little: every loss is timed in turn with focal loss, in
one process and with the same threads, and what counts is the median of the ratios. A run is forward
and backward. Memory is the growth of the process's peak, in a fresh process for each loss.
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
from rankdet.provenance import provenance

# 8 images at 512 x 512: 32,736 anchors each, 20 classes
NUM_ANCHORS, NUM_CLASSES = 8 * 32_736, 20
NUM_POSITIVES = (600, 5_000)

Run = Callable[[Problem], object]


def focal(problem: Problem) -> None:
    """The yardstick: torchvision's focal loss on dense targets, forward and backward."""
    from torchvision.ops import sigmoid_focal_loss

    problem.logits.grad = None
    sigmoid_focal_loss(problem.logits, problem.targets, reduction="sum").backward()


def backward_of(loss: Callable[..., Tensor]) -> Run:
    """Forward and backward of one of our losses."""

    def run(problem: Problem) -> None:
        problem.logits.grad = None
        loss(problem.logits, problem.labels).backward()

    return run


def copy(problem: Problem) -> None:
    """One copy of the logits: the floor of what anything can cost."""
    problem.logits.detach().clone()


def reference(problem: Problem) -> None:
    """Algorithm 1 of the paper, a loop over the positives."""
    losses.ap_loss_reference(problem.logits, problem.targets)


OTHER_LOSSES: dict[str, Callable[..., Tensor]] = {
    "AUC-loss": losses.auc_loss,
    "focal loss": losses.focal_loss,
    "GHM-C": losses.ghm_loss,
    "DR loss": losses.dr_loss,
    "hinge AP": losses.hinge_ap_loss,
}


def seconds(run: Run, problem: Problem) -> float:
    """The time of one run, with everything done at its end."""
    on_cuda = problem.logits.is_cuda
    if on_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    run(problem)
    if on_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(run: Run, yardstick: Run, problem: Problem, rounds: int) -> dict[str, float]:
    """Median milliseconds of both, and the median of their ratio over rounds in turn."""
    for _ in range(2):
        run(problem), yardstick(problem)
    pairs = [(seconds(run, problem), seconds(yardstick, problem)) for _ in range(rounds)]
    return {
        "milliseconds": 1e3 * statistics.median(ours for ours, _ in pairs),
        "yardstick_milliseconds": 1e3 * statistics.median(theirs for _, theirs in pairs),
        "ratio": statistics.median(ours / theirs for ours, theirs in pairs),
    }


def growth(run: Run, large: Problem, small: Problem, rounds: int) -> float:
    """The median ratio of the time on a large problem to that on a small one."""
    for problem in (large, small):
        run(problem)
    return statistics.median(seconds(run, large) / seconds(run, small) for _ in range(rounds))


def extra_memory(loss_name: str, sizes: tuple[str, int, int, int], seed: int, device: str) -> float:
    """The peak memory of a run above what the problem takes, in units of the logits' bytes."""
    problem = make_problem(*sizes, seed=seed, device=device)
    run = focal if loss_name == "focal" else backward_of(getattr(losses, loss_name))
    run(make_problem("initial", 2, 64, 2, seed=seed, device=device))  # loads what is loaded lazily
    size = problem.logits.numel() * problem.logits.element_size()
    if problem.logits.is_cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run(problem)
        return (torch.cuda.max_memory_allocated() - before) / size
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


def measure(quick: bool, device: str, seed: int, advance: Callable[[str], None]) -> dict[str, Any]:
    """All numbers of the tables; `advance` is told what comes next."""
    anchors, rounds = (NUM_ANCHORS // 32, 5) if quick else (NUM_ANCHORS, 15)
    num_positives = (60, 500) if quick else NUM_POSITIVES
    ap = backward_of(losses.ap_loss)

    def problem(regime: str, positives: int, anchors: int = anchors) -> Problem:
        return make_problem(regime, positives, anchors, NUM_CLASSES, seed=seed, device=device)

    results: dict[str, Any] = {"scores": anchors * NUM_CLASSES, "rounds": rounds, "cost": []}
    for regime in REGIMES:
        for positives in num_positives:
            advance(f"AP-loss, {regime}, P = {positives}")
            numbers = compare(ap, focal, problem(regime, positives), rounds)
            results["cost"].append({"regime": regime, "positives": positives, **numbers})

    few = num_positives[0]
    results["memory"] = measure_memory(anchors, few, seed, device, advance)
    half_trained = problem("half-trained", few)
    results["others"] = {}
    for name, loss in OTHER_LOSSES.items():
        advance(name)
        results["others"][name] = compare(
            backward_of(loss), focal, half_trained, max(3, rounds // 3)
        )
    advance("copy")
    results["others"]["a copy of the logits"] = compare(copy, focal, half_trained, rounds)

    results["growth"] = []
    for regime in REGIMES:
        advance(f"growth, {regime}")
        small = problem(regime, few)
        with_positives = growth(ap, problem(regime, 8 * few), small, rounds)
        with_negatives = growth(ap, problem(regime, few, 8 * anchors), small, max(3, rounds // 5))
        results["growth"].append(
            {"regime": regime, "positives": with_positives, "negatives": with_negatives}
        )
    results["reference"] = {}
    for regime in REGIMES:
        advance(f"the loop of Algorithm 1, {regime}")
        results["reference"][regime] = compare_once(reference, ap, problem(regime, few))
    return results


def compare_once(run: Run, yardstick: Run, problem: Problem) -> dict[str, float]:
    """One run, too slow for more, against the median of a few runs of the yardstick."""
    yardstick(problem)
    theirs = statistics.median(seconds(yardstick, problem) for _ in range(5))
    ours = seconds(run, problem)
    return {"seconds": ours, "yardstick_seconds": theirs, "ratio": ours / theirs}


def measure_memory(
    anchors: int, positives: int, seed: int, device: str, advance: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Extra memory of AP-loss and of focal loss, each measured in a process of its own."""
    rows = []
    for regime in REGIMES:
        row: dict[str, Any] = {"regime": regime}
        for name in ("ap_loss", "focal"):
            advance(f"memory, {name}, {regime}")
            arguments = (name, (regime, positives, anchors, NUM_CLASSES), seed, device)
            program = f"from {__name__} import extra_memory; print(extra_memory(*{arguments!r}))"
            answer = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=False
            )
            # It fails where there is no /proc or no malloc_trim: not Linux with glibc.
            row[name] = float(answer.stdout) if answer.returncode == 0 else None
        rows.append(row)
    return rows


def main(*, quick: bool, json_file: Path | None, device: str, seed: int) -> None:
    """Measure, print the tables, and write them as JSON if asked."""
    console = Console()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        results = measure(quick, device, seed, lambda text: progress.update(task, description=text))
    print_tables(results, console)
    if quick:
        console.print("--quick: fixed costs weigh more at small sizes; the bars are not for it.")
    if json_file is not None:
        record = {"provenance": provenance(seed=seed, device=device, quick=quick), **results}
        json_file.write_text(json.dumps(record, indent=2) + "\n")
        console.print(f"wrote {json_file}")
