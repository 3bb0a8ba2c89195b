"""Decoding in worker processes: what comes back, and what a crash, a hang or Ctrl-C costs."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from rankdet.data.checking import decoding
from rankdet.data.checking.decoding import decode_all, examine
from rankdet.errors import RankdetError

# Workers are fresh processes and import the decoder by name: it must stand in a file on the path.
DECODER = """
import os, signal, time
from pathlib import Path
import numpy as np

def decode(path, max_pixels):
    (path.parent / f"{os.getpid()}.pid").touch()
    word = path.stem.partition("_")[0]
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "exit":
        os._exit(3)
    if word == "hang":
        time.sleep(1000)
    if word == "memory":
        raise MemoryError
    mark = path.with_suffix(".tried")
    if word == "once" and not mark.exists():
        mark.touch()
        os._exit(1)
    return np.zeros((1, 1, 3), dtype=np.uint8)
"""


@pytest.fixture
def decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module whose `decode` does what the name of the file says."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "fatal_decoder.py").write_text(DECODER)
    monkeypatch.syspath_prepend(tmp_path / "code")
    yield importlib.import_module("fatal_decoder")
    sys.modules.pop("fatal_decoder")


def files(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).write_bytes(name.encode())
    return [folder / name for name in names]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def codes(outcomes: list[decoding.Outcome]) -> list[str | None]:
    return [outcome.finding.code if outcome.finding else None for outcome in outcomes]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_file_has_its_outcome_in_order(tmp_path: Path, num_workers: int) -> None:
    paths = []
    for number in range(5):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(np.full((4, 6, 3), number, dtype=np.uint8)).save(paths[-1])
    paths[1].write_bytes(paths[1].read_bytes()[:40])
    paths[3].unlink()
    calls: list[None] = []
    outcomes = decode_all(paths, num_workers=num_workers, on_image=lambda: calls.append(None))
    assert len(calls) == 5
    for number in (0, 2, 4):
        expected = blake2b(paths[number].read_bytes(), digest_size=16).digest()
        assert outcomes[number].digest == expected
        assert outcomes[number].finding is None
    assert outcomes[1].digest is outcomes[3].digest is None
    broken, missing = outcomes[1].finding, outcomes[3].finding
    assert broken is not None
    assert broken.code in ("image-truncated", "image-corrupt")
    assert broken.file == str(paths[1])
    assert missing is not None
    assert missing.code == "image-missing"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_no_files_need_no_worker(num_workers: int) -> None:
    assert decode_all([], num_workers=num_workers) == []


def test_the_limit_of_pixels_reaches_the_workers(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    assert codes(decode_all([tmp_path / "a.png"], num_workers=1, max_pixels=399)) == [
        "image-too-large"
    ]
    assert codes(decode_all([tmp_path / "a.png"], num_workers=1, max_pixels=400)) == [None]


def test_a_file_that_kills_its_worker_is_named_and_costs_no_other(
    tmp_path: Path, decoder: ModuleType
) -> None:
    names = [f"good_{i}" for i in range(40)]
    names[5], names[6], names[39] = "kill_a", "exit_b", "kill_c"
    paths = files(tmp_path, *names)
    calls: list[None] = []
    outcomes = decode_all(
        paths, num_workers=2, decode=decoder.decode, on_image=lambda: calls.append(None)
    )
    found = {index: code for index, code in enumerate(codes(outcomes)) if code}
    assert found == dict.fromkeys((5, 6, 39), "image-crashes")
    assert len(calls) == 40
    assert "It was ended by signal 9." in str(outcomes[5].finding)
    assert "It ended with status 3." in str(outcomes[6].finding)
    assert str(paths[5]) in str(outcomes[5].finding)


def test_a_file_that_hangs_is_named(tmp_path: Path, decoder: ModuleType) -> None:
    paths = files(tmp_path, "good_1", "hang_1", "good_2", "good_3")
    start = time.monotonic()
    outcomes = decode_all(paths, num_workers=1, max_seconds=1.0, decode=decoder.decode)
    assert codes(outcomes) == [None, "image-crashes", None, None]
    assert "It did not answer in time." in str(outcomes[1].finding)
    assert time.monotonic() - start < 60
    assert not any(is_running(int(mark.stem)) for mark in tmp_path.glob("*.pid"))


def test_an_innocent_file_of_a_killed_worker_gets_a_second_try(
    tmp_path: Path, decoder: ModuleType
) -> None:
    paths = files(tmp_path, "good_1", "once_1", "good_2")
    outcomes = decode_all(paths, num_workers=1, decode=decoder.decode)
    assert codes(outcomes) == [None, None, None]
    assert (tmp_path / "once_1.tried").exists()


def test_memory_that_does_not_suffice_is_a_finding(tmp_path: Path, decoder: ModuleType) -> None:
    (path,) = files(tmp_path, "memory_1")
    outcome = examine(path, 1, decoder.decode)
    assert codes([outcome]) == ["image-crashes"]
    assert "memory" in str(outcome.finding)


def test_a_file_that_vanishes_after_decoding_is_a_finding(tmp_path: Path) -> None:
    def decode(path: Path, max_pixels: int) -> np.ndarray:
        path.unlink()
        return np.zeros((1, 1, 3), dtype=np.uint8)

    (path,) = files(tmp_path, "a.jpg")
    assert codes([examine(path, 1, decode)]) == ["image-unreadable"]


def test_workers_that_cannot_start_are_an_error_not_a_finding(
    tmp_path: Path, decoder: ModuleType
) -> None:
    paths = files(tmp_path, "good_1")
    (tmp_path / "code" / "fatal_decoder.py").write_text("raise SystemExit(7)")
    with pytest.raises(RankdetError, match=r"did not start.*--workers 0"):
        decode_all(paths, num_workers=1, decode=decoder.decode)


SCRIPT = """
import functools, sys
from rankdet import cli
from rankdet.data.checking import check
import fatal_decoder

if __name__ == "__main__":
    check.check = functools.partial(check.check, decode=fatal_decoder.decode)
    cli.main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_quickly_and_leaves_no_process(tmp_path: Path, decoder: ModuleType) -> None:
    data = tmp_path / "data"
    (data / "annotations").mkdir(parents=True)
    (data / "train").mkdir()
    entries = []
    for number in range(2):
        name = f"hang_{number}.png"
        Image.new("RGB", (20, 20)).save(data / "train" / name)
        entries.append({"id": number + 1, "file_name": name, "width": 20, "height": 20})
    content = {
        "images": entries,
        "annotations": [],
        "categories": [{"id": 1, "name": "thing"}],
    }
    (data / "annotations" / "instances_train.json").write_text(json.dumps(content))
    script = tmp_path / "code" / "main.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), "check", str(data), "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(list((data / "train").glob("*.pid"))) < 2 and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    start = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    output, errors = process.communicate(timeout=30)
    assert time.monotonic() - start < 10
    assert process.returncode == 130
    assert "Traceback" not in output + errors
    pids = [int(mark.stem) for mark in (data / "train").glob("*.pid")]
    assert len(pids) == 2
    while any(is_running(pid) for pid in pids) and time.monotonic() < start + 10:
        time.sleep(0.05)
    assert not any(is_running(pid) for pid in pids)
