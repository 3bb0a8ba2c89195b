"""The record of an experiment: written after each row, gone on with, and never lost unasked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rankdet.config import Config, to_dict
from rankdet.errors import ConfigError, RankdetError, TrainingError
from rankdet.experiments.experiment import (
    Experiment,
    Request,
    Row,
    Stopped,
    refuse_foreign_views,
    reproduce,
    write_views,
)
from rankdet.experiments.figures import new_figure, save_figure
from rankdet.experiments.record import Record, read_record, results_of, state_of
from rankdet.provenance import provenance

Work = Callable[[], Mapping[str, Any]]


class Study:
    """An experiment with the rows a and b, which counts how often each was run."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.settings: dict[str, Any] = {"a": {"delta": 1}, "b": {"delta": 2}}
        self.work: dict[str, Work] = {}

    def plan(self, request: Request) -> list[Row]:
        return [Row(key, settings, self._work(key)) for key, settings in self.settings.items()]

    def _work(self, key: str) -> Work:
        def work() -> Mapping[str, Any]:
            self.calls.append(key)
            return self.work.get(key, lambda: {"value": len(key)})()

        return work

    @property
    def experiment(self) -> Experiment:
        return Experiment("study", "a study", ("sigmoid",), self.plan, _markdown, _figure)


def _markdown(record: Record) -> str:
    return " ".join([f"results: {results_of(record)}", state_of(record)])


def _figure(record: Record, path: Path) -> None:
    save_figure(new_figure(1, 1), path)


@pytest.fixture
def study() -> Study:
    return Study()


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    return Request("smoke", tmp_path / "out")


def test_a_record_says_what_was_asked_for_and_where_each_number_comes_from(
    study: Study, request_: Request
) -> None:
    record = reproduce(study.experiment, request_)
    assert record == read_record(request_.out / "study.json")
    assert record["item"] == "study"
    assert record["labels"] == ["sigmoid"]
    assert record["request"]["scale"] == "smoke"
    assert record["request"]["seed"] == 0
    assert record["plan"] == ["a", "b"]
    row = record["rows"]["b"]
    assert row["settings"] == {"delta": 2}
    assert row["result"] == {"value": 1}
    assert row["seconds"] >= 0
    assert row["provenance"].keys() == provenance(seed=0).keys()


def test_beside_it_are_a_table_and_a_figure(study: Study, request_: Request) -> None:
    reproduce(study.experiment, request_)
    assert "results: {'a': {'value': 1}" in (request_.out / "study.md").read_text()
    assert (request_.out / "study.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_and_the_figure_can_be_made_again_from_the_json_alone(
    study: Study, request_: Request
) -> None:
    reproduce(study.experiment, request_)
    before = {file.name: file.read_bytes() for file in request_.out.glob("study.*")}
    (request_.out / "study.md").unlink()
    (request_.out / "study.png").unlink()
    write_views(study.experiment, read_record(request_.out / "study.json"), request_.out)
    assert {file.name: file.read_bytes() for file in request_.out.glob("study.*")} == before


def test_finished_rows_are_not_run_again(study: Study, request_: Request) -> None:
    reproduce(study.experiment, request_)
    first = (request_.out / "study.json").read_bytes()
    reproduce(study.experiment, request_)
    assert study.calls == ["a", "b"]
    assert (request_.out / "study.json").read_bytes() == first


def test_an_interrupted_experiment_goes_on_where_it_was(study: Study, request_: Request) -> None:
    def stop() -> Mapping[str, Any]:
        raise Stopped(130)

    study.work["b"] = stop
    with pytest.raises(Stopped):
        reproduce(study.experiment, request_)
    assert list(read_record(request_.out / "study.json")["rows"]) == ["a"]
    del study.work["b"]
    record = reproduce(study.experiment, request_)
    assert study.calls == ["a", "b", "b"]
    assert list(record["rows"]) == ["a", "b"]


def test_a_row_that_failed_is_said_and_tried_again(study: Study, request_: Request) -> None:
    def fail() -> Mapping[str, Any]:
        raise TrainingError("the loss is not finite")

    study.work["a"] = fail
    with pytest.raises(TrainingError, match=r"1 row of 2 failed.*a: the loss is not finite"):
        reproduce(study.experiment, request_)
    record = read_record(request_.out / "study.json")
    assert record["rows"]["a"]["error"] == "the loss is not finite"
    assert record["rows"]["b"]["result"] == {"value": 1}  # the others went on
    assert "Failed: a." in (request_.out / "study.md").read_text()
    del study.work["a"]
    assert state_of(reproduce(study.experiment, request_)) == ""
    assert study.calls == ["a", "b", "a"]


