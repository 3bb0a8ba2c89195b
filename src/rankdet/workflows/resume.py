"""Going on with a run: whether it is still the same training, and where it was.

Process 0 alone reads the run. It sends the others what they need: machines need not share a disk.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch

from rankdet.config import Config, from_dict, to_dict
from rankdet.engine.checkpoint import STATE, Checkpoint, check_types
from rankdet.engine.distributed import Processes
from rankdet.engine.optimizer_state import (
    restore_criterion,
    restore_optimizer,
    restore_random_state,
)
from rankdet.engine.train import Position
from rankdet.errors import CheckpointError, ConfigError, shorten
from rankdet.progress import say
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
_MOST_SECONDS = 1e12  # of a training: 30,000 years, and no trouble as a float


def check_same_settings(stored: Config, wanted: Config, *, is_forced: bool = False) -> None:
    """CheckpointError that lists the settings which differ and decide what is learnt.

    is_forced: they are said, and that is all.
    """
    decisive = [
        text
        for key, text in settings_differences(stored, wanted).items()
        if key not in _FREE and not key.startswith("evaluation.")
    ]
    _refuse(decisive, "settings", is_forced)


def settings_differences(stored: Config, wanted: Config) -> dict[str, str]:
    """For each setting that differs, such as "data.size": what it was, and became."""
    return _differences(to_dict(stored), to_dict(wanted))


def check_same_data(stored: RunRecord, wanted: RunRecord, *, is_forced: bool = False) -> None:
    """CheckpointError that says what differs between the data of then and of now.

    is_forced: it is said, and that is all.
    """
    differences = _differences(
        {"classes": list(stored.classes), **stored.data},
        {"classes": list(wanted.classes), **wanted.data},
    )
    _refuse(list(differences.values()), "data", is_forced)


def sent_config(config: Config | None, processes: Processes) -> Config | None:
    """The settings that process 0 gives, for all processes."""
    if processes.is_alone:
        return config
    content = json.dumps(None if config is None else to_dict(config))
    received = json.loads(processes.sent(content.encode()))
    return None if received is None else from_dict(received)


def sent_checkpoint(checkpoint: Checkpoint | None, processes: Processes) -> Checkpoint | None:
    """The checkpoint that process 0 gives, for all processes."""
    if processes.is_alone:
        return checkpoint
    content = weights = training = b""
    if checkpoint is not None:
        fields = {"path": str(checkpoint.path), "step": checkpoint.step, "state": checkpoint.state}
        content = json.dumps(fields).encode()
        weights = safetensors.torch.save(checkpoint.weights)
        training = safetensors.torch.save(checkpoint.training)
    content, weights, training = map(processes.sent, (content, weights, training))
    if processes.is_first or not content:
        return checkpoint
    fields = json.loads(content)
    return Checkpoint(
        path=Path(fields["path"]),
        step=fields["step"],
        weights=safetensors.torch.load(weights),
        training=safetensors.torch.load(training),
        state=fields["state"],
    )


def check_same_everywhere(record: RunRecord, processes: Processes) -> None:
    """ConfigError, in all processes, if one was started with other settings or data than the first.

    The data may lie elsewhere on each machine.
    """
    if processes.is_alone:
        return
    own = {**to_dict(record.config), "classes": list(record.classes), "found": record.data}
    first = json.loads(processes.sent(json.dumps(own).encode()))
    with processes.together():
        differences = _differences(first, own)
        differences.pop("data.path", None)
        if differences:
            raise ConfigError(
                f"process {processes.rank} has other settings or data than process 0: "
                f"{'; '.join(differences.values())}. Start all of them with the same command."
            )


def note_on_processes(checkpoint: Checkpoint, world_size: int) -> str:
    """A warning if others have trained so far, in another number; else empty."""
    before: Any = checkpoint.state.get("world_size", 1)
    if type(before) is not int or before < 1:
        raise _damaged(checkpoint, f"world_size = {shorten(before)}: expected a number from 1 on")
    if before == world_size:
        return ""
    return (
        f"warning: the run was trained by {_num_processes(before)} so far, and goes on with "
        f"{_num_processes(world_size)}. The samples stay the same, but sums over them are rounded "
        "differently: the result will not be bit for bit that of a run without a stop."
    )


def _num_processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def restore(parts: Parts, checkpoint: Checkpoint) -> Position:
    """Put weights, optimiser, loss and random numbers back as they were; gives the position."""
    position = _position(checkpoint)
    _check_batch(position, parts)
    check_types(checkpoint, parts.detector.state_dict())
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
        checkpoint.state.get("optimizer", {}),
        parts.detector.named_parameters(),
    )
    restore_criterion(parts.criterion, checkpoint.training)
    restore_random_state(checkpoint.training)
    return position


def seconds_before(checkpoint: Checkpoint | None) -> float:
    """What the training took until this checkpoint; CheckpointError if that is no number."""
    if checkpoint is None:
        return 0.0
    seconds: Any = checkpoint.state.get("seconds")
    if type(seconds) not in (int, float) or not 0 <= seconds < _MOST_SECONDS:
        raise _damaged(checkpoint, f"seconds = {shorten(seconds)}: expected a number")
    return float(seconds)


def _position(checkpoint: Checkpoint) -> Position:
    """Where the training was; CheckpointError if the checkpoint does not say so."""
    found: Any = checkpoint.state.get("position")
    names = {field.name for field in dataclasses.fields(Position)}
    is_sound = isinstance(found, dict) and found.keys() == names
    if not is_sound or not all(type(value) is int and value >= 0 for value in found.values()):
        raise _damaged(checkpoint, f"position = {shorten(found)}: expected three numbers")
    position = Position(**found)
    if position.step != checkpoint.step:
        raise _damaged(checkpoint, f"it is of step {checkpoint.step} and of {position.step}")
    return position


def _check_batch(position: Position, parts: Parts) -> None:
    """CheckpointError if the epoch has no such batch: the user has forced other data."""
    if position.batch >= max(1, len(parts.loader)):
        raise CheckpointError(
            f"the run was at batch {position.batch} of an epoch, and there are "
            f"{len(parts.loader)} in one now: --force cannot help. Start a new run from it: give "
            "this one as --weights, and another --out."
        )


def _damaged(checkpoint: Checkpoint, how: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.path / STATE}: the checkpoint is damaged: {how}. Use another one."
    )


def _refuse(differences: list[str], what: str, is_forced: bool) -> None:
    if not differences:
        return
    text = f"the run was started with other {what}: {'; '.join(differences)}."
    if is_forced:
        say(f"warning: {text}")
        return
    raise CheckpointError(
        f"{text} Give the former ones, start a new run with another --out, or go on all the same "
        "with --force."
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
