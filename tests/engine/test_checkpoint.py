"""Checkpoints: what comes back, which is the newest, what is kept, and which is the best."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rankdet.engine import sealed_folder
from rankdet.engine.checkpoint import (
    best_checkpoint,
    best_value,
    check_types,
    checkpoints,
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    set_best,
)
from rankdet.errors import CheckpointError, TrainingError


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint, read without the rest."""
    checkpoint = load_checkpoint(path, with_training=False)
    assert checkpoint.training == {}
    return checkpoint.weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def save(folder: Path, step: int, number: float | None = None, **state: Any) -> Path:
    value = float(step) if number is None else number
    return save_checkpoint(
        folder,
        step,
        weights={"weight": torch.full((3, 2), value)},
        training={"optimizer.weight.step": torch.tensor(value)},
        state=state,
    )


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def all_names(folder: Path) -> list[str]:
    """What is in the folder, but for the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


# What is saved comes back


def test_what_is_saved_comes_back(folder: Path) -> None:
    state = {"position": {"epoch": 2, "batch": 7}, "rate": 0.1, "note": None, "names": ["ä"]}
    path = save_checkpoint(
        folder,
        1234,
        weights={"a.b": torch.arange(6.0).reshape(2, 3)},
        training={"random": torch.tensor([1, 2, 255], dtype=torch.uint8)},
        state=state,
    )
    assert path == folder / "step-00001234"
    assert all_names(path) == [
        "manifest.json",
        "state.json",
        "training.safetensors",
        "weights.safetensors",
    ]
    read = load_checkpoint(path)
    assert (read.path, read.step, read.state) == (path, 1234, state)
    assert list(read.weights) == ["a.b"]
    assert read.weights["a.b"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read.training["random"].tolist() == [1, 2, 255]
    assert load_weights(path)["a.b"].equal(read.weights["a.b"])


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool],
    ids=str,
)
def test_every_dtype_and_shape_comes_back(folder: Path, dtype: torch.dtype) -> None:
    tensors = {
        "number": torch.ones((), dtype=dtype),
        "empty": torch.ones((0, 4), dtype=dtype),
        "block": (torch.arange(24).reshape(2, 3, 4) % 2).to(dtype),
    }
    save_checkpoint(folder, 0, weights=tensors, training={}, state={})
    read = load_weights(folder / "step-00000000")
    assert {name: tensor.dtype for name, tensor in read.items()} == dict.fromkeys(tensors, dtype)
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())


def test_tensors_may_share_memory_and_have_strides(folder: Path) -> None:
    whole = torch.arange(48.0).reshape(2, 3, 2, 4)
    tensors = {
        "whole": whole,
        "same": whole,
        "part": whole[1:, :, 0],
        "turned": whole.permute(3, 2, 1, 0),
        "last": whole.contiguous(memory_format=torch.channels_last),
        "spread": torch.ones(1).expand(5),
        "parameter": nn.Parameter(torch.ones(2)),
    }
    expected = {name: tensor.tolist() for name, tensor in tensors.items()}
    read = load_weights(save_checkpoint(folder, 1, weights=tensors, training={}, state={}))
    assert {name: tensor.tolist() for name, tensor in read.items()} == expected
    assert not any(tensor.requires_grad for tensor in read.values())


def test_loaded_tensors_can_be_changed_without_changing_the_file(folder: Path) -> None:
    path = save(folder, 1)
    read = load_checkpoint(path)
    read.weights["weight"].zero_()
    assert load_weights(path)["weight"].tolist() == [[1, 1]] * 3


@pytest.mark.gpu
def test_tensors_of_a_gpu_are_saved(folder: Path) -> None:
    weights = {"weight": torch.arange(6.0, device="cuda").reshape(2, 3).t()}
    read = load_weights(save_checkpoint(folder, 1, weights=weights, training={}, state={}))
    assert read["weight"].device.type == "cpu"
    assert torch.equal(read["weight"], weights["weight"].cpu())


@pytest.mark.parametrize("part", ["weights", "training"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(folder: Path, part: str, number: float) -> None:
    save(folder, 1)
    content: dict[str, dict[str, Tensor]] = {"weights": {}, "training": {}}
    content[part]["head.bias"] = torch.tensor([1.0, number])
    with pytest.raises(TrainingError, match=r"step-00000002: head\.bias .* not finite.* stay"):
        save_checkpoint(folder, 2, state={}, **content)
    assert all_names(folder) == ["step-00000001"]


def test_a_state_that_is_not_json_is_a_mistake_of_the_caller(folder: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        save(folder, 1, best=math.nan)
    with pytest.raises(TypeError, match="Tensor"):
        save(folder, 1, best=torch.ones(1))
    with pytest.raises(ValueError, match="got -1"):
        save(folder, -1)
    assert not folder.exists()


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(min_size=1), st.integers() | st.text() | st.floats(-1e9, 1e9)))
def test_any_state_comes_back(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]
) -> None:
    path = save_checkpoint(tmp_path_factory.mktemp("x"), 5, weights={}, training={}, state=state)
    assert load_checkpoint(path).state == state


# The same step again


def test_the_same_content_is_left_alone(folder: Path) -> None:
    path = save(folder, 5)
    before = (path.stat().st_ino, (path / "weights.safetensors").stat().st_mtime_ns)
    assert save(folder, 5) == path
    assert (path.stat().st_ino, (path / "weights.safetensors").stat().st_mtime_ns) == before


def test_other_content_replaces_what_was_there(folder: Path) -> None:
    save(folder, 5, seconds=1.0)
    path = save(folder, 5, 7.0, seconds=2.0)
    read = load_checkpoint(path)
    assert read.weights["weight"][0, 0] == 7.0
    assert read.state == {"seconds": 2.0}
    assert all_names(folder) == ["step-00000005"]


def test_a_damaged_checkpoint_is_replaced_by_the_same_content(folder: Path) -> None:
    path = save(folder, 5)
    flip(path / "weights.safetensors", -1)
    save(folder, 5)
    assert load_checkpoint(path).weights["weight"][0, 0] == 5.0
    (path / "state.json").unlink()
    save(folder, 5)
    assert load_checkpoint(path).state == {}
    assert all_names(folder) == ["step-00000005"]


# The newest


def flip(file: Path, position: int, bit: int = 0) -> None:
    """Change one bit of a file."""
    content = bytearray(file.read_bytes())
    content[position] ^= 1 << bit
    file.write_bytes(content)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def test_the_newest_is_the_one_with_the_highest_step(folder: Path) -> None:
    for step in (100_000_000, 5, 99_999_999, 40):  # the first has nine digits
        save(folder, step)
    assert names(checkpoints(folder)) == [
        "step-00000005",
        "step-00000040",
        "step-99999999",
        "step-100000000",
    ]
    assert newest_checkpoint(folder) == folder / "step-100000000"


def test_without_checkpoints_there_is_no_newest(folder: Path) -> None:
    assert checkpoints(folder) == []
    assert newest_checkpoint(folder) is None
    folder.mkdir()
    assert newest_checkpoint(folder) is None


def test_what_is_not_a_checkpoint_is_not_looked_at(folder: Path) -> None:
    path = save(folder, 1)
    path.rename(folder / "step-1")
    (folder / "step-00000009.txt").touch()
    (folder / "step-00000009").touch()  # a file
    (folder / ".saving-step-00000009-1").mkdir()
    warnings: list[str] = []
    assert newest_checkpoint(folder, warnings.append) is None
    assert warnings == []


@pytest.mark.parametrize("file", ["weights.safetensors", "training.safetensors", "state.json"])
def test_a_truncated_file_is_noticed_by_its_size(folder: Path, file: str) -> None:
    first = save(folder, 1)
    second = save(folder, 2)
    size = (second / file).stat().st_size
    truncate(second / file)
    with pytest.raises(CheckpointError, match=f"{file}: .* has {size - 1} bytes instead of {size}"):
        load_checkpoint(second)
    assert checkpoints(folder) == [first]
    warnings: list[str] = []
    assert newest_checkpoint(folder, warnings.append) == first
    (warning,) = warnings
    assert warning.startswith("step-00000002 is passed over: ")
    assert file in warning


@pytest.mark.parametrize("file", ["weights.safetensors", "training.safetensors", "state.json"])
def test_a_deleted_file_is_noticed(folder: Path, file: str) -> None:
    first = save(folder, 1)
    second = save(folder, 2)
    (second / file).unlink()
    with pytest.raises(CheckpointError, match=rf"{file}: .*the file is missing\. Use another one"):
        load_checkpoint(second)
    assert checkpoints(folder) == [first]
    assert newest_checkpoint(folder) == first


def test_a_checkpoint_without_a_manifest_is_none(folder: Path) -> None:
    first = save(folder, 1)
    second = save(folder, 2)
    (second / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"manifest\.json: .*the file is missing"):
        load_checkpoint(second)
    assert checkpoints(folder) == [first]
    assert newest_checkpoint(folder) == first
    with pytest.raises(CheckpointError, match="step-00000003: there is no such checkpoint"):
        load_checkpoint(folder / "step-00000003")


def test_a_flipped_bit_anywhere_is_noticed(folder: Path) -> None:
    first = save(folder, 1)
    path = save(folder, 2, note="x")
    expected = load_checkpoint(path)
    for file in ("weights.safetensors", "training.safetensors", "state.json"):
        for position in range(0, (path / file).stat().st_size, 2):
            flip(path / file, position, position % 8)
            with pytest.raises(CheckpointError, match=f"{file}: .* has changed .*SHA-256"):
                load_checkpoint(path)
            flip(path / file, position, position % 8)
    flip(path / "weights.safetensors", -1)
    assert checkpoints(folder) == [first, path]  # the cheap look sees sizes alone
    assert newest_checkpoint(folder) == first
    flip(path / "weights.safetensors", -1)
    assert load_checkpoint(path).state == expected.state


def test_a_flipped_bit_in_the_manifest_is_noticed_or_harmless(folder: Path) -> None:
    path = save(folder, 2, note="x")
    file = path / "manifest.json"
    num_noticed = 0
    positions = range(0, file.stat().st_size, 3)
    for position in positions:
        flip(file, position, position % 7)
        try:
            read = load_checkpoint(path)
        except CheckpointError:
            num_noticed += 1
        else:  # white space
            assert (read.step, read.state) == (2, {"note": "x"})
            assert read.weights["weight"].tolist() == [[2, 2]] * 3
        flip(file, position, position % 7)
    assert num_noticed > 0.8 * len(positions)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b'{"files": []}',
        b"[" * 100_000,
        b"\xff",
        b'{"version": 1, "files": {}}',
    ],
)
def test_a_manifest_of_another_kind_is_an_error(folder: Path, content: bytes) -> None:
    path = save(folder, 1)
    (path / "manifest.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"manifest\.json: the checkpoint is damaged"):
        load_checkpoint(path)
    assert newest_checkpoint(folder) is None


def test_a_manifest_of_another_format_or_version_is_an_error(folder: Path) -> None:
    path = save(folder, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"version": 2}))
    with pytest.raises(CheckpointError, match=r"version = 2: this rankdet reads version 1\."):
        load_checkpoint(path)
    (path / "manifest.json").write_text(json.dumps(manifest | {"format": "x"}))
    with pytest.raises(CheckpointError, match="not the manifest of a checkpoint"):
        load_checkpoint(path)
    (path / "manifest.json").write_text(json.dumps(manifest | {"files": {}}))
    with pytest.raises(CheckpointError, match=r"does not name state\.json"):
        load_checkpoint(path)
    assert newest_checkpoint(folder) is None


def test_a_checkpoint_may_be_renamed_by_its_user(folder: Path) -> None:
    path = save(folder, 12).rename(folder / "the good one")
    assert load_checkpoint(path).step == 12


# What is kept


@pytest.mark.parametrize(("keep", "num_kept"), [(3, 3), (2, 2), (1, 2), (0, 2), (9, 5)])
def test_the_newest_are_kept_at_least_two(folder: Path, keep: int, num_kept: int) -> None:
    paths = [save(folder, step) for step in range(5)]
    prune_checkpoints(folder, keep)
    assert checkpoints(folder) == paths[-num_kept:]
    assert all_names(folder) == names(paths[-num_kept:])


def test_the_best_is_kept_too(folder: Path) -> None:
    paths = [save(folder, step) for step in range(6)]
    set_best(folder, paths[1], "AP", 50.0)
    prune_checkpoints(folder, 2)
    assert checkpoints(folder) == [paths[1], paths[4], paths[5]]


def test_a_damaged_checkpoint_does_not_count_as_kept(folder: Path) -> None:
    paths = [save(folder, step) for step in range(5)]
    truncate(paths[4] / "weights.safetensors")
    prune_checkpoints(folder, 2)
    assert checkpoints(folder) == [paths[2], paths[3]]


def test_pruning_nothing_is_no_error(folder: Path) -> None:
    prune_checkpoints(folder, 2)
    path = save(folder, 1)
    prune_checkpoints(folder, 2)
    assert checkpoints(folder) == [path]


# The best


def test_the_best_is_the_one_that_was_named_last(folder: Path) -> None:
    first, second = save(folder, 1), save(folder, 2)
    assert best_checkpoint(folder) is None
    assert best_value(folder) is None
    set_best(folder, second, "AP", 12.5)
    assert (best_checkpoint(folder), best_value(folder)) == (second, 12.5)
    set_best(folder, first, "AP", 13.0)
    assert (best_checkpoint(folder), best_value(folder)) == (first, 13.0)
    assert json.loads((folder / "best.json").read_text()) == {
        "checkpoint": "step-00000001",
        "metric": "AP",
        "value": 13.0,
    }


def test_a_run_can_be_moved_with_its_best(folder: Path) -> None:
    set_best(folder, save(folder, 1), "AP", 1.0)
    moved = folder.rename(folder.with_name("moved"))
    assert best_checkpoint(moved) == moved / "step-00000001"


def test_a_best_that_is_gone_is_an_error_but_a_training_goes_on(folder: Path) -> None:
    paths = [save(folder, step) for step in range(4)]
    set_best(folder, folder / "step-00000009", "AP", 1.0)
    with pytest.raises(CheckpointError, match=r"best\.json: .*'step-00000009'\. Remove this file"):
        best_checkpoint(folder)
    assert best_value(folder) is None
    prune_checkpoints(folder, 2)
    assert checkpoints(folder) == paths[2:]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"checkpoint": "step-00000001", "metric": "AP", "value": "high"}',
        b'{"checkpoint": "../step-00000001", "metric": "AP", "value": 1}',
        b'{"checkpoint": "", "metric": "AP", "value": 1}',
    ],
)
def test_a_best_file_of_another_kind_is_an_error(folder: Path, content: bytes) -> None:
    save(folder, 1)
    save(folder.parent, 1)
    (folder / "best.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"best\.json: .* Remove this file"):
        best_checkpoint(folder)
    assert best_value(folder) is None


# Checkpoints of somebody who wants harm: the manifest fits


def reseal(path: Path) -> None:
    """Make the manifest fit what the files are now."""
    names = ("weights.safetensors", "training.safetensors", "state.json")
    files = {name: (path / name).read_bytes() for name in names}
    (path / "manifest.json").write_bytes(sealed_folder._manifest_bytes(files))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[" * 100_000, "not the state of a training"),
        (b"[]", "not the state of a training"),
        (b"\xff", "not the state of a training"),
        (b'{"step": 1}', "not the state of a training"),
        (b'{"step": 1, "state": {"seconds": NaN}}', "not the state of a training"),
        (b'{"step": -Infinity, "state": {}}', "not the state of a training"),
        (b'{"step": "1", "state": {}}', r"step = '1': expected a number"),
        (b'{"step": true, "state": {}}', r"step = True: expected a number"),
        (b'{"step": -1, "state": {}}', r"step = -1: expected a number"),
        (b'{"step": 1, "state": []}', "expected a number, and a state"),
        (b'{"step": 2, "state": {}}', "that of another step"),
    ],
)
def test_a_state_of_another_kind_is_refused(folder: Path, content: bytes, reason: str) -> None:
    path = save(folder, 1)
    (path / "state.json").write_bytes(content)
    reseal(path)
    with pytest.raises(
        CheckpointError, match=rf"state\.json: the checkpoint is damaged: .*{reason}"
    ):
        load_checkpoint(path)


@pytest.mark.parametrize("file", ["weights.safetensors", "training.safetensors"])
@pytest.mark.parametrize("content", [b"", b"\x80\x02cos\nsystem\n.", b"\xff" * 8 + b"{}"])
def test_what_is_no_file_of_tensors_is_refused(folder: Path, file: str, content: bytes) -> None:
    path = save(folder, 1)
    (path / file).write_bytes(content)
    reseal(path)
    with pytest.raises(CheckpointError, match=f"{file}: .*not a file of tensors: .*header"):
        load_checkpoint(path)


@pytest.mark.parametrize("file", ["weights.safetensors", "training.safetensors"])
@pytest.mark.parametrize("number", [math.nan, -math.inf])
def test_numbers_that_are_not_finite_are_not_loaded(folder: Path, file: str, number: float) -> None:
    path = save(folder, 1)
    tensors = {"head.bias": torch.tensor([1.0, number]), "count": torch.tensor(3)}
    (path / file).write_bytes(safetensors.torch.save(tensors))
    reseal(path)
    with pytest.raises(CheckpointError, match=rf"{file}: .*'head\.bias' .* not finite"):
        load_checkpoint(path)


def test_weights_of_another_type_are_refused(folder: Path) -> None:
    read = load_checkpoint(save(folder, 1))
    check_types(read, {"weight": torch.zeros(3, 2), "other": torch.zeros(1)})
    check_types(read, {})  # names are for `load_state_dict`
    with pytest.raises(CheckpointError, match=r"'weight' is of torch\.float32 instead of .*64"):
        check_types(read, {"weight": torch.zeros(3, 2, dtype=torch.float64)})


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"checkpoint": "step-00000001", "value": NaN}']
)
def test_a_best_of_another_kind_is_an_error(folder: Path, content: bytes) -> None:
    save(folder, 1)
    (folder / "best.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"best\.json: it is not as it was written"):
        best_checkpoint(folder)


def test_a_best_outside_of_the_folder_is_an_error(folder: Path) -> None:
    path = save(folder, 1)
    path.rename(folder.parent / path.name)
    content = {"checkpoint": f"../{path.name}", "value": 1.0}
    (folder / "best.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"there is no checkpoint '\.\./step-00000001'"):
        best_checkpoint(folder)


def test_a_pipe_in_place_of_the_best_does_not_hang(folder: Path) -> None:
    save(folder, 1)
    os.mkfifo(folder / "best.json")
    with pytest.raises(CheckpointError, match=r"best\.json: this is not a plain file\. Remove"):
        best_checkpoint(folder)
