"""Options that several commands share: what is let through, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from rankdet import cli
from rankdet.cli.options import check_device, class_list, data_path, given


@pytest.mark.parametrize("name", [None, "cpu"])
def test_a_device_that_is_there_is_let_through(name: str | None) -> None:
    check_device(name)


def test_a_device_may_have_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(torch, "empty", lambda size, device: asked.append(device))
    check_device("cuda:3")
    assert asked == ["cuda:3"]


@pytest.mark.parametrize("name", ["gpu", "", "meta", "cpuu", "CUDA"])
def test_other_words_are_refused(name: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected cpu, cuda or cuda:N"):
        check_device(name)


@pytest.mark.parametrize("problem", [RuntimeError, AssertionError])
def test_a_device_that_is_not_there_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, problem: type[Exception]
) -> None:
    def missing(*arguments: object, **keywords: object) -> None:
        raise problem("no such thing\nand a long story")

    monkeypatch.setattr(torch, "empty", missing)
    with pytest.raises(typer.BadParameter, match=r"^'cuda:9': no such thing$"):
        check_device("cuda:9")


def test_classes_are_read_from_their_file(tmp_path: Path) -> None:
    file = tmp_path / "classes.txt"
    file.write_text("cat\ndog\n")
    assert class_list(file) == ("cat", "dog")
    assert class_list(None) is None


def test_zero_and_false_are_given_and_none_is_not() -> None:
    options = {"data": {"workers": 0, "hold": False, "size": None}, "loss": {"name": None}}
    assert given({**options, "seed": 0}) == {"data": {"workers": 0, "hold": False}, "seed": 0}


def test_data_are_named_by_their_whole_path_and_links_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert data_path("link/../link") == str(tmp_path / "link")
    assert data_path("synthetic") == "synthetic"
    assert data_path("./synthetic") == str(tmp_path / "synthetic")


def test_the_largest_seed_is_that_of_the_random_numbers(tmp_path: Path) -> None:
    def synth(seed: int) -> int:
        options = ["--format", "yolo", "--train", "1", "--val", "0", "--size", "64"]
        arguments = ["synth", str(tmp_path / str(seed)), *options, "--seed", str(seed)]
        return CliRunner().invoke(cli.app, arguments).exit_code

    assert [synth(seed) for seed in (-1, 2**32 - 1, 2**32)] == [2, 0, 2]
