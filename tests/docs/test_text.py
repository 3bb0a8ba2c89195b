"""What the pages say besides code: links lead somewhere, options exist, numbers are ours."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from markdown_it import MarkdownIt
from torch.distributed.run import get_args_parser

from rankdet.cli import app

# Commands that the pages call planned.
PLANNED: dict[str, str] = {}


def test_links_and_pictures_lead_somewhere(page: Any, root: Path) -> None:
    for target in targets(page):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.path.parent / name).resolve() if name else page.path
        assert path.is_relative_to(root), f"{page.name}: {target} leads out of the repository"
        assert path.exists(), f"{page.name}: {target} does not exist"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{page.name}: {target}: there is no such heading"


def targets(page: Any) -> Iterator[str]:
    for token in page.inline():
        for name in ("href", "src"):
            if token.attrGet(name):
                yield str(token.attrGet(name))
        if token.type.startswith("html"):
            yield from re.findall(r'(?:href|src|srcset)="([^"]+)"', token.content)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as hosts of README files and the site builder make them."""
    tokens = MarkdownIt().parse(path.read_text(encoding="utf-8"))
    titles = [
        "".join(child.content for child in token.children or ())
        for before, token in itertools.pairwise(tokens)
        if before.type == "heading_open"
    ]
    words = [re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles]
    return {re.sub(r"\s", "-", word) for word in words} | {
        re.sub(r"[\s-]+", "-", word) for word in words
    }


def test_anchors_are_made_from_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# What it costs\n\n## `ap_loss`, and more: 1 - AP\n\ntext\n")
    assert anchors(page) == {"what-it-costs", "ap_loss-and-more-1---ap", "ap_loss-and-more-1-ap"}


def options(command: Any) -> set[str]:
    """The options of a command and of all below it."""
    own = {name for parameter in command.params for name in parameter.opts}
    inner = getattr(command, "commands", {}).values()
    return own.union(*(options(part) for part in inner)) | {"--help"}


def options_of_torchrun() -> set[str]:
    return {name for action in get_args_parser()._actions for name in action.option_strings}


def test_options_in_the_text_exist(page: Any) -> None:
    known = options(typer.main.get_command(app)) | options_of_torchrun()
    for token in page.inline():
        if token.type in ("text", "code_inline"):
            for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", token.content):
                assert option in known, f"{page.name}: no command has an option {option}"


def test_what_is_planned_is_not_there_yet() -> None:
    assert not set(PLANNED) & set(typer.main.get_command(app).commands)


def test_options_are_found_at_all_levels() -> None:
    known = options(typer.main.get_command(app))
    assert {"--version", "--recipe", "--submission", "--quick"} <= known
    assert "--quik" not in known


def test_commands_in_the_text_exist(page: Any) -> None:
    command = typer.main.get_command(app)
    for token in page.inline():
        if token.type == "code_inline":
            for name in re.findall(r"^rankdet ([a-z]\S*)", token.content):
                if PLANNED.get(name) != page.name:
                    assert name in command.commands, f"{page.name}: there is no `rankdet {name}`"


def test_settings_in_the_text_exist(page: Any) -> None:
    from rankdet.config import Config, apply_settings

    for token in page.inline():
        if token.type == "code_inline":
            for setting in re.findall(r"\b[a-z]+\.[a-z_.]+=[^\s,]+", token.content):
                if not setting.lower().endswith(("value", "...")):
                    apply_settings(Config(), [setting])
