"""Training into a run directory: in process, with the small network on a few drawn images."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rankdet.config import (
    Config,
    DataConfig,
    DetectorConfig,
    EvaluationConfig,
    LossConfig,
    TrainingConfig,
)
from rankdet.engine.checkpoint import best_checkpoint, load_checkpoint, newest_checkpoint
from rankdet.engine.records import read_metrics
from rankdet.engine.train import Position, Report
from rankdet.errors import CheckpointError, ConfigError, DataError, LoaderError, TrainingError
from rankdet.recipes import recipe
from rankdet.workflows.recording import Recorder
from rankdet.workflows.run import read_run
from rankdet.workflows.train import train

TIMES = ("images_per_second", "seconds")


def tiny(**training: object) -> Config:
    """Two epochs of four steps, on images of 64 x 64."""
    settings = {
        "epochs": 2,
        "batch_size": 2,
        "learning_rate": 1e-3,
        "reference_batch_size": 2,
        "warmup_steps": 2,
        "milestones": (1.0,),
        "log_every": 1,
        **training,
    }
    return Config(
        data=DataConfig(
            path="synthetic", train_split="train:8", val_split="val:3", size=64, workers=0
        ),
        detector=DetectorConfig(
            backbone="small", norm="group", head_norm="group", anchor_scale=2.2
        ),
        training=TrainingConfig(**settings),  # type: ignore[arg-type]
        evaluation=EvaluationConfig(every=1, fixed_size=64, batch_size=3),
    )


def run(out: Path, config: Config, **options: object) -> int:
    return train(out, make_config=lambda stored: config, device="cpu", **options)  # type: ignore[arg-type]


def go_on(out: Path, change: Callable[[Config], Config] = lambda c: c, **options: object) -> int:
    def make_config(stored: Config | None) -> Config:
        assert stored is not None
        return change(stored)

    return train(out, make_config=make_config, is_resumed=True, device="cpu", **options)  # type: ignore[arg-type]


def signal_after(monkeypatch: pytest.MonkeyPatch, step: int, number: int = signal.SIGINT) -> None:
    """A real signal reaches this process when this step has been done."""
    original = Recorder.step

    def with_signal(self: Recorder, position: Position, report: Report) -> None:
        original(self, position, report)
        if position.step == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Recorder, "step", with_signal)


def state(out: Path) -> dict[str, torch.Tensor]:
    path = newest_checkpoint(out / "checkpoints")
    assert path is not None
    checkpoint = load_checkpoint(path)
    return {**checkpoint.weights, **checkpoint.training}


def rows(out: Path) -> list[dict[str, object]]:
    """Without what depends on the clock."""
    return [
        {name: value for name, value in row.items() if name not in TIMES}
        for row in read_metrics(out / "metrics.jsonl")
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing has disturbed."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "finished"
    assert run(out, tiny()) == 0
    return out


def test_a_run_has_all_its_files(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names == {"config.yaml", "run.json", "metrics.jsonl", "results.json", "checkpoints"}
    record = read_run(finished)
    assert record.config == tiny()
    assert record.classes == ("disc", "ring", "triangle", "square", "star", "cross")
    assert record.activation == "sigmoid"
    assert record.data["train"]["num_images"] == 8
    assert record.data["val"]["split"] == "val:3"
    assert record.provenance["seed"] == 0


def test_every_measured_step_and_evaluation_is_a_row(finished: Path) -> None:
    found = read_metrics(finished / "metrics.jsonl")
    kinds = [(row["kind"], row["step"], row["epoch"]) for row in found]
    assert kinds == [
        *[("step", step, 0) for step in (1, 2, 3, 4)],
        ("evaluation", 4, 1),
        *[("step", step, 1) for step in (5, 6, 7, 8)],
        ("evaluation", 8, 2),
    ]
    assert {"class_loss", "box_loss", "batch_ap", "gradient_norm", *TIMES} <= found[0].keys()
    assert set(found[0]["seconds"]) == {"data", "forward", "loss", "backward", "step"}
    # Warm-up from a third over two steps, then a tenth of it after the first epoch.
    rates = [row["learning_rate"] for row in found if row["kind"] == "step"]
    assert rates == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3, 1e-3, *[1e-4] * 4])


def test_results_are_those_of_the_best_checkpoint(finished: Path) -> None:
    results = json.loads((finished / "results.json").read_text())
    evaluations = [r for r in read_metrics(finished / "metrics.jsonl") if r["kind"] == "evaluation"]
    best = max(evaluations, key=lambda row: row["AP"])
    assert results["metrics"]["AP"] == best["AP"]
    assert results["checkpoint"]["step"] == best["step"]
    path = best_checkpoint(finished / "checkpoints")
    assert path is not None
    assert path.name == results["checkpoint"]["name"]
    assert results["training"]["wall_time_seconds"] > 0


def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    finished: Path, tmp_path: Path
) -> None:
    run(tmp_path / "same", tiny())
    run(tmp_path / "other", replace(tiny(), seed=1))
    assert rows(tmp_path / "same") == rows(finished)
    assert rows(tmp_path / "other") != rows(finished)


@pytest.mark.parametrize(("step", "number", "status"), [(3, 2, 130), (4, 15, 143), (6, 2, 130)])
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    number: int,
    status: int,
) -> None:
    out = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        signal_after(patch, step, number)
        assert run(out, tiny()) == status
    assert rows(out)[-1]["step"] == step  # step 4 ends an epoch: its evaluation is missing
    assert rows(out)[-1]["kind"] == "step"
    assert go_on(out) == 0
    assert rows(out) == rows(finished)
    expected, found = state(finished), state(out)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


@pytest.mark.parametrize("name", ["small-ssd", "small-faster-rcnn"])
def test_every_detector_goes_on_as_if_nothing_had_happened(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = recipe(name).detector
    if detector.name == "faster_rcnn":
        detector = replace(detector, rois=24, proposals=48, test_proposals=24)
    config = replace(tiny(max_steps=7), detector=detector)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run(whole, config) == 0
    with monkeypatch.context() as patch:
        signal_after(patch, 6)  # in the middle of the second epoch
        assert run(stopped, config) == 130
    assert go_on(stopped) == 0
    assert rows(stopped) == rows(whole)
    expected, found = state(whole), state(stopped)
    assert expected.keys() == found.keys()
    for key, tensor in expected.items():
        assert torch.equal(tensor, found[key]), key


def test_a_loss_that_remembers_goes_on_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(tiny(epochs=1), loss=LossConfig("ghm"))  # it keeps running counts
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run(whole, config)
    with monkeypatch.context() as patch:
        signal_after(patch, 2)
        assert run(stopped, config) == 130
    assert go_on(stopped) == 0
    assert rows(stopped) == rows(whole)
    expected, found = state(whole), state(stopped)
    assert expected["criterion.class_loss.running_counts"].any()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


def test_a_signal_before_the_first_step_is_not_kept_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reading(*arguments: object, **keywords: object) -> None:  # COCO takes a minute
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("the signal was only remembered")

    monkeypatch.setattr("rankdet.workflows.train.prepare", reading)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", tiny())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_network_that_cannot_be_compiled_is_told_in_one_line_unless_a_signal_came(
    is_stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.exc import TorchDynamoException

    def fail(*arguments: object) -> None:  # as the compiler does that Ctrl-C has ended
        if is_stopped:
            os.kill(os.getpid(), signal.SIGINT)
        raise TorchDynamoException("no compiler\nand a long story")

    monkeypatch.setattr("rankdet.engine.train.training_step", fail)
    if is_stopped:
        assert run(tmp_path / "run", tiny()) == 130
        return
    with pytest.raises(ConfigError, match=r"compiled here: no compiler\. Leave out --compile\.$"):
        run(tmp_path / "run", tiny())


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_signal_that_ends_the_workers_of_an_evaluation_is_a_signal_and_no_fault(
    is_stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **keywords: object) -> None:  # `timeout` signals all processes
        if is_stopped:
            os.kill(os.getpid(), signal.SIGTERM)
        raise LoaderError("worker 0 ended")

    with monkeypatch.context() as patch:
        patch.setattr("rankdet.workflows.recording.evaluate_dataset", fail)
        if not is_stopped:
            with pytest.raises(LoaderError, match="worker 0 ended"):
                run(tmp_path / "run", tiny())
            return
        assert run(tmp_path / "run", tiny()) == 143
    assert go_on(tmp_path / "run") == 0
    evaluations = [row for row in rows(tmp_path / "run") if row["kind"] == "evaluation"]
    assert [row["step"] for row in evaluations] == [4, 8]


def test_rows_of_a_lost_session_are_made_again(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "killed"
    run(out, tiny(save_every=3, max_steps=3))
    with (out / "metrics.jsonl").open("a") as stream:  # as if killed after two more steps
        stream.write('{"kind": "step", "step": 4, "epoch": 0, "class_loss": 7}\n')
        stream.write('{"kind": "step", "step": 5, "epoch": 1')
    go_on(out, lambda c: replace(c, training=replace(c.training, max_steps=None, save_every=1000)))
    wanted = [row for row in rows(finished) if row["kind"] == "step"]
    assert [row for row in rows(out) if row["kind"] == "step"] == wanted


def test_a_finished_run_is_left_as_it_is(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (finished / "checkpoints").rglob("*")}
    assert go_on(finished) == 0
    assert "Nothing is left to do: 8 steps done." in capsys.readouterr().err
    assert {
        path: path.stat().st_mtime_ns for path in (finished / "checkpoints").rglob("*")
    } == before


def test_a_run_cannot_be_made_shorter_than_it_is(finished: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has done 8 steps, and .* now say 4"):
        go_on(finished, lambda c: replace(c, training=replace(c.training, epochs=1)))
    assert read_run(finished).config.training.epochs == 2


def test_training_and_evaluating_on_the_same_images_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny(max_steps=1)
    run(tmp_path / "run", replace(config, data=replace(config.data, val_split="train:8")))
    assert "train:8: the images to evaluate on are those to train on" in capsys.readouterr().err


def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(out, tiny(epochs=1, batch_size=4))
    go_on(out, lambda c: replace(c, training=replace(c.training, epochs=2)))
    assert [row["step"] for row in rows(out) if row["kind"] == "evaluation"] == [2, 4]
    assert read_run(out).config.training.epochs == 2


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Recorder, position: Position, report: Report) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "step", killed)
        with pytest.raises(KeyboardInterrupt):
            run(out, tiny())
    assert go_on(out) == 0
    assert rows(out) == rows(finished)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: replace(c, seed=5), "seed: 0 became 5"),
        (lambda c: replace(c, loss=LossConfig("focal")), "loss.name: 'ap' became 'focal'"),
        (
            lambda c: replace(c, training=replace(c.training, learning_rate=0.5)),
            "training.learning_rate: 0.001 became 0.5",
        ),
        (
            lambda c: replace(c, data=replace(c.data, train_split="train:9")),
            "data.train_split: 'train:8' became 'train:9'",
        ),
    ],
)
def test_other_settings_are_refused_by_name(
    finished: Path, change: Callable[[Config], Config], words: str
) -> None:
    with pytest.raises(CheckpointError, match="other settings") as error:
        go_on(finished, change)
    assert words in str(error.value)
    assert "--force" in str(error.value)


def test_other_data_are_refused_and_can_be_forced(tmp_path: Path) -> None:
    from rankdet.data.synthetic.dataset import SyntheticDataset
    from rankdet.data.write import write_dataset

    data = tmp_path / "data"
    splits = {
        "train": SyntheticDataset("train", 4, size=64),
        "val": SyntheticDataset("val", 2, size=64),
    }
    write_dataset(splits, data, "coco")
    config = tiny(epochs=1)
    config = replace(
        config, data=replace(config.data, path=str(data), train_split=None, val_split=None)
    )
    out = tmp_path / "run"
    assert run(out, config) == 0
    assert read_run(out).config.data.train_split == "train"
    assert json.loads((out / "results.json").read_text())["protocol"] == "coco"
    file = data / "annotations" / "instances_train.json"
    content = json.loads(file.read_text())
    content["annotations"].pop()
    file.write_text(json.dumps(content))
    longer = lambda c: replace(c, training=replace(c.training, epochs=2))  # noqa: E731
    with pytest.raises(CheckpointError, match=r"other data: train\.fingerprint"):
        go_on(out, longer)
    assert go_on(out, longer, is_forced=True) == 0
    with pytest.raises(CheckpointError, match=r"do not fit these classes.*--weights"):
        go_on(
            out,
            lambda c: replace(longer(c), data=replace(c.data, classes=("disc", "ring"))),
            is_forced=True,
        )


def test_numbers_that_are_not_finite_end_the_run_and_keep_the_last_good_checkpoint(
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    config = tiny(save_every=1, learning_rate=1e25, warmup_steps=0)
    with pytest.raises(TrainingError, match="not finite") as error:
        run(out, config)
    assert "synthetic" in str(error.value)
    found = newest_checkpoint(out / "checkpoints")
    assert found is not None
    assert str(found) in str(error.value)
    assert all(tensor.isfinite().all() for tensor in load_checkpoint(found).weights.values())


def test_a_folder_that_is_not_empty_is_not_touched(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is a run already.*--resume"):
        run(finished, tiny())
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not an empty folder"):
        run(tmp_path, tiny())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run"):
        go_on(tmp_path)


def test_without_a_validation_split_there_is_no_best_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    config = tiny(epochs=1)
    assert run(out, replace(config, data=replace(config.data, val_split=None))) == 0
    assert not (out / "results.json").exists()
    assert best_checkpoint(out / "checkpoints") is None
    assert "no split to evaluate on" in capsys.readouterr().err


def test_the_user_hears_that_accumulation_ranks_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "run", tiny(epochs=1, batch_size=4, accumulate=2))
    text = capsys.readouterr().err
    assert "ranks the 2 images of each alone, not all 4 together" in text


def test_more_images_in_a_batch_than_there_are_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"batch_size: 16 images at a time.* has 8"):
        run(tmp_path / "run", tiny(batch_size=16))
    assert not (tmp_path / "run").exists()


def test_a_split_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    config = tiny()
    with pytest.raises(DataError, match="nonsense"):
        run(tmp_path / "run", replace(config, data=replace(config.data, train_split="nonsense")))


def test_images_held_on_the_device_give_the_same_batches(finished: Path, tmp_path: Path) -> None:
    config = tiny(epochs=1)
    run(tmp_path / "held", replace(config, data=replace(config.data, hold=True)))
    first, expected = rows(tmp_path / "held")[0], rows(finished)[0]
    assert first["class_loss"] == pytest.approx(expected["class_loss"], rel=1e-3)


@pytest.mark.parametrize(
    "loss", ["auc", "focal", "ohem", "ghm", "dr", "smooth_ap", "hinge_ap", "ce"]
)
def test_every_loss_trains_by_its_name(loss: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = replace(tiny(epochs=1, batch_size=4), loss=LossConfig(loss))
    assert run(out, config) == 0
    assert read_run(out).activation == ("softmax" if loss in ("ohem", "ce") else "sigmoid")
    assert (out / "results.json").exists()


@pytest.mark.parametrize("name", ["small-ssd", "small-faster-rcnn"])
@pytest.mark.parametrize("loss", ["auc", "focal", "ghm", "dr", "smooth_ap", "hinge_ap"])
def test_every_loss_trains_the_other_detectors_too(loss: str, name: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = replace(tiny(epochs=1, batch_size=4), detector=recipe(name).detector)
    assert run(out, replace(config, loss=LossConfig(loss))) == 0
    step = rows(out)[0]
    key = "roi.class_loss" if name == "small-faster-rcnn" else "class_loss"
    assert step[key] > 0
    assert step["gradient_norm"] > 0
    assert (out / "results.json").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dleta": 1.0}, "loss.settings.dleta.*It has: delta"),
        ({"delta": -1.0}, "loss.settings of 'ap'.*delta"),
        ({"delta": "x"}, "loss.settings.delta = 'x': expected a number"),
        ({"delta": True}, "loss.settings.delta = True: expected a number"),
    ],
)
def test_wrong_settings_of_a_loss_are_errors(
    settings: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        run(tmp_path / "run", replace(tiny(), loss=LossConfig("ap", settings)))


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    run(out, tiny(epochs=1, tensorboard=True))
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    found = [event.value for event in events.Scalars("class_loss")]
    assert found == pytest.approx([row["class_loss"] for row in rows(out) if row["kind"] == "step"])


def test_a_training_may_start_from_another_run_with_other_classes(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rankdet.data.synthetic.dataset import SyntheticDataset
    from rankdet.data.write import write_dataset

    data = tmp_path / "data"
    write_dataset({"train": SyntheticDataset("train", 4, size=64)}, data, "voc")
    for file in (data / "Annotations").glob("*.xml"):
        file.write_text(file.read_text().replace("<name>cross</name>", "<name>plus</name>"))
    (data / "classes.txt").unlink(missing_ok=True)
    config = tiny(epochs=1, max_steps=1, learning_rate=1e-12)
    classes = ("plus", "star", "disc", "ring", "triangle", "square")
    config = replace(
        config,
        data=replace(
            config.data, path=str(data), train_split="train", val_split=None, classes=classes
        ),
        detector=replace(config.detector, weights=str(finished), norm="group", frozen_stages=0),
    )
    out = tmp_path / "run"
    run(out, config)
    assert "5 of 6 classes" in (text := capsys.readouterr().err)
    assert "plus" in text
    best = best_checkpoint(finished / "checkpoints")
    assert best is not None
    source, found = load_checkpoint(best).weights, state(out)
    key = "head.classification_head.cls_logits.bias"
    before, after = source[key].view(-1, 6), found[key].view(-1, 6)
    assert torch.allclose(after[:, 2], before[:, 0], atol=1e-6)  # disc
    assert torch.allclose(
        found["head.regression_head.bbox_reg.weight"],
        source["head.regression_head.bbox_reg.weight"],
        atol=1e-6,
    )


def test_going_on_keeps_when_and_from_which_weights_the_run_was_started(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(out, tiny(epochs=1, milestones=(), batch_size=4, max_steps=1))
    before = read_run(out)
    assert before.notes[-1].startswith("The weights are random.")
    go_on(out, lambda c: replace(c, training=replace(c.training, max_steps=2)))
    after = read_run(out)
    assert after.provenance == before.provenance
    assert after.notes == before.notes
    assert after.config.training.max_steps == 2


def test_variables_of_torchrun_that_make_no_sense_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE = 2, and RANK is not set"):
        run(tmp_path / "run", tiny())
    assert not (tmp_path / "run").exists()


def test_one_process_never_talks_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        pytest.fail("torch.distributed was called")

    for name in ("init_process_group", "new_group", "all_reduce", "broadcast", "gather"):
        monkeypatch.setattr(torch.distributed, name, refuse)
    monkeypatch.setenv("WORLD_SIZE", "1")  # as notebooks may have it
    assert run(tmp_path / "run", tiny(epochs=1, batch_size=4)) == 0
    assert go_on(tmp_path / "run") == 0


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_start_that_was_killed_between_its_two_files_does_not_block_the_folder(
    is_whole: bool, tmp_path: Path
) -> None:
    from rankdet.config import dump

    out = tmp_path / "run"
    out.mkdir()
    (out / "config.yaml").write_text(dump(tiny()))
    if not is_whole:
        (out / ".run.json.k3x9_a2q").write_text('{"rankdet_run"')
    assert run(out, tiny(epochs=1, batch_size=4, max_steps=1)) == 0
    assert read_run(out).config.training.max_steps == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "training:\n  epochs: 3\n"),  # written by a person
        ("config.yaml", "not: [yaml"),
        ("config.yaml.old", ""),
        (".run.json", ""),
    ],
)
def test_a_folder_with_a_file_of_the_users_stays_blocked(
    name: str, text: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / name).write_text(text)
    with pytest.raises(CheckpointError, match="not an empty folder"):
        run(out, tiny())
    assert (out / name).read_text() == text


@pytest.mark.parametrize(("workers", "wanted"), [(1, ["workers", "data"]), (0, ["data"])])
def test_worker_processes_make_ready_while_the_data_are_read(
    workers: int, wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def reading(config: Config) -> None:
        order.append("data")
        raise DataError("enough")

    monkeypatch.setattr(
        "rankdet.data.loading.workers.worker_context", lambda method: order.append("workers")
    )
    monkeypatch.setattr("rankdet.workflows.parts._open_data", reading)
    config = tiny()
    with pytest.raises(DataError, match="enough"):
        run(tmp_path / "run", replace(config, data=replace(config.data, workers=workers)))
    assert order == wanted


def test_a_warm_up_that_is_longer_than_the_training_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "short", tiny(max_steps=1, warmup_steps=1))
    said = " ".join(capsys.readouterr().err.split())
    assert "rises over 1 step, and the training is not longer" in said
    assert "Try a larger training.max_steps, by which there are more steps" in said
    run(tmp_path / "longer", tiny(max_steps=2, warmup_steps=1))
    assert "rises over" not in capsys.readouterr().err
