"""Evaluate a detector: one in memory, on a data set; or that of a run directory, by command."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from rankdet import build
from rankdet.config import Config
from rankdet.data.augmentation.store import ImageStore
from rankdet.data.dataset import DetectionDataset
from rankdet.data.loading.held import HeldLoader
from rankdet.data.loading.loader import Loader
from rankdet.data.loading.workers import make_ready
from rankdet.data.processors import usual_num_workers
from rankdet.data.reading.formats import recognise
from rankdet.engine.checkpoint import Checkpoint, best_checkpoint
from rankdet.engine.detect import AnyBatch, Detected, detect
from rankdet.engine.distributed import ALONE, Processes
from rankdet.errors import DataError, counted, printable
from rankdet.metrics.anchor_scores import AnchorScores, empty_counts
from rankdet.metrics.coco import evaluate_coco
from rankdet.metrics.evaluation import Evaluation
from rankdet.metrics.voc import evaluate_voc
from rankdet.output import refuse_foreign
from rankdet.progress import progress
from rankdet.structures import Detections, Predictions
from rankdet.workflows.evaluation_data import (
    Choice,
    choose_data,
    notes_on_data,
    open_data,
    results_file,
)
from rankdet.workflows.results import (
    MARK,
    Outcome,
    print_results,
    refuse_occupied,
    results_content,
    speed,
    training_counts,
    write_results,
    write_submission,
)
from rankdet.workflows.run import (
    CHECKPOINTS,
    METRICS_FILE,
    RESULTS_FILE,
    read_checkpoint,
    read_run,
    trained_detector,
)


def evaluate_dataset(
    detector: nn.Module,
    dataset: DetectionDataset,
    config: Config,
    *,
    activation: str,
    device: torch.device,
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    processes: Processes = ALONE,
    store: ImageStore | None = None,
) -> Outcome | None:
    """How good the detector is on an annotated data set; None if `should_stop` said so.

    The detector is on the device; the data set has the detector's classes. config: evaluation says
    how, data.path and data.format which protocol is meant if it is not named. on_batch is told how
    many images were done. Several processes share the images out; process 0 has the outcome, and
    the others None. store: the images, where they are held on the device; None: they are read.
    """
    anchors = AnchorScores(activation)
    detected = detect_dataset(
        detector,
        dataset,
        config,
        activation=activation,
        device=device,
        on_batch=on_batch,
        should_stop=should_stop,
        anchors=anchors,
        processes=processes,
        store=store,
    )
    if detected is None:
        return None
    _add_up(anchors, processes)
    if not processes.is_first:
        return None
    return Outcome(judge(detected.detections, dataset, config), detected, anchors)


def detect_dataset(
    detector: nn.Module,
    dataset: DetectionDataset,
    config: Config,
    *,
    activation: str,
    device: torch.device,
    on_batch: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    anchors: AnchorScores | None = None,
    processes: Processes = ALONE,
    store: ImageStore | None = None,
) -> Detected | None:
    """What the detector finds in each image; arguments as of `evaluate_dataset`.

    anchors: where the scores of all anchors are counted, if the images are annotated.
    """
    views = build.evaluation_views(
        config.evaluation,
        dataset,
        device=device,
        workers=_num_workers(config),
        rank=processes.rank,
        world_size=processes.world_size,
        store=store,
    )
    with ExitStack() as stack:
        for view in views:
            assert isinstance(view.loader, Loader | HeldLoader)
            stack.callback(view.loader.close)  # ends its worker processes
        detected = detect(
            detector,
            build.postprocess(config, activation),
            views,
            dataset.size,
            device=device,
            channels_last=build.is_channels_last(config.training, device),
            on_batch=on_batch,
            on_outputs=None if anchors is None else _counting(anchors),
            should_stop=should_stop,
            processes=processes,
        )
    assert detected is None or len(detected.detections) == len(dataset) * processes.is_first
    return detected


def _add_up(anchors: AnchorScores, processes: Processes) -> None:
    """Let the counts be those of all processes."""
    if processes.is_alone:
        return
    own = empty_counts() if anchors.counts is None else anchors.counts.cpu()
    anchors.counts = processes.summed(own)


def _counting(anchors: AnchorScores) -> Callable[[list[Predictions], AnyBatch], None]:
    """What adds the last stage's scores, by which detections are made."""
    return lambda stages, batch: anchors.add(stages[-1], batch.targets, batch.sizes)


