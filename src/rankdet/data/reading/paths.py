"""Paths that come from strangers: they must not lead out of the data set, nor break a question."""

from __future__ import annotations

import os
from pathlib import Path

from rankdet.data.reading.findings import data_error
from rankdet.errors import system_reason


def contained(folder: Path, name: str, allow_outside: bool = False) -> Path | None:
    """folder / name; None if that lies outside of `folder` (by .., an absolute path or a link).

    >>> contained(Path("images"), "../../etc/passwd") is None
    True
    >>> contained(Path("images"), "a/b.jpg").as_posix()
    'images/a/b.jpg'
    """
    if "\0" in name:
        return None
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # half of a surrogate pair: no file can have such a name
        return None
    path = folder / name
    if allow_outside:
        return path
    real, real_folder = os.path.realpath(path), os.path.realpath(folder)
    is_inside = real == real_folder or real.startswith(real_folder.rstrip(os.sep) + os.sep)
    return path if is_inside else None


def entries_in(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, sorted, without hidden entries; nothing if there is no folder.

    DataError if it is closed to us: nobody knows how many files that are wanted lie there.
    """
    try:
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".")]
            return sorted(shown, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        detail = f"{system_reason(error)}."
        raise data_error("file-unreadable", file=folder, detail=detail) from error


# Of os.path, because those of Path raise if a name is too long.
def is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110
