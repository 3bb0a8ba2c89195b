"""Train a detector into a run directory, or go on with one.

Under torchrun every process runs this. Process 0 alone reads and writes the run directory and
speaks. Whatever may fail in one of them before the first step stands in `processes.together()`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from rankdet.config import Config, TrainingConfig
from rankdet.data.augmentation.store import ImageStore
from rankdet.detectors.criterion import batch_average_precision
from rankdet.engine.checkpoint import Checkpoint, load_checkpoint, newest_checkpoint
from rankdet.engine.display import TrainingDisplay
from rankdet.engine.distributed import PeerStopped, Processes, joined_processes
from rankdet.engine.schedule import learning_rate_factor, scaled_learning_rate
from rankdet.engine.sealed_folder import alone_in
from rankdet.engine.stopping import StopRequest
from rankdet.engine.train import Position, Report, training_steps
from rankdet.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    LoaderError,
    RankdetError,
    TrainingError,
    counted,
)
from rankdet.progress import say
from rankdet.workflows import run as runs
from rankdet.workflows.holding import held_validation
from rankdet.workflows.opening import refuse_moved
from rankdet.workflows.parts import Parts, prepare
from rankdet.workflows.recording import Recorder
from rankdet.workflows.resume import (
    check_same_data,
    check_same_everywhere,
    check_same_settings,
    note_on_processes,
    restore,
    seconds_before,
    sent_checkpoint,
    sent_config,
)
from rankdet.workflows.train_notes import hint_at_restarts, introduce, say_how_it_ended

# Given the settings of the run that goes on (None: a new run), those that the user wants.
MakeConfig = Callable[[Config | None], Config]


def train(
    out: Path,
    *,
    make_config: MakeConfig,
    is_resumed: bool = False,
    is_forced: bool = False,
    device: str | None = None,
    is_part: bool = False,
) -> int:
    """Train into the folder `out`; the exit status: 0, or that of the signal that stopped it.

    is_resumed: go on with the run in this folder. is_forced: even with other data or settings.
    device: "cpu", "cuda", ...; None: CUDA where there is one. After a restart by torchrun, the run
    in the folder goes on without is_resumed. is_part: of another command, which says itself how to
    go on after a signal.
    """
    with joined_processes(device) as processes:
        hint_at_restarts(processes)
        with processes.together():
            stored = _stored(out, is_resumed, processes)
        stored_config = sent_config(stored.config if stored else None, processes)
        with processes.together():
            if stored_config and not is_resumed:  # torchrun has given the same command once more
                config = _with_splits_of(stored_config, make_config(None))
            else:
                config = make_config(stored_config)
            if stored_config:
                check_same_settings(stored_config, config, is_forced=is_forced)
            if stored_config and config.data.path == stored_config.data.path:
                command = f"rankdet train DATA --resume --out {shlex.quote(str(out))}"
                refuse_moved(config.data.path, command)
            checkpoint = _newest(out, is_forced) if stored else None
        checkpoint = sent_checkpoint(checkpoint, processes)
        return _train(out, config, stored, checkpoint, is_forced, processes, is_part)


def _train(
    out: Path,
    config: Config,
    stored: runs.RunRecord | None,
    checkpoint: Checkpoint | None,
    is_forced: bool,
    processes: Processes,
    is_part: bool,
) -> int:
    """Train with these settings. stored: the record of the run that goes on; process 0 has it."""
    with ExitStack() as stack:
        # A signal before the first step ends the process at once: there is nothing to save.
        with processes.together():
            parts = prepare(
                config,
                processes.device_name,
                has_checkpoint=checkpoint is not None,
                processes=processes,
            )
            stack.enter_context(closing(parts.loader))
            store = held_validation(parts, is_silent=not processes.is_first)
        check_same_everywhere(parts.record, processes)
        with processes.together():
            if processes.is_first:
                stack.enter_context(alone_in(out))
            stop = StopRequest(processes.agreed_signal, is_silent=not processes.is_first)
            stack.enter_context(stop)
            position = _begin(out, parts, stored, checkpoint, is_forced, processes)
        _go(out, parts, position, stop, seconds_before(checkpoint), processes, store, is_part)
        return stop.exit_code if stop.agreed() else 0


def _stored(out: Path, is_resumed: bool, processes: Processes) -> runs.RunRecord | None:
    """The record of the run that goes on; None for a new one, and in other processes than 0."""
    if not processes.is_first:
        return None
    if is_resumed or (processes.num_restarts and runs.is_run(out)):
        return runs.read_run(out)
    _refuse_occupied(out)
    return None


def _with_splits_of(stored: Config, config: Config) -> Config:
    """The settings of a command that leaves it to the data which splits there are."""
    if config.data.train_split is not None:
        return config
    data = replace(
        config.data,
        train_split=stored.data.train_split,
        val_split=config.data.val_split or stored.data.val_split,
    )
    return replace(config, data=data)


def _begin(
    out: Path,
    parts: Parts,
    stored: runs.RunRecord | None,
    checkpoint: Checkpoint | None,
    is_forced: bool,
    processes: Processes,
) -> Position:
    """Make the folder that of this run, and put everything back as it was; gives the position."""
    if processes.is_first and stored is None:
        _refuse_occupied(out)  # another training may have begun while the data were read
    if stored:
        check_same_data(stored, parts.record, is_forced=is_forced)
    position = restore(parts, checkpoint) if checkpoint else Position()
    _refuse_shorter(parts, position)
    if processes.is_first:
        runs.write_run(out, _record(parts, stored))
    if checkpoint and (note := note_on_processes(checkpoint, processes.world_size)):
        say(note)
    return position


def _record(parts: Parts, stored: runs.RunRecord | None) -> runs.RunRecord:
    """What is kept of a run: it began when it was started, with the weights that it had then."""
    if stored is None:
        return parts.record
    return replace(parts.record, provenance=stored.provenance, notes=stored.notes)


def _go(
    out: Path,
    parts: Parts,
    position: Position,
    stop: StopRequest,
    seconds: float,
    processes: Processes,
    store: ImageStore | None,
    is_part: bool,
) -> None:
    """Train from this position to the last step, or until a signal comes."""
    settings = parts.config.training
    detector = processes.wrapped(parts.detector)
    average_precision = partial(
        batch_average_precision, activation=parts.activation, synchronize=not processes.is_alone
    )
    num_steps = count_steps(settings, parts.steps_per_epoch)
    with (
        TrainingDisplay(
            start_step=position.step, num_steps=num_steps, num_epochs=settings.epochs
        ) as display,
        Recorder(out, parts, display, stop, seconds, processes, store) as recorder,
    ):
        say_end = partial(
            say_how_it_ended, display, out, num_steps, processes=processes, is_part=is_part
        )
        introduce(display, parts, position, num_steps)
        recorder.begin(position)
        is_due = partial(_is_evaluation_due, parts, num_steps)
        if is_due(position) and not recorder.is_evaluated(position):
            recorder.evaluate(position)  # the signal had come first
        steps = training_steps(
            detector,
            parts.criterion,
            parts.optimizer,
            parts.loader,
            learning_rate=learning_rate_of(settings, parts.steps_per_epoch, num_steps),
            average_precision=average_precision,
            settings=parts.step_settings,
            num_epochs=settings.epochs,
            start=position,
            processes=processes,
        )
        with closing(steps):
            while position.step < num_steps and not stop.agreed():
                try:
                    position, report = _next(steps, out, processes)
                except (LoaderError, ConfigError, DataError, PeerStopped) as error:
                    # What the data raise, all processes raise; a compiler may fail in one alone.
                    if isinstance(error, ConfigError) and not processes.is_alone:
                        raise
                    if stop.agreed():  # the signal has reached those that load or compile, too
                        break
                    _rescue(recorder, position, say_end)
                    raise
                recorder.step(position, report)
                is_end = position.batch == 0 or position.step == num_steps
                if is_end or position.step % settings.save_every == 0:
                    recorder.save(position)
                if is_due(position) and not stop.agreed():
                    recorder.evaluate(position)
        if position.step > recorder.saved_step:
            recorder.save(position)
        say_end(position, is_stopped=stop.agreed())


def _rescue(recorder: Recorder, position: Position, say_end: Callable[..., None]) -> None:
    """Save the steps that are done before an error ends the session: none of them is to blame."""
    if position.step > recorder.saved_step:
        with suppress(RankdetError):  # the first error is the one to be told
            recorder.save(position)
            say_end(position, is_stopped=True)


def _next(
    steps: Iterator[tuple[Position, Report]], out: Path, processes: Processes
) -> tuple[Position, Report]:
    """The next step. Where it fails, the error says what is left, or what to leave out."""
    try:
        return next(steps)
    except TrainingError as error:
        if not processes.is_first:
            raise
        found = newest_checkpoint(out / runs.CHECKPOINTS)
        left = f"The last good checkpoint is {found}." if found else "There is no checkpoint yet."
        raise TrainingError(f"{error} {left}") from error
    except RuntimeError as error:
        if not type(error).__module__.startswith(("torch._inductor", "torch._dynamo")):
            raise
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"training.compile = true: the network cannot be compiled here: {reason}. "
            "Leave out --compile."
        ) from error


def count_steps(settings: TrainingConfig, steps_per_epoch: int) -> int:
    """How many steps of the optimiser a training has."""
    num_steps = settings.epochs * steps_per_epoch
    return num_steps if settings.max_steps is None else min(num_steps, settings.max_steps)


def _is_evaluation_due(parts: Parts, num_steps: int, position: Position) -> bool:
    """At the end, and in between after every so many epochs."""
    if parts.validation is None or position.step == 0:
        return False
    every = parts.config.evaluation.every
    is_epoch_due = every > 0 and position.batch == 0 and position.epoch % every == 0
    return is_epoch_due or position.step == num_steps


def learning_rate_of(
    settings: TrainingConfig, steps_per_epoch: int, num_steps: int
) -> Callable[[int], float]:
    """The learning rate as a function of the step's number, from 0."""
    highest = scaled_learning_rate(
        settings.learning_rate, settings.batch_size, settings.reference_batch_size
    )

    def of_step(step: int) -> float:
        return highest * learning_rate_factor(
            step,
            schedule=settings.schedule,
            num_steps=num_steps,
            steps_per_epoch=steps_per_epoch,
            milestones=settings.milestones,
            decay=settings.decay,
            warmup_steps=settings.warmup_steps,
            warmup_start=settings.warmup_start,
        )

    return of_step


