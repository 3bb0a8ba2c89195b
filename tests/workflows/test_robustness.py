"""`rankdet robustness` from a run to its files, its table and its page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner, Result

from rankdet import build, cli
from rankdet.config import Config, DataConfig, DetectorConfig, EvaluationConfig, TrainingConfig
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.synthetic.scenes import CLASSES
from rankdet.data.write import synthesise
from rankdet.engine.checkpoint import save_checkpoint
from rankdet.errors import ConfigError, DataError, RankdetError
from rankdet.report.page import write_report
from rankdet.report.robustness import checked_robustness
from rankdet.robustness.adversarial import PatchSettings
from rankdet.workflows.evaluate import evaluate
from rankdet.workflows.robustness import robustness
from rankdet.workflows.robustness_results import corruption_rows, print_robustness, table_rows
from rankdet.workflows.run import CHECKPOINTS, RunRecord, write_run

CONFIG = Config(
    data=DataConfig(path="synthetic", train_split="train:8", val_split="val:6", workers=0),
    detector=DetectorConfig(backbone="small", norm="group", head_norm="group"),
    training=TrainingConfig(precision="float32", batch_size=4),
    evaluation=EvaluationConfig(fixed_size=64, batch_size=4),
)
QUICK = PatchSettings(steps=2, side=8)


@pytest.fixture(scope="session")
def _untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("robustness") / "run"
    write_run(folder, RunRecord(CONFIG, CLASSES, tuple(range(6)), "sigmoid", {}, {}))
    torch.manual_seed(0)
    detector = build.detector(CONFIG.detector, len(CLASSES), "sigmoid")
    with torch.no_grad():
        detector.head.classification_head.cls_logits.weight *= 8  # scores that differ widely
    save_checkpoint(
        folder / CHECKPOINTS,
        1,
        weights=detector.state_dict(),
        training={},
        state={"position": {"epoch": 1}},
    )
    return folder


@pytest.fixture
def run(_untrained: Path, tmp_path: Path) -> Path:
    """A run of an untrained detector of the embedded classes, which a test may change."""
    return Path(shutil.copytree(_untrained, tmp_path / "run"))


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(
        cli.app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    )


def quick(run: Path, **options: Any) -> dict[str, Any]:
    return robustness(run, **{"device": "cpu", "limit": 2, "patch_settings": QUICK, **options})


def test_the_command_measures_all_of_the_paper_s_table(run: Path) -> None:
    result = invoke(
        *("robustness", str(run), "--limit", "4", "--patch-steps", "2", "--device", "cpu"),
        *("--deepfool-objects", "2", "--seed", "7"),
    )
    assert result.exit_code == 0, result.output
    for word in ("Original", "Black patch", "Adversarial patch", "DeepFool", "AP-loss, AP50"):
        assert word in result.output
    content = json.loads((run / "robustness.json").read_text())
    assert [row["name"] for row in content["perturbations"]] == [
        *("original", "black", "random", "flip", "adversarial", "noise")
    ]
    assert all({"AP", "AP50"} <= row["metrics"].keys() for row in content["perturbations"])
    assert content["deepfool"]["num_objects"] > 0
    assert content["data"]["num_images"] == 4
    assert content["settings"] == {"seed": 7, "limit": 4, "deepfool_objects": 2}
    assert content["patch"]["split"] == "train:8"
    assert content["patch"]["settings"]["steps"] == 2
    assert content["provenance"]["seed"] == 7
    assert content["checkpoint"] == {"name": "step-00000001", "step": 1, "epoch": 1}
    assert len(content["pictures"]) == 3 * 6
    assert checked_robustness(content)["perturbations"] == content["perturbations"]
    assert Image.open(run / "robustness-patch.png").size == (64, 64)
    assert Image.open(run / "robustness-examples.jpg").width == 6 * 240
    written = result.output.partition("Wrote ")[2].replace("\n", "").removesuffix(".").split(", ")
    assert {Path(file) for file in written} == set(run.glob("robustness*"))


@pytest.mark.parametrize(
    ("num_attacked", "num_detected", "words"),
    [
        (0, 0, "for none of 6 objects is there an anchor box that predicts its class: nothing to"),
        (2, 5, "none of 2 attacks succeeded; for 5 of 6 objects there is an anchor box that"),
    ],
)
def test_an_attack_without_a_result_says_why(
    num_attacked: int, num_detected: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"num_attacked": num_attacked, "num_detected": num_detected, "num_objects": 6}
    content = {
        "perturbations": [{"name": "original", "metrics": {"AP": 10.0, "AP50": 20.0}}],
        "corruptions": [],
        "deepfool": {"norm": None, "norm_255": None, "success_rate": None, **counts},
        "config": {"loss": {"name": "ap"}},
    }
    print_robustness(content, Console(width=120))
    said = capsys.readouterr().out
    assert f"DeepFool: {words}" in said
    assert "detected" not in said  # AP50 above may be more than 0
    assert ("AP also counts" in said) == (num_detected == 0)


def test_the_original_is_what_evaluate_says(run: Path) -> None:
    evaluate(run, device="cpu", out=run / "own.json")
    wanted = json.loads((run / "own.json").read_text())["metrics"]
    content = quick(run, limit=None, only=["black"])
    assert content["perturbations"][0]["metrics"] == wanted


def test_the_same_seed_gives_the_same_images_and_another_one_others(run: Path) -> None:
    first, second, other = (
        quick(run, only=["random"], seed=seed, is_forced=True) for seed in (3, 3, 4)
    )
    assert first["pictures"] == second["pictures"]
    assert first["pictures"] != other["pictures"]


def test_corruptions_have_five_severities_each(run: Path) -> None:
    content = quick(run, only=["jpeg", "contrast"])
    assert [(row["name"], row["severity"]) for row in content["corruptions"]] == [
        (name, severity) for name in ("jpeg", "contrast") for severity in range(1, 6)
    ]
    assert content["deepfool"] is None
    assert len(corruption_rows(content["corruptions"])) == 3
    assert len(table_rows(content)[0]) == 2


def test_a_patch_is_used_again(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = quick(run, only=["adversarial"])
    file = run / "robustness-patch.safetensors"
    before = file.read_bytes()
    second = quick(run, only=["adversarial"], patch_file=file, out=tmp_path / "again")
    assert second["perturbations"] == first["perturbations"]
    assert second["patch"] == {"file": str(file), "is_trained_here": False}
    assert file.read_bytes() == before
    assert not (tmp_path / "again" / "robustness-patch.png").exists()
    assert "robustness-patch" not in capsys.readouterr().out.rpartition("Wrote ")[2]


def test_other_data_and_their_training_split(run: Path, tmp_path: Path) -> None:
    synthesise(tmp_path / "data", "voc", train=4, val=3)
    data = str(tmp_path / "data")
    content = quick(run, data=data, split="val", train_split="train", only=["adversarial"])
    assert content["data"]["path"] == content["patch"]["data"] == data
    assert content["patch"]["num_images"] == 4


def test_the_report_shows_the_section(run: Path) -> None:
    evaluate(run, device="cpu")
    quick(run, only=["black", "jpeg", "deepfool"], deepfool_objects=2)
    write_report([run], run / "page.html")
    page = (run / "page.html").read_text()
    assert '<h2 id="robustness">Robustness</h2>' in page
    assert "Black patch" in page
    assert "Common corruptions" in page
    assert page.count("<strong>JPEG</strong>") == 2  # its two example images


def test_without_pictures_there_are_none(run: Path) -> None:
    result = invoke(
        *("robustness", str(run), "--limit", "2", "--only", "black", "--no-pictures"),
        *("--device", "cpu"),
    )
    assert result.exit_code == 0, result.output
    assert json.loads((run / "robustness.json").read_text())["pictures"] == []
    assert not (run / "robustness-examples.jpg").exists()


def test_files_of_others_are_not_replaced(run: Path) -> None:
    for name in ("robustness.json", "robustness-patch.png", "robustness-examples.jpg"):
        (run / name).write_text("mine")
        with pytest.raises(RankdetError, match=rf"{name}: the file exists"):
            quick(run)
        assert (run / name).read_text() == "mine"
        (run / name).unlink()


def test_a_record_is_replaced_by_force_alone(run: Path) -> None:
    quick(run, only=["black"])
    before = (run / "robustness.json").read_text()
    with pytest.raises(ConfigError, match=r"there is a record already\. .*--force"):
        quick(run, only=["noise"])
    assert (run / "robustness.json").read_text() == before
    quick(run, only=["noise"], is_forced=True)
    assert (run / "robustness.json").read_text() != before


def test_what_is_asked_wrongly_is_told_in_words(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--only white: expected one of black, random"):
        quick(run, only=["white"])
    with pytest.raises(ConfigError, match="--train-split: it is for the adversarial patch"):
        quick(run, only=["black"], train_split="train:4")
    file = tmp_path / "patch.safetensors"
    safetensors.torch.save_file({"patch": torch.zeros(8, 8)}, file)
    with pytest.raises(ConfigError, match="Give one of the two"):
        quick(run, patch_file=file, train_split="train:4")
    with pytest.raises(RankdetError, match=r"patch of shape \(8, 8\): expected \(3, height"):
        quick(run, patch_file=file)
    with pytest.raises(RankdetError, match="this is not a run"):
        quick(tmp_path)


def test_images_without_objects_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SyntheticDataset.target

    def empty(self: SyntheticDataset, index: int) -> Any:
        return plain(self, index).select(torch.zeros(0, dtype=torch.int64))

    monkeypatch.setattr(SyntheticDataset, "target", empty)
    with pytest.raises(DataError, match=r"split = 'val:6': expected a split with objects"):
        quick(run)


def test_a_run_without_a_training_split_needs_one_for_the_patch(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    assert "train_split: train:8" in text
    (run / "config.yaml").write_text(text.replace("train_split: train:8", "train_split: null"))
    with pytest.raises(ConfigError, match="--train-split: the run does not say"):
        quick(run, only=["adversarial"])
    assert quick(run, only=["adversarial"], train_split="train:4")["patch"]["split"] == "train:4"


def test_data_that_were_moved_are_asked_for(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("path: synthetic", "path: /no/such/data"))
    with pytest.raises(DataError, match="say where they are now: `rankdet robustness RUN DATA`"):
        quick(run)


def test_the_option_hands_its_values_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(
        "rankdet.workflows.robustness.robustness", lambda *args, **kw: calls.append((args, kw))
    )
    monkeypatch.chdir(tmp_path)
    result = invoke(
        *("robustness", str(tmp_path), "photos", "--split", "test", "--limit", "9"),
        *("--only", "black", "--only", "jpeg", "--corruptions", "--patch-split", "train"),
        *("--patch-steps", "5", "--deepfool-objects", "0", "--checkpoint", "last", "--force"),
        *("--batch-size", "3", "--workers", "0", "--out", "x", "--seed", "2"),
    )
    assert result.exit_code == 0, result.output
    ((run,), options) = calls[0]
    changed = options.pop("changes")(CONFIG)
    assert (changed.evaluation.batch_size, changed.data.workers) == (3, 0)
    assert run == tmp_path
    assert options == {
        "data": str(tmp_path / "photos"),
        "split": "test",
        "limit": 9,
        "only": ["black", "jpeg"],
        "with_corruptions": True,
        "train_split": "train",
        "patch_file": None,
        "patch_settings": PatchSettings(steps=5),
        "deepfool_objects": None,
        "seed": 2,
        "checkpoint": "last",
        "device": None,
        "out": Path("x"),
        "is_forced": True,
    }


@pytest.mark.gpu
def test_the_attacks_on_a_gpu_are_repeatable_and_those_of_a_cpu(run: Path, tmp_path: Path) -> None:
    """AP on 6 images moves by steps: a score that is rounded otherwise may change a place."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        cpu, first, second = (
            quick(run, device=device, limit=None, deepfool_objects=4, out=tmp_path / name)
            for device, name in (("cpu", "cpu"), ("cuda", "first"), ("cuda", "second"))
        )
    finally:
        torch.backends.cudnn.allow_tf32 = before
    for rows in zip(cpu["perturbations"], first["perturbations"], strict=True):
        values = [row["metrics"]["AP50"] for row in rows]
        assert values[1] == pytest.approx(values[0], abs=3.0)
    assert first["deepfool"]["num_objects"] == cpu["deepfool"]["num_objects"]
    assert first["deepfool"]["norm"] == pytest.approx(cpu["deepfool"]["norm"], rel=0.05)
    assert second["deepfool"]["norm"] == pytest.approx(first["deepfool"]["norm"], rel=0.01)
