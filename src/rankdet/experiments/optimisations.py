"""Three ways to lower the AP-loss, and what they come to: section 4.2.3 of the paper.

Nothing here needs torch: `rankdet.experiments.short_training` trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rankdet.config import Config, LossConfig
from rankdet.experiments.experiment import Request
from rankdet.experiments.figures import BLUE, ORANGE, VERMILION
from rankdet.experiments.scales import Training, base_config


@dataclass(frozen=True)
class Optimisation:
    """A class loss without a box loss beside it, its name in words, and the colour of its line."""

    loss: LossConfig
    words: str
    colour: str


# The approximate gradient as the paper has it: a sigmoid in place of the step (its width is not
# said: 1, as delta), and log(AP + epsilon), "to quickly escape from the initial state".
OPTIMISATIONS: dict[str, Optimisation] = {
    "error-driven": Optimisation(
        LossConfig("ap", box_weight=0.0), "error-driven update (AP-loss)", BLUE
    ),
    "approximate": Optimisation(
        LossConfig("smooth_ap", {"delta": 1.0, "log_space": True, "epsilon": 1e-6}, 0.0),
        "approximate gradient (sigmoid, log space)",
        ORANGE,
    ),
    "hinge": Optimisation(
        LossConfig("hinge_ap", box_weight=0.0), "structured hinge loss", VERMILION
    ),
}

MEASURE = (
    "AP-loss: 1 - AP of the batch before its step, of all classes and anchors that the loss sees, "
    "with the exact (Heaviside) step and interpolated precision: the same measure for all three. "
    "Where a step has several parts that are ranked alone (training.accumulate; 2 parts of 8 "
    "images at the scale paper), it is that of the last part."
)

# Whether an optimisation converges is seen on few images that are seen often.
_TINY_SPLIT, _TINY_EPOCHS = "train:100", 25
_LAST_PART = 0.1  # of the steps, over which a final value is the mean
_LEAST_DECREASE = 0.05  # of the initial value, below which a training has not converged


def study_config(request: Request, name: str) -> Config:
    """The settings of an optimisation's training at the scale of the request, without --set.

    Every step is measured. The paper trains on VOC2007 trainval alone, and tests nothing.
    """
    base = base_config(request, Training())
    data, training = replace(base.data, val_split=None), replace(base.training, log_every=1)
    if request.scale == "paper":
        data = replace(data, train_split="2007_trainval")
    if request.scale == "tiny":
        data = replace(data, train_split=_TINY_SPLIT)
        training = replace(training, epochs=_TINY_EPOCHS, warmup_steps=10)
    return replace(base, data=data, loss=OPTIMISATIONS[name].loss, training=training)


def window_mean(values: Sequence[float | None], size: int, *, from_end: bool = False) -> float:
    """The mean of the first, or last, `size` values that are known (at least one must be).

    >>> values = [1.0, None, 0.5, 0.25]
    >>> window_mean(values, 2), window_mean(values, 2, from_end=True)
    (0.75, 0.375)
    """
    known = [value for value in values if value is not None]
    if not known:
        raise ValueError("expected at least one batch with objects, got none")
    chosen = known[-size:] if from_end else known[:size]
    return sum(chosen) / len(chosen)


def summary_of(
    ap_losses: Sequence[float | None], initial_ap_loss: float | None = None
) -> dict[str, Any]:
    """Where a training began and ended: the means over the first and the last tenth of the steps.

    has_converged: whether the AP-loss fell by at least 5 % of its initial value. initial_ap_loss:
    that of an untrained network, where this training began with a trained one, and may stay there.

    >>> summary_of([1.0] * 10 + [0.5] * 10)
    {'initial_ap_loss': 1.0, 'final_ap_loss': 0.5, 'has_converged': True}
    """
    size = max(1, round(_LAST_PART * len(ap_losses)))
    initial = window_mean(ap_losses, size)
    final = window_mean(ap_losses, size, from_end=True)
    return {
        "initial_ap_loss": initial,
        "final_ap_loss": final,
        "has_converged": final
        <= (1 - _LEAST_DECREASE) * (initial if initial_ap_loss is None else initial_ap_loss),
    }


def smoothed(values: Sequence[float | None], size: int) -> list[float | None]:
    """The mean of the known among the last `size` values, at each place; None where none is.

    >>> smoothed([1.0, 0.0, None, 0.5], 2)
    [1.0, 0.5, 0.0, 0.5]
    """
    means: list[float | None] = []
    for end in range(1, len(values) + 1):
        known = [value for value in values[max(0, end - size) : end] if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means
