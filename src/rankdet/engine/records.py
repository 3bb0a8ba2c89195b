"""The numbers of a training, row by row: metrics.jsonl, and TensorBoard's events on request."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from rankdet.errors import CheckpointError, ConfigError, RankdetError, system_reason
from rankdet.output import write_whole

Row = dict[str, Any]


class MetricsFile:
    """A file with one JSON object per line, each written out at once.

    Numbers that are not finite, which JSON lacks, become null. Every row has a "step". A line that
    a killed process left unfinished is dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stream: IO[bytes] | None = None

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, row: Row) -> None:
        """Add a row at the end."""
        line = json.dumps(_finite(row), allow_nan=False) + "\n"
        try:
            if self._stream is None:
                self._stream = _open_at_end(self.path)
            self._stream.write(line.encode())
            self._stream.flush()
        except OSError as error:
            reason = system_reason(error)
            raise RankdetError(f"{self.path}: the file cannot be written: {reason}.") from error

    def truncate_after(self, step: int) -> None:
        """Drop the rows of later steps: a run that goes on from this step writes them again."""
        self.close()
        if not self.path.exists():
            return
        kept = [line for line, row in _lines(self.path) if row["step"] <= step]
        write_whole(self.path, b"".join(line + b"\n" for line in kept))

    def close(self) -> None:
        """Close the file; the next row opens it again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def read_metrics(path: Path) -> list[Row]:
    """The rows of a metrics file, without a last line that is unfinished; [] if there is none."""
    return [row for _, row in _lines(path)] if path.exists() else []


class EventWriter:
    """TensorBoard's events in `folder`: the numbers of the rows that a MetricsFile gets.

    purge_step: the first step that will be written; TensorBoard then hides it and later ones of an
    earlier session, which was lost.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "training.tensorboard = true: the package tensorboard is missing. "
                'Install it with: pip install "rankdet[tensorboard]"'
            ) from error
        self._writer = SummaryWriter(str(folder), purge_step=purge_step)

    def add(self, row: Row) -> None:
        """Write each number of a row under its name; of a row within it, as name/name."""
        for name, value in _scalars(row):
            if name != "step":
                self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        """Write out what is left."""
        self._writer.close()


def _finite(value: Any) -> Any:
    """The value with None for every number in it that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value


def _scalars(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """
    >>> list(_scalars({"step": 5, "loss": 0.5, "note": "x", "evaluation": {"AP": 40.0}}))
    [('step', 5), ('loss', 0.5), ('evaluation/AP', 40.0)]
    """
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, value


def _check_plain(path: Path) -> None:
    """CheckpointError for a pipe or a device, which would never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CheckpointError(f"{path}: this is not a plain file. Remove it.")


def _lines(path: Path) -> Iterator[tuple[bytes, Row]]:
    """Every finished line of the file, and its row."""
    _check_plain(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {system_reason(error)}.") from error
    *lines, _ = content.split(b"\n")  # what comes after the last line break is unfinished
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise CheckpointError(
                f"{path}:{number}: expected a JSON object with a step. Remove this line."
            )
        yield line, row


def _open_at_end(path: Path) -> IO[bytes]:
    """The file, ready for the next line: behind the last one that is finished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _check_plain(path)
    stream = path.open("a+b")
    stream.seek(0)
    stream.truncate(stream.read().rfind(b"\n") + 1)
    return stream
