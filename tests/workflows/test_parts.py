"""The parts of a training: each setting must reach its part, and what is wrong must be told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rankdet import build
from rankdet.config import Config, DetectorConfig, LossConfig
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.write import write_dataset
from rankdet.engine.train import StepSettings
from rankdet.errors import ConfigError, DataError
from rankdet.workflows.parts import Parts, prepare
from rankdet.workflows.run import read_run

CPU = torch.device("cpu")


def weights(parts: Parts) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in parts.detector.parameters()])


def with_data(config: Config, **changes: Any) -> Config:
    return replace(config, data=replace(config.data, **changes))


def with_training(config: Config, **changes: Any) -> Config:
    return replace(config, training=replace(config.training, **changes))


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Two splits in files; the categories have numbers of their own."""
    folder = tmp_path / "data"
    splits = {
        "train": SyntheticDataset("train", 8, size=64),
        "val": SyntheticDataset("val", 2, size=64),
    }
    write_dataset(splits, folder, "coco")
    for split in splits:
        file = folder / "annotations" / f"instances_{split}.json"
        content = json.loads(file.read_text())
        for category in content["categories"]:
            category["id"] += 10
        for annotation in content["annotations"]:
            annotation["category_id"] += 10
        file.write_text(json.dumps(content))
    return folder


def of_files(config: Config, folder: Path) -> Config:
    return with_data(config, path=str(folder), train_split=None, val_split=None)


def test_every_setting_of_a_step_reaches_it(tiny_config: Config) -> None:
    config = with_training(
        tiny_config,
        batch_size=4,
        accumulate=2,
        clip_norm=7.0,
        log_every=3,
        precision="bfloat16",
        channels_last=True,
    )
    parts = prepare(config, "cpu")
    assert parts.step_settings == StepSettings(
        device=CPU,
        precision=torch.bfloat16,
        channels_last=True,
        clip_norm=7.0,
        accumulate=2,
        log_every=3,
    )
    assert parts.device == CPU
    assert (len(parts.loader), parts.steps_per_epoch) == (4, 2)
    layer = parts.detector.backbone.fpn.layer_blocks[0][0]
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)


def test_usually_nothing_is_accumulated_or_converted(tiny_config: Config) -> None:
    assert prepare(tiny_config, "cpu").step_settings == StepSettings(
        device=CPU, clip_norm=10.0, log_every=1
    )


@pytest.mark.parametrize(
    ("epochs", "schedule", "late"),
    [(2, "steps", "2, 3.5"), (3, "steps", "3.5"), (4, "steps", ""), (2, "one_cycle", "")],
)
def test_milestones_that_are_never_reached_are_said(
    tiny_config: Config, epochs: int, schedule: str, late: str
) -> None:
    training = replace(
        tiny_config.training, epochs=epochs, schedule=schedule, milestones=(2.0, 3.5)
    )
    notes = prepare(replace(tiny_config, training=training), "cpu").notes
    found = [note for note in notes if "training.milestones" in note]
    assert len(found) == bool(late)
    if late:
        assert f"does not fall at {late} (" in found[0]


def test_the_first_weights_depend_on_the_seed_alone(tiny_config: Config) -> None:
    first = weights(prepare(tiny_config, "cpu"))
    torch.rand(3)
    assert torch.equal(weights(prepare(tiny_config, "cpu")), first)
    assert not torch.equal(weights(prepare(replace(tiny_config, seed=1), "cpu")), first)


def test_frozen_stages_are_not_trained(tiny_config: Config) -> None:
    config = replace(tiny_config, detector=replace(tiny_config.detector, frozen_stages=2))
    parts = prepare(config, "cpu")
    frozen = {name for name, p in parts.detector.named_parameters() if not p.requires_grad}
    stages = [name for stage in parts.detector.backbone.stages[:2] for name in stage]
    assert frozen
    assert {name.split(".")[2] for name in frozen} == set(stages)
    num_trained = sum(p.requires_grad for p in parts.detector.parameters())
    assert len(parts.optimizer.param_groups[0]["params"]) == num_trained


@pytest.mark.parametrize("is_compiled", [False, True])
def test_backbone_and_head_are_compiled_on_request(
    monkeypatch: pytest.MonkeyPatch, tiny_config: Config, is_compiled: bool
) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self: compiled.append(self))
    parts = prepare(with_training(tiny_config, compile=is_compiled), "cpu")
    wanted = [parts.detector.backbone, parts.detector.head] if is_compiled else []
    assert [id(module) for module in compiled] == [id(module) for module in wanted]


