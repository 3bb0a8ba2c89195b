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
    path = folder / name
    if allow_outside:
        return path
    is_inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    return path if is_inside else None
