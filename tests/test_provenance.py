"""Where numbers come from: the command can be typed again."""

from __future__ import annotations

import sys

import pytest

from rankdet.provenance import provenance


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["/usr/bin/rankdet", "train", "my data"], "rankdet train 'my data'"),
        (["/site/rankdet/__main__.py", "recipes"], "python -m rankdet recipes"),
    ],
)
def test_the_command_is_quoted_and_without_the_program_s_folder(
    arguments: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    assert provenance(seed=3)["command"] == command
    assert provenance(seed=3)["seed"] == 3
