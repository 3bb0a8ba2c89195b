"""Going on with a run: whether it is still the same training, and where it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.engine.checkpoint import Checkpoint
from rankdet.engine.optimizer_state import restore_optimizer, restore_random_state
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
    before, after = _flat(to_dict(stored)), _flat(to_dict(wanted))
    differences = [
        f"{key}: {before.get(key)!r} became {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
        and key not in _FREE
        and not key.startswith("evaluation.")
    ]
    _refuse(differences, "settings")


def check_same_data(stored: RunRecord, wanted: RunRecord) -> None:
    """CheckpointError that says what differs between the data of then and of now."""
    differences = []
    if stored.classes != wanted.classes:
        differences.append(f"classes: {list(stored.classes)} became {list(wanted.classes)}")
    before, after = _flat(stored.data), _flat(wanted.data)
    differences += [
        f"{key}: {before.get(key)!r} became {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    _refuse(differences, "data")


def restore(parts: Parts, checkpoint: Checkpoint) -> Position:
    """Put weights, optimiser and random numbers back as they were; gives the position."""
    parts.detector.load_state_dict(checkpoint.weights)
    restore_optimizer(
        parts.optimizer,
        checkpoint.training,
        checkpoint.state["optimizer"],
        parts.detector.named_parameters(),
    )
    restore_random_state(checkpoint.training)
    return Position(**checkpoint.state["position"])


def _refuse(differences: list[str], what: str) -> None:
    if differences:
        raise CheckpointError(
            f"the run was started with other {what}: {'; '.join(differences)}. Give the former "
            "ones, start a new run with another --out, or go on all the same with --force."
        )


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
