"""Where numbers come from: command, commit, versions, machine and time, stored beside them."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

_PACKAGES = (
    *("rankdet", "torchvision", "numpy", "pillow", "pyyaml", "matplotlib"),
    *("safetensors", "faster-coco-eval"),
)


def provenance(**settings: Any) -> dict[str, Any]:
    """How a result came about, and the settings that are given, ready for JSON."""
    import torch  # here, because the command line prints its help without torch

    return {
        **settings,
        "command": _command(),
        "commit": _commit(),
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),  # with the build, such as +cpu
            **{package: _version(package) for package in _PACKAGES},
        },
        "machine": _machine(),
        "threads": torch.get_num_threads(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _command() -> str:
    """The command line as one could type it again; of paths to the program, the name."""
    program = Path(sys.argv[0]).name
    words = ["python", "-m", "rankdet"] if program == "__main__.py" else [program]
    return shlex.join([*words, *sys.argv[1:]])


def _commit() -> str | None:
    """The commit of the source tree, with "+changes" if it was edited; None outside of git."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "--short=12", "HEAD")
        is_changed = bool(_git(here, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+changes" if is_changed else "")


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


def _machine() -> str:
    """The operating system, the processor's model and, if there is one, the accelerator's."""
    import torch

    processor = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    machine = f"{platform.system()} {platform.machine()}, {processor}"
    return machine + (f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None  # run from a source tree that was not installed
