"""The pages: README.md and docs/, read as Markdown."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    """A block of code: its language (empty if it has none), its text, and its line in the page."""

    language: str
    text: str
    line: int
    is_fenced: bool


@dataclass(frozen=True)
class Page:
    """A page of Markdown. name: its path from the root of the repository."""

    name: str

    @property
    def path(self) -> Path:
        return ROOT / self.name

    @property
    def tokens(self) -> list[Token]:
        return MarkdownIt().enable("table").parse(self.path.read_text(encoding="utf-8"))

    @property
    def blocks(self) -> list[Block]:
        return [
            Block(
                token.info.partition(" ")[0],
                token.content,
                (token.map or [0])[0] + 1,
                token.type == "fence",
            )
            for token in self.tokens
            if token.type in ("fence", "code_block")
        ]

    def inline(self) -> Iterator[Token]:
        """The parts of the text: words, code in backticks, links, images, HTML."""
        for token in self.tokens:
            if token.type == "html_block":
                yield token
            yield from token.children or ()


PAGES = [
    Page(path.relative_to(ROOT).as_posix())
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "page" in metafunc.fixturenames:
        metafunc.parametrize("page", PAGES, ids=[page.name for page in PAGES])


@pytest.fixture
def pages() -> list[Page]:
    return PAGES


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy, so that nothing is left in the repository."""
    pytest.importorskip("zensical", reason="the documentation's tools are not installed")
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "docs_extensions", "src"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "zensical.toml", folder)
    result = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout
    return folder / "site"
