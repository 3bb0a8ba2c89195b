"""What a command would do: every row with its state, and nothing is run or written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankdet.config import Config, to_dict
from rankdet.errors import ConfigError, RankdetError, TrainingError
from rankdet.experiments.arms import run_folder
from rankdet.experiments.experiment import Experiment, Request, Row, reproduce
from rankdet.experiments.figures import new_figure, save_figure
from rankdet.experiments.preview import preview
from rankdet.experiments.record import Record
from rankdet.experiments.scales import Training, base_config


def with_length(config: Config, **training: Any) -> Config:
    return replace(config, training=replace(config.training, **training))


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    return Request("smoke", tmp_path / "out")


@pytest.fixture
def usual(request_: Request) -> Config:
    """A training of 12 epochs."""
    return with_length(base_config(request_, Training()), epochs=12, max_steps=None)


def study(**trainings: tuple[Config, ...]) -> Experiment:
    """An experiment whose rows are these; none of them may be run but one without trainings.

    What stands in a row is known from the numbers of its trainings alone, but for "attacks".
    """
    return Experiment(
        "study",
        "a study",
        (),
        lambda _: [_row(key, configs) for key, configs in trainings.items()],
        lambda record: str(len(record["rows"])),
        _figure,
    )


def _row(key: str, configs: tuple[Config, ...]) -> Row:
    def run() -> dict[str, Any]:
        assert not configs, "it is trained"
        if key.startswith("bad"):
            raise TrainingError("the loss is not finite")
        return {"value": 1}

    settings = {"of": key, "trainings": [to_dict(config) for config in configs]}
    return Row(key, settings, run, trainings=configs, is_outcome=key != "attacks")


def _figure(record: Record, path: Path) -> None:
    save_figure(new_figure(1, 1), path)


def keep_outcome_of(config: Config, request: Request) -> None:
    """What is left of a finished training whose folder is gone."""
    file = Path(f"{run_folder(config, request)}.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"config": to_dict(config), "provenance": {"seed": 0}, "outcome": {}}
    file.write_text(json.dumps(content))


def lines(experiment: Experiment, request: Request, **settings: Any) -> list[str]:
    return preview(experiment, request, **settings).splitlines()


def test_before_the_first_row_all_is_to_do_and_nothing_is_written(
    request_: Request, usual: Config
) -> None:
    other = with_length(usual, epochs=1)
    assert lines(study(one=(usual,), both=(usual, other), none=()), request_) == [
        "study: a study",
        "  one   to train: 12 epochs",
        "  both  to train: 13 epochs",
        "  none  to do",
        "3 rows to do, with 2 trainings: 13 epochs.",  # one of them is shared
    ]
    assert not request_.out.exists()


def test_what_is_finished_is_not_to_be_trained(request_: Request, usual: Config) -> None:
    other = with_length(usual, epochs=1)
    keep_outcome_of(usual, request_)
    assert lines(study(one=(usual,), both=(usual, other)), request_)[1:] == [
        "  one   trained, to be recorded",
        "  both  to train: 1 epoch",
        "2 rows to do, with 1 training: 1 epoch.",
    ]
    keep_outcome_of(other, request_)
    assert lines(study(both=(usual, other)), request_)[-1] == "1 row to do."


def test_work_with_the_runs_themselves_needs_these_and_not_their_numbers(
    request_: Request, usual: Config
) -> None:
    keep_outcome_of(usual, request_)
    experiment = study(numbers=(usual,), attacks=(usual,))
    assert lines(experiment, request_)[1:] == [
        "  numbers  trained, to be recorded",
        "  attacks  to train: 12 epochs",  # the folder of the run is gone
        "2 rows to do, with 1 training: 12 epochs.",
    ]
    folder = run_folder(usual, request_)
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"provenance": {"seed": 0}}))
    assert lines(experiment, request_)[1:] == [
        "  numbers  trained, to be recorded",
        "  attacks  trained, the rest is to do",
        "2 rows to do.",
    ]


def test_a_limit_in_steps_is_said_in_steps(request_: Request, usual: Config) -> None:
    short = with_length(usual, max_steps=3)
    assert lines(study(one=(short,), both=(short, usual)), request_)[1:] == [
        "  one   to train: at most 3 steps",
        "  both  to train: 12 epochs and at most 3 steps",
        "2 rows to do, with 2 trainings: 12 epochs and at most 3 steps.",
    ]


def test_rows_that_are_recorded_or_not_asked_for_are_not_counted(
    request_: Request, usual: Config
) -> None:
    experiment = study(fast=(), slow=(usual,), other=())
    reproduce(experiment, replace(request_, rows=("fast",)))
    before = {file: file.read_bytes() for file in request_.out.rglob("*") if file.is_file()}
    assert lines(experiment, replace(request_, rows=("fast", "slow")))[1:] == [
        "  fast   recorded",
        "  slow   to train: 12 epochs",
        "  other  left out by --rows",
        "1 row to do, with 1 training: 12 epochs.",
    ]
    assert lines(experiment, replace(request_, rows=("fast",)))[-1] == "Nothing is left to do."
    after = {file: file.read_bytes() for file in request_.out.rglob("*") if file.is_file()}
    assert after == before


def test_a_row_that_failed_says_why_and_is_to_be_tried_again(request_: Request) -> None:
    experiment = study(bad=())
    with pytest.raises(TrainingError):
        reproduce(experiment, request_)
    assert lines(experiment, request_)[1:] == [
        "  bad  failed before: the loss is not finite; to do",
        "1 row to do.",
    ]


def test_what_the_command_would_refuse_is_refused(request_: Request, usual: Config) -> None:
    experiment = study(fast=(), slow=(usual,))
    with pytest.raises(ConfigError, match="expected words in the name of a row"):
        preview(experiment, replace(request_, rows=("unknown",)))
    reproduce(experiment, replace(request_, rows=("fast",)))
    other = replace(request_, changes=("training.epochs=1",))
    with pytest.raises(RankdetError, match=r"study\.json: the record there has no --set"):
        preview(experiment, other)
    forced = lines(experiment, other, is_forced=True)
    assert forced[1] == "  fast  recorded"  # of the same settings
