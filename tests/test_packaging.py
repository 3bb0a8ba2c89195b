"""What is shipped, and what must never be written into a file of this project."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import rankdet

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")

# In two halves, so that this file does not hold what it forbids.
REGISTRY_HOSTS = re.compile(
    "|".join(("pypi" r"\.org", "python" r"hosted\.org", "download\\.pytorch", "conda" r"\.org"))
)
MACHINE_PATHS = re.compile(r"(?<![\w.~*])/(?:home|root|Users|work|tmp|opt|mnt|data)/\w")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that hatchling makes of the project."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_holds_the_package_types_and_licence(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {"rankdet/py.typed", "rankdet/data/checking/view.html.jinja"} <= source
    assert {f"rankdet/report/templates/{name}" for name in ("page.html", "style.css")} <= source
    assert source <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} == {
        "rankdet",
        f"rankdet-{rankdet.__version__}.dist-info",
    }


def test_the_wheel_holds_the_metadata(wheel: zipfile.ZipFile) -> None:
    name = f"rankdet-{rankdet.__version__}.dist-info/METADATA"
    text = wheel.read(name).decode()
    assert "License-Expression: Apache-2.0" in text
    assert "Requires-Python: >=3.11" in text


def test_one_version_everywhere() -> None:
    assert PROJECT["project"]["version"] == rankdet.__version__
    assert f"## [{rankdet.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    try:
        installed = metadata.version("rankdet")
    except metadata.PackageNotFoundError:
        pytest.skip("rankdet is on the path but not installed")
    assert installed == rankdet.__version__


def locked_requirements() -> dict[str, list[str]]:
    """Per entry of the lock, its lines: the pin first, then the hashes."""
    entries: dict[str, list[str]] = {}
    for line in LOCK.splitlines():
        if not line.startswith(" "):
            pin = line
            assert pin not in entries
            entries[pin] = []
        else:
            entries[pin].append(line.strip(" \\"))
    return entries


def test_every_locked_requirement_is_pinned_and_hashed() -> None:
    entries = locked_requirements()
    assert len(entries) > 20
    for pin, hashes in entries.items():
        assert re.match(r"[a-z0-9-]+==[\w.+]+( ;.*)? \\$", pin), pin
        assert hashes, pin
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line) for line in hashes), pin


def test_every_direct_dependency_is_locked() -> None:
    locked = {re.split("==", pin)[0] for pin in locked_requirements()}
    groups = PROJECT["dependency-groups"]
    assert {"include-group": "docs"} in groups["dev"]
    own = [name for name in groups["dev"] if isinstance(name, str)]
    direct = PROJECT["project"]["dependencies"] + own + groups["docs"]
    assert {re.split(r"[>=<~! \[]", name)[0] for name in direct} <= locked


def test_the_lock_names_no_host() -> None:
    assert re.search(r"://|--(extra-)?index-url|--find-links", LOCK) is None


def test_the_lock_serves_every_supported_python() -> None:
    """No entry is for newer interpreters only without a sibling for the oldest one."""
    pins = list(locked_requirements())
    newer_only = [pin.split("==")[0] for pin in pins if "python_full_version >= '3.12'" in pin]
    for name in newer_only:
        siblings = [pin for pin in pins if pin.startswith(f"{name}==")]
        assert any("python_full_version < '3.12'" in pin for pin in siblings), name


def committed_texts() -> dict[str, str]:
    """Name and text of every file that git keeps, or would keep, except binary ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    texts = {}
    for name in filter(None, result.stdout.decode().split("\0")):
        path = ROOT / name
        content = path.read_bytes() if path.is_file() else b""
        if b"\0" not in content:
            texts[name] = content.decode("utf-8")
    return texts


def test_no_committed_file_names_a_registry_or_a_machine() -> None:
    texts = committed_texts()
    assert "pyproject.toml" in texts
    found = [
        f"{name}: {match.group()}"
        for name, text in texts.items()
        for pattern in (REGISTRY_HOSTS, MACHINE_PATHS)
        for match in pattern.finditer(text)
    ]
    assert found == []


@pytest.mark.parametrize("parts", [("https://pypi", ".org/simple"), ("files.python", "hosted.org")])
def test_the_pattern_finds_a_registry(parts: tuple[str, str]) -> None:
    assert REGISTRY_HOSTS.search("".join(parts))


@pytest.mark.parametrize("parts", [("/", "home/ann/x"), ("see '/", "tmp/y'"), ("=/", "work/main")])
def test_the_pattern_finds_a_machine_path(parts: tuple[str, str]) -> None:
    assert MACHINE_PATHS.search("".join(parts))


@pytest.mark.parametrize(
    "text", ["runs/tmp/x", "../data/voc", "~/data/voc", "a / b", "/usr/bin/env"]
)
def test_the_pattern_leaves_other_paths_alone(text: str) -> None:
    assert MACHINE_PATHS.search(text) is None
