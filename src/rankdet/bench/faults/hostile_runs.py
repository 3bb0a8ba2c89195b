"""Runs whose checkpoint was made by somebody who wants harm: with a manifest that fits."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from rankdet.bench.faults import hostile_bytes as raw
from rankdet.engine.checkpoint import BEST, STATE, TRAINING, WEIGHTS
from rankdet.engine.sealed_folder import MANIFEST, _manifest_bytes
from rankdet.workflows.run import CHECKPOINTS, CONFIG_FILE, METRICS_FILE, RUN_FILE

_DEEP = b"[" * 100_000
_FILES = (WEIGHTS, TRAINING, STATE)

State = dict[str, Any]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class HostileRun:
    """spoil(run, marker): changes a sound run. is_resumed: for a training, else an evaluation."""

    name: str
    spoil: Callable[[Path, Path], None]
    is_resumed: bool = False


def newest(run: Path) -> Path:
    """The newest checkpoint of the run, whatever is in it."""
    return max((run / CHECKPOINTS).glob("step-*"))


def seal(checkpoint: Path) -> None:
    """Make the manifest fit the files."""
    files = {name: (checkpoint / name).read_bytes() for name in _FILES}
    (checkpoint / MANIFEST).write_bytes(_manifest_bytes(files))


# What is wrong with a file of the checkpoint


def _content(file: str, content: bytes) -> Callable[[Path, Path], None]:
    """Other bytes in place of a file, with a manifest that fits."""

    def spoil(run: Path, marker: Path) -> None:
        (newest(run) / file).write_bytes(content)
        if file != MANIFEST:
            seal(newest(run))

    return spoil


def _payload(run: Path, marker: Path) -> None:
    code = raw.call("os", "system", raw.text(f"touch {marker}"))
    (newest(run) / WEIGHTS).write_bytes(raw.saved(raw.pickled(code)))
    seal(newest(run))


def _state(change: Callable[[State], None]) -> Callable[[Path, Path], None]:
    """Another state, with a manifest that fits."""

    def spoil(run: Path, marker: Path) -> None:
        file = newest(run) / STATE
        content = json.loads(file.read_bytes())
        change(content)
        file.write_text(json.dumps(content))
        seal(newest(run))

    return spoil


def _set(*path: str | int, value: Any) -> Callable[[Path, Path], None]:
    """Another value at this place of the state."""

    def change(content: State) -> None:
        place: Any = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return _state(change)


def _remove(*path: str | int) -> Callable[[Path, Path], None]:
    def change(content: State) -> None:
        place: Any = content
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]

    return _state(change)


def _tensors(file: str, change: Callable[[Tensors], None]) -> Callable[[Path, Path], None]:
    """Other tensors, with a manifest that fits."""

    def spoil(run: Path, marker: Path) -> None:
        tensors = safetensors.torch.load((newest(run) / file).read_bytes())
        change(tensors)
        (newest(run) / file).write_bytes(safetensors.torch.save(tensors))
        seal(newest(run))

    return spoil


def _first(change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], None]:
    """Changes the first tensor of several dimensions."""

    def change_first(tensors: Tensors) -> None:
        name = min(name for name, tensor in tensors.items() if tensor.dim() > 1)
        tensors[name] = change(tensors[name]).contiguous()

    return change_first


def _random(change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], None]:
    def change_random(tensors: Tensors) -> None:
        tensors["random.cpu"] = change(tensors["random.cpu"]).contiguous()

    return change_random


def _drop_momentum(tensors: Tensors) -> None:
    del tensors[min(name for name in tensors if name.startswith("optimizer."))]


def _nan(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, torch.nan)


# What is wrong with the manifest


def _manifest(change: Callable[[State], None]) -> Callable[[Path, Path], None]:
    def spoil(run: Path, marker: Path) -> None:
        file = newest(run) / MANIFEST
        content = json.loads(file.read_bytes())
        change(content)
        file.write_text(json.dumps(content))

    return spoil


def _name_outside(name: str) -> Callable[[Path, Path], None]:
    def change(content: State) -> None:
        content["files"][name] = copy.copy(content["files"][STATE])

    return _manifest(change)


def _without_hashes(content: State) -> None:
    for found in content["files"].values():
        del found["sha256"]


def _without_files(content: State) -> None:
    content["files"] = {}


def _hash_of_nothing(content: State) -> None:
    for found in content["files"].values():
        found["sha256"] = None


# Other things in place of files


def _pipe(path: str) -> Callable[[Path, Path], None]:
    """A named pipe, which nobody will ever write to."""

    def spoil(run: Path, marker: Path) -> None:
        file = newest(run) / path if path in (*_FILES, MANIFEST) else run / path
        file.unlink(missing_ok=True)
        os.mkfifo(file)

    return spoil


def _pipe_of_size_zero(run: Path, marker: Path) -> None:
    checkpoint = newest(run)
    (checkpoint / WEIGHTS).write_bytes(b"")
    seal(checkpoint)
    _pipe(WEIGHTS)(run, marker)


def _link_outside(run: Path, marker: Path) -> None:
    file = newest(run) / WEIGHTS
    file.symlink_to(file.rename(run.parent / "elsewhere"))


def _terabyte(run: Path, marker: Path) -> None:
    checkpoint = newest(run)
    with (checkpoint / WEIGHTS).open("r+b") as stream:
        stream.truncate(2**40)

    def claim(content: State) -> None:
        content["files"][WEIGHTS]["size"] = 2**40

    _manifest(claim)(run, marker)


def _best(content: bytes) -> Callable[[Path, Path], None]:
    def spoil(run: Path, marker: Path) -> None:
        (run / CHECKPOINTS / BEST).write_bytes(content)

    return spoil


def _best_outside(run: Path, marker: Path) -> None:
    newest(run).rename(run.parent / "step-00000001")
    content = {"checkpoint": "../../step-00000001", "metric": "AP", "value": 1.0}
    (run / CHECKPOINTS / BEST).write_text(json.dumps(content))


def _yaml_code(run: Path, marker: Path) -> None:
    (run / CONFIG_FILE).write_text(f"seed: !!python/object/apply:os.system ['touch {marker}']\n")


_GROUP = ("state", "optimizer", "groups", 0)
_HEADER = raw.safetensors({}, size=2**60)

RUNS = (
    HostileRun("a pickle in place of the weights", _payload),
    HostileRun("weights with a header of an exabyte", _content(WEIGHTS, _HEADER)),
    HostileRun("weights of no bytes", _content(WEIGHTS, b"")),
    HostileRun("weights of a terabyte", _terabyte),
    HostileRun("weights that lead outside by a link", _link_outside),
    HostileRun("a pipe in place of the weights", _pipe_of_size_zero),
    HostileRun("a pipe in place of the manifest", _pipe(MANIFEST)),
    HostileRun("weights that are not numbers", _tensors(WEIGHTS, _first(_nan))),
    HostileRun("weights of another shape", _tensors(WEIGHTS, _first(lambda t: t[:1]))),
    HostileRun("weights of another type", _tensors(WEIGHTS, _first(torch.Tensor.double))),
    HostileRun("weights that are not numbers, resumed", _tensors(WEIGHTS, _first(_nan)), True),
    HostileRun(
        "weights of another shape, resumed", _tensors(WEIGHTS, _first(lambda t: t[:1])), True
    ),
    HostileRun(
        "weights of another type, resumed", _tensors(WEIGHTS, _first(torch.Tensor.double)), True
    ),
    HostileRun("a manifest of 100,000 brackets", _content(MANIFEST, _DEEP)),
    HostileRun("a manifest of 2 MB", _content(MANIFEST, b" " * 2_000_000)),
    HostileRun("a manifest without hashes", _manifest(_without_hashes)),
    HostileRun("a manifest with empty hashes", _manifest(_hash_of_nothing)),
    HostileRun("a manifest without files", _manifest(_without_files)),
    HostileRun("a manifest that names a file above", _name_outside("../../run.json")),
    HostileRun("a manifest that names an absolute path", _name_outside("/etc/passwd")),
    HostileRun("a state of 100,000 brackets", _content(STATE, _DEEP)),
    HostileRun("a state that is a list", _content(STATE, b"[]")),
    HostileRun("a state without end", _content(STATE, b'{"step": Infinity, "state": {}}')),
    HostileRun("a step that is a text", _set("step", value="8")),
    HostileRun("a step of another checkpoint", _set("step", value=3)),
    HostileRun("a position that is a text", _set("state", "position", value="8"), True),
    HostileRun("an epoch that is a text", _set("state", "position", "epoch", value="1"), True),
    HostileRun("a negative epoch", _set("state", "position", "epoch", value=-1), True),
    HostileRun("a batch beyond the epoch", _set("state", "position", "batch", value=10**9), True),
    HostileRun("a step of another position", _set("state", "position", "step", value=5), True),
    HostileRun("a position with more in it", _set("state", "position", "x", value=1), True),
    HostileRun("no position", _remove("state", "position"), True),
    HostileRun("seconds that are a text", _set("state", "seconds", value="1"), True),
    HostileRun("seconds that are not a number", _set("state", "seconds", value=float("nan")), True),
    HostileRun("no seconds", _remove("state", "seconds"), True),
    HostileRun("no settings of the optimiser", _remove("state", "optimizer"), True),
    HostileRun("groups that are a text", _set("state", "optimizer", "groups", value="x"), True),
    HostileRun("a momentum that is a text", _set(*_GROUP, "momentum", value="0.9"), True),
    HostileRun("a group with parameters of its own", _set(*_GROUP, "params", value=[]), True),
    HostileRun("a group with an unknown setting", _set(*_GROUP, "hook", value="x"), True),
    HostileRun("momentum of another shape", _tensors(TRAINING, _first(lambda t: t[:1])), True),
    HostileRun("momentum that is not a number", _tensors(TRAINING, _first(_nan)), True),
    HostileRun("momentum that is missing", _tensors(TRAINING, _drop_momentum), True),
    HostileRun("random numbers cut off", _tensors(TRAINING, _random(lambda t: t[:100])), True),
    HostileRun(
        "random numbers of another type", _tensors(TRAINING, _random(torch.Tensor.float)), True
    ),
    HostileRun("a best checkpoint outside of the run", _best_outside),
    HostileRun("a best checkpoint of 100,000 brackets", _best(_DEEP)),
    HostileRun("a pipe in place of best.json", _pipe(f"{CHECKPOINTS}/{BEST}")),
    HostileRun("a pipe in place of run.json", _pipe(RUN_FILE)),
    HostileRun("a pipe in place of config.yaml", _pipe(CONFIG_FILE)),
    HostileRun("a pipe in place of metrics.jsonl", _pipe(METRICS_FILE), True),
    HostileRun("code in config.yaml", _yaml_code),
)
