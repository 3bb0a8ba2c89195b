"""Reading files of weights: sound ones as they are, all others with one line and nothing run."""

from __future__ import annotations

import argparse
import os
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from rankdet.detectors import weight_files
from rankdet.detectors.weight_files import read_tensors
from rankdet.errors import WeightsError


def small_state() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "conv.weight": torch.randn(4, 3, 3, 3, generator=generator).half(),
        "bn.bias": torch.randn(4, generator=generator),
        "bn.num_batches_tracked": torch.tensor(7),
    }


def write(path: Path, state: object, *, is_old: bool = False) -> Path:
    if path.suffix == ".safetensors":
        assert isinstance(state, dict)
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=not is_old)
    return path


def same(read: dict[str, Tensor], state: dict[str, Tensor]) -> bool:
    return read.keys() == state.keys() and all(
        read[name].dtype == state[name].dtype and torch.equal(read[name], state[name])
        for name in state
    )


def refusal(path: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        read_tensors(path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


# Sound files


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth", "a.pt"])
def test_tensors_come_back_with_names_dtypes_and_values(tmp_path: Path, name: str) -> None:
    assert same(read_tensors(write(tmp_path / name, small_state())), small_state())


def test_the_format_of_torch_save_before_1_6_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "old.pth", small_state(), is_old=True)
    assert path.read_bytes()[:2] == b"\x80\x02"
    assert same(read_tensors(path), small_state())


def test_the_content_decides_and_not_the_ending(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", small_state()).rename(tmp_path / "a.pth")
    assert same(read_tensors(path), small_state())


def test_a_path_may_be_text_and_begin_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "a.pth", small_state())
    assert same(read_tensors("~/a.pth"), small_state())


@pytest.mark.parametrize("key", ["model", "state_dict"])
def test_a_training_checkpoint_gives_its_model(tmp_path: Path, key: str) -> None:
    arguments = argparse.Namespace(lr=0.1, data="x")  # torchvision's scripts keep them
    optimiser = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [1, 2])
    checkpoint = {
        "optimizer": optimiser.state_dict(),
        "lr_scheduler": schedule.state_dict(),
        "epoch": 3,
        "args": arguments,
        key: OrderedDict(small_state()),
    }
    assert same(read_tensors(write(tmp_path / "a.pth", checkpoint)), small_state())


def test_reading_a_checkpoint_allows_nothing_for_later(tmp_path: Path) -> None:
    read_tensors(write(tmp_path / "a.pth", {"model": small_state(), "args": argparse.Namespace()}))
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_the_prefix_of_a_wrapper_is_cut_off(tmp_path: Path, prefix: str) -> None:
    wrapped = {prefix + name: tensor for name, tensor in small_state().items()}
    assert same(read_tensors(write(tmp_path / "a.pth", wrapped)), small_state())


def test_a_prefix_that_only_some_names_have_stays(tmp_path: Path) -> None:
    state = {"module.a": torch.zeros(1), "b": torch.zeros(1)}
    assert set(read_tensors(write(tmp_path / "a.pth", state))) == {"module.a", "b"}


def test_parameters_come_back_as_plain_tensors(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pth", dict(nn.Linear(2, 3).named_parameters()))
    assert not any(tensor.requires_grad for tensor in read_tensors(path).values())


def test_tensors_that_share_memory_are_read(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    state = {"whole": whole, "part": whole[1:], "turned": whole.t()}
    assert same(read_tensors(write(tmp_path / "a.pth", state)), state)


# No file of weights at all


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "a.pth") == "there is no such file of weights."


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "is a folder, and not that of a run; expected a file of weights."


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pth")
    assert refusal(tmp_path / "a.pth") == "is not a regular file."


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "the file is empty. Copy or download it again."),
        (b"\n<!DOCTYPE html><html>", "not a file of weights: it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer. Fetch"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is not a file of weights. Expected safetensors"),
        (b"{}", "is not a file of weights. Expected safetensors"),
    ],
    ids=["empty", "html", "lfs", "png", "json"],
)
@pytest.mark.parametrize("name", ["a.pth", "a.safetensors"])
def test_it_is_said_what_a_file_is(tmp_path: Path, content: bytes, part: str, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert part in refusal(tmp_path / name)


def test_a_file_that_may_not_be_read_gives_the_systems_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.pth", small_state())

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert refusal(path) == "cannot be read: Permission denied."


@pytest.mark.parametrize("kind", ["a.safetensors", "a.pth", "old.pth"])
def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / kind, small_state(), is_old=kind == "old.pth")
    whole = path.read_bytes()
    for size in sorted({1, 2, 4, 9, 20, 100, len(whole) // 2, len(whole) - 40, len(whole) - 1}):
        path.write_bytes(whole[:size])
        assert refusal(path).startswith(("is cut off or damaged: ", "is not a file of weights"))


# Files that would run code, or fill the memory


class Attack:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.marker),))


