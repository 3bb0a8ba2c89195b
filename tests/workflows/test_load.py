"""A run is loaded, and asked about images of every kind."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.testing import assert_close

import rankdet
from rankdet.data.dataset import FileDataset
from rankdet.data.reading.annotations import RawImage, assemble
from rankdet.data.reading.findings import Findings
from rankdet.data.reading.split import Split
from rankdet.errors import CheckpointError, ConfigError, DataError, TrainingError
from rankdet.structures import Detections
from rankdet.workflows.evaluate import detect_dataset
from rankdet.workflows.load import TrainedDetector, load, to_tensor
from rankdet.workflows.run import read_run, write_run


@pytest.fixture
def trained(tiny_run: Path) -> TrainedDetector:
    return load(tiny_run, device="cpu")


def scene(height: int = 70, width: int = 100, seed: int = 0) -> np.ndarray:
    """An image with large structures, so that resizing does not wash it out."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height)))


def assert_same(first: Detections, second: Detections) -> None:
    assert_close(vars(first), vars(second))
    assert len(first) > 0


def change_config(run: Path, **changes: Any) -> None:
    record = read_run(run)
    evaluation = replace(record.config.evaluation, **changes)
    write_run(run, replace(record, config=replace(record.config, evaluation=evaluation)))


# --- what is loaded


def test_a_run_is_loaded_with_all_that_belongs_to_it(trained: TrainedDetector) -> None:
    assert trained.classes == ("cat", "dog", "bus")
    assert trained.category_ids == (3, 5, 18)
    assert trained.activation == "sigmoid"
    assert trained.thresholds == {"cat": 0.3, "dog": 0.1, "bus": None}
    assert trained.config.detector.backbone == "small"
    assert trained.checkpoint.name == "step-00000001"
    assert trained.notes == ()
    assert not trained.detector.training
    assert not any(parameter.requires_grad for parameter in trained.detector.parameters())


def test_it_is_a_public_name() -> None:
    assert rankdet.load is load
    assert rankdet.TrainedDetector is TrainedDetector


def test_a_run_may_be_named_by_text_and_its_last_checkpoint_chosen(tiny_run: Path) -> None:
    best, last = load(str(tiny_run), device="cpu"), load(tiny_run, checkpoint="last", device="cpu")
    assert last.checkpoint.name == "step-00000002"
    assert last.notes == (
        "The thresholds were found with step-00000001, and the weights are those of step-00000002.",
    )
    assert last.thresholds == best.thresholds
    weights = [
        d.detector.state_dict()["head.regression_head.bbox_reg.weight"] for d in (best, last)
    ]
    assert not torch.equal(*weights)


def test_a_run_that_was_never_evaluated_has_no_thresholds(tiny_run: Path) -> None:
    (tiny_run / "results.json").unlink()
    trained = load(tiny_run, device="cpu")
    assert trained.thresholds == {}
    (note,) = trained.notes
    assert "never evaluated" in note
    assert f"rankdet evaluate {tiny_run}" in note


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        '{"thresholds": 3, "checkpoint": {"name": "a"}}',
        '{"thresholds": {"cat": "high"}, "checkpoint": {"name": "a"}}',
        '{"thresholds": {"cat": 0.5}}',
        '{"thresholds": {"cat": 0.5}, "checkpoint": null}',
    ],
)
def test_results_that_were_spoilt_are_told(tiny_run: Path, content: str) -> None:
    (tiny_run / "results.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"results\.json: the thresholds .* Evaluate again"):
        load(tiny_run, device="cpu")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="no such folder"):
        load(tmp_path / "missing")


def test_weights_of_another_detector_are_refused(tiny_run: Path) -> None:
    record = read_run(tiny_run)
    write_run(tiny_run, replace(record, classes=("cat", "dog"), category_ids=(3, 5)))
    with pytest.raises(CheckpointError, match="step-00000001: the weights do not fit"):
        load(tiny_run, device="cpu")


def test_a_device_that_is_not_there_is_refused(tiny_run: Path) -> None:
    with pytest.raises(ConfigError, match="--device nonsense"):
        load(tiny_run, device="nonsense")


# --- images of every kind


