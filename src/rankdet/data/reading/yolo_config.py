"""Where a YOLO data set has its images and what its classes are called: data.yaml, or the folders.

Keys that are not needed (`download:` and others) are never looked at.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankdet.data.reading.classes import is_class_name, read_class_list
from rankdet.data.reading.findings import data_error
from rankdet.data.reading.images import EXTENSIONS
from rankdet.data.reading.parsing import decode_text, read_yaml
from rankdet.data.reading.paths import contained, exists, is_folder
from rankdet.data.reading.split_naming import in_order
from rankdet.errors import DataError

_YAML = (".yaml", ".yml")
_SPLITS = ("train", "val", "valid", "test")
_NAMES = ("classes.txt", "names.txt", "obj.names", "names", "labels/classes.txt")
_WHOLE = "all"  # the split of a folder of images that has no parts
_KEY = re.compile(r"^(names|train|val)\s*:", re.MULTILINE)


@dataclass(frozen=True)
class Config:
    """A YOLO data set before any label is read.

    file: the YAML file, or the folder if there is none. root: what the paths of sources start
    from. names: None if the labels alone say which classes there are. sources: for each split its
    folders of images, or text files that list images, as they are written.
    """

    file: Path
    root: Path
    names: tuple[str, ...] | None
    sources: dict[str, tuple[str, ...]]


def is_yolo(path: Path) -> bool:
    """Whether there is a YAML file for it, or a folder `labels` beside a folder `images`."""
    if path.is_file():
        return path.suffix.lower() in _YAML
    return _yaml_in(path) is not None or bool(_folder_sources(path))


def read_config(path: Path, allow_outside: bool) -> Config:
    """What the YAML file or the folders say; DataError if that makes no sense."""
    if not path.exists():
        raise data_error("data-missing", file=path)
    file = path if path.is_file() else _yaml_in(path)
    if file is not None:
        return _read_yaml_config(file, allow_outside)
    names = next((path / name for name in _NAMES if (path / name).is_file()), None)
    return Config(
        file=path,
        root=path,
        names=None if names is None else read_class_list(names),
        sources=_folder_sources(path),
    )


def locate(config: Config, split: str, allow_outside: bool) -> list[Path]:
    """The folders and lists of a split; all of them exist."""
    return [_located(config, split, source, allow_outside) for source in config.sources[split]]


def existing_splits(config: Config) -> tuple[str, ...]:
    """The splits, less a test split that a YAML file names but that is not there.

    Exports name one out of habit. Other splits are wanted: that they are missing is an error later.
    """
    return tuple(
        name
        for name in in_order(config.sources)
        if name != "test" or any(_exists(config, source) for source in config.sources[name])
    )


def _yaml_in(folder: Path) -> Path | None:
    """The folder's data.yaml, or its only YAML file if that looks like one."""
    for name in ("data.yaml", "data.yml"):
        if (folder / name).is_file():
            return folder / name
    files = [file for suffix in _YAML for file in folder.glob(f"*{suffix}") if file.is_file()]
    if len(files) == 1 and _looks_like_data(files[0]):
        return files[0]
    return None


def _looks_like_data(file: Path) -> bool:
    """Whether a YAML file has one of our keys near its start. It is not parsed."""
    try:
        with file.open("rb") as stream:
            text = decode_text(stream.read(65536), file)
    except (OSError, DataError):
        return False
    return _KEY.search(text) is not None


def _folder_sources(root: Path) -> dict[str, tuple[str, ...]]:
    """The splits of folders without a YAML file: images/train, train/images, or images alone."""
    if (root / "images").is_dir() and (root / "labels").is_dir():
        folders, has_image = _content(root / "images")
        if has_image or not folders:
            return {_WHOLE: ("images",)}
        return {name: (f"images/{name}",) for name in folders}
    names = [name for name in _content(root)[0] if (root / name / "images").is_dir()]
    labelled = [name for name in names if (root / name / "labels").is_dir()]
    # Beside a split with labels, a test set may have none.
    return {name: (f"{name}/images",) for name in names if labelled and name in (*labelled, "test")}


def _content(folder: Path) -> tuple[list[str], bool]:
    """(names of the folders in a folder, whether it has an image itself)."""
    folders = []
    has_image = False
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                elif Path(entry.name).suffix.lower() in EXTENSIONS:
                    has_image = True
    except OSError:
        return [], False
    return sorted(folders), has_image


def _refused(file: Path, field: str, value: object, detail: str) -> DataError:
    is_about_classes = field in ("names", "nc") and value is not None
    code = "classes-invalid" if is_about_classes else "yaml-structure"
    return data_error(code, file=file, field=field, value=value, detail=detail)


