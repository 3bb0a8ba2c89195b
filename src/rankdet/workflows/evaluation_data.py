"""Which images an evaluation is about, and whether the detector of a run can be judged by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankdet.config import Config, EvaluationConfig
from rankdet.data.dataset import DetectionDataset
from rankdet.data.fingerprint import fingerprint
from rankdet.data.reading.choice import SYNTHETIC_SPLITS, training_pairs
from rankdet.data.reading.formats import split_names
from rankdet.errors import CheckpointError, ConfigError, DataError, listed
from rankdet.workflows.opening import notes_on_left_out, open_with_progress, refuse_moved
from rankdet.workflows.results import results_name
from rankdet.workflows.run import RESULTS_FILE, RunRecord

_MOST_NAMES = 10  # classes that a message lists


@dataclass(frozen=True)
class Choice:
    """The settings of an evaluation, with its data and its split in them.

    is_own_data: those of the training. is_validation: and the split that the training had for it.
    """

    config: Config
    split: str
    is_own_data: bool
    is_validation: bool


def choose_data(
    record: RunRecord,
    data: str | None,
    split: str | None,
    changes: Callable[[Config], Config],
    command: str = "rankdet evaluate RUN DATA",
) -> Choice:
    """What the user wants to evaluate on: by default the validation split of the run.

    command: how to name other data, for a message.
    """
    base = record.config
    if data is not None:  # what was said about the run's data does not hold for others
        of_data = replace(base.data, path=data, format=None, train_split=None, val_split=None)
        base = replace(base, data=of_data)
    config = changes(base)
    for section in ("detector", "loss"):
        if getattr(config, section) != getattr(record.config, section):
            raise ConfigError(
                f"{section}: these settings belong to the trained network and cannot be changed "
                f"for an evaluation. Leave out --set {section}...."
            )
    path, own = config.data.path, record.config.data
    if path == own.path:
        refuse_moved(path, command)
    split = split or config.data.val_split or _usual_split(path, config.data.format)
    return Choice(
        config=replace(config, data=replace(config.data, val_split=split)),
        split=split,
        is_own_data=path == own.path,
        is_validation=path == own.path and split == own.val_split,
    )


def _usual_split(path: str, format: str | None) -> str:
    """The validation split by its name, or the only one; never one that is called test."""
    if path == "synthetic":
        return SYNTHETIC_SPLITS[1]
    names = split_names(path, format)
    if len(names) == 1:
        return names[0]
    found = {validation for _, validation in training_pairs(names) if validation is not None}
    if len(found) != 1:
        raise DataError(
            "it is not clear which split to evaluate on",
            file=path,
            detail=f"There are {', '.join(names)}." if names else "There is none at all.",
            hint="Name it with --split.",
        )
    return found.pop()


def open_data(choice: Choice, record: RunRecord) -> DetectionDataset:
    """The data set with the classes of the run; DataError if it has others."""
    classes = record.classes if choice.is_validation else None
    dataset = open_with_progress(choice.config.data, choice.split, classes)
    if dataset.is_annotated:
        _check_classes(choice, dataset.classes, record.classes)
    if dataset.classes != record.classes:  # in another order, or not all of them
        dataset = open_with_progress(choice.config.data, choice.split, record.classes)
    if dataset.classes != record.classes:  # the embedded set has always its own
        raise CheckpointError(
            f"the run has the classes {_listed(record.classes)}: not those of the data set "
            f"{choice.config.data.path}, {_listed(dataset.classes)}. Evaluate on other data."
        )
    return dataset


def _check_classes(choice: Choice, found: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Refuse data with classes that the detector never learnt: it cannot find them.

    Classes that only the detector knows are no obstacle: without objects they are n/a.
    """
    unknown = [name for name in found if name not in known]
    if not unknown:
        return
    missing = [name for name in known if name not in found]
    detail = f"The run does not know {_listed(unknown)}."
    if missing:
        detail += f" The data do not have {_listed(missing)}."
    raise DataError(
        "expected the classes of the run",
        file=choice.config.data.path,
        field="split",
        value=choice.split,
        detail=detail,
        hint="Rename the classes. To leave out objects of other classes, name those of the run: "
        f"--set data.classes={_as_setting(known)}.",
    )


def _listed(names: Sequence[str]) -> str:
    return listed([repr(name) for name in names], _MOST_NAMES)


def _as_setting(names: tuple[str, ...]) -> str:
    more = ",..." if len(names) > _MOST_NAMES else ""
    return f"'[{','.join(names[:_MOST_NAMES])}{more}]'"


def results_file(choice: Choice, record: RunRecord, dataset: DetectionDataset) -> str:
    """The name of the file in the run directory: results.json for its validation split alone.

    That split is known by its content too: the data may lie elsewhere now. And the images must be
    looked at as prediction will look at them: other settings give other thresholds.
    """
    if choice.is_validation or _validation_fingerprint(record) == fingerprint(dataset):
        if _scoring(choice.config) == _scoring(record.config):
            return RESULTS_FILE
        return results_name(choice.split, "other-settings")
    if choice.is_own_data:
        return results_name(choice.split)
    return results_name(Path(choice.config.data.path).resolve().stem, choice.split)


def _scoring(config: Config) -> EvaluationConfig:
    """What decides about scores: not when, in which batches, by which protocol, with pictures."""
    return replace(config.evaluation, every=0, batch_size=1, protocol=None, pictures=True)


def notes_on_data(choice: Choice, record: RunRecord, dataset: DetectionDataset) -> list[str]:
    """What the user should know about the data: files left out, or others than in the training."""
    notes = notes_on_left_out(choice.split, dataset)
    if choice.is_validation and _validation_fingerprint(record) not in (None, fingerprint(dataset)):
        notes.append(f"{choice.split}: the data are not the same any more as in the training.")
    return notes


def _validation_fingerprint(record: RunRecord) -> str | None:
    """That of the run's validation split when the training began; None if it had no such split."""
    return (record.data.get("val") or {}).get("fingerprint")
