"""Evaluation of a run: an untrained tiny detector, and one that knows the answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from rankdet import build
from rankdet.boxes import encode_boxes
from rankdet.config import Config, DataConfig, DetectorConfig, EvaluationConfig, TrainingConfig
from rankdet.data.dataset import DetectionDataset, open_dataset
from rankdet.data.fingerprint import fingerprint
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.synthetic.scenes import CLASSES
from rankdet.data.write import synthesise
from rankdet.engine.checkpoint import save_checkpoint, set_best
from rankdet.engine.detect import Detected
from rankdet.errors import CheckpointError, ConfigError, DataError, RankdetError
from rankdet.metrics.anchor_scores import AnchorScores
from rankdet.metrics.evaluation import ClassResult, Evaluation
from rankdet.structures import Detections, Predictions
from rankdet.workflows import evaluate as workflow
from rankdet.workflows.evaluate import detect_dataset, evaluate, evaluate_dataset, protocol_of
from rankdet.workflows.load import load
from rankdet.workflows.results import Outcome, print_results, submission_files
from rankdet.workflows.run import RunRecord, write_run

CPU = torch.device("cpu")
CONFIG = Config(
    data=DataConfig(path="synthetic", train_split="train:8", val_split="val:6", workers=0),
    detector=DetectorConfig(backbone="small", norm="group", head_norm="group"),
    training=TrainingConfig(precision="float32"),
    evaluation=EvaluationConfig(shorter=80, longest=160, batch_size=4),
    seed=3,
)


class Oracle(nn.Module):
    """Says what stands in the targets of a data set, whose images must come in order, 80 wide."""

    def __init__(self, dataset: DetectionDataset, activation: str = "sigmoid") -> None:
        super().__init__()
        self.dataset = dataset
        self.activation = activation
        self.position = 0
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, images: Tensor, sizes: object = None) -> list[Predictions]:
        self.shapes.append(tuple(images.shape))
        num_classes = len(self.dataset.classes)
        num_anchors, num_before = 20, int(self.activation == "softmax")
        anchors = torch.tensor([[10.0, 10.0, 50.0, 50.0]]).expand(num_anchors, 4)
        logits = torch.full((len(images), num_anchors, num_classes + num_before), -9.0)
        logits[:, :, :num_before] = 9.0
        deltas = torch.zeros(len(images), num_anchors, 4)
        for row in range(len(images)):
            target = self.dataset.target(self.position)
            self.position += 1
            boxes = target.boxes * (80 / min(target.size))
            count = len(boxes)
            deltas[row, :count] = encode_boxes(boxes, anchors[:count], (10, 10, 5, 5))
            places = torch.arange(count), target.labels + num_before
            logits[row][places] = 12.0 if num_before else 2.0
        return [Predictions("oracle", logits, deltas, anchors, (num_anchors,))]


def identity(split: str) -> dict[str, Any]:
    dataset = open_dataset("synthetic", split)
    return {"split": split, "num_images": len(dataset), "fingerprint": fingerprint(dataset)}


def record_of(config: Config = CONFIG, **changes: Any) -> RunRecord:
    record = RunRecord(
        config=config,
        classes=CLASSES,
        category_ids=tuple(range(1, len(CLASSES) + 1)),
        activation="sigmoid",
        data={"train": identity("train:8"), "val": identity("val:6")},
        provenance={"seed": 3, "command": "rankdet train"},
    )
    return replace(record, **changes)


def make_run(path: Path, record: RunRecord, num_checkpoints: int = 1) -> Path:
    write_run(path, record)
    for step in range(7, 7 + num_checkpoints):
        torch.manual_seed(step)
        detector = build.detector(record.config.detector, len(record.classes), record.activation)
        save_checkpoint(
            path / "checkpoints",
            step,
            weights=detector.state_dict(),
            training={},
            state={"position": {"epoch": 2, "batch": 0, "step": step}, "seconds": 12.5},
        )
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", record_of())


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesised(tmp_path_factory, "coco")


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesised(tmp_path_factory, "voc")


@pytest.fixture(scope="module")
def yolo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthesised(tmp_path_factory, "yolo")


def synthesised(factory: pytest.TempPathFactory, format: str) -> Path:
    folder = factory.mktemp("data") / format
    synthesise(folder, format, train=1, val=6, seed=0, size=160)
    return folder


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> list[Oracle]:
    """Lets evaluations have a detector that knows the answers; lists those that were made."""
    made: list[Oracle] = []
    opened: list[DetectionDataset] = []
    open_data = workflow.open_data

    def opening(*arguments: Any) -> DetectionDataset:
        opened.append(open_data(*arguments))
        return opened[-1]

    def knowing(record: RunRecord, checkpoint: object, device: torch.device) -> Oracle:
        made.append(Oracle(opened[-1], record.activation))
        return made[-1]

    monkeypatch.setattr(workflow, "open_data", opening)
    monkeypatch.setattr(workflow, "trained_detector", knowing)
    return made


def results(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text())
    assert isinstance(content, dict)
    return content


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# A detector in memory


def outcome_of(dataset: DetectionDataset, config: Config, activation: str = "sigmoid") -> Outcome:
    detector = Oracle(dataset, activation)
    outcome = evaluate_dataset(detector, dataset, config, activation=activation, device=CPU)
    assert outcome is not None
    return outcome


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
@pytest.mark.parametrize("protocol", ["voc", "coco"])
def test_a_detector_that_knows_the_answers_is_perfect(activation: str, protocol: str) -> None:
    dataset = SyntheticDataset("val", 6)
    config = replace(CONFIG, evaluation=replace(CONFIG.evaluation, protocol=protocol))
    outcome = outcome_of(dataset, config, activation)
    assert outcome.evaluation.protocol == protocol
    assert outcome.evaluation.metrics["AP"] == pytest.approx(100)
    assert [result.name for result in outcome.evaluation.classes] == list(CLASSES)
    for index, detections in enumerate(outcome.detected.detections):
        distances = torch.cdist(detections.boxes, dataset.target(index).boxes)
        assert distances.shape[0] == distances.shape[1]
        assert (distances.min(dim=1).values < 0.01).all()


def test_an_evaluation_can_be_stopped() -> None:
    dataset, done = SyntheticDataset("val", 6), []
    outcome = evaluate_dataset(
        Oracle(dataset),
        dataset,
        CONFIG,
        activation="sigmoid",
        device=CPU,
        on_batch=done.append,
        should_stop=lambda: bool(done),
    )
    assert outcome is None
    assert done == [4]


def test_settings_decide_the_size_of_the_images() -> None:
    dataset = SyntheticDataset("val", 3)
    for changes, shape in (
        ({"shorter": 96}, (3, 3, 96, 96)),
        ({"fixed_size": 64}, (3, 3, 64, 64)),
    ):
        detector = Oracle(dataset)
        config = replace(CONFIG, evaluation=replace(CONFIG.evaluation, **changes))
        detect_dataset(detector, dataset, config, activation="sigmoid", device=CPU)
        assert detector.shapes == [shape]


def test_every_scale_and_its_mirror_image_is_a_view() -> None:
    class Recording(Oracle):
        def forward(self, images: Tensor, sizes: object = None) -> list[Predictions]:
            self.position = 0  # every view begins anew
            return super().forward(images)

    dataset = SyntheticDataset("val", 3)
    config = replace(CONFIG, evaluation=replace(CONFIG.evaluation, scales=(64, 96), flip=True))
    detector = Recording(dataset)
    detect_dataset(detector, dataset, config, activation="sigmoid", device=CPU)
    assert sorted(shape[-1] for shape in detector.shapes) == [64, 64, 96, 96]


def test_worker_processes_are_shared_among_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflow, "usual_num_workers", lambda most: most)
    asked: list[int | None] = []
    views = build.evaluation_views

    def recorded(*arguments: Any, workers: int | None, **settings: Any) -> Any:
        asked.append(workers)
        return views(*arguments, workers=0, **settings)

    monkeypatch.setattr(build, "evaluation_views", recorded)
    dataset = SyntheticDataset("val", 0)
    for workers, scales in ((None, ()), (None, (64, 80, 96)), (3, (64, 80)), (None, range(64, 75))):
        config = replace(
            CONFIG,
            data=replace(CONFIG.data, workers=workers),
            evaluation=replace(CONFIG.evaluation, scales=tuple(scales)),
        )
        detect_dataset(Oracle(dataset), dataset, config, activation="sigmoid", device=CPU)
    assert asked == [None, 2, 3, 1]


def test_worker_processes_end_with_the_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(
        "rankdet.data.loading.loader.Loader.close", lambda self: closed.append(self)
    )
    dataset = SyntheticDataset("val", 2)
    config = replace(CONFIG, evaluation=replace(CONFIG.evaluation, scales=(80, 96)))
    detector = Oracle(SyntheticDataset("val", 4))
    detect_dataset(detector, dataset, config, activation="sigmoid", device=CPU)
    assert len(closed) == 2


def test_the_protocol_is_the_one_named_or_that_of_the_data(
    coco: Path, voc: Path, yolo: Path
) -> None:
    def protocol(path: Path | str, format: str | None = None, named: str | None = None) -> str:
        return protocol_of(
            replace(
                CONFIG,
                data=replace(CONFIG.data, path=str(path), format=format),
                evaluation=replace(CONFIG.evaluation, protocol=named),
            )
        )

    assert [protocol(path) for path in (coco, voc, yolo)] == ["coco", "voc", "coco"]
    assert protocol("synthetic") == "voc"
    assert protocol(voc, named="coco") == "coco"
    assert protocol("synthetic", named="coco") == "coco"
    assert protocol("not/there", format="voc") == "voc"


# The command, on the run's own data


def test_an_evaluation_writes_all_that_results_need(run: Path, oracle: list[Oracle]) -> None:
    evaluate(run)
    content = results(run / "results.json")
    assert next(iter(content)) == "rankdet_results"
    assert content["rankdet_results"] == 1
    assert content["protocol"] == "voc"
    assert content["metrics"]["AP"] == pytest.approx(100)
    assert content["metrics"].keys() == {"AP", "AP50", "AP75", "AP50_11point"}
    assert [row["name"] for row in content["classes"]] == list(CLASSES)
    assert content["class_names"] == list(CLASSES)
    sure = torch.tensor(2.0).sigmoid().item()  # the oracle's score
    with_objects = {row["name"] for row in content["classes"] if row["num_objects"]}
    assert len(with_objects) > 2
    for name, threshold in content["thresholds"].items():
        assert threshold == (pytest.approx(sure) if name in with_objects else None)
    assert list(content["thresholds"]) == list(CLASSES)
    assert len(content["curves"]) == len(CLASSES)
    assert content["activation"] == "sigmoid"
    assert content["checkpoint"] == {"name": "step-00000007", "step": 7, "epoch": 2}
    assert content["config"]["evaluation"]["shorter"] == 80
    assert content["config"]["data"]["val_split"] == "val:6"


def counted_objects(dataset: DetectionDataset) -> list[int]:
    """How many objects of each class are not ignored."""
    counts = [0] * len(dataset.classes)
    for index in range(len(dataset)):
        target = dataset.target(index)
        for label in target.labels[~target.is_ignored].tolist():
            counts[label] += 1
    return counts


def test_perfect_detections_have_no_errors(run: Path, oracle: list[Oracle]) -> None:
    evaluate(run)
    content = results(run / "results.json")
    objects = counted_objects(SyntheticDataset("val", 6))
    errors = content["errors"]
    assert [row["correct"] for row in errors["classes"]] == objects
    assert errors["num_objects"] == errors["num_detections"] == errors["correct"] == sum(objects)
    expected = torch.diag(torch.tensor([*objects, 0])).tolist()
    assert content["confusion"] == {"iou": 0.5, "counts": expected}
    assert {kind for row in content["pictures"] for kind in row["kinds"]} == {"sample", "best"}
    for picture in content["pictures"]:
        shown = [(row["class"], row["state"]) for row in picture["objects"]]
        kinds = {"found": "correct", "ignored": "uncounted"}
        said = [(row["class"], row["kind"]) for row in picture["detections"]]
        assert sorted(said) == sorted((name, kinds[state]) for name, state in shown)


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_the_scores_of_all_anchors_are_counted_once(activation: str) -> None:
    dataset = SyntheticDataset("val", 6)
    config = replace(CONFIG, evaluation=replace(CONFIG.evaluation, batch_size=4))
    content = outcome_of(dataset, config, activation).anchors.to_dict()
    targets = [dataset.target(index) for index in range(6)]
    num_images = sum(not bool(target.is_ignored.all()) for target in targets)
    assert content["num_images"] == num_images
    assert content["num_anchors"] == 20 * num_images
    sure = 88 if activation == "sigmoid" else 95  # of 2, and of 12 beside 9
    assert {score for _, score, _ in content["cells"]} == {0, sure}
    # All of the oracle's anchors are the same box: each has the IoU with its best object.
    anchor = torch.tensor([10.0, 10.0, 50.0, 50.0])
    expected = set()
    for target in targets:
        boxes = target.boxes[~target.is_ignored] / 2
        if len(boxes):
            sides = torch.minimum(anchor[2:], boxes[:, 2:]) - torch.maximum(
                anchor[:2], boxes[:, :2]
            )
            shared = sides.clamp(min=0).prod(dim=1)
            union = 1600 + (boxes[:, 2:] - boxes[:, :2]).prod(dim=1) - shared
            expected.add(int(100 * (shared / union).max()))
    assert {overlap for overlap, _, _ in content["cells"]} == expected


def test_the_scores_are_those_of_the_last_stage() -> None:
    class TwoStages(Oracle):
        def forward(self, images: Tensor, sizes: object = None) -> list[Predictions]:
            (last,) = super().forward(images)
            return [replace(last, name="first", logits=torch.zeros_like(last.logits)), last]

    dataset = SyntheticDataset("val", 3)
    outcome = evaluate_dataset(
        TwoStages(dataset), dataset, CONFIG, activation="sigmoid", device=CPU
    )
    assert outcome is not None
    assert outcome.anchors.to_dict() == outcome_of(dataset, CONFIG).anchors.to_dict()


def test_only_the_first_of_several_views_is_counted() -> None:
    class Recording(Oracle):
        def forward(self, images: Tensor, sizes: object = None) -> list[Predictions]:
            self.position = 0  # every view begins anew
            return super().forward(images)

    dataset = SyntheticDataset("val", 3)
    outcomes = []
    for scales, flip in (((64,), False), ((64, 96), True)):
        config = with_evaluation(CONFIG, scales=scales, flip=flip)
        outcome = evaluate_dataset(
            Recording(dataset), dataset, config, activation="sigmoid", device=CPU
        )
        assert outcome is not None
        outcomes.append(outcome.anchors.to_dict())
    assert outcomes[0] == outcomes[1]
    assert outcomes[0]["num_anchors"] > 0


def test_the_thresholds_of_errors_are_those_that_prediction_would_use(run: Path) -> None:
    evaluate(run, device="cpu")
    content = results(run / "results.json")
    trained = load(run, device="cpu")
    lowest = dict(zip(CLASSES, trained.class_thresholds(), strict=True))
    assert len(content["pictures"]) > 0
    for picture in content["pictures"]:
        image = SyntheticDataset("val", 6).image(picture["index"])
        (shown,) = trained.predict(image)
        assert len(shown) == len(picture["detections"])
        for row in picture["detections"]:
            assert row["score"] >= lowest[row["class"]] * 0.9999


def test_results_without_pictures_are_still_those_of_the_run(
    run: Path, oracle: list[Oracle]
) -> None:
    evaluate(run, changes=lambda config: with_evaluation(config, pictures=False))
    assert {file.name for file in run.glob("results*.json")} == {"results.json"}
    content = results(run / "results.json")
    assert content["pictures"] == []
    assert content["errors"]["correct"] > 0
    assert content["anchors"]["num_anchors"] > 0


def test_data_without_objects_that_count_have_results_too(
    run: Path, oracle: list[Oracle], coco: Path, tmp_path: Path
) -> None:
    def ignore(content: dict[str, Any]) -> None:
        for annotation in content["annotations"]:
            annotation["iscrowd"] = 1

    evaluate(run, data=str(changed_coco(coco, tmp_path / "crowds", ignore)))
    content = results(run / "results-crowds-val.json")
    assert content["errors"]["num_objects"] == content["errors"]["num_detections"] == 0
    assert content["anchors"] == {"num_images": 0, "num_anchors": 0, "bins": 100, "cells": []}
    assert content["pictures"] == []


def test_results_say_on_what_and_how_they_came_about(run: Path, oracle: list[Oracle]) -> None:
    evaluate(run)
    content = results(run / "results.json")
    counted = sum(
        int((~SyntheticDataset("val", 6).target(index).is_ignored).sum()) for index in range(6)
    )
    assert content["data"] == {
        "path": "synthetic",
        "split": "val:6",
        "num_images": 6,
        "num_objects": counted,
        "fingerprint": identity("val:6")["fingerprint"],
    }
    assert content["provenance"]["seed"] == 3
    assert {"commit", "versions", "machine", "time", "command"} <= content["provenance"].keys()
    # With what the numbers were computed and the weights were read.
    assert {"torch", "faster-coco-eval", "safetensors"} <= content["provenance"]["versions"].keys()
    assert content["training"]["provenance"] == {"seed": 3, "command": "rankdet train"}
    assert content["training"]["data"]["train"]["split"] == "train:8"
    assert content["training"]["wall_time_seconds"] == 12.5
    inference = content["inference"]
    assert inference["images_per_second"] == pytest.approx(6 / inference["seconds"])
    assert inference["network_images_per_second"] == pytest.approx(6 / inference["network_seconds"])
    assert inference["network_seconds"] <= inference["seconds"] <= content["wall_time_seconds"]


def test_an_evaluation_prints_a_table_and_what_it_did(
    run: Path, oracle: list[Oracle], capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(run)
    printed = capsys.readouterr().out
    for text in (
        *CLASSES,
        "VOC metrics in percent: AP 100.0, AP50 100.0",
        "per second",
        f"Wrote {run / 'results.json'}.",
        "There is no best checkpoint: step-00000007, the last one, was evaluated.",
    ):
        assert text in printed
    assert "thresholds from" not in printed  # this is the file that prediction reads


def test_an_untrained_detector_has_poor_numbers_but_has_them(run: Path) -> None:
    evaluate(run, device="cpu")
    content = results(run / "results.json")
    assert 0 <= content["metrics"]["AP50"] < 20
    assert sum(row["num_detections"] for row in content["classes"]) > 0


def test_the_same_checkpoint_gives_the_same_numbers_twice(run: Path) -> None:
    evaluate(run)
    first = results(run / "results.json")
    evaluate(run)
    second = results(run / "results.json")
    assert first["classes"] == second["classes"]
    assert first["curves"] == second["curves"]


def test_a_checkpoint_can_be_chosen(
    tmp_path: Path, oracle: list[Oracle], capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", record_of(), num_checkpoints=3)
    set_best(run / "checkpoints", run / "checkpoints" / "step-00000008", "AP", 1.0)
    for asked, step in (("best", 8), ("last", 9), ("step-00000007", 7)):
        evaluate(run, checkpoint=asked)
        assert results(run / "results.json")["checkpoint"]["step"] == step
        printed = capsys.readouterr().out
        assert f"step-{step:08d}" in printed
        assert "no best" not in printed


def test_the_last_checkpoint_needs_no_best_one(
    run: Path, oracle: list[Oracle], capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(run, checkpoint="last")
    assert "Evaluated step-00000007." in capsys.readouterr().out


def test_the_weights_of_the_checkpoint_are_those_that_are_judged(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", record_of(), num_checkpoints=2)
    tables = []
    for name in ("step-00000007", "step-00000008"):
        evaluate(run, checkpoint=name)
        tables.append(results(run / "results.json")["classes"])
    assert tables[0] != tables[1]


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", record_of())
    write_run(run, record_of(replace(CONFIG, detector=replace(CONFIG.detector, anchor_octaves=3))))
    with pytest.raises(CheckpointError, match="step-00000007: the weights do not fit"):
        evaluate(run)


def test_embedded_data_have_only_their_own_classes(tmp_path: Path) -> None:
    more = record_of(classes=("unicorn", *CLASSES), category_ids=tuple(range(7)))
    run = make_run(tmp_path / "run", more)
    for data in (None, "synthetic"):  # labels would be wrong by one
        with pytest.raises(CheckpointError, match=r"classes 'unicorn', 'disc'.*data set synthetic"):
            evaluate(run, data=data)


def with_data(config: Config, **changes: Any) -> Config:
    return replace(config, data=replace(config.data, **changes))


def with_evaluation(config: Config, **changes: Any) -> Config:
    return replace(config, evaluation=replace(config.evaluation, **changes))


def test_settings_of_the_evaluation_can_be_changed(run: Path, oracle: list[Oracle]) -> None:
    evaluate(run, changes=lambda config: with_evaluation(config, max_detections=1))
    (file,) = run.glob("results-*-other-settings.json")
    content = results(file)
    assert sum(row["num_detections"] for row in content["classes"]) <= 6
    assert content["config"]["evaluation"]["max_detections"] == 1


@pytest.mark.parametrize("section", ["detector", "loss"])
def test_settings_of_the_network_cannot_be_changed(run: Path, section: str) -> None:
    def changed(config: Config) -> Config:
        if section == "loss":
            return replace(config, loss=replace(config.loss, name="focal"))
        return replace(config, detector=replace(config.detector, anchor_scale=3.0))

    with pytest.raises(ConfigError, match=f"^{section}: .*cannot be changed"):
        evaluate(run, changes=changed)


def test_data_that_changed_since_the_training_are_mentioned(
    tmp_path: Path, oracle: list[Oracle], capsys: pytest.CaptureFixture[str]
) -> None:
    other = record_of(data={"train": None, "val": identity("val:5")})
    evaluate(make_run(tmp_path / "run", other))
    assert "not the same any more" in capsys.readouterr().out
    evaluate(make_run(tmp_path / "same", record_of()))
    assert "not the same any more" not in capsys.readouterr().out


# Files that are already there


def test_a_file_that_is_not_ours_stays_and_is_noticed_before_the_work(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")  # reading these would be the next error
    (run / "results.json").write_text("mine")
    with pytest.raises(RankdetError, match=r"results\.json: the file exists"):
        evaluate(run)
    assert (run / "results.json").read_text() == "mine"


def test_a_file_that_is_not_ours_can_be_replaced_by_force(run: Path, oracle: list[Oracle]) -> None:
    (run / "results.json").write_text("mine")
    evaluate(run, is_forced=True)
    assert results(run / "results.json")["rankdet_results"] == 1


def test_results_of_before_are_replaced(run: Path, oracle: list[Oracle]) -> None:
    evaluate(run)
    evaluate(run, changes=lambda config: with_evaluation(config, protocol="coco"))
    assert results(run / "results.json")["protocol"] == "coco"


def test_results_can_go_elsewhere_and_the_output_says_what_prediction_reads(
    run: Path, oracle: list[Oracle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(run)
    evaluate(run, out=tmp_path / "new" / "here.json")
    assert results(tmp_path / "new" / "here.json")["rankdet_results"] == 1
    assert tree(run) == before
    printed = capsys.readouterr().out
    assert f"thresholds from {run / 'results.json'}, which is not there yet" in printed
    evaluate(run)
    evaluate(run, out=tmp_path / "new" / "here.json")
    assert f"{run / 'results.json'}, which stays as it is" in capsys.readouterr().out


# Other data


def test_another_split_leaves_the_results_of_the_run_alone(
    run: Path, oracle: list[Oracle], capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(run)
    before = (run / "results.json").read_bytes()
    evaluate(run, split="train:3")
    assert (run / "results.json").read_bytes() == before
    content = results(run / "results-train-3.json")
    assert content["data"]["split"] == "train:3"
    assert content["data"]["num_images"] == 3
    assert content["config"]["data"]["val_split"] == "train:3"
    assert "which stays as it is" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"scales": (64, 96)}, {"flip": True}, {"score_threshold": 0.3}])
def test_other_scales_or_thresholds_leave_the_results_as_they_are(
    run: Path, change: dict[str, Any]
) -> None:
    evaluate(run, device="cpu")
    before = (run / "results.json").read_bytes()
    evaluate(run, device="cpu", changes=lambda config: with_evaluation(config, **change))
    assert (run / "results.json").read_bytes() == before
    (other,) = run.glob("results-*-other-settings.json")
    assert results(other)["config"]["evaluation"].keys() >= change.keys()
    evaluate(
        run,
        device="cpu",
        changes=lambda config: with_evaluation(config, batch_size=1),
    )
    assert (run / "results.json").read_bytes() != before  # other times, the same scores


def test_other_data_are_read_with_the_classes_of_the_run(
    run: Path, oracle: list[Oracle], coco: Path, tmp_path: Path
) -> None:
    data = changed_coco(coco, tmp_path / "shapes", lambda c: c["categories"].reverse())
    evaluate(run, data=str(data))
    assert not (run / "results.json").exists()
    content = results(run / "results-shapes-val.json")
    assert content["protocol"] == "coco"
    assert content["metrics"]["AP"] == pytest.approx(100)
    assert content["data"]["path"] == str(data)
    assert [row["name"] for row in content["classes"]] == list(CLASSES)
    assert oracle[0].dataset.classes == CLASSES
    expected = [0] * len(CLASSES)
    for index in range(6):
        target = SyntheticDataset("val", 6).target(index)
        for label in target.labels[~target.is_ignored].tolist():
            expected[label] += 1
    assert [row["num_objects"] for row in content["classes"]] == expected


def changed_coco(coco: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    shutil.copytree(coco, folder)
    for file in (folder / "annotations").glob("*.json"):
        content = json.loads(file.read_text())
        change(content)
        file.write_text(json.dumps(content))
    return folder


def test_data_with_a_class_that_the_run_does_not_know_are_refused(
    run: Path, coco: Path, tmp_path: Path
) -> None:
    def rename(content: dict[str, Any]) -> None:
        content["categories"][1]["name"] = "unicorn"

    data = changed_coco(coco, tmp_path / "shapes", rename)
    with pytest.raises(DataError) as caught:
        evaluate(run, data=str(data))
    text = str(caught.value)
    assert text.startswith(f"{data}: split = 'val': expected the classes of the run.")
    assert f"The run does not know 'unicorn'. The data do not have {CLASSES[1]!r}." in text
    assert f"--set data.classes='[{','.join(CLASSES)}]'" in text


def test_objects_of_other_classes_are_left_out_on_request(
    run: Path,
    oracle: list[Oracle],
    coco: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def rename(content: dict[str, Any]) -> None:
        content["categories"][1]["name"] = "unicorn"

    data = changed_coco(coco, tmp_path / "shapes", rename)
    evaluate(run, data=str(data), changes=lambda config: with_data(config, classes=CLASSES))
    content = results(run / "results-shapes-val.json")
    assert content["classes"][1]["num_objects"] == 0
    assert "0 images and " in capsys.readouterr().out  # says how many objects are left out


def test_data_without_some_classes_of_the_run_are_judged_by_the_others(
    run: Path, oracle: list[Oracle], coco: Path, tmp_path: Path
) -> None:
    def remove(content: dict[str, Any]) -> None:
        gone = content["categories"].pop(0)["id"]
        content["annotations"] = [a for a in content["annotations"] if a["category_id"] != gone]

    data = changed_coco(coco, tmp_path / "shapes", remove)
    evaluate(run, data=str(data))
    content = results(run / "results-shapes-val.json")
    assert content["classes"][0]["ap50"] is None
    assert content["thresholds"][CLASSES[0]] is None
    assert content["metrics"]["AP"] == pytest.approx(100)


def test_validation_data_that_lie_elsewhere_now_are_still_the_same(
    coco: Path, tmp_path: Path, oracle: list[Oracle]
) -> None:
    dataset = open_dataset(coco, "val")
    config = with_data(CONFIG, path=str(tmp_path / "gone"), train_split="train", val_split="val")
    known = {"split": "val", "num_images": 6, "fingerprint": fingerprint(dataset)}
    run = make_run(tmp_path / "run", record_of(config, data={"train": None, "val": known}))
    evaluate(run, data=str(coco))
    assert (run / "results.json").exists()


def test_the_only_split_of_other_data_needs_no_name(
    run: Path, oracle: list[Oracle], coco: Path
) -> None:
    evaluate(run, data=str(coco / "annotations" / "instances_val.json"))
    assert (run / "results-instances_val-all.json").exists()


def test_a_split_that_is_not_clear_must_be_named(run: Path, coco: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(coco, tmp_path / "data"))
    (data / "annotations" / "instances_val.json").rename(
        data / "annotations" / "instances_other.json"
    )
    with pytest.raises(DataError, match=r"not clear which split.*train, other.*--split"):
        evaluate(run, data=str(data))


def test_a_run_without_a_validation_split_takes_the_usual_one_of_its_data(
    tmp_path: Path, oracle: list[Oracle], coco: Path
) -> None:
    config = with_data(CONFIG, path=str(coco), train_split="train", val_split=None)
    run = make_run(tmp_path / "run", record_of(config, data={"train": None, "val": None}))
    evaluate(run)
    assert (run / "results-val.json").exists()
    assert not (run / "results.json").exists()


# Without annotations, and files for servers


@pytest.fixture
def bare(coco: Path, tmp_path: Path) -> Path:
    """The data set with a split `test` whose annotations nobody may know."""

    def remove(content: dict[str, Any]) -> None:
        content["annotations"] = []

    data = changed_coco(coco, tmp_path / "bare", remove)
    folder = data / "annotations"
    (folder / "instances_val.json").rename(folder / "image_info_test.json")
    (data / "val").rename(data / "test")
    return data


def test_a_split_without_annotations_needs_a_folder_for_submissions(run: Path, bare: Path) -> None:
    shutil.rmtree(run / "checkpoints")  # noticed before the work
    with pytest.raises(DataError, match=r"split = 'test': .*no annotations.*--submission"):
        evaluate(run, data=str(bare), split="test")


def test_a_split_without_annotations_gives_files_and_no_metrics(
    run: Path,
    oracle: list[Oracle],
    bare: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = tree(run)
    evaluate(run, data=str(bare), split="test", submission=tmp_path / "files")
    assert tree(run) == before
    assert tree(tmp_path / "files") == {"detections_test_rankdet_results.json"}
    printed = capsys.readouterr().out
    assert "no annotations, so there are no metrics" in printed
    assert "Wrote 1 file for the COCO evaluation server" in printed
    assert "6 images at" in printed


def test_a_coco_submission_has_the_ids_of_the_data(
    run: Path, oracle: list[Oracle], coco: Path, tmp_path: Path
) -> None:
    def renumber(content: dict[str, Any]) -> None:
        for image in content["images"]:
            image["id"] += 100
        for category in content["categories"]:
            category["id"] += 50
        for annotation in content["annotations"]:
            annotation["image_id"] += 100
            annotation["category_id"] += 50

    data = changed_coco(coco, tmp_path / "shapes", renumber)
    evaluate(run, data=str(data), submission=tmp_path / "files")
    content = json.loads((tmp_path / "files" / "detections_val_rankdet_results.json").read_text())
    file = json.loads((data / "annotations" / "instances_val.json").read_text())
    assert len(content) == len(file["annotations"])
    found = sorted((d["image_id"], d["category_id"], *map(round, d["bbox"])) for d in content)
    expected = sorted(
        (a["image_id"], a["category_id"], *map(round, a["bbox"])) for a in file["annotations"]
    )
    assert found == expected


def test_a_voc_submission_has_a_file_for_each_class(
    run: Path, oracle: list[Oracle], voc: Path, tmp_path: Path
) -> None:
    evaluate(run, data=str(voc), submission=tmp_path / "files")
    names = tree(tmp_path / "files")
    assert names == {f"results/VOC2012/Main/comp4_det_val_{name}.txt" for name in CLASSES}
    lines = [
        line for name in names for line in (tmp_path / "files" / name).read_text().splitlines()
    ]
    dataset = open_dataset(voc, "val")
    assert len(lines) == sum(len(dataset.target(index)) for index in range(6))
    stems = {Path(dataset.name(index)).stem for index in range(6) if len(dataset.target(index))}
    assert {line.split()[0] for line in lines} == stems


@pytest.mark.parametrize(
    ("split", "start"),
    [
        ("2007_test", "results/VOC2007/Main/comp4_det_test_"),
        ("val:6", "results/VOC2012/Main/comp4_det_val-6_"),
    ],
)
def test_a_year_of_voc_is_in_the_names_of_its_files(split: str, start: str) -> None:
    files = submission_files([], SyntheticDataset("val", 0), "voc", split)
    assert set(files) == {f"{start}{name}.txt" for name in CLASSES}


def test_a_folder_with_files_is_not_written_into(
    run: Path, oracle: list[Oracle], tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    with pytest.raises(RankdetError, match="not empty"):
        evaluate(run, submission=folder)
    assert not oracle  # noticed before the work
    evaluate(run, submission=folder, is_forced=True)
    assert (folder / "mine.txt").read_text() == "mine"
    assert len(tree(folder)) == 1 + len(CLASSES)


def test_a_file_in_place_of_the_folder_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "files").write_text("mine")
    with pytest.raises(RankdetError, match="not a folder"):
        evaluate(run, submission=tmp_path / "files", is_forced=True)


# What is wrong with the run


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a run"):
        evaluate(tmp_path)


def test_a_device_that_is_not_there_is_refused_at_once(run: Path) -> None:
    with pytest.raises(ConfigError, match="--device nonsense"):
        evaluate(run, device="nonsense")


# The file and the table


def outcome_with(*results: ClassResult) -> Outcome:
    evaluation = Evaluation(
        "voc", {"AP": None}, results, notes=("2 of 2 [b]classes[/b] are odd.",), curves=()
    )
    nothing = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0))
    detected = Detected([nothing, nothing], 2.0, 0.5)
    return Outcome(evaluation, detected, AnchorScores("sigmoid"))


def test_odd_names_and_notes_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_with(ClassResult("[red]x[/red]", 1, 2), ClassResult("\x1b[2Jy", 0, 0))
    print_results(outcome, Console(width=120, highlight=False))
    printed = capsys.readouterr().out
    assert "[red]x[/red]" in printed
    assert "\x1b" not in printed
    assert "\\x1b[2Jy" in printed
    assert "note: 2 of 2 [b]classes[/b] are odd." in printed
    assert "AP n/a" in printed
    assert "2 images at 1.0 per second with loading, 4.0 per second without" in printed
