"""`rankdet demo`: what is handed on, what a signal leads to, and `make demo`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rankdet import cli
from rankdet.recipes import recipe

ROOT = Path(__file__).parent.parent.parent


def invoke(*arguments: str) -> Result:
    """The command's result, on a terminal wide enough that no message is wrapped."""
    return CliRunner().invoke(
        cli.app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


def record(
    monkeypatch: pytest.MonkeyPatch, answer: int | BaseException = 0
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The calls that a stand-in for the workflow received."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def stand_in_function(*args: Any, **kwargs: Any) -> int:
        calls.append((args, kwargs))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    stand_in = types.ModuleType("rankdet.workflows.demo")
    stand_in.demo = stand_in_function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rankdet.workflows.demo", stand_in)
    monkeypatch.setattr("rankdet.workflows.demo", stand_in, raising=False)
    return calls


def test_without_options_it_runs_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record(monkeypatch)
    result = invoke("demo")
    assert result.exit_code == 0, result.output
    options = {"config": recipe("demo"), "compare": [], "device": None, "record": None}
    assert calls == [((Path("runs/demo"),), options)]
    assert "some minutes" in result.stderr
    assert "Loading PyTorch" in result.stderr  # the first thing to wait for, in silence


def test_options_are_handed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = record(monkeypatch)
    compare = ("--compare", "focal, ohem,auc,")
    others = ("--device", "cpu", "--json", "numbers.json")
    result = invoke("demo", "--out", str(tmp_path), "--seed", "3", *compare, *others)
    assert result.exit_code == 0, result.output
    ((args, options),) = calls
    assert args == (tmp_path,)
    assert options == {
        "config": replace(recipe("demo"), seed=3),
        "compare": ["focal", "ohem", "auc"],
        "device": "cpu",
        "record": Path("numbers.json"),
    }


def test_an_unknown_loss_is_named_with_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record(monkeypatch)
    result = invoke("demo", "--compare", "auc,focall")
    assert result.exit_code == 2
    text = " ".join(result.output.split())
    assert "--compare: 'focall': expected losses out of ap, auc, focal, ohem, ghm" in text
    assert "Did you mean 'focal'?" in text
    assert calls == []


@pytest.mark.parametrize("answer", [130, 143, 129, KeyboardInterrupt()])
def test_a_signal_is_the_status_and_it_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, answer: int | BaseException
) -> None:
    record(monkeypatch, answer)
    result = invoke("demo", "--out", "my runs", "--compare", "auc", "--seed", "2")
    assert result.exit_code == (answer if isinstance(answer, int) else 130)
    again = "rankdet demo --out 'my runs' --compare auc --seed 2"
    assert f"The demo is not finished. Go on with it: {again}\n" in result.stderr


def test_what_is_said_is_that_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch)
    assert "not finished" not in invoke("demo").output


def test_a_wrong_device_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = record(monkeypatch)
    result = invoke("demo", "--device", "tpu")
    assert result.exit_code == 2
    assert "expected cpu, cuda or cuda:N, got 'tpu'" in result.output
    assert calls == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_demo_sets_up_and_calls_the_command() -> None:
    result = subprocess.run(
        ["make", "--no-print-directory", "-n", "demo", "OUT=runs/other"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == ".venv/bin/rankdet demo --out runs/other"
