"""What a training keeps while it runs: rows of numbers, checkpoints and evaluations.

Where several processes train together, process 0 alone keeps it; all of them evaluate.
"""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Any, Self

from rankdet.data.augmentation.store import ImageStore
from rankdet.engine import checkpoint as checkpoints
from rankdet.engine.display import TrainingDisplay
from rankdet.engine.distributed import ALONE, PeerStopped, Processes
from rankdet.engine.optimizer_state import criterion_state, optimizer_state, random_state
from rankdet.engine.records import EventWriter, MetricsFile, read_metrics
from rankdet.engine.stopping import StopRequest
from rankdet.engine.train import Position, Report
from rankdet.errors import DataError, LoaderError
from rankdet.progress import progress
from rankdet.workflows import run as runs
from rankdet.workflows.evaluate import evaluate_dataset
from rankdet.workflows.parts import Parts
from rankdet.workflows.results import (
    Outcome,
    headline,
    results_content,
    training_counts,
    write_results,
)

_BEST_METRIC = "AP"  # by which the best checkpoint is chosen


class Recorder:
    """Writes into the run directory and shows the user what happens; a context manager."""

    def __init__(
        self,
        out: Path,
        parts: Parts,
        display: TrainingDisplay,
        stop: StopRequest,
        seconds: float = 0.0,
        processes: Processes = ALONE,
        store: ImageStore | None = None,
    ) -> None:
        """seconds: what earlier sessions of this training took.

        store: the images to evaluate on, where they are held on the device.
        """
        self.out = out
        self.parts = parts
        self.display = display
        self.stop = stop
        self.processes = processes
        self.store = store
        self.checkpoints = out / runs.CHECKPOINTS
        self.metrics = MetricsFile(out / runs.METRICS_FILE)
        self.events: EventWriter | None = None
        self.saved_step = 0
        self._start = time.monotonic() - seconds
        self._last_row = time.monotonic()
        self._num_images = 0
        self._batch_ap = math.nan

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.metrics.close()
        if self.events is not None:
            self.events.close()

    @property
    def seconds(self) -> float:
        """What the training took so far, in all sessions."""
        return time.monotonic() - self._start

    def begin(self, position: Position) -> None:
        """Rows after this position come from a session that was lost: they will be made again."""
        self.saved_step = position.step
        if not self.processes.is_first:
            return
        self.metrics.truncate_after(position.step)
        if self.parts.config.training.tensorboard:
            self.events = EventWriter(self.out / runs.TENSORBOARD, position.step + 1)

    def step(self, position: Position, report: Report) -> None:
        """Show a step; keep it if it was measured."""
        if not self.processes.is_first:
            return
        losses = {f"{name}_loss": value for name, value in report.losses.items()}
        if report.batch_ap is not None:
            self._batch_ap = 100 * report.batch_ap
        counts = {f"{name}_per_image": value for name, value in report.counts.items()}
        row = {
            **losses,
            **counts,
            "batch_ap": self._batch_ap,
            "learning_rate": report.learning_rate,
        }
        # The last step of an epoch is a step of that one, though the next stands ready.
        epoch = position.epoch - (position.batch == 0)
        shown = {**losses, "batch_AP_in_%": self._batch_ap, "learning_rate": report.learning_rate}
        self.display.step(position.step, epoch, shown, report.num_images)
        self._num_images += report.num_images
        if report.is_measured:
            now = time.monotonic()
            measured = {
                "gradient_norm": report.gradient_norm,
                "images_per_second": self._num_images / max(now - self._last_row, 1e-9),
                "seconds": report.seconds,
            }
            self._num_images, self._last_row = 0, now
            self._keep({"kind": "step", "step": position.step, "epoch": epoch, **row, **measured})

    def save(self, position: Position) -> None:
        """A checkpoint from which the training can go on as if nothing had happened."""
        with self.processes.together():  # or the others would learn no reason from process 0
            if self.processes.is_first:
                self._write(position)
        self.saved_step = position.step

    def _write(self, position: Position) -> None:
        parts = self.parts
        tensors, settings = optimizer_state(parts.optimizer, parts.detector.named_parameters())
        checkpoints.save_checkpoint(
            self.checkpoints,
            position.step,
            weights=parts.detector.state_dict(),
            training=tensors | criterion_state(parts.criterion) | random_state(),
            state={
                "position": dataclasses.asdict(position),
                "optimizer": settings,
                "seconds": self.seconds,
                "world_size": self.processes.world_size,
            },
        )
        checkpoints.prune_checkpoints(self.checkpoints, keep=parts.config.training.keep_checkpoints)

    def evaluate(self, position: Position) -> None:
        """Evaluate the checkpoint of this position; results.json stays that of the best one."""
        start = time.monotonic()
        outcome = self._evaluated()
        with self.processes.together():
            # None: a signal came (it is made up for on resume), or process 0 has it.
            if outcome is not None:
                self._keep_outcome(position, outcome, time.monotonic() - start)

    def _keep_outcome(self, position: Position, outcome: Outcome, seconds: float) -> None:
        values = outcome.evaluation.metrics
        value = values[_BEST_METRIC]
        best = checkpoints.best_value(self.checkpoints)
        if value is not None and (best is None or value > best):
            self._keep_best(position, outcome, value, seconds)
        # The row comes last: it says that nothing of this has to be done again after a kill.
        self._keep({"kind": "evaluation", "step": position.step, "epoch": position.epoch, **values})
        self.display.note(f"After step {position.step}: {headline(outcome.evaluation)}")

    def _keep_best(
        self, position: Position, outcome: Outcome, value: float, seconds: float
    ) -> None:
        """Write the results of the checkpoint of this position, and that it is the best so far."""
        path = self.checkpoints / checkpoints.checkpoint_name(position.step)
        assert self.parts.validation is not None
        content = results_content(
            outcome,
            self.parts.validation,
            record=self.parts.record,
            config=self.parts.config,
            checkpoint={"name": path.name, "step": position.step, "epoch": position.epoch},
            seconds=seconds,
            training_seconds=self.seconds,
            counts=training_counts(self.out / runs.METRICS_FILE, position.step),
        )
        write_results(self.out / runs.RESULTS_FILE, content)
        checkpoints.set_best(self.checkpoints, path, _BEST_METRIC, value)

    def is_evaluated(self, position: Position) -> bool:
        """Whether there is an evaluation of exactly this position."""
        is_first = self.processes.is_first
        rows = read_metrics(self.out / runs.METRICS_FILE) if is_first else []
        found = any(row["kind"] == "evaluation" and row["step"] == position.step for row in rows)
        return bool(self.processes.sent(b"1" if found else b""))

    def _evaluated(self) -> Outcome | None:
        assert self.parts.validation is not None
        if self.parts.has_own_statistics:
            self.processes.share_buffers(self.parts.detector)
        with self.display.paused(), progress("Evaluating") as meter:
            meter.expect(len(self.parts.validation))
            try:
                return evaluate_dataset(
                    self.parts.detector,
                    self.parts.validation,
                    self.parts.config,
                    activation=self.parts.activation,
                    device=self.parts.device,
                    on_batch=meter.advance,
                    should_stop=self.stop.agreed,
                    processes=self.processes,
                    store=self.store,
                )
            except (LoaderError, DataError, PeerStopped):  # what one raises, all do
                if self.stop.agreed():  # the signal has reached the processes that load, too
                    return None
                raise

    def _keep(self, row: dict[str, Any]) -> None:
        self.metrics.append(row)
        if self.events is not None:
            self.events.add(row)
