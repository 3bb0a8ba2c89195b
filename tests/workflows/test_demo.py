"""The demo: what it leaves, what it does when it is called again, and what it refuses."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from rankdet.config import Config, DataConfig, DetectorConfig, EvaluationConfig, TrainingConfig
from rankdet.data.dataset import open_dataset
from rankdet.errors import CheckpointError, RankdetError, TrainingError
from rankdet.recipes import recipe
from rankdet.workflows import demo as workflow
from rankdet.workflows.demo import demo, is_finished
from rankdet.workflows.evaluate import evaluate
from rankdet.workflows.recording import Recorder
from rankdet.workflows.run import read_run

CONFIG = Config(
    data=DataConfig(
        path="synthetic",
        train_split="train:8",
        val_split="val:8",
        augmentation="flip",
        size=64,
        workers=0,
        hold=True,
    ),
    detector=DetectorConfig(backbone="small", norm="group", head_norm="group"),
    training=TrainingConfig(epochs=2, batch_size=2, log_every=1),
    evaluation=EvaluationConfig(every=0, fixed_size=64, batch_size=4),
    seed=5,
)
NUM_STEPS = 8


@pytest.fixture(scope="module")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo that has run to its end, with its report."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("demos") / "demo"
    assert demo(out, config=CONFIG, device="cpu") == 0
    return out


@pytest.fixture
def finished(_finished: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test may change."""
    return Path(shutil.copytree(_finished, tmp_path / "demo"))


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The losses of each page that is written; no page is, because the plots take seconds."""
    written: list[list[str]] = []

    def write_page(runs: Any, out: Path) -> None:
        written.append([run.loss for run in runs])
        out.write_text("<!doctype html>" + workflow.PAGE_MARK)

    monkeypatch.setattr(workflow, "write_page", write_page)
    return written


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: Any, **__: Any) -> int:
        raise AssertionError("it was trained again")

    monkeypatch.setattr(workflow, "train", train)


def results(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "results.json").read_text())
    return content


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(max((run / "checkpoints").glob("step-*")) / "weights.safetensors")


def files(folder: Path) -> dict[str, tuple[int, int]]:
    """When each file was written, and its size, by name."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    stats = {str(path.relative_to(folder)): path.stat() for path in paths}
    return {name: (stat.st_mtime_ns, stat.st_size) for name, stat in stats.items()}


# --- what it leaves


def test_the_run_is_trained_with_the_settings_and_evaluated(finished: Path) -> None:
    assert read_run(finished / "ap").config == CONFIG
    content = results(finished / "ap")
    assert content["checkpoint"]["step"] == NUM_STEPS
    assert content["data"]["num_images"] == 8
    assert is_finished(finished / "ap")


def test_the_images_are_those_of_the_validation_split(finished: Path) -> None:
    dataset = open_dataset("synthetic", "val:8")
    paths = sorted((finished / "images").iterdir())
    assert len(paths) >= 3
    assert [path.suffix for path in paths] == [".png"] * len(paths)
    for path in paths:
        index = int(path.stem)
        target = dataset.target(index)
        assert (~target.is_ignored).sum() >= 2
        pixels = np.asarray(Image.open(path).convert("RGB"))
        assert np.array_equal(pixels, dataset.image(index).permute(1, 2, 0).numpy())


def test_not_more_than_eight_images_are_written(tmp_path: Path) -> None:
    config = replace(CONFIG, data=replace(CONFIG.data, val_split="val:40"))
    workflow._write_images(tmp_path, config)
    written = [int(path.stem) for path in sorted(tmp_path.iterdir())]
    assert len(written) == 8
    dataset = open_dataset("synthetic", "val:40")
    is_shown = [(~dataset.target(index).is_ignored).sum() >= 2 for index in range(40)]
    assert written == [index for index in range(40) if is_shown[index]][:8]


def test_the_pictures_show_what_was_found_in_the_images(finished: Path) -> None:
    names = {path.stem for path in (finished / "images").iterdir()}
    assert {path.stem for path in (finished / "found" / "pictures").iterdir()} == names
    content = json.loads((finished / "found" / "detections.json").read_text())
    assert {image["file_name"] for image in content["images"]} == {f"{name}.png" for name in names}


