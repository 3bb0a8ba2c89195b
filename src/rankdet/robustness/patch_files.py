"""An adversarial patch as files: PNG to look at, safetensors to use again."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from rankdet.errors import RankdetError
from rankdet.output import write_whole

MARK = "rankdet adversarial patch"  # near the start of both files
_NAME = "patch"
_LONGEST_SIDE = 4096
_LARGEST_FILE = 4 * 3 * _LONGEST_SIDE**2 + 100_000  # bytes


def write_patch(stem: Path, patch: Tensor) -> tuple[Path, Path]:
    """Write STEM.png and STEM.safetensors; gives their paths. patch: (3, h, w) float in 0..1."""
    png, weights = stem.with_suffix(".png"), stem.with_suffix(".safetensors")
    pixels = (patch * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    comment = PngInfo()
    comment.add_text("Comment", MARK)
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, "PNG", pnginfo=comment)
    write_whole(png, stream.getvalue())
    tensors = {_NAME: patch.float().cpu().contiguous()}
    write_whole(weights, safetensors.torch.save(tensors, metadata={"format": MARK}))
    return png, weights


def read_patch(path: Path) -> Tensor:
    """(3, h, w) float32 in 0..1 of a file that `write_patch` wrote, or of any picture.

    RankdetError if the file is neither, or is not a patch.
    """
    if not path.is_file():
        raise RankdetError(
            f"{path}: there is no such file. Give a picture, or the .safetensors of a patch."
        )
    if path.stat().st_size > _LARGEST_FILE:
        raise RankdetError(f"{path}: the file is too large for a patch ({path.stat().st_size:,}).")
    patch = _read_tensor(path) if path.suffix == ".safetensors" else _read_picture(path)
    if patch.ndim != 3 or patch.shape[0] != 3 or not 1 <= min(patch.shape) <= _LONGEST_SIDE:
        raise RankdetError(
            f"{path}: patch of shape {tuple(patch.shape)}: expected (3, height, width)."
        )
    if not bool(((patch >= 0) & (patch <= 1)).all()):
        raise RankdetError(f"{path}: expected the values of the patch in 0..1.")
    return patch


def _read_tensor(path: Path) -> Tensor:
    try:
        tensors = safetensors.torch.load(path.read_bytes())
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise RankdetError(f"{path}: this is not a safetensors file: {error}.") from error
    if set(tensors) != {_NAME} or not tensors[_NAME].is_floating_point():
        raise RankdetError(
            f"{path}: expected one tensor of floats called {_NAME!r}. "
            "Give a file that `rankdet robustness` wrote."
        )
    return tensors[_NAME].float()


def _read_picture(path: Path) -> Tensor:
    try:
        with Image.open(path) as image:
            if max(image.size) > _LONGEST_SIDE:
                raise RankdetError(
                    f"{path}: {image.size[0]} x {image.size[1]} pixels: expected at most "
                    f"{_LONGEST_SIDE} on a side."
                )
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise RankdetError(
            f"{path}: this is not a picture. Give one, or the .safetensors of a patch."
        ) from error
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