def test_what_is_missing_is_said(study: Study, request_: Request) -> None:
    record = reproduce(study.experiment, request_)
    del record["rows"]["b"]
    assert state_of(record) == "Not run yet: b."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "has seed = 0, and now it is 1"),
        ({"changes": ("seed=3",)}, "has no --set seed, and now it is '3'"),
    ],
)
def test_a_record_of_another_request_is_not_replaced(
    study: Study, request_: Request, change: dict[str, Any], words: str
) -> None:
    reproduce(study.experiment, request_)
    before = (request_.out / "study.json").read_bytes()
    with pytest.raises(RankdetError, match=f"study.json: .*{words}.*--out.*--force"):
        reproduce(study.experiment, replace(request_, **change))
    assert (request_.out / "study.json").read_bytes() == before


def test_the_order_of_changes_is_no_other_request(study: Study, request_: Request) -> None:
    changes = ("training.epochs=9", "seed=3")
    reproduce(study.experiment, replace(request_, changes=changes))
    again = ("seed=2", "seed = 3", "training.epochs=9")  # the last one holds
    record = reproduce(study.experiment, replace(request_, changes=again))
    assert study.calls == ["a", "b"]
    assert record["request"]["changes"] == list(again)


def test_a_row_with_other_settings_is_not_replaced_unless_forced(
    study: Study, request_: Request
) -> None:
    reproduce(study.experiment, request_)
    study.settings["b"] = {"delta": 5}
    with pytest.raises(RankdetError, match=r"the row b has other settings.*delta was 2, now 5"):
        reproduce(study.experiment, request_)
    reproduce(study.experiment, request_, is_forced=True)
    assert study.calls == ["a", "b", "b"]


def test_force_drops_no_row_that_is_not_asked_for(study: Study, request_: Request) -> None:
    reproduce(study.experiment, request_)
    before = (request_.out / "study.json").read_bytes()
    study.settings.update(a={"delta": 4}, b={"delta": 5})
    with pytest.raises(RankdetError, match=r"--force would drop them.*another time: b\. .*--rows"):
        reproduce(study.experiment, replace(request_, rows=("a",)), is_forced=True)
    assert (request_.out / "study.json").read_bytes() == before
    reproduce(study.experiment, replace(request_, rows=("a", "b")), is_forced=True)
    assert study.calls == ["a", "b", "a", "b"]


def test_a_setting_that_there_was_not_when_a_row_was_run_is_at_its_default(
    study: Study, request_: Request
) -> None:
    """That is what was done before there was a choice."""
    study.settings["b"] = {"config": to_dict(Config())}
    reproduce(study.experiment, request_)
    file = request_.out / "study.json"
    record = json.loads(file.read_text())
    del record["rows"]["b"]["settings"]["config"]["detector"]["pyramid_start"]
    file.write_text(json.dumps(record))
    reproduce(study.experiment, request_)
    assert study.calls == ["a", "b"]
    assert "pyramid_start" not in file.read_text()  # the row stays as it was written
    other = replace(Config().detector, pyramid_start="torchvision")
    study.settings["b"] = {"config": to_dict(replace(Config(), detector=other))}
    with pytest.raises(RankdetError, match="pyramid_start was 'paper', now 'torchvision'"):
        reproduce(study.experiment, request_)


def test_a_row_that_the_experiment_no_longer_has_is_not_dropped_unless_forced(
    study: Study, request_: Request
) -> None:
    reproduce(study.experiment, request_)
    del study.settings["a"]
    with pytest.raises(RankdetError, match="the row a is no row of the experiment now"):
        reproduce(study.experiment, request_)
    assert list(reproduce(study.experiment, request_, is_forced=True)["rows"]) == ["b"]


@pytest.mark.parametrize("name", ["study.json", "study.md", "study.png"])
def test_files_of_others_are_not_replaced(study: Study, request_: Request, name: str) -> None:
    request_.out.mkdir()
    (request_.out / name).write_text("mine")
    with pytest.raises(RankdetError, match=f"{name}: the file exists and was not written by"):
        reproduce(study.experiment, request_)
    assert study.calls == []
    reproduce(study.experiment, request_, is_forced=True)


def test_a_picture_of_others_is_not_replaced_even_if_it_is_a_png(
    study: Study, request_: Request
) -> None:
    request_.out.mkdir()
    file = request_.out / "study.png"
    Image.new("RGB", (2, 2)).save(file)
    mine = file.read_bytes()
    with pytest.raises(RankdetError, match=r"study.png: the file exists and was not written by"):
        reproduce(study.experiment, request_)
    assert file.read_bytes() == mine
    reproduce(study.experiment, request_, is_forced=True)
    assert file.read_bytes() != mine
    reproduce(study.experiment, request_)  # now it is ours


def test_views_of_others_are_refused_by_name(study: Study, request_: Request) -> None:
    """For `rankdet reproduce table`, which writes views alone."""
    refuse_foreign_views(study.experiment, request_.out)  # nothing there
    request_.out.mkdir()
    (request_.out / "study.md").write_text("mine")
    with pytest.raises(RankdetError, match=r"study.md: the file exists and was not written by"):
        refuse_foreign_views(study.experiment, request_.out)
    refuse_foreign_views(study.experiment, request_.out, is_forced=True)


