"""`rankdet reproduce`: options handed on, several experiments, tables from records, mistakes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rankdet import cli
from rankdet.errors import RankdetError, TrainingError
from rankdet.experiments import experiment as experiments
from rankdet.experiments.experiment import Experiment, Request, Stopped
from rankdet.experiments.items import EXPERIMENTS
from rankdet.experiments.results_page import PART_BEGIN, PART_END


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(
        cli.app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


class Calls:
    """Stands for the work: keeps what was asked for, writes a table, fails on demand."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Request, bool]] = []
        self.errors: dict[str, BaseException] = {}

    def __call__(self, item: Experiment, request: Request, *, is_forced: bool = False) -> Any:
        self.requests.append((item.name, request, is_forced))
        if item.name in self.errors:
            raise self.errors[item.name]
        request.out.mkdir(parents=True, exist_ok=True)
        (request.out / f"{item.name}.md").write_text(f"the table of {item.name}")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    stand_in = Calls()
    monkeypatch.setattr(experiments, "reproduce", stand_in)
    return stand_in


def test_an_experiment_hands_its_options_on(calls: Calls, tmp_path: Path) -> None:
    voc, coco, weights = (tmp_path / name for name in ("voc", "coco", "weights"))
    for folder in (voc, coco, weights):
        folder.mkdir()
    (weights / "resnet50.pth").touch()
    arguments = ["--scale", "voc320", "--voc", str(voc), "--coco", str(coco), "--jobs", "3"]
    arguments += ["--weights", str(weights), "--out", str(tmp_path / "out"), "--seed", "5"]
    arguments += [
        "--device",
        "cpu",
        "--set",
        "training.epochs=2",
        "--force",
        "--rows",
        "0.5",
        "--rows",
        "1",
    ]
    result = invoke("reproduce", "delta", *arguments)
    assert result.exit_code == 0, result.output
    request = Request(
        scale="voc320",
        out=tmp_path / "out",
        voc=str(voc),
        coco=str(coco),
        weights=str(weights),
        device="cpu",
        seed=5,
        jobs=3,
        changes=("training.epochs=2",),
        rows=("0.5", "1"),
    )
    assert calls.requests == [("delta", request, True)]
    assert "the table of delta" in result.output


