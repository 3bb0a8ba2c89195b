"""A run that holds images out of its training split: what it learns from, and what judges it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training_world import Plan

from rankdet.config import Config, DataConfig, DetectorConfig, EvaluationConfig, TrainingConfig
from rankdet.data.dataset import DetectionDataset, open_dataset
from rankdet.data.hold_out import divide, place
from rankdet.data.loading.held import HeldLoader
from rankdet.data.loading.loader import Loader
from rankdet.data.write import synthesise
from rankdet.errors import CheckpointError, ConfigError, DataError
from rankdet.report.page import write_report
from rankdet.robustness.adversarial import PatchSettings
from rankdet.workflows.evaluate import evaluate
from rankdet.workflows.load import load
from rankdet.workflows.parts import prepare
from rankdet.workflows.robustness import robustness
from rankdet.workflows.run import read_run
from rankdet.workflows.train import train

SHARE = 0.2
CONFIG = Config(
    data=DataConfig(
        path="synthetic",
        train_split="train:20",
        hold_out=SHARE,
        augmentation="flip",
        size=64,
        workers=0,
    ),
    detector=DetectorConfig(backbone="small", norm="group", head_norm="group"),
    training=TrainingConfig(epochs=1, batch_size=4, log_every=1),
    evaluation=EvaluationConfig(every=1, fixed_size=64, batch_size=4),
)


def with_data(config: Config, **changes: Any) -> Config:
    return replace(config, data=replace(config.data, **changes))


def names(dataset: DetectionDataset | None) -> set[str]:
    assert dataset is not None
    return {Path(dataset.name(index)).stem for index in range(len(dataset))}


def seen(loader: Loader | HeldLoader) -> set[str]:
    """The images of a few epochs: each leaves out what is less than a batch."""
    batches = (batch for epoch in range(3) for batch in loader.epoch(epoch))
    return {Path(name).stem for batch in batches for name in batch.names}


def go_on(out: Path, change: Callable[[Config], Config] = lambda config: config) -> int:
    def make_config(stored: Config | None) -> Config:
        assert stored is not None
        longer = replace(stored, training=replace(stored.training, epochs=2))
        return change(longer)

    return train(out, make_config=make_config, is_resumed=True, device="cpu")


def results(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text())
    return content


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set in VOC's layout with both splits."""
    path = tmp_path_factory.mktemp("data") / "voc"
    synthesise(path, "voc", train=20, val=3, size=64)
    return path


@pytest.fixture(scope="module")
def of_files(folder: Path) -> Config:
    return with_data(CONFIG, path=str(folder), train_split=None)


