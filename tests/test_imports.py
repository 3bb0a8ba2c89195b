"""What an import brings along, seen from a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

import rankdet


def loaded_by(code: str, packages: set[str]) -> set[str]:
    """Those of `packages` that are loaded after `code` ran in a new interpreter."""
    report = (
        "import sys; print('loaded:', *sorted(name for name in sys.modules if '.' not in name))"
    )
    result = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    return packages & set(result.stdout.rpartition("loaded:")[2].split())


def test_losses_need_torch_alone() -> None:
    others = {"torchvision", "matplotlib", "typer", "rich", "sklearn"}
    assert loaded_by("import rankdet.losses", others | {"torch"}) == {"torch"}


def test_the_package_does_not_import_torch() -> None:
    assert loaded_by("import rankdet", {"torch", "numpy", "typer"}) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["check", "--help"],
        ["bench"],
        ["train", "--help"],
        ["train", "synthetic", "--loss", "unheard_of"],
        ["evaluate", "--help"],
        ["predict", "--help"],
        ["recipes"],
        ["recipes", "voc"],
        ["reproduce", "list"],
        ["reproduce", "delta", "--help"],
        ["reproduce", "delta", "--scale", "paper"],  # says what to download
    ],
)
def test_the_command_line_answers_without_torch(arguments: list[str]) -> None:
    code = f"""
import sys
from rankdet.cli import main
sys.argv = ["rankdet", *{arguments}]
try:
    main()
except SystemExit:
    pass
else:
    raise AssertionError("the command did not end by itself")
"""
    heavy = {"torch", "torchvision", "matplotlib", "numpy", "typer"}
    assert loaded_by(code, heavy) == {"typer"}


def test_nothing_needs_a_torch_that_was_built_for_several_processes() -> None:
    code = """
import sys

class Strip:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.distributed":  # the first of torch's modules to look for these
            own = sys.modules["torch._C"]
            for part in dir(own):
                if part.startswith(("_c10d_", "_rpc_", "_dist_autograd_", "_faulty_agent_")):
                    delattr(own, part)
        if name == "torch._C._distributed_c10d":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Strip())
sys.modules.pop("torch._C._distributed_c10d", None)
import torch
assert not torch.distributed.is_available()
import rankdet.workflows.evaluate, rankdet.workflows.predict, rankdet.workflows.train
from rankdet.engine.distributed import joined_processes
with joined_processes("cpu") as processes:
    assert processes.is_alone
import os
from rankdet.errors import ConfigError
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
try:
    with joined_processes("cpu"):
        raise AssertionError("they have met")
except ConfigError as error:
    assert "has no torch.distributed" in str(error), error
"""
    assert loaded_by(code, {"torch"}) == {"torch"}


def test_the_helper_sees_what_is_loaded() -> None:
    assert loaded_by("import json", {"json", "typer"}) == {"json"}


@pytest.mark.parametrize("name", rankdet.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(rankdet, name) is not None
    assert name in dir(rankdet)


def test_public_names_are_those_of_losses() -> None:
    from rankdet import losses

    assert rankdet.losses is losses
    assert rankdet.ap_loss is losses.ap_loss
    assert rankdet.BACKGROUND == -1
    assert rankdet.IGNORED == -2


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'ap_los'"):
        rankdet.ap_los  # noqa: B018