def _num_workers(config: Config) -> int | None:
    """Of each view. Every view has worker processes of its own: together as many as usual."""
    num_views = len(build.evaluation_transforms(config.evaluation))
    if config.data.workers is not None or num_views == 1:
        return config.data.workers
    return max(1, usual_num_workers(most=8) // num_views)


def judge(detections: list[Detections], dataset: DetectionDataset, config: Config) -> Evaluation:
    """The numbers of the protocol that the settings name, or that belongs to the data's format."""
    targets = [dataset.target(index) for index in range(len(dataset))]
    evaluate_as = evaluate_voc if protocol_of(config) == "voc" else evaluate_coco
    most = config.evaluation.max_detections
    return evaluate_as(detections, targets, dataset.classes, max_detections=most)


def protocol_of(config: Config) -> str:
    """As named; else "voc" for VOC and embedded data, and "coco" for COCO and YOLO data."""
    if config.evaluation.protocol is not None:
        return config.evaluation.protocol
    if config.data.path == "synthetic":
        return "voc"
    return "voc" if (config.data.format or recognise(config.data.path)) == "voc" else "coco"


def evaluate(
    run: Path,
    *,
    data: str | None = None,
    split: str | None = None,
    checkpoint: str = "best",
    changes: Callable[[Config], Config] = lambda config: config,
    out: Path | None = None,
    submission: Path | None = None,
    device: str | None = None,
    is_forced: bool = False,
) -> None:
    """Evaluate the detector of a run: print a table and write results.json.

    data and split: which images; by default the run's validation split. Another data set must not
    have classes that the run does not know. checkpoint: "best", "last" or the name of one. changes:
    of the run's settings, for this evaluation. submission: a new folder for the files that
    evaluation servers take; a split without annotations has no other result.

    out: by default RUN/results.json for the validation split, whose thresholds `rankdet predict`
    uses; RUN/results-SPLIT-other-settings.json if scales or thresholds were changed,
    RUN/results-SPLIT.json for another split of the same data, and RUN/results-DATA-SPLIT.json for
    other data: these leave results.json as it is. is_forced: replace files that are not ours.
    """
    start = time.monotonic()
    record = read_run(run)
    chosen_device = build.device(device)
    choice = choose_data(record, data, split, changes)
    if submission is not None:
        refuse_occupied(submission, is_forced)
    make_ready(choice.config.data.workers)
    dataset = open_data(choice, record)
    if dataset.is_annotated:
        file = out or run / results_file(choice, record, dataset)
        refuse_foreign(file, MARK, is_forced)
    elif submission is None:
        raise _nothing_to_compare(choice)
    loaded = read_checkpoint(run, checkpoint)
    detector = trained_detector(record, loaded, chosen_device)
    notes = notes_on_data(choice, record, dataset) + _notes_on_checkpoint(run, checkpoint, loaded)
    anchors = AnchorScores(record.activation) if dataset.is_annotated else None
    detected = _detect_with_bar(
        detector, dataset, choice.config, record.activation, chosen_device, anchors
    )
    # A pipe has no width; at rich's usual 80 columns the table would be folded.
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    if submission is not None:
        notes.append(_submit(submission, detected, dataset, choice))
    if anchors is not None:
        outcome = Outcome(judge(detected.detections, dataset, choice.config), detected, anchors)
        content = results_content(
            outcome,
            dataset,
            record=record,
            config=choice.config,
            checkpoint=_position(loaded),
            seconds=time.monotonic() - start,
            training_seconds=loaded.state.get("seconds"),
            counts=training_counts(run / METRICS_FILE, loaded.step),
        )
        write_results(file, content)
        print_results(outcome, console)
        notes += _notes_on_file(run, file)
    else:
        console.print(speed(detected), soft_wrap=True)
        notes.append(f"{choice.split}: the split has no annotations, so there are no metrics.")
    for note in notes:
        console.print(printable(note), markup=False, soft_wrap=True)


def _position(loaded: Checkpoint) -> dict[str, Any]:
    """What results.json says of the checkpoint."""
    epoch = loaded.state["position"]["epoch"]
    return {"name": loaded.path.name, "step": loaded.step, "epoch": epoch}


def _nothing_to_compare(choice: Choice) -> DataError:
    return DataError(
        "the split has no annotations: there is nothing to compare with",
        file=choice.config.data.path,
        field="split",
        value=choice.split,
        hint="Give --submission FOLDER for files that an evaluation server takes, or a split with "
        "annotations.",
    )


def _detect_with_bar(
    detector: nn.Module,
    dataset: DetectionDataset,
    config: Config,
    activation: str,
    device: torch.device,
    anchors: AnchorScores | None,
) -> Detected:
    with progress("Detecting") as meter:
        meter.expect(len(dataset))
        detected = detect_dataset(
            detector,
            dataset,
            config,
            activation=activation,
            device=device,
            on_batch=meter.advance,
            anchors=anchors,
        )
    assert detected is not None  # nobody stops it
    return detected


def _submit(folder: Path, detected: Detected, dataset: DetectionDataset, choice: Choice) -> str:
    protocol = protocol_of(choice.config)
    files = write_submission(folder, detected.detections, dataset, protocol, choice.split)
    count = counted(len(files), "file")
    return f"Wrote {count} for the {protocol.upper()} evaluation server to {folder}."


def _notes_on_checkpoint(run: Path, asked: str, loaded: Checkpoint) -> list[str]:
    if asked == "best" and best_checkpoint(run / CHECKPOINTS) is None:
        return [f"There is no best checkpoint: {loaded.path.name}, the last one, was evaluated."]
    return [f"Evaluated {loaded.path.name}."]


def _notes_on_file(run: Path, file: Path) -> list[str]:
    """Which file was written, and whether it is the one that prediction reads."""
    notes = [f"Wrote {file}."]
    usual = run / RESULTS_FILE
    if file.resolve() != usual.resolve():
        what = "stays as it is" if usual.exists() else "is not there yet"
        notes.append(f"`rankdet predict` takes its thresholds from {usual}, which {what}.")
    return notes
