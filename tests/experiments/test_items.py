"""Every experiment of `rankdet reproduce` runs: at smoke in full, at the others for two steps."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rankdet.errors import ConfigError
from rankdet.experiments import coco_to_voc, robustness
from rankdet.experiments.arms import run_folder
from rankdet.experiments.experiment import Experiment, Request, reproduce
from rankdet.experiments.figures import new_figure, save_figure
from rankdet.experiments.items import EXPERIMENTS, experiment
from rankdet.experiments.paper import paper
from rankdet.experiments.record import Record, read_record
from rankdet.experiments.scales import Training, base_config

# With more rows than this, the first, the middle and the last where smoke has run all of them.
MOST_ROWS = 4
# One of each kind, at voc320; all others among the slow tests.
QUICK = {"delta", "losses-ssd", "rois", "benchmark-coco", "convergence"}
# Whose many trainings are run in full at smoke among the slow tests.
LONG = ("batch-size", "rois")
# So that two steps at the scale of the paper, or voc320, take a moment on a CPU.
SHORT = (
    *("training.max_steps=2", "training.batch_size=2", "training.accumulate=1"),
    *("training.epochs=1", "training.warmup_steps=1", "data.size=64", "data.workers=0"),
    "training.compile=false",
    *("detector.backbone=small", "detector.weights=none", "detector.norm=group"),
    *("detector.head_norm=group", "detector.frozen_stages=0", "evaluation.every=0"),
    *("evaluation.batch_size=4", "evaluation.pictures=false", "data.augmentation=flip"),
    *("detector.rois=16", "detector.proposals=50", "detector.test_proposals=20"),
    *("evaluation.shorter=64", "evaluation.longest=128", "evaluation.fixed_size=64"),
)


def marked_slow(names: Collection[str]) -> list[Any]:
    """All experiments, those with these names among the slow tests."""
    return [
        pytest.param(item, marks=[pytest.mark.slow] if item.name in names else [])
        for item in EXPERIMENTS
    ]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Networks as small as these are slower with several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def shared_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: experiments share trainings with the same settings."""
    return tmp_path_factory.mktemp("reproduce")


def check_record(item: Experiment, out: Path) -> dict[str, Any]:
    """All rows are there, and so are the table and the figure."""
    record = read_record(out / f"{item.name}.json")
    assert list(record["rows"]) == record["plan"]
    assert all("result" in row for row in record["rows"].values())
    text = (out / f"{item.name}.md").read_text(encoding="utf-8")
    assert "| --- |" in text
    assert "not run" not in text
    assert (out / f"{item.name}.png").read_bytes().startswith(b"\x89PNG")
    return record


@pytest.mark.parametrize("item", marked_slow(LONG), ids=lambda item: item.name)
def test_an_experiment_runs_at_smoke(item: Experiment, shared_out: Path) -> None:
    reproduce(item, Request("smoke", shared_out, device="cpu"))
    check_record(item, shared_out)


@pytest.mark.parametrize("name", LONG)
def test_a_long_experiment_begins_at_smoke(name: str, shared_out: Path) -> None:
    check_ends(experiment(name), Request("smoke", shared_out / "ends", device="cpu"))


@pytest.mark.parametrize("item", EXPERIMENTS, ids=lambda item: item.name)
def test_an_experiment_says_whether_its_rows_are_trainings(item: Experiment) -> None:
    rows = item.plan(Request("smoke", Path("out")))
    assert {bool(row.trainings) for row in rows} == {item.has_trainings}


def test_no_two_experiments_have_the_same_name() -> None:
    names = [item.name for item in EXPERIMENTS]
    assert len(set(names)) == len(names)


def no_figure(record: Record, path: Path) -> None:
    """In place of the figure, which is the same for all scales, and takes time."""
    save_figure(new_figure(1, 1), path)


