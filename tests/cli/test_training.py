"""`rankdet train` and `recipes`: which setting counts, and what is handed on."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rankdet import cli
from rankdet.cli.training import config_maker
from rankdet.config import Config, LossConfig, TrainingConfig, dump, from_dict, read_config
from rankdet.errors import ConfigError
from rankdet.recipes import RECIPES, recipe, summary


def invoke(*arguments: str) -> Result:
    """The command's result, on a terminal wide enough that no message is wrapped."""
    return CliRunner().invoke(
        cli.app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


class Workflow:
    """A stand-in for rankdet.workflows.train, which keeps what it was called with."""

    def __init__(self) -> None:
        self.status = 0
        self.out: Path | None = None
        self.options: dict[str, Any] = {}

    def train(self, out: Path, *, make_config: Callable[..., Config], **options: Any) -> int:
        self.out = out
        self.make_config = make_config
        self.options = options
        return self.status

    def config(self, *arguments: str, stored: Config | None = None) -> Config:
        """The settings that the command asks for."""
        result = invoke("train", *arguments)
        assert result.exit_code == 0, result.output
        return self.make_config(stored)


@pytest.fixture
def workflow(monkeypatch: pytest.MonkeyPatch) -> Workflow:
    stand_in = Workflow()
    module = types.ModuleType("rankdet.workflows.train")
    module.train = stand_in.train  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rankdet.workflows.train", module)
    monkeypatch.setattr("rankdet.workflows.train", module, raising=False)
    return stand_in


def refusal(*arguments: str) -> str:
    result = invoke("train", *arguments)
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


def test_train_hands_its_options_on(workflow: Workflow, tmp_path: Path) -> None:
    workflow.config("synthetic", "--out", str(tmp_path), "--device", "cpu", "--force")
    assert workflow.out == tmp_path
    assert workflow.options == {"is_resumed": False, "is_forced": True, "device": "cpu"}


def test_without_options_it_is_the_default_recipe(workflow: Workflow) -> None:
    config = workflow.config("synthetic")
    assert config == from_dict({"data": {"path": "synthetic"}})
    assert workflow.out == Path("runs/train")
    assert workflow.options == {"is_resumed": False, "is_forced": False, "device": None}


@pytest.mark.parametrize("status", [0, 130, 143])
def test_the_status_is_that_of_the_signal_that_stopped_it(workflow: Workflow, status: int) -> None:
    workflow.status = status
    assert invoke("train", "synthetic").exit_code == status


@pytest.mark.parametrize(
    ("options", "section", "name", "value"),
    [
        (["--train-split", "a+b"], "data", "train_split", "a+b"),
        (["--val-split", "c"], "data", "val_split", "c"),
        (["--hold-out", "0.1"], "data", "hold_out", 0.1),
        (["--format", "yolo"], "data", "format", "yolo"),
        (["--allow-outside"], "data", "allow_outside", True),
        (["--set", "data.size=320"], "data", "size", 320),
        (["--workers", "0"], "data", "workers", 0),
        (["--detector", "retinanet"], "detector", "name", "retinanet"),
        (["--backbone", "mobilenet_v2"], "detector", "backbone", "mobilenet_v2"),
        (["--weights", "imagenet"], "detector", "weights", "imagenet"),
        (["--loss", "focal"], "loss", "name", "focal"),
        (["--batch-size", "4"], "training", "batch_size", 4),
        (["--learning-rate", "0.01"], "training", "learning_rate", 0.01),
        (["--precision", "bfloat16"], "training", "precision", "bfloat16"),
        (["--compile"], "training", "compile", True),
        (["--accumulate", "4"], "training", "accumulate", 4),
        (["--rank-locally"], "training", "rank_locally", True),
        (["--tensorboard"], "training", "tensorboard", True),
        (["--set", "loss.settings.delta=2"], "loss", "settings", {"delta": 2}),
    ],
)
def test_an_option_changes_its_setting_and_nothing_else(
    workflow: Workflow, options: list[str], section: str, name: str, value: object
) -> None:
    changes: dict[str, Any] = {"data": {"path": "synthetic"}}
    changes.setdefault(section, {})[name] = value
    assert workflow.config("synthetic", *options) == from_dict(changes)


def test_the_seed_is_a_setting(workflow: Workflow) -> None:
    assert workflow.config("synthetic", "--seed", "5").seed == 5
    assert workflow.config("synthetic", "--seed", "4294967295").seed == 2**32 - 1


def test_a_class_list_is_read(workflow: Workflow, tmp_path: Path) -> None:
    file = tmp_path / "classes.txt"
    file.write_text("cat\ndog\n")
    assert workflow.config("x", "--classes", str(file)).data.classes == ("cat", "dog")


def test_data_is_stored_with_its_whole_path(
    workflow: Workflow, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert workflow.config("photos/x").data.path == str(tmp_path / "photos" / "x")
    assert workflow.config("synthetic").data.path == "synthetic"


def test_recipe_then_file_then_options_then_set(workflow: Workflow, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("training: {batch_size: 1, momentum: 0.1, weight_decay: 0.1, epochs: 90}\n")
    config = workflow.config(
        *("synthetic", "--recipe", "voc", "--config", str(file)),
        *("--batch-size", "2", "--learning-rate", "0.5"),
        *("--set", "training.learning_rate=0.25", "--set", "training.weight_decay=0.5"),
    )
    training = config.training
    assert config.data.train_split == "2007_trainval+2012_trainval"  # the recipe's
    assert (training.momentum, training.epochs) == (0.1, 90)  # the file's
    assert training.batch_size == 2  # the option's
    assert (training.learning_rate, training.weight_decay) == (0.25, 0.5)  # by --set


def test_a_file_may_name_the_data(workflow: Workflow, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("data: {path: synthetic}\n")
    assert workflow.config("--config", str(file)).data.path == "synthetic"


def test_a_flag_that_is_not_given_leaves_the_setting_of_the_file(
    workflow: Workflow, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("data: {allow_outside: true}\ntraining: {compile: true, tensorboard: true}\n")
    config = workflow.config("synthetic", "--config", str(file))
    assert config.data.allow_outside
    assert config.training.compile
    assert config.training.tensorboard


def test_options_stay_as_they_were_given() -> None:
    options: dict[str, Any] = {"data": {"path": "synthetic", "size": 64}, "training": {"epochs": 1}}
    before = copy.deepcopy(options)
    config = config_maker("voc", None, options, [])(None)
    assert (config.data.size, config.training.epochs) == (64, 1)
    assert options == before


def test_the_recipe_s_split_to_evaluate_on_yields_to_images_held_out(workflow: Workflow) -> None:
    data = workflow.config("x", "--recipe", "voc", "--hold-out", "0.1").data
    assert (data.train_split, data.val_split) == ("2007_trainval+2012_trainval", None)
    assert data.hold_out == 0.1


def test_a_split_to_evaluate_on_that_the_user_has_named_does_not_yield(
    workflow: Workflow, tmp_path: Path
) -> None:
    text = "data.hold_out = 0.1: expected none beside data.val_split, which is mine"
    assert text in refusal("x", "--hold-out", "0.1", "--val-split", "mine")
    assert text in refusal("x", "--hold-out", "0.1", "--set", "data.val_split=mine")
    file = tmp_path / "mine.yaml"
    file.write_text("data: {val_split: mine}\n")
    assert text in refusal("x", "--config", str(file), "--hold-out", "0.1")
    assert "2007_test" in refusal("x", "--recipe", "voc", "--set", "data.hold_out=0.1")


def test_nothing_or_everything_cannot_be_held_out(workflow: Workflow) -> None:
    for share in ("0", "1", "-0.1", "10"):
        assert "a number above 0 and below 1" in refusal("x", "--hold-out", share)


def test_without_data_there_is_nothing_to_train_on(workflow: Workflow) -> None:
    assert refusal().startswith("data.path: there is no data to train on. Give DATA")


def test_the_steps_of_the_learning_rate_move_along_with_the_epochs(workflow: Workflow) -> None:
    config = workflow.config("synthetic", "--recipe", "voc", "--epochs", "16")
    assert (config.training.epochs, config.training.milestones) == (16, (11.0, 14.0))
    own = ("--set", "training.milestones=5")
    config = workflow.config("synthetic", "--recipe", "voc", "--epochs", "16", *own)
    assert config.training.milestones == (5.0,)
    config = workflow.config("synthetic", "--recipe", "voc", "--set", "training.epochs=150")
    assert config.training.milestones == (110.0, 140.0)


def test_the_sizes_of_the_evaluation_move_along(workflow: Workflow) -> None:
    config = workflow.config("synthetic", "--recipe", "small", "--size", "128")
    assert (config.data.size, config.evaluation.fixed_size) == (128, 128)
    config = workflow.config("synthetic", "--recipe", "voc", "--size", "256")  # 512, tested at 600
    assert (config.data.size, config.evaluation.fixed_size) == (256, None)
    assert (config.evaluation.shorter, config.evaluation.longest) == (300, 500)
    own = ("--set", "evaluation.shorter=400")
    config = workflow.config("synthetic", "--recipe", "voc", "--size", "256", *own)
    assert (config.evaluation.shorter, config.evaluation.longest) == (400, 500)


def test_images_that_are_too_small_for_the_network_are_told() -> None:
    text = refusal("synthetic", "--recipe", "ssd300", "--size", "128")
    assert "data.size = 128: expected at least 268 pixels for SSD with VGG-16" in text


@pytest.mark.parametrize(("size", "shorter", "longest"), [("32", 38, 62), ("8192", 8192, 8192)])
def test_the_sizes_of_the_evaluation_stay_in_their_range(
    workflow: Workflow, size: str, shorter: int, longest: int
) -> None:
    evaluation = workflow.config("synthetic", "--size", size).evaluation
    assert (evaluation.shorter, evaluation.longest) == (shorter, longest)


def test_no_side_of_the_evaluation_is_below_the_smallest(workflow: Workflow) -> None:
    # 512, tested at 500: a little less than the size
    config = workflow.config("synthetic", "--recipe", "voc-resnet101-500", "--size", "32")
    assert config.evaluation.shorter == 32


def test_a_single_epoch_is_enough(workflow: Workflow) -> None:
    assert workflow.config("synthetic", "--epochs", "1").training.epochs == 1


def test_another_loss_drops_the_settings_of_the_file(workflow: Workflow, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("loss: {name: ap, settings: {delta: 2}}\n")
    options = ("synthetic", "--config", str(file))
    assert workflow.config(*options).loss.settings == {"delta": 2}
    assert workflow.config(*options, "--loss", "focal").loss.settings == {}


def test_resuming_keeps_the_settings_of_the_run(workflow: Workflow) -> None:
    stored = Config(
        data=from_dict({"data": {"path": "/x"}}).data,
        loss=LossConfig("auc", {"delta": 3}),
        training=TrainingConfig(epochs=7, milestones=(3,)),
        seed=9,
    )
    assert workflow.config("--resume", stored=stored) == stored
    assert workflow.options["is_resumed"] is True
    config = workflow.config("--resume", "--epochs", "14", "--workers", "1", stored=stored)
    assert (config.training.epochs, config.data.workers, config.seed) == (14, 1, 9)
    assert config.training.milestones == (3.0,)  # what is past does not move


def test_resuming_with_a_recipe_makes_no_sense() -> None:
    result = invoke("train", "--resume", "--recipe", "voc")
    assert result.exit_code == 2
    assert "leave --recipe out" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--loss", "app"], "loss.name = 'app': expected one of ap, auc, focal, ohem, ghm, dr"),
        (["--loss", "app"], "Did you mean 'ap'?"),
        (["--backbone", "resnet51"], "Did you mean 'resnet50'?"),
        (["--recipe", "vok"], "recipe vok: expected one of default, quick, light, small, demo"),
        (["--set", "training.epoch=3"], "training.epoch: there is no such setting. Did you mean"),
        (["--set", "training.epochs"], "expected section.key=value"),
        (["--accumulate", "3"], "training.accumulate = 3: expected a divisor"),
        (["--learning-rate", "nan"], "training.learning_rate = nan: expected a number above 0"),
    ],
)
def test_a_wrong_setting_is_told_before_anything_is_done(
    workflow: Workflow, arguments: list[str], message: str
) -> None:
    assert message in refusal("synthetic", *arguments)
    assert workflow.out is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "Invalid value for '--epochs'"),
        (["--batch-size", "0"], "Invalid value for '--batch-size'"),
        (["--workers", "-1"], "Invalid value for '--workers'"),
        (["--workers", "257"], "Invalid value for '--workers'"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--seed", "4294967296"], "Invalid value for '--seed'"),
        (["--precision", "float16"], "'float32', 'bfloat16'"),
        (["--format", "xml"], "'voc', 'coco', 'yolo'"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--classes", "nowhere.txt"], "nowhere.txt"),
        (["--device", "cup"], "expected cpu, cuda or cuda:N, got 'cup'"),
        (["--out", __file__], "is a file"),
        (["--epoch", "3"], "--epochs"),
    ],
)
def test_a_wrong_option_is_told_in_words(
    workflow: Workflow, arguments: list[str], message: str
) -> None:
    result = invoke("train", "synthetic", *arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert workflow.out is None


def test_an_error_of_the_training_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rankdet", "train", "synthetic", "--loss", "app"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: loss.name = 'app': expected one of ap")


def test_recipes_are_listed_with_one_line_each() -> None:
    lines = invoke("recipes").output.splitlines()
    assert [line.split()[0] for line in lines] == list(RECIPES)
    width = max(map(len, RECIPES))
    assert lines == [f"{name.ljust(width)}  {summary(name)}" for name in RECIPES]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_printed_as_a_file_of_settings(tmp_path: Path, name: str) -> None:
    result = invoke("recipes", name)
    assert result.output == dump(recipe(name))
    file = tmp_path / "mine.yaml"
    file.write_text(result.output)
    assert read_config(file) == recipe(name)


def test_an_unknown_recipe_cannot_be_printed() -> None:
    result = invoke("recipes", "cocoo")
    assert isinstance(result.exception, ConfigError)
    assert "Did you mean 'coco'?" in str(result.exception)