def test_every_kind_of_image_gives_the_same_detections(
    trained: TrainedDetector, tmp_path: Path
) -> None:
    pixels = scene()
    file = tmp_path / "a.png"
    Image.fromarray(pixels).save(file)
    tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    (wanted,) = trained.predict(pixels, 0.0)
    assert len(wanted) == 20
    for image in (file, str(file), tensor, tensor.contiguous(), Image.fromarray(pixels)):
        (found,) = trained.predict(image, 0.0)
        assert_same(found, wanted)
        (found,) = trained.predict([image], 0.0)
        assert_same(found, wanted)
    for batch in (tensor[None], pixels[None]):
        (found,) = trained.predict(batch, 0.0)
        assert_same(found, wanted)


def test_images_of_many_sizes_come_back_in_their_order_and_pixels(
    trained: TrainedDetector,
) -> None:
    images = [scene(70, 100), scene(300, 40, seed=1), scene(20, 30, seed=2)]
    found = trained.predict(images, 0.0)
    assert len(found) == 3
    for image, detections in zip(images, found, strict=True):
        height, width = image.shape[:2]
        assert detections.boxes.min() >= 0
        assert detections.boxes[:, 2].max() <= width
        assert detections.boxes[:, 3].max() <= height
        assert detections.boxes[:, 2].max() > width / 2
        assert detections.boxes[:, 3].max() > height / 2
        assert (detections.scores.diff() <= 0).all()
        (alone,) = trained.predict(image, 0.0)
        # The padding differs, and with it the group norm of the features.
        assert detections.boxes.shape == alone.boxes.shape


def test_detections_are_those_of_an_evaluation(tiny_run: Path, tmp_path: Path) -> None:
    change_config(tiny_run, flip=True, scales=(48, 64))
    trained = load(tiny_run, device="cpu")
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for number, path in enumerate(paths):
        Image.fromarray(scene(60 + 10 * number, 90, seed=number)).save(path)
    findings = Findings()
    raw = [RawImage(path, str(path), number) for number, path in enumerate(paths)]
    annotations = assemble(raw, findings)
    split = Split("val", "voc", trained.classes, (1, 2, 3), True, annotations, findings)
    config = replace(trained.config, data=replace(trained.config.data, workers=0))
    wanted = detect_dataset(
        trained.detector, FileDataset(split), config, activation="sigmoid", device=trained.device
    )
    assert wanted is not None
    found = trained.predict(paths, 0.0)
    for one, other in zip(found, wanted.detections, strict=True):
        assert_same(one, other)


def test_a_fixed_size_is_used(tiny_run: Path) -> None:
    change_config(tiny_run, fixed_size=64)
    trained = load(tiny_run, device="cpu")
    shapes = []
    trained.detector.register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape))
    trained.predict([scene(70, 100), scene(200, 40)])
    assert shapes == [(2, 3, 64, 64)]


@pytest.mark.parametrize(("batch_size", "sizes"), [(None, [2, 2, 1]), (3, [3, 2]), (9, [5])])
def test_images_come_in_batches(
    trained: TrainedDetector, batch_size: int | None, sizes: list[int]
) -> None:
    seen = []
    trained.detector.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    found = trained.predict([scene()] * 5, 0.0, batch_size=batch_size)
    assert seen == sizes
    assert len(found) == 5
    for detections in found:
        assert_same(detections, found[0])


def test_no_images_give_no_detections(trained: TrainedDetector) -> None:
    assert trained.predict([]) == []