def test_the_report_is_a_page_about_the_run(finished: Path) -> None:
    page = (finished / "index.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    assert workflow.PAGE_MARK in page[:1000]
    assert f"{results(finished / 'ap')['metrics']['AP50']:.1f}" in page


def test_it_prints_the_numbers_and_where_to_look(
    finished: Path,
    pages: list[list[str]],
    no_training: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = results(finished / "ap")
    content["metrics"] |= {"AP50": 61.26, "AP": 33.31, "AP75": None}
    content["training"]["wall_time_seconds"] = 127.4
    content["data"]["num_images"] = 8
    (finished / "ap" / "results.json").write_text(json.dumps(content))
    assert demo(finished, config=CONFIG, device="cpu") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "On 8 images that were not trained on, in percent:" in lines
    heading = next(line.split() for line in lines if line.startswith("loss "))
    row = next(line.split() for line in lines if line.startswith("ap "))
    assert heading == ["loss", "AP50", "AP", "AP75", "training"]
    assert row == ["ap", "61.3", "33.3", "n/a", "127", "s"]
    text = "\n".join(lines)
    assert str(finished / "index.html") in text
    assert str(finished / "found" / "pictures") in text
    again = f"rankdet demo --compare focal,ohem,auc --out {finished} --seed {CONFIG.seed}"
    assert again in text  # with another seed the folder would be refused
    assert "rankdet train DATA --weights imagenet --out runs/mine" in text


def test_the_pictures_are_also_on_one_sheet(finished: Path) -> None:
    sheet = Image.open(finished / "detections.jpg")
    pictures = sorted((finished / "found" / "pictures").iterdir())
    assert len(pictures) == 4
    assert sheet.size == (4 * 240, 240)
    first = Image.open(pictures[0])
    corner = np.asarray(sheet.crop((2, 2, 238, 238)), dtype=float)
    shrunk = np.asarray(first.convert("RGB").resize((236, 236)), dtype=float)
    assert abs(corner - shrunk).mean() < 5


def test_the_numbers_of_all_runs_can_be_kept_in_a_record(
    finished: Path, pages: list[list[str]], no_training: None, tmp_path: Path
) -> None:
    file = tmp_path / "record.json"
    assert demo(finished, config=CONFIG, device="cpu", record=file) == 0
    (run,) = json.loads(file.read_text())["runs"]
    expected = results(finished / "ap")
    assert run["loss"] == "ap"
    for name in ("metrics", "classes", "errors", "config", "provenance", "training"):
        assert run[name] == expected[name], name
    assert "jpeg" not in file.read_text()
    assert demo(finished, config=CONFIG, device="cpu", record=file) == 0  # ours may be replaced


def test_a_file_of_somebody_else_is_not_replaced_by_a_record(
    finished: Path, pages: list[list[str]], no_training: None, tmp_path: Path
) -> None:
    file = tmp_path / "thesis.json"
    file.write_text("{}")
    with pytest.raises(RankdetError, match="not written by this command"):
        demo(finished, config=CONFIG, device="cpu", record=file)
    assert file.read_text() == "{}"
    assert pages == []


@pytest.mark.slow
def test_the_recipe_finds_what_the_readme_promises(tmp_path: Path) -> None:
    assert demo(tmp_path / "demo", config=recipe("demo"), device="cpu") == 0
    assert results(tmp_path / "demo" / "ap")["metrics"]["AP50"] >= 60


# --- called again


def test_a_second_call_trains_nothing_and_writes_the_report_again(
    finished: Path,
    pages: list[list[str]],
    no_training: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (finished / "index.html").unlink()
    before = files(finished / "ap") | files(finished / "images")
    assert demo(finished, config=CONFIG, device="cpu") == 0
    assert files(finished / "ap") | files(finished / "images") == before
    assert (finished / "index.html").exists()
    assert pages == [["ap"]]
    printed = capsys.readouterr()
    assert "finished already" in printed.err
    assert f"{results(finished / 'ap')['metrics']['AP50']:.1f}" in printed.out


def test_other_losses_are_added_in_the_same_way(
    finished: Path, pages: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(finished / "ap")
    compare = ["ohem", "focal", "ap", "ohem"]
    assert demo(finished, config=CONFIG, compare=compare, device="cpu") == 0
    assert files(finished / "ap") == before
    for name in ("focal", "ohem"):
        config = read_run(finished / name).config
        assert config == replace(CONFIG, loss=replace(CONFIG.loss, name=name))
        assert results(finished / name)["checkpoint"]["step"] == NUM_STEPS
    assert pages == [["ap", "focal", "ohem"]]  # in one order, however they were named
    printed = capsys.readouterr()
    assert "Run 3 of 3" in printed.err
    assert "Run 4" not in printed.err
    for name in ("ap", "focal", "ohem"):
        row = next(line for line in printed.out.splitlines() if line.startswith(f"{name} "))
        assert row.split()[1] == f"{results(finished / name)['metrics']['AP50']:.1f}"
    assert "--compare" not in printed.out  # nothing is left to be proposed

    assert demo(finished, config=CONFIG, device="cpu") == 0
    assert pages[1] == ["ap", "focal", "ohem"]  # they stay on the page


def test_a_run_of_another_kind_is_not_on_the_page(
    finished: Path, pages: list[list[str]], no_training: None
) -> None:
    shutil.copytree(finished / "ap", finished / "auc")  # says that its loss is ap
    assert demo(finished, config=CONFIG, device="cpu") == 0
    assert pages == [["ap"]]


def interrupted_at(monkeypatch: pytest.MonkeyPatch, step: int, number: signal.Signals) -> None:
    """The signal comes while the step with this number is recorded, once."""
    record: Callable[..., None] = Recorder.step
    is_sent = False

    def stand_in(self: Recorder, position: Any, report: Any) -> None:
        nonlocal is_sent
        record(self, position, report)
        if position.step == step and not is_sent:
            is_sent = True
            signal.raise_signal(number)

    monkeypatch.setattr(Recorder, "step", stand_in)


@pytest.mark.parametrize(
    ("number", "status", "step"), [(signal.SIGINT, 130, 3), (signal.SIGTERM, 143, NUM_STEPS)]
)
def test_stopped_and_continued_is_as_if_never_stopped(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pages: list[list[str]],
    number: signal.Signals,
    status: int,
    step: int,
) -> None:
    interrupted_at(monkeypatch, step, number)
    out = tmp_path / "other"
    assert demo(out, config=CONFIG, compare=["focal"], device="cpu") == status
    assert not is_finished(out / "ap")
    assert not (out / "focal").exists()
    assert pages == []
    evaluate(out / "ap", device="cpu")  # what is there can be used
    assert results(out / "ap")["checkpoint"]["step"] == step
    assert not is_finished(out / "ap")

    assert demo(out, config=CONFIG, compare=["focal"], device="cpu") == 0
    got, expected = last_weights(out / "ap"), last_weights(finished / "ap")
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)
    assert results(out / "ap")["metrics"] == results(finished / "ap")["metrics"]
    assert results(out / "ap")["checkpoint"]["step"] == NUM_STEPS
    assert pages == [["ap", "focal"]]


def test_a_removed_evaluation_is_made_again(finished: Path, pages: list[list[str]]) -> None:
    before = results(finished / "ap")
    (finished / "ap" / "results.json").unlink()
    assert demo(finished, config=CONFIG, device="cpu") == 0
    assert results(finished / "ap")["metrics"] == before["metrics"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: content["checkpoint"].update(step=3),  # evaluated by hand, when stopped
        lambda content: content.pop("checkpoint"),
    ],
)
def test_an_evaluation_that_is_not_of_the_end_is_made_again(
    finished: Path, pages: list[list[str]], spoil: Callable[[dict[str, Any]], Any]
) -> None:
    before = results(finished / "ap")
    content = results(finished / "ap")
    content["metrics"]["AP50"] = 99.0
    spoil(content)
    (finished / "ap" / "results.json").write_text(json.dumps(content))
    assert not is_finished(finished / "ap")
    assert demo(finished, config=CONFIG, device="cpu") == 0
    assert results(finished / "ap")["metrics"] == before["metrics"]
    assert is_finished(finished / "ap")


def test_a_damaged_evaluation_is_made_again(finished: Path, pages: list[list[str]]) -> None:
    before = results(finished / "ap")
    (finished / "ap" / "results.json").write_text('{"rankdet_results": 1, "metr')
    assert demo(finished, config=CONFIG, device="cpu") == 0
    assert results(finished / "ap")["metrics"] == before["metrics"]


def test_a_row_of_another_kind_is_no_evaluation(finished: Path) -> None:
    (finished / "ap" / "metrics.jsonl").write_text(f'{{"step": {NUM_STEPS}}}\n')
    assert not is_finished(finished / "ap")


def test_a_run_that_was_stopped_before_its_first_step_starts_again(
    tmp_path: Path, pages: list[list[str]]
) -> None:
    out = tmp_path / "demo"
    workflow._claim(out, CONFIG.seed)
    (out / "ap").mkdir()
    assert demo(out, config=CONFIG, device="cpu") == 0
    assert is_finished(out / "ap")


def test_a_compared_loss_that_fails_does_not_take_the_others_along(
    finished: Path,
    pages: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def train(out: Path, **options: Any) -> int:
        if out.name == "auc":
            raise TrainingError("step 3: the class loss is nan.")
        return real_train(out, **options)

    real_train = workflow.train
    monkeypatch.setattr(workflow, "train", train)
    with pytest.raises(TrainingError, match=r"1 run of 3 failed.*step 3: the class loss is nan"):
        demo(finished, config=CONFIG, compare=["auc", "focal"], device="cpu")
    assert pages == [["ap", "focal"]]
    printed = capsys.readouterr()
    assert "The loss auc failed: step 3" in printed.err
    assert "focal " in printed.out


def test_where_the_first_loss_fails_nothing_else_is_tried(
    tmp_path: Path, pages: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(out: Path, **_: Any) -> int:
        assert out.name == "ap"
        raise TrainingError("step 3: the class loss is nan.")

    monkeypatch.setattr(workflow, "train", train)
    with pytest.raises(TrainingError, match=r"^step 3"):
        demo(tmp_path / "demo", config=CONFIG, compare=["focal"], device="cpu")
    assert pages == []


def test_an_image_that_is_there_stays(
    finished: Path, pages: list[list[str]], no_training: None
) -> None:
    path = min((finished / "images").iterdir())
    Image.new("RGB", (50, 40)).save(path)
    assert demo(finished, config=CONFIG, device="cpu") == 0
    assert Image.open(path).size == (50, 40)


# --- refused


def test_a_folder_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RankdetError, match=r"neither a new folder nor one of a demo.*--out"):
        demo(tmp_path, config=CONFIG, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("a file")
    with pytest.raises(RankdetError, match="neither a new folder"):
        demo(tmp_path / "demo", config=CONFIG, device="cpu")


def test_another_seed_is_refused_and_named(finished: Path) -> None:
    before = files(finished)
    with pytest.raises(RankdetError, match=r"seed = 5: .* than 6\. Give --seed 5 .* --out\.$"):
        demo(finished, config=replace(CONFIG, seed=6), device="cpu")
    assert files(finished) == before


def test_a_run_with_other_settings_is_refused_before_anything_is_trained(
    finished: Path, no_training: None
) -> None:
    longer = replace(CONFIG, training=replace(CONFIG.training, epochs=3))
    with pytest.raises(CheckpointError, match=r"demo/ap: .*training.epochs: 2 became 3.*--out"):
        demo(finished, config=longer, compare=["focal"], device="cpu")


def test_a_page_of_somebody_else_is_refused_before_anything_is_trained(
    finished: Path, no_training: None
) -> None:
    (finished / "index.html").write_text("my home page")
    with pytest.raises(RankdetError, match=r"index\.html: the file exists and was not written"):
        demo(finished, config=CONFIG, compare=["focal"], device="cpu")
    assert (finished / "index.html").read_text() == "my home page"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no JSON", r"demo\.json: this is not JSON"),
        ("[5]", r"demo\.json: expected rankdet_demo = 1"),
        ('{"rankdet_demo": 2, "seed": 5}', r"demo\.json: expected rankdet_demo = 1"),
        ('{"rankdet_demo": 1}', r"demo\.json: expected rankdet_demo = 1 and a seed"),
    ],
)
def test_a_spoilt_mark_is_told(finished: Path, text: str, message: str) -> None:
    (finished / "demo.json").write_text(text)
    with pytest.raises(RankdetError, match=message):
        demo(finished, config=CONFIG, device="cpu")


def test_evaluations_on_the_way_would_look_like_the_end(tmp_path: Path) -> None:
    config = replace(CONFIG, evaluation=replace(CONFIG.evaluation, every=1))
    with pytest.raises(ValueError, match=r"evaluation\.every = 0, got 1"):
        demo(tmp_path / "demo", config=config)


def test_the_recipe_is_one_for_the_demo() -> None:
    config = recipe("demo")
    assert config.evaluation.every == 0
    assert config.data.path == "synthetic"
    assert config.loss.name == "ap"
