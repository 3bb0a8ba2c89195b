"""Faults: the quick rows, what they are made of, and that a row that proves nothing is noticed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

from rankdet.bench import reliability
from rankdet.bench.faults import (
    changes,
    damage,
    full_disk,
    hostile,
    hostile_bytes,
    hostile_files,
    hostile_runs,
    kills,
    patches,
    saves,
    table,
)
from rankdet.bench.faults.fault import BrokenBuild, Fault, Outcome, Trial, tried
from rankdet.bench.faults.patches import Patch
from rankdet.bench.faults.processes import Server
from rankdet.bench.faults.training import final_hash, trained_run
from rankdet.detectors.weight_files import read_tensors
from rankdet.errors import RankdetError, WeightsError

ROWS = (
    *(kills.KILLS, kills.CHANGES, saves.SAVES, full_disk.FULL_DISK),
    *(damage.FLIPS, damage.TRUNCATED, hostile.HOSTILE),
)


# The rows


@pytest.mark.parametrize("fault", ROWS, ids=lambda fault: fault.name)
def test_a_fault_is_survived_and_harms_a_broken_build(fault: Fault, server: Server) -> None:
    num_advances = 0

    def advance() -> None:
        nonlocal num_advances
        num_advances += 1

    row = tried(fault, server, quick=True, seed=1, advance=advance)
    assert row["problems"] == []
    assert row["survived"] == row["tried"] > 0
    assert row["broken"]
    assert all(build["survived"] < build["tried"] for build in row["broken"])
    assert num_advances > 0
    assert list(server.folder.glob("rankdet-*")) == []
    json.dumps(row)


def test_the_table_has_all_rows_once() -> None:
    assert set(ROWS) <= set(table.FAULTS)
    names = [fault.name for fault in table.FAULTS]
    assert len(set(names)) == len(names)
    assert list(reliability.NAMES) == ["data", *names]


def test_full_counts_are_those_that_were_promised() -> None:
    assert {fault.name: fault.tries[0] for fault in ROWS} == {
        "kill": 60,
        "kill-write": 40,
        "kill-save": 200,
        "full-disk": 20,
        "bit-flip": 200,
        "truncated": 200,
        "hostile": 96,
    }
    assert kills._NUM_RUNS == 12


@pytest.mark.slow
def test_a_full_disk_is_also_tried_without_the_right_to_mount(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = subprocess.run

    def refuse(command: list[str], **options: object) -> object:
        return run(["false"] if command[0] == "mount" else command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", refuse)
    row = tried(full_disk.FULL_DISK, server, quick=True, seed=0, advance=lambda: None)
    assert row["problems"] == []
    assert "no right to mount" in row["worst"]


# What makes a row


def nowhere(tmp_path: Path) -> Server:
    """A server that starts nothing."""
    return Server(tmp_path)


def survives(trial: Trial) -> Outcome:
    outcome = Outcome()
    for _ in range(trial.count(5, 2)):
        outcome.add(None)
    return outcome


def notices_patches(trial: Trial) -> Outcome:
    outcome = survives(trial)
    if trial.is_broken:
        outcome.add("harm was done")
    return outcome


def do_nothing() -> None:
    """A patch."""


BROKEN = (BrokenBuild("without a belt", (Patch(do_nothing),)),)


@pytest.mark.parametrize(("quick", "count"), [(True, 2), (False, 5)])
def test_a_row_counts_the_real_build_fully_and_the_broken_one_quickly(
    tmp_path: Path, quick: bool, count: int
) -> None:
    fault = Fault("name", "a title", notices_patches, BROKEN, tries=(5, 2))
    row = tried(fault, nowhere(tmp_path), quick=quick, seed=0, advance=do_nothing)
    assert (row["name"], row["title"]) == ("name", "a title")
    assert (row["tried"], row["survived"], row["problems"]) == (count, count, [])
    assert row["broken"] == [{"build": "without a belt", "tried": 3, "survived": 2}]
    assert list(tmp_path.iterdir()) == []


def test_a_broken_build_that_survives_is_a_problem(tmp_path: Path) -> None:
    fault = Fault("name", "a title", survives, BROKEN, tries=(5, 2))
    row = tried(fault, nowhere(tmp_path), quick=True, seed=0, advance=do_nothing)
    assert row["problems"] == ["a broken build was not noticed: without a belt"]


@pytest.mark.parametrize("outcome", [Outcome(), Outcome(3, 2), Outcome(2, 2, problems=["x"])])
def test_counts_that_do_not_add_up_are_a_problem(tmp_path: Path, outcome: Outcome) -> None:
    fault = Fault("name", "a title", lambda trial: outcome, (), tries=(5, 2))
    row = tried(fault, nowhere(tmp_path), quick=True, seed=0, advance=do_nothing)
    assert "the counts do not add up" in row["problems"]


def test_what_was_not_survived_is_told(tmp_path: Path) -> None:
    def fails(trial: Trial) -> Outcome:
        outcome = Outcome()
        for number in range(30):
            outcome.add(f"problem {number}")
        return outcome

    fault = Fault("name", "a title", fails, (), tries=(30, 30))
    row = tried(fault, nowhere(tmp_path), quick=True, seed=0, advance=do_nothing)
    assert (row["tried"], row["survived"]) == (30, 0)
    assert row["problems"][0] == "problem 0"
    assert row["problems"][20:] == ["and 10 more"]


def test_a_fault_that_cannot_be_tried_is_named(tmp_path: Path) -> None:
    def fails(trial: Trial) -> Outcome:
        raise RankdetError("no rights")

    fault = Fault("name", "a title", fails, (), tries=(5, 2))
    with pytest.raises(RankdetError, match="a title: it could not be tried: no rights"):
        tried(fault, nowhere(tmp_path), quick=True, seed=0, advance=do_nothing)


def test_the_same_seed_tries_the_same(tmp_path: Path) -> None:
    drawn: list[float] = []

    def draws(trial: Trial) -> Outcome:
        drawn.append(trial.chance.random())
        return Outcome(1, 1)

    for name, seed in (("a", 0), ("a", 0), ("a", 1), ("b", 0)):
        tried(
            Fault(name, "", draws, (), (1, 1)),
            nowhere(tmp_path),
            quick=True,
            seed=seed,
            advance=do_nothing,
        )
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


# Children


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose children have no torch: it starts at once."""
    with Server(tmp_path_factory.mktemp("light"), preloaded=()) as server:
        yield server


