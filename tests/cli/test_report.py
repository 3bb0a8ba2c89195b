"""`rankdet report`: where the page goes, what is printed, and that torch is not needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rankdet import cli
from rankdet.errors import RankdetError


def invoke(*arguments: str | Path) -> Result:
    """The command's result, on a terminal wide enough that no message is wrapped."""
    return CliRunner().invoke(
        cli.app, list(map(str, arguments)), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


def write_run(folder: Path, name: str = "results.json", **changes: Any) -> Path:
    """A run with the least that a results file has, and no metrics."""
    row = {"name": "cat", "num_objects": 4, "num_detections": 9, "ap50": 50.0}
    content: dict[str, Any] = {
        "rankdet_results": 1,
        "protocol": "voc",
        "metrics": {"AP": 30.25, "AP50": 50.0, "AP75": None},
        "classes": [row],
        "notes": [],
        "curves": [None],
        "data": {"path": "photos", "num_images": 3, "num_objects": 4, "fingerprint": "f"},
        "config": {"loss": {"name": "ap"}},
    }
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content | changes))
    return folder


def test_one_run_is_reported_in_its_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "photos")
    result = invoke("report", run)
    assert result.exit_code == 0, result.output
    page = run / "report" / "index.html"
    assert page.read_text(encoding="utf-8").endswith("</html>")
    first, second = result.output.splitlines()
    assert first == "photos: AP50 50.0, AP 30.2, AP75 n/a"
    assert second.startswith(f"Wrote {page}: 0.")


def test_other_results_of_a_run_get_a_page_of_their_own(tmp_path: Path) -> None:
    run = write_run(tmp_path / "photos", "results-2007_test.json")
    assert invoke("report", run / "results-2007_test.json").exit_code == 0
    assert (run / "report" / "2007_test.html").is_file()


def test_several_runs_need_a_file(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("one", "two")]
    result = invoke("report", *runs)
    assert result.exit_code == 2
    assert "expected a file for several runs" in result.output
    result = invoke("report", *runs, "--out", tmp_path / "page.html", "--title", "Both of them")
    assert result.exit_code == 0, result.output
    assert "Both of them" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert [line.partition(":")[0] for line in result.output.splitlines()[:2]] == ["one", "two"]


def test_a_foreign_file_is_replaced_only_by_force(tmp_path: Path) -> None:
    run = write_run(tmp_path / "photos")
    out = tmp_path / "page.html"
    out.write_text("mine")
    result = invoke("report", run, "--out", out)
    assert isinstance(result.exception, RankdetError)
    assert out.read_text() == "mine"
    assert invoke("report", run, "--out", out, "--force").exit_code == 0
    assert out.read_text(encoding="utf-8") != "mine"
    assert invoke("report", run, "--out", out).exit_code == 0  # ours is replaced


def test_a_run_that_cannot_be_used_leaves_the_old_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "photos")
    assert invoke("report", run).exit_code == 0
    before = (run / "report" / "index.html").read_bytes()
    write_run(run, protocol="kitti")
    result = invoke("report", run)
    assert isinstance(result.exception, RankdetError)
    assert "protocol = 'kitti'" in str(result.exception)
    assert (run / "report" / "index.html").read_bytes() == before


def test_a_folder_that_is_not_there_is_a_wrong_option(tmp_path: Path) -> None:
    assert invoke("report", tmp_path / "nothing").exit_code == 2
    assert invoke("report").exit_code == 2


@pytest.mark.parametrize("is_help", [False, True])
def test_the_command_needs_no_torch(tmp_path: Path, is_help: bool) -> None:
    argument = "--help" if is_help else str(write_run(tmp_path / "photos"))
    code = f"""
import sys
from rankdet.cli import main
sys.argv = ["rankdet", "report", {argument!r}]
try:
    main()
except SystemExit as end:
    assert not end.code
print("loaded:", *{{"torch", "torchvision", "jinja2", "matplotlib"}} & set(sys.modules))
"""
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.rpartition("loaded:")[2].split())
    assert not loaded & {"torch", "torchvision"}
    if is_help:
        assert loaded == set()
    else:
        assert "jinja2" in loaded


def test_the_back_end_of_a_notebook_is_not_needed(tmp_path: Path) -> None:
    """Jupyter hands its own on to commands; in their environment it need not be installed."""
    run = write_run(tmp_path / "photos")
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    command = [sys.executable, "-m", "rankdet", "report", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
    assert (run / "report" / "index.html").is_file()
