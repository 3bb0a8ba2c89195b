"""Whether the losses are right, before anybody looks at how fast they are.

Value and gradient are compared with float64 by ||out - exact|| / ||exact||, the gradient of the
negatives also alone: theirs is small beside that of the positives. The exact gradient is rounded to
the dtype first, so that what is left is the loss's own error, and not that of a small float16. The
memory is poisoned before a run, and a second run must give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from rankdet import losses
from rankdet.bench import gpu, pairs
from rankdet.bench.problems import REGIMES, make_problem
from rankdet.losses import BACKGROUND, IGNORED
from rankdet.losses.labels import counted_entries, positive_entries

DTYPES = ("float32", "bfloat16", "float16")
DELTAS = {"piecewise": 1.0, "heaviside": 1.0, "sigmoid": 0.5}
# The incoming gradient: no power of two, so that it counts, and large enough for float16.
SCALE = 1000.0

_NAMES = {
    "value": "the value",
    "gradient": "the gradient",
    "negatives": "the negatives' gradient",
    "ignored": "the gradient of what is ignored",
}


@dataclass(frozen=True)
class Case:
    """What is checked: a loss, its step, and the kind of scores that it gets."""

    loss: str
    step: str
    dtype: str
    regime: str
    is_masked: bool

    def __str__(self) -> str:
        step = f", {self.step} step" if self.step else ""
        mask = ", masked" if self.is_masked else ""
        return f"{self.loss}{step}, {self.dtype}, {self.regime} scores{mask}"

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of the loss."""
        return {"step": self.step, "delta": DELTAS[self.step]} if self.step else {}


def cases() -> list[Case]:
    """Every combination of AP-loss; the others, which share its kernels, with a mask only."""
    everything = product(DELTAS, DTYPES, REGIMES)
    found = [
        Case(loss, step, dtype, regime, is_masked)
        for step, dtype, regime in everything
        for loss, is_masked in (("ap_loss", False), ("ap_loss", True), ("auc_loss", True))
    ]
    plain = (
        Case("focal_loss", "", dtype, regime, True) for dtype, regime in product(DTYPES, REGIMES)
    )
    return [*found, *plain]


def bars(dtype: str, step: str) -> dict[str, float]:
    """The largest errors that are allowed.

    In half precision some gradients lie so near to the middle of two numbers that the other one is
    taken; rounding twice, as by a product in half precision, would be twice the bar and more.

    >>> bars("float32", "piecewise")
    {'value': 1e-06, 'gradient': 1e-06, 'negatives': 4e-06, 'ignored': 0.0}
    """
    exact = 1e-6 if step in ("piecewise", "heaviside") else 1e-5
    kind = getattr(torch, dtype)
    rounding = 0.0 if kind == torch.float32 else torch.finfo(kind).eps / 8
    # A negative's update is often a small difference of large numbers.
    return {
        "value": exact,
        "gradient": rounding + exact,
        "negatives": rounding + 4 * exact,
        "ignored": 0.0,
    }


def relative_error(result: Tensor, exact: Tensor) -> float:
    """||result - exact|| / ||exact||; if nothing is expected, 0 or infinity.

    >>> relative_error(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0]))
    0.2
    """
    difference = (result.double() - exact.double()).norm().item()
    norm = exact.double().norm().item()
    if norm == 0:
        return 0.0 if difference == 0 else float("inf")
    return difference / norm


def judged(case: Case, errors: dict[str, float], is_repeatable: bool = True) -> dict[str, Any]:
    """The record of a check, with a line for everything that is wrong."""
    limits = bars(case.dtype, case.step)
    problems = [
        f"{case}: the error of {_NAMES[name]} is {error:.2g}, more than {limits[name]:.2g}"
        for name, error in errors.items()
        if not error <= limits[name]  # NaN is never right
    ]
    if not is_repeatable:
        problems.append(f"{case}: two runs on the same inputs differ")
    return {
        "case": str(case),
        "loss": case.loss,
        "step": case.step,
        "dtype": case.dtype,
        "errors": errors,
        "bars": limits,
        "is_repeatable": is_repeatable,
        "problems": problems,
    }


def check(case: Case, num_anchors: int, num_classes: int, seed: int, device: str) -> dict[str, Any]:
    """One case on a batch of its own, one anchor in a hundred of which is a positive."""
    logits, labels, mask = _inputs(case, num_anchors, num_classes, seed, device)
    value, gradient = outcome(case, logits, labels, mask)
    again = outcome(case, logits, labels, mask)
    is_repeatable = torch.equal(value, again[0]) and torch.equal(gradient, again[1])
    exact = _EXACT[case.loss](case, logits, labels, mask)
    errors = differences((value, gradient), exact, labels, mask)
    return judged(case, errors, is_repeatable)