def test_the_usual_scale_is_smoke_and_each_has_a_folder(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke("reproduce", "sigmoid").exit_code == 0
    assert invoke("reproduce", "sigmoid", "--scale", "tiny").exit_code == 0
    requests = [request for _, request, _ in calls.requests]
    assert [(request.scale, request.out) for request in requests] == [
        ("smoke", Path("runs/reproduce-smoke")),
        ("tiny", Path("runs/reproduce-tiny")),
    ]


def test_all_runs_every_experiment_and_says_which_failed(calls: Calls, tmp_path: Path) -> None:
    calls.errors["delta"] = TrainingError("the loss is not finite")
    result = invoke("reproduce", "all", "--out", str(tmp_path))
    assert [name for name, _, _ in calls.requests] == [item.name for item in EXPERIMENTS]
    assert "error: delta: the loss is not finite" in result.output
    assert isinstance(result.exception, RankdetError)
    assert f"1 of {len(EXPERIMENTS)} failed: delta." in str(result.exception)


@pytest.mark.parametrize(("stop", "status"), [(Stopped(143), 143), (KeyboardInterrupt(), 130)])
def test_a_signal_says_how_to_go_on(
    calls: Calls, tmp_path: Path, stop: BaseException, status: int
) -> None:
    calls.errors["delta"] = stop
    result = invoke("reproduce", "delta", "--out", str(tmp_path))
    assert result.exit_code == status
    assert "delta is not finished. Go on with it: rankdet" in result.output


def test_a_table_is_made_again_from_its_json(tmp_path: Path) -> None:
    record = {"rankdet_reproduction": 1, "item": "delta", "labels": [], "plan": ["1"], "rows": {}}
    request = Request("smoke", tmp_path).settings()
    text = json.dumps({**record, "request": request})
    (tmp_path / "delta.json").write_text(text)
    result = invoke("reproduce", "table", str(tmp_path / "delta.json"))
    assert result.exit_code == 0, result.output
    assert f"Wrote {tmp_path / 'delta.md'}." in result.output
    assert "Not run yet: 1." in (tmp_path / "delta.md").read_text()
    assert (tmp_path / "delta.png").is_file()


def test_a_copy_of_a_record_does_not_replace_the_table_of_another(tmp_path: Path) -> None:
    record = {"rankdet_reproduction": 1, "item": "delta", "labels": [], "plan": ["1"], "rows": {}}
    text = json.dumps({**record, "request": Request("smoke", tmp_path).settings()})
    (tmp_path / "copy.json").write_text(text)
    result = invoke("reproduce", "table", str(tmp_path / "copy.json"))
    assert "copy.json: this is a record of delta: expected the name" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["copy.json"]


def test_a_table_does_not_replace_files_of_others(tmp_path: Path) -> None:
    record = {"rankdet_reproduction": 1, "item": "delta", "labels": [], "plan": ["1"], "rows": {}}
    text = json.dumps({**record, "request": Request("smoke", tmp_path).settings()})
    (tmp_path / "delta.json").write_text(text)
    (tmp_path / "delta.md").write_text("mine")
    arguments = ("reproduce", "table", str(tmp_path / "delta.json"))
    result = invoke(*arguments)
    assert "delta.md: the file exists and was not written by" in str(result.exception)
    assert (tmp_path / "delta.md").read_text() == "mine"
    assert invoke(*arguments, "--force").exit_code == 0


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A folder with a record of delta at voc320, of which no row was run yet."""
    folder = tmp_path / "voc320"
    folder.mkdir()
    record = {"rankdet_reproduction": 1, "item": "delta", "labels": [], "plan": ["1"], "rows": {}}
    text = json.dumps({**record, "request": Request("voc320", tmp_path).settings()})
    (folder / "delta.json").write_text(text)
    return folder


def test_a_page_is_made_of_a_folder(records: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"mine\n{PART_BEGIN}\n{PART_END}\nmine, too\n")
    page, figure = tmp_path / "docs" / "page.md", tmp_path / "docs/pictures/voc320/delta.png"
    arguments = ["reproduce", "page", str(records), "--out", str(page), "--readme", str(readme)]
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    for file in (page, figure, readme):
        assert f"Wrote {file}." in result.output
    assert "](pictures/voc320/delta.png)" in page.read_text()
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert figure.stat().st_size < 50_000
    part = "Nothing was run at the scale `voc320` yet."
    assert readme.read_text() == f"mine\n{PART_BEGIN}\n{part}\n{PART_END}\nmine, too\n"
    assert invoke(*arguments).exit_code == 0  # all are our own now


@pytest.mark.parametrize("name", ["page.md", "pictures/voc320/delta.png"])
def test_a_page_does_not_replace_files_of_others(records: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / "docs" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    arguments = ["reproduce", "page", str(records), "--out", str(tmp_path / "docs" / "page.md")]
    result = invoke(*arguments)
    assert f"{file.name}: the file exists and was not written by" in str(result.exception)
    assert [path for path in (tmp_path / "docs").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "mine"
    assert invoke(*arguments, "--force").exit_code == 0


def test_a_folder_without_records_empties_no_page(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    readme = tmp_path / "README.md"
    readme.write_text(f"{PART_BEGIN}\nnumbers\n{PART_END}\n")
    arguments = ["--out", str(tmp_path / "page.md"), "--readme", str(readme)]
    result = invoke("reproduce", "page", str(tmp_path / "photos"), *arguments)
    assert "photos: there is no record in it" in str(result.exception)
    assert "numbers" in readme.read_text()
    assert not (tmp_path / "page.md").exists()


def test_a_readme_without_marks_is_told_before_anything_is_written(
    records: Path, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("mine")
    arguments = ["--out", str(tmp_path / "page.md"), "--readme", str(tmp_path / "README.md")]
    result = invoke("reproduce", "page", str(records), *arguments)
    assert "README.md: the lines <!-- results: " in str(result.exception)
    assert not (tmp_path / "page.md").exists()
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_page_is_made_without_torch(records: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from rankdet.cli import app\n"
        f"app(['reproduce', 'page', {str(records)!r}, '--out', {str(tmp_path / 'page.md')!r}],"
        " standalone_mode=False)\n"
        "assert 'matplotlib' in sys.modules and 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "dleta"], "No such command 'dleta'. Did you mean 'delta'?"),
        (["reproduce", "delta", "--scale", "huge"], "'smoke', 'tiny', 'voc320', 'paper'"),
        (["reproduce", "delta", "--voc", "no-such-folder"], "no-such-folder"),
        (["reproduce", "delta", "--jobs", "0"], "Invalid value for '--jobs'"),
        (["reproduce", "delta", "--device", "cup"], "expected cpu, cuda or cuda:N"),
        (["reproduce", "table", "no-such-file.json"], "no-such-file.json"),
        (["reproduce", "page", "no-such-folder", "--out", "page.md"], "no-such-folder"),
        (["reproduce", "page", "."], "Missing option '--out'"),
    ],
)
def test_a_wrong_option_is_told(arguments: list[str], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in re.sub(r"[│\s]+", " ", result.output)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["delta", "--scale", "paper"], "--scale paper needs --voc FOLDER. Unpack the archives"),
        (["losses-coco", "--scale", "paper"], "--scale paper needs --coco FOLDER"),
        (["delta", "--set", "training.epoch=3"], "training.epoch: there is no such setting"),
    ],
)
def test_what_is_missing_is_told_before_anything_starts(
    calls: Calls, arguments: list[str], words: str
) -> None:
    result = invoke("reproduce", *arguments)
    assert isinstance(result.exception, RankdetError)
    assert words in str(result.exception)
    assert calls.requests == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("delta", "Ctrl-C saves the training that runs, and the same command goes on with it."),
        ("robustness", "what a row does after its training begins again."),
        ("imbalance", "finished rows are kept, and the row that ran begins again."),
        ("memory", "finished rows are kept, and the row that ran begins again."),
        ("time-curve", "finished rows are kept, and the row that ran begins again."),
        ("all", "not used by imbalance, memory, time-curve, time-share, gradient-size."),
    ],
)
def test_the_help_says_what_is_saved_and_what_jobs_are_for(name: str, words: str) -> None:
    text = invoke("reproduce", name, "--help").output
    assert words in re.sub(r"[│\s]+", " ", text)


def test_every_experiment_has_its_own_help() -> None:
    text = invoke("reproduce", "--help").output
    for item in EXPERIMENTS:
        assert item.name in text


def test_seeds_are_told_where_an_experiment_has_none(calls: Calls, tmp_path: Path) -> None:
    result = invoke("reproduce", "memory", "--seeds", "2", "--out", str(tmp_path))
    assert result.exit_code == 0
    assert "--seeds 2 is not used: this experiment has --seed alone." in result.output
    result = invoke("reproduce", "evidence-ssd", "--seeds", "2", "--out", str(tmp_path))
    assert "is not used" not in result.output
    assert [request.seeds for _, request, _ in calls.requests] == [2, 2]


def test_a_number_of_a_record_that_is_none_is_told_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "delta.json"
    row = {"settings": {}, "result": {"metrics": {"AP": "x", "AP50": 1.0, "AP75": 1.0}}}
    record = {"rankdet_reproduction": 1, "item": "delta", "labels": [], "plan": ["1"]}
    record |= {"request": {"scale": "smoke", "seed": 0}, "rows": {"1": row}}
    file.write_text(json.dumps(record))
    result = invoke("reproduce", "table", str(file))
    assert result.exit_code == 1
    assert isinstance(result.exception, RankdetError | SystemExit)
    assert "Traceback" not in result.output


def test_a_dry_run_says_what_is_to_be_trained_and_runs_nothing(
    calls: Calls, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = invoke("reproduce", "interpolation", "--out", str(out), "--dry-run")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-1] == "2 rows to do, with 2 trainings: at most 6 steps."
    assert not calls.requests
    assert not out.exists()


def test_a_dry_run_of_all_goes_on_after_an_experiment_that_cannot_be_planned(
    calls: Calls, tmp_path: Path
) -> None:
    (tmp_path / "delta.json").write_text("{}")
    result = invoke("reproduce", "all", "--out", str(tmp_path), "--dry-run")
    assert isinstance(result.exception, RankdetError)
    assert str(result.exception) == f"1 of {len(EXPERIMENTS)} failed: delta."
    assert f"error: delta: {tmp_path / 'delta.json'}: " in result.stderr
    for item in EXPERIMENTS:
        assert item.name == "delta" or f"{item.name}: {item.summary}" in result.stdout
    assert not calls.requests
    alone = invoke("reproduce", "delta", "--out", str(tmp_path), "--dry-run")
    assert isinstance(alone.exception, RankdetError)
    assert "delta.json" in str(alone.exception)


def test_a_dry_run_refuses_a_device_that_there_is_none_of(tmp_path: Path) -> None:
    result = invoke("reproduce", "delta", "--device", "bogus", "--out", str(tmp_path), "--dry-run")
    assert result.exit_code == 2
    assert "--device" in result.output