def _refuse_shorter(parts: Parts, position: Position) -> None:
    """Settings with which the run would have ended before must not become those of the run."""
    num_steps = count_steps(parts.config.training, parts.steps_per_epoch)
    if position.step > num_steps:
        raise CheckpointError(
            f"the run has done {counted(position.step, 'step')}, and training.epochs and "
            f"training.max_steps now say {num_steps}. Leave them out, or give more."
        )


def _refuse_occupied(out: Path) -> None:
    """A new run needs a folder of its own: nothing in it is overwritten."""
    if runs.is_run(out):
        raise CheckpointError(
            f"{out}: there is a run already. Go on with it by --resume, or give another --out."
        )
    if out.is_dir() and runs.is_just_begun(out):
        return
    if out.exists():
        raise CheckpointError(f"{out}: this is not an empty folder. Give another one with --out.")


def _newest(out: Path, is_forced: bool) -> Checkpoint | None:
    """The newest checkpoint that is whole; what is passed over is said.

    CheckpointError if there are some, and none is whole, unless is_forced.
    """
    passed_over: list[str] = []
    found = newest_checkpoint(out / runs.CHECKPOINTS, warn=passed_over.append)
    for text in passed_over:
        say(text)
    if found is None and passed_over and not is_forced:
        raise CheckpointError(
            f"{out}: no checkpoint of the run is whole. Put back a copy of one, or train from the "
            "beginning with --force."
        )
    if found is None:
        say(f"{out}: there is no checkpoint to go on from: the training starts at its beginning.")
        return None
    return load_checkpoint(found)
