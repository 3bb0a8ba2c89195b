"""The README: its tables are those of recorded runs, its paths exist. tests/docs runs its code."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path

from rankdet.bench.rows_cuda import all_rows
from rankdet.config import from_dict
from rankdet.recipes import recipe

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_tables_in_the_readme_are_made_from_their_records() -> None:
    tables = re.findall(
        r"<!-- (rankdet\.[\w.]+): (\S+) -->\n(.*?)\n?<!-- end -->", README, re.DOTALL
    )
    assert [module for module, _, _ in tables] == [
        "rankdet.workflows.demo_record",
        "rankdet.bench.tables",
        "rankdet.bench.tables_cuda",
        "rankdet.bench.step_tables",
        *["rankdet.bench.faults.tables"] * 4,
    ]
    for module, file, table in tables:
        record = json.loads((ROOT / file).read_text())
        assert table == importlib.import_module(module).markdown(record)


def test_the_recorded_demo_is_of_a_commit_and_reaches_what_is_promised() -> None:
    runs = json.loads((ROOT / "results" / "demo-cpu.json").read_text())["runs"]
    assert [run["loss"] for run in runs] == ["ap", "auc", "focal", "ohem"]
    for run in runs:
        origin = run["training"]["provenance"]
        assert re.fullmatch("[0-9a-f]{12}", origin["commit"]), "from an edited tree"
        assert origin["commit"] == runs[0]["training"]["provenance"]["commit"]
        loss = replace(recipe("demo").loss, name=run["loss"])
        assert from_dict(run["config"]) == replace(recipe("demo"), loss=loss), "the recipe changed"
    assert runs[0]["metrics"]["AP50"] >= 60


def test_the_recorded_runs_on_a_gpu_are_whole_and_found_nothing_wrong() -> None:
    losses, step = (
        json.loads((ROOT / "results" / f"{name}-cuda.json").read_text())
        for name in ("losses", "step")
    )
    for record in (losses, step):
        assert record["provenance"]["device"].startswith("cuda")
        assert not record["provenance"]["quick"]
        assert re.fullmatch("[0-9a-f]{12}", record["provenance"]["commit"]), "from an edited tree"
    assert (step["images"], step["side"], step["backbone"]) == (16, 512, "resnet50")
    assert losses["provenance"]["command"].startswith("rankdet bench losses --device cuda")
    assert losses["problems"] == []
    assert all(check["problems"] == [] for check in losses["checks"])
    expected = [(row.num_scores, row.num_positives, row.dtype) for row in all_rows(quick=False)]
    assert [(row["scores"], row["positives"], row["dtype"]) for row in losses["rows"]] == expected
    for row, planned in zip(losses["rows"], all_rows(quick=False), strict=True):
        assert (row["ap_loss_graph"]["milliseconds"] is not None) == planned.with_graphs


def test_the_pictures_in_the_readme_are_small_files() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert len(pictures) == 2
    for picture in pictures:
        assert (ROOT / picture).stat().st_size < 300_000


def test_files_that_the_readme_names_exist() -> None:
    tree = README.partition("## The tree")[2]
    for name in re.findall(r"\b([\w/-]+\.(?:py|md))\b", tree):
        assert list(ROOT.glob(f"**/{name}")), name


def test_the_number_of_spoilt_files_in_the_readme_is_the_recorded_one() -> None:
    record = json.loads((ROOT / "results" / "reliability-data.json").read_text())
    total = sum(row["tried"] for row in record["spoilt"])
    assert f"{total:,} randomly spoilt files" in " ".join(README.split())
    assert record["is_as_expected"]
    assert not record["provenance"]["quick"]
