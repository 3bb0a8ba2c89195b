"""Training in several processes: the same as in one, and what befalls one of them befalls all.

The processes are real: they talk through gloo on this machine, and are told who they are by the
variables that torchrun sets. `training_world` has what they run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training_world import Plan, tiny

from rankdet import build
from rankdet.config import Config, LossConfig, dump
from rankdet.detectors.draws import lots
from rankdet.engine.checkpoint import load_checkpoint, newest_checkpoint
from rankdet.engine.records import read_metrics
from rankdet.recipes import recipe
from rankdet.workflows.train import train

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

World = Callable[[list[Plan]], list[Any]]

# The largest difference of a weight to that of one process, over the largest change of any weight
# in the training. Sums over the images are taken in another order; measured: 6e-6 at most.
TOLERANCE = 2e-5


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def alone(out: Path, config: Config) -> Path:
    """The same training in this process alone."""
    assert train(out, make_config=lambda stored: config, device="cpu") == 0
    return out


def statuses(ended: list[Any]) -> list[int]:
    return [process.status for process in ended]


def newest(out: Path) -> Path:
    found = newest_checkpoint(out / "checkpoints")
    assert found is not None
    return found


def state(out: Path) -> dict[str, torch.Tensor]:
    checkpoint = load_checkpoint(newest(out))
    return {**checkpoint.weights, **checkpoint.training}


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(newest(out)).weights


def difference(first: Path, second: Path, config: Config) -> float:
    """Between the weights of two runs, relative to how far the training has moved them."""
    from rankdet.workflows.parts import prepare

    begin = prepare(config, "cpu").detector.state_dict()
    one, other = weights(first), weights(second)
    moved = max(float((one[name] - begin[name]).abs().max()) for name in one)
    assert moved > 1e-3
    return max(float((one[name] - other[name]).abs().max()) for name in one) / moved


def rows(out: Path, *without: str) -> list[dict[str, Any]]:
    times = ("images_per_second", "seconds", *without)
    return [
        {name: value for name, value in row.items() if name not in times}
        for row in read_metrics(out / "metrics.jsonl")
    ]


# The same as one process


@pytest.mark.parametrize(
    ("loss", "num_processes", "training"),
    [
        ("ap", 2, {}),  # two images and one
        ("ap", 4, {}),  # one image each, and none
        ("ap", 2, {"batch_size": 4, "accumulate": 2}),
        ("focal", 2, {}),
        ("ohem", 2, {}),
    ],
)
def test_the_weights_are_those_of_one_process(
    loss: str, num_processes: int, training: dict[str, Any], tmp_path: Path, world: World
) -> None:
    config = replace(tiny(**training), loss=LossConfig(loss))
    one = alone(tmp_path / "one", config)
    ended = world([Plan(tmp_path / "many", config)] * num_processes)
    assert statuses(ended) == [0] * num_processes
    assert difference(one, tmp_path / "many", config) < TOLERANCE
    found, wanted = rows(tmp_path / "many"), rows(one)
    assert [(row["kind"], row["step"]) for row in found] == [
        (row["kind"], row["step"]) for row in wanted
    ]
    for name in ("class_loss", "box_loss", "batch_ap", "gradient_norm"):
        values = [row[name] for row in found if row["kind"] == "step"]
        assert values == pytest.approx(
            [row[name] for row in wanted if row["kind"] == "step"], rel=1e-3
        )


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("small-ssd", "ap"),
        pytest.param("small-ssd", "ohem", marks=pytest.mark.slow),
        ("small-faster-rcnn", "ap"),
        pytest.param("small-faster-rcnn", "ce", marks=pytest.mark.slow),
    ],
)
def test_the_weights_are_those_of_one_process_for_every_detector(
    name: str, loss: str, tmp_path: Path, world: World
) -> None:
    # Few steps: if two proposals change places by rounding, other RoIs are drawn from then on.
    training = {"max_steps": 4} if name == "small-faster-rcnn" else {}
    config = of_recipe(name, loss, **training)
    one = alone(tmp_path / "one", config)
    assert statuses(world([Plan(tmp_path / "many", config)] * 2)) == [0, 0]
    assert difference(one, tmp_path / "many", config) < TOLERANCE
    found, wanted = (
        [row for row in rows(out) if row["kind"] == "step"] for out in (tmp_path / "many", one)
    )
    assert [row["step"] for row in found] == [row["step"] for row in wanted]
    counts = [key for key in wanted[0] if key.endswith("_per_image")]
    assert len(counts) == (2 if "faster" in name else 0)  # RoIs, and positives among them
    for key in (*(key for key in wanted[0] if key.endswith("_loss")), *counts, "batch_ap"):
        values = [row[key] for row in found]
        assert values == pytest.approx([row[key] for row in wanted], rel=1e-3), key


def of_recipe(name: str, loss: str, **training: Any) -> Config:
    """The training of `tiny` with the detector of a small recipe, with few RoIs."""
    detector = recipe(name).detector
    if detector.name == "faster_rcnn":
        detector = replace(detector, rois=24, proposals=48, test_proposals=24)
    return replace(tiny(**training), detector=detector, loss=LossConfig(loss))


@pytest.mark.parametrize("name", ["small-ssd", "small-faster-rcnn"])
def test_two_processes_and_any_number_of_epochs_draw_what_one_process_draws(name: str) -> None:
    config = of_recipe(name, "ap")
    dataset = build.open_split(config.data, "train:12")
    drawn = []
    for epoch in (0, 1):
        of_worlds = []
        for world_size in (1, 2):
            loaders = [
                build.training_loader(
                    config, dataset, device="cpu", rank=rank, world_size=world_size
                )
                for rank in range(world_size)
            ]
            of_worlds.append(
                {
                    index: lots([target], 50, torch.device("cpu"), "anchors").tolist()
                    for loader in loaders
                    for batch in loader.epoch(epoch)
                    for index, target in zip(batch.indices.tolist(), batch.targets, strict=True)
                }
            )
        assert of_worlds[0] == of_worlds[1]
        assert len(of_worlds[0]) == 12
        drawn.append(of_worlds[0])
    assert all(drawn[0][index] != drawn[1][index] for index in drawn[0])


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["auc", "ghm", "dr", "smooth_ap", "hinge_ap"])
def test_the_weights_are_those_of_one_process_for_every_loss(
    loss: str, tmp_path: Path, world: World
) -> None:
    # GHM counts scores in bins: one that is rounded into the next bin soon makes a difference.
    training = {"max_steps": 3} if loss == "ghm" else {}
    test_the_weights_are_those_of_one_process(loss, 2, training, tmp_path, world)


@pytest.mark.slow
@pytest.mark.parametrize("augmentation", ["ssd", "jitter"])
def test_images_held_on_the_device_are_shared_out_too(
    augmentation: str, tmp_path: Path, world: World
) -> None:
    config = tiny(max_steps=2)
    data = replace(config.data, hold=True, augmentation=augmentation)
    config = replace(config, data=data)
    ended = world([Plan(tmp_path / "many", config)] * 4)  # one of them has no image
    assert statuses(ended) == [0] * 4
    if augmentation == "ssd":  # jitter's padding depends on who has which images
        one = alone(tmp_path / "one", config)
        assert difference(one, tmp_path / "many", config) < TOLERANCE


def test_ranking_within_each_process_is_another_loss(tmp_path: Path, world: World) -> None:
    config = tiny(rank_locally=True)
    one = alone(tmp_path / "one", config)  # where it makes no difference
    ended = world([Plan(tmp_path / "many", config)] * 2)
    assert statuses(ended) == [0, 0]
    assert difference(one, tmp_path / "many", config) > 100 * TOLERANCE
    assert "rank the images of each process alone" in ended[0].output


def test_batch_norm_on_a_cpu_keeps_the_statistics_of_process_0(
    tmp_path: Path, world: World
) -> None:
    config = tiny(max_steps=2)
    config = replace(config, detector=replace(config.detector, norm="batch"))
    ended = world([Plan(tmp_path / "run", config)] * 2)
    assert statuses(ended) == [0, 0]
    assert "Batch norms see the images of each process alone" in ended[0].output


# What is kept, and what is said


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process that nothing has disturbed."""
    torch.set_num_threads(1)
    return alone(tmp_path_factory.mktemp("runs") / "one", tiny())


