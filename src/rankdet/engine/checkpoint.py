"""Checkpoints of a training: one folder for each saved step, and a pointer to the best.

    step-00001234/weights.safetensors      the detector
                  training.safetensors     optimiser and random numbers
                  state.json               what else a training needs to go on
                  manifest.json            sizes and SHA-256 of the three
    best.json                              which of them is the best so far

`rankdet.engine.sealed_folder` sees to it that each is whole or not there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from rankdet.engine.sealed_folder import (
    REPLACED,
    is_plausible,
    read_file,
    remove_folder,
    write_folder,
)
from rankdet.errors import CheckpointError, TrainingError, shorten, system_reason
from rankdet.output import write_whole

WEIGHTS = "weights.safetensors"
TRAINING = "training.safetensors"
STATE = "state.json"
BEST = "best.json"

_FEWEST_KEPT = 2
_NAME = re.compile(r"step-(\d{8,})(" + re.escape(REPLACED) + ")?")


@dataclass(frozen=True)
class Checkpoint:
    """What `save_checkpoint` was given, read back; tensors on the CPU."""

    path: Path
    step: int
    weights: dict[str, Tensor]
    training: dict[str, Tensor]
    state: dict[str, Any]


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    weights: Mapping[str, Tensor],
    training: Mapping[str, Tensor],
    state: Mapping[str, Any],
) -> Path:
    """Write a checkpoint into `folder`; its path.

    Tensors may be on any device, strided or sharing memory; state must be JSON. One that is there
    for this step is replaced, or left as it is if it has the same content. CheckpointError if it
    cannot be written, TrainingError if a number is not finite: the earlier ones stay.
    """
    if step < 0:
        raise ValueError(f"expected a step of at least 0, got {step}")
    path = folder / checkpoint_name(step)
    files = {
        WEIGHTS: _tensor_bytes(weights, path),
        TRAINING: _tensor_bytes(training, path),
        STATE: json.dumps({"step": step, "state": state}, allow_nan=False, indent=1).encode(),
    }
    write_folder(path, files)
    return path


def checkpoint_name(step: int) -> str:
    """The name of the folder for this step.

    >>> checkpoint_name(1234)
    'step-00001234'
    """
    return f"step-{step:08d}"


def load_checkpoint(path: Path, *, with_training: bool = True) -> Checkpoint:
    """The checkpoint; CheckpointError if a size or hash is wrong.

    with_training: False leaves out the optimiser's tensors, which only a training needs.
    """
    step, state = _step_and_state(path)
    return Checkpoint(
        path=path,
        step=step,
        weights=_tensors(path, WEIGHTS),
        training=_tensors(path, TRAINING) if with_training else {},
        state=state,
    )


def check_types(checkpoint: Checkpoint, state: Mapping[str, Tensor]) -> None:
    """CheckpointError unless the weights have the types of a module's state dict.

    `load_state_dict` looks at names and shapes, and converts what is of another type.
    """
    for name, tensor in checkpoint.weights.items():
        if name in state and tensor.dtype != state[name].dtype:
            how = f"{shorten(name)} is of {tensor.dtype} instead of {state[name].dtype}"
            raise _damaged(checkpoint.path / WEIGHTS, how)


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in the folder, oldest first; only those whose files have their sizes."""
    return [path for path in _named_like_checkpoints(folder) if is_plausible(path)]


