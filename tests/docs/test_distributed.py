"""What docs/distributed.md says of several processes, tried with several processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rankdet.losses import BACKGROUND, ap_loss

PAGE = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text(encoding="utf-8")

COUNT = """
import torch.distributed as dist

numbers = 0
all_reduce = dist.all_reduce


def count(tensor, *arguments, **options):
    global numbers
    numbers += tensor.numel()
    return all_reduce(tensor, *arguments, **options)


dist.all_reduce = count
"""
SAY = """
print(f"{numbers} numbers\\n", end="")
"""


def script() -> str:
    """The block of the page that is to be saved as ranking.py."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    return next(block for block in blocks if "init_process_group" in block)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What two processes print, sorted; each also says how many numbers it has sent."""
    file = tmp_path_factory.mktemp("docs") / "ranking.py"
    file.write_text(COUNT + script() + SAY)
    result = run(file)
    # A thread of gloo that meets the end of Python aborts a process now and then, after its work.
    for _ in range(2):
        if "terminate called without an active exception" in result.stderr:
            result = run(file)
    assert result.returncode == 0, result.stderr
    return sorted(result.stdout.splitlines())


def run(file: Path) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    return subprocess.run(
        [*launcher, str(file)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_processes_rank_together_as_one(lines: list[str]) -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 500, 3)
    labels = torch.full((4, 500), BACKGROUND)
    labels[:, :5] = 1
    logits[:, :5, 1] += 10
    logits[2:] += 20
    whole = ap_loss(logits, labels).item()
    assert whole > 0.4
    assert lines[2:] == [f"process {rank}: alone 0.00, together {whole:.2f}" for rank in range(2)]


def test_what_travels_is_what_the_page_says(lines: list[str]) -> None:
    assert r"5 \left|P\right| + W + 4" in PAGE
    assert lines[:2] == [f"{5 * 20 + 2 + 4} numbers"] * 2
