"""What the tests of several processes run in each of them; imported there by its name."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from rankdet.config import (
    Config,
    DataConfig,
    DetectorConfig,
    EvaluationConfig,
    TrainingConfig,
)
from rankdet.data.loading.collate import Batch
from rankdet.data.loading.loader import Loader
from rankdet.engine import distributed
from rankdet.engine import train as engine
from rankdet.errors import CheckpointError, DataError, RankdetError
from rankdet.workflows import train as workflow
from rankdet.workflows.recording import Recorder


def tiny(**training: Any) -> Config:
    """Two epochs of four steps with three images each, of 64 x 64: uneven parts for two."""
    settings = {
        "epochs": 2,
        "batch_size": 3,
        "learning_rate": 1e-2,
        "reference_batch_size": 3,
        "warmup_steps": 2,
        "milestones": (1.0,),
        "log_every": 1,
        **training,
    }
    return Config(
        data=DataConfig(
            path="synthetic", train_split="train:12", val_split="val:5", size=64, workers=0
        ),
        detector=DetectorConfig(
            backbone="small", norm="group", head_norm="group", anchor_scale=2.2
        ),
        training=TrainingConfig(**settings),
        evaluation=EvaluationConfig(every=2, fixed_size=64, batch_size=2),
    )


@dataclass(frozen=True)
class Plan:
    """What one process does: a training, with what befalls it (names of functions below)."""

    out: Path
    config: Config
    is_resumed: bool = False
    is_forced: bool = False
    fate: str = ""
    step: int = 0  # when it befalls this process
    environment: dict[str, str] = field(default_factory=dict)


def take_part(plan: Plan, environment: dict[str, str], output: str) -> None:
    """The life of a process; what it says goes to the file `output`."""
    os.environ.update(environment | plan.environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)  # multiprocessing has its own
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Another test's data workers may have started the fork server: then it is blocked for all.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if plan.fate:
        globals()[plan.fate](plan.step)

    def make_config(stored: Config | None) -> Config:
        if stored is None or plan.is_forced:
            return plan.config
        if plan.is_resumed:  # with the settings given, as by options
            return replace(plan.config, data=stored.data)
        raise AssertionError("the stored settings are to be taken as they are")

    try:
        status = workflow.train(
            plan.out,
            make_config=make_config,
            is_resumed=plan.is_resumed,
            is_forced=plan.is_forced,
            device="cpu",
        )
    except (RankdetError, OSError) as error:  # as the command line does
        print(f"error: {error}")
        status = 1
    sys.exit(status)


def _after_step(step: int, do: Callable[[], None]) -> None:
    original = Recorder.step

    def step_and_more(self: Recorder, position: Any, report: Any) -> None:
        original(self, position, report)
        if position.step == step:
            do()

    Recorder.step = step_and_more  # type: ignore[method-assign]


def get_sigterm(step: int) -> None:
    _after_step(step, lambda: signal.raise_signal(signal.SIGTERM))


def get_sigint(step: int) -> None:
    _after_step(step, lambda: signal.raise_signal(signal.SIGINT))


def be_killed(step: int) -> None:
    _after_step(step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def raise_own_error(step: int) -> None:
    def fail() -> None:
        raise ValueError("a fault of its own")

    _after_step(step, fail)


def save_slowly(step: int) -> None:
    """A signal comes while process 0 saves, and another process is waiting."""
    original = Recorder._write

    def write(self: Recorder, position: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        time.sleep(0.3)
        original(self, position)

    Recorder._write = write  # type: ignore[method-assign]


def find_disk_full(step: int) -> None:
    original = Recorder._write

    def write(self: Recorder, position: Any) -> None:
        if position.step > step:
            raise CheckpointError("the checkpoint needs 7 MB, and 0 MB are free.")
        original(self, position)

    Recorder._write = write  # type: ignore[method-assign]


def lose_the_validation(step: int) -> None:
    """Process 0 alone cannot write what came out of an evaluation."""

    def keep_best(*arguments: Any) -> None:
        raise OSError(28, "No space left on device", "results.json")

    Recorder._keep_best = keep_best  # type: ignore[method-assign]


def _with_batches(change: Callable[[int, Batch], Batch]) -> None:
    original = Loader.epoch

    def epoch(self: Loader, epoch: int, start: int = 0) -> Iterator[Batch]:
        for number, batch in enumerate(original(self, epoch, start), start=start):
            yield change(number, batch) if self.order.shuffle else batch

    Loader.epoch = epoch  # type: ignore[method-assign]


def meet_bad_image(step: int) -> None:
    def change(number: int, batch: Batch) -> Batch:
        if number == step:
            raise DataError("the image ends too early", file="holiday.jpg", hint="Copy it again.")
        return batch

    _with_batches(change)


def get_signal_with_bad_image(step: int) -> None:
    """As when a signal ends the processes that load images, too."""

    def change(number: int, batch: Batch) -> Batch:
        if number == step:
            signal.raise_signal(signal.SIGTERM)
            raise DataError("the worker has gone", file="holiday.jpg")
        return batch

    _with_batches(change)


def see_infinite_pixel(step: int) -> None:
    def change(number: int, batch: Batch) -> Batch:
        if number == step:
            batch.images[0, 0, 0, 0] = float("inf")
        return batch

    _with_batches(change)


def have_bad_ignored_score(step: int) -> None:
    """A score that is NaN where no loss reads it: no other process can know."""
    original = engine._to_check
    steps = iter(range(1000))

    def to_check(parts: Any, counts: Any, soundness: list[torch.Tensor], *others: Any) -> Any:
        if next(steps) == step:
            soundness = [total * float("nan") for total in soundness]
        return original(parts, counts, soundness, *others)

    engine._to_check = to_check


def get_sigterm_in_evaluation(step: int) -> None:
    original = Loader.epoch

    def epoch(self: Loader, epoch: int, start: int = 0) -> Iterator[Batch]:
        for number, batch in enumerate(original(self, epoch, start)):
            if not self.order.shuffle and number == step:
                signal.raise_signal(signal.SIGTERM)
            yield batch

    Loader.epoch = epoch  # type: ignore[method-assign]


def let_ddp_regroup(step: int) -> None:
    """DDP as it is by default, which groups gradients anew after its first step."""
    original = distributed.DistributedDataParallel

    def wrapped(*arguments: Any, **options: Any) -> Any:
        options["find_unused_parameters"] = False
        return original(arguments[0].detector, **options)

    distributed.DistributedDataParallel = wrapped  # type: ignore[misc, assignment]
