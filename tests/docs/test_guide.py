"""What the guide in docs/ says of settings, rules, files and messages is what the code has."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rankdet import build
from rankdet.config import Config, apply_settings, to_dict
from rankdet.data.reading import parsing
from rankdet.data.reading.images import MAX_PIXELS
from rankdet.data.reading.rules import RULES
from rankdet.recipes import RECIPES, recipe, summary
from rankdet.workflows import train as training
from rankdet.workflows.parts import _accumulation_notes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def tables(text: str, *headings: str) -> list[list[str]]:
    """The cells of every row of the tables with these headings, whitespace cut off."""
    rows, is_inside = [], False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            is_inside = False
        elif tuple(cells) == headings:
            is_inside = True
        elif is_inside and not set(line) <= set("|- "):
            rows.append(cells)
    return rows


def code(cell: str) -> list[str]:
    """The words in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def flat_defaults() -> dict[str, Any]:
    settings = to_dict(Config())
    flat = {"seed": settings.pop("seed")}
    for section, values in settings.items():
        flat |= {f"{section}.{name}": value for name, value in values.items()}
    return flat


def test_every_setting_is_in_the_guide_once_with_its_default() -> None:
    rows = tables(page("training") + page("evaluation"), "setting", "default", "meaning")
    written = [(code(name)[0], yaml.safe_load(code(default)[0])) for name, default, _ in rows]
    assert len(written) == len({name for name, _ in written})
    assert dict(written) == flat_defaults()


def test_settings_of_the_evaluation_are_on_its_page_and_the_others_on_that_of_training() -> None:
    rows = tables(page("evaluation"), "setting", "default", "meaning")
    assert all(name.startswith("`evaluation.") for name, _, _ in rows)
    rows = tables(page("training"), "setting", "default", "meaning")
    assert not any(name.startswith("`evaluation.") for name, _, _ in rows)


def test_what_a_setting_can_be_is_in_its_row() -> None:
    rows = tables(page("training") + page("evaluation"), "setting", "default", "meaning")
    words = {code(name)[0]: {*code(default), *code(meaning)} for name, default, meaning in rows}
    from rankdet.config.sections import SECTIONS

    for section, kind in SECTIONS.items():
        for field in kind.__dataclass_fields__.values():
            key = f"{section}.{field.name}"
            rule = field.metadata.get("rule")
            if rule is None or key == "loss.name":  # the page on losses has a table of these
                continue
            missing = set(rule.choices) - words[key]
            assert not missing, f"{key}: {missing}"


def test_every_setting_of_every_loss_is_in_the_guide_with_its_default() -> None:
    rows = tables(page("losses"), "name", "module", "setting", "default", "meaning")
    written: dict[str, dict[str, Any]] = {}
    name = ""
    for name_cell, module, setting, default, _ in rows:
        if name_cell:
            name = code(name_cell)[0]
            assert code(module) == [build.LOSSES[name].__name__]
        of_loss = written.setdefault(name, {})
        if setting:  # one of them has none
            of_loss[code(setting)[0]] = yaml.safe_load(code(default)[0])
    assert set(written) == set(build.LOSSES)
    for name, settings in written.items():
        signature = inspect.signature(build.LOSSES[name]).parameters
        of_the_code = ("check_finite", "synchronize", "process_group")
        defaults = {key: part.default for key, part in signature.items() if key not in of_the_code}
        assert set(settings) == set(defaults), name
        for key, default in defaults.items():
            # YAML takes 1e-6 for a text. A long number is written with three digits.
            is_decimal = isinstance(default, float)
            value = float(settings[key]) if is_decimal else settings[key]
            assert value == (pytest.approx(default, rel=1e-3) if is_decimal else default), key


def test_every_rule_about_data_is_in_the_guide_with_what_is_done() -> None:
    rows = tables(page("data"), "about", "what is done", "level", "rules")
    written = [
        (rule, (outcome, level)) for _, outcome, level, names in rows for rule in code(names)
    ]
    assert len(written) == len(dict(written))
    assert dict(written) == {name: (rule.outcome, rule.level) for name, rule in RULES.items()}


def test_limits_in_the_guide_are_those_of_the_readers() -> None:
    text = " ".join(page("data").split())
    assert f"{MAX_PIXELS // 10**6} million" in text
    assert f"| XML | {parsing.MAX_XML_BYTES // 2**20} MiB, {parsing.MAX_DEPTH} levels" in text
    assert f"| JSON | {parsing.MAX_JSON_BYTES // 2**30} GiB" in text
    assert f"| YAML | {parsing.MAX_YAML_BYTES // 2**10} KiB, {parsing.MAX_DEPTH} levels" in text
    labels, lists = parsing.MAX_TEXT_BYTES // 2**20, parsing.MAX_LIST_BYTES // 2**20
    assert f"| {labels} MiB, {lists} MiB |" in text