def test_an_image_is_turned_as_its_camera_says(trained: TrainedDetector, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(scene()).save(tmp_path / "a.png", exif=exif)
    assert to_tensor(tmp_path / "a.png").shape == (3, 100, 70)
    with Image.open(tmp_path / "a.png") as image:
        assert torch.equal(to_tensor(image), to_tensor(tmp_path / "a.png"))


def test_pillow_images_of_other_modes_become_rgb() -> None:
    deep = Image.fromarray(np.full((4, 6), 40000, dtype=np.uint16))
    assert to_tensor(deep).unique().tolist() == [40000 >> 8]
    clear = Image.new("RGBA", (6, 4), (0, 0, 0, 0))
    assert to_tensor(clear).unique().tolist() == [255]
    with pytest.raises(ValueError, match="mode 'F'"):
        to_tensor(Image.new("F", (6, 4)))


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((4, 6), np.uint8), r"array \(height, width, 3\) of uint8.* got \(4, 6\)"),
        (np.zeros((4, 6, 4), np.uint8), r"got \(4, 6, 4\) of uint8"),
        (np.zeros((4, 6, 3), np.float32), "of float32"),
        (np.zeros((0, 6, 3), np.uint8), r"got \(0, 6, 3\)"),
        (torch.zeros(4, 6, 3, dtype=torch.uint8), r"tensor \(3, height, width\)"),
        (torch.zeros(3, 4, 6), r"of torch\.float32"),
        (17, "got int"),
    ],
)
def test_what_is_no_image_is_refused(image: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        to_tensor(image)


def test_a_file_that_is_no_image_is_a_data_error(trained: TrainedDetector, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("<html>")
    with pytest.raises(DataError, match=r"a\.jpg"):
        trained.predict(tmp_path / "a.jpg")
    with pytest.raises(DataError, match=r"b\.jpg"):
        trained.predict(tmp_path / "b.jpg")


def test_the_limit_of_pixels_is_that_of_the_run(tiny_run: Path, tmp_path: Path) -> None:
    record = read_run(tiny_run)
    data = replace(record.config.data, max_pixels=1000)
    write_run(tiny_run, replace(record, config=replace(record.config, data=data)))
    Image.fromarray(scene()).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="The limit is 1000 pixels"):
        load(tiny_run, device="cpu").predict(tmp_path / "a.png")


def test_outputs_that_are_not_finite_name_the_image(trained: TrainedDetector) -> None:
    batches = []

    def spoil(module: Any, inputs: tuple[Tensor, ...]) -> None:
        batches.append(None)
        if len(batches) == 2:
            module.head.classification_head.cls_logits.bias.fill_(torch.nan)

    trained.detector.register_forward_pre_hook(spoil)
    with pytest.raises(TrainingError, match=r"^image 2, image 3: "):
        trained.predict([scene()] * 4, 0.0)


# --- thresholds


def test_each_class_has_its_own_threshold_and_the_others_the_median(
    trained: TrainedDetector,
) -> None:
    assert trained.class_thresholds() == (0.3, 0.1, 0.2)
    (everything,) = trained.predict(scene(), 0.0)
    lowest = torch.tensor([0.3, 0.1, 0.2])[everything.labels]
    wanted = everything.select(everything.scores >= lowest)
    (found,) = trained.predict(scene())
    assert 0 < len(wanted) < len(everything)
    assert_same(found, wanted)


def test_a_threshold_overrides_those_of_all_classes(trained: TrainedDetector) -> None:
    (everything,) = trained.predict(scene(), 0.0)
    middle = everything.scores[len(everything) // 2].item()
    (found,) = trained.predict(scene(), middle)
    assert trained.class_thresholds(middle) == (middle,) * 3
    assert found.scores.min() == middle  # a score that is equal counts
    assert len(found) == int((everything.scores >= middle).sum()) < len(everything)
    assert len(trained.predict(scene(), 1.0)[0]) == 0


def test_without_an_evaluation_the_score_threshold_of_the_settings_holds(tiny_run: Path) -> None:
    (tiny_run / "results.json").unlink()
    change_config(tiny_run, score_threshold=0.25)
    assert load(tiny_run, device="cpu").class_thresholds() == (0.25,) * 3


def test_thresholds_that_are_all_missing_are_as_none(tiny_run: Path) -> None:
    content = {"thresholds": {"cat": None}, "checkpoint": {"name": "step-00000001"}}
    (tiny_run / "results.json").write_text(json.dumps(content))
    assert load(tiny_run, device="cpu").class_thresholds() == (0.01,) * 3


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_a_threshold_is_a_score(trained: TrainedDetector, threshold: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        trained.predict(scene(), threshold)


def test_a_batch_has_at_least_one_image(trained: TrainedDetector) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        trained.predict(scene(), batch_size=0)
