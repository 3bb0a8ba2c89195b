"""Imports point down only: a table says which layer may import which, and every module obeys.

A layer is a module or a folder directly under `rankdet`. The check reads the source and therefore
sees relative imports, imports inside functions and imports for type checkers alike.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "rankdet"

# layer: what it may import of ours. From the bottom up; rows may be there before their code is.
ALLOWED: dict[str, set[str]] = {
    "structures": set(),
    "boxes": set(),
    "errors": set(),
    "strict_yaml": set(),
    "output": {"errors"},
    "progress": set(),
    "provenance": set(),
    "losses": set(),
    "detectors": {"structures", "boxes", "errors", "losses"},
    "data": {"structures", "boxes", "errors", "strict_yaml", "progress"},
    "metrics": {"structures", "boxes", "errors"},
    "engine": {"structures", "boxes", "errors", "output", "progress", "losses", "metrics"},
    # detectors: an attack by gradient asks the assigner which anchors are an object's.
    "robustness": {"structures", "boxes", "errors", "output", "detectors", "data"},
    "integrations": {"losses"},
    "report": {"errors", "output"},
    "config": {"errors", "strict_yaml"},
    "recipes": {"config", "errors"},
}
ALLOWED["build"] = set(ALLOWED)
ALLOWED["workflows"] = set(ALLOWED)
ALLOWED["experiments"] = set(ALLOWED)
ALLOWED["bench"] = set(ALLOWED)
ALLOWED["cli"] = set(ALLOWED)
ALLOWED["__main__"] = {"cli"}
ALLOWED["__init__"] = {"losses", "workflows"}  # the public names

# Packages of others: all that a layer may import beside the standard library, or must not import.
ONLY_THESE_FOREIGN = {
    "losses": {"torch", "triton"},
    "config": {"yaml"},
    "strict_yaml": {"yaml"},
    "errors": set(),
}
NEVER_THESE_FOREIGN = {"report": {"torch", "torchvision"}, "metrics": {"torchvision"}}


def layer_of(module: str) -> str:
    """The layer of `rankdet.x.y`: "x"; of `rankdet` itself: "__init__"."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_modules(source: str, module: str, is_package: bool) -> Iterator[str]:
    """Every module named by an import anywhere in `source`, with its full name.

    `from rankdet import x` gives `rankdet.x`, whether x is a module or a name: a layer must not
    take a name of another layer through the package's front door either. Only `__version__` is
    free to all.
    """
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                ancestors = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*ancestors, base]) if base else ".".join(ancestors)
            if base != "rankdet":
                yield base
            else:
                names = (alias.name for alias in node.names)
                yield from (f"rankdet.{name}" for name in names if name != "__version__")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (a.value for a in node.args[:1] if isinstance(a, ast.Constant))


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    """What the imports of one module break, in words; empty if nothing."""
    layer = layer_of(module)
    if layer not in ALLOWED:
        return [f"{module}: the layer {layer!r} is not in the table"]
    found = []
    for name in imported_modules(source, module, is_package):
        top = name.split(".")[0]
        if top == "rankdet":
            target = layer_of(name)
            if target != layer and target not in ALLOWED[layer]:
                found.append(f"{module} imports {name}: {layer} may import {ALLOWED[layer]}")
        elif top not in sys.stdlib_module_names and (
            top not in ONLY_THESE_FOREIGN.get(layer, {top})
            or top in NEVER_THESE_FOREIGN.get(layer, set())
        ):
            found.append(f"{module} imports {name}: not for the layer {layer}")
    return found


def modules() -> list[tuple[str, Path]]:
    """The full name and the file of every module of the package."""
    pairs = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        pairs.append((".".join(("rankdet", *parts)), path))
    return pairs


@pytest.mark.parametrize(("module", "path"), modules(), ids=[name for name, _ in modules()])
def test_imports_point_down(module: str, path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert violations(source, module, is_package=path.name == "__init__.py") == []


def test_the_package_was_found() -> None:
    names = {name for name, _ in modules()}
    assert {"rankdet", "rankdet.cli", "rankdet.losses"} <= names


def test_every_folder_is_a_layer_and_a_package() -> None:
    folders = [path for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))]
    assert {path.name for path in folders} <= set(ALLOWED)
    assert [path.name for path in folders if not (path / "__init__.py").exists()] == []


def test_the_table_has_no_cycle() -> None:
    seen: set[str] = set()
    for layer, below in ALLOWED.items():
        if layer != "__init__":
            assert below <= seen, f"{layer} imports a layer that stands above it"
        seen.add(layer)


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import rankdet.data", "rankdet.losses.ap"),
        ("import rankdet.data.reading.voc as voc", "rankdet.losses.ap"),
        ("from rankdet.detectors.retinanet import RetinaNet", "rankdet.losses.ap"),
        ("from rankdet import detectors", "rankdet.losses.ap"),
        ("from rankdet import ap_loss", "rankdet.detectors.criterion"),
        ("import rankdet", "rankdet.detectors.criterion"),
        ("from ..cli import main", "rankdet.losses.ap"),
        ("from .. import engine", "rankdet.losses.ap"),
        ("from .cli import main", "rankdet.errors"),
        ("def late():\n    from rankdet.bench import losses", "rankdet.losses.ap"),
        ("if TYPE_CHECKING:\n    from rankdet.config import Config", "rankdet.engine.train"),
        ("importlib.import_module('rankdet.cli')", "rankdet.losses.ap"),
        ("import rankdet.losses", "rankdet.unheard_of.module"),
        ("", "rankdet.unheard_of"),
        ("import numpy", "rankdet.losses.ap"),
        ("from torchvision.ops import nms", "rankdet.losses.ap"),
        ("import torch", "rankdet.report.page"),
    ],
)
def test_the_check_finds_a_violation(source: str, module: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("source", "module", "is_package"),
    [
        ("from rankdet.losses import ap_loss", "rankdet.detectors.criterion", False),
        ("from rankdet.losses.labels import IGNORED", "rankdet.losses.ap", False),
        ("from .labels import IGNORED", "rankdet.losses.ap", False),
        ("from . import labels", "rankdet.losses.ap", False),
        ("from .labels import IGNORED", "rankdet.losses", True),
        ("from ..losses import ap_loss", "rankdet.detectors", True),
        ("from rankdet import __version__", "rankdet.engine.records", False),
        ("import torch, math\nimport triton.language as tl", "rankdet.losses.ap_triton", False),
        ("import numpy", "rankdet.report.page", False),
    ],
)
def test_the_check_leaves_good_imports_alone(source: str, module: str, is_package: bool) -> None:
    assert violations(source, module, is_package) == []
