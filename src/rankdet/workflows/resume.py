"""Going on with a run: whether it is still the same training, and where it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.engine.checkpoint import Checkpoint
from rankdet.engine.optimizer_state import (
    restore_criterion,
    restore_optimizer,
    restore_random_state,
)
from rankdet.engine.train import Position
from rankdet.errors import CheckpointError
from rankdet.workflows.parts import Parts
from rankdet.workflows.run import RunRecord

# These may change from one session to the next: they do not decide what is learnt.
_FREE = {
    "data.path",  # the same data may lie elsewhere now; their fingerprints are compared
    "data.workers",
    "data.hold",
    "data.max_pixels",
    "data.allow_outside",
    "training.epochs",
    "training.max_steps",
    "training.log_every",
    "training.save_every",
    "training.keep_checkpoints",
    "training.tensorboard",
    "training.compile",
}


def check_same_settings(stored: Config, wanted: Config) -> None:
    """CheckpointError that lists the settings which differ and decide what is learnt."""
    decisive = [
        text
        for key, text in settings_differences(stored, wanted).items()
        if key not in _FREE and not key.startswith("evaluation.")
    ]
    _refuse(decisive, "settings")


def settings_differences(stored: Config, wanted: Config) -> dict[str, str]:
    """For each setting that differs, such as "data.size": what it was, and became."""
    return _differences(to_dict(stored), to_dict(wanted))


def check_same_data(stored: RunRecord, wanted: RunRecord) -> None:
    """CheckpointError that says what differs between the data of then and of now."""
    differences = _differences(
        {"classes": list(stored.classes), **stored.data},
        {"classes": list(wanted.classes), **wanted.data},
    )
    _refuse(list(differences.values()), "data")


def restore(parts: Parts, checkpoint: Checkpoint) -> Position:
    """Put weights, optimiser, loss and random numbers back as they were; gives the position."""
    try:
        parts.detector.load_state_dict(checkpoint.weights)
    except RuntimeError as error:  # the user has forced other classes, or another loss
        raise CheckpointError(
            f"{checkpoint.path}: the weights do not fit these classes and settings, and --force "
            "cannot help. Start a new run from them: give this one as --weights, and another --out."
        ) from error
    restore_optimizer(
        parts.optimizer,
        checkpoint.training,
        checkpoint.state["optimizer"],
        parts.detector.named_parameters(),
    )
    restore_criterion(parts.criterion, checkpoint.training)
    restore_random_state(checkpoint.training)
    return Position(**checkpoint.state["position"])


def _refuse(differences: list[str], what: str) -> None:
    if differences:
        raise CheckpointError(
            f"the run was started with other {what}: {'; '.join(differences)}. Give the former "
            "ones, start a new run with another --out, or go on all the same with --force."
        )


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """For each key such as "data.size" with another value than before: what it was, and became."""
    old, new = _flat(before), _flat(after)
    return {
        key: f"{key}: {old.get(key)!r} became {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    }


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
