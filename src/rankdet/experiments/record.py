"""The file of a record, ITEM.json: reading it, and what is in it; see `experiment`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankdet.errors import ConfigError, RankdetError, listed, shorten

SCALES = ("smoke", "tiny", "voc320", "paper")
Record = Mapping[str, Any]  # what ITEM.json holds
KEY = "rankdet_reproduction"
VERSION = 1
_MOST_NAMES = 8  # of rows, that a sentence lists
# What is raised where a record is not as it was written; ConfigError is of the settings in a row.
_OF_CONTENT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, ConfigError)


def read_record(file: Path) -> dict[str, Any]:
    """What a record's JSON file holds; RankdetError if it is none."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise RankdetError(
            f"{file}: this is no record: it is not JSON: {error}. Put back a copy of it, or remove "
            "it and run the experiment again."
        ) from error
    if not isinstance(content, dict) or content.get(KEY) != VERSION:
        found = content.get(KEY) if isinstance(content, dict) else None
        raise RankdetError(
            f"{file}: {KEY} = {found!r}: expected {VERSION}. Give a file that "
            "`rankdet reproduce ITEM` wrote with this version."
        )
    for name, kind in (("item", str), ("request", dict), ("plan", list), ("rows", dict)):
        if not isinstance(content.get(name), kind):
            raise _changed(file, name)
    if not all(isinstance(key, str) for key in content["plan"]):
        raise _changed(file, "plan")
    if content["request"].get("scale") not in SCALES:
        raise _changed(file, "request.scale")
    changes = content["request"].get("changes", [])
    if not isinstance(changes, list) or not all(isinstance(text, str) for text in changes):
        raise _changed(file, "request.changes")
    for key, row in content["rows"].items():
        is_row = isinstance(row, dict) and (
            isinstance(row.get("error"), str)
            or (isinstance(row.get("result"), dict) and row["result"])
        )
        if not is_row:
            raise _changed(file, f"the row {key}")
    return content


def read_named_record(file: Path) -> dict[str, Any]:
    """The same of a file whose table and figure are wanted: it has to have the item's name.

    Else they could replace those of another record.
    """
    record = read_record(file)
    expected = f"{record['item']}.json"
    if file.name != expected:
        raise RankdetError(
            f"{file}: this is a record of {record['item']}: expected the name {expected}. Give it "
            "that name, in a folder without another one."
        )
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


@contextmanager
def shown_from(file: Path) -> Iterator[None]:
    """RankdetError, where what is shown of a record fails: a number in it is no number, say."""
    try:
        yield
    except _OF_CONTENT as error:
        raise _changed(file, f"a row ({type(error).__name__}: {error})") from error


def _changed(file: Path, what: str) -> RankdetError:
    return RankdetError(
        f"{file}: {what} is not as it was written: the file was changed, or another version of "
        "rankdet wrote it. Put back a copy of it, or remove it and run the experiment again."
    )


def request_differences(stored: Record, wanted: Record) -> list[str]:
    """Where what a record was asked for differs from what is asked for now.

    Of each setting that `--set` changes the last value counts, and their order does not.

    >>> request_differences({"seed": 0, "changes": ["a.b=1", "c.d=2"]}, {"changes": ["c.d=2"]})
    ["--set a.b = '1', and now it is not given"]
    """
    found = [
        f"{name} = {shorten(stored.get(name))}, and now it is {shorten(value)}"
        for name, value in wanted.items()
        if name != "changes" and stored.get(name) != value
    ]
    before, now = (changed_settings(request.get("changes") or ()) for request in (stored, wanted))
    for key in dict.fromkeys([*before, *now]):
        if key not in now:
            found.append(f"--set {key} = {shorten(before[key])}, and now it is not given")
        elif key not in before:
            found.append(f"no --set {key}, and now it is {shorten(now[key])}")
        elif before[key] != now[key]:
            found.append(f"--set {key} = {shorten(before[key])}, and now it is {shorten(now[key])}")
    return found


def changed_settings(changes: Iterable[str]) -> dict[str, str]:
    """The texts of `--set` as the value of each setting."""
    parts = (text.partition("=") for text in changes)
    return {key.strip(): value.strip() for key, _, value in parts}


def results_of(record: Record) -> dict[str, Any]:
    """The results of the finished rows, by key."""
    rows = record["rows"]
    return {key: rows[key]["result"] for key in record["plan"] if "result" in rows.get(key, {})}


def state_of(record: Record) -> str:
    """A sentence about what is missing of a record; "" if nothing is. Tables show the rest."""
    rows = record["rows"]
    failed = [key for key in record["plan"] if "error" in rows.get(key, {})]
    missing = [key for key in record["plan"] if key not in rows]
    sentences = []
    if missing:
        sentences.append(f"Not run yet: {listed(missing, _MOST_NAMES)}.")
    if failed:
        sentences.append(f"Failed: {listed(failed, _MOST_NAMES)}.")
    return " ".join(sentences)