def test_results_are_those_of_one_process(finished: Path, tmp_path: Path, world: World) -> None:
    """Of the same weights: process 0 gets what all have found, and the counts of all anchors."""
    out = tmp_path / "run"
    ended = world([Plan(out, tiny())] * 2)
    assert statuses(ended) == [0, 0]
    found = json.loads((out / "results.json").read_text())
    from rankdet.workflows.evaluate import evaluate

    evaluate(out, device="cpu", out=tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    for name in ("metrics", "classes", "thresholds", "curves", "anchors", "errors", "data"):
        assert found[name] == again[name], name
    names = {path.name for path in out.iterdir()}
    assert names == {"config.yaml", "run.json", "metrics.jsonl", "results.json", "checkpoints"}


def test_only_process_0_speaks(tmp_path: Path, world: World) -> None:
    first, second = world([Plan(tmp_path / "run", tiny(max_steps=2))] * 2)
    assert "2 processes share the 3 images of a step" in first.output
    assert "the loss is that of all of them together" in first.output
    assert "Finished: 2 steps" in first.output
    assert "warning" not in first.output.lower()
    assert second.output == ""


# Going on


@pytest.mark.parametrize(
    ("name", "num_processes", "step"),
    [
        *((None, 2, 3), (None, 3, 6)),
        pytest.param("small-ssd", 2, 3, marks=pytest.mark.slow),
        pytest.param("small-faster-rcnn", 2, 3, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_goes_on_bit_for_bit(
    name: str | None, num_processes: int, step: int, tmp_path: Path, world: World
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    config = tiny() if name is None else of_recipe(name, "ap")
    plan = Plan(stopped, replace(config, training=replace(config.training, save_every=2)))
    assert statuses(world([Plan(whole, config)] * num_processes)) == [0] * num_processes
    # Only the last of them gets the signal.
    last = replace(plan, fate="get_sigterm", step=step)
    ended = world([*[plan] * (num_processes - 1), last])
    assert statuses(ended) == [143] * num_processes
    assert newest(stopped).name == f"step-{step:08d}"
    assert f"Stopped after step {step} of 8. Go on with: torchrun ... -m" in ended[0].output
    assert f"({num_processes} processes)" in ended[0].output
    resumed = world([replace(plan, is_resumed=True)] * num_processes)
    assert statuses(resumed) == [0] * num_processes
    assert "warning" not in resumed[0].output
    expected, found = state(whole), state(stopped)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
    assert rows(stopped) == rows(whole)


@pytest.mark.slow
def test_ddp_as_it_is_by_default_would_not_go_on_bit_for_bit(tmp_path: Path, world: World) -> None:
    """Why `Processes.wrapped` asks it to look for unused parameters."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    plan = Plan(stopped, tiny(), fate="let_ddp_regroup")
    world([replace(plan, out=whole)] * 4)
    world([replace(plan, config=tiny(max_steps=3))] * 4)
    assert statuses(world([replace(plan, is_resumed=True)] * 4)) == [0] * 4
    expected, found = weights(whole), weights(stopped)
    assert any(not torch.equal(expected[name], found[name]) for name in expected)


def test_another_number_of_processes_is_a_warning(
    finished: Path, tmp_path: Path, world: World
) -> None:
    out = tmp_path / "run"
    alone(out, tiny(max_steps=3))
    ended = world([Plan(out, tiny(), is_resumed=True)] * 2)
    assert statuses(ended) == [0, 0]
    text = "warning: the run was trained by 1 process so far, and goes on with 2 processes."
    assert text in ended[0].output
    assert difference(finished, out, tiny()) < TOLERANCE
    assert load_checkpoint(newest(out)).state["world_size"] == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: replace(c, seed=5), "seed: 0 became 5"),
        (
            lambda c: replace(c, training=replace(c.training, rank_locally=True)),
            "training.rank_locally: False became True",
        ),
    ],
)
def test_other_settings_are_refused_unless_forced(
    change: Callable[[Config], Config], words: str, tmp_path: Path, world: World
) -> None:
    out = tmp_path / "run"
    alone(out, tiny(max_steps=1))
    plan = Plan(out, change(tiny(max_steps=2)), is_resumed=True)
    ended = world([plan] * 2)
    assert statuses(ended) == [1, 1]
    assert words in ended[0].output
    assert "--force" in ended[0].output
    assert ended[1].output == "error: process 1 stops for the same reason as process 0.\n"
    assert statuses(world([replace(plan, is_forced=True)] * 2)) == [0, 0]


def test_processes_with_different_settings_do_not_begin(tmp_path: Path, world: World) -> None:
    out = tmp_path / "run"
    ended = world([Plan(out, tiny()), Plan(out, replace(tiny(), seed=3))])
    assert statuses(ended) == [1, 1]
    words = "process 1 has other settings or data than process 0: seed: 0 became 3"
    assert words in ended[1].output
    assert f"process 0 stops because of another: process 1: ConfigError: {words}" in ended[0].output
    assert not out.exists()


# A signal to one of them


@pytest.mark.parametrize(
    ("fates", "status", "step"),
    [
        (("", "get_sigint"), 130, 2),
        (("get_sigterm", ""), 143, 2),
        (("", "get_signal_with_bad_image"), 143, 2),  # it has ended the workers, too
        (("save_slowly", ""), 143, 4),
    ],
)
def test_a_signal_to_one_process_stops_all(
    fates: tuple[str, str], status: int, step: int, tmp_path: Path, world: World
) -> None:
    plan = Plan(tmp_path / "run", tiny(), step=2)
    ended = world([replace(plan, fate=fate) for fate in fates])
    assert statuses(ended) == [status, status], ended
    assert newest(tmp_path / "run").name == f"step-{step:08d}"
    assert "error" not in ended[0].output + ended[1].output


def test_a_signal_to_one_process_ends_an_evaluation(tmp_path: Path, world: World) -> None:
    plan = Plan(tmp_path / "run", tiny(epochs=1), step=1)
    ended = world([plan, replace(plan, fate="get_sigterm_in_evaluation")])
    assert statuses(ended) == [143, 143]
    assert {row["kind"] for row in rows(tmp_path / "run")} == {"step"}
    assert statuses(world([replace(plan, is_resumed=True)] * 2)) == [0, 0]
    assert rows(tmp_path / "run")[-1]["kind"] == "evaluation"


# Faults of one of them


def test_a_bad_image_in_one_process_stops_all_and_costs_no_step(
    tmp_path: Path, world: World
) -> None:
    plan = Plan(tmp_path / "run", tiny(), step=2)
    ended = world([plan, replace(plan, fate="meet_bad_image")])
    assert statuses(ended) == [1, 1]
    text = "holiday.jpg: the image ends too early. Copy it again."
    assert ended[1].output == f"error: {text}\n"
    assert f"process 0 stops because of another: process 1: DataError: {text}" in ended[0].output
    assert newest(tmp_path / "run").name == "step-00000002"


@pytest.mark.parametrize(("loss", "rank_locally"), [("ap", False), ("ap", True), ("focal", False)])
def test_numbers_that_are_not_finite_in_one_process_stop_all_before_the_step(
    loss: str, rank_locally: bool, tmp_path: Path, world: World
) -> None:
    settings = tiny(save_every=1, rank_locally=rank_locally)
    plan = Plan(tmp_path / "run", replace(settings, loss=LossConfig(loss)), step=2)
    ended = world([plan, replace(plan, fate="see_infinite_pixel")])
    assert statuses(ended) == [1, 1]
    assert "a number is not finite" in ended[0].output + ended[1].output
    assert "No weight was changed in this step" in ended[0].output + ended[1].output
    assert newest(tmp_path / "run").name == "step-00000002"
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())
    assert ended[0].output.count("synthetic/train/") == 3  # the images of all
    assert "process 1 stops with the others" in ended[1].output


def test_a_number_that_is_not_finite_where_one_process_alone_can_see_it_stops_all(
    tmp_path: Path, world: World
) -> None:
    plan = Plan(tmp_path / "run", tiny(save_every=1), step=2)
    ended = world([plan, replace(plan, fate="have_bad_ignored_score")])
    assert statuses(ended) == [1, 1]
    assert "a number is not finite: the sum of the class scores = nan" in ended[0].output
    assert ended[0].output.count("synthetic/train/") == 3
    assert "process 1 stops with the others" in ended[1].output
    assert newest(tmp_path / "run").name == "step-00000002"


def test_when_a_process_is_killed_the_others_end_soon_and_name_it(
    tmp_path: Path, world: World
) -> None:
    plan = Plan(tmp_path / "run", tiny(), step=2)
    ended = world([plan, replace(plan, fate="be_killed"), plan])
    assert statuses(ended) == [1, -signal.SIGKILL, 1]
    for process in (ended[0], ended[2]):
        assert "stops because of another: process 1 has ended" in process.output
        assert process.seconds - ended[1].seconds < 10


@pytest.mark.parametrize("rank", [0, 1])
def test_when_a_process_has_a_fault_of_its_own_the_others_end_soon(
    rank: int, tmp_path: Path, world: World
) -> None:
    plan = Plan(tmp_path / "run", tiny(), step=2)
    plans = [plan, plan]
    plans[rank] = replace(plan, fate="raise_own_error")
    ended = world(plans)
    assert statuses(ended) == [1, 1]
    assert "ValueError: a fault of its own" in ended[rank].output
    other = ended[1 - rank]
    if rank:
        assert "because of another: process 1: ValueError: a fault of its own" in other.output
    else:  # what it has left its reason in is gone with it
        # torch itself may have warned before, of a store that is gone
        (said,) = [line for line in other.output.splitlines() if line.startswith("error: ")]
        assert said.startswith("error: process 1 stops because of another: process 0 has")


@pytest.mark.parametrize(
    ("fate", "reason", "step"),
    [
        ("find_disk_full", "CheckpointError: the checkpoint needs 7 MB, and 0 MB are free.", 4),
        ("lose_the_validation", "OSError: [Errno 28] No space left on device: 'results.json'", 8),
    ],
)
def test_when_process_0_cannot_write_the_others_stop_with_its_message(
    fate: str, reason: str, step: int, tmp_path: Path, world: World
) -> None:
    """The others wait for it there, and have what it says: it need not end first."""
    plan = Plan(tmp_path / "run", tiny(), step=4)
    ended = world([replace(plan, fate=fate), plan])
    assert statuses(ended) == [1, 1]
    assert reason.partition(": ")[2] in ended[0].output
    assert ended[1].output == f"error: process 1 stops because of another: process 0: {reason}\n"
    assert newest(tmp_path / "run").name == f"step-{step:08d}"


# torchrun


def torchrun(*arguments: str, **environment: str) -> tuple[int, str]:
    """The status of a real torchrun with two processes, and all that was said."""
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    process = subprocess.Popen(
        [*command, "--nproc-per-node", "2", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=300)
        return process.returncode, output
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_torchrun_trains_by_the_command_line(finished: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(dump(tiny()))
    out = tmp_path / "run"
    command = ("-m", "rankdet", "train", "--config", str(file), "--out", str(out))
    status, text = torchrun(*command, "--device", "cpu")
    assert status == 0, text
    assert difference(finished, out, tiny()) < TOLERANCE
    assert "hint" not in text
    assert text.count("2 processes share") == 1


# Kills the second process once, between two steps of the second epoch.
KILLED_ONCE = """
import os, runpy, signal, sys
from pathlib import Path
from rankdet.workflows.recording import Recorder

mark, original = Path(sys.argv.pop(1)), Recorder.step

def step(self, position, report):
    original(self, position, report)
    if position.step == 6 and os.environ["RANK"] == "1" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

Recorder.step = step
runpy.run_module("rankdet", run_name="__main__")
"""


@pytest.mark.slow
def test_a_run_goes_on_by_itself_when_torchrun_restarts_it(tmp_path: Path, world: World) -> None:
    file, script, out = tmp_path / "config.yaml", tmp_path / "killed_once.py", tmp_path / "run"
    file.write_text(dump(tiny()))
    script.write_text(KILLED_ONCE)
    status, text = torchrun(
        *("--max-restarts", "1", str(script), str(tmp_path / "mark"), "train"),
        *("--config", str(file), "--out", str(out), "--device", "cpu"),
    )
    assert status == 0, text
    assert (tmp_path / "mark").exists()
    assert "hint: torchrun's restarts" in text
    assert "started the processes again" in text
    assert "Going on after step 4 of 8." in text
    assert statuses(world([Plan(tmp_path / "whole", tiny())] * 2)) == [0, 0]
    expected, found = state(tmp_path / "whole"), state(out)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_restart_begins_where_there_is_no_run_yet(tmp_path: Path, world: World) -> None:
    restart = {"TORCHELASTIC_RESTART_COUNT": "1"}
    plan = Plan(tmp_path / "run", tiny(max_steps=2), environment=restart)
    first = world([plan] * 2)
    assert statuses(first) == [0, 0]
    again = world([plan] * 2)  # now there is one: it goes on with its own settings
    assert statuses(again) == [0, 0]
    assert "Nothing is left to do" in again[0].output
    ended = world([replace(plan, environment={})] * 2)
    assert statuses(ended) == [1, 1]
    assert "there is a run already" in ended[0].output


def test_a_restart_does_not_go_on_with_a_run_of_other_settings(
    tmp_path: Path, world: World
) -> None:
    out = tmp_path / "run"
    alone(out, tiny(max_steps=1))
    restart = {"TORCHELASTIC_RESTART_COUNT": "1"}
    ended = world([Plan(out, tiny(learning_rate=0.5), environment=restart)] * 2)
    assert statuses(ended) == [1, 1]
    assert "training.learning_rate: 0.01 became 0.5" in ended[0].output
