"""What a path is that is no data set, so far as that helps to find the right one."""

from __future__ import annotations

from pathlib import Path

_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".rar", ".7z")
_STARTS = (b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"Rar!\x1a", b"7z\xbc\xaf\x27\x1c")
_TAR = (257, b"ustar")  # where a tar file says that it is one
_PARTS = ("annotations", "imagesets", "jpegimages", "images", "labels")


def is_archive(path: Path) -> bool:
    """Whether this is a file with others packed in it, by its name or its content."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        start = stream.read(512)
    is_tar = start[_TAR[0] :].startswith(_TAR[1])
    return path.suffix.lower() in _ARCHIVES or start.startswith(_STARTS) or is_tar


def is_named_as_part(path: Path) -> bool:
    """Whether folders inside of data sets have such names."""
    return path.absolute().name.lower() in _PARTS


def what_it_is(path: Path, is_inside: bool) -> str:
    """A sentence or two about the path; empty if there is nothing to say.

    is_inside: whether it is a part of a data set, that of the folder above.
    """
    if not path.is_dir():
        return "It is an archive. Unpack it first." if is_archive(path) else ""
    names = sorted(item.name for item in path.iterdir())
    if not names:
        return "The folder is empty."
    if is_inside:
        return "It is a part of a data set. Give the folder above."
    packed = next((name for name in names if Path(name).suffix.lower() in _ARCHIVES), None)
    return f"There is the archive {packed}. Unpack it first." if packed else ""
