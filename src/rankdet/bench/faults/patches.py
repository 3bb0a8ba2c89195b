"""Protections patched away from outside, in a process of its own: the package has no such switch.

    python -m rankdet.bench.faults.patches '[["module:function", []]]' train --resume --out run

calls the functions and then the command line, for processes that others start, as torchrun does.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# By its name, as a shell does: the command line stands above the bench, which it calls.
COMMAND = "rankdet.cli:main"


@dataclass(frozen=True)
class Patch:
    """A function at the top of a module, and what it is called with: whatever JSON can say."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()


def described(patches: Iterable[Patch]) -> list[list[Any]]:
    """The patches as JSON.

    >>> described([Patch(apply, ([],))])
    [['rankdet.bench.faults.patches:apply', [[]]]]
    """
    return [[name_of(patch.function), list(patch.arguments)] for patch in patches]


def name_of(function: Callable[..., Any]) -> str:
    """The name by which another process finds the function."""
    if "." in function.__qualname__:
        raise ValueError(f"expected a function at the top of a module, got {function.__qualname__}")
    return f"{function.__module__}:{function.__name__}"


def named(name: str) -> Callable[..., Any]:
    """The function with this name.

    >>> named("rankdet.bench.faults.patches:named") is named
    True
    """
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def apply(descriptions: Sequence[Sequence[Any]]) -> None:
    """Call the functions, in order."""
    for name, arguments in descriptions:
        named(name)(*arguments)


def command(patches: Iterable[Patch], *arguments: str) -> list[str]:
    """What starts `rankdet` with these arguments in a Python of its own, with the patches.

    For torchrun leave out the first word: `[*torchrun, *command(...)[1:]]`.
    """
    if not (descriptions := described(patches)):
        return [sys.executable, "-m", "rankdet", *arguments]
    return [sys.executable, "-m", __spec__.name, json.dumps(descriptions), *arguments]


def main() -> None:
    """Apply the patches of the first argument, then run the command line with the others."""
    apply(json.loads(sys.argv.pop(1)))
    named(COMMAND)()


if __name__ == "__main__":
    main()
