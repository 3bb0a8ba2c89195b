"""The README: its code runs, its table is that of the recorded run, its paths exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the README speaks of: a run and two pictures."""
    from rankdet.config import apply_settings
    from rankdet.data.synthetic.dataset import SyntheticDataset
    from rankdet.recipes import recipe
    from rankdet.workflows.pictures import jpeg
    from rankdet.workflows.train import train

    folder = tmp_path_factory.mktemp("readme")
    settings = ["data.path=synthetic", "data.train_split=train:4", "data.val_split=val:2"]
    settings += ["data.size=64", "data.workers=0", "training.batch_size=4", "training.epochs=1"]
    config = apply_settings(recipe("small"), [*settings, "evaluation.fixed_size=64"])
    train(folder / "runs" / "mine", make_config=lambda stored: config, device="cpu")
    dataset = SyntheticDataset("val", 2)
    for index, name in enumerate(("a.jpg", "b.jpg")):
        pixels = dataset.image(index).permute(1, 2, 0).numpy()
        (folder / name).write_bytes(jpeg(Image.fromarray(pixels)))
    return folder


@pytest.mark.parametrize("block", BLOCKS)
def test_code_in_the_readme_runs(
    block: str, trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained)
    torch.manual_seed(0)
    logits = torch.randn(2, 30, 4, requires_grad=True)
    names = {
        "logits": logits,
        "targets": (torch.rand(2, 30, 4) < 0.1).float(),
        "labels": torch.randint(-2, 4, (2, 30)),
        "__name__": "__main__",
    }
    exec(block, names)
    if "set_class_loss" in block:
        assert 0 < names["losses"]["classification"].item() <= 1
        assert all(parameter.grad is not None for parameter in names["model"].head.parameters())
    elif "backward" in block:
        assert logits.grad is not None
        assert logits.grad.any()
    elif "rankdet.load" in block:
        assert capsys.readouterr().out.count("tensor(") >= 4
    else:
        assert names["images"].shape == (16, 3, 128, 128)


def test_tables_in_the_readme_are_made_from_their_records() -> None:
    from rankdet.bench.tables import markdown

    tables = re.findall(
        r"<!-- rankdet\.bench\.tables: (\S+) -->\n(.*?)\n?<!-- end -->", README, re.DOTALL
    )
    assert tables
    for file, table in tables:
        assert table == markdown(json.loads((ROOT / file).read_text()))


def test_files_that_the_readme_names_exist() -> None:
    tree = README.partition("## The tree")[2]
    for name in re.findall(r"\b([\w/-]+\.(?:py|md))\b", tree):
        assert list(ROOT.glob(f"**/{name}")), name
    for target in re.findall(r"\]\(([\w./-]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_number_of_spoilt_files_in_the_readme_is_the_recorded_one() -> None:
    record = json.loads((ROOT / "results" / "reliability-data.json").read_text())
    total = sum(row["tried"] for row in record["spoilt"])
    assert f"{total:,} randomly spoilt files" in " ".join(README.split())
    assert record["is_as_expected"]
    assert not record["provenance"]["quick"]