def is_alive(pid: int) -> bool:
    """Whether a process with this number still runs."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_runs_the_command_line(light: Server) -> None:
    ended = light.rankdet("recipes", "nonsense").wait()
    assert (ended.status, ended.last_line[:7]) == (1, "error: ")
    ended = light.rankdet("--version").wait()
    assert (ended.status, ended.last_line[:8]) == (0, "rankdet ")
    assert 0 < ended.seconds < 20


def test_a_child_has_patches_and_an_environment_of_its_own(light: Server, tmp_path: Path) -> None:
    here = Path.cwd()
    assert light.call(os.getcwd, patches=[Patch(os.chdir, (str(tmp_path),))]) == str(tmp_path)
    assert light.call(os.getcwd) == str(here) == str(Path.cwd())
    assert light.call(os.getenv, "RANKDET_TEST", environment={"RANKDET_TEST": "x"}) == "x"
    assert light.call(os.getenv, "RANKDET_TEST") is None
    found = light.call(tempfile.gettempdir, environment={"TMPDIR": str(tmp_path)})
    assert found == str(tmp_path)


def test_a_child_that_fails_is_told(light: Server) -> None:
    with pytest.raises(RankdetError, match=r"named ended with 1: ModuleNotFoundError"):
        light.call(patches.named, "rankdet.nowhere:nothing")


def test_a_child_that_hangs_is_killed(light: Server) -> None:
    before = set(light.ended)
    with pytest.raises(RankdetError, match="a process still ran after 0 s"):
        light.call(time.sleep, 60, seconds=0.2)
    wait_until(lambda: light.listen(0.1) is not None or set(light.ended) != before)
    (pid,) = set(light.ended) - before
    assert light.ended[pid][0] == -signal.SIGKILL


def test_a_child_can_be_killed_with_all_that_it_has_started(light: Server, tmp_path: Path) -> None:
    program = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))"
    child = light.start(subprocess.run, [sys.executable, "-c", program + "; time.sleep(60)"])
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    child.kill()
    assert child.wait().status == -signal.SIGKILL
    child.kill()  # a second time is no error
    wait_until(lambda: not is_alive(int((tmp_path / "pid").read_text())))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whatever_ends_the_bench_leaves_no_process_behind(tmp_path: Path, number: int) -> None:
    program = f"""
