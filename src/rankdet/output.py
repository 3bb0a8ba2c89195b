"""Files that we write for the user: whole or not at all, and never over a file that is not ours."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rankdet.errors import RankdetError, system_reason

_START = 1000  # bytes of a file in which its mark must stand


def refuse_foreign(path: Path, mark: str, is_forced: bool = False) -> None:
    """RankdetError if writing `path` would destroy something: a file without our mark at its start.

    To be called before the work begins that the file is meant for.
    """
    if path.is_dir():
        raise RankdetError(f"{path}: this is a folder; give the name of a file.")
    if not path.exists():
        return
    if not path.is_file():
        raise RankdetError(f"{path}: this is not a plain file.")
    if is_forced:
        return
    with path.open("rb") as stream:
        start = stream.read(_START)
    if start and mark.encode() not in start:
        raise RankdetError(
            f"{path}: the file exists and was not written by this command. "
            "Give another name, or remove it first (or --force, where the command has it)."
        )


def write_whole(path: Path, content: bytes) -> None:
    """Write under a temporary name, then rename: no reader ever sees half of a file."""
    try:
        _write_and_rename(Path(os.path.realpath(path)), content)  # a link stays a link
    except OSError as error:  # would name the temporary file
        reason = system_reason(error)
        raise RankdetError(f"{path}: the file cannot be written: {reason}.") from error


def _write_and_rename(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(_usual_rights(path))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _usual_rights(path: Path) -> int:
    """Those of the file that is replaced, or those that a new file gets here."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)  # the only way to ask
    os.umask(mask)
    return 0o666 & ~mask
