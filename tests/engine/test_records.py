"""The rows of a training: metrics.jsonl and TensorBoard's events."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankdet.engine.records import EventWriter, MetricsFile, read_metrics
from rankdet.errors import CheckpointError, ConfigError, RankdetError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def rows(*steps: int) -> list[dict[str, Any]]:
    return [{"step": step, "loss": step / 10} for step in steps]


def write(path: Path, *steps: int) -> None:
    with MetricsFile(path) as file:
        for row in rows(*steps):
            file.append(row)


def test_rows_come_back_as_they_were_written(path: Path) -> None:
    with MetricsFile(path) as file:
        file.append({"step": 1, "loss": {"class": 0.25}, "kind": "step"})
        file.append({"step": 2, "AP": None})
    assert read_metrics(path) == [
        {"step": 1, "loss": {"class": 0.25}, "kind": "step"},
        {"step": 2, "AP": None},
    ]
    assert path.read_text() == (
        '{"step": 1, "loss": {"class": 0.25}, "kind": "step"}\n{"step": 2, "AP": null}\n'
    )


def test_a_row_can_be_read_at_once(path: Path) -> None:
    with MetricsFile(path) as file:
        file.append({"step": 1})
        assert read_metrics(path) == [{"step": 1}]


def test_a_second_session_adds_to_the_first(path: Path) -> None:
    write(path, 1, 2)
    write(path, 3)
    assert read_metrics(path) == rows(1, 2, 3)


def test_numbers_that_are_not_finite_become_null(path: Path) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    with MetricsFile(path) as file:
        file.append({"step": 1, "a": math.nan, "b": [math.inf, 2.0], "c": {"d": -math.inf}})
    (line,) = path.read_text().splitlines()
    assert json.loads(line, parse_constant=refuse) == {
        "step": 1,
        "a": None,
        "b": [None, 2.0],
        "c": {"d": None},
    }


def test_resuming_drops_the_rows_of_later_steps(path: Path) -> None:
    write(path, 10, 20, 30, 40)
    with MetricsFile(path) as file:
        file.truncate_after(20)
        assert read_metrics(path) == rows(10, 20)
        file.append({"step": 21})
        file.truncate_after(20)  # of an open file
        file.append({"step": 22})
    assert read_metrics(path) == [*rows(10, 20), {"step": 22}]


def test_resuming_without_a_file_makes_none(path: Path) -> None:
    MetricsFile(path).truncate_after(5)
    assert not path.exists()
    assert read_metrics(path) == []


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b'{"step": 3}', b"\0\0\0", b"\xff"])
def test_a_line_that_was_not_finished_is_dropped(path: Path, torn: bytes) -> None:
    write(path, 1, 2)
    with path.open("ab") as stream:
        stream.write(torn)
    assert read_metrics(path) == rows(1, 2)
    write(path, 3)
    assert read_metrics(path) == rows(1, 2, 3)
    with path.open("ab") as stream:
        stream.write(torn)
    MetricsFile(path).truncate_after(2)
    assert path.read_bytes().splitlines()[-1] == b'{"step": 2, "loss": 0.2}'
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("line", ["{", "[1]", "{}", '{"step": "1"}', "", "[" * 100_000])
def test_a_line_that_is_not_a_row_is_named(path: Path, line: str) -> None:
    write(path, 1)
    with path.open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl:2: expected .* Remove this line\."):
        read_metrics(path)


def test_rows_are_dropped_whole_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, 1, 2, 3)
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(RankdetError, match="full"):
        MetricsFile(path).truncate_after(1)
    assert read_metrics(path) == rows(1, 2, 3)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RankdetError, match=r"metrics\.jsonl: the file cannot be written: "):
        MetricsFile(tmp_path / "file" / "metrics.jsonl").append({"step": 1})
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=r"folder: cannot be read: Is a directory\."):
        read_metrics(tmp_path / "folder")


def test_a_pipe_in_place_of_the_file_does_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    os.mkfifo(path)
    with MetricsFile(path) as metrics:
        for use in (lambda: metrics.append({"step": 1}), lambda: metrics.truncate_after(1)):
            with pytest.raises(
                CheckpointError, match=r"metrics\.jsonl: this is not a plain file\."
            ):
                use()
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: this is not a plain file\."):
        read_metrics(path)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None)
@given(contents=st.lists(st.dictionaries(st.text(), values, max_size=4), max_size=5))
def test_any_row_is_one_line(
    tmp_path_factory: pytest.TempPathFactory, contents: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "metrics.jsonl"
    with MetricsFile(path) as file:
        for number, content in enumerate(contents):
            file.append({**content, "step": number})
    read = read_metrics(path)
    assert [row["step"] for row in read] == list(range(len(contents)))
    assert [row.keys() for row in read] == [{**row, "step": 0}.keys() for row in contents]


# TensorBoard


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The events as TensorBoard shows them: name -> (step, value)."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_gets_the_numbers_of_the_rows(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    writer = EventWriter(tmp_path)
    writer.add({"step": 10, "kind": "step", "loss": 0.5, "is_best": True, "AP": None})
    writer.add({"step": 20, "loss": 0.25, "seconds": {"data": 2}})
    writer.close()
    assert scalars(tmp_path) == {"loss": [(10, 0.5), (20, 0.25)], "seconds/data": [(20, 2.0)]}


def test_tensorboard_hides_the_steps_of_a_lost_session(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    first = EventWriter(tmp_path)
    for step in (10, 20, 30):
        first.add({"step": step, "loss": 1.0})
    first.close()
    second = EventWriter(tmp_path, purge_step=21)
    second.add({"step": 30, "loss": 2.0})
    second.close()
    assert scalars(tmp_path) == {"loss": [(10, 1.0), (20, 1.0), (30, 2.0)]}


def test_without_tensorboard_the_user_learns_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r'pip install "rankdet\[tensorboard\]"'):
        EventWriter(tmp_path)