def _read_yaml_config(file: Path, allow_outside: bool) -> Config:
    data = read_yaml(file)
    if not isinstance(data, dict):
        raise _refused(file, "type", type(data).__name__, "It must be keys with values.")
    names = _names(file, data)
    # Splits are often left blank, test: most of all.
    blank = {
        name for name in _SPLITS if data.get(name) is None or (name == "test" and not data[name])
    }
    given = [name for name in _SPLITS if name not in blank]
    sources = {name: _source(file, name, data[name]) for name in given}
    if not sources:
        raise _refused(file, "train", data.get("train"), "None of train, val and test is given.")
    return Config(file, _root(file, data.get("path"), allow_outside), names, sources)


def _root(file: Path, value: object, allow_outside: bool) -> Path:
    """The folder that all other paths start from: `path`, or where the YAML file lies."""
    if value is None:
        return file.parent
    if not isinstance(value, str):
        raise _refused(file, "path", value, "It must be a text.")
    for text in _spellings(value):
        path = contained(file.parent, text, allow_outside)
        if path is not None and is_folder(path):
            return path
    detail = "Remove it if the data lie beside the YAML file."
    if contained(file.parent, value, allow_outside) is None:
        raise data_error("file-outside", file=file, field="path", value=value, detail=detail)
    raise data_error("data-missing", file=file, field="path", value=value, detail=detail)


def _spellings(text: str) -> tuple[str, ...]:
    """The path, then with slashes, then without leading `../`: exports have one of these too many.

    >>> _spellings("..\\\\train\\\\images")
    ('..\\\\train\\\\images', '../train/images', 'train/images')
    """
    slashed = text.replace("\\", "/")
    short = re.sub(r"^(\.\./)+", "", slashed)
    return tuple(dict.fromkeys((text, slashed, short or slashed)))


def _names(file: Path, data: dict[Any, Any]) -> tuple[str, ...]:
    """The class names in the order of their ids."""
    value = data.get("names")
    if value is None or value in ([], {}):
        raise _refused(file, "names", value, "The names of the classes are missing.")
    if isinstance(value, dict):
        names = _names_by_id(file, value)
    elif isinstance(value, list):
        names = value
    else:
        raise _refused(file, "names", value, "It must be a list, or ids with names.")
    seen = set()
    for index, name in enumerate(names):
        if not is_class_name(name):
            detail = f"The name of class {index} is not a text."
            if name is not None and not isinstance(name, str | list | dict):
                detail += " Put it in quotes: YAML reads no, yes, on, 1 and dates as other things."
            raise _refused(file, "names", name, detail)
        if name in seen:
            raise _refused(file, "names", name, "Two classes have this name.")
        seen.add(name)
    _check_count(file, data.get("nc"), len(names))
    return tuple(names)


def _names_by_id(file: Path, names: dict[Any, Any]) -> list[Any]:
    for key in names:
        if isinstance(key, bool) or not isinstance(key, int):
            raise _refused(file, "names", key, "The id of a class must be a whole number.")
    missing = next((index for index in range(len(names)) if index not in names), None)
    if missing is not None:
        detail = f"The ids must be 0 to {len(names) - 1}; {missing} is missing."
        raise _refused(file, "names", sorted(names), detail)
    return [names[index] for index in range(len(names))]


def _check_count(file: Path, count: object, num_names: int) -> None:
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int):
        raise _refused(file, "nc", count, "It must be a whole number.")
    if count != num_names:
        raise _refused(file, "nc", count, f"There are {num_names} names.")


def _source(file: Path, split: str, value: object) -> tuple[str, ...]:
    """The folders and lists of one split, as they are written."""
    sources = value if isinstance(value, list) else [value]
    if not sources:
        raise _refused(file, split, value, "The list is empty.")
    for source in sources:
        if not isinstance(source, str) or not source.strip():
            raise _refused(file, split, source, "It must be a folder, or a list of folders.")
    return tuple(sources)


def _located(config: Config, split: str, source: str, allow_outside: bool) -> Path:
    is_outside = False
    for text in _spellings(source):
        path = _inside(config, text, allow_outside)
        if path is None:
            is_outside = True
        elif exists(path):
            return path
    if is_outside:
        raise data_error("file-outside", file=config.file, field=split, value=source)
    detail = f"It was looked for in {config.root}."
    raise data_error("data-missing", file=config.file, field=split, value=source, detail=detail)


def _inside(config: Config, text: str, allow_outside: bool) -> Path | None:
    # Without a YAML file the names are those of folders that lie there, links among them.
    is_our_own = config.file == config.root
    return contained(config.root, text, allow_outside or is_our_own)


def _exists(config: Config, source: str) -> bool:
    paths = (_inside(config, text, True) for text in _spellings(source))
    return any(path is not None and exists(path) for path in paths)
