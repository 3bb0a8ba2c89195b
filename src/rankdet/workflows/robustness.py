"""`rankdet robustness`: how the detector of a run does on perturbed images."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import Tensor

from rankdet import build
from rankdet.config import Config
from rankdet.config.effects import training_name
from rankdet.data.chosen import ChosenImages
from rankdet.data.dataset import DetectionDataset
from rankdet.data.loading.workers import make_ready
from rankdet.engine.checkpoint import Checkpoint
from rankdet.errors import ConfigError, DataError, printable
from rankdet.output import refuse_foreign, write_whole
from rankdet.robustness import patch_files
from rankdet.robustness.adversarial import PatchSettings
from rankdet.robustness.suite import ADVERSARIAL, select
from rankdet.workflows import pictures
from rankdet.workflows.evaluation_data import (
    Choice,
    choose_data,
    hold_out_again,
    notes_on_data,
    open_data,
)
from rankdet.workflows.opening import divided, has_objects, refuse_moved
from rankdet.workflows.results import write_results
from rankdet.workflows.robustness_measures import Subject, make_patch, measure
from rankdet.workflows.robustness_results import (
    MARK,
    example_sheet,
    print_robustness,
    robustness_content,
)
from rankdet.workflows.run import RunRecord, read_checkpoint, read_run, trained_detector

ROBUSTNESS_FILE = "robustness.json"
PATCH_STEM = "robustness-patch"  # .png and .safetensors
EXAMPLES_FILE = "robustness-examples.jpg"


def robustness(
    run: Path,
    *,
    data: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    only: Sequence[str] = (),
    with_corruptions: bool = False,
    train_split: str | None = None,
    patch_file: Path | None = None,
    patch_settings: PatchSettings | None = None,
    deepfool_objects: int | None = 200,
    seed: int = 0,
    checkpoint: str = "best",
    changes: Callable[[Config], Config] = lambda config: config,
    device: str | None = None,
    out: Path | None = None,
    is_forced: bool = False,
) -> dict[str, Any]:
    """What robustness.json says, after it was written and a table of it printed.

    data, split, checkpoint, changes: as of `evaluate`. limit: the first so many images. only: names
    of perturbations (`suite.select`); the original images are always evaluated. train_split: where
    the adversarial patch is trained, a split of `data`, or of the run's data; by default what is
    left of a split where images are held out to evaluate on, else the run's own training split.
    patch_file: a patch to use in place of a new one. deepfool_objects: attack
    the first so many detected objects; None: all. out: the folder of the files, by default the run;
    is_forced: replace files that are there.
    """
    start = time.monotonic()
    selection = select(only, with_corruptions=with_corruptions)
    needs_patch = ADVERSARIAL in selection.perturbations
    _refuse_useless(needs_patch, train_split, patch_file)
    record = read_run(run)
    chosen_device = build.device(device)
    choice = choose_data(record, data, split, changes, command="rankdet robustness RUN DATA")
    files = _Files(run if out is None else out)
    files.refuse(needs_patch and patch_file is None, is_forced)
    make_ready(choice.config.data.workers)
    whole = open_data(choice, record)
    dataset = _with_objects(whole, choice, limit)
    loaded = read_checkpoint(run, checkpoint)
    detector = trained_detector(record, loaded, chosen_device)
    subject = Subject(detector, choice.config, record.activation, chosen_device)
    settings = replace(patch_settings or PatchSettings(), seed=seed)
    patch, origin = None, None
    if needs_patch:
        patch, origin = _patch(subject, record, choice, train_split, patch_file, settings, files)
    measures = measure(
        subject, dataset, selection, seed=seed, patch=patch, deepfool_objects=deepfool_objects
    )
    content = robustness_content(
        measures,
        record=record,
        config=choice.config,
        checkpoint=_position(loaded),
        settings={"seed": seed, "limit": limit, "deepfool_objects": deepfool_objects},
        patch=origin,
        seconds=time.monotonic() - start,
    )
    notes = [*notes_on_data(choice, record, whole), f"Evaluated {loaded.path.name}."]
    _write(files, content, example_sheet(measures) if content["pictures"] else None, notes)
    return content


def _write(
    files: _Files, content: dict[str, Any], examples: bytes | None, notes: Sequence[str]
) -> None:
    """Write the files and print the table; examples: the sheet of pictures, if it is wanted."""
    write_results(files.results, content)
    written = [str(files.results)]
    if examples is not None:
        write_whole(files.examples, examples)
        written.append(str(files.examples))
    if content["patch"] is not None and content["patch"]["is_trained_here"]:
        written += map(str, files.patch)
    # A pipe has no width; at rich's usual 80 columns the table would be folded.
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    print_robustness(content, console)
    for note in (*notes, f"Wrote {', '.join(written)}."):
        console.print(printable(note), markup=False, soft_wrap=True)


@dataclass(frozen=True)
class _Files:
    """Where the results go."""

    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / ROBUSTNESS_FILE

    @property
    def examples(self) -> Path:
        return self.folder / EXAMPLES_FILE

    @property
    def patch_stem(self) -> Path:
        return self.folder / PATCH_STEM

    @property
    def patch(self) -> tuple[Path, Path]:
        return self.patch_stem.with_suffix(".png"), self.patch_stem.with_suffix(".safetensors")

    def refuse(self, writes_patch: bool, is_forced: bool) -> None:
        """RankdetError if a file of somebody else's, or a record that took hours, is in the way."""
        refuse_foreign(self.results, MARK, is_forced)
        if self.results.exists() and not is_forced:
            raise ConfigError(
                f"{self.results}: there is a record already. Give --force to replace it, or "
                "another folder with --out."
            )
        refuse_foreign(self.examples, pictures.MARK, is_forced)
        if writes_patch:
            for file in self.patch:
                refuse_foreign(file, patch_files.MARK, is_forced)


