"""benchmarks/voc320.sh: its chains are commands that exist, run in order, and stop in time."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankdet import cli

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "voc320.sh"
CHAINS = re.findall(r"^chain_(\w+)\(\)", SCRIPT.read_text(), flags=re.MULTILINE)

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

# Stands for rankdet: keeps its arguments, and fails if the item is the one of $FAILING. With
# $SAVING it waits for a signal, and takes its time to save.
STAND_IN = """
import json, os, signal, sys, time
def save(number, frame):
    time.sleep(0.5)
    open(os.environ["CALLS"] + "-saved", "a").write(sys.argv[2] + "\\n")
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, save)
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
time.sleep(60 if "SAVING" in os.environ else 0)
if message := os.environ.get("MESSAGE"):
    sys.exit(f"{message}\\n╰──────╯")
sys.exit(sys.argv[2] == os.environ.get("FAILING"))
"""


class Script:
    """Runs the script with the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls_file = folder / "calls"
        (folder / "stand_in.py").write_text(STAND_IN)
        for name in ("voc", "weights"):
            (folder / name).mkdir()

    def started(self, *chains: str, minutes: str, **variables: str) -> subprocess.Popen[str]:
        places = [str(self.folder / name) for name in ("voc", "weights", "out")]
        return subprocess.Popen(
            ["bash", str(SCRIPT), *places, minutes, *chains],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "CALLS": str(self.calls_file),
                "RANKDET": f"{sys.executable} {self.folder / 'stand_in.py'}",
                "SCALE": "smoke",
                "DEVICE": "cpu",
                **variables,
            },
        )

    def __call__(self, *chains: str, minutes: str = "1", **variables: str) -> tuple[int, str]:
        process = self.started(*chains, minutes=minutes, **variables)
        said, _ = process.communicate(timeout=120)
        return process.returncode, said

    @property
    def calls(self) -> list[list[str]]:
        if not self.calls_file.exists():
            return []
        return [json.loads(line) for line in self.calls_file.read_text().splitlines()]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


@pytest.mark.parametrize("chain", CHAINS)
def test_every_command_of_a_chain_is_one_that_rankdet_can_plan(chain: str, script: Script) -> None:
    status, said = script(chain)
    assert (status, said) == (0, f"{chain}: finished\n")
    assert script.calls
    for call in script.calls:
        planned = CliRunner().invoke(cli.app, [*call, "--dry-run"])
        assert planned.exit_code == 0, (call, planned.output, planned.exception)


def test_the_usage_names_every_chain() -> None:
    ended = subprocess.run(["bash", str(SCRIPT)], capture_output=True, text=True)
    assert ended.returncode == 2
    assert re.findall(r"^    (\w+) {2,}", ended.stderr, flags=re.MULTILINE) == CHAINS
    assert not re.search(r"^#|set -e", ended.stderr, flags=re.MULTILINE)


def test_an_item_that_fails_ends_its_chain_alone(script: Script) -> None:
    status, said = script("ssd", "trials", FAILING="rates-ssd-long")
    assert status == 1
    assert re.fullmatch(
        r"ssd: not finished \(all in .*chain-ssd\.log\);.*\ntrials: finished\n", said
    )
    items = [call[1] for call in script.calls]
    assert sorted(items) == ["rates-ssd", "rates-ssd-long", "trials", "trials-long"]


def test_when_the_time_is_over_nothing_begins(script: Script) -> None:
    status, said = script("trials", minutes="0")
    assert status == 1
    assert re.fullmatch(r"trials: not finished \(.*\); trials: the time is over\.\n", said)
    assert script.calls == []


def test_the_reason_of_a_failure_is_told_without_the_frame_around_it(script: Script) -> None:
    status, said = script("trials", MESSAGE="│ the reason │")
    assert status == 1
    assert said.endswith("; │ the reason │\n")


def test_minutes_may_begin_with_a_zero(script: Script) -> None:
    assert script("trials", minutes="08")[0] == 0


def test_an_unknown_chain_is_named_before_anything_begins(script: Script) -> None:
    status, said = script("trials", "trails")
    assert (status, said) == (2, "voc320.sh: there is no chain 'trails'.\n")
    assert script.calls == []


def test_a_chain_that_is_named_twice_is_told(script: Script) -> None:
    status, said = script("trials", "ssd", "trials")
    assert (status, said) == (2, "voc320.sh: the chain 'trials' is named twice.\n")
    assert script.calls == []


@pytest.mark.parametrize("minutes", ["1.5", "90m", "-1", ""])
def test_minutes_that_are_no_whole_number_are_told(minutes: str, script: Script) -> None:
    status, said = script("trials", minutes=minutes)
    assert (status, said) == (2, f"voc320.sh: MINUTES = '{minutes}': expected a whole number.\n")


def test_further_options_are_those_of_every_item(script: Script) -> None:
    script("trials", OPTIONS="--seeds 3 --force")
    assert [call[-3:] for call in script.calls] == [["--seeds", "3", "--force"]] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_every_training_and_each_may_save_itself(
    number: signal.Signals, script: Script
) -> None:
    process = script.started("trials", "ssd", minutes="9", SAVING="1")
    end = time.monotonic() + 30
    while len(script.calls) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "trials: not finished" in said
    saved = Path(f"{script.calls_file}-saved").read_text().split()
    assert sorted(saved) == ["rates-ssd", "trials"]


def test_a_gpu_is_shared_on_a_gpu_alone(script: Script) -> None:
    tool = script.folder / "nvidia-cuda-mps-control"
    tool.write_text(f"#!/bin/sh\necho asked >> {script.folder}/asked\n")
    tool.chmod(0o755)
    path = f"{script.folder}{os.pathsep}{os.environ['PATH']}"
    script("trials", PATH=path)
    script("alone", PATH=path, DEVICE="cuda")
    assert not (script.folder / "asked").exists()
    script("trials", PATH=path, DEVICE="cuda")
    assert (script.folder / "asked").read_text().split() == [
        "asked",
        "asked",
    ]  # to begin and to end
