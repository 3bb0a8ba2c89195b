"""Which images an evaluation is about, and whether the detector of a run can be judged by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rankdet.config import Config, DataConfig, EvaluationConfig
from rankdet.config.effects import validation_name
from rankdet.data.chosen import ChosenImages
from rankdet.data.dataset import DetectionDataset
from rankdet.data.fingerprint import fingerprint
from rankdet.data.reading.choice import SYNTHETIC_SPLITS, choose_splits, training_pairs
from rankdet.data.reading.formats import split_names
from rankdet.errors import CheckpointError, ConfigError, DataError, listed
from rankdet.workflows.opening import (
    divided,
    notes_on_left_out,
    open_with_progress,
    refuse_moved,
)
from rankdet.workflows.results import results_name
from rankdet.workflows.run import RESULTS_FILE, RunRecord

_MOST_NAMES = 10  # classes that a message lists


@dataclass(frozen=True)
class Choice:
    """The settings of an evaluation, with its data and its split in them.

    split: what the images are called: a split, or the held-out part of one. is_own_data: those of
    the training. is_validation: and the images that the training had for it. is_named: the user
    has named the split.
    """

    config: Config
    split: str
    is_own_data: bool
    is_validation: bool
    is_named: bool


def choose_data(
    record: RunRecord,
    data: str | None,
    split: str | None,
    changes: Callable[[Config], Config],
    command: str = "rankdet evaluate RUN DATA",
) -> Choice:
    """What the user wants to evaluate on: by default what the run had for it.

    command: how to name other data, for a message.
    """
    base = record.config
    if data is not None:  # what was said about the run's data does not hold for others
        of_data = replace(base.data, path=data, format=None, train_split=None)
        base = replace(base, data=replace(of_data, val_split=None, hold_out=None))
    config = changes(base)
    for section in ("detector", "loss"):
        if getattr(config, section) != getattr(record.config, section):
            raise ConfigError(
                f"{section}: these settings belong to the trained network and cannot be changed "
                f"for an evaluation. Leave out --set {section}...."
            )
    path, own = config.data.path, record.config.data
    if path == own.path:
        refuse_moved(path, command + hold_out_again(own))
    if split is not None and config.data.hold_out != base.data.hold_out:
        raise ConfigError(
            "--split, data.hold_out: a split that is named is evaluated on as a whole. Leave one "
            "of the two out."
        )
    chosen = _with_split(config.data, own, split)
    name = validation_name(chosen)
    assert name is not None
    return Choice(
        config=replace(config, data=chosen),
        split=name,
        is_own_data=path == own.path,
        is_validation=path == own.path and name == validation_name(own),
        is_named=split is not None,
    )


def _with_split(data: DataConfig, own: DataConfig, split: str | None) -> DataConfig:
    """The data with the images to evaluate on: a whole split, or what is held out of one.

    own: of the training. Who holds out of other data means those, at another place.
    """
    if split is not None:
        return replace(data, val_split=split, hold_out=None)
    if data.hold_out is None:
        return replace(data, val_split=data.val_split or _usual_split(data.path, data.format))
    train_split = data.train_split or own.train_split or choose_splits(data.path, data.format)[0]
    return replace(data, train_split=train_split)


def hold_out_again(own: DataConfig) -> str:
    """What a command needs, beside other data, for the held-out images of a run; else empty."""
    return "" if own.hold_out is None else f" --set data.hold_out={own.hold_out}"


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
    dataset = _open(choice.config.data, classes)
    if dataset.is_annotated:
        _check_classes(choice, dataset.classes, record.classes)
    if dataset.classes != record.classes:  # in another order, or not all of them
        dataset = _open(choice.config.data, record.classes)
    if dataset.classes != record.classes:  # the embedded set has always its own
        raise CheckpointError(
            f"the run has the classes {_listed(record.classes)}: not those of the data set "
            f"{choice.config.data.path}, {_listed(dataset.classes)}. Evaluate on other data."
        )
    return dataset


def _open(data: DataConfig, classes: tuple[str, ...] | None) -> DetectionDataset:
    """The split to evaluate on; or that to train on, of which the held-out images are taken."""
    if data.hold_out is None:
        assert data.val_split is not None
        return open_with_progress(data, data.val_split, classes)
    assert data.train_split is not None
    _, held_out = divided(open_with_progress(data, data.train_split, classes), data)
    return held_out


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
    data, own = choice.config.data, record.config.data
    if isinstance(dataset, ChosenImages):  # what is left out, is so of the split as a whole
        notes = notes_on_left_out(str(data.train_split), dataset.base)
    else:
        notes = notes_on_left_out(choice.split, dataset)
    if own.hold_out is not None and data.hold_out is None:
        notes += _notes_on_held_out(choice, own)
    if choice.is_validation and _validation_fingerprint(record) not in (None, fingerprint(dataset)):
        notes.append(f"{choice.split}: the data are not the same any more as in the training.")
    return notes


def _notes_on_held_out(choice: Choice, own: DataConfig) -> list[str]:
    """That a run which has held images out is evaluated on others, where this may not be meant."""
    if choice.split == own.train_split:
        return [
            f"{choice.split}: the run has learnt from most images of a split of this name; its "
            f"held-out images alone are evaluated with{hold_out_again(own)}."
        ]
    if choice.is_own_data or choice.is_named:
        return []
    return [
        f"{choice.split}: the run itself was evaluated on {validation_name(own)}. If these are its "
        f"data at another place,{hold_out_again(own)} evaluates on those images again."
    ]


def _validation_fingerprint(record: RunRecord) -> str | None:
    """That of the run's validation split when the training began; None if it had no such split."""
    return (record.data.get("val") or {}).get("fingerprint")