def _refuse_useless(needs_patch: bool, train_split: str | None, patch_file: Path | None) -> None:
    if not needs_patch and (train_split is not None or patch_file is not None):
        option = "--patch" if train_split is None else "--train-split"
        raise ConfigError(
            f"{option}: it is for the adversarial patch, which --only leaves out. "
            "Leave one of the two out."
        )
    if train_split is not None and patch_file is not None:
        raise ConfigError(
            "--patch, --train-split: a patch that is given is not trained. Give one of the two."
        )


def _with_objects(dataset: DetectionDataset, choice: Choice, limit: int | None) -> DetectionDataset:
    """The images to be perturbed; DataError if there is nothing to find in them."""
    if limit is not None and limit < len(dataset):
        dataset = ChosenImages(dataset, range(limit))
    if not dataset.is_annotated or not has_objects(dataset):
        what = "annotations" if not dataset.is_annotated else "objects"
        raise DataError(
            f"expected a split with {what}: patches lie on objects, and AP counts them",
            file=choice.config.data.path,
            field="split",
            value=choice.split,
            detail=f"None of the {len(dataset)} images has any.",
            hint="Give another --split, or a larger --limit.",
        )
    return dataset


def _patch(
    subject: Subject,
    record: RunRecord,
    evaluated: Choice,
    train_split: str | None,
    file: Path | None,
    settings: PatchSettings,
    files: _Files,
) -> tuple[Tensor, dict[str, Any]]:
    """The patch, and where it comes from; a new one is written beside the results at once."""
    if file is not None:
        patch = patch_files.read_patch(file)
        return patch, {"file": str(file), "is_trained_here": False}
    config, split = _patch_data(record, evaluated, train_split)
    choice = Choice(
        config=replace(config, data=replace(config.data, val_split=split, hold_out=None)),
        split=split,
        is_own_data=True,
        is_validation=False,
        is_named=train_split is not None,
    )
    whole = open_data(choice, record)
    is_divided = config.data.hold_out is not None and split == config.data.train_split
    part = divided(whole, config.data)[0] if is_divided else whole  # none that is evaluated on
    dataset = _with_objects(part, choice, None)
    patch = make_patch(subject, dataset, settings)
    _, weights = patch_files.write_patch(files.patch_stem, patch)
    origin = {
        "file": weights.name,
        "is_trained_here": True,
        "data": config.data.path,
        "split": training_name(config.data) if is_divided else split,
        "num_images": len(dataset),
        "settings": dataclasses.asdict(settings),
    }
    return patch, origin


def _patch_data(
    record: RunRecord, evaluated: Choice, train_split: str | None
) -> tuple[Config, str]:
    """Settings with the data that the patch is trained on, and the name of the split."""
    is_divided = evaluated.config.data.hold_out is not None  # then the rest of the same split
    if is_divided or (train_split is not None and not evaluated.is_own_data):
        config = evaluated.config
    else:
        config = record.config
    split = train_split or config.data.train_split
    if split is None:
        raise ConfigError(
            "--train-split: the run does not say on which split it was trained, and the "
            "adversarial patch needs one. Name it, or give a patch with --patch."
        )
    if config is record.config:
        # A share to hold out is refused beside a split that is named.
        again = "" if evaluated.is_named else hold_out_again(config.data)
        refuse_moved(
            config.data.path, f"rankdet robustness RUN DATA{again or ' --train-split SPLIT'}"
        )
    return config, split


def _position(loaded: Checkpoint) -> dict[str, Any]:
    epoch = loaded.state["position"]["epoch"]
    return {"name": loaded.path.name, "step": loaded.step, "epoch": epoch}