def test_initial_weights_are_read_unless_a_checkpoint_replaces_them(
    tiny_config: Config, tiny_run: Path
) -> None:
    (note,) = prepare(tiny_config, "cpu").notes
    assert note.startswith("The weights are random.")
    config = replace(tiny_config, detector=replace(tiny_config.detector, weights=str(tiny_run)))
    (note,) = prepare(config, "cpu").notes
    assert note.startswith(f"{tiny_run}: ")
    assert prepare(config, "cpu", has_checkpoint=True).notes == ()


def test_the_detector_has_the_columns_of_the_loss(tiny_config: Config) -> None:
    parts = prepare(replace(tiny_config, loss=LossConfig("ohem")), "cpu")
    assert parts.activation == parts.record.activation == "softmax"
    assert parts.detector.head.classification_head.num_classes == 6 + 1
    assert prepare(tiny_config, "cpu").detector.head.classification_head.num_classes == 6


def test_the_record_says_what_was_trained(tiny_config: Config, coco: Path, tmp_path: Path) -> None:
    parts = prepare(replace(of_files(tiny_config, coco), seed=3), "cpu")
    record = parts.record
    assert record.config == parts.config
    assert record.classes == SyntheticDataset("train", 1).classes
    assert record.category_ids == (11, 12, 13, 14, 15, 16)
    assert record.provenance["seed"] == 3
    train, val = record.data["train"], record.data["val"]
    assert (train["split"], train["num_images"]) == ("train", 8)
    assert (val["split"], val["num_images"]) == ("val", 2)
    assert train["fingerprint"] != val["fingerprint"]
    assert parts.validation is not None
    assert len(parts.validation) == 2


def test_splits_are_chosen_by_name_unless_they_are_named(tiny_config: Config, coco: Path) -> None:
    config = of_files(tiny_config, coco)

    def chosen(**named: str) -> tuple[str | None, str | None]:
        data = prepare(with_data(config, **named), "cpu").config.data
        return data.train_split, data.val_split

    assert chosen() == ("train", "val")
    assert chosen(val_split="train") == ("train", "train")
    assert chosen(train_split="train") == ("train", None)
    assert chosen(train_split="val+train", val_split="val") == ("val+train", "val")


def test_splits_are_those_of_the_format(
    monkeypatch: pytest.MonkeyPatch, tiny_config: Config, coco: Path
) -> None:
    asked: list[tuple[Any, ...]] = []

    def choose(*arguments: Any) -> tuple[str, str]:
        asked.append(arguments)
        return "train", "val"

    monkeypatch.setattr("rankdet.workflows.parts.choose_splits", choose)
    prepare(with_data(of_files(tiny_config, coco), format="coco"), "cpu")
    assert asked == [(str(coco), "coco")]


def test_the_embedded_data_take_no_other_classes(tiny_config: Config) -> None:
    config = replace(tiny_config, data=replace(tiny_config.data, classes=("cat",)))
    with pytest.raises(ConfigError, match=r"data\.classes: .* Leave out --classes\."):
        prepare(config, "cpu")


def test_validation_has_the_classes_of_the_training(tiny_config: Config, coco: Path) -> None:
    file = coco / "annotations" / "instances_val.json"
    content = json.loads(file.read_text())
    ids = [category["id"] for category in content["categories"]]
    for category, number in zip(content["categories"], reversed(ids), strict=True):
        category["id"] = number
    file.write_text(json.dumps(content))
    parts = prepare(of_files(tiny_config, coco), "cpu")
    assert parts.validation is not None
    assert parts.validation.classes == parts.record.classes == SyntheticDataset("val", 1).classes


def test_all_parts_are_on_the_device(monkeypatch: pytest.MonkeyPatch, tiny_config: Config) -> None:
    asked: list[Any] = []
    original = build.training_loader

    def loading(*arguments: Any, device: torch.device, **keywords: Any) -> Any:
        asked.append(device)
        return original(*arguments, device="cpu", **keywords)

    monkeypatch.setattr(build, "training_loader", loading)
    # A device without numbers, which every machine has; this loss has a tensor of its own.
    parts = prepare(replace(tiny_config, loss=LossConfig("ghm")), "meta")
    tensors = [*parts.detector.parameters(), *parts.detector.buffers(), *parts.criterion.buffers()]
    assert {tensor.device for tensor in tensors} == {torch.device("meta")}
    assert len(list(parts.criterion.buffers())) == 1
    assert parts.device == asked[0] == torch.device("meta")


