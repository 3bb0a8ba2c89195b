"""Patches as files: read as they were written, and refused where they are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from PIL import Image

from rankdet.errors import RankdetError
from rankdet.output import refuse_foreign
from rankdet.robustness.patch_files import MARK, read_patch, write_patch


def test_both_files_hold_the_same_patch(tmp_path: Path) -> None:
    patch = torch.randint(0, 256, (3, 5, 7)).float() / 255
    png, weights = write_patch(tmp_path / "patch", patch)
    assert torch.equal(read_patch(weights), patch)
    assert torch.allclose(read_patch(png), patch)
    for file in (png, weights):
        refuse_foreign(file, MARK)  # ours: may be replaced


def test_any_picture_is_a_patch(tmp_path: Path) -> None:
    Image.new("L", (4, 3), 255).save(tmp_path / "white.jpg")
    assert torch.equal(read_patch(tmp_path / "white.jpg"), torch.ones(3, 3, 4))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"patch": torch.zeros(1, 8, 8)}, r"patch of shape \(1, 8, 8\): expected \(3, height"),
        ({"patch": torch.zeros(3, 0, 8)}, r"patch of shape \(3, 0, 8\)"),
        ({"patch": torch.full((3, 8, 8), 2.0)}, r"expected the values of the patch in 0\.\.1"),
        ({"patch": torch.full((3, 8, 8), torch.nan)}, r"expected the values of the patch"),
        ({"weight": torch.zeros(3, 8, 8)}, "expected one tensor of floats called 'patch'"),
        ({"patch": torch.zeros(3, 8, 8, dtype=torch.uint8)}, "expected one tensor of floats"),
    ],
)
def test_other_tensors_are_refused(
    tensors: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "patch.safetensors"
    safetensors.torch.save_file(tensors, file)
    with pytest.raises(RankdetError, match=message):
        read_patch(file)


@pytest.mark.parametrize("name", ["patch.safetensors", "patch.png"])
def test_files_of_another_kind_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("hello")
    with pytest.raises(RankdetError, match="this is not a"):
        read_patch(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RankdetError, match=r"none\.png: there is no such file"):
        read_patch(tmp_path / "none.png")
