"""The demo: a detector trained on the embedded set, judged, tried on images and reported on.

    OUT/ap, OUT/focal, ...   a run for each loss
    OUT/images               a few validation images
    OUT/found                what the first run's detector finds in them
    OUT/detections.jpg       the same on one sheet
    OUT/index.html           the report on all runs
    OUT/demo.json            says that the folder is ours, and with which seed

Every part is one that a user can call: the demo is nothing but their order. It can be called again
for the same folder: what is finished stays, what was stopped goes on.
"""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from PIL import Image

from rankdet.config import LOSS_NAMES, Config
from rankdet.data.dataset import open_dataset
from rankdet.engine.records import read_metrics
from rankdet.errors import CheckpointError, RankdetError, TrainingError, counted
from rankdet.metrics.evaluation import percent_text
from rankdet.output import refuse_foreign, write_whole
from rankdet.progress import say
from rankdet.report.page import MARK as PAGE_MARK
from rankdet.report.page import write_page
from rankdet.report.reading import ReportRun, read_report_runs
from rankdet.report.wording import HEADLINE
from rankdet.workflows import pictures
from rankdet.workflows.demo_record import MARK as RECORD_MARK
from rankdet.workflows.demo_record import demo_record
from rankdet.workflows.evaluate import evaluate
from rankdet.workflows.predict import PICTURES, predict
from rankdet.workflows.resume import settings_differences
from rankdet.workflows.run import METRICS_FILE, RESULTS_FILE, is_run, read_run
from rankdet.workflows.train import train

DEMO_FILE = "demo.json"
IMAGES = "images"
FOUND = "found"
SHEET = "detections.jpg"
PAGE = "index.html"

_KEY = "rankdet_demo"
_VERSION = 1
_NUM_IMAGES = 8  # that the detector is tried on
_FEWEST_OBJECTS = 2  # in such an image


def demo(
    out: Path,
    *,
    config: Config,
    compare: Sequence[str] = (),
    device: str | None = None,
    record: Path | None = None,
) -> int:
    """Run the demo in the folder `out`; the exit status: 0, or that of the signal that stopped it.

    config: of the first run; the runs of the losses in `compare` differ in the loss alone. Its
    evaluation is at the end of the training only, so that a run with one is finished. record: a
    JSON file for the numbers of all runs.
    """
    if config.evaluation.every:
        raise ValueError(f"expected evaluation.every = 0, got {config.evaluation.every}")
    wanted = {name: _with_loss(config, name) for name in (config.loss.name, *compare)}
    _claim(out, config.seed)
    if record is not None:
        refuse_foreign(record, RECORD_MARK)
    for name, settings in wanted.items():
        _refuse_other_settings(out / name, settings)
    failures: list[TrainingError] = []
    for number, (name, settings) in enumerate(wanted.items(), start=1):
        say(f"Run {number} of {len(wanted)}: the loss {name}, in {out / name}.")
        try:
            status = _finish(out / name, settings, device)
        except TrainingError as error:  # of numbers that are not finite: the others may do better
            if name == config.loss.name:
                raise
            say(f"The loss {name} failed: {error}")
            failures.append(error)
            continue
        if status:
            return status
    _write_images(out / IMAGES, config)
    predict(out / config.loss.name, [out / IMAGES], out / FOUND, device=device)
    _write_sheet(out)
    say("Writing the report.")
    reported = read_report_runs(_finished_runs(out, config))
    write_page(reported, out / PAGE)
    if record is not None:
        write_whole(record, (json.dumps(demo_record(reported), indent=2) + "\n").encode())
    _print_summary(out, reported, config.seed)
    if failures:
        raise TrainingError(
            f"{counted(len(failures), 'run')} of {len(wanted)} failed, and the report goes "
            f"without: {' '.join(map(str, failures))}"
        )
    return 0


def is_finished(path: Path) -> bool:
    """Whether the folder has a run of the demo that was trained to its end and evaluated there.

    results.json alone does not say it: a run that was stopped can be evaluated too.
    """
    rows = read_metrics(path / METRICS_FILE) if is_run(path) else []
    steps = [row["step"] for row in rows if row.get("kind") == "evaluation"]
    return bool(steps) and _evaluated_step(path / RESULTS_FILE) == steps[-1]


