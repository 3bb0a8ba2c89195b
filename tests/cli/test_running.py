"""`rankdet evaluate` and `predict`: what is handed on."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rankdet import cli
from rankdet.config import Config, EvaluationConfig, from_dict
from rankdet.errors import ConfigError


def invoke(*arguments: str) -> Result:
    """The command's result, on a terminal wide enough that no message is wrapped."""
    return CliRunner().invoke(
        cli.app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


def record(monkeypatch: pytest.MonkeyPatch, name: str) -> list[Any]:
    """The calls, (positional, keyword) each, that a stand-in for workflows.name.name received."""
    calls: list[Any] = []
    stand_in = types.ModuleType(f"rankdet.workflows.{name}")
    setattr(stand_in, name, lambda *args, **kwargs: calls.append((args, kwargs)))
    monkeypatch.setitem(sys.modules, f"rankdet.workflows.{name}", stand_in)
    monkeypatch.setattr(f"rankdet.workflows.{name}", stand_in, raising=False)
    return calls


def test_evaluate_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = record(monkeypatch, "evaluate")
    monkeypatch.chdir(tmp_path)
    result = invoke(
        *("evaluate", str(tmp_path), "photos", "--split", "a+b", "--checkpoint", "last"),
        *("--device", "cpu", "--out", "x.json", "--submission", "upload", "--force"),
    )
    assert result.exit_code == 0, result.output
    (((run,), options),) = calls
    assert run == tmp_path
    del options["changes"]
    assert options == {
        "data": str(tmp_path / "photos"),
        "split": "a+b",
        "checkpoint": "last",
        "out": Path("x.json"),
        "submission": Path("upload"),
        "device": "cpu",
        "is_forced": True,
    }


def test_evaluate_without_options_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = record(monkeypatch, "evaluate")
    assert invoke("evaluate", str(tmp_path)).exit_code == 0
    options = calls[0][1]
    stored = Config(evaluation=EvaluationConfig(fixed_size=160, every=3))
    assert options.pop("changes")(stored) == stored
    assert options == {
        "data": None,
        "split": None,
        "checkpoint": "best",
        "out": None,
        "submission": None,
        "device": None,
        "is_forced": False,
    }


FIXED = {"fixed_size": 160}


@pytest.mark.parametrize(
    ("options", "stored", "expected"),
    [
        (["--protocol", "coco"], {}, {"protocol": "coco"}),
        (["--flip"], FIXED, {"fixed_size": 160, "flip": True}),
        (["--batch-size", "3"], {}, {"batch_size": 3}),
        (["--no-pictures"], FIXED, {"fixed_size": 160, "pictures": False}),
        (["--scales", "600,400, 500"], FIXED, {"scales": [400, 500, 600]}),
        (["--longest", "2000"], FIXED, {"longest": 2000}),
        (["--shorter", "500"], FIXED, {"shorter": 500, "longest": 833}),
        (["--shorter", "500"], {"scales": [400]}, {"shorter": 500, "longest": 833}),
        (["--shorter", "900", "--longest", "900"], {}, {"shorter": 900, "longest": 900}),
        (
            ["--shorter", "500", "--scales", "400"],
            {},
            {"shorter": 500, "longest": 833, "scales": [400]},
        ),
        (["--set", "evaluation.nms_iou=0.6"], FIXED, {"fixed_size": 160, "nms_iou": 0.6}),
        (["--set", " evaluation.nms_iou=0.6"], {}, {"nms_iou": 0.6}),
        (
            ["--shorter", "500", "--set", "evaluation.longest=700"],
            {},
            {"shorter": 500, "longest": 700},
        ),
    ],
)
def test_an_option_changes_the_evaluation_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: list[str],
    stored: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    calls = record(monkeypatch, "evaluate")
    result = invoke("evaluate", str(tmp_path), *options)
    assert result.exit_code == 0, result.output
    config = calls[0][1]["changes"](from_dict({"evaluation": stored, "seed": 4}))
    assert config == from_dict({"evaluation": expected, "seed": 4})


def test_workers_are_a_setting_of_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = record(monkeypatch, "evaluate")
    assert invoke("evaluate", str(tmp_path), "--workers", "0").exit_code == 0
    assert calls[0][1]["changes"](Config()) == from_dict({"data": {"workers": 0}})


def test_other_settings_of_the_data_can_be_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = record(monkeypatch, "evaluate")
    result = invoke("evaluate", str(tmp_path), "--set", "data.max_pixels=9")
    assert result.exit_code == 0, result.output
    assert calls[0][1]["changes"](Config()) == from_dict({"data": {"max_pixels": 9}})


def test_sizes_move_along_with_each_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = record(monkeypatch, "evaluate")
    assert invoke("evaluate", str(tmp_path), "--shorter", "300").exit_code == 0
    changes = calls[0][1]["changes"]
    runs = [EvaluationConfig(shorter=600, longest=longest) for longest in (1000, 800)]
    found = [changes(Config(evaluation=evaluation)).evaluation.longest for evaluation in runs]
    assert found == [500, 400]


@pytest.mark.parametrize("setting", ["detector.backbone=resnet18", "seed=3", "training.epochs=3"])
def test_a_trained_detector_cannot_be_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str
) -> None:
    calls = record(monkeypatch, "evaluate")
    result = invoke("evaluate", str(tmp_path), "--set", setting)
    assert isinstance(result.exception, ConfigError)
    assert f"--set {setting}: expected evaluation.KEY=VALUE" in str(result.exception)
    assert calls == []