def test_jobs_that_cannot_be_used_are_said(
    study: Study, request_: Request, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = replace(study.experiment, has_trainings=False)
    reproduce(alone, request_)
    assert "--jobs" not in capsys.readouterr().err
    request_ = replace(request_, jobs=3, out=request_.out / "again")
    reproduce(alone, request_)
    assert "study: --jobs 3 is not used" in capsys.readouterr().err


def test_two_processes_do_not_work_on_the_same_record(study: Study, request_: Request) -> None:
    def again() -> Mapping[str, Any]:
        with pytest.raises(RankdetError, match=r"another command makes the record of study.*--out"):
            reproduce(Study().experiment, request_)
        return {}

    study.work["a"] = again
    reproduce(study.experiment, request_)


def test_numbers_that_are_not_finite_do_not_get_into_the_json(
    study: Study, request_: Request
) -> None:
    study.work["a"] = lambda: {"value": float("nan")}
    with pytest.raises(ValueError, match="JSON"):
        reproduce(study.experiment, request_)


def test_the_request_in_a_record_does_not_say_where_it_was_run(request_: Request) -> None:
    """Another folder, device or number of processes gives the same numbers, or nearly."""
    settings = replace(request_, device="cuda", jobs=4, out=Path("elsewhere")).settings()
    assert settings == request_.settings()
    json.dumps(settings)


def test_only_the_rows_that_were_asked_for_are_run_and_the_others_come_later(
    study: Study, request_: Request
) -> None:
    record = reproduce(study.experiment, replace(request_, rows=("b",)))
    assert study.calls == ["b"]
    assert record["plan"] == ["a", "b"]
    assert list(record["rows"]) == ["b"]
    assert "Not run yet: a." in (request_.out / "study.md").read_text()
    reproduce(study.experiment, request_)
    assert list(read_record(request_.out / "study.json")["rows"]) == ["a", "b"]
    assert study.calls == ["b", "a"]


def test_rows_can_be_asked_for_by_several_words(study: Study, request_: Request) -> None:
    study.settings = {name: {"value": 1} for name in ("first", "second", "third")}
    reproduce(study.experiment, replace(request_, rows=("fir", "ird")))
    assert study.calls == ["first", "third"]


def test_a_row_of_just_that_name_is_meant_alone(study: Study, request_: Request) -> None:
    study.settings = {name: {"value": 1} for name in ("1", "16", "8")}
    reproduce(study.experiment, replace(request_, rows=("1",)))
    assert study.calls == ["1"]


def test_a_row_of_just_that_name_is_meant_with_all_its_seeds(
    study: Study, request_: Request
) -> None:
    names = ("1", "16", "1: seed 1", "16: seed 1")
    study.settings = {name: {"value": 1} for name in names}
    reproduce(study.experiment, replace(request_, rows=("1",)))
    assert study.calls == ["1", "1: seed 1"]
    reproduce(study.experiment, replace(request_, rows=("seed 1",)))
    assert study.calls == ["1", "1: seed 1", "16: seed 1"]


def test_no_words_are_no_rows(study: Study, request_: Request) -> None:
    with pytest.raises(ConfigError, match=r"--rows '': expected words"):
        reproduce(study.experiment, replace(request_, rows=("",)))


def test_rows_that_no_row_is_called_are_refused_with_those_that_there_are(
    study: Study, request_: Request
) -> None:
    with pytest.raises(ConfigError, match=r"--rows 'c': expected words .* of study.*: a, b\."):
        reproduce(study.experiment, replace(request_, rows=("b", "c")))
    assert not (request_.out / "study.json").exists()


def seeded(study: Study, num_seeds: int) -> Experiment:
    """The experiment with a row for each of so many seeds."""
    study.settings = {f"seed {seed}": {"seed": seed} for seed in range(num_seeds)}
    return replace(study.experiment, usual_seeds=3)


@pytest.mark.parametrize("is_forced", [False, True])
def test_rows_of_more_seeds_than_are_asked_for_now_are_kept(
    is_forced: bool, study: Study, request_: Request
) -> None:
    before = reproduce(seeded(study, 3), request_)
    after = reproduce(seeded(study, 1), request_, is_forced=is_forced)
    assert after["rows"] == before["rows"]
    assert after["plan"] == ["seed 0", "seed 1", "seed 2"]
    assert study.calls == ["seed 0", "seed 1", "seed 2"]


def test_seeds_of_another_request_are_left_out_by_force_and_it_is_said(
    study: Study, request_: Request, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce(seeded(study, 2), request_)
    other = replace(request_, changes=("training.epochs=9",))
    study.settings = {"seed 0": {"seed": 0, "epochs": 9}}
    record = reproduce(replace(study.experiment, usual_seeds=3), other, is_forced=True)
    assert list(record["rows"]) == ["seed 0"]
    said = "".join(capsys.readouterr())
    assert "study: 2 rows of the record of other settings are left out (--force)" in said