def newest_checkpoint(folder: Path, warn: Callable[[str], None] | None = None) -> Path | None:
    """The newest checkpoint whose hashes are right; None if there is none.

    warn: called with a sentence for every newer one that is passed over.
    """
    for path in reversed(_named_like_checkpoints(folder)):
        try:
            for name in (WEIGHTS, TRAINING, STATE):
                read_file(path, name)
        except CheckpointError as error:
            if warn is not None:
                warn(f"{path.name} is passed over: {error}")
        else:
            return path
    return None


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Remove all but the best and the newest `keep` checkpoints (at least two)."""
    best = _read_best(folder)
    for path in checkpoints(folder)[: -max(keep, _FEWEST_KEPT)]:
        if not (isinstance(best, _Best) and path.name == best.path.name):
            remove_folder(path)


def set_best(folder: Path, checkpoint: Path, metric: str, value: float) -> None:
    """Remember that this checkpoint is the best so far."""
    content = {"checkpoint": checkpoint.name, "metric": metric, "value": value}
    write_whole(folder / BEST, json.dumps(content, allow_nan=False, indent=1).encode())


def best_checkpoint(folder: Path) -> Path | None:
    """The best checkpoint so far; None if none was named.

    CheckpointError if the one that was named is gone: another in its place would be a surprise.
    """
    best = _read_best(folder)
    if isinstance(best, CheckpointError):
        raise best
    return best.path if best else None


def best_value(folder: Path) -> float | None:
    """What the best checkpoint so far has reached; None if there is none, or it is gone."""
    best = _read_best(folder)
    return best.value if isinstance(best, _Best) else None


@dataclass(frozen=True)
class _Best:
    path: Path
    value: float


def _read_best(folder: Path) -> _Best | CheckpointError | None:
    """What `set_best` said last; None if it never did; an error, not raised, if that is no use."""
    file = folder / BEST
    hint = "Remove this file to use the newest checkpoint."
    if file.exists() and not file.is_file():
        return CheckpointError(f"{file}: this is not a plain file. {hint}")
    try:
        content = json.loads(file.read_bytes(), parse_constant=_refuse_constant)
        name, value = str(content["checkpoint"]), float(content["value"])
    except FileNotFoundError:
        return None
    except OSError as error:
        return CheckpointError(f"{file}: it cannot be read: {system_reason(error)}. {hint}")
    except (ValueError, TypeError, KeyError, RecursionError):
        return CheckpointError(f"{file}: it is not as it was written. {hint}")
    if not _NAME.fullmatch(name) or not (folder / name).is_dir():
        return CheckpointError(f"{file}: there is no checkpoint {shorten(name)}. {hint}")
    return _Best(folder / name, value)


def _named_like_checkpoints(folder: Path) -> list[Path]:
    """Every folder with such a name, oldest first; a replaced one before its successor."""
    if not folder.is_dir():
        return []
    found = [
        (int(match[1]), match[2] is None, path)
        for path in folder.iterdir()
        if (match := _NAME.fullmatch(path.name)) and path.is_dir()
    ]
    return [path for _, _, path in sorted(found)]


def _tensor_bytes(tensors: Mapping[str, Tensor], path: Path) -> bytes:
    """The tensors as a safetensors file, through copies: it knows no strides and no sharing."""
    copies = {}
    for name, tensor in tensors.items():
        copy = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
        if copy.is_floating_point() and not copy.isfinite().all():
            raise TrainingError(
                f"{path}: {name} has a number that is not finite, and no checkpoint is made of it. "
                "The earlier ones stay. Lower the learning rate, and resume."
            )
        copies[name] = copy
    return safetensors.torch.save(copies)


def _tensors(path: Path, name: str) -> dict[str, Tensor]:
    """The tensors of a file. Its hash says that it is as it was written, not who has written it."""
    content = read_file(path, name)
    try:
        tensors = safetensors.torch.load(content)
    except Exception as error:  # the reader raises nearly anything over a wrong header
        reason = shorten(str(error) or type(error).__name__)
        raise _damaged(path / name, f"it is not a file of tensors: {reason}") from error
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise _damaged(path / name, f"{shorten(key)} has a number that is not finite")
    return tensors


def _step_and_state(path: Path) -> tuple[int, dict[str, Any]]:
    file = path / STATE
    content = read_file(path, STATE)
    try:
        parsed = json.loads(content, parse_constant=_refuse_constant)
        step, state = parsed["step"], parsed["state"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(file, "it is not the state of a training") from error
    if type(step) is not int or step < 0 or not isinstance(state, dict):
        raise _damaged(file, f"step = {shorten(step)}: expected a number, and a state beside it")
    named = _NAME.fullmatch(path.name)
    if named and int(named[1]) != step:
        raise _damaged(file, f"step = {step}: the folder is that of another step")
    return step, state


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")  # though Python would take it


def _damaged(file: Path, how: str) -> CheckpointError:
    return CheckpointError(f"{file}: the checkpoint is damaged: {how}. Use another one.")