def test_predict_hands_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = record(monkeypatch, "predict")
    image = tmp_path / "a.jpg"
    image.touch()
    out = tmp_path / "out"
    result = invoke(
        *("predict", str(tmp_path), str(image), str(tmp_path), "--out", str(out)),
        *("--threshold", "0.3", "--checkpoint", "last", "--format", "csv", "--no-pictures"),
        *("--batch-size", "2", "--device", "cpu", "--force"),
    )
    assert result.exit_code == 0, result.output
    ((arguments, options),) = calls
    assert arguments == (tmp_path, [image, tmp_path], out)
    assert options == {
        "threshold": 0.3,
        "checkpoint": "last",
        "format": "csv",
        "with_pictures": False,
        "batch_size": 2,
        "device": "cpu",
        "is_forced": True,
    }


def test_predict_has_defaults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = record(monkeypatch, "predict")
    assert invoke("predict", str(tmp_path), str(tmp_path), "--out", "out").exit_code == 0
    assert calls[0][1] == {
        "threshold": None,
        "checkpoint": "best",
        "format": "both",
        "with_pictures": True,
        "batch_size": None,
        "device": None,
        "is_forced": False,
    }


HERE = str(Path(__file__).parent)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate"], "RUN"),
        (["evaluate", "nowhere"], "nowhere"),
        (["evaluate", __file__], "is a file"),
        (["evaluate", HERE, "--scales", "400,x"], "got '400,x'"),
        (["evaluate", HERE, "--scales", ""], "expected whole numbers with commas"),
        (["evaluate", HERE, "--protocol", "yolo"], "'voc', 'coco'"),
        (["evaluate", HERE, "--shorter", "1"], "Invalid value for '--shorter'"),
        (["evaluate", HERE, "--device", "cup"], "expected cpu, cuda or cuda:N"),
        (["evaluate", HERE, "--out", HERE], "is a directory"),
        (["predict", HERE, "--out", "x"], "IMAGES"),
        (["predict", HERE, HERE], "--out"),
        (["predict", HERE, "nowhere.jpg", "--out", "x"], "nowhere.jpg"),
        (["predict", HERE, HERE, "--out", "x", "--threshold", "2"], "'--threshold'"),
        (["predict", HERE, HERE, "--out", "x", "--threshold", "-0.1"], "'--threshold'"),
        (["predict", HERE, HERE, "--out", "x", "--format", "xml"], "'json', 'csv', 'both'"),
        (["predict", HERE, HERE, "--out", "x", "--device", "cup"], "expected cpu, cuda or cuda:N"),
    ],
)
def test_a_wrong_option_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    calls = record(monkeypatch, arguments[0])
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert calls == []


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_help_shows_examples(command: str) -> None:
    assert f"rankdet {command} runs/photos" in invoke(command, "--help").output
