"""Faults of processes, few of each: the real build survives, the broken ones are seen to fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rankdet.bench.faults import data_workers, elastic, ranks, signals, soak
from rankdet.bench.faults.fault import Fault, tried
from rankdet.bench.faults.processes import Server
from rankdet.bench.faults.soak import Sample, grown
from rankdet.bench.faults.table import FAULTS
from rankdet.bench.faults.watching import (
    descendants,
    is_alive,
    last_step,
    problem_with_saving,
    send,
    wait_until,
)
from rankdet.bench.faults.worlds import all_ended, start_world
from rankdet.errors import RankdetError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and /proc of Linux")

ROWS = (
    signals.SIGNALS,
    elastic.ELASTIC,
    data_workers.DATA_WORKERS,
    ranks.EMPTY_RANKS,
    ranks.NOT_FINITE,
    soak.SOAK,
)


@pytest.mark.parametrize("fault", ROWS, ids=lambda fault: fault.name)
def test_the_fault_is_survived_and_a_broken_build_is_noticed(fault: Fault, server: Server) -> None:
    row = tried(fault, server, quick=True, seed=0, advance=lambda: None)
    assert row["problems"] == []
    assert row["survived"] == row["tried"] > 0
    assert row["worst"]
    assert len(row["broken"]) == len(fault.broken) > 0


@pytest.mark.slow
def test_a_killed_worker_of_torchrun_is_survived(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic, "_NUM_RUNS", 1)
    monkeypatch.setattr(elastic, "_NUM_KILLS", 2)
    fault = replace(elastic.ELASTIC, broken=())
    row = tried(fault, server, quick=False, seed=1, advance=lambda: None)
    assert row["problems"] == []
    assert row["tried"] == row["survived"] == 2


def test_all_rows_are_in_the_table() -> None:
    assert set(ROWS) <= set(FAULTS)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_full_counts_are_those_that_were_promised() -> None:
    counts = {fault.name: fault.tries[0] for fault in ROWS}
    assert counts == {
        "signal": 40,
        "torchrun": 20,
        "worker": 10,
        "empty": 3,
        "nan": 12,
        "soak": 3000,
    }
    assert ranks._STEPS * len(ranks._BATCH_SIZES) == 300


def test_a_run_that_does_not_stop_in_time_is_a_problem(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "problem_with_saving", lambda run: None)
    late = server.start(time.sleep, 0.2)
    problem, seconds = signals._judged(tmp_path, late, 0, most_seconds=0.1)
    assert seconds["gone"] > 0.1
    assert problem is not None
    assert "gone after " in problem
    monkeypatch.setattr(signals, "_HANG_SECONDS", 0.1)
    hanging = server.start(time.sleep, 60)
    problem, _ = signals._judged(tmp_path, hanging, 0, most_seconds=100)
    assert problem is not None
    assert "it still ran after 0." in problem
    assert hanging.wait(30).status == -signal.SIGKILL


# What has grown

STEADY = Sample(
    megabytes=500,
    children_megabytes=300,
    descriptors=80,
    threads=9,
    processes=5,
    temporary_files=1,
    shared_files=2,
    run_files=20,
)


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("megabytes", 20),
        ("children_megabytes", 30),
        ("descriptors", 10),
        ("threads", 4),
        ("temporary_files", 2),
        ("shared_files", 5),
        ("run_files", 15),
    ],
)
def test_growth_of_each_kind_is_seen(name: str, by: float) -> None:
    value = getattr(STEADY, name)
    samples = [replace(STEADY, **{name: value + 2 * by * number / 99}) for number in range(100)]
    assert [text.split(":")[0] for text in grown(samples)] == [name.replace("_", " ")]
    assert grown([replace(sample, **{name: value + by}) for sample in samples]) == []


def test_a_start_that_grows_and_evaluations_are_no_leak() -> None:
    start = [replace(STEADY, megabytes=100 + 20 * number) for number in range(20)]
    evaluation = replace(STEADY, processes=7, descriptors=200, children_megabytes=900)
    assert grown([*start, *[STEADY] * 60, *[evaluation] * 20]) == []


def test_without_samples_nothing_is_taken_for_granted() -> None:
    assert grown([]) == ["there are too few samples"]
    assert grown([STEADY] * 2) == ["there are too few samples"]


# Looking from outside


def test_a_step_that_was_finished_and_not_saved_is_a_problem(tmp_path: Path) -> None:
    assert problem_with_saving(tmp_path) == "there is no finished step"
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 3}\n')
    assert last_step(tmp_path) == 3
    assert problem_with_saving(tmp_path) == "step 3 was finished, step 0 was saved"


def test_children_of_children_are_found() -> None:
    inner = "import time; time.sleep(60)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    process = subprocess.Popen([sys.executable, "-c", outer])
    try:
        assert wait_until(lambda: len(descendants(process.pid)) == 1, 30)
        (inner_pid,) = descendants(process.pid)
        assert inner_pid in descendants(os.getpid())
        assert is_alive(inner_pid)
        send(inner_pid, signal.SIGKILL)
        process.wait(30)
        assert wait_until(lambda: not is_alive(inner_pid), 30)
    finally:
        process.kill()
        process.wait()


def test_what_never_comes_true_is_not_waited_for_without_end() -> None:
    start = time.monotonic()
    assert not wait_until(lambda: False, 0.05)
    assert time.monotonic() - start < 5


def test_a_world_that_hangs_is_ended(server: Server, tmp_path: Path) -> None:
    world = start_world(server, 1, "train", "synthetic", "--out", str(tmp_path / "run"))
    with pytest.raises(RankdetError, match="still ran"):
        all_ended(world, 0.01)
    world[0].wait(30)