def test_without_data_there_is_nothing_to_prepare(tiny_config: Config) -> None:
    with pytest.raises(ConfigError, match=r"^data\.path: expected a data set"):
        prepare(with_data(tiny_config, path="", train_split=None), "cpu")


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_without_annotations_is_refused_by_name(
    tiny_config: Config, coco: Path, split: str
) -> None:
    file = coco / "annotations" / f"instances_{split}.json"
    content = json.loads(file.read_text())
    del content["annotations"]
    file.unlink()
    (file.parent / f"image_info_{split}.json").write_text(json.dumps(content))
    config = with_data(of_files(tiny_config, coco), train_split="train", val_split="val")
    with pytest.raises(DataError, match=f"split = '{split}': expected a split with annotations"):
        prepare(config, "cpu")


def test_what_cannot_be_used_is_told_for_both_splits(tiny_config: Config, coco: Path) -> None:
    for split in ("train", "val"):
        file = coco / "annotations" / f"instances_{split}.json"
        content = json.loads(file.read_text())
        content["annotations"][0]["bbox"] = [-90, -90, 5, 5]  # outside of the image
        file.write_text(json.dumps(content))
    notes = prepare(of_files(tiny_config, coco), "cpu").notes
    assert notes[0].startswith("train: 0 images and 1 object")
    assert notes[1].startswith("val: 0 images and 1 object")
    assert notes[2].startswith("The weights are random")
    notes = prepare(with_data(of_files(tiny_config, coco), train_split="train"), "cpu").notes
    assert notes[0].startswith("train: 0 images and 1 object")
    assert notes[1].startswith("There is no split to evaluate on")


def test_accumulation_is_told(tiny_config: Config) -> None:
    parts = prepare(with_training(tiny_config, batch_size=8, accumulate=4), "cpu")
    assert parts.notes[-1].startswith("Gradients of 4 micro-batches")
    assert "ranks the 2 images of each alone, not all 8 together" in parts.notes[-1]


@pytest.mark.parametrize("is_held", [False, True])
def test_images_that_are_held_are_counted_as_they_are_read(
    monkeypatch: pytest.MonkeyPatch, tiny_config: Config, is_held: bool
) -> None:
    told: list[tuple[str, int]] = []

    class Meter:
        def __init__(self, what: str) -> None:
            self.what = what

        def __enter__(self) -> Meter:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def expect(self, num_images: int) -> None:
            told.append((f"{self.what}: expect", num_images))

        def advance(self, num_images: int = 1) -> None:
            told.append((self.what, num_images))

    monkeypatch.setattr("rankdet.workflows.parts.progress", Meter)
    prepare(with_data(tiny_config, hold=is_held), "cpu")
    what = "Loading onto the device"
    assert told == ([(f"{what}: expect", 8), *[(what, 1)] * 8] if is_held else [])


def test_a_run_of_another_network_cannot_be_the_start(tiny_config: Config, tiny_run: Path) -> None:
    detector = DetectorConfig(backbone="resnet18", weights=str(tiny_run))
    with pytest.raises(Exception, match=str(tiny_run)) as error:
        prepare(replace(tiny_config, detector=detector), "cpu")
    assert type(error.value).__module__ == "rankdet.errors"
    assert read_run(tiny_run).config.detector.backbone == "small"


def test_settings_without_effect_are_told(tiny_config: Config) -> None:
    changed = replace(tiny_config.detector, rois=64, pixels="bytes")
    parts = prepare(replace(tiny_config, detector=changed), "cpu")
    text = "Without effect for retinanet with backbone small: detector.pixels, detector.rois."
    assert text in parts.notes
    assert not any("Without effect" in note for note in prepare(tiny_config, "cpu").notes)


def test_an_ssd_is_evaluated_on_squares_as_it_is_trained_and_that_is_told(
    tiny_config: Config,
) -> None:
    config = replace(
        tiny_config,
        detector=DetectorConfig("ssd", backbone="small", norm="group"),
        evaluation=replace(tiny_config.evaluation, fixed_size=None),
    )
    parts = prepare(config, "cpu")
    side = config.data.size
    assert parts.config.evaluation.fixed_size == side
    assert parts.record.config == parts.config
    assert f"SSD is evaluated as it is trained, at {side} x {side} pixels" in parts.notes[-1]
    again = prepare(parts.config, "cpu")
    assert again.config == parts.config
    assert not any("SSD is evaluated" in note for note in again.notes)
