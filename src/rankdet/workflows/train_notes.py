"""What a training says of itself: at its beginning, at its end, and about torchrun."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from rankdet.engine.display import TrainingDisplay
from rankdet.engine.distributed import Processes
from rankdet.engine.train import Position
from rankdet.errors import counted
from rankdet.progress import say
from rankdet.workflows import run as runs
from rankdet.workflows.parts import Parts


def introduce(display: TrainingDisplay, parts: Parts, position: Position, num_steps: int) -> None:
    """What is about to happen, before the minutes or days that it takes."""
    config, data = parts.config, parts.record.data
    num_classes = len(parts.record.classes)
    num_validation = data["val"]["num_images"] if data["val"] else 0
    display.note(
        f"{config.detector.name} with backbone {config.detector.backbone}, "
        f"{config.loss.name} loss, "
        f"{num_classes} class{'' if num_classes == 1 else 'es'}; "
        f"{counted(data['train']['num_images'], 'image')} to train on, "
        f"{num_validation or 'none'} to evaluate on; {counted(num_steps, 'step')} of "
        f"{counted(config.training.batch_size, 'image')} on {parts.device}."
    )
    for note in parts.notes:
        display.note(note)
    if config.training.warmup_steps >= num_steps:
        display.note(
            f"The learning rate rises over {counted(config.training.warmup_steps, 'step')}, and "
            "the training is not longer: it will hardly learn. Try "
            f"{'a larger training.max_steps' if config.training.max_steps else 'more --epochs'}, "
            f"by which there are more steps, or --set training.warmup_steps={num_steps // 10}."
        )
    if position.step == num_steps:
        display.note(f"Nothing is left to do: {counted(num_steps, 'step')} done.")
    elif position.step:
        display.note(f"Going on after step {position.step} of {num_steps}.")


def say_how_it_ended(
    display: TrainingDisplay,
    out: Path,
    num_steps: int,
    position: Position,
    *,
    processes: Processes,
    is_stopped: bool,
    is_part: bool,
) -> None:
    """How to go on, or where to look. is_part: of another command, which says how to go on."""
    stopped = f"Stopped after step {position.step} of {num_steps}."
    if is_stopped and is_part:
        display.note(stopped)
    elif is_stopped:
        # Another number of processes would round differently.
        many = not processes.is_alone
        display.note(
            f"{stopped} Go on with: {'torchrun ... -m ' if many else ''}rankdet train --resume "
            f"--out {shlex.quote(str(out))}{f' ({processes.world_size} processes)' if many else ''}"
        )
    else:
        display.note(f"Finished: {counted(position.step, 'step')}. The run is in {out}.")
        if (out / runs.RESULTS_FILE).is_file():
            display.note(f"See what came out: rankdet report {shlex.quote(str(out))}")


def hint_at_restarts(processes: Processes) -> None:
    """torchrun's own way to share a store makes some of its restarts fail."""
    if processes.is_alone:
        return
    if processes.num_restarts:
        say(f"torchrun has started the processes again (restart {processes.num_restarts}).")
    elif (
        os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
        and os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1"
    ):
        say(
            "hint: torchrun's restarts (--max-restarts) are safer with the environment variable "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1."
        )