@pytest.mark.parametrize("is_old", [False, True])
def test_code_in_a_file_is_not_run_even_if_the_environment_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    state = {**small_state(), "attack": Attack(tmp_path / "marker")}
    text = refusal(write(tmp_path / "a.pth", state, is_old=is_old))
    assert "which may run code: not loaded. Save the state dict alone" in text
    assert "mkdir" in text
    assert not (tmp_path / "marker").exists()


def test_a_saved_module_is_refused_by_its_name(tmp_path: Path) -> None:
    text = refusal(write(tmp_path / "a.pth", nn.Linear(2, 2)))
    assert "(torch.nn.modules.linear.Linear)" in text
    assert "torch.save(model.state_dict(), FILE)" in text


def test_a_torchscript_program_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        for name in ("x/data.pkl", "x/constants.pkl", "x/code/m.py"):
            archive.writestr(name, b"")
    assert refusal(tmp_path / "a.pt").startswith("is a TorchScript program, not weights.")


def test_an_archive_that_unpacks_to_more_than_the_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pth", {"w": torch.zeros(300_000)})
    packed = tmp_path / "packed.pth"
    with (
        zipfile.ZipFile(path) as archive,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for member in archive.infolist():
            bomb.writestr(member.filename, archive.read(member))
    assert packed.stat().st_size < 5000
    assert "members claim 1,20" in refusal(packed)


def test_an_archive_that_is_compressed_at_all_is_refused(tmp_path: Path) -> None:
    noise = {"w": torch.randint(-(2**62), 2**62, (100,))}  # gets no smaller
    with zipfile.ZipFile(write(tmp_path / "a.pth", noise)) as archive:
        contents = {member.filename: archive.read(member) for member in archive.infolist()}
    with zipfile.ZipFile(tmp_path / "packed.pth", "w") as packed:
        packed.writestr("padding", bytes(5000))
        for name, content in contents.items():
            packed.writestr(name, content, zipfile.ZIP_DEFLATED)
    assert "It is not of torch.save." in refusal(tmp_path / "packed.pth")


def test_a_member_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pth", small_state())
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")  # the last one of the archive's table
    content[entry + 24 : entry + 28] = struct.pack("<I", 2**31)
    path.write_bytes(content)
    assert "claim 2,147,48" in refusal(path)


def test_a_file_beyond_all_measure_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.pth", small_state())
    monkeypatch.setattr(weight_files, "_LARGEST_FILE", 1000)
    assert refusal(path).endswith("bytes; expected at most 1,000.")


def test_a_shape_beyond_the_files_values_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pth", {"w": torch.zeros(1).expand(10**6, 10**6)})
    assert "'w' claims the shape (1000000, 1000000), the file has fewer" in refusal(path)


# Content other than sound tensors


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.zeros(3, device="meta"),
        torch.zeros(3, dtype=torch.complex64),
        torch.zeros(3, dtype=torch.float8_e4m3fn),
    ],
    ids=["sparse", "meta", "complex", "float8"],
)
def test_an_unusual_tensor_is_refused(tmp_path: Path, tensor: Tensor) -> None:
    text = refusal(write(tmp_path / "a.pth", {"fine": torch.zeros(1), "odd.one": tensor}))
    assert text.startswith(("'odd.one' is torch.", "holds objects other than tensors"))


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ([torch.zeros(1)], "holds an object of type list; expected tensors by name"),
        (torch.zeros(1), "holds an object of type Tensor"),
        ({"a": 1}, "'a' is of type int; expected tensors by name. Save the state dict alone"),
        ({1: torch.zeros(1)}, "1 is of type Tensor; expected tensors by name"),
        ({}, "holds no tensors."),
        ({"model": {}}, "holds no tensors."),
    ],
)
def test_content_other_than_tensors_by_name_is_refused(
    tmp_path: Path, content: object, part: str
) -> None:
    assert part in refusal(write(tmp_path / "a.pth", content))


@pytest.mark.parametrize("name", ["a.safetensors", "a.pth"])
@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([0.0, float("nan")]),
        torch.tensor([0.0, float("inf")]),
        torch.tensor([float("-inf")], dtype=torch.float16),
        torch.tensor([float("nan")], dtype=torch.bfloat16),
        torch.tensor([1e300], dtype=torch.float64),
    ],
)
def test_values_that_are_not_finite_are_refused_with_their_tensors_name(
    tmp_path: Path, name: str, values: Tensor
) -> None:
    state = {**small_state(), "bn.running_var": values}
    assert refusal(write(tmp_path / name, state)).startswith(
        "'bn.running_var' has values that are not finite as float32."
    )


def test_control_characters_of_a_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    text = refusal(write(tmp_path / "a.pth", {"a\x1b[2J\nb": torch.tensor(float("nan"))}))
    assert text.isprintable()