def _inputs(
    case: Case, num_anchors: int, num_classes: int, seed: int, device: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """A batch with ignored anchors and, if the case has one, a mask that leaves out a tenth."""
    problem = make_problem(
        case.regime,
        num_anchors // 100,
        num_anchors,
        num_classes,
        seed=seed,
        device=device,
        draw_on=device,
        dtype=getattr(torch, case.dtype),
    )
    logits, labels = problem.logits.detach(), problem.labels
    labels[7::20] = IGNORED
    generator = torch.Generator(device).manual_seed(seed + 1)
    draws = torch.rand(logits.shape, generator=generator, device=device)
    return logits, labels, draws > 0.1 if case.is_masked else None


def outcome(
    case: Case, logits: Tensor, labels: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The loss, and SCALE times its gradient, in memory that was poisoned before."""
    gpu.poison(str(logits.device), 4 * logits.nbytes)
    leaf = logits.detach().requires_grad_()
    value = getattr(losses, case.loss)(leaf, labels, mask=mask, **case.settings)
    (gradient,) = torch.autograd.grad(value, leaf, torch.full_like(value, SCALE))
    return value.detach(), gradient


def differences(
    result: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor], labels: Tensor, mask: Tensor | None
) -> dict[str, float]:
    """The errors of a value and a gradient; `exact` has a gradient of 0 at ignored entries."""
    num_classes = result[1].shape[1]
    counted = counted_entries(labels, mask, num_classes)
    is_negative = counted & ~positive_entries(labels, num_classes)
    ignored = result[1][~counted]
    rounded = exact[1].to(result[1].dtype)
    return {
        "value": relative_error(result[0], exact[0]),
        "gradient": relative_error(result[1], rounded),
        "negatives": relative_error(result[1][is_negative], rounded[is_negative]),
        "ignored": ignored.abs().max().item() if len(ignored) else 0.0,
    }


def _exact_ap(
    case: Case, logits: Tensor, labels: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """By Algorithm 1 of the paper."""
    num_classes = logits.shape[1]
    value, update = losses.ap_loss_reference(
        logits,
        positive_entries(labels, num_classes).long(),
        mask=counted_entries(labels, mask, num_classes),
        **case.settings,
    )
    return value, SCALE * update


def _exact_auc(
    case: Case, logits: Tensor, labels: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    ranking = pairs.rank(case.loss, logits, labels, mask, case.step, DELTAS[case.step])
    gradient = torch.zeros_like(logits, dtype=torch.float64)
    for piece, is_negative, rows in pairs.pieces(logits, labels, mask):
        gradient[rows] = torch.where(is_negative, ranking.update_of(piece), 0.0)
    gradient.view(-1)[ranking.index] = ranking.update
    return ranking.value, SCALE * gradient


def _exact_focal(
    case: Case, logits: Tensor, labels: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """By torchvision, in float64."""
    from torchvision.ops import sigmoid_focal_loss

    counted = counted_entries(labels, mask, logits.shape[1])
    leaf = logits.double().requires_grad_()
    is_positive = positive_entries(labels, logits.shape[1]) & counted
    terms = sigmoid_focal_loss(leaf, is_positive.double())
    value = torch.where(counted, terms, 0.0).sum() / is_positive.sum().clamp(min=1)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), SCALE * gradient


_EXACT: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "ap_loss": _exact_ap,
    "auc_loss": _exact_auc,
    "focal_loss": _exact_focal,
}


def check_many(num_anchors: int, num_classes: int, seed: int, device: str) -> dict[str, Any]:
    """AP-loss on more elements than 32 bits can count, if the sizes are so, in bfloat16.

    Six positives stand from the first row to the last, so that the exact result can be had.
    """
    case = Case("ap_loss", "piecewise", "bfloat16", "half-trained", False)
    logits = torch.empty(num_anchors, num_classes, dtype=torch.bfloat16, device=device)
    labels = torch.full((num_anchors,), BACKGROUND, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    mean, deviation = REGIMES[case.regime][1]
    for piece, _, _ in pairs.pieces(logits, labels, None):
        piece.normal_(mean, deviation, generator=generator)
    for number, share in enumerate((0, 0.3, 0.5, 0.995, 0.999, 1)):
        row, column = int(share * (num_anchors - 1)), 13 * number % num_classes
        logits[row, column] = 1.0 - number  # the low ones, with large updates, stand at the end
        labels[row] = column

    value, gradient = outcome(case, logits, labels, None)
    ranking = pairs.rank("ap_loss", logits, labels, None, case.step, DELTAS[case.step])
    errors = _many_errors(value, gradient, ranking, logits, labels)
    return judged(replace(case, regime=f"{logits.numel():,}"), errors)


def _many_errors(
    value: Tensor, gradient: Tensor, ranking: pairs.Ranking, logits: Tensor, labels: Tensor
) -> dict[str, float]:
    """`differences` without any tensor of the size of the logits."""
    squares = torch.zeros(2, dtype=torch.float64, device=logits.device)  # difference, exact
    for piece, is_negative, rows in pairs.pieces(logits, labels, None):
        exact = _rounded(torch.where(is_negative, ranking.update_of(piece), 0.0), gradient)
        difference = torch.where(is_negative, gradient[rows].double() - exact, 0.0)
        squares += torch.stack([difference.square().sum(), exact.square().sum()])
    num_classes = logits.shape[1]
    places = [divmod(place, num_classes) for place in ranking.index.tolist()]
    of_positives = torch.stack([gradient[place] for place in places]).double()
    exact = _rounded(ranking.update, gradient)
    both = squares + torch.stack([(of_positives - exact).square().sum(), exact.square().sum()])
    return {
        "value": relative_error(value, ranking.value),
        "gradient": (both[0] / both[1]).sqrt().item(),
        "negatives": (squares[0] / squares[1]).sqrt().item(),
    }


def _rounded(update: Tensor, gradient: Tensor) -> Tensor:
    return (SCALE * update).to(gradient.dtype).double()


def all_checks(quick: bool, seed: int, device: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """What is to be checked, one after the other; odd sizes, so that every block has a rest."""
    num_anchors, num_classes = (2003, 7) if quick else (20_011, 21)
    for number, case in enumerate(cases()):
        yield partial(check, case, num_anchors, num_classes, seed + number, device)
    if not quick:  # 2^31 is 2,147,483,648
        yield partial(check_many, 27_000_000, 80, seed, device)
