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
from rankdet.errors import RankdetError


def invoke(*arguments: str) -> Result:
    """The command's result, on a terminal wide enough that no message is wrapped."""
    return CliRunner().invoke(
        cli.app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


def plain(result: Result) -> str:
    """Everything that was printed, without escape sequences."""
    return re.sub(r"\x1b\[[0-9;]*m", "", result.output)


def record(
    monkeypatch: pytest.MonkeyPatch, module: str, function: str, answer: object = None
) -> list[Any]:
    """The calls, (positional, keyword) each, that a stand-in for `module.function` received."""
    calls: list[Any] = []

    def stand_in_function(*args: Any, **kwargs: Any) -> object:
        calls.append((args, kwargs))
        return answer

    stand_in = types.ModuleType(module)
    setattr(stand_in, function, stand_in_function)
    parent, _, name = module.rpartition(".")
    monkeypatch.setitem(sys.modules, module, stand_in)
    monkeypatch.setattr(f"{parent}.{name}", stand_in, raising=False)
    return calls


def test_help_names_every_command() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    commands = ("demo", "check", "view", "synth", "train", "evaluate", "predict", "recipes")
    for command in (*commands, "robustness", "bench", "reproduce", "--version"):
        assert command in plain(result)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["reproduce", "trials", "--out", ""], "word 4 of the command after --out is empty"),
        (["check", ""], "word 2 of the command after check is empty"),
        ([""], "word 1 of the command is empty"),
    ],
)
def test_an_empty_word_is_no_folder(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["rankdet", *words])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_version() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.output == f"rankdet {rankdet.__version__}\n"


def test_python_m_rankdet_is_the_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "rankdet", "--version"], capture_output=True, text=True, timeout=120
    )
    assert (result.returncode, result.stdout) == (0, f"rankdet {rankdet.__version__}\n")


def test_ranking_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = record(monkeypatch, "rankdet.experiments.ranking", "run")
    out = str(tmp_path / "new")
    result = invoke("reproduce", "ranking", "--out", out, "--seed", "3", "--steps", "7")
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


@pytest.mark.parametrize(("is_as_expected", "status"), [(True, 0), (False, 1)])
def test_bench_reliability_hands_its_options_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_as_expected: bool, status: int
) -> None:
    calls = record(monkeypatch, "rankdet.bench.reliability", "main", is_as_expected)
    counts = tmp_path / "new" / "counts.json"
    options = ("--seed", "2", "--only", "data", "--only", "kill")
    result = invoke("bench", "reliability", "--quick", "--json", str(counts), *options)
    assert result.exit_code == status, result.output
    wanted = {"quick": True, "json_file": counts, "seed": 2, "only": ("data", "kill")}
    assert calls == [((), wanted)]
    assert counts.parent.is_dir()


def test_synth_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = record(monkeypatch, "rankdet.data.write", "synthesise")
    out = tmp_path / "a folder"
    options = ("--format", "voc", "--train", "3", "--val", "2", "--seed", "4", "--size", "96")
    result = invoke("synth", str(out), *options)
    assert result.exit_code == 0, result.output
    (((folder, format), keywords),) = calls
    assert (folder, format) == (out, "voc")
    assert {name: keywords[name] for name in ("train", "val", "seed", "size")} == {
        "train": 3,
        "val": 2,
        "seed": 4,
        "size": 96,
    }
    assert result.stdout.splitlines() == [
        f"Wrote {out}: 3 training and 2 validation images as VOC.",
        f"Next, try: rankdet check '{out}'",
    ]


@pytest.mark.parametrize("format", list(cli.Format))
def test_what_synth_writes_passes_the_check(tmp_path: Path, format: str) -> None:
    out = tmp_path / "shapes"
    options = ("--format", format, "--train", "3", "--val", "2")
    assert invoke("synth", str(out), *options).exit_code == 0
    result = invoke("check", str(out), "--workers", "0")
    assert result.exit_code == 0, result.output
    assert plain(result).splitlines()[-1] == "No faults. 5 images can be used."