@pytest.fixture(scope="module")
def _finished(of_files: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "run"
    assert train(out, make_config=lambda stored: of_files, device="cpu") == 0
    return out


@pytest.fixture
def run(_finished: Path, tmp_path: Path) -> Path:
    """A finished run on the files, which a test may change."""
    return Path(shutil.copytree(_finished, tmp_path / "run"))


def test_a_run_trains_on_the_others_and_is_evaluated_on_those_held_out(of_files: Config) -> None:
    parts = prepare(of_files, "cpu")
    data = parts.config.data
    assert (data.train_split, data.val_split, data.hold_out) == ("train", None, SHARE)
    trained = seen(parts.loader)
    held_out = names(parts.validation)
    assert {place(name) < SHARE for name in held_out} == {True}
    assert {place(name) < SHARE for name in trained} == {False}
    assert trained | held_out == names(open_dataset(data.path, "train"))
    note = f"train: {len(held_out)} of 20 images held out of the training to evaluate on"
    assert parts.notes[0].startswith(note)


def test_the_embedded_data_and_every_seed_hold_out_the_same() -> None:
    first, other = (prepare(replace(CONFIG, seed=seed), "cpu") for seed in (0, 1))
    assert names(first.validation) == {"000013", "000014", "000016", "000019"}
    assert first.record.data == other.record.data


def test_held_on_the_device_are_the_images_to_train_on_alone(of_files: Config) -> None:
    loader = prepare(with_data(of_files, hold=True), "cpu").loader
    assert isinstance(loader, HeldLoader)
    assert seen(loader) == names(divide(open_dataset(of_files.data.path, "train"), SHARE)[0])


def test_classes_are_those_of_the_whole_split(tmp_path: Path) -> None:
    """Here one has its only objects among the images held out."""
    synthesise(tmp_path / "data", "voc", train=20, val=0, size=64)
    (tmp_path / "data" / "classes.txt").unlink()
    held_out = divide(open_dataset(tmp_path / "data", "train"), SHARE)[1]
    file = tmp_path / "data" / "Annotations" / f"{Path(held_out.name(0)).stem}.xml"
    text = file.read_text()
    assert "<object>" in text
    file.write_text(text.replace("<name>", "<name>rare "))
    parts = prepare(with_data(CONFIG, path=str(tmp_path / "data"), train_split="train"), "cpu")
    assert parts.validation is not None
    assert parts.validation.classes == parts.record.classes
    assert any(name.startswith("rare ") for name in parts.record.classes)


def test_what_cannot_be_used_is_told_once_in_training_and_evaluation(
    tmp_path: Path, folder: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(shutil.copytree(folder, tmp_path / "data"))
    (data / "JPEGImages" / "train_000003.png").write_bytes(b"no image")
    notes = prepare(with_data(CONFIG, path=str(data), train_split="train"), "cpu").notes
    assert notes[0].startswith("train: 1 image and ")
    assert notes[1].startswith("train: ")
    assert "of 19 images held out" in notes[1]
    assert len([note for note in notes if "cannot be used" in note]) == 1
    hold_out = lambda config: with_data(config, hold_out=SHARE)  # noqa: E731
    evaluate(run, data=str(data), changes=hold_out, device="cpu")
    assert capsys.readouterr().out.count("train: 1 image and ") == 1


def test_one_image_cannot_be_divided() -> None:
    with pytest.raises(DataError, match=r"data\.hold_out = .*: expected two images") as error:
        prepare(with_data(CONFIG, train_split="train:1", hold_out=0.5), "cpu")
    assert "train:1" in str(error.value)
    assert "--val-split" in str(error.value)


def test_images_without_objects_are_told_by_side(tmp_path: Path) -> None:
    synthesise(tmp_path / "data", "yolo", train=20, val=0, size=64)
    config = with_data(CONFIG, path=str(tmp_path / "data"), train_split="train")
    labels = {file.stem: file for file in (tmp_path / "data" / "labels").rglob("*.txt")}
    for name, file in labels.items():
        if place(name) < SHARE:
            file.write_text("")
    assert (
        "train (held-out 20 %): there are no objects in the split: no AP."
        in prepare(config, "cpu").notes
    )
    for file in labels.values():
        file.write_text("")
    with pytest.raises(DataError, match=r"'train \(without held-out 20 %\)': expected objects"):
        prepare(config, "cpu")


def test_results_and_record_name_both_parts(run: Path, tmp_path: Path) -> None:
    content, record = results(run / "results.json"), read_run(run)
    train_part, val_part = record.data["train"], record.data["val"]
    assert content["data"]["split"] == val_part["split"] == "train (held-out 20 %)"
    assert train_part["split"] == "train (without held-out 20 %)"
    assert train_part["num_images"] + val_part["num_images"] == 20
    assert content["data"]["fingerprint"] == val_part["fingerprint"] != train_part["fingerprint"]
    assert {place(picture["name"]) < SHARE for picture in content["pictures"]} == {True}
    write_report([run], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "split train (held-out 20 %)" in page


def test_evaluation_is_by_default_on_the_held_out_images_again(run: Path) -> None:
    before = results(run / "results.json")
    (run / "results.json").unlink()
    evaluate(run, device="cpu")
    after = results(run / "results.json")
    assert after["data"] == before["data"]
    assert after["metrics"] == before["metrics"]
    assert after["config"]["data"]["hold_out"] == SHARE
    assert load(run, device="cpu").thresholds == after["thresholds"]


def test_other_settings_of_the_evaluation_have_a_file_of_their_own(run: Path) -> None:
    def other(config: Config) -> Config:
        return replace(config, evaluation=replace(config.evaluation, nms_iou=0.3))

    before = (run / "results.json").read_bytes()
    evaluate(run, changes=other, device="cpu")
    assert (run / "results-train-held-out-20-other-settings.json").is_file()
    assert (run / "results.json").read_bytes() == before


@pytest.mark.parametrize(("split", "num_images"), [("val", 3), ("train", 20)])
def test_a_split_that_is_named_is_taken_as_a_whole(
    run: Path, split: str, num_images: int, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(run, split=split, device="cpu")
    content = results(run / f"results-{split}.json")
    assert (content["data"]["split"], content["data"]["num_images"]) == (split, num_images)
    assert content["config"]["data"]["hold_out"] is None
    assert ("learnt from most images" in capsys.readouterr().out) == (split == "train")


def test_a_split_and_another_share_are_refused_together(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--split, data\.hold_out"):
        evaluate(run, split="val", changes=lambda c: with_data(c, hold_out=0.3), device="cpu")


def lose_data(run: Path) -> None:
    """Let the run say that its data were where there is nothing now."""
    file, path = run / "config.yaml", read_run(run).config.data.path
    file.write_text(file.read_text().replace(path, str(run / "gone")))


def test_the_same_images_are_held_out_of_data_that_were_moved(
    run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = results(run / "results.json")["data"]
    lose_data(run)
    with pytest.raises(DataError, match=r"rankdet evaluate RUN DATA --set data\.hold_out=0\.2`"):
        evaluate(run, device="cpu")
    (run / "results.json").unlink()
    evaluate(run, data=str(folder), changes=lambda c: with_data(c, hold_out=SHARE), device="cpu")
    assert results(run / "results.json")["data"] == before
    assert "itself was evaluated on" not in capsys.readouterr().out
    evaluate(run, data=str(folder), device="cpu")  # by default the validation split, as ever
    assert results(run / "results-voc-val.json")["data"]["split"] == "val"
    assert (
        "val: the run itself was evaluated on train (held-out 20 %). If these are its data at "
        "another place, --set data.hold_out=0.2 evaluates on those images again."
    ) in capsys.readouterr().out


def test_who_names_a_split_of_other_data_is_not_told_of_another(
    run: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lose_data(run)
    evaluate(run, data=str(folder), split="val", device="cpu")
    assert "itself was evaluated on" not in capsys.readouterr().out


def test_a_run_goes_on_with_the_same_images_alone(run: Path, tmp_path: Path, folder: Path) -> None:
    data = Path(shutil.copytree(folder, tmp_path / "data"))
    with pytest.raises(CheckpointError, match=r"data\.hold_out: 0\.2 became 0\.3"):
        go_on(run, lambda config: with_data(config, hold_out=0.3))
    main = data / "ImageSets" / "Main" / "train.txt"
    lines = main.read_text().splitlines()
    trained = next(line for line in lines if place(line.split()[0]) >= SHARE)
    main.write_text("".join(f"{line}\n" for line in lines if line != trained))
    with pytest.raises(CheckpointError, match=r"other data: train\.fingerprint") as error:
        go_on(run, lambda config: with_data(config, path=str(data)))
    assert "val." not in str(error.value)  # nobody has moved
    main.write_text("".join(f"{line}\n" for line in lines))
    assert go_on(run, lambda config: with_data(config, path=str(data))) == 0
    assert results(run / "results.json")["data"]["split"] == "train (held-out 20 %)"


def test_robustness_perturbs_the_held_out_images_and_learns_its_patch_from_the_others(
    run: Path,
) -> None:
    content = robustness(
        run,
        only=["adversarial"],
        limit=2,
        patch_settings=PatchSettings(steps=1, side=8),
        device="cpu",
    )
    assert content["data"]["split"] == "train (held-out 20 %)"
    assert {place(picture["name"]) < SHARE for picture in content["pictures"]} == {True}
    record = read_run(run).data["train"]
    assert content["patch"]["split"] == record["split"]
    assert content["patch"]["num_images"] == record["num_images"]


def hide(run: Path, **options: Any) -> dict[str, Any]:
    """What `rankdet robustness` says of a patch that is trained for a step."""
    quick = PatchSettings(steps=1, side=8)
    return robustness(run, only=["adversarial"], patch_settings=quick, device="cpu", **options)


def test_robustness_finds_both_parts_of_data_that_were_moved(run: Path, folder: Path) -> None:
    recorded = read_run(run).data
    lose_data(run)
    wanted = r"`rankdet robustness RUN DATA --set data\.hold_out=0\.2`"
    for data in (None, str(folder)):
        with pytest.raises(DataError, match=wanted):
            hide(run, data=data)
    content = hide(run, data=str(folder), changes=lambda c: with_data(c, hold_out=SHARE))
    assert content["data"]["fingerprint"] == recorded["val"]["fingerprint"]
    assert content["patch"]["data"] == str(folder)
    assert content["patch"]["split"] == recorded["train"]["split"]
    assert content["patch"]["num_images"] == recorded["train"]["num_images"]


def test_a_named_split_of_moved_data_asks_for_that_of_the_patch(run: Path, folder: Path) -> None:
    """A share to hold out is refused beside --split."""
    lose_data(run)
    with pytest.raises(DataError, match=r"`rankdet robustness RUN DATA --train-split SPLIT`"):
        hide(run, data=str(folder), split="val")


def test_a_patch_never_learns_from_images_that_it_is_evaluated_on(run: Path) -> None:
    """Here more are held out than in the training."""
    content = hide(run, changes=lambda c: with_data(c, hold_out=0.5))
    assert content["patch"]["num_images"] + content["data"]["num_images"] == 20


def test_several_processes_hold_out_the_same(
    world: Callable[..., list[Any]], of_files: Config, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "many"
    assert [ended.status for ended in world([Plan(out, of_files)] * 2)] == [0, 0]
    assert read_run(out).data == read_run(run).data
    assert results(out / "results.json")["data"] == results(run / "results.json")["data"]