def check_ends(item: Experiment, request: Request) -> None:
    """Run it; all rows that were asked for have results, and files for servers are there."""
    chosen_by_rates = ("evidence", "longest", "predictions", "robustness")
    if item.name.startswith(chosen_by_rates) or item.name.endswith("-long"):
        # Some rows of `rates` alone cannot choose for it.
        request = replace(request, out=request.out / item.name)
    rows = item.plan(request)
    ends = rows if len(rows) <= MOST_ROWS else [rows[0], rows[len(rows) // 2], rows[-1]]
    record = reproduce(replace(item, plan=lambda _: ends, figure=no_figure), request)
    assert len(record["rows"]) == len(ends)
    for row in record["rows"].values():
        files = row["result"].get("submission")
        assert files is None or any((request.out / "runs" / files).rglob("*.*"))
    assert "| --- |" in (request.out / f"{item.name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("item", EXPERIMENTS, ids=lambda item: item.name)
def test_an_experiment_runs_at_the_scale_of_the_paper(
    item: Experiment,
    shared_out: Path,
    voc_devkit: Path,
    coco_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Thousands of attacks otherwise.
    monkeypatch.setitem(robustness.EFFORTS, "paper", robustness.EFFORTS["smoke"])
    request = Request(
        "paper",
        shared_out / "paper",
        voc=str(voc_devkit),
        coco=str(coco_folder),
        device="cpu",
        changes=SHORT,
    )
    check_ends(item, request)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "key", "stage"),
    [
        ("losses-voc", "RetinaNet + PASCAL VOC: AP-Loss", "retinanet"),
        ("losses-ssd", "SSD + PASCAL VOC: CE-Loss + OHEM", "ssd"),
        ("losses-ssd", "SSD + PASCAL VOC: AP-Loss", "ssd"),
        ("rois", "Faster: 4096", "roi"),
        ("rois", "Faster+AP-Loss: 4096", "roi"),
    ],
)
def test_the_paper_s_own_networks_and_images_take_two_steps(
    name: str, key: str, stage: str, tmp_path: Path, voc_devkit: Path
) -> None:
    """Nothing is made smaller but the number of steps and of their images."""
    changes = ("training.max_steps=2", "training.batch_size=2", "detector.weights=none")
    changes = (*changes, "data.workers=0", "evaluation.every=0", "evaluation.batch_size=1")
    request = Request("paper", tmp_path, voc=str(voc_devkit), device="cpu", changes=changes)
    rows = [row for row in experiment(name).plan(request) if row.key == key]
    record = reproduce(replace(experiment(name), plan=lambda _: rows, figure=no_figure), request)
    result = record["rows"][key]["result"]
    assert result["training"]["steps"] == 2
    assert set(result["metrics"]) >= {"AP", "AP50", "AP75"}
    if stage == "roi":
        assert result["training"]["counts"]["roi.boxes_per_image"] == 4096


def test_the_rows_of_voc12_at_the_scale_of_the_paper_are_files_for_its_server(
    shared_out: Path, voc_devkit: Path
) -> None:
    request = Request("paper", shared_out / "paper", voc=str(voc_devkit), device="cpu")
    request = replace(request, coco=None, out=shared_out / "voc12", changes=SHORT)
    record = reproduce(experiment("benchmark-voc12"), request)
    for row in record["rows"].values():
        assert row["result"]["metrics"] is None
        folder = request.out / "runs" / row["result"]["submission"]
        assert list(folder.rglob("comp*_det_test_*.txt"))
    text = (request.out / "benchmark-voc12.md").read_text()
    assert "| **AP-loss500** | small | ours | server |" in text


@pytest.mark.parametrize(
    "item", marked_slow({item.name for item in EXPERIMENTS} - QUICK), ids=lambda item: item.name
)
def test_an_experiment_runs_at_voc320(
    item: Experiment,
    shared_out: Path,
    voc_folder: Path,
    coco_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(robustness.EFFORTS, "voc320", robustness.EFFORTS["smoke"])
    request = Request(
        "voc320",
        shared_out / "voc320",
        voc=str(voc_folder),
        coco=str(coco_folder),
        device="cpu",
        changes=SHORT,
    )
    check_ends(item, request)


@pytest.mark.parametrize("name", ["resnet101", "pictures"])
def test_an_experiment_at_voc320_without_coco_leaves_its_columns_out(
    name: str, shared_out: Path, voc_folder: Path
) -> None:
    request = Request("voc320", shared_out / "voc", voc=str(voc_folder), device="cpu")
    request = replace(request, changes=SHORT)
    reproduce(experiment(name), request)
    record = check_record(experiment(name), request.out)
    assert not any(key.startswith("COCO") for key in record["plan"])
    if name == "resnet101":
        text = (request.out / "resnet101.md").read_text()
        assert "Left out, because there was no --coco: COCO: CE-Loss + OHEM" in text


def test_an_experiment_on_coco_alone_asks_for_it(tmp_path: Path, voc_folder: Path) -> None:
    request = Request("voc320", tmp_path, voc=str(voc_folder))
    with pytest.raises(ConfigError, match="needs --coco FOLDER"):
        reproduce(experiment("losses-coco"), request)


@pytest.mark.slow
@pytest.mark.parametrize("item", EXPERIMENTS, ids=lambda item: item.name)
def test_an_experiment_runs_at_tiny(
    item: Experiment, shared_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(robustness.EFFORTS, "tiny", robustness.EFFORTS["smoke"])
    changes: tuple[str, ...] = ("data.train_split=train:64", "training.epochs=2")
    if not item.name.startswith(("rates", "trials")):  # they hold images out, and have no others
        changes = (*changes, "data.val_split=val:16")
    changes = (*changes, "training.max_steps=6")
    request = Request("tiny", shared_out / "tiny", device="cpu", changes=changes)
    check_ends(item, request)


def test_experiments_in_one_folder_share_their_trainings(shared_out: Path) -> None:
    """The paper's main setting stands in many tables; it is trained once."""
    request = Request("smoke", shared_out, device="cpu")
    runs = set()
    for name, key in (
        ("delta", "1"),
        ("interpolation", "Yes"),
        ("sampling", "Original AP-Loss"),
        ("losses-voc", "RetinaNet + PASCAL VOC: AP-Loss"),
    ):
        record = reproduce(experiment(name), request)
        runs.add(record["rows"][key]["result"]["run"])
    assert len(runs) == 1
    assert (shared_out / "runs" / runs.pop()).is_dir()


def trainings_of(name: str, request: Request) -> list[Any]:
    """Of each row of an experiment its first training."""
    return [row.trainings[0] for row in experiment(name).plan(request)]


@pytest.mark.parametrize("scale", ["smoke", "tiny", "paper"])
def test_the_detectors_that_are_attacked_are_those_of_the_table_of_losses(scale: str) -> None:
    request = Request(scale, Path("out"), voc="VOCdevkit")
    assert trainings_of("robustness", request) == trainings_of("losses-voc", request)


def test_at_voc320_those_with_tuned_learning_rates_are_attacked(tmp_path: Path) -> None:
    request = Request("voc320", tmp_path, voc="VOC2012", seed=3)
    tuned = experiment("evidence-retinanet").plan(request)
    expected = [row.trainings[0] for row in tuned if re.fullmatch("long: .*: seed 3", row.key)]
    assert trainings_of("robustness", request) == expected
    assert len(expected) == 4


def test_trainings_with_other_settings_have_other_folders(tmp_path: Path) -> None:
    request = Request("smoke", tmp_path)
    rows = experiment("delta").plan(request)
    folders = [run_folder(row.trainings[0], request) for row in rows]
    assert len(set(folders)) == len(rows)


def test_the_same_images_are_shown_of_both_losses(shared_out: Path) -> None:
    record = reproduce(experiment("pictures"), Request("smoke", shared_out, device="cpu"))
    focal, ap, _ = (row["result"]["pictures"] for row in record["rows"].values())
    assert [entry["image"] for entry in focal] == [entry["image"] for entry in ap]
    assert focal


def test_the_focal_loss_of_ssd_has_the_paper_s_settings(tmp_path: Path) -> None:
    rows = {row.key: row for row in experiment("losses-ssd").plan(Request("smoke", tmp_path))}
    settings = rows["SSD + PASCAL VOC: Focal Loss"].settings["config"]["loss"]["settings"]
    assert settings == {"gamma": 1.0, "alpha": 0.25}


def test_batch_sizes_change_the_ranking_and_the_learning_rate_alone(tmp_path: Path) -> None:
    request = Request("paper", tmp_path, voc="VOCdevkit")
    rows = {row.key: row.trainings[0] for row in experiment("batch-size").plan(request)}
    for size in (1, 2, 4, 8):
        training = rows[f"AP-Loss: {size}"].training
        assert training.batch_size // training.accumulate == size
        assert (training.epochs, training.learning_rate) == (160, 0.001)
        # Scaled linearly: by batch_size / reference_batch_size.
        assert training.reference_batch_size == 16
    assert rows["AP-Loss: 8"] == experiment("delta").plan(request)[2].trainings[0]


def test_regions_are_those_of_the_paper_and_proposals_grow_along(tmp_path: Path) -> None:
    request = Request("paper", tmp_path, voc="VOCdevkit")
    configs = [row.trainings[0] for row in experiment("rois").plan(request)]
    assert [config.detector.rois for config in configs[:6]] == [512, 1024, 1536, 2048, 3072, 4096]
    assert {config.detector.proposals for config in configs} == {None}
    assert [config.loss.name for config in configs] == ["ce"] * 6 + ["ap"] * 6


@pytest.mark.parametrize(
    ("name", "backbone", "sides"),
    [
        ("losses-voc", "resnet50", {600}),
        ("losses-coco", "resnet50", {600}),
        ("resnet101", "resnet101", {500}),
        ("resnext101", "resnext101_32x8d", {500}),
        ("ghm-dr", "resnet101", {500}),
        ("benchmark-voc07", "resnet101", {500}),
        ("benchmark-voc12", "resnet101", {500}),
        ("benchmark-coco", "resnet101", {500, 800}),
        ("coco-to-voc", "resnet101", {500}),
        ("rois", "resnet50", {800}),
    ],
)
def test_backbones_and_test_sizes_are_the_paper_s(
    name: str, backbone: str, sides: set[int], tmp_path: Path
) -> None:
    request = Request("paper", tmp_path, voc="VOCdevkit", coco="coco")
    configs = [config for row in experiment(name).plan(request) for config in row.trainings]
    assert {config.detector.backbone for config in configs} == {backbone}
    assert {config.evaluation.shorter for config in configs} == sides


def test_the_fine_tuning_starts_from_the_training_on_coco(tmp_path: Path) -> None:
    request = Request("paper", tmp_path, voc="VOCdevkit", coco="coco")
    first = experiment("coco-to-voc").plan(request)[0].trainings[0]
    assert first.data.path == "coco"
    config = base_config(request, Training(backbone="resnet101", side=500))
    second = coco_to_voc.fine_tuned(config, first, request)
    assert second.detector.weights == str(run_folder(first, request).resolve())
    assert second.detector.frozen_stages == 2
    assert second.training == config.training


def test_every_experiment_stands_in_the_guide() -> None:
    page = Path(__file__).parents[2] / "docs" / "reproducing.md"
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \| (.*) \|$", page.read_text("utf-8"), re.M)
    listed = {name: (summary, labels) for name, summary, labels in rows}
    for item in EXPERIMENTS:
        labels = ", ".join(f"`{label}`" for label in item.labels) or "not in the paper"
        assert listed[item.name] == (item.summary, labels)


def test_the_guide_says_which_item_needs_which_file_of_weights(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "reproducing.md"
    rows = re.findall(r"^\| `([a-z0-9_]+)\*` \| (.*) \|$", page.read_text("utf-8"), re.M)
    listed = {backbone: set(re.findall(r"`([a-z0-9-]+)`", words)) for backbone, words in rows}
    needed: dict[str, set[str]] = {backbone: set() for backbone in listed}
    request = Request("voc320", tmp_path, voc="VOC2012", coco="coco")
    for item in EXPERIMENTS:
        for row in item.plan(request):
            needed[row.settings["config"]["detector"]["backbone"]].add(item.name)
    others = set.union(*(names for backbone, names in needed.items() if backbone != "resnet50"))
    assert listed["resnet50"] == needed["resnet50"] & others  # "all others, and ..."
    for backbone in ("vgg16", "resnet101", "resnext101_32x8d"):
        assert listed[backbone] == needed[backbone]


def test_an_unknown_experiment_is_told_with_the_closest_name() -> None:
    with pytest.raises(ConfigError, match=r"reproduce dleta.*'delta'.*rankdet reproduce list"):
        experiment("dleta")


def test_every_table_is_answered_by_an_experiment() -> None:
    answered = {label for item in EXPERIMENTS for label in item.labels}
    assert paper()["tables"].keys() <= answered
