"""The command line: answers, options handed on, and mistakes told without a traceback."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import rankdet
from rankdet import cli


def invoke(*arguments: str) -> Result:
    """The command's result, on a terminal wide enough that no message is wrapped."""
    return CliRunner().invoke(
        cli.app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


def plain(result: Result) -> str:
    """Everything that was printed, without escape sequences."""
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def record(monkeypatch: pytest.MonkeyPatch, module: str, function: str) -> list[Any]:
    """The calls, (positional, keyword) each, that a stand-in for `module.function` received."""
    calls: list[Any] = []
    stand_in = types.ModuleType(module)
    setattr(stand_in, function, lambda *args, **kwargs: calls.append((args, kwargs)))
    parent, _, name = module.rpartition(".")
    monkeypatch.setitem(sys.modules, module, stand_in)
    monkeypatch.setattr(f"{parent}.{name}", stand_in, raising=False)
    return calls


def test_help_names_every_command() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for command in ("demo", "bench", "reproduce", "--version"):
        assert command in plain(result)


def test_version() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output == f"rankdet {rankdet.__version__}\n"


def test_python_m_rankdet_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "rankdet", "--version"], capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stdout) == (0, f"rankdet {rankdet.__version__}\n")


def test_demo_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = record(monkeypatch, "rankdet.experiments.ranking_demo", "run")
    result = invoke("demo", "--out", str(tmp_path / "new"), "--seed", "3", "--steps", "7")
    assert result.exit_code == 0, result.output
    assert calls == [((tmp_path / "new",), {"seed": 3, "steps": 7})]


def test_theory_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = record(monkeypatch, "rankdet.experiments.theory", "run")
    result = invoke("reproduce", "theory", "--out", str(tmp_path), "--seed", "5")
    assert result.exit_code == 0, result.output
    assert calls == [((tmp_path,), {"seed": 5})]


def test_bench_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = record(monkeypatch, "rankdet.bench.losses", "main")
    table = tmp_path / "new" / "table.json"
    result = invoke("bench", "losses", "--quick", "--json", str(table), "--seed", "2")
    assert result.exit_code == 0, result.output
    assert calls == [((), {"quick": True, "json_file": table, "device": "cpu", "seed": 2})]
    assert table.parent.is_dir()


def test_every_listed_experiment_is_a_command() -> None:
    listed = [line.split()[0] for line in invoke("reproduce", "list").output.splitlines()]
    assert listed == list(cli.EXPERIMENTS)
    for name in listed:
        assert invoke("reproduce", name, "--help").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dmeo"], "No such command 'dmeo'"),
        (["reproduce", "table9"], "No such command 'table9'"),
        (["demo", "--step", "5x"], "--step"),
        (["demo", "--steps", "0"], "Invalid value for '--steps'"),
        (["demo", "--seed", "-1"], "Invalid value for '--seed'"),
        (["demo", "--out", __file__], "is a file"),
        (["bench", "losses", "--device", "cup"], "expected cpu, cuda or cuda:N, got 'cup'"),
        (["bench", "losses", "--device", "cuda:9999"], "'cuda:9999'"),
    ],
)
def test_a_mistake_is_told_in_words(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in plain(result)
    assert "Traceback" not in plain(result)


def test_what_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "file" / "table.json"
    table.parent.write_text("in the way")
    monkeypatch.setattr(sys, "argv", ["rankdet", "bench", "losses", "--json", str(table)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert str(table.parent) in lines[0]
