"""File names that come from annotations: they must not lead out of the folder of the data set."""

from __future__ import annotations

import os
from pathlib import Path


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
