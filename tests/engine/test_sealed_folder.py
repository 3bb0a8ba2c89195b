"""Faults while a checkpoint is written: killed processes, full disks, folders that are in use."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rankdet.engine import sealed_folder
from rankdet.engine.checkpoint import (
    checkpoints,
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from rankdet.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def save(folder: Path, step: int, number: float | None = None) -> Path:
    value = float(step) if number is None else number
    return save_checkpoint(
        folder,
        step,
        weights={"weight": torch.full((30, 20), value)},
        training={},
        state={"number": value},
    )


def all_names(folder: Path) -> list[str]:
    """What is in the folder, but for the lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


# Killed processes

# Saves without end, from the step after the newest; every third one twice. Without torch, which
# would take far longer to start than all the rest.
PROGRAM = """
import itertools, sys
from pathlib import Path
from rankdet.engine.sealed_folder import remove_folder, write_folder

folder = Path(sys.argv[1])
print("ready", flush=True)
for step in itertools.count(int(sys.argv[2])):
    for attempt in range(2 if step % 3 == 0 else 1):
        number = b"%08d" % step
        write_folder(
            folder / f"step-{step:08d}",
            {"a": number * 50_000, "b": number * 50_000, "c": b"%d" % attempt},
        )
    old = folder / f"step-{step - 2:08d}"
    if old.exists():
        remove_folder(old)
    print(step, flush=True)
"""


def newest_step(folder: Path) -> int:
    """The step of the newest folder, whose content must be right; -1 if there is none."""
    found = sorted(folder.glob("step-*"))
    if not found:
        return -1
    newest = found[-1]
    step = int(newest.name[5:13])
    for file in ("a", "b"):
        assert sealed_folder.read_file(newest, file) == b"%08d" % step * 50_000
    assert sealed_folder.read_file(newest, "c") in (b"0", b"1")
    return step


def kill_repeatedly(folder: Path, num_kills: int) -> int:
    """Kill a saving process again and again; how often something unfinished was left behind."""
    chance = random.Random(0)
    num_unfinished = 0
    last = -1
    for _ in range(num_kills):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(last + 1)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.01, 0.12))
        process.kill()
        output, _ = process.communicate()
        said = [int(line) for line in output.split("\n")[:-1]]
        # Whatever was finished is there, and what is there is right.
        last = max([last, *said])
        found = newest_step(folder)
        assert last <= found <= last + 1
        last = found
        num_unfinished += any(name.startswith(".") for name in all_names(folder))
    return num_unfinished


def test_whenever_a_process_is_killed_the_newest_checkpoint_is_sound(folder: Path) -> None:
    kill_repeatedly(folder, 8)
    save(folder, 10**6)
    assert not [name for name in all_names(folder) if name.startswith(".")]


@pytest.mark.slow
def test_a_hundred_kills(folder: Path) -> None:
    num_unfinished = kill_repeatedly(folder, 100)
    assert num_unfinished > 10  # or the kills came at the wrong moments
    save(folder, 10**6)
    assert not [name for name in all_names(folder) if name.startswith(".")]


class Killed(BaseException):
    """Stands for a kill: nothing is cleaned up after it."""


@pytest.mark.parametrize("is_replacing", [False, True], ids=["new step", "same step"])
def test_at_every_call_of_the_system_a_kill_leaves_a_sound_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replacing: bool
) -> None:
    """The n-th change on the disk is the last one, for every n."""
    step = 1 if is_replacing else 2
    for num_allowed in range(100):
        folder = tmp_path / str(num_allowed)
        save(folder, 1)
        with monkeypatch.context() as patch:
            num_changes = kill_at_change(patch, num_allowed)
            try:
                save(folder, step, 7.0)
            except Killed:
                is_killed = True
            else:
                is_killed = False
        newest = newest_checkpoint(folder)
        assert newest is not None
        read = load_checkpoint(newest)
        number = read.state["number"]
        assert (read.weights["weight"] == number).all()
        assert number in ({7.0} if not is_killed else {1.0, 7.0})
        # The next save cleans up.
        save(folder, 3)
        names = [f"step-0000000{i}" for i in (1, 2, 3)]
        assert set(all_names(folder)) - set(names) <= {"step-00000001.replaced"}
        assert load_checkpoint(newest_checkpoint(folder) or folder).step == 3
        if not is_killed:
            assert len(num_changes) > 8
            return
    raise AssertionError("the save never came to an end")


