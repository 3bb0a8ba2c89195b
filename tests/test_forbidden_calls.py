"""Nothing in the package runs code that a file or a user brings: a check reads every module.

Forbidden are pickle and its relatives, eval and exec, unsafe YAML, shells, `torch.load` other than
with weights_only=True, and the collectives of torch.distributed that pickle. The check reads the
source: it sees imports under another name, imports inside functions, and `getattr` with a name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rankdet import strict_yaml
from rankdet.config import yaml_text

PACKAGE = Path(__file__).parent.parent / "src" / "rankdet"

# A module or name of others, with all below it.
FORBIDDEN = {
    **dict.fromkeys(
        ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"),
        "unpickling runs code",
    ),
    "multiprocessing.reduction": "it is pickle",
    "multiprocessing.managers": "it unpickles what comes through a socket",
    "multiprocessing.connection.Client": "it unpickles what comes through a socket",
    "multiprocessing.connection.Listener": "it unpickles what comes through a socket",
    "numpy.lib.format.read_array": "numpy.load without allow_pickle does",
    "torch.distributed.rpc": "it unpickles what comes through a socket",
    **dict.fromkeys(
        ("torch.hub.load", "torch.hub.load_state_dict_from_url", "torch.package", "torch.jit.load"),
        "it runs code of a file",
    ),
    **dict.fromkeys(
        ("builtins.eval", "builtins.exec", "builtins.compile", "builtins.__import__"),
        "it runs text",
    ),
    **dict.fromkeys(("runpy", "imp", "code", "codeop"), "it runs text or files"),
    "importlib.util.spec_from_file_location": "it runs a file",
    "importlib.machinery": "it runs files",
    **dict.fromkeys(
        (
            *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
            *("asyncio.create_subprocess_shell", "pty", "pipes"),
        ),
        "it goes through a shell",
    ),
    **dict.fromkeys(
        [
            f"yaml.{name}"
            for name in (
                *("load", "load_all", "full_load", "full_load_all"),
                *("unsafe_load", "unsafe_load_all", "Loader", "CLoader", "loader"),
                *("FullLoader", "UnsafeLoader", "CFullLoader", "CUnsafeLoader", "cyaml"),
                *("constructor.Constructor", "constructor.UnsafeConstructor"),
                "constructor.FullConstructor",
            )
        ],
        "only yaml.SafeLoader, yaml.CSafeLoader and yaml.safe_load build plain data alone",
    ),
}
# Names that are forbidden whatever they are attributes of: the object's type is not known here.
FORBIDDEN_ATTRIBUTES = {
    **dict.fromkeys(
        (
            *("all_gather_object", "gather_object", "broadcast_object_list"),
            *("scatter_object_list", "send_object_list", "recv_object_list"),
        ),
        "it pickles: send tensors",
    ),
    "read_pickle": "unpickling runs code",
    "ForkingPickler": "it is pickle",
    "__builtins__": "whatever it is good for is not needed here",
}
# Keywords of any call, and the only literal that they may be given.
ONLY_VALUE = {"shell": False, "allow_pickle": False, "weights_only": True}
# Its arguments must be seen: neither `**options`, nor what stands behind the first.
VISIBLE = ("torch.load", "numpy.load", "subprocess.")
# In a file, what is allowed there alone, and why.
EXCEPTIONS = {
    ("__init__.py", "importlib.import_module"): "the homes of public names, a table in the file",
    ("data/__init__.py", "importlib.import_module"): "the same",
    ("bench/faults/server.py", "importlib.import_module"): "a tuple of names in the file",
    ("bench/faults/patches.py", "importlib.import_module"): (
        "a child of the bench is told on its command line which functions of the bench to call"
    ),
    ("bench/faults/hostile.py", "torch.load"): (
        "a build that is broken on purpose, in a child: the bench must notice"
    ),
}


class Check(ast.NodeVisitor):
    """Collects what a module does that it must not: (the name, where and why in words)."""

    def __init__(self, tree: ast.AST) -> None:
        self.found: list[tuple[str, str]] = []
        self.meaning = dict(_imported(tree))  # of a name in this file: "p" -> "pickle"
        self.arguments: list[set[str]] = []  # of the functions around the current place
        self.called: set[ast.AST] = set()  # what stands before the parentheses of a call
        self.visit(tree)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._judge(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level:  # of ours
            return
        for alias in node.names:
            if alias.name == "*":
                self._add(node, f"{node.module}.*", "what it brings cannot be seen")
            self._judge(node, f"{node.module}.{alias.name}")

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        parts = node.args
        every = (*parts.posonlyargs, *parts.args, *parts.kwonlyargs, parts.vararg, parts.kwarg)
        self.arguments.append({argument.arg for argument in every if argument})
        self.generic_visit(node)
        self.arguments.pop()

    visit_AsyncFunctionDef = visit_FunctionDef
    visit_Lambda = visit_FunctionDef

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):  # not a field of a class that is called `compile`
            self._judge_use(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._judge_use(node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """`vars(os)["system"]` and `os.__dict__["system"]`."""
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            owner: ast.AST = node.value
            if isinstance(owner, ast.Call) and owner.args and self.name(owner.func) == "vars":
                owner = owner.args[0]
            elif isinstance(owner, ast.Attribute) and owner.attr == "__dict__":
                owner = owner.value
            elif self.name(owner) == "sys.modules":
                self._judge(node, node.slice.value)
            if owner is not node.value:
                self._judge(node, f"{self.name(owner)}.{node.slice.value}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.called.add(node.func)
        name = self.name(node.func)
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        for keyword, only in ONLY_VALUE.items():
            value = keywords.get(keyword)
            if value is not None and not (isinstance(value, ast.Constant) and value.value is only):
                self._add(node, f"{keyword}={ast.unparse(value)}", f"expected {keyword}={only}")
        if name == "torch.load" and "weights_only" not in keywords:
            self._add(node, name, "expected weights_only=True")
        if name.startswith(VISIBLE) and (None in keywords or len(node.args) > 1):
            self._add(node, name, "expected one argument without a name, and no **options")
        if name in ("builtins.getattr", "getattr") and len(node.args) > 1:
            self._judge_text(node, node.args[1], f"{self.name(node.args[0])}.")
        if name == "importlib.import_module" and not self._judge_text(node, node.args[0], ""):
            self._add(node, name, "expected the name of the module, written out")
        self.generic_visit(node)

    def name(self, node: ast.AST) -> str:
        """`np.lib.load` as "numpy.lib.load"; "" for anything but names with dots."""
        if isinstance(node, ast.Name):
            return self.meaning.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            owner = self.name(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        return ""

    def _judge_use(self, node: ast.Name | ast.Attribute) -> None:
        last = node.id if isinstance(node, ast.Name) else node.attr
        if last in FORBIDDEN_ATTRIBUTES:
            self._add(node, last, FORBIDDEN_ATTRIBUTES[last])
        name = self.name(node)
        if isinstance(node, ast.Name) and node.id not in self.meaning:
            if any(node.id in names for names in self.arguments):
                return  # an argument that is called like a function of Python's
            name = f"builtins.{name}"
        self._judge(node, name)
        if name == "torch.load" and node not in self.called:
            self._add(node, name, "expected a call, whose arguments can be seen")

    def _judge_text(self, node: ast.AST, text: ast.AST, prefix: str) -> bool:
        """Judge the name that a literal gives; whether it is one."""
        is_literal = isinstance(text, ast.Constant) and isinstance(text.value, str)
        if is_literal:
            self._judge(node, f"{prefix}{text.value}")  # type: ignore[attr-defined]
        return is_literal

    def _judge(self, node: ast.AST, name: str) -> None:
        for forbidden, reason in FORBIDDEN.items():
            if name == forbidden or name.startswith(f"{forbidden}."):
                self._add(node, name, reason)
        last = name.rpartition(".")[2]
        if last in FORBIDDEN_ATTRIBUTES and not isinstance(node, ast.Name | ast.Attribute):
            self._add(node, name, FORBIDDEN_ATTRIBUTES[last])

    def _add(self, node: ast.AST, what: str, reason: str) -> None:
        self.found.append((what, f"line {getattr(node, 'lineno', 0)}: {what}: {reason}"))


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(name in the file, what it stands for) of every import, wherever it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom):
            home = "rankdet." * bool(node.level) + (node.module or "")
            for alias in node.names:
                yield alias.asname or alias.name, f"{home}.{alias.name}"


def forbidden_calls(source: str) -> list[tuple[str, str]]:
    """What the source does that it must not, as (name, text); empty if nothing."""
    return Check(ast.parse(source)).found


# The package


def test_no_module_of_the_package_runs_what_it_is_given() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100, "the package is not where it should be"
    found, used = [], set()
    for file in files:
        name = file.relative_to(PACKAGE).as_posix()
        for what, text in forbidden_calls(file.read_text("utf-8")):
            used.add((name, what))
            if (name, what) not in EXCEPTIONS:
                found.append(f"{name}, {text}")
    assert not found, "\n".join(found)
    assert used == EXCEPTIONS.keys(), "an exception is not needed any more"


@pytest.mark.parametrize("name", ["__init__.py", "data/__init__.py"])
def test_public_names_are_imported_from_a_table_of_our_own_modules(name: str) -> None:
    tree = ast.parse((PACKAGE / name).read_text("utf-8"))
    tables = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target) == "_HOME"
    ]
    assert len(tables) == 1
    texts = [n.value for n in ast.walk(tables[0]) if isinstance(n, ast.Constant)]  # type: ignore[arg-type]
    assert any(str(text).startswith("rankdet.") for text in texts)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "importlib.import_module":
            argument = ast.unparse(call.args[0])
            assert argument == "_HOME[name]" or argument.startswith("'rankdet.")


@pytest.mark.parametrize("loader", [strict_yaml.StrictLoader, yaml_text._Loader])
def test_the_loaders_of_yaml_build_plain_data_only(loader: type) -> None:
    assert issubclass(loader, yaml.constructor.SafeConstructor)
    assert not issubclass(loader, yaml.constructor.FullConstructor)
    with pytest.raises(strict_yaml.Refused):
        strict_yaml.parse("!!python/object/apply:os.system [ls]", 8, loader)
    with pytest.raises(yaml.constructor.ConstructorError):  # without that check, too
        loader("!!python/object/apply:os.system [ls]").get_single_data()


# The check itself


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "import os, pickle",
        "from pickle import loads",
        "def late():\n    import pickle",
        "try:\n    import cPickle\nexcept ImportError:\n    pass",
        "import _pickle",
        "import dill",
        "import cloudpickle",
        "import shelve",
        "import marshal",
        "import joblib",
        "from multiprocessing.reduction import ForkingPickler",
        "from multiprocessing import reduction",
        "import multiprocessing.reduction",
        "import multiprocessing as m\nm.reduction.dumps",
        "from torch.multiprocessing.reductions import ForkingPickler",
        "import multiprocessing.managers",
        "from multiprocessing.connection import Listener",
        "import multiprocessing.connection as c\nc.Client(address)",
        "import torch.multiprocessing as m\nm.reductions.ForkingPickler.dumps(x)",
        "import pandas\npandas.read_pickle(file)",
        "from pandas import read_pickle",
        "eval(text)",
        "exec(text)",
        "x = eval",
        "list(map(eval, texts))",
        "compile(text, 'x', 'exec')",
        "__import__(name)",
        "__import__('pickle')",
        "from builtins import eval as e",
        "import builtins\nbuiltins.exec(text)",
        "import builtins as b\nb.eval(text)",
        "getattr(builtins, 'eval')(text)",
        "__builtins__['eval']",
        "def f(compile):\n    pass\ncompile(text, 'x', 'exec')",
        "import importlib\nimportlib.import_module(name)",
        "import importlib\nimportlib.import_module('pickle')",
        "from importlib import import_module as get\nget(name)",
        "from importlib.util import spec_from_file_location",
        "from importlib.machinery import SourceFileLoader",
        "import runpy",
        "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
        "import yaml as y\ny.unsafe_load(text)",
        "from yaml import full_load",
        "from yaml import load as read",
        "import yaml\nclass L(yaml.Loader): pass",
        "import yaml\nyaml.parse(text, Loader=yaml.UnsafeLoader)",
        "from yaml import CLoader",
        "from yaml.constructor import UnsafeConstructor",
        "import yaml\ngetattr(yaml, 'CLoader', yaml.SafeLoader)",
        "import subprocess\nsubprocess.run(command, shell=True)",
        "import subprocess\nsubprocess.run(command, shell=is_wanted)",
        "run(command, shell=1)",
        "import subprocess\nsubprocess.run(command, **options)",
        "import subprocess\nsubprocess.Popen(command, -1, *[None] * 6, True)",
        "import subprocess\nsubprocess.getoutput(command)",
        "import os\nos.system(command)",
        "import os as o\no.popen(command)",
        "from os import system as s",
        "import os\ngetattr(os, 'system')(command)",
        "import os\nvars(os)['system'](command)",
        "import os\nos.__dict__['popen'](command)",
        "import os\nx = os.system",
        "import sys\nsys.modules['pickle'].loads(data)",
        "import asyncio\nasyncio.create_subprocess_shell(command)",
        "from os import *",
        "import torch\ntorch.load(file)",
        "import torch as t\nt.load(file, map_location='cpu')",
        "from torch import load\nload(file)",
        "import torch\ntorch.load(file, weights_only=False)",
        "import torch\ntorch.load(file, weights_only=is_safe)",
        "import torch\ntorch.load(file, weights_only=1)",
        "import torch\ntorch.load(file, **options, weights_only=True)",
        "import torch\nread = torch.load",
        "import functools, torch\nfunctools.partial(torch.load, weights_only=True)",
        "import torch\ngetattr(torch.hub, 'load')",
        "from torch.hub import load_state_dict_from_url",
        "import torch\ntorch.jit.load(file)",
        "import numpy as np\nnp.load(file, allow_pickle=True)",
        "import numpy as np\nnp.load(file, None, True)",
        "import numpy as np\nnp.save(file, x, allow_pickle=is_wanted)",
        "import torch.distributed as dist\ndist.all_gather_object(out, x)",
        "from torch.distributed import broadcast_object_list as send",
        "import torch\ntorch.distributed.gather_object(x)",
        "import torch\ngetattr(torch.distributed, 'scatter_object_list')",
        "from torch.distributed import rpc",
    ],
)
def test_the_check_finds(source: str) -> None:
    assert forbidden_calls(source)


@pytest.mark.parametrize(
    "source",
    [
        "detector.eval()",
        "def train(compile: bool = False):\n    return compile or None",
        "class Settings:\n    compile: bool = False",
        "f = lambda exec: exec + 1",
        "import re\nre.compile('x')",
        "import torch\ntorch.compile(network)",
        "detector.backbone.compile()",
        "import yaml\nyaml.safe_load(text)",
        "import yaml\ngetattr(yaml, 'CSafeLoader', yaml.SafeLoader)",
        "import yaml\nyaml.parse(text, Loader=loader_class)",
        "import yaml\nyaml.dump(x, Dumper=yaml.SafeDumper)",
        "import json\njson.loads(text)",
        "import subprocess\nsubprocess.run(['git', 'log'], check=True, shell=False)",
        "import os\nos.kill(1, 9)\nos.environ['system']",
        "import platform\nplatform.system()",
        "import torch\ntorch.load(file, map_location='cpu', weights_only=True)",
        "import torch\ntorch.hub.download_url_to_file(address, file)",
        "import safetensors.torch\nsafetensors.torch.load(data)",
        "import numpy as np\nnp.load(file, mmap_mode='r', allow_pickle=False)",
        "import torch.distributed as dist\ndist.all_reduce(x)\ndist.broadcast(x, 0)",
        "import multiprocessing.connection\nmultiprocessing.connection.wait([x])",
        "from multiprocessing.connection import Connection, wait",
        "import importlib\nimportlib.import_module('rankdet.losses')",
        "from importlib.util import find_spec",
        "from importlib.resources import files",
        "from .pickle import x\nx(1)",
        "text = 'pickle.loads, eval(x)'  # exec",
        "import os\ngetattr(os, name)",
    ],
)
def test_the_check_leaves_good_code_alone(source: str) -> None:
    assert forbidden_calls(source) == []
