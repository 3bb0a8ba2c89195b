"""What is built from settings: every setting must reach the object that it is for."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from rankdet import build, losses
from rankdet.config import (
    Config,
    DataConfig,
    DetectorConfig,
    EvaluationConfig,
    LossConfig,
    TrainingConfig,
)
from rankdet.data.augmentation.transforms import ResizeFixed, ResizeShorter, SSDAugmentation
from rankdet.data.loading.held import HeldLoader
from rankdet.data.loading.loader import Loader
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.detectors.detector import freeze
from rankdet.detectors.faster_rcnn import FasterRCNN
from rankdet.detectors.retinanet import RetinaNet
from rankdet.errors import ConfigError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
IMAGES = SyntheticDataset("train", 10, size=64)


class Calls(list[tuple[tuple[Any, ...], dict[str, Any]]]):
    """Stands for a function and keeps what it is called with."""

    def __call__(self, *arguments: Any, **keywords: Any) -> object:
        self.append((arguments, keywords))
        return None


def calls_of(monkeypatch: pytest.MonkeyPatch, name: str) -> Calls:
    calls = Calls()
    monkeypatch.setattr(build, name, calls)
    return calls


# Where and how to compute


def test_the_usual_device_is_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_there, expected in ((True, CUDA), (False, CPU)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_there=is_there: is_there)
        assert build.device(None) == expected


def test_a_device_is_taken_by_its_name() -> None:
    assert build.device("meta") == torch.device("meta")  # there on every machine


@pytest.mark.parametrize("problem", [RuntimeError, AssertionError])
def test_a_device_that_is_not_there_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, problem: type[Exception]
) -> None:
    def missing(*arguments: object, **keywords: object) -> None:
        raise problem("no such thing\nand a long story")

    monkeypatch.setattr(torch, "empty", missing)
    with pytest.raises(ConfigError, match=r"^--device cuda:9: no such thing\. Give cpu"):
        build.device("cuda:9")


@pytest.mark.parametrize(
    ("wanted", "device", "expected"),
    [
        (None, CPU, None),
        (None, CUDA, torch.bfloat16),
        ("float32", CUDA, None),
        ("bfloat16", CPU, torch.bfloat16),
    ],
)
def test_the_precision_is_as_asked_for_else_by_the_device(
    wanted: str | None, device: torch.device, expected: torch.dtype | None
) -> None:
    assert build.precision(TrainingConfig(precision=wanted), device) == expected


@pytest.mark.parametrize(
    ("wanted", "device", "expected"),
    [(None, CPU, False), (None, CUDA, True), (True, CPU, True), (False, CUDA, False)],
)
def test_the_memory_layout_is_as_asked_for_else_by_the_device(
    wanted: bool | None, device: torch.device, expected: bool
) -> None:
    assert build.is_channels_last(TrainingConfig(channels_last=wanted), device) is expected


@pytest.mark.parametrize("is_last", [False, True])
def test_a_detector_is_placed_on_the_device_in_its_layout(is_last: bool) -> None:
    config = TrainingConfig(channels_last=is_last)
    detector = build.detector(DetectorConfig(backbone="small", norm="group"), 2, "sigmoid")
    weight = build.placed(detector, config, CPU).backbone.fpn.layer_blocks[0][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last) is is_last
    assert build.placed(detector, config, torch.device("meta")).mean.device.type == "meta"


# The loss


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ap", losses.APLoss),
        ("auc", losses.AUCLoss),
        ("focal", losses.FocalLoss),
        ("ohem", losses.OHEMLoss),
        ("ghm", losses.GHMLoss),
        ("dr", losses.DRLoss),
        ("smooth_ap", losses.SmoothAPLoss),
        ("hinge_ap", losses.HingeAPLoss),
        ("ce", losses.CrossEntropyLoss),
    ],
)
def test_a_loss_has_its_name(name: str, expected: type) -> None:
    assert type(build.class_loss(LossConfig(name))) is expected


def test_a_loss_gets_its_settings() -> None:
    assert "delta=0.25" in repr(build.class_loss(LossConfig("ap", {"delta": 0.25})))


@pytest.mark.parametrize("name", ["ap", "auc", "smooth_ap", "hinge_ap"])
@pytest.mark.parametrize("scope", ["image", 4])
def test_images_may_be_ranked_alone_or_some_together(name: str, scope: str | int) -> None:
    loss = build.class_loss(LossConfig(name, {"scope": scope}))
    assert f"scope={scope!r}" in repr(loss)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *(("ap", {"delta": -1.0}), ("ap", {"delta": "wide"}), ("focal", {"gamma": "two"})),
        *(("ap", {"scope": "class"}), ("auc", {"scope": 0})),
    ],
)
def test_settings_that_the_loss_does_not_accept_are_told_before_the_training(
    name: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=rf"^loss\.settings( of '{name}': |\.\w+ = )"):
        build.class_loss(LossConfig(name, settings))


# The detector


def test_every_setting_of_the_network_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(monkeypatch, "make_retinanet")
    settings = {
        "backbone": "resnet101",
        "stride_on": "1x1",
        "norm": "group",
        "norm_epsilon": 0.5,
        "head_norm": "group",
        "p6_from": "p5",
        "pyramid_channels": 96,
        "pyramid_start": "torchvision",
        "head_start": "kaiming",
        "anchor_scale": 3.0,
        "anchor_octaves": 3,
        "anchor_ratios": (0.25, 1.0),
        "anchor_grid": "torchvision",
    }
    defaults = DetectorConfig()
    assert all(getattr(defaults, name) != value for name, value in settings.items())
    build.detector(DetectorConfig(**settings), 7, "softmax")  # type: ignore[arg-type]
    assert calls == [((7,), {"activation": "softmax", **settings})]
    elsewhere = {"name", "weights", "frozen_stages", "box_weights", "positive_iou", "negative_iou"}
    of_others = {"ssd_layout", "pixels", "rois", "proposals", "test_proposals"}
    names = {field.name for field in dataclasses.fields(defaults)}
    assert names == settings.keys() | elsewhere | of_others


def test_every_setting_of_faster_rcnn_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(monkeypatch, "make_faster_rcnn")
    settings = {
        "backbone": "resnet101",
        "stride_on": "1x1",
        "norm": "group",
        "norm_epsilon": 0.5,
        "head_norm": "group",
        "pyramid_channels": 96,
        "anchor_scale": 3.0,
        "anchor_octaves": 3,
        "anchor_ratios": (0.25, 1.0),
        "anchor_grid": "torchvision",
        "positive_iou": 0.6,
    }
    numbers = {"rois": 100, "proposals": 300, "test_proposals": 50}
    build.detector(DetectorConfig("faster_rcnn", **settings, **numbers), 7, "softmax")  # type: ignore[arg-type]
    given = {"num_rois": 100, "num_proposals": 300, "num_test_proposals": 50}
    assert calls == [((7,), {"activation": "softmax", **settings, **given})]


@pytest.mark.parametrize(("rois", "expected"), [(512, 2000), (2000, 2000), (4096, 4096)])
def test_there_are_always_enough_proposals_for_the_rois(
    monkeypatch: pytest.MonkeyPatch, rois: int, expected: int
) -> None:
    calls = calls_of(monkeypatch, "make_faster_rcnn")
    build.detector(DetectorConfig("faster_rcnn", rois=rois), 2, "sigmoid")
    assert calls[0][1]["num_proposals"] == expected


def test_a_detector_has_the_name_that_was_asked_for() -> None:
    for name, kind in (("retinanet", RetinaNet), ("faster_rcnn", FasterRCNN)):
        assert type(build.detector(DetectorConfig(name, backbone="small"), 2, "sigmoid")) is kind


@pytest.mark.parametrize(
    ("weights", "asked", "norm", "num_frozen"),
    [
        ("none", {}, "batch", 0),
        ("imagenet", {}, "frozen", 2),
        ("imagenet", {"norm": "batch", "frozen_stages": 0}, "batch", 0),
        ("none", {"norm": "frozen", "frozen_stages": 3}, "frozen", 3),
    ],
)
def test_what_is_frozen_depends_on_the_weights_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
    weights: str,
    asked: dict[str, Any],
    norm: str,
    num_frozen: int,
) -> None:
    calls = calls_of(monkeypatch, "make_retinanet")
    config = DetectorConfig(weights=weights, **asked)
    build.detector(config, 2, "sigmoid")
    assert calls[0][1]["norm"] == norm
    assert build.num_frozen_stages(config) == num_frozen


def test_every_setting_of_the_criterion_reaches_it() -> None:
    config = Config(
        detector=DetectorConfig(
            box_weights=(1.0, 2.0, 3.0, 4.0), positive_iou=0.7, negative_iou=0.3
        ),
        loss=LossConfig("focal", box_weight=0.25),
    )
    loss = build.class_loss(config.loss)
    criterion = build.criterion(config, loss)
    assert criterion.class_loss is loss
    assert criterion.box_weights == (1.0, 2.0, 3.0, 4.0)
    assert criterion.box_weight == 0.25
    assert vars(criterion.assigner).items() >= {"positive_iou": 0.7, "negative_iou": 0.3}.items()


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_class_loss_of_faster_rcnn_is_that_of_its_second_stage(is_shared: bool) -> None:
    config = Config(
        detector=DetectorConfig(
            "faster_rcnn", box_weights=(1.0, 2.0, 3.0, 4.0), positive_iou=0.6, negative_iou=0.1
        ),
        loss=LossConfig("ap", box_weight=0.25),
    )
    loss = build.class_loss(config.loss)
    criterion = build.criterion(config, loss, synchronize=is_shared)
    assert criterion.class_loss is loss
    assert criterion.synchronize is is_shared
    assert (criterion.box_weights, criterion.box_weight) == ((1.0, 2.0, 3.0, 4.0), 0.25)
    assert (
        vars(criterion.assigner).items()
        >= {
            "positive_iou": 0.6,
            "negative_iou": 0.6,  # an RoI is an object or background
            "is_best_positive": False,
        }.items()
    )
    first = criterion.stages["rpn"]
    assert (first.box_weights, first.box_weight) == ((1.0, 1.0, 1.0, 1.0), 0.25)
    assert (first.beta, criterion.beta) == (1 / 9, 1 / 9)
    assert (first.box_mean, criterion.box_mean) == ("all", "all")
    assert first.class_loss.synchronize is is_shared
    assert (first.assigner.num_samples, first.assigner.num_positives) == (256, 128)
    assert vars(first.assigner.assigner).items() >= {"positive_iou": 0.7}.items()


@pytest.mark.parametrize("last", [0.3, None])
def test_every_setting_of_the_postprocess_reaches_it(last: float | None) -> None:
    config = Config(
        detector=DetectorConfig(box_weights=(1.0, 2.0, 3.0, 4.0)),
        evaluation=EvaluationConfig(
            score_threshold=0.2,
            last_level_threshold=last,
            candidates=77,
            nms_iou=0.6,
            max_detections=55,
        ),
    )
    assert vars(build.postprocess(config, "softmax")) == {
        "activation": "softmax",
        "box_weights": (1.0, 2.0, 3.0, 4.0),
        "score_threshold": 0.2,
        "last_level_threshold": last,
        "num_candidates": 77,
        "nms_iou": 0.6,
        "max_detections": 55,
    }


# The optimiser


@pytest.mark.parametrize(
    ("name", "expected", "settings"),
    [
        ("sgd", torch.optim.SGD, {"lr": 0.02, "weight_decay": 0.3, "momentum": 0.7}),
        ("adamw", torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.3}),
    ],
)
def test_every_setting_of_the_optimiser_reaches_it(
    name: str, expected: type, settings: dict[str, float]
) -> None:
    training = TrainingConfig(optimizer=name, learning_rate=0.02, weight_decay=0.3, momentum=0.7)
    optimizer = build.optimizer(Config(training=training), nn.Linear(2, 2))
    assert type(optimizer) is expected
    assert optimizer.param_groups[0].items() >= settings.items()


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize(
    ("device", "fused"), [("cpu", None), pytest.param("cuda", True, marks=pytest.mark.gpu)]
)
def test_an_optimiser_is_fused_on_a_gpu(name: str, device: str, fused: bool | None) -> None:
    layer = nn.Linear(2, 2).to(device)
    optimizer = build.optimizer(Config(training=TrainingConfig(optimizer=name)), layer)
    assert optimizer.param_groups[0]["fused"] is fused


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_frozen_parameters_are_not_the_optimisers(name: str) -> None:
    layer = nn.Linear(2, 2)
    layer.bias.requires_grad_(False)
    optimizer = build.optimizer(Config(training=TrainingConfig(optimizer=name)), layer)
    (parameter,) = optimizer.param_groups[0]["params"]
    assert parameter is layer.weight


# Several processes


def test_losses_are_those_of_all_processes_where_there_are_several() -> None:
    for name in build.LOSSES:
        assert not getattr(build.class_loss(LossConfig(name)), "synchronize", False)
        assert build.class_loss(LossConfig(name), synchronize=True).synchronize


def test_losses_that_rank_may_do_so_in_each_process_alone_and_no_others() -> None:
    local = {
        name
        for name in build.LOSSES
        if not build.class_loss(LossConfig(name), synchronize=True, rank_locally=True).synchronize
    }
    assert local == {"ap", "auc", "smooth_ap", "hinge_ap"}
    settings = {"delta": 0.25}
    loss = build.class_loss(LossConfig("ap", settings), synchronize=True, rank_locally=True)
    assert (loss.delta, loss.check_finite) == (0.25, False)


@pytest.mark.parametrize("name", ["synchronize", "process_group"])
def test_whether_there_are_several_processes_is_no_setting(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"loss.settings.{name}: the loss 'ap' has no such"):
        build.class_loss(LossConfig("ap", {name: True}))


def test_only_batch_norms_that_learn_are_synchronised() -> None:
    detector = build.detector(DetectorConfig(backbone="resnet18", norm="batch"), 2, "sigmoid")
    freeze(detector, 2)
    before = {name for name, _ in detector.named_parameters()}
    changed = build.synchronized_norms(detector)
    kinds = {
        isinstance(layer, nn.SyncBatchNorm)
        for name, layer in changed.named_modules()
        if "bn" in name and "layer" in name and "layer1" not in name
    }
    assert kinds == {True}
    assert type(changed.backbone.body.bn1) is nn.BatchNorm2d
    assert type(changed.backbone.body.layer1[0].bn1) is nn.BatchNorm2d
    assert {name for name, _ in changed.named_parameters()} == before
    assert not any(map(build.has_statistics, changed.modules()))


# The data


def test_every_setting_of_the_data_reaches_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(monkeypatch, "open_dataset")
    config = DataConfig(
        path="photos", format="yolo", classes=("a", "b"), allow_outside=True, max_pixels=123
    )
    start, image = Calls(), Calls()
    build.open_split(config, "train+val", on_start=start, on_image=image)
    build.open_split(config, "val", classes=("c",))
    expected = {"format": "yolo", "allow_outside": True, "max_pixels": 123}
    first = {**expected, "classes": ("a", "b"), "on_start": start, "on_image": image}
    # A trained detector's classes come before those of the settings.
    second = {**expected, "classes": ("c",), "on_start": None, "on_image": None}
    assert calls == [(("photos", "train+val"), first), (("photos", "val"), second)]
    assert calls[0][1]["on_start"] is start  # lists are equal when both are empty
    assert calls[0][1]["on_image"] is image


@pytest.mark.parametrize("format", [None, "voc"])  # a recipe may name one
def test_the_embedded_data_have_their_own_classes_and_no_format(format: str | None) -> None:
    config = DataConfig(path="synthetic", format=format)
    dataset = build.open_split(config, "val:3", classes=("cat",))
    assert len(dataset) == 3
    assert dataset.classes == IMAGES.classes


def loading(training: dict[str, Any] | None = None, **data: Any) -> Config:
    return Config(
        data=DataConfig(path="synthetic", size=32, workers=0, **data),
        training=TrainingConfig(**{"batch_size": 4, **(training or {})}),
        seed=5,
    )


@pytest.mark.parametrize("augmentation", ["ssd", "jitter", "none"])
def test_every_setting_of_the_loading_reaches_the_loader(
    monkeypatch: pytest.MonkeyPatch, augmentation: str
) -> None:
    calls = calls_of(monkeypatch, "make_loader")
    config = loading({"batch_size": 6, "accumulate": 2}, augmentation=augmentation)
    build.training_loader(replace(config, data=replace(config.data, workers=3)), IMAGES, device=CPU)
    ((dataset, _), keywords) = calls[0]
    assert dataset is IMAGES
    is_fixed = augmentation != "jitter"
    assert keywords == {
        "batch_size": 3,
        "seed": 5,
        "size": (32, 32) if is_fixed else None,  # the jitter's images differ in their size
        "num_groups": 1 if is_fixed else 2,
        "rank": 0,
        "world_size": 1,
        "num_workers": 3,
        "pin_memory": False,
    }
    build.training_loader(config, IMAGES, device="cuda", rank=1, world_size=2)
    assert calls[1][1]["pin_memory"] is True
    assert (calls[1][1]["rank"], calls[1][1]["world_size"]) == (1, 2)


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("augmentation", ["ssd", "jitter", "flip"])
def test_batches_have_the_size_of_the_augmentation(augmentation: str, is_held: bool) -> None:
    config = loading({"batch_size": 2}, augmentation=augmentation, hold=is_held)
    loader = build.training_loader(config, SyntheticDataset("train", 2, size=64), device="cpu")
    assert isinstance(loader, HeldLoader if is_held else Loader)
    batch = next(iter(loader.epoch(0)))
    shorter = batch.images.shape[2]
    assert 480 <= shorter <= 832 if augmentation == "jitter" else shorter == 32


@pytest.mark.parametrize("is_held", [False, True])
def test_the_flip_alone_mirrors_about_half_of_the_images(is_held: bool) -> None:
    dataset = SyntheticDataset("train", 40, size=64)
    config = loading({"batch_size": 40}, augmentation="flip", hold=is_held)
    batch = next(iter(build.training_loader(config, dataset, device="cpu").epoch(0)))
    key: Any = None
    num_flipped = 0
    for image, index in zip(batch.images, batch.indices.tolist(), strict=True):
        expected, _ = ResizeFixed(32)(dataset.image(index), dataset.target(index), key)
        is_flipped = torch.allclose(image, expected.flip(2), atol=1e-3)
        assert is_flipped or torch.allclose(image, expected, atol=1e-3)
        num_flipped += is_flipped
    assert 10 <= num_flipped <= 30


def test_without_augmentation_an_image_is_resized_and_nothing_else() -> None:
    loader = build.training_loader(loading(augmentation="none"), IMAGES, device="cpu")
    batch = next(iter(loader.epoch(0)))
    index = int(batch.indices[0])
    key: Any = None
    image, target = ResizeFixed(32)(IMAGES.image(index), IMAGES.target(index), key)
    assert torch.equal(batch.images[0], image)
    assert torch.equal(batch.targets[0].boxes, target.boxes)


@pytest.mark.parametrize("augmentation", ["ssd", "jitter", "flip"])
def test_images_held_on_the_device_come_in_the_same_batches(augmentation: str) -> None:
    # Of different shapes: some augmentations group them.
    shapes: Any = Shapes()
    read = build.training_loader(loading(augmentation=augmentation), shapes, device="cpu")
    held = build.training_loader(
        loading(augmentation=augmentation, hold=True), shapes, device="cpu"
    )
    for epoch in (0, 1):
        expected = [indices.tolist() for indices in read.index_batches(epoch)]  # type: ignore[union-attr]
        assert [batch.indices.tolist() for batch in held.epoch(epoch)] == expected


class Shapes(SyntheticDataset):
    """The same images, every other one with its lower half cut off."""

    def __init__(self) -> None:
        super().__init__("train", 12, size=64)

    def size(self, index: int) -> tuple[int, int]:
        return (64 if index % 2 else 32, 48)

    def image(self, index: int) -> torch.Tensor:
        height, width = self.size(index)
        return super().image(index)[:, :height, :width]

    def target(self, index: int) -> Any:
        target = super().target(index).select(torch.zeros(0, dtype=torch.long))
        return replace(target, size=self.size(index))


@pytest.mark.parametrize(
    ("augmentation", "side", "longest"),
    [("flip", 32, 128), ("flip", 64, 192), ("ssd", 32, 192), ("jitter", 32, 192)],
)
def test_images_that_are_only_mirrored_are_held_at_four_times_what_is_seen_of_them(
    augmentation: str, side: int, longest: int
) -> None:
    dataset = SyntheticDataset("train", 4, size=192)
    settings = loading(augmentation=augmentation, hold=True)
    config = replace(settings, data=replace(settings.data, size=side))
    loader = build.training_loader(config, dataset, device="cpu")
    assert isinstance(loader, HeldLoader)
    assert loader.store.sizes.max() == longest


def test_what_is_seen_of_an_image_that_is_held_smaller_is_nearly_the_same() -> None:
    dataset = SyntheticDataset("train", 8, size=256)  # of which 128 pixels are held
    batches = [
        next(iter(build.training_loader(config, dataset, device="cpu").epoch(0)))
        for config in (loading(augmentation="flip", hold=is_held) for is_held in (False, True))
    ]
    read, held = batches
    assert torch.equal(read.indices, held.indices)
    assert (read.images - held.images).abs().mean() < 0.01  # of 1
    for one, other in zip(read.targets, held.targets, strict=True):
        torch.testing.assert_close(one.boxes, other.boxes, rtol=0, atol=1e-3)
        torch.testing.assert_close(one.areas, other.areas, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_ignored_objects_are_dropped_where_that_is_asked_for(
    is_held: bool, is_dropped: bool
) -> None:
    dataset = SyntheticDataset("train", 40, size=64)
    config = loading({"batch_size": 40}, drop_ignored=is_dropped, hold=is_held)
    batch = next(iter(build.training_loader(config, dataset, device="cpu").epoch(0)))
    num_ignored = sum(int(target.is_ignored.sum()) for target in batch.targets)
    assert (num_ignored == 0) is is_dropped


def test_every_setting_of_the_loading_reaches_the_held_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = calls_of(monkeypatch, "make_held_loader")
    image = Calls()
    config = loading({"batch_size": 6, "accumulate": 2}, hold=True, drop_ignored=True)
    build.training_loader(config, IMAGES, device="cuda:1", on_image=image, rank=1, world_size=2)
    ((dataset, transform), keywords) = calls[0]
    assert dataset is IMAGES
    assert transform.size == 32
    assert keywords.pop("on_image") is image
    assert keywords == {
        "device": "cuda:1",
        "batch_size": 3,
        "seed": 5,
        "num_groups": 1,
        "drop_ignored": True,
        "side": 32,
        "rank": 1,
        "world_size": 2,
        "longest": 1536,
    }


def test_images_can_only_be_held_for_an_augmentation_on_the_device() -> None:
    with pytest.raises(ConfigError, match=r"^data.hold: .* one of ssd, jitter, flip; got 'none'"):
        build.training_loader(loading(augmentation="none", hold=True), IMAGES, device="cpu")


def test_a_batch_may_hold_the_whole_split_and_no_more() -> None:
    loader = build.training_loader(loading({"batch_size": 10}), IMAGES, device="cpu")
    assert len(loader) == 1
    with pytest.raises(ConfigError, match=r"11 images at a time.* has 10"):
        build.training_loader(loading({"batch_size": 11}), IMAGES, device="cpu")
    accumulated = loading({"batch_size": 20, "accumulate": 2})  # ten at a time
    assert len(build.training_loader(accumulated, IMAGES, device="cpu")) == 1


def test_the_paper_chain_is_the_usual_augmentation() -> None:
    assert build._training_transform(DataConfig(size=96)) == SSDAugmentation(96)


# Evaluation


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"shorter": 50, "longest": 90}, [(ResizeShorter(50, 90), False)]),
        (
            {"shorter": 50, "longest": 90, "scales": (40, 100), "flip": True},
            [
                (ResizeShorter(40, 72), False),
                (ResizeShorter(100, 180), False),
                (ResizeShorter(40, 72, True), True),
                (ResizeShorter(100, 180, True), True),
            ],
        ),
        ({"fixed_size": 64}, [(ResizeFixed(64), False)]),
        (
            {"fixed_size": 64, "flip": True},
            [(ResizeFixed(64), False), (ResizeFixed(64, True), True)],
        ),
    ],
)
def test_each_view_has_its_scale_and_side(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], expected: list[Any]
) -> None:
    config = EvaluationConfig(**settings)
    assert build.evaluation_transforms(config) == expected
    calls = calls_of(monkeypatch, "make_evaluation_loader")
    views = build.evaluation_views(config, IMAGES, device="cpu")
    assert [arguments for arguments, _ in calls] == [
        (IMAGES, transform) for transform, _ in expected
    ]
    assert [view.is_flipped for view in views] == [is_flipped for _, is_flipped in expected]


def test_every_setting_of_the_evaluation_reaches_its_loaders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = calls_of(monkeypatch, "make_evaluation_loader")
    config = EvaluationConfig(batch_size=3)
    store = object()
    for device in ("cpu", "cuda"):
        build.evaluation_views(
            config,
            IMAGES,
            device=device,
            workers=2,
            rank=1,
            world_size=3,
            store=store,  # type: ignore[arg-type]
        )
    expected = {"batch_size": 3, "rank": 1, "world_size": 3, "num_workers": 2, "store": store}
    assert [keywords for _, keywords in calls] == [
        {**expected, "pin_memory": False},
        {**expected, "pin_memory": True},
    ]