import time
from pathlib import Path
from rankdet.bench.faults.processes import Server
with Server(Path({str(tmp_path)!r}), preloaded=()) as server:
    print(server.start(time.sleep, 60).pid, server._process.pid, flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as bench:
        assert bench.stdout is not None
        pids = [int(word) for word in bench.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        bench.send_signal(number)
        bench.wait(20)
    wait_until(lambda: not any(map(is_alive, pids)))


def test_a_server_that_has_died_is_told(tmp_path: Path) -> None:
    with Server(tmp_path, preloaded=()) as server:
        assert server._process is not None
        server._process.kill()
        server._process.wait()
        with pytest.raises((RankdetError, BrokenPipeError)):
            server.rankdet("--version")


def test_only_functions_at_the_top_of_a_module_can_be_sent() -> None:
    with pytest.raises(ValueError, match="top of a module"):
        patches.name_of(Outcome.add)
    with pytest.raises(ValueError, match="top of a module"):
        patches.name_of(lambda: None)


def test_a_command_with_patches_applies_them_first() -> None:
    assert patches.command((), "--version")[1:] == ["-m", "rankdet", "--version"]
    command = patches.command([Patch(print, ("patched",))], "--version")
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    first, second = result.stdout.splitlines()
    assert (first, second[:8]) == ("patched", "rankdet ")


# Changes of files


def test_changes_are_counted_and_the_last_one_is_not_made(light: Server, tmp_path: Path) -> None:
    counted, folder = tmp_path / "counted", tmp_path / "folder"
    counted.touch()
    folder.mkdir()
    count = Patch(changes.count_changes, (str(folder), str(counted)))
    light.call(os.makedirs, str(folder / "a" / "b"), patches=[count])
    assert counted.read_text() == ".."
    light.call(os.makedirs, str(tmp_path / "elsewhere"), patches=[count])
    light.call(os.listdir, str(folder), patches=[count])
    assert counted.read_text() == ".."
    die = Patch(changes.die_at_change, (str(folder), 1))
    with pytest.raises(RankdetError, match="makedirs ended with -9"):
        light.call(os.makedirs, str(folder / "c" / "d"), patches=[die])
    assert (folder / "c").exists()
    assert not (folder / "c" / "d").exists()


@pytest.mark.parametrize(
    ("event", "arguments", "is_one"),
    [
        ("open", ("/run/a", "wb", os.O_WRONLY), True),
        ("open", ("/run/a", None, os.O_RDWR | os.O_CREAT), True),
        ("open", ("/run/a", "rb", os.O_RDONLY | os.O_CLOEXEC), False),
        ("open", ("/other/a", "wb", os.O_WRONLY), False),
        ("os.rename", ("/run/a", "/run/b", -1, -1), True),
        ("os.remove", ("/run/a", -1), True),
        ("os.listdir", ("/run",), False),
    ],
)
def test_what_is_a_change(event: str, arguments: tuple[object, ...], is_one: bool) -> None:
    assert changes.is_change(event, arguments, "/run/") is is_one


# Hostile files


def hostile_case(name: str, marker: Path) -> hostile_files.HostileFile:
    sound = {hostile_bytes.NAME: torch.ones(2, 3, 3, 3)}
    return next(h for h in hostile_files.hostile_files(marker, sound) if h.name == name)


HOSTILE_NAMES = [
    hostile.name
    for hostile in hostile_files.hostile_files(
        Path("/m"), {hostile_bytes.NAME: torch.ones(2, 3, 3, 3)}
    )
]
BEYOND_READING = {"weights of another shape", "weights with one missing"}


@pytest.mark.parametrize("name", [n for n in HOSTILE_NAMES if n not in BEYOND_READING])
def test_a_hostile_file_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    case = hostile_case(name, tmp_path / "marker")
    path = tmp_path / "weights.pth"
    if case.content is not None:
        path.write_bytes(case.content)
    elif name == "a zip bomb":
        with mock.patch.object(hostile_files, "_PACKED", 5):
            hostile_files.write_special(name, path)
    else:
        hostile_files.write_special(name, path)
    with pytest.raises(WeightsError) as refused:
        read_tensors(path)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize(
    "name", ["code by eval", "code in a namespace", "code in the format of before 1.6"]
)
def test_a_payload_is_a_real_one(name: str, tmp_path: Path, server: Server) -> None:
    """In another process, whose `torch.load` trusts files, it runs."""
    path, marker = tmp_path / "weights.pth", tmp_path / "marker"
    content = hostile_case(name, marker).content
    assert content is not None
    path.write_bytes(content)
    with pytest.raises(RankdetError):  # what is left after the harm is no state dict
        server.call(read_tensors, str(path), patches=[Patch(hostile.load_anything)])
    assert marker.exists()


def test_the_parts_of_a_hostile_file_are_those_of_torch(tmp_path: Path) -> None:
    """The same bytes without malice are read: the files fail for what is wrong with them alone."""
    values = struct.pack("<6f", *range(6))
    content = hostile_bytes.state_dict(hostile_bytes.tensor((2, 3), (3, 1), 6))
    path = tmp_path / "sound.pth"
    path.write_bytes(hostile_bytes.saved(hostile_bytes.pickled(content), values))
    assert read_tensors(path)[hostile_bytes.NAME].tolist() == [[0, 1, 2], [3, 4, 5]]
    header = {hostile_bytes.NAME: hostile_bytes.entry([6], 0, 24)}
    path.write_bytes(hostile_bytes.safetensors(header, values))
    assert read_tensors(path)[hostile_bytes.NAME].tolist() == [0, 1, 2, 3, 4, 5]


def test_enough_hostile_things_are_tried() -> None:
    names = [*HOSTILE_NAMES, *(run.name for run in hostile_runs.RUNS)]
    assert len(names) == hostile._NUM_CASES
    assert len(names) > 25
    assert not hostile._QUICK - set(names)
    assert hostile._FOR_BROKEN <= hostile._QUICK


# The hash


def test_the_hash_sees_everything_but_times(server: Server, tmp_path: Path) -> None:
    trial = Trial(server, tmp_path, random.Random(0), is_quick=True)
    run = Path(shutil.copytree(trained_run(trial), tmp_path / "run"))
    expected = final_hash(run)
    metrics = run / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rows[0]["seconds"] = {}
    rows[0]["images_per_second"] = 1.0
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert final_hash(run) == expected
    rows[0]["class_loss"] += 1e-9
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert final_hash(run) != expected
    rows[0]["class_loss"] -= 1e-9
    checkpoint = hostile_runs.newest(run)
    for name in ("weights.safetensors", "training.safetensors"):
        before = (checkpoint / name).read_bytes()
        (checkpoint / name).write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        hostile_runs.seal(checkpoint)
        assert final_hash(run) != expected
        (checkpoint / name).write_bytes(before)
        hostile_runs.seal(checkpoint)
    (run / "checkpoints" / "best.json").unlink()
    assert final_hash(run) != expected


# The command


@pytest.fixture
def two_faults(monkeypatch: pytest.MonkeyPatch, light: Server) -> None:
    """Two faults that need no torch, in place of the real ones."""
    faults = (
        Fault("belt", "no belt", notices_patches, BROKEN, tries=(5, 2)),
        Fault("braces", "no [braces]", survives, BROKEN, tries=(5, 2)),
    )
    monkeypatch.setattr(table, "FAULTS", faults)
    monkeypatch.setattr(reliability, "NAMES", ("data", "belt", "braces"))
    monkeypatch.setattr(table, "Server", lambda folder: Server(folder, preloaded=()))


@pytest.mark.usefixtures("two_faults")
def test_one_fault_alone_is_tried_and_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "record.json"
    assert reliability.main(quick=True, json_file=file, seed=3, only=("belt",))
    record = json.loads(file.read_text())
    assert record["is_as_expected"] is True
    assert (record["cases"], record["attacks"], record["spoilt"]) == ([], [], [])
    (row,) = record["faults"]
    assert (row["name"], row["tried"], row["survived"]) == ("belt", 2, 2)
    printed = capsys.readouterr()
    assert "no belt" in printed.out
    assert "All as it should be." in printed.out
    assert "no belt ...\n  2 of 2 survived, 0 s\n" in printed.err


@pytest.mark.usefixtures("two_faults")
def test_a_broken_build_that_survives_fails_the_bench(capsys: pytest.CaptureFixture[str]) -> None:
    assert not reliability.main(quick=True, json_file=None, seed=3, only=("belt", "braces"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "no [braces]: a broken build was not noticed: without a belt" in printed
    assert "All as it should be." not in printed


@pytest.mark.usefixtures("two_faults")
def test_sigterm_ends_the_bench_with_its_files_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(trial: Trial) -> Outcome:
        (trial.folder / "file").touch()
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("it went on")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fault = Fault("belt", "no belt", interrupted, (), tries=(1, 1))
    monkeypatch.setattr(table, "FAULTS", (fault,))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        reliability.main(quick=True, json_file=None, seed=0, only=("belt",))
    assert ended.value.code == 143
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(RankdetError, match="--only belts: expected one of data, kill, "):
        reliability.main(quick=True, json_file=None, seed=0, only=("kill", "belts"))


def test_a_fault_that_was_not_survived_is_red() -> None:
    row = {
        "title": "no belt",
        "tried": 3,
        "survived": 2,
        "worst": "w",
        "seconds": 1.0,
        "broken": [{"build": "b", "tried": 2, "survived": 0}],
    }
    cells = [next(iter(column.cells)) for column in table.as_table([row]).columns]
    assert cells == ["no belt", "3", "[red]2[/red]", "w", "1", "0 of 2: b"]