def kill_at_change(patch: pytest.MonkeyPatch, num_allowed: int) -> list[str]:
    """Let the process "die" at the change with this number; the changes made so far."""
    changes: list[str] = []

    def limited(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def change(*arguments: object, **settings: object) -> object:
            if len(changes) >= num_allowed:
                raise Killed
            changes.append(name)
            return original(*arguments, **settings)

        patch.setattr(owner, name, change)

    limited(Path, "mkdir")
    limited(Path, "rename")
    limited(os, "fsync")
    limited(sealed_folder, "_write_file")
    limited(shutil, "rmtree")
    return changes


def test_files_are_on_the_disk_before_the_name_and_the_manifest_is_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def record_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        events.append("sync " + (path.name if path.is_file() else "folder " + path.name[:8]))
        fsync(descriptor)

    def record_rename(path: Path, target: Path) -> Path:
        events.append(f"rename to {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "rename", record_rename)
    save(folder, 1)
    assert events == [
        "sync weights.safetensors",
        "sync training.safetensors",
        "sync state.json",
        "sync manifest.json",
        "sync folder .saving-",
        "rename to step-00000001",
        "sync folder checkpoi",
    ]


# Full disks and refusals


@pytest.mark.parametrize(
    "file", ["weights.safetensors", "training.safetensors", "state.json", "manifest.json"]
)
def test_a_full_disk_leaves_the_old_checkpoints_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    old = [save(folder, step) for step in (1, 2)]
    write = sealed_folder._write_file

    def fail(path: Path, content: bytes) -> None:
        if path.name != file:
            write(path, content)
            return
        write(path, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sealed_folder, "_write_file", fail)
    for step in (2, 3):
        with pytest.raises(
            CheckpointError, match=f"step-0000000{step}: .* cannot be written: No space left"
        ):
            save(folder, step, 9.0)
    assert checkpoints(folder) == old
    assert newest_checkpoint(folder) == old[1]
    assert load_checkpoint(old[1]).state["number"] == 2.0
    assert all_names(folder) == ["step-00000001", "step-00000002"]


def test_an_interruption_leaves_nothing_unfinished(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, 1)

    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sealed_folder, "_sync_folder", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(folder, 2)
    assert all_names(folder) == ["step-00000001"]


def test_too_little_space_is_noticed_before_anything_is_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(folder, 1)
    size = sum(file.stat().st_size for file in (folder / "step-00000001").iterdir())
    assert 2400 < size < 4000  # 600 numbers of four bytes, headers and the manifest
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2400))
    with pytest.raises(CheckpointError, match=r"needs 0\.0 MB, and 0\.0 MB are free"):
        save(folder, 2)
    assert all_names(folder) == ["step-00000001"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=size))
    save(folder, 2)


def test_needed_and_free_space_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_500_000))
    weights = {"weight": torch.zeros(1_000_000)}
    with pytest.raises(CheckpointError, match=r"needs 4\.0 MB, and 1\.5 MB are free.*Make room"):
        save_checkpoint(folder, 1, weights=weights, training={}, state={})


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="step-00000001: the checkpoint cannot be written: "):
        save(tmp_path / "file" / "checkpoints", 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_must_not_be_written_is_named(folder: Path) -> None:
    save(folder, 1)
    folder.chmod(0o500)
    try:
        with pytest.raises(CheckpointError, match="cannot be written: Permission denied"):
            save(folder, 2)
    finally:
        folder.chmod(0o700)
    assert all_names(folder) == ["step-00000001"]


def test_a_refusal_is_named_and_cleaned_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, target: Path) -> Path:
        raise PermissionError(errno.EACCES, "Permission denied")

    paths = [save(folder, step) for step in (1, 2, 3)]
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(CheckpointError, match=r"step-00000004: .* cannot be written: Permission"):
        save(folder, 4)
    with pytest.raises(CheckpointError, match=r"step-00000001: .* cannot be removed: Permission"):
        prune_checkpoints(folder, 2)
    assert checkpoints(folder) == paths
    assert all_names(folder) == [path.name for path in paths]


def test_a_file_system_without_syncing_of_folders_is_good_enough(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    number = errno.EINVAL

    def fail_for_folders(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    save(folder, 1)
    number = errno.EIO  # but not a broken disk
    with pytest.raises(CheckpointError, match="Input/output error"):
        save(folder, 2)


# Left-overs and other processes


def test_only_left_overs_of_ours_are_removed(folder: Path) -> None:
    save(folder, 1)
    for name in (".saving-step-00000002-77", ".removing-step-00000001.replaced-77"):
        (folder / name).mkdir()
        (folder / name / "weights.safetensors").touch()
    others = [".saving", ".git", "mine.tmp", "saving-step-00000002-77", "step-00000009"]
    for name in others:
        (folder / name).mkdir()
    (folder / ".saving-step-00000003-77").touch()  # a file: ours are folders
    save(folder, 2)
    assert set(all_names(folder)) == {
        "step-00000001",
        "step-00000002",
        ".saving-step-00000003-77",
        *others,
    }


def test_a_folder_in_use_by_another_process_is_left_alone(folder: Path) -> None:
    save(folder, 1)
    (folder / ".saving-step-00000002-77").mkdir()
    with (folder / ".lock").open("r+") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)  # refuses only those who want it for themselves
        with pytest.raises(CheckpointError, match=r"another process is writing here.*--out"):
            save(folder, 3)
        assert all_names(folder) == [".saving-step-00000002-77", "step-00000001"]
    save(folder, 3)
    assert all_names(folder) == ["step-00000001", "step-00000003"]


def test_without_locks_nothing_of_others_is_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    save(folder, 1)
    (folder / ".saving-step-00000002-77").mkdir()
    (folder / f".saving-step-00000003-{os.getpid()}").mkdir()  # of an earlier process, in our way
    save(folder, 3)
    assert all_names(folder) == [".saving-step-00000002-77", "step-00000001", "step-00000003"]


def test_a_checkpoint_that_was_being_replaced_is_still_found(folder: Path) -> None:
    path = save(folder, 5)
    replaced = path.rename(path.with_name(path.name + ".replaced"))
    assert newest_checkpoint(folder) == replaced
    assert load_checkpoint(replaced).step == 5
    save(folder, 4)
    assert checkpoints(folder) == [folder / "step-00000004", replaced]
    save(folder, 5, 8.0)
    assert all_names(folder) == ["step-00000004", "step-00000005"]
    assert load_checkpoint(path).state["number"] == 8.0


def test_a_replaced_checkpoint_is_older_than_its_successor(folder: Path) -> None:
    path = save(folder, 5)
    replaced = path.with_name(path.name + ".replaced")
    shutil.copytree(path, replaced)
    assert checkpoints(folder) == [replaced, path]
    assert newest_checkpoint(folder) == path


def test_others_may_read_a_checkpoint_as_they_may_read_any_file(folder: Path) -> None:
    plain = folder.parent / "plain"
    plain.mkdir()
    path = save(folder, 1)
    assert path.stat().st_mode == plain.stat().st_mode


# What is not a plain file, or not in the folder


def replaced_by(path: Path, kind: str) -> None:
    """Put something else in place of a file."""
    content = path.read_bytes()
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        outside = path.parent.parent.parent / "outside"
        outside.write_bytes(content)
        path.symlink_to(outside)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "link"])
