"""Files that are written for the user: whole or not at all, and never over a foreign one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdet import output
from rankdet.errors import RankdetError


def test_a_written_file_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a.txt"
    output.write_whole(out, b"first")
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(RankdetError, match=r"a\.txt: the file cannot be written: full\."):
        output.write_whole(out, b"second")
    assert out.read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_written_file_keeps_links_and_usual_rights(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("x")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    output.write_whole(link, b"content")
    assert link.is_symlink()
    assert (tmp_path / "real").read_bytes() == b"content"
    assert (tmp_path / "real").stat().st_mode == plain.stat().st_mode


def test_what_would_be_lost_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RankdetError, match="folder"):
        output.refuse_foreign(tmp_path, "mark", is_forced=True)
    with pytest.raises(RankdetError, match="plain file"):
        output.refuse_foreign(Path("/dev/null"), "mark", is_forced=True)
    (tmp_path / "empty").touch()
    output.refuse_foreign(tmp_path / "empty", "mark")
    (tmp_path / "late").write_text("x" * 2000 + "mark")
    with pytest.raises(RankdetError, match="--force"):
        output.refuse_foreign(tmp_path / "late", "mark")
    output.refuse_foreign(tmp_path / "nowhere", "mark")


def test_a_file_that_cannot_be_written_is_named_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RankdetError, match=r"page\.html: the file cannot be written: "):
        output.write_whole(tmp_path / "file" / "page.html", b"")
