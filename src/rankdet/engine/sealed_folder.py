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
_TEMPORARY = re.compile(r"\.(saving|removing)-.+-\d+")
_LOCK = ".lock"


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make the folder with these files and their manifest, in place of one that may be there.

    Left as it is if it has the same content already. CheckpointError if that is impossible.
    """
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
    try:
        size = (path / name).stat().st_size
        if size != entry["size"]:
            raise _damaged(path / name, f"it has {size} bytes instead of {entry['size']}")
        content = (path / name).read_bytes()
    except FileNotFoundError as error:
        raise _damaged(path / name, "the file is missing") from error
    except OSError as error:
        raise _damaged(path / name, f"it cannot be read: {system_reason(error)}") from error
    if hashlib.sha256(content).hexdigest() != entry["sha256"]:
        raise _damaged(path / name, "its content has changed since it was written (SHA-256)")
    return content


def is_plausible(path: Path) -> bool:
    """Whether every file is there with its size: cheap, reads the manifest alone."""
    try:
        return all(
            (path / name).stat().st_size == entry["size"] for name, entry in _manifest(path).items()
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
    """Nobody else may be here meanwhile; CheckpointError if somebody is. Makes the folder.

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


def _taken(folder: Path) -> CheckpointError:
    return CheckpointError(
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
        raise CheckpointError(
            f"{path}: the checkpoint {what}: {reason}. The other checkpoints stay as they are."
        ) from error


# Reading


def _manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Size and hash of each file of the folder."""
    file = path / MANIFEST
    if not path.is_dir():
        raise CheckpointError(f"{path}: there is no such checkpoint.")
    try:
        with file.open("rb") as stream:
            content = json.loads(stream.read(_LARGEST_MANIFEST))
        version = content["version"]
        entries = {
            str(name): {"size": int(entry["size"]), "sha256": str(entry["sha256"])}
            for name, entry in content["files"].items()
        }
        is_ours = content["format"] == _FORMAT
    except OSError as error:
        raise _damaged(file, f"it cannot be read: {system_reason(error)}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(file, "it is not a manifest") from error
    if not is_ours:
        raise _damaged(file, "it is not the manifest of a checkpoint")
    if version != _VERSION:
        raise CheckpointError(
            f"{file}: version = {shorten(version)}: this rankdet reads version {_VERSION}. "
            "Use the rankdet that wrote it."
        )
    return entries


def _damaged(file: Path, how: str) -> CheckpointError:
    return CheckpointError(f"{file}: the checkpoint is damaged: {how}. Use another one.")
