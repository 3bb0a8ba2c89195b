"""The trainings of experiments: each in a folder of its own, run once, gone on with, and shared.

    OUT/runs/NAME        a run, as of `rankdet train`; NAME ends in a hash of all its settings
    OUT/runs/NAME.json   what came of it and where it was trained, written when it is finished
    OUT/runs/NAME.log    what it said, where several ran at the same time

Two experiments that need a training with the same settings share it: the paper's main setting
stands in many of its tables. Commands that run at the same time share it, too: one trains, and the
others wait for it. The folder of a finished training may be deleted, or left on another machine:
who needs its numbers alone takes them from NAME.json, who needs the run trains it again.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rankdet.config import Config, to_dict
from rankdet.config.text import completed
from rankdet.experiments.experiment import Request, Row, Stopped
from rankdet.output import write_whole
from rankdet.progress import say

RUNS = "runs"
_SECONDS_BETWEEN_LOOKS = 1.0
# Settings that there were not when runs got names. At these values they are no part of a name, so
# that runs of before are found.
_ADDED: dict[str, dict[str, Any]] = {
    "detector": {"pyramid_start": "paper", "head_start": "paper", "pyramid_channels": None}
}


def run_folder(config: Config, request: Request) -> Path:
    """Where the training with these settings is, or will be."""
    named = to_dict(config)
    for section, settings in _ADDED.items():
        for name, usual in settings.items():
            if named[section][name] == usual:
                del named[section][name]
    text = json.dumps(named, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    name = f"{config.detector.name}-{config.detector.backbone}-{config.loss.name}-{digest}"
    return request.out / RUNS / name


def trained(config: Config, request: Request) -> Path:
    """The folder of the finished training with these settings; trains what is missing.

    Stopped if a signal came: the training has saved itself, and the next call goes on.
    """
    return _made(config, request, has_run)


def _made(config: Config, request: Request, is_there: Callable[[Path, Config], bool]) -> Path:
    """The folder of the training, after it was trained unless what is wanted of it is there."""
    folder = run_folder(config, request)
    if not is_there(folder, config):
        with _alone_when_free(folder):
            if not is_there(folder, config):  # who had it may have finished it
                _train(folder, config, request)
    return folder


def _train(folder: Path, config: Config, request: Request) -> None:
    from rankdet.workflows.run import is_run
    from rankdet.workflows.train import train

    if has_outcome(folder, config) and not is_run(folder):
        say(
            f"{folder.name}: its numbers are kept, but the run is needed and not here. It is "
            "trained again."
        )
    status = train(
        folder,
        make_config=lambda _: config,
        is_resumed=is_run(folder),
        device=request.device,
        is_part=True,
    )
    if status:
        raise Stopped(status)
    keep_outcome(folder, config, request)


def alone_with(folder: Path) -> AbstractContextManager[None]:
    """No other command trains this meanwhile; TakenError if one does."""
    from rankdet.engine.sealed_folder import alone_in

    return alone_in(folder.with_name(f".{folder.name}"))  # the run itself is the trainer's


@contextmanager
def _alone_when_free(folder: Path) -> Iterator[None]:
    """The same, when the command that trains it has ended."""
    from rankdet.engine.sealed_folder import TakenError

    is_told = False
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(alone_with(folder))
                break
            except TakenError:
                if not is_told:
                    say(f"{folder.name}: another command trains it. Waiting for that.")
                is_told = True
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        yield


def outcome(config: Config, request: Request) -> dict[str, Any]:
    """What came of the training with these settings, which is run if it was not yet.

    metrics: of the last evaluation (not of the best: the paper's test set chooses nothing), None
    without a split to evaluate on. curve: all evaluations on the way, with step and epoch.
    training: seconds (evaluations included), steps, images of an epoch, images_per_second (the
    median over the training, so without evaluations and checkpoints), jobs (how many trainings
    shared the machine), and means over the steps of what was counted (such as RoIs). notes: what
    it said about data and weights. run: the folder's name in OUT/runs. provenance: of the
    training, wherever and whenever that was.
    """
    kept = _kept(_made(config, request, has_outcome), config)
    assert kept is not None, "a finished training leaves an outcome"
    return {**kept["outcome"], "provenance": kept["provenance"]}


def has_outcome(folder: Path, config: Config) -> bool:
    """Whether the outcome of these very settings is kept."""
    return _kept(folder, config) is not None


def has_run(folder: Path, config: Config) -> bool:
    """Whether the finished run of these very settings is there, not a part of one."""
    from rankdet.workflows.run import RUN_FILE

    kept, run = _kept(folder, config), _read_json(folder / RUN_FILE)
    # Each beginning of a training has a provenance of its own, by its time.
    return kept is not None and run is not None and run.get("provenance") == kept["provenance"]


def folders_of(row: Row, request: Request) -> set[Path]:
    """Where the trainings of a row are, or will be."""
    return {run_folder(config, request) for config in row.trainings}


def unfinished_trainings(rows: Sequence[Row], request: Request) -> dict[Path, Config]:
    """What has to be trained for these rows, by its folder, each once and in their order."""
    found = {}
    for row in rows:
        is_there = has_outcome if row.is_outcome else has_run
        for config in row.trainings:
            folder = run_folder(config, request)
            if not is_there(folder, config):
                found[folder] = config
    return found


def delete_runs(row: Row, request: Request, kept: Collection[Path]) -> None:
    """Delete the finished runs of a row, whose outcomes stay; not those in `kept`."""
    from rankdet.engine.sealed_folder import remove_folder

    for config in row.trainings:
        folder = run_folder(config, request)
        if folder not in kept and has_run(folder, config):
            remove_folder(folder)


def last_results(run: Path, request: Request) -> dict[str, Any]:
    """results.json of the last checkpoint, which is evaluated again if another one was better."""
    from rankdet.workflows.run import RESULTS_FILE

    content = _read_json(run / RESULTS_FILE)
    if content is None or content["checkpoint"]["step"] != _last_state(run)["step"]:
        content = evaluated(run, request, "last")
    assert content is not None, "an evaluation leaves its results"
    return content


def evaluated(run: Path, request: Request, name: str, tested: Config | None = None) -> Any:
    """results.json of another evaluation of the run's last checkpoint, kept under this name.

    tested: settings whose evaluation section is to be taken in place of the run's.
    """
    from rankdet.workflows.evaluate import evaluate

    file = run / f"results-{name}.json"
    wanted = None if tested is None else to_dict(tested)["evaluation"]
    content = _read_json(file)
    if content is None or wanted not in (None, content["config"]["evaluation"]):
        with redirect_stdout(io.StringIO()):  # its table is not the one that was asked for
            evaluate(
                run,
                checkpoint="last",
                changes=partial(_with_evaluation, tested),
                out=file,
                device=request.device,
            )
        content = _read_json(file)
    return content


def class_results(results: Mapping[str, Any]) -> dict[str, float | None]:
    """AP50 of each class, by name, of a results.json."""
    return {row["name"]: row["ap50"] for row in results["classes"]}


def submitted(
    run: Path, request: Request, split: str, name: str, tested: Config | None = None
) -> str:
    """The folder, as a name in OUT/runs, of files for an evaluation server, made if missing."""
    from rankdet.workflows.evaluate import evaluate

    folder = run.with_name(f"{run.name}-{name}")
    if not folder.exists():
        with redirect_stdout(io.StringIO()):
            evaluate(
                run,
                split=split,
                checkpoint="last",
                changes=partial(_with_evaluation, tested),
                submission=folder,
                device=request.device,
            )
    return folder.name


def _with_evaluation(tested: Config | None, config: Config) -> Config:
    return config if tested is None else replace(config, evaluation=tested.evaluation)


def keep_outcome(folder: Path, config: Config, request: Request) -> None:
    """Write what came of the finished run in this folder beside it."""
    from rankdet.workflows.run import read_run

    content = {
        "config": to_dict(config),
        "provenance": dict(read_run(folder).provenance),
        "outcome": _outcome(folder, request),
    }
    write_whole(_outcome_file(folder), (json.dumps(content, indent=2) + "\n").encode())


def _outcome_file(folder: Path) -> Path:
    return Path(f"{folder}.json")


def _kept(folder: Path, config: Config) -> dict[str, Any] | None:
    """What the outcome file says, if it is one of these very settings."""
    content = _read_json(_outcome_file(folder))
    if content is None or completed(content.get("config")) != completed(to_dict(config)):
        return None
    return content if isinstance(content.get("provenance"), dict) else None


def _outcome(folder: Path, request: Request) -> dict[str, Any]:
    from rankdet.engine.records import read_metrics
    from rankdet.workflows.results import training_counts
    from rankdet.workflows.run import METRICS_FILE, read_run

    record = read_run(folder)
    rows = read_metrics(folder / METRICS_FILE)
    curve = [_without(row, "kind") for row in rows if row["kind"] == "evaluation"]
    rates = [row["images_per_second"] for row in rows if row["kind"] == "step"]
    last = _last_state(folder)
    return {
        "run": folder.name,
        "metrics": _without(curve[-1], "step", "epoch") if curve else None,
        "curve": curve,
        "training": {
            "seconds": last["state"].get("seconds"),
            "steps": last["step"],
            "images": record.data["train"]["num_images"],
            "images_per_second": median(rates) if rates else None,
            "jobs": request.jobs,
            "counts": training_counts(folder / METRICS_FILE, last["step"]),
        },
        "notes": list(record.notes),
    }


def _last_state(folder: Path) -> dict[str, Any]:
    """Step and state of the last checkpoint, without reading its weights."""
    from rankdet.engine.checkpoint import STATE, checkpoints
    from rankdet.engine.sealed_folder import read_file
    from rankdet.workflows.run import CHECKPOINTS

    path = checkpoints(folder / CHECKPOINTS)[-1]
    content: dict[str, Any] = json.loads(read_file(path, STATE))
    return content


def _without(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def _read_json(file: Path) -> dict[str, Any] | None:
    """What a file of ours holds; None if it is not there or was damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