def _evaluated_step(file: Path) -> int | None:
    """The step of the checkpoint that a results file is about; None if it does not say it."""
    try:
        step = json.loads(file.read_bytes())["checkpoint"]["step"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return step if isinstance(step, int) else None


def _with_loss(config: Config, name: str) -> Config:
    return (
        config
        if name == config.loss.name
        else replace(config, loss=replace(config.loss, name=name))
    )


def _claim(out: Path, seed: int) -> None:
    """Make the folder one of ours; RankdetError if it is not, or has a demo with another seed."""
    file = out / DEMO_FILE
    if not file.exists():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise RankdetError(
                f"{out}: this is neither a new folder nor one of a demo: {DEMO_FILE} is missing. "
                "Nothing was changed. Give another one with --out."
            )
        write_whole(file, (json.dumps({_KEY: _VERSION, "seed": seed}) + "\n").encode())
    stored = _read_demo(file)
    if stored["seed"] != seed:
        raise RankdetError(
            f"{file}: seed = {stored['seed']}: this demo was started with another seed than "
            f"{seed}. Give --seed {stored['seed']} to go on with it, or another folder with --out."
        )
    refuse_foreign(out / PAGE, PAGE_MARK)
    refuse_foreign(out / SHEET, pictures.MARK)


def _read_demo(file: Path) -> dict[str, int]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RankdetError(f"{file}: this is not JSON: {error}. Give another --out.") from error
    if not isinstance(content, dict) or content.get(_KEY) != _VERSION or "seed" not in content:
        raise RankdetError(
            f"{file}: expected {_KEY} = {_VERSION} and a seed. The file was changed, or is of "
            "another version of rankdet. Give another --out."
        )
    return content


def _refuse_other_settings(path: Path, wanted: Config) -> None:
    """CheckpointError if the run in this folder would not be one of this demo."""
    if not is_run(path):
        return
    differences = settings_differences(read_run(path).config, wanted)
    if differences:
        raise CheckpointError(
            f"{path}: the run there has other settings than the demo: "
            f"{'; '.join(differences.values())}. Give another folder with --out."
        )


def _finish(path: Path, config: Config, device: str | None) -> int:
    """Train and evaluate what is not yet; the exit status of the training."""
    if is_finished(path):
        say("It is finished already, and is not trained again.")
        return 0
    status = train(
        path,
        make_config=lambda _: config,
        is_resumed=is_run(path),
        device=device,
        is_part=True,
    )
    if not status and not is_finished(path):  # results.json was removed, or is of an earlier step
        evaluate(path, device=device)
    return status


def _finished_runs(out: Path, config: Config) -> list[Path]:
    """The run of the demo's own loss, then those of others, also of earlier calls."""
    names = [config.loss.name, *(name for name in LOSS_NAMES if name != config.loss.name)]
    return [
        out / name
        for name in names
        if is_finished(out / name) and read_run(out / name).config == _with_loss(config, name)
    ]


def _write_images(folder: Path, config: Config) -> None:
    """Validation images with objects, as files; those that are there stay."""
    dataset = open_dataset(config.data.path, config.data.val_split or "val")
    counts = ((~dataset.target(index).is_ignored).sum() for index in range(len(dataset)))
    shown = (index for index, count in enumerate(counts) if count >= _FEWEST_OBJECTS)
    for index in islice(shown, _NUM_IMAGES):
        file = folder / f"{index:06d}.png"
        if not file.exists():
            stream = io.BytesIO()
            Image.fromarray(dataset.image(index).permute(1, 2, 0).numpy()).save(stream, "PNG")
            write_whole(file, stream.getvalue())


def _write_sheet(out: Path) -> None:
    """All pictures of the detections as one."""
    found = [Image.open(file) for file in sorted((out / FOUND / PICTURES).glob("*.jpg"))]
    write_whole(out / SHEET, pictures.jpeg(pictures.contact_sheet(found)))


def _print_summary(out: Path, reported: Sequence[ReportRun], seed: int) -> None:
    """The numbers of every run, and where to look."""
    num_images = reported[0].results["data"]["num_images"]
    print(f"\nOn {num_images} images that were not trained on, in percent:\n")
    print("loss      " + "".join(f"{name:>7}" for name in HEADLINE) + "   training")
    for run in reported:
        metrics = run.results["metrics"]
        numbers = "".join(f"{percent_text(metrics[name]):>7}" for name in HEADLINE)
        seconds = run.results["training"]["wall_time_seconds"]
        print(f"{run.loss:10}{numbers}{'' if seconds is None else f'{seconds:9.0f} s'}")
    print(f"\nReport:     {out / PAGE} (open it in a browser)")
    print(f"Pictures:   {out / SHEET}, and each in {out / FOUND / PICTURES}")
    if len(reported) == 1:
        again = ["rankdet", "demo", "--compare", "focal,ohem,auc", "--out", str(out)]
        again += ["--seed", str(seed)] if seed else []  # which the folder would refuse to change
        print(f"Other losses: {shlex.join(again)}")
    print("Your data:  rankdet train DATA --weights imagenet --out runs/mine")