def test_every_recipe_is_in_the_guide_with_its_summary() -> None:
    rows = tables(page("training"), "recipe", "what it is for")
    assert [(code(name)[0], text) for name, text in rows] == [
        (name, summary(name)) for name in RECIPES
    ]


def test_messages_that_the_guide_quotes_are_those_of_the_code() -> None:
    quoted = re.findall(r"```text\n(.*?)\n```", page("distributed"), re.DOTALL)
    note = _accumulation_notes(apply_settings(recipe("voc"), ["training.accumulate=2"]))
    assert quoted == list(note)


def test_numbers_of_the_reliability_benchmark_are_the_recorded_ones() -> None:
    record = json.loads((ROOT / "results" / "reliability-data.json").read_text())
    cases, spoilt = (sum(row["tried"] for row in record[name]) for name in ("cases", "spoilt"))
    attacks = len(record["attacks"])
    text = " ".join(page("robustness").split())
    sentence = f"{cases} faulty data sets, {attacks} attacks and {spoilt:,} randomly spoilt files"
    assert f"{sentence}, all as expected" in text
    assert record["is_as_expected"]
    assert not record["provenance"]["quick"]
    assert record["limits"] == {"seconds": 1.0, "megabytes": 400.0}
    assert "within a second and 400 MB" in text


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a training of two steps leaves."""
    settings = ["data.path=synthetic", "data.train_split=train:4", "data.val_split=val:2"]
    settings += ["data.size=64", "data.workers=0", "training.batch_size=2", "training.epochs=1"]
    config = apply_settings(recipe("small"), [*settings, "evaluation.fixed_size=64"])
    out = tmp_path_factory.mktemp("docs") / "run"
    training.train(out, make_config=lambda stored: config, device="cpu")
    return out


def test_every_part_of_results_json_is_in_the_guide(run: Path) -> None:
    rows = tables(page("evaluation"), "key", "content")
    written = {key: meaning for name, meaning in rows for key in code(name)}
    content = json.loads((run / "results.json").read_text())
    assert set(written) == set(content)
    for key in ("checkpoint", "data", "inference", "provenance", "training"):
        assert set(code(written[key])) == set(content[key]), key
    fields = set(code(written["classes"]))
    assert fields == set(content["classes"][0])
    assert set(code(written["curves"])) == {"score", "recall", "precision"}


def test_every_kind_of_error_is_in_the_guide(run: Path) -> None:
    rows = tables(page("evaluation"), "kind", "meaning")
    kinds = [code(name)[0] for name, _ in rows]
    errors = json.loads((run / "results.json").read_text())["errors"]
    assert {*kinds, "missed"} == set(errors["classes"][0]) - {"name"}
    assert errors["num_detections"] == sum(errors[kind] for kind in kinds)
    assert f"`iou`) and {errors['lower_iou']} (`lower_iou`)" in page("evaluation")


def test_every_metric_is_in_the_guide(run: Path) -> None:
    from rankdet.metrics.coco import METRICS

    written = {code(name)[0]: code(names) for name, _, names in _protocols()}
    metrics = json.loads((run / "results.json").read_text())["metrics"]
    assert set(written["voc"]) == set(metrics)
    assert tuple(written["coco"]) == METRICS


def _protocols() -> list[list[str]]:
    return tables(page("evaluation"), "protocol", "used for", "metrics")


def test_every_part_of_the_report_is_in_the_guide() -> None:
    rows = tables(page("evaluation"), "part", "what it shows")
    template = (ROOT / "src/rankdet/report/templates/page.html").read_text()
    assert [name for name, _ in rows] == re.findall(r"<h2[^>]*>([^<{]+)</h2>", template)


def test_every_field_of_a_step_is_in_the_guide(run: Path) -> None:
    rows = tables(page("training"), "field of a `step` row", "meaning")
    written = {key: meaning for name, meaning in rows for key in code(name)}
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    step = next(row for row in steps if row["kind"] == "step")
    assert {*written, "kind", "step", "epoch"} == set(step)
    assert set(code(written["seconds"])) == set(step["seconds"])


def test_every_file_of_a_run_is_in_the_guide(run: Path) -> None:
    rows = tables(page("training"), "file", "content")
    written = {code(name)[0]: meaning for name, meaning in rows}
    assert {path.name for path in run.iterdir()} <= {name.partition("/")[0] for name in written}
    folder = run / "checkpoints" / "step-00000002"
    assert {path.name for path in folder.iterdir()} == set(
        code(written["checkpoints/step-00001234/"])
    )
    assert {path.name for path in run.iterdir() if path.is_file()} <= set(written)
