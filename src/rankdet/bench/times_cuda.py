"""The runs that are timed on a CUDA device, and how: medians of many, the inputs in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from rankdet import losses
from rankdet.bench import gpu
from rankdet.bench.problems import Problem

Input = TypeVar("Input")

MOST_ROUNDS = 50
_BUDGET = 1000.0  # milliseconds for the runs of one number
_BLOCK = 20  # runs of one kind, before it is the turn of the next


def run_of(name: str, **settings: Any) -> Callable[[Problem], tuple[Tensor, Tensor]]:
    """Forward and backward of one of our losses: gives the value and the gradient."""
    loss: Callable[..., Tensor] = getattr(losses, name)

    def run(problem: Problem) -> tuple[Tensor, Tensor]:
        value = loss(problem.logits, problem.labels, **settings)
        return value.detach(), torch.autograd.grad(value, problem.logits)[0]

    return run


def focal(problem: Problem) -> None:
    """The yardstick: torchvision's focal loss on dense targets, forward and backward."""
    from torchvision.ops import sigmoid_focal_loss

    value = sigmoid_focal_loss(problem.logits, problem.targets, reduction="sum")
    torch.autograd.grad(value, problem.logits)


def sort(problem: Problem) -> None:
    """Every score sorted, as other exact methods do."""
    problem.logits.detach().flatten().sort()


def copy(problem: Problem) -> None:
    problem.logits.detach().clone()


def on_one_thread(run: Callable[[Problem], object]) -> Callable[[Problem], object]:
    """The run with its backward on the calling thread: no other has to wake up for it."""

    def run_on_one_thread(problem: Problem) -> object:
        with torch.autograd.set_multithreading_enabled(False):
            return run(problem)

    return run_on_one_thread


def timed(
    run: Callable[[Input], object],
    inputs: Sequence[Input],
    *,
    most_rounds: int = MOST_ROUNDS,
    with_head_start: bool = False,
) -> dict[str, Any]:
    """Median, quartiles and least of the milliseconds of many runs, the inputs in turn."""
    rounds = num_rounds(_warm_up(run, inputs), most_rounds)
    runs = [partial(run, inputs[number % len(inputs)]) for number in range(rounds)]
    return summary(gpu.milliseconds(runs, with_head_start=with_head_start))


def timed_in_turn(
    runs: Mapping[str, Callable[[Input], object]],
    inputs: Sequence[Input],
    most_rounds: int = MOST_ROUNDS,
) -> dict[str, dict[str, Any]]:
    """`timed` of several runs by name, in blocks one after the other.

    What slows the host down for a while then does so to all of them.
    """
    rounds = num_rounds(max(_warm_up(run, inputs) for run in runs.values()), most_rounds)
    found: dict[str, list[float]] = {name: [] for name in runs}
    for start in range(0, rounds, _BLOCK):
        numbers = range(start, min(start + _BLOCK, rounds))
        for name, run in runs.items():
            block = [partial(run, inputs[number % len(inputs)]) for number in numbers]
            found[name] += gpu.milliseconds(block)
    return {name: summary(milliseconds) for name, milliseconds in found.items()}


def _warm_up(run: Callable[[Input], object], inputs: Sequence[Input]) -> float:
    """About how many milliseconds a run takes, after what only the first ones need."""
    for number in range(3):  # compiles, and gets memory
        run(inputs[number % len(inputs)])
    return max(gpu.milliseconds([partial(run, chosen) for chosen in inputs[:2]]))


def num_rounds(milliseconds: float, most_rounds: int = MOST_ROUNDS) -> int:
    """How many runs of this length fit into the budget, at least five.

    >>> num_rounds(0.3), num_rounds(25.0), num_rounds(1000.0)
    (50, 40, 5)
    """
    return max(5, min(most_rounds, int(_BUDGET / max(milliseconds, 1e-3))))


def summary(milliseconds: Sequence[float]) -> dict[str, Any]:
    """
    >>> summary([4.0, 1.0, 2.0, 3.0, 100.0])
    {'milliseconds': 3.0, 'quartiles': [2.0, 4.0], 'least': 1.0, 'rounds': 5}
    """
    lower, middle, upper = statistics.quantiles(milliseconds, n=4, method="inclusive")
    return {
        "milliseconds": middle,
        "quartiles": [lower, upper],
        "least": min(milliseconds),
        "rounds": len(milliseconds),
    }


def timed_backward(problems: Sequence[Problem]) -> dict[str, Any]:
    """AP-loss: only the backward passes are timed; the forward passes are all done before."""

    def backward(value: Tensor, problem: Problem) -> None:
        torch.autograd.grad(value, problem.logits)

    chosen = [problems[number % len(problems)] for number in range(30)]
    runs = [
        partial(backward, losses.ap_loss(problem.logits, problem.labels), problem)
        for problem in chosen
    ]
    return summary(gpu.milliseconds(runs))
