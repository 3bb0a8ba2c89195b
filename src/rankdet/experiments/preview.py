"""What a command of `rankdet reproduce` would do: its rows, and how far each of them is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rankdet.config import Config
from rankdet.errors import counted
from rankdet.experiments.arms import unfinished_trainings
from rankdet.experiments.experiment import Experiment, Request, Row, begun_record, chosen_keys

# What a row says of itself.
_RECORDED = "recorded"
_LEFT_OUT = "left out by --rows"
_TO_RECORD = "trained, to be recorded"
_TRAINED = "trained, the rest is to do"
_TO_DO = "to do"


def preview(experiment: Experiment, request: Request, *, is_forced: bool = False) -> str:
    """The rows of an experiment in lines, and what is left of them; runs and writes nothing.

    As if it were run now: what other experiments of the same command would finish before is not
    known. Of a row that says nothing of its trainings, no length is. Raises what `reproduce` would
    raise before its first row.
    """
    rows = experiment.plan(request)
    chosen = chosen_keys(experiment, rows, request.rows)
    record = begun_record(experiment, request, rows, chosen, is_forced)
    states = {row.key: _state(row, record, row.key in chosen, request) for row in rows}
    width = max(map(len, states), default=0)
    lines = [f"  {key:{width}}  {state}" for key, state in states.items()]
    left = [row for row in rows if states[row.key] not in (_RECORDED, _LEFT_OUT)]
    return "\n".join([f"{experiment.name}: {experiment.summary}", *lines, _sum(left, request)])


def _state(row: Row, record: Mapping[str, Any], is_chosen: bool, request: Request) -> str:
    entry = record["rows"].get(row.key, {})
    if "result" in entry:
        return _RECORDED
    if not is_chosen:
        return _LEFT_OUT
    before = f"failed before: {entry['error']}; " if "error" in entry else ""
    if not row.trainings:
        return before + _TO_DO
    if unfinished := unfinished_trainings([row], request):
        return f"{before}to train: {_length(unfinished.values())}"
    return before + (_TO_RECORD if row.is_outcome else _TRAINED)


def _sum(left: Sequence[Row], request: Request) -> str:
    """How much there is to do."""
    if not left:
        return "Nothing is left to do."
    words = f"{counted(len(left), 'row')} to do"
    if not (unfinished := unfinished_trainings(left, request)):
        return f"{words}."
    return f"{words}, with {counted(len(unfinished), 'training')}: {_length(unfinished.values())}."


def _length(configs: Collection[Config]) -> str:
    """How long trainings are, together; one that was begun counts in full."""
    limits = [config.training.max_steps for config in configs]
    epochs = sum(config.training.epochs for config in configs if config.training.max_steps is None)
    steps = sum(limit for limit in limits if limit is not None)
    parts = [counted(epochs, "epoch")] * bool(epochs)
    # A limit in steps may lie beyond the last epoch: which comes first, the data would say.
    parts += [f"at most {counted(steps, 'step')}"] * bool(steps)
    return " and ".join(parts)
