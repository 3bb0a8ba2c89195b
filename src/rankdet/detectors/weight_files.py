"""Reading files of weights that others wrote: no code in them is run, their sizes are checked."""

from __future__ import annotations

import argparse
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from rankdet.errors import WeightsError, message, shorten, system_reason

# Far above any detector with the state of its optimiser; below what fills a machine's memory.
_LARGEST_FILE = 8 * 2**30

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32)
_ZIP, _OLD_PICKLE = b"PK\x03\x04", b"\x80\x02"  # how `torch.save` begins, since 1.6 and before
_NO_WEIGHTS = (  # what a download that went wrong leaves, and what to say of it
    (b"version https://git-lfs", "it is a Git LFS pointer", "Fetch the file with `git lfs pull`."),
    (b"<", "it is a web page (HTML or XML)", "Download the file itself."),
)
_STATE_DICT_ALONE = "Save the state dict alone: torch.save(model.state_dict(), FILE)."


def read_tensors(path: Path | str) -> dict[str, Tensor]:
    """The tensors of a file by their names, on the CPU, with the dtypes that they have there.

    The classifier of a network for classification (`fc` or `classifier`) is left out: nothing here
    has a use for it.

    Takes .safetensors, and .pth / .pt of `torch.save` by the restricted unpickler alone: a state
    dict, or a training checkpoint that holds one as "model" or "state_dict". The content decides,
    not the ending. The prefixes of DistributedDataParallel and `torch.compile` are cut off.

    Raises WeightsError, one line, for whatever is not a sound file of tensors, among it numbers
    that are not finite.
    """
    path = Path(path).expanduser()
    try:
        content = _read_safetensors(path) if _is_safetensors(path) else _read_torch(path)
        tensors = _without_classifier(_without_prefixes(_state_dict(content, path)))
        for name, tensor in tensors.items():
            _check(name, tensor, path)
    except WeightsError:
        raise
    except OSError as error:
        raise _refusal(path, f"cannot be read: {system_reason(error)}") from None
    except Exception as error:  # the readers raise nearly anything over a damaged file
        reason = shorten(str(error).split("\n")[0] or type(error).__name__)
        hint = "Copy or download it again."
        raise _refusal(path, f"is cut off or damaged: {reason}", hint) from None
    return tensors


def _refusal(path: Path, rule: str, hint: str = "") -> WeightsError:
    return WeightsError(message(rule, file=str(path), hint=hint))


def _is_safetensors(path: Path) -> bool:
    """Whether the content is safetensors, or else of `torch.save`; raises if it is neither."""
    if path.is_dir():
        raise _refusal(path, "is a folder, and not that of a run; expected a file of weights")
    if not path.exists():
        raise _refusal(path, "there is no such file of weights")
    if not path.is_file():
        raise _refusal(path, "is not a regular file")
    size = path.stat().st_size
    if size == 0:
        raise _refusal(path, "the file is empty", "Copy or download it again.")
    if size > _LARGEST_FILE:
        raise _refusal(path, f"has {size:,} bytes; expected at most {_LARGEST_FILE:,}")
    with path.open("rb") as stream:
        start = stream.read(64)
    if start[8:9] == b"{":  # after eight bytes with the length of the header
        return True
    if start.startswith((_ZIP, _OLD_PICKLE)):
        return False
    for beginning, rule, hint in _NO_WEIGHTS:
        if start.lstrip().startswith(beginning):
            raise _refusal(path, f"is not a file of weights: {rule}", hint)
    raise _refusal(
        path, "is not a file of weights", "Expected safetensors, or a state dict of torch.save."
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(path)


def _read_torch(path: Path) -> object:
    """What `torch.save` wrote, if the restricted unpickler takes it."""
    with path.open("rb") as stream:
        is_zip = stream.read(4) == _ZIP
    if is_zip:
        _check_archive(path)
    try:
        # torchvision's training scripts keep their arguments in the checkpoint: a bag of values.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old or unusual files: they load, or we say why
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if refused := re.search(r"GLOBAL (\S+)", str(error)):
            rule = f"holds objects other than tensors ({refused[1]}), which may run code"
            raise _refusal(path, f"{rule}: not loaded", _STATE_DICT_ALONE) from None
        raise


def _check_archive(path: Path) -> None:
    """Raise unless the members of a zip fit into the file: nothing is unpacked beyond its size."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    size = path.stat().st_size
    claimed = sum(member.file_size for member in members)
    is_packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if is_packed or claimed > size:  # `torch.save` never compresses
        rule = f"its {len(members)} members claim {claimed:,} bytes, the file has {size:,}"
        raise _refusal(path, rule, "It is not of torch.save.")
    if any(Path(member.filename).name == "constants.pkl" for member in members):
        raise _refusal(path, "is a TorchScript program, not weights", _STATE_DICT_ALONE)


def _state_dict(content: object, path: Path) -> Mapping[str, Tensor]:
    """The tensors by name, taken out of a training checkpoint if it is one."""
    if isinstance(content, Mapping):
        for key in ("model", "state_dict"):
            if isinstance(content.get(key), Mapping):
                content = content[key]
                break
    if not isinstance(content, Mapping):
        rule = f"holds an object of type {type(content).__name__}; expected tensors by name"
        raise _refusal(path, rule, _STATE_DICT_ALONE)
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            rule = f"{shorten(name)} is of type {type(value).__name__}; expected tensors by name"
            raise _refusal(path, rule, _STATE_DICT_ALONE)
    if not content:
        raise _refusal(path, "holds no tensors")
    return content


def _without_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same without what wrappers of a model put before every name."""
    for prefix in ("module.", "_orig_mod."):
        if all(name.startswith(prefix) for name in tensors):
            return _without_prefixes({name[len(prefix) :]: t for name, t in tensors.items()})
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _without_classifier(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same without the last layers of a network for classification.

    In a file of torchvision's, VGG-16 as SSD's authors trained it, they are NaN on purpose.
    """
    return {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith(("fc.", "classifier."))
    }


def _check(name: str, tensor: Tensor, path: Path) -> None:
    """Raise unless this is a plain tensor, wholly in the file, with finite values."""
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    if not is_plain or tensor.dtype not in _DTYPES:
        kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device.type}"
        rule = f"{shorten(name)} is {kind}; expected a plain tensor of floats or integers"
        raise _refusal(path, rule)
    # A view can claim any shape over a few bytes; its values must not be looked at.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        rule = f"{shorten(name)} claims the shape {tuple(tensor.shape)}, the file has fewer values"
        raise _refusal(path, rule)
    if tensor.is_floating_point() and not bool(tensor.float().isfinite().all()):
        rule = f"{shorten(name)} has values that are not finite as float32"
        raise _refusal(path, rule, "Take the weights of an earlier checkpoint.")
