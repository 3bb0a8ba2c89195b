"""The files of the page of results: all of them are made first, and nothing of others is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rankdet.errors import RankdetError
from rankdet.experiments.page_files import page_files
from rankdet.experiments.results_page import PART_BEGIN, PART_END


def write(folder: Path, item: str, rows: dict[str, Any] | None = None) -> Path:
    """A record at voc320 with these rows."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"rankdet_reproduction": 1, "item": item, "labels": [], "plan": [*(rows or ["1"])]}
    record |= {"request": {"scale": "voc320", "seed": 0}, "rows": rows or {}}
    (folder / f"{item}.json").write_text(json.dumps(record))
    return folder


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return write(tmp_path / "voc320", "delta")


def test_the_page_its_figures_and_a_readme_are_made(records: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"mine\n{PART_BEGIN}\n{PART_END}\n")
    page, figure = tmp_path / "page.md", tmp_path / "pictures" / "voc320" / "delta.png"
    files = page_files(records, page, readme)
    assert list(files) == [readme, page, figure]
    assert files[readme].startswith(b"mine\n")
    assert not page.exists()


def test_a_folder_with_any_name_can_be_linked_to(tmp_path: Path) -> None:
    folder = write(tmp_path / "voc 320 (ü) #1", "delta")
    page = tmp_path / "page.md"
    files = page_files(folder, page, None)
    assert tmp_path / "pictures" / "voc 320 (ü) #1" / "delta.png" in files
    assert b"](pictures/voc%20320%20%28%C3%BC%29%20%231/delta.png)" in files[page]


def test_the_damaged_record_is_named(records: Path, tmp_path: Path) -> None:
    row = {"settings": {}, "result": {"metrics": {"AP": "x", "AP50": 1.0, "AP75": 1.0}}}
    write(records, "interpolation", {"Yes": row})
    with pytest.raises(RankdetError, match=r"interpolation\.json: a row .*Put back a copy"):
        page_files(records, tmp_path / "page.md", None)


def test_a_readme_that_is_not_utf8_is_named(records: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_bytes("für".encode("latin-1"))
    with pytest.raises(RankdetError, match=r"README\.md: byte 1 is not UTF-8"):
        page_files(records, tmp_path / "page.md", readme)


def test_the_page_does_not_replace_the_readme(records: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"mine\n{PART_BEGIN}\n{PART_END}\n")
    with pytest.raises(RankdetError, match="this is one file"):
        page_files(records, readme, tmp_path / "." / "README.md", is_forced=True)


def test_a_file_where_the_figures_are_to_be_is_told_first(records: Path, tmp_path: Path) -> None:
    (tmp_path / "pictures").write_text("mine")
    with pytest.raises(RankdetError, match="pictures: this is no folder"):
        page_files(records, tmp_path / "page.md", None, is_forced=True)
