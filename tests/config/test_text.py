"""Settings as mappings, YAML files and words on the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankdet.config import (
    Config,
    DataConfig,
    LossConfig,
    SettingError,
    apply_settings,
    dump,
    from_dict,
    merge,
    read_config,
    to_dict,
)
from rankdet.config.yaml_text import parse_yaml, read_text
from rankdet.errors import ConfigError
from rankdet.recipes import RECIPES

TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def refusal(function: Any, *arguments: Any) -> str:
    with pytest.raises(ConfigError) as error:
        function(*arguments)
    return str(error.value)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_file(content: str | bytes) -> Path:
        file = tmp_path / "settings.yaml"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return write_file


def test_a_mapping_holds_plain_values_only() -> None:
    mapping = to_dict(Config(data=DataConfig(classes=("cat", "dog"))))
    assert json.loads(json.dumps(mapping)) == mapping
    assert mapping["data"]["classes"] == ["cat", "dog"]
    assert list(mapping) == ["data", "detector", "loss", "training", "evaluation", "seed"]


@pytest.mark.parametrize("name", RECIPES)
def test_a_mapping_gives_the_same_settings_back(name: str) -> None:
    config = RECIPES[name]()
    assert from_dict(to_dict(config)) == config


def test_settings_that_are_not_given_stay_those_of_the_base() -> None:
    base = from_dict({"training": {"epochs": 3, "batch_size": 4}, "seed": 9})
    config = merge(base, {"training": {"epochs": 5}, "data": {"size": 320}})
    assert (config.training.epochs, config.training.batch_size, config.seed) == (5, 4, 9)
    assert config.data.size == 320
    assert base.training.epochs == 3


def test_another_loss_does_not_inherit_settings() -> None:
    base = Config(loss=LossConfig("ap", {"delta": 0.5}, 2.0))
    assert merge(base, {"loss": {"name": "focal"}}).loss == LossConfig("focal", {}, 2.0)
    assert merge(base, {"loss": {"name": "ap"}}).loss.settings == {"delta": 0.5}
    assert merge(base, {"loss": {"box_weight": 3}}).loss.settings == {"delta": 0.5}
    assert merge(base, {"loss": {"settings": {}}}).loss.settings == {}


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"trainin": {}}, "trainin: there is no such setting. Did you mean 'training'?"),
        ({"epochs": 3}, "epochs: there is no such setting. Did you mean training.epochs?"),
        ({"zzz": 3}, "There are: data, detector, loss, training, evaluation, seed."),
        ({3: 3}, "3: there is no such setting."),
        ({"training": {"epoch": 3}}, "training.epoch: there is no such setting. Did you mean 'epo"),
        ({"training": {None: 3}}, "training.None: there is no such setting."),
        ({"loss": {"delta": 1}}, "Settings of the loss itself are written loss.settings.NAME."),
        ({"training": 3}, "training = 3: expected the settings of the section training."),
        ({"training": None}, "training = None: expected the settings of the section training."),
        ({"training": ["epochs"]}, "training = ['epochs']: expected the settings"),
        ({"seed": "x"}, "seed = 'x': expected a whole number"),
    ],
)
def test_a_mapping_with_a_mistake_is_refused(mapping: dict[Any, Any], message: str) -> None:
    assert message in refusal(from_dict, mapping)


@pytest.mark.parametrize("name", RECIPES)
def test_yaml_gives_the_same_settings_back(write: Any, name: str) -> None:
    config = RECIPES[name]()
    assert read_config(write(dump(config))) == config


@given(path=TEXTS, classes=st.lists(TEXTS, min_size=1, unique=True), x=NUMBERS, text=TEXTS)
def test_yaml_gives_every_text_and_number_back(
    tmp_path_factory: pytest.TempPathFactory, path: str, classes: list[str], x: float, text: str
) -> None:
    config = Config(
        data=DataConfig(path=path, classes=tuple(classes), train_split=text),
        loss=LossConfig(settings={"x": x, "text": text}, box_weight=abs(x)),
    )
    file = tmp_path_factory.mktemp("config") / "settings.yaml"
    file.write_text(dump(config), encoding="utf-8")
    assert read_config(file) == config


@pytest.mark.parametrize(
    "text", ["no", "null", "1e5", "1_0", "1:30", "2012-01-01", "0x1f", "~", ".5"]
)
def test_a_text_that_looks_like_something_else_stays_a_text(write: Any, text: str) -> None:
    config = Config(data=DataConfig(classes=(text, "cat"), val_split=text))
    assert read_config(write(dump(config))) == config


def test_lists_stand_on_one_line_and_sections_do_not() -> None:
    lines = dump(Config()).splitlines()
    assert "  anchor_ratios: [0.5, 1.0, 2.0]" in lines
    assert "data:" in lines
    assert "  size: 512" in lines


def test_a_file_may_hold_a_few_settings(write: Any) -> None:
    base = Config(seed=4)
    file = write("\ufeff# mine\ntraining:\n  learning_rate: 1e-3\n  milestones: [3, 4]\r\n")
    config = read_config(file, base)
    assert config.training.learning_rate == 0.001
    assert config.training.milestones == (3.0, 4.0)
    assert config.seed == 4
    assert parse_yaml(read_text(file), str(file))[0] == {
        "training": {"learning_rate": 0.001, "milestones": [3, 4]}
    }


@pytest.mark.parametrize("content", ["", "# nothing\n", "{}", "---\n"])
def test_an_empty_file_changes_nothing(write: Any, content: str) -> None:
    assert read_config(write(content)) == Config()


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        ("seed: 1\ntraining:\n  epochs: 0\n", 3, "training.epochs = 0: expected a whole number"),
        ("seed: 1\ntraining:\n  epoch: 1\n", 3, "training.epoch: there is no such setting. Did"),
        ("\n\ntrain: {}\n", 3, "train: there is no such setting"),
        ("training: 3\n", 1, "training = 3: expected the settings"),
        (
            "loss:\n  settings:\n    delta: .nan\n",
            3,
            "loss.settings.delta = nan: expected a finite",
        ),
        ("data:\n  train_split: 2012\n", 2, "data.train_split = 2012: expected a text"),
        ("data:\n  classes: [yes, no]\n", 2, "data.classes = [True, False]: expected"),
        ("training:\n  epochs: 1\n  epochs: 2\n", 3, "the key 'epochs' occurs twice"),
        ("seed: 1\nseed: 1\n", 2, "the key 'seed' occurs twice"),
        ("? yes\n: 1\n? true\n: 2\n", 3, "the key True occurs twice"),
        ("data:\n\tsize: 3\n", 2, "this is not valid YAML"),
        ("data: {size: 3\n", 2, "this is not valid YAML"),
        ("a: b: c\n", 1, "this is not valid YAML"),
        ("seed: 1\n---\nseed: 2\n", 2, "this is not valid YAML"),
        ("seed: !!python/object/apply:os.getcwd []\n", 1, "tags and aliases are not allowed"),
        ("seed: !!int 3\n", 1, "tags and aliases are not allowed"),
        ("data: &a {}\nloss: *a\n", 2, "tags and aliases are not allowed"),
        ("seed: 1\ndata: " + "[" * 40 + "]" * 40, 2, "the nesting is too deep"),
        ("seed: " + "1" * 5000 + "\n", 1, "the number is too long"),
        ("? [1, 2]\n: 3\n", 1, "this is not valid YAML"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(
    write: Any, content: str, line: int, message: str
) -> None:
    file = write(content)
    text = refusal(read_config, file)
    assert text.startswith(f"{file}:{line}: ")
    assert message in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 1\n", "[1]: expected sections of settings. The sections are: data, detector"),
        ("seed", "'seed': expected sections"),
        ("seed: 2024-13-45\n", "a value cannot be read"),
        (b"\xff\xfe\x00x", "the file is not text in UTF-8"),
        (b"seed: \x00\n", "this is not valid YAML"),
        ("evaluation:\n  shorter: 1200\n", "evaluation.longest = 1000: expected at least"),
        (b"#" * (2**19 + 1), "the file is larger than 512 KB"),
    ],
)
def test_a_file_that_cannot_be_settings_is_refused(
    write: Any, content: str | bytes, message: str
) -> None:
    file = write(content)
    text = refusal(read_config, file)
    assert text.startswith(f"{file}")
    assert message in text


def test_a_file_that_is_missing_or_a_folder_is_told(tmp_path: Path) -> None:
    assert refusal(read_config, tmp_path / "x") == f"{tmp_path / 'x'}: there is no such file. " + (
        "Check the path."
    )
    assert "this is not a plain file" in refusal(read_config, tmp_path)


@pytest.mark.parametrize(
    ("text", "section", "name", "value"),
    [
        ("training.epochs=10", "training", "epochs", 10),
        (" training.epochs = 10 ", "training", "epochs", 10),
        ("training.learning_rate=1e-3", "training", "learning_rate", 0.001),
        ("training.learning_rate=2.5E+0", "training", "learning_rate", 2.5),
        ("training.compile=true", "training", "compile", True),
        ("evaluation.flip=yes", "evaluation", "flip", True),
        ("training.milestones=[3, 4]", "training", "milestones", (3.0, 4.0)),
        ("training.milestones=3,4", "training", "milestones", (3.0, 4.0)),
        ("training.milestones=3", "training", "milestones", (3.0,)),
        ("training.milestones=", "training", "milestones", ()),
        ("data.classes=cat,traffic light", "data", "classes", ("cat", "traffic light")),
        ("data.classes=null", "data", "classes", None),
        ("data.train_split=2012", "data", "train_split", "2012"),
        ("data.train_split='2012'", "data", "train_split", "2012"),
        ("data.train_split=null", "data", "train_split", None),
        ("data.train_split=", "data", "train_split", None),
        ("data.path=a: b=c #d", "data", "path", "a: b=c #d"),
        ("data.path=~", "data", "path", "~"),
        ("detector.weights=none", "detector", "weights", "none"),
        ("training.clip_norm=~", "training", "clip_norm", None),
        ("loss.settings={delta: 2}", "loss", "settings", {"delta": 2}),
        ("loss.settings.delta=2", "loss", "settings", {"delta": 2}),
        ("loss.settings.step=sigmoid", "loss", "settings", {"step": "sigmoid"}),
    ],
)
def test_a_setting_in_words(text: str, section: str, name: str, value: object) -> None:
    config = apply_settings(Config(), [text])
    assert getattr(getattr(config, section), name) == value
    changed = dataclasses.replace(getattr(Config(), section), **{name: value})
    assert config == dataclasses.replace(Config(), **{section: changed})  # and nothing else


def test_the_seed_is_set_without_a_section() -> None:
    assert apply_settings(Config(), ["seed=7"]) == Config(seed=7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training.epochs", "--set = 'training.epochs': expected section.key=value. For example"),
        ("=3", "expected section.key=value"),
        ("training.=3", "The sections are: data, detector, loss, training, evaluation."),
        (".epochs=3", "expected section.key=value"),
        ("training=3", "training: this is a section. Its settings are: epochs, "),
        ("epochs=3", "epochs: there is no such setting. Did you mean training.epochs?"),
        ("trainin.epochs=3", "trainin: there is no such setting. Did you mean 'training'?"),
        ("training.epoch=3", "training.epoch: there is no such setting. Did you mean 'epochs'?"),
        ("training.epochs.x=3", "Write training.epochs=VALUE."),
        ("loss.settings.a.b=3", "Write loss.settings.NAME=VALUE."),
        ("seed.x=3", "Write seed=VALUE."),
        ("loss.delta=3", "Settings of the loss itself are written loss.settings.NAME."),
        ("training.epochs=x", "training.epochs = 'x': expected a whole number"),
        ("training.epochs=", "training.epochs = None: expected a whole number"),
        ("training.epochs=[1", "--set 'training.epochs=[1'"),
        ("training.epochs=!!int 3", "tags and aliases are not allowed"),
        ("training.learning_rate=.nan", "training.learning_rate = nan: expected a number above 0"),
        ("loss.settings.x=.inf", "loss.settings.x = inf: expected a finite number"),
    ],
)
def test_a_setting_with_a_mistake_is_refused(text: str, message: str) -> None:
    assert message in refusal(apply_settings, Config(), [text])


def test_settings_that_depend_on_each_other_come_in_any_order() -> None:
    texts = ["evaluation.shorter=1200", "evaluation.longest=2000"]
    for order in (texts, texts[::-1]):
        assert apply_settings(Config(), order).evaluation.longest == 2000


def test_the_last_setting_counts_and_settings_count_more_than_options() -> None:
    options = {"training": {"epochs": 5, "batch_size": 6}, "seed": 3}
    config = apply_settings(Config(), ["training.epochs=6", "training.epochs=7"], options)
    assert (config.training.epochs, config.training.batch_size, config.seed) == (7, 6, 3)
    assert options == {"training": {"epochs": 5, "batch_size": 6}, "seed": 3}
    assert apply_settings(Config(), ["training.accumulate=3"], options).training.accumulate == 3


def test_settings_of_the_loss_are_added_to_those_of_the_same_loss_only() -> None:
    base = Config(loss=LossConfig("ap", {"delta": 0.5}))
    settings = ["loss.settings.step=sigmoid"]
    assert apply_settings(base, settings).loss.settings == {"delta": 0.5, "step": "sigmoid"}
    settings = ["loss.settings.gamma=1", "loss.name=focal", "loss.settings.alpha=null"]
    expected = {"gamma": 1, "alpha": None}
    assert apply_settings(base, settings).loss == LossConfig("focal", expected)
    options = {"loss": {"name": "focal"}}
    assert apply_settings(base, settings[:1], options).loss.settings == {"gamma": 1}
    settings = ["loss.settings={a: 1}", "loss.settings.b=2"]
    assert apply_settings(base, settings).loss.settings == {"a": 1, "b": 2}


def test_an_error_about_a_setting_knows_its_key() -> None:
    with pytest.raises(SettingError) as error:
        apply_settings(Config(), ["training.epochs=0"])
    assert (error.value.key, error.value.value) == ("training.epochs", 0)


@given(st.text(max_size=40))
def test_any_words_give_settings_or_an_error_in_words(text: str) -> None:
    for setting in (text, f"training.epochs={text}", f"data.classes={text}", f"loss.{text}"):
        with contextlib.suppress(ConfigError):
            assert isinstance(apply_settings(Config(), [setting]), Config)