def test_synth_never_writes_into_a_folder_in_use(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["rankdet", "synth", str(tmp_path), "--train", "1"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_ctrl_c_before_anything_has_begun_is_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 130
    assert capsys.readouterr().err == ""


def test_the_options_of_synth_are_those_of_the_embedded_set() -> None:
    from rankdet.data.reading import formats
    from rankdet.data.synthetic import dataset as synthetic

    assert tuple(cli.Format) == formats.FORMATS
    text = plain(invoke("synth", "--help"))
    assert f"{synthetic.MIN_SIZE}<=x<={synthetic.MAX_SIZE}" in text
    for default in (synthetic.DEFAULT_SIZE, *synthetic.DEFAULT_LENGTHS.values()):
        assert f"[default: {default}]" in text


def test_synth_says_what_yolo_cannot_hold() -> None:
    text = " ".join(plain(invoke("synth", "--help")).split())
    assert "YOLO has no mark for ignored objects" in text


@pytest.mark.parametrize("command", ["check", "view"])
def test_help_shows_examples(command: str) -> None:
    assert f"rankdet {command} VOCdevkit --split" in plain(invoke(command, "--help"))


def test_every_listed_experiment_is_a_command() -> None:
    lines = invoke("reproduce", "list").output.splitlines()
    listed = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert listed == list(cli.EXPERIMENTS)
    for name in (*listed, "all", "table"):
        assert invoke("reproduce", name, "--help").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dmeo"], "No such command 'dmeo'"),
        (["reproduce", "table9"], "No such command 'table9'"),
        (["demo", "--step", "5"], "--step"),
        (["reproduce", "ranking", "--steps", "0"], "Invalid value for '--steps'"),
        (["demo", "--seed", "-1"], "Invalid value for '--seed'"),
        (["demo", "--out", __file__], "is a file"),
        (["synth", "shapes", "--format", "xml"], "'voc', 'coco', 'yolo'"),
        (["synth", "shapes", "--size", "10"], "Invalid value for '--size'"),
        (["synth", "shapes", "--train", "0", "--val", "0"], "at least one image"),
        (["synth", __file__], "is a file"),
        (["view", "data", "--out", "page.html", "--count", "0"], "Invalid value for '--count'"),
        (["bench", "losses", "--device", "cup"], "expected cpu, cuda or cuda:N, got 'cup'"),
        (["bench", "losses", "--device", "cuda:9999"], "'cuda:9999'"),
    ],
)
def test_a_mistake_is_told_in_words(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in plain(result)
    assert "Traceback" not in plain(result)


def test_a_mistake_in_the_data_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["rankdet", "check", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"error: {tmp_path / 'nowhere'}: there is no such file or folder. Check the path.\n"
    )


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


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_output_is_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: str
) -> None:
    """Python has None for a stream that was closed before the start, as by `>&-` in a shell."""
    data = tmp_path / "data"
    assert invoke("synth", str(data), "--train", "1", "--val", "0").exit_code == 0
    report = tmp_path / "report.json"
    command = ["rankdet", "check", str(data), "--workers", "0", "--json", str(report)]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(sys, stream, None)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    assert report.exists()


@pytest.mark.parametrize("command", ["losses", "reliability"])
def test_a_record_does_not_replace_a_file_of_somebody_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    calls = record(monkeypatch, f"rankdet.bench.{command}", "main")
    table = tmp_path / "table.json"
    table.write_text("mine")
    result = invoke("bench", command, "--quick", "--json", str(table))
    assert isinstance(result.exception, RankdetError)
    assert "was not written by this command" in str(result.exception)
    assert calls == []
    table.write_text('{\n  "provenance": {}}')
    assert not isinstance(
        invoke("bench", command, "--quick", "--json", str(table)).exception, RankdetError
    )
    assert len(calls) == 1


def test_only_a_training_is_for_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    refused = invoke("check", "nowhere").exception
    assert isinstance(refused, RankdetError)
    assert "WORLD_SIZE = 2: `rankdet check` runs in one process" in str(refused)
    assert "torchrun" not in str(invoke("train", "nowhere", "--loss", "none").exception)
    monkeypatch.delenv("RANK")  # some batch systems set the one without the other
    assert "torchrun" not in str(invoke("check", "nowhere").exception)
