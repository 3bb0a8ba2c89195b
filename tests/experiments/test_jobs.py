"""Several trainings at the same time: rows as soon as they can be, signals, and what is left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankdet.config import Config, to_dict
from rankdet.experiments import arms, jobs
from rankdet.experiments.arms import alone_with, outcome, run_folder
from rankdet.experiments.experiment import Experiment, Request, Row, Stopped, reproduce
from rankdet.experiments.figures import new_figure, save_figure
from rankdet.experiments.jobs import rows_as_trained, train_together
from rankdet.experiments.record import read_record
from rankdet.experiments.scales import Training, base_config

LONG = "import time; time.sleep(100)"


def smoke(out: Path, **settings: Any) -> tuple[list[Config], Request]:
    """Settings of three trainings, and a request."""
    request = Request("smoke", out, device="cpu", **settings)
    config = base_config(request, Training())
    return [replace(config, seed=seed) for seed in range(3)], request


def rows_of(configs: list[Config], request: Request, *, is_outcome: bool = True) -> list[Row]:
    return [
        Row(
            key=f"seed {config.seed}",
            settings={"config": to_dict(config)},
            run=partial(outcome, config, request),
            trainings=(config,),
            is_outcome=is_outcome,
        )
        for config in configs
    ]


def by_folder(configs: list[Config], request: Request) -> dict[Path, Config]:
    return {run_folder(config, request): config for config in configs}


class Programs:
    """Stand for trainings: a program by the seed, and an outcome for those that end well."""

    def __init__(self, configs: list[Config], request: Request) -> None:
        self.code = dict.fromkeys((config.seed for config in configs), "pass")
        self.seeds = {run_folder(config, request): config.seed for config in configs}
        self.started: list[int] = []
        self.kept: list[int] = []

    def command(self, path: Path, request: Request) -> list[str]:
        self.started.append(self.seeds[path])
        return [sys.executable, "-c", self.code[self.seeds[path]]]

    def keep(self, path: Path, config: Config, request: Request) -> None:
        self.kept.append(config.seed)


@pytest.fixture
def trainings(tmp_path: Path) -> tuple[list[Config], Request]:
    return smoke(tmp_path, jobs=2)


@pytest.fixture
def programs(trainings: tuple[list[Config], Request], monkeypatch: pytest.MonkeyPatch) -> Programs:
    stand_in = Programs(*trainings)
    monkeypatch.setattr(jobs, "_command", stand_in.command)
    monkeypatch.setattr(jobs, "keep_outcome", stand_in.keep)
    monkeypatch.setattr(jobs, "_SECONDS_BETWEEN_LOOKS", 0.01)
    return stand_in


def test_a_row_comes_when_its_training_is_finished_and_the_others_train_on(
    trainings: tuple[list[Config], Request], programs: Programs
) -> None:
    configs, request = trainings
    programs.code[0] = LONG
    rows = rows_as_trained(rows_of(configs, request), request)
    assert {next(rows).key, next(rows).key} == {"seed 1", "seed 2"}
    assert programs.started == [0, 1, 2]
    start = time.monotonic()
    rows.close()  # type: ignore[attr-defined]
    assert time.monotonic() - start < 10  # the long one was ended


def test_work_with_the_runs_themselves_comes_when_nothing_else_runs(
    trainings: tuple[list[Config], Request], programs: Programs
) -> None:
    configs, request = trainings
    rows = [
        *rows_of(configs[:1], request, is_outcome=False),
        *rows_of(configs[1:], request),
    ]
    keys = [row.key for row in rows_as_trained(rows, request)]
    assert keys[-1] == "seed 0"
    assert sorted(programs.kept) == [0, 1, 2]


def test_a_row_whose_training_failed_comes_last_to_try_it_again(
    trainings: tuple[list[Config], Request], programs: Programs
) -> None:
    configs, request = trainings
    programs.code[0] = "raise SystemExit(1)"
    keys = [row.key for row in rows_as_trained(rows_of(configs, request), request)]
    assert keys[-1] == "seed 0"
    assert sorted(programs.kept) == [1, 2]


def test_two_rows_with_the_same_training_train_it_once(
    trainings: tuple[list[Config], Request], programs: Programs
) -> None:
    configs, request = trainings
    first = rows_of(configs[:1], request)[0]
    rows = [first, replace(first, key="again")]
    assert [row.key for row in rows_as_trained(rows, request)] == ["seed 0", "again"]
    assert programs.started == [0]


@pytest.mark.parametrize("is_finished", [True, False])
def test_what_another_command_trains_is_left_to_it_until_it_has_ended(
    trainings: tuple[list[Config], Request],
    programs: Programs,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_finished: bool,
) -> None:
    configs, request = trainings
    folder = run_folder(configs[0], request)
    monkeypatch.setattr(jobs, "has_outcome", lambda path, _: other_has_ended and is_finished)
    other_has_ended = False
    with ExitStack() as other:
        other.enter_context(alone_with(folder))
        rows = rows_as_trained(rows_of(configs, request), request)
        assert {next(rows).key, next(rows).key} == {"seed 1", "seed 2"}
        assert programs.started == [1, 2]
        other_has_ended = True
    assert [row.key for row in rows] == ["seed 0"]
    assert programs.started == ([1, 2] if is_finished else [1, 2, 0])
    assert capsys.readouterr().err.count(f"{folder.name}: another command trains it.") == 1


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_single_training_waits_for_the_command_that_trains_it(
    trainings: tuple[list[Config], Request],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_finished: bool,
) -> None:
    monkeypatch.setattr(arms, "_SECONDS_BETWEEN_LOOKS", 0.01)
    (config, *_), request = trainings
    folder = run_folder(config, request)
    first = outcome(config, request)
    kept = Path(f"{folder}.json").rename(request.out / "kept.json")
    shutil.rmtree(folder)
    other = ExitStack()
    other.enter_context(alone_with(folder))

    def end() -> None:
        if is_finished:
            kept.rename(f"{folder}.json")
        other.close()

    threading.Timer(0.3, end).start()
    assert outcome(config, request)["metrics"] == first["metrics"]
    assert folder.exists() != is_finished  # it was trained here if the other did not finish it
    said = capsys.readouterr().err
    assert said.count(f"{folder.name}: another command trains it. Waiting for that.") == 1


def test_two_commands_at_the_same_time_share_a_training(
    trainings: tuple[list[Config], Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    _, request = trainings
    command = [sys.executable, "-m", "rankdet", "reproduce", "--scale", "smoke", "--device", "cpu"]
    command += ["--out", str(request.out), "--jobs", "2"]
    together = [
        subprocess.Popen([*command[:4], item, *command[4:], "--rows", row])
        for item, row in (("delta", "1"), ("interpolation", "Yes"))
    ]
    assert [process.wait(timeout=100) for process in together] == [0, 0]
    delta, interpolation = (
        read_record(request.out / f"{item}.json")["rows"] for item in ("delta", "interpolation")
    )
    assert delta["1"]["result"] == interpolation["Yes"]["result"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_handed_on_and_what_is_finished_comes_first(
    trainings: tuple[list[Config], Request],
    programs: Programs,
    number: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    configs, request = trainings
    programs.code[0] = "import time; time.sleep(0.3)"
    programs.code[1] = LONG
    start = time.monotonic()
    rows = rows_as_trained(rows_of(configs, request), request)
    assert next(rows).key == "seed 0"
    signal.raise_signal(number)  # while the second runs, and before the third begins
    with pytest.raises(Stopped) as stopped:
        list(rows)
    assert stopped.value.status == 128 + number
    assert programs.started in ([0, 1], [0, 1, 2])
    said = capsys.readouterr().err
    assert re.findall(r"; (.*) left\.", said) == ["2 trainings of 3"] * len(programs.started)
    assert time.monotonic() - start < 30


def test_a_process_that_was_stopped_by_hand_lets_no_other_begin(
    trainings: tuple[list[Config], Request], programs: Programs
) -> None:
    configs, request = trainings
    programs.code[0] = "raise SystemExit(143)"
    with pytest.raises(Stopped) as stopped:
        list(train_together(by_folder(configs, replace(request, jobs=1)), replace(request, jobs=1)))
    assert stopped.value.status == 143
    assert programs.started == [0]


def test_the_record_has_each_row_as_soon_as_it_is_finished_in_the_order_of_the_plan(
    trainings: tuple[list[Config], Request], programs: Programs
) -> None:
    configs, request = trainings
    file = request.out / "study.json"
    # The first training ends when the record has the others.
    programs.code[0] = "\n".join(
        [
            "import pathlib, time",
            f"file = pathlib.Path({str(file)!r})",
            "while not file.exists() or file.read_text().count('value') < 2: time.sleep(0.05)",
        ]
    )
    rows = [replace(row, run=lambda: {"value": 1}) for row in rows_of(configs, request)]
    study = Experiment("study", "a study", (), lambda _: rows, lambda _: "text", _figure)
    reproduce(study, request)
    record = read_record(file)
    assert list(record["rows"]) == ["seed 0", "seed 1", "seed 2"]


def _figure(record: Any, path: Path) -> None:
    save_figure(new_figure(1, 1), path)


def test_real_trainings_are_recorded_with_their_own_provenance_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    configs, request = smoke(tmp_path, jobs=2, deletes_runs=True)
    rows = rows_of(configs[:2], request)
    run_folder(configs[1], request).mkdir(parents=True)  # was there before: not deleted
    study = Experiment("study", "a study", (), lambda _: rows, lambda _: "text", _figure)
    record = reproduce(study, request)
    for config, row in zip(configs, rows, strict=False):
        entry = record["rows"][row.key]
        assert entry["result"]["training"]["steps"] == 3
        assert entry["result"]["training"]["jobs"] == 2
        assert "provenance" not in entry["result"]
        assert entry["provenance"]["seed"] == config.seed
        assert "train --config" in entry["provenance"]["command"]
        assert "Finished: 3 steps" in Path(f"{run_folder(config, request)}.log").read_text()
    assert not run_folder(configs[0], request).exists()
    assert run_folder(configs[1], request).is_dir()
    assert reproduce(study, replace(request, jobs=1)) == record  # nothing is trained again


def test_a_training_that_a_signal_meets_saves_itself_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    configs, request = smoke(tmp_path, jobs=1)
    config = replace(
        configs[0],
        training=replace(configs[0].training, epochs=2000, max_steps=4000),
        evaluation=replace(configs[0].evaluation, every=0),
    )
    folder = run_folder(config, request)

    def when_it_trains() -> None:
        while not list(folder.glob("checkpoints/step-*/manifest.json")):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=when_it_trains, daemon=True).start()
    with pytest.raises(Stopped) as stopped:
        list(train_together({folder: config}, request))
    assert stopped.value.status == 143
    log = Path(f"{folder}.log").read_text()
    assert "SIGTERM: finishing this step, saving" in log
    assert "--resume" in jobs._command(folder, request)


@pytest.mark.parametrize(("own", "expected"), [(None, "2"), ("5", "5")])
def test_trainings_at_the_same_time_share_the_processors(
    own: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the user has said how many threads each is to have."""
    if own is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
    monkeypatch.setattr("os.cpu_count", lambda: 9)
    program = "import os, sys; print(os.environ['OMP_NUM_THREADS'])"
    monkeypatch.setattr(jobs, "_command", lambda path, request: [sys.executable, "-c", program])
    request = Request("smoke", tmp_path, jobs=4)
    with ExitStack() as stack:
        path = tmp_path / "runs" / "a-run"
        config = base_config(request, Training())
        assert jobs._started(path, config, request, stack).wait() == 0
    assert Path(f"{path}.log").read_text().strip() == expected
