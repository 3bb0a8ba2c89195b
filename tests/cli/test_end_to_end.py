"""The installed program, as a user types it: data, training, evaluation, prediction."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).parent / "rankdet"
SMALL = [
    "--recipe",
    "small",
    "--size",
    "64",
    "--batch-size",
    "4",
    "--workers",
    "0",
    "--device",
    "cpu",
]

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="rankdet is not installed")


def rankdet(*arguments: object, status: int = 0, folder: Path | None = None) -> str:
    """What the program prints on either stream. folder: where it is called; None: here."""
    result = subprocess.run(
        [PROGRAM, *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert result.returncode == status, result.stdout
    return result.stdout


def test_from_data_to_pictures(tmp_path: Path) -> None:
    data, run, found = tmp_path / "shapes", tmp_path / "run", tmp_path / "found"
    rankdet("synth", data, "--format", "yolo", "--train", 8, "--val", 4, "--size", 64)
    said = rankdet("train", data, *SMALL, "--epochs", 2, "--out", run)
    assert "8 images to train on, 4 to evaluate on" in said
    assert "COCO metrics in percent: AP" in said
    again = rankdet("train", data, *SMALL, "--out", run, status=1)
    assert "there is a run already" in again
    assert "Traceback" not in again
    said = rankdet("evaluate", run, "--flip", "--workers", 0, "--device", "cpu")
    assert "triangle" in said
    results = json.loads((run / "results.json").read_text())
    assert results["protocol"] == "coco"
    assert results["data"]["num_images"] == 4
    images = data / "images" / "val"
    rankdet("predict", run, images, "--out", found, "--threshold", 0.0, "--device", "cpu")
    content = json.loads((found / "detections.json").read_text())
    assert len(content["images"]) == 4
    assert content["annotations"]
    assert len(list((found / "pictures").glob("*.jpg"))) == 4


def test_a_signal_ends_the_program_in_time_and_the_run_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["train", "synthetic", "--train-split", "train:8", "--val-split", "val:2", *SMALL]
    with subprocess.Popen(
        [PROGRAM, *options, "--epochs", "500", "--out", run], stderr=subprocess.PIPE, text=True
    ) as process:
        while not (run / "metrics.jsonl").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert time.monotonic() - start < 5
    assert "Go on with: rankdet train --resume" in said
    (checkpoint,) = (run / "checkpoints").glob("step-*")
    step = int(checkpoint.name.removeprefix("step-"))
    said = rankdet(
        "train",
        "--resume",
        "--out",
        run,
        "--device",
        "cpu",
        "--set",
        f"training.max_steps={step + 1}",
    )
    assert f"Going on after step {step} of {step + 1}" in said


def test_python_m_takes_no_modules_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("raise RuntimeError('a file of the user')")
    command = [sys.executable, "-m", "rankdet", "--version"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_folder_that_was_deleted_needs_no_modules(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", script, PROGRAM, "--version"]
    result = subprocess.run(command, cwd=gone, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("rankdet ")


@pytest.mark.parametrize(
    "command",
    [
        "train synthetic --recipe small --size 64 --batch-size 4 --train-split train:8 "
        "--val-split val:4 --epochs 1 --workers 1 --set data.hold=false --device cpu --out run",
        "reproduce interpolation --scale smoke --jobs 2 --device cpu --out out",
    ],
    ids=["workers", "trainings of an experiment"],
)
def test_files_of_the_working_folder_are_no_modules_of_its_processes(
    tmp_path: Path, command: str
) -> None:
    """Python's own `queue`, and `profile`, which torch needs, would be looked for here first."""
    for name in ("queue", "profile"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a file of the user')")
    said = [rankdet(*command.split(), folder=tmp_path)]
    said += [log.read_text() for log in tmp_path.glob("out/runs/*.log")]
    assert "a file of the user" not in "".join(said)