@pytest.mark.parametrize("file", ["weights.safetensors", "manifest.json"])
def test_only_plain_files_are_read(folder: Path, kind: str, file: str) -> None:
    first, second = save(folder, 1), save(folder, 2)
    replaced_by(second / file, kind)
    with pytest.raises(CheckpointError, match=f"{file}: .* instead of a plain file"):
        load_checkpoint(second)
    assert not sealed_folder.is_plausible(second)
    assert newest_checkpoint(folder) == first


def test_a_pipe_that_claims_no_bytes_does_not_hang(folder: Path) -> None:
    folder.mkdir()
    path = folder / "step-00000001"
    sealed_folder.write_folder(path, {"a": b""})
    replaced_by(path / "a", "pipe")
    with pytest.raises(CheckpointError, match="instead of a plain file"):
        sealed_folder.read_file(path, "a")


def test_a_file_larger_than_any_checkpoint_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "step-00000001"
    sealed_folder.write_folder(path, {"a": b"12345678"})
    with (path / "a").open("r+b") as stream:
        stream.truncate(2**40)  # no disk has to have so many: most are not there
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["a"]["size"] = 2**40
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="has 1,099,511,627,776 bytes, and at most 8,589,"):
        sealed_folder.read_file(path, "a")
    # What could not be read again is not written either.
    monkeypatch.setattr(sealed_folder, "_LARGEST_FILE", 7)
    with pytest.raises(ValueError, match="at most 7 bytes, got 8"):
        sealed_folder.write_folder(folder / "step-00000002", {"a": b"12345678"})


def test_a_manifest_is_not_read_beyond_its_limit(folder: Path) -> None:
    path = save(folder, 1)
    with (path / "manifest.json").open("ab") as stream:
        stream.write(b" " * 1_000_000)
    with pytest.raises(CheckpointError, match="and at most 1,000,000 are read"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("../run.json", {}),
        ("/etc/passwd", {}),
        ("a\\b", {}),
        ("a\0b", {}),
        ("..", {}),
        ("", {}),
        ("a", {"size": -1}),
        ("a", {"size": True}),
        ("a", {"size": "8"}),
        ("a", {"size": 8.0}),
        ("a", {"sha256": None}),
        ("a", {"sha256": ""}),
        ("a", {"sha256": "g" * 64}),
    ],
)
def test_a_manifest_names_files_of_its_folder_with_size_and_hash(
    folder: Path, name: str, entry: dict[str, object]
) -> None:
    path = save(folder, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"][name] = {"size": 8, "sha256": "0" * 64, **entry}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        CheckpointError, match=r"manifest\.json: .*without its size and hash, or one"
    ):
        load_checkpoint(path)
    assert not sealed_folder.is_plausible(path)


def test_a_disk_that_fills_up_meanwhile_is_named_with_its_free_space(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, content: bytes) -> None:
        raise OSError(number, os.strerror(number))

    save(folder, 1)
    usage = shutil.disk_usage(folder)._replace(free=1_500_000)
    monkeypatch.setattr(sealed_folder, "_write_file", fail)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    number = errno.ENOSPC
    with pytest.raises(
        CheckpointError, match=r"No space left on device\. .* stay .* 1\.5 MB are free: make room"
    ):
        save(folder, 2)
    number = errno.EIO
    with pytest.raises(CheckpointError, match=r"Input/output error\. .* stay as they are\.$"):
        save(folder, 2)
