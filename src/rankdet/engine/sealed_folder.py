"""Folders of files that are whole and proven by hashes, or not there at all.

The files are written under a temporary name in the same parent, a manifest with their sizes and
SHA-256 last, and the folder is renamed when all of it is on the disk: whenever the process or the
machine dies, what stood there before still stands, under its name or as `name.replaced`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankdet.errors import CheckpointError, shorten, system_reason

if sys.platform != "win32":
    import fcntl

MANIFEST = "manifest.json"
REPLACED = ".replaced"  # behind the name of a folder while its successor takes its place

_FORMAT = "rankdet checkpoint"
_VERSION = 1
_LARGEST_MANIFEST = 1_000_000  # bytes; a longer one is not ours
# Far above any detector with the state of its optimiser; below what fills a machine's memory.
_LARGEST_FILE = 8 * 2**30
_SHA256 = re.compile("[0-9a-f]{64}")
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_TEMPORARY = re.compile(r"\.(saving|removing)-.+-\d+")
_LOCK = ".lock"


class TakenError(CheckpointError):
    """Another process is at work in the folder."""


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make the folder with these files and their manifest, in place of one that may be there.

    Left as it is if it has the same content already. CheckpointError if that is impossible.
    """
    largest = max((len(content) for content in files.values()), default=0)
    if largest > _LARGEST_FILE:  # it could not be read again
        raise ValueError(f"expected files of at most {_LARGEST_FILE:,} bytes, got {largest:,}")
    manifest = _manifest_bytes(files)
    with _named_errors(path, "cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent) as is_alone:
            if is_alone:
                _remove_leftovers(path.parent)
            if _has_content(path, manifest):
                return
            _check_space(path.parent, sum(len(content) for content in files.values()))
            _write_and_rename(path, {**files, MANIFEST: manifest})


def remove_folder(path: Path) -> None:
    """Remove it. If the process dies meanwhile, the half that is left has another name."""
    with _named_errors(path, "cannot be removed"):
        _remove(path)


def read_file(path: Path, name: str) -> bytes:
    """A file of the folder, proven by its hash; CheckpointError if anything is wrong with it."""
    entry = _manifest(path).get(name)
    if entry is None:
        raise _damaged(path / MANIFEST, f"it does not name {name}")
    content = _read_plain(path / name, entry["size"])
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise _damaged(path / name, "its content has changed since it was written (SHA-256)")
    return content


def is_plausible(path: Path) -> bool:
    """Whether every file is there with its size: cheap, reads the manifest alone."""
    try:
        return all(
            _plain_size(path / name) == entry["size"] for name, entry in _manifest(path).items()
        )
    except (CheckpointError, OSError):
        return False


# Writing


def _manifest_bytes(files: Mapping[str, bytes]) -> bytes:
    entries = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    manifest = {"format": _FORMAT, "version": _VERSION, "files": entries}
    return json.dumps(manifest, indent=1).encode()


def _has_content(path: Path, manifest: bytes) -> bool:
    """Whether the folder is there with just these files, all of them sound."""
    try:
        if (path / MANIFEST).read_bytes() != manifest:
            return False
        for name in _manifest(path):
            read_file(path, name)
    except (CheckpointError, OSError):
        return False
    return True


@contextmanager
def _locked(parent: Path) -> Iterator[bool]:
    """True while no other process can write here; False where the system cannot promise that.

    The lock ends with the process, however that ends.
    """
    if sys.platform == "win32":
        yield False
        return
    descriptor = os.open(parent / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        is_locked = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _taken(parent) from error
        except OSError:  # some network file systems have no locks
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Nobody else may be here meanwhile; TakenError if somebody is. Makes the folder.

    The lock is on the folder itself, and ends with the process, however that ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = system_reason(error)
        raise CheckpointError(f"{folder}: the folder cannot be made: {reason}.") from error
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _taken(folder) from error
        except OSError:  # some network file systems have no locks
            pass
        yield
    finally:
        os.close(descriptor)


def _taken(folder: Path) -> TakenError:
    return TakenError(
        f"{folder}: another process is writing here at this moment. "
        "Give each training a folder of its own (--out)."
    )


def _check_space(parent: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(parent).free
    if num_bytes > free:
        raise CheckpointError(
            f"{parent}: a checkpoint needs {num_bytes / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB are "
            "free. The earlier checkpoints stay. Make room on the disk, and resume."
        )


def _write_and_rename(path: Path, files: Mapping[str, bytes]) -> None:
    temporary = path.with_name(f".saving-{path.name}-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        for name, content in files.items():
            _write_file(temporary / name, content)
        _sync_folder(temporary)
        if path.exists():
            _set_aside(path)
        temporary.rename(path)
        _sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _remove_replaced(path.parent)


def _write_file(path: Path, content: bytes) -> None:
    with path.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(path: Path) -> None:
    """Put the names that are in a folder on the disk."""
    if sys.platform == "win32":  # which cannot open a folder
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot do it
            raise
    finally:
        os.close(descriptor)


def _set_aside(path: Path) -> None:
    """Free the name of a folder that is to be replaced. A good one can still be found."""
    if is_plausible(path):
        replaced = path.with_name(path.name + REPLACED)
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    else:
        _remove(path)


def _remove(path: Path) -> None:
    temporary = path.with_name(f".removing-{path.name}-{os.getpid()}")
    path.rename(temporary)
    shutil.rmtree(temporary, ignore_errors=True)  # what stays is removed by the next save


def _remove_leftovers(parent: Path) -> None:
    """Remove what a process that was killed has left; only while no other one can write here."""
    for path in parent.iterdir():
        if _TEMPORARY.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
    _remove_replaced(parent)


def _remove_replaced(parent: Path) -> None:
    for path in parent.glob(f"*{REPLACED}"):
        if is_plausible(path.with_suffix("")):
            _remove(path)


@contextmanager
def _named_errors(path: Path, what: str) -> Iterator[None]:
    """A refusal of the system becomes a CheckpointError that names the folder."""
    try:
        yield
    except OSError as error:
        reason = system_reason(error)
        text = f"{path}: the checkpoint {what}: {reason}. The other checkpoints stay as they are."
        if error.errno in _NO_SPACE:
            text += _room(path.parent)
        raise CheckpointError(text) from error


def _room(folder: Path) -> str:
    """A sentence about the space that is left."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    return f" {free / 1e6:,.1f} MB are free: make room on the disk, and resume."


# Reading


def _manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Size and hash of each file of the folder."""
    file = path / MANIFEST
    if not path.is_dir():
        raise CheckpointError(f"{path}: there is no such checkpoint.")
    text = _read_plain(file, most=_LARGEST_MANIFEST)
    try:
        content = json.loads(text)
        version = content["version"]
        entries = {
            name: {"size": entry["size"], "sha256": entry["sha256"]}
            for name, entry in content["files"].items()
        }
        is_ours = content["format"] == _FORMAT
        is_sound = all(_is_entry(name, **entry) for name, entry in entries.items())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(file, "it is not a manifest") from error
    if not is_ours:
        raise _damaged(file, "it is not the manifest of a checkpoint")
    if version != _VERSION:
        raise CheckpointError(
            f"{file}: version = {shorten(version)}: this rankdet reads version {_VERSION}. "
            "Use the rankdet that wrote it."
        )
    if not is_sound:
        raise _damaged(file, "it names a file without its size and hash, or one elsewhere")
    return entries


def _is_entry(name: str, size: object, sha256: object) -> bool:
    """Whether this can be a file of the folder itself."""
    return (
        name not in ("", ".", "..")
        and not {"/", "\\", "\0"} & set(name)
        and type(size) is int
        and size >= 0
        and isinstance(sha256, str)
        and _SHA256.fullmatch(sha256) is not None
    )


def _read_plain(file: Path, expected: int | None = None, most: int = _LARGEST_FILE) -> bytes:
    """The bytes of a plain file: a pipe would never end, and a link may lead anywhere."""
    try:
        size = _plain_size(file)
        if expected is not None and size != expected:
            raise _damaged(file, f"it has {size} bytes instead of {expected}")
        if size > most:
            raise _damaged(file, f"it has {size:,} bytes, and at most {most:,} are read")
        return file.read_bytes()
    except FileNotFoundError as error:
        raise _damaged(file, "the file is missing") from error
    except OSError as error:
        raise _damaged(file, f"it cannot be read: {system_reason(error)}") from error


def _plain_size(file: Path) -> int:
    """The size of a file; CheckpointError unless it is a plain one."""
    found = file.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise _damaged(file, "it is a link, a pipe or a device instead of a plain file")
    return found.st_size


def _damaged(file: Path, how: str) -> CheckpointError:
    return CheckpointError(f"{file}: the checkpoint is damaged: {how}. Use another one.")
