"""The trainings of experiments: each in a folder of its own, run once, gone on with, and shared.

    OUT/runs/NAME        a run, as of `rankdet train`; NAME ends in a hash of all its settings
    OUT/runs/NAME.json   what came of it, written when it is finished
    OUT/runs/NAME.log    what it said, where several ran at the same time

Two experiments that need a training with the same settings share it: the paper's main setting
stands in many of its tables.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from rankdet.config import Config, dump, to_dict
from rankdet.errors import counted
from rankdet.experiments.experiment import Request, Stopped
from rankdet.output import write_whole
from rankdet.progress import say

RUNS = "runs"
_SECONDS_BETWEEN_LOOKS = 0.2


def run_folder(config: Config, request: Request) -> Path:
    """Where the training with these settings is, or will be."""
    text = json.dumps(to_dict(config), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    name = f"{config.detector.name}-{config.detector.backbone}-{config.loss.name}-{digest}"
    return request.out / RUNS / name


def trained(config: Config, request: Request) -> Path:
    """The folder of the finished training with these settings; trains what is missing.

    Stopped if a signal came: the training has saved itself, and the next call goes on.
    """
    from rankdet.workflows.run import is_run
    from rankdet.workflows.train import train

    folder = run_folder(config, request)
    if not _is_finished(folder, config):
        status = train(
            folder,
            make_config=lambda _: config,
            is_resumed=is_run(folder),
            device=request.device,
        )
        if status:
            raise Stopped(status)
        _keep_outcome(folder, config, request)
    return folder


def outcome(config: Config, request: Request) -> dict[str, Any]:
    """What came of the training with these settings, which is run if it was not yet.

    metrics: of the last evaluation (not of the best: the paper's test set chooses nothing), None
    without a split to evaluate on. classes: AP50 of each, by name; thresholds: the score of each
    from which on prediction shows it. curve: all evaluations on the way, with step and epoch.
    inference: images per second. training: seconds, steps, images, and means over the steps of what
    was counted (such as RoIs). notes: what it said about data and weights. run: the folder's name
    in OUT/runs.
    """
    file = _outcome_file(trained(config, request))
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["outcome"]
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


def train_together(configs: Sequence[Config], request: Request) -> None:
    """Train what is not finished of these, request.jobs at the same time, each in a process.

    One that fails is left to its row, which tries again and tells why. Stopped if one was stopped.
    """
    waiting = {run_folder(config, request): config for config in configs}
    waiting = {path: config for path, config in waiting.items() if not _is_finished(path, config)}
    total, status = len(waiting), 0
    running: dict[subprocess.Popen[bytes], tuple[Path, Config]] = {}
    with ExitStack() as stack:
        while waiting or running:
            while waiting and len(running) < request.jobs and not status:
                path = next(iter(waiting))
                config = waiting.pop(path)
                say(f"Training {path.name}; it speaks in {path}.log")
                running[_started(path, config, request, stack)] = (path, config)
            for process in [process for process in running if process.poll() is not None]:
                path, config = running.pop(process)
                if process.returncode == 0:
                    _keep_outcome(path, config, request)
                elif process.returncode > 128:
                    status = process.returncode
                    waiting.clear()
                left = counted(len(waiting) + len(running), "training")
                how = "finished" if process.returncode == 0 else f"ended ({process.returncode})"
                say(f"{path.name} {how}; {left} of {total} left.")
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    if status:
        raise Stopped(status)


def _started(
    path: Path, config: Config, request: Request, stack: ExitStack
) -> subprocess.Popen[bytes]:
    """A process of `rankdet train` with these settings."""
    write_whole(Path(f"{path}.yaml"), dump(config).encode())
    log: IO[bytes] = stack.enter_context(Path(f"{path}.log").open("ab"))  # noqa: SIM115
    command = _command(path, request)
    return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def _command(path: Path, request: Request) -> list[str]:
    from rankdet.workflows.run import is_run

    words = [sys.executable, "-m", "rankdet", "train", "--config", f"{path}.yaml"]
    words += ["--out", str(path)]
    words += ["--device", request.device] if request.device else []
    return [*words, "--resume"] if is_run(path) else words


def _outcome_file(folder: Path) -> Path:
    return Path(f"{folder}.json")


def _is_finished(folder: Path, config: Config) -> bool:
    """Whether the outcome of these very settings is kept, and the run itself."""
    content = _read_json(_outcome_file(folder))
    is_kept = content is not None and content.get("config") == to_dict(config)
    return is_kept and folder.is_dir()


def _keep_outcome(folder: Path, config: Config, request: Request) -> None:
    content = {"config": to_dict(config), "outcome": _outcome(folder, request)}
    write_whole(_outcome_file(folder), (json.dumps(content, indent=2) + "\n").encode())


def _outcome(folder: Path, request: Request) -> dict[str, Any]:
    from rankdet.engine.records import read_metrics
    from rankdet.workflows.results import training_counts
    from rankdet.workflows.run import METRICS_FILE, RESULTS_FILE, read_checkpoint, read_run

    record = read_run(folder)
    rows = read_metrics(folder / METRICS_FILE)
    curve = [
        {name: value for name, value in row.items() if name != "kind"}
        for row in rows
        if row["kind"] == "evaluation"
    ]
    checkpoint = read_checkpoint(folder, "last")
    results: Mapping[str, Any] | None = None
    if curve:
        results = _results_of_step(folder / RESULTS_FILE, curve[-1]["step"])
        results = results or evaluated(folder, request, "last")
    return {
        "run": folder.name,
        "metrics": results["metrics"] if results else None,
        "classes": class_results(results) if results else None,
        "thresholds": list(results["thresholds"].values()) if results else None,
        "curve": curve,
        "inference": results["inference"] if results else None,
        "training": {
            "seconds": checkpoint.state.get("seconds"),
            "steps": checkpoint.step,
            "images": record.data["train"]["num_images"],
            "counts": training_counts(folder / METRICS_FILE, checkpoint.step),
        },
        "notes": list(record.notes),
    }


def _results_of_step(file: Path, step: int) -> dict[str, Any] | None:
    """results.json, if it is about the checkpoint of this step and not of a better one."""
    content = _read_json(file)
    return content if content is not None and content["checkpoint"]["step"] == step else None


def _read_json(file: Path) -> dict[str, Any] | None:
    """What a file of ours holds; None if it is not there or was damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
