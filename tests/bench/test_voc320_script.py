"""benchmarks/voc320.sh: its chains are commands that exist, run in order, and stop in time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankdet import cli

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "voc320.sh"
CHAINS = re.findall(r"^chain_(\w+)\(\)", SCRIPT.read_text(), flags=re.MULTILINE)

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")

# Stands for rankdet: keeps its arguments, and fails if the item is the one of $FAILING.
STAND_IN = """
import json, os, sys
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
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

    def __call__(self, *chains: str, minutes: int = 1, **variables: str) -> tuple[int, str]:
        places = [str(self.folder / name) for name in ("voc", "weights", "out")]
        ended = subprocess.run(
            ["bash", str(SCRIPT), *places, str(minutes), *chains],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "CALLS": str(self.calls_file),
                "RANKDET": f"{sys.executable} {self.folder / 'stand_in.py'}",
                "SCALE": "smoke",
                "DEVICE": "cpu",
                **variables,
            },
            timeout=120,
        )
        return ended.returncode, ended.stdout + ended.stderr

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
    assert re.fullmatch(r"ssd: not finished; .*\ntrials: finished\n", said)
    items = [call[1] for call in script.calls]
    assert sorted(items) == ["rates-ssd", "rates-ssd-long", "trials", "trials-long"]


def test_when_the_time_is_over_nothing_begins(script: Script) -> None:
    status, said = script("trials", minutes=0)
    assert (status, said) == (1, "trials: not finished; trials: the time is over.\n")
    assert script.calls == []


def test_an_unknown_chain_is_named_before_anything_begins(script: Script) -> None:
    status, said = script("trials", "trails")
    assert (status, said) == (2, "voc320.sh: there is no chain 'trails'.\n")
    assert script.calls == []
