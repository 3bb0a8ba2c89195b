"""Names from annotations: they must not lead out of their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankdet.data.reading import paths
from rankdet.data.reading.paths import contained
from rankdet.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images" / "sub").mkdir(parents=True)
    (tmp_path / "images" / "a.jpg").write_bytes(b"in")
    (tmp_path / "images2").mkdir()
    (tmp_path / "secret.jpg").write_bytes(b"out")
    return tmp_path / "images"


@pytest.mark.parametrize(
    "name",
    [
        "a.jpg",
        "sub/b.jpg",
        "",
        "sub/..",
        "./a.jpg",
        "sub/../a.jpg",
        "missing/x.jpg",
        "a b\n.jpg",
        "~",
        "~root/x",
        "C:\\x.jpg",
        "..\\..\\x.jpg",
        "...",
        "..a/b.jpg",
        "x" * 300,
        "é.jpg",
        "a\udcff.jpg",
    ],
)
def test_names_inside_are_the_folder_joined_with_the_name(folder, name):
    assert contained(folder, name) == folder / name


@pytest.mark.parametrize(
    "name", ["../secret.jpg", "..", "sub/../../secret.jpg", "/etc/passwd", "../images2/x.jpg", "/"]
)
def test_names_outside_are_refused_unless_allowed(folder, name):
    assert contained(folder, name) is None
    assert contained(folder, name, allow_outside=True) == folder / name


def test_everything_lies_inside_of_the_root_of_the_disk():
    assert contained(Path("/"), "nowhere/a.jpg") == Path("/nowhere/a.jpg")
    assert contained(Path("/"), "../a.jpg") == Path("/../a.jpg")


def test_an_absolute_name_inside_is_fine(folder):
    assert contained(folder, str(folder / "a.jpg")) == folder / "a.jpg"


@pytest.mark.parametrize("name", ["a\0.jpg", "\ud800.jpg"])
@pytest.mark.parametrize("allow_outside", [False, True])
def test_names_that_no_file_can_have_are_refused_always(folder, name, allow_outside):
    assert contained(folder, name, allow_outside) is None


def test_links_that_lead_outside_are_refused_unless_allowed(folder):
    (folder / "link.jpg").symlink_to(folder.parent / "secret.jpg")
    (folder / "door").symlink_to(folder.parent)
    for name in ("link.jpg", "door/secret.jpg"):
        assert contained(folder, name) is None
        assert contained(folder, name, allow_outside=True) == folder / name


def test_links_that_stay_inside_are_fine(folder):
    (folder / "link.jpg").symlink_to("a.jpg")
    (folder / "sub" / "up.jpg").symlink_to(folder / "a.jpg")
    assert contained(folder, "link.jpg") == folder / "link.jpg"
    assert contained(folder, "sub/up.jpg") == folder / "sub/up.jpg"


def test_a_link_to_itself_does_no_harm(folder):
    (folder / "loop.jpg").symlink_to("loop.jpg")
    assert contained(folder, "loop.jpg") in (None, folder / "loop.jpg")


def test_the_folder_itself_may_be_a_link(folder):
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert contained(link, "a.jpg") == link / "a.jpg"
    assert contained(link, "../secret.jpg") is None


def test_a_relative_folder_is_fine(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert contained(Path("images"), "a.jpg") == Path("images/a.jpg")
    assert contained(Path("images"), "../secret.jpg") is None
    assert contained(Path(os.curdir), "images/a.jpg") == Path("images/a.jpg")


def test_a_folder_is_listed_in_order_without_hidden_entries(tmp_path: Path) -> None:
    for name in ("b", "a", ".c"):
        (tmp_path / name).touch()
    assert [entry.name for entry in paths.entries_in(tmp_path)] == ["a", "b"]


def test_a_folder_that_is_none_has_no_entries(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert paths.entries_in(tmp_path / "none") == []
    assert paths.entries_in(tmp_path / "file") == []


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="File name too long") as caught:
        paths.entries_in(tmp_path / ("a" * 300))
    assert caught.value.code == "file-unreadable"


def test_a_name_that_is_too_long_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert paths.is_file(tmp_path / "file")
    assert paths.exists(tmp_path)
    assert paths.is_folder(tmp_path)
    for question in (paths.is_file, paths.is_folder, paths.exists):
        assert not question(tmp_path / ("a" * 300))
