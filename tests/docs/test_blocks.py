"""Every block of code in README.md and docs/ is run, in order, in a folder of the page's own."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from defusedxml import ElementTree
from PIL import Image
from torch import nn
from torch.distributed.run import get_args_parser

from rankdet.cli import app
from rankdet.config import apply_settings, read_config, to_dict
from rankdet.data.synthetic.dataset import SyntheticDataset
from rankdet.data.write import write_dataset
from rankdet.errors import RankdetError
from rankdet.recipes import RECIPES, recipe

# Commands that are not run, and why; what follows a rankdet in them is still checked.
NOT_RUN = {
    "pip": "would change the environment; its extras are compared with pyproject.toml",
    "git": "needs a network",
    "cd": "the test is in a folder of its own",
    "source": "there is no environment to enter",
    "torchrun": "several processes; tests/workflows has those; the command behind -m is parsed",
    "srun": "there is no cluster; torchrun's and rankdet's part is parsed",
    "tensorboard": "a server that does not end",
    "rankdet bench": "minutes; tests/bench runs small ones; the options are parsed",
    "rankdet reproduce theory": "40 seconds; tests/experiments runs its parts; parsed",
    "rankdet reproduce ranking": "10 seconds to make its data; tests/experiments runs it; parsed",
}
# Words of blocks in Python that run only where it is there, and why; elsewhere they are compiled.
NEEDED = {
    'device="cuda"': (
        "a CUDA device; tests/losses/test_cuda.py has graphs",
        torch.cuda.is_available,
    ),
    "init_process_group": ("several processes; test_distributed.py starts them", lambda: False),
    "import ray": ("a Ray cluster; the page says that it was not run", lambda: False),
}
# Options that the test adds: the same work, small. The last one given counts.
SMALL_TRAIN = "--device cpu --workers 0 --weights none --backbone small --size 64 --batch-size 2"
SMALLER = {
    "check": "--workers 0",
    "train": f"{SMALL_TRAIN} --epochs 1 --set training.warmup_steps=1",
    "train synthetic": "--train-split train:4 --val-split val:2",
    "train --resume": "--device cpu --workers 0",
    "evaluate": "--device cpu --workers 0",
    "predict": "--device cpu",
    "robustness": "--device cpu --workers 0 --limit 2 --patch-steps 1 --deepfool-objects 1",
    "demo": "--device cpu",
    "synth": "--train 2 --val 1",
}
# The recipe of `rankdet demo` is replaced: that command has no options for less work.
TINY_DEMO = (
    *("data.train_split=train:4", "data.val_split=val:2", "data.size=64"),
    *("training.epochs=1", "training.batch_size=4", "evaluation.fixed_size=64"),
)
LANGUAGES = ("python", "bash", "yaml", "json", "xml", "text")


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages speak of: data sets, two trained runs, and pictures."""
    folder = tmp_path_factory.mktemp("example")
    make_data(folder)
    make_runs(folder)
    dataset = SyntheticDataset("val", 2, size=64)
    (folder / "photos").mkdir()
    for index, name in enumerate(("a.jpg", "b.jpg")):
        picture = Image.fromarray(dataset.image(index).permute(1, 2, 0).numpy())
        picture.save(folder / name)
        picture.save(folder / "photos" / name)
    return folder


def make_data(folder: Path) -> None:
    def images(split: str, count: int, seed: int = 0) -> SyntheticDataset:
        return SyntheticDataset(split, count, seed=seed, size=64)

    for name in ("DATA", "yolo"):
        write_dataset({"train": images("train", 4), "val": images("val", 2)}, folder / name, "yolo")
    coco = {"train2017": images("train", 4), "val2017": images("val", 2)}
    write_dataset(coco, folder / "coco", "coco")
    for year in (2007, 2012):
        voc = folder / "VOCdevkit" / f"VOC{year}"
        parts = {"train": images("train", 2, year), "val": images("val", 2, year)}
        write_dataset(parts | {"test": images("val", 2, year + 1)}, voc, "voc")
        lists = voc / "ImageSets" / "Main"
        both = [(lists / f"{part}.txt").read_text() for part in ("train", "val")]
        (lists / "trainval.txt").write_text("".join(both))


def make_runs(folder: Path) -> None:
    from rankdet.workflows.train import train

    for name, loss in (("mine", "ap"), ("focal", "focal")):
        config = apply_settings(
            recipe("small"),
            [
                *("data.path=DATA", "data.train_split=train", "data.val_split=val"),
                *("data.size=64", "data.workers=0", "evaluation.fixed_size=64"),
                *("training.batch_size=4", "training.epochs=1", f"loss.name={loss}"),
            ],
        )
        with contextlib.chdir(folder):
            train(folder / "runs" / name, make_config=lambda stored: config, device="cpu")  # noqa: B023


@pytest.fixture
def folder(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example, copied for one page, as the working folder; the demo is tiny."""
    tiny = apply_settings(recipe("demo"), TINY_DEMO)
    monkeypatch.setitem(RECIPES, "demo", lambda: tiny)
    shutil.copytree(example, tmp_path / "page")
    monkeypatch.chdir(tmp_path / "page")
    return tmp_path / "page"


def test_blocks_are_fenced_and_name_their_language(page: Any) -> None:
    for block in page.blocks:
        place = f"{page.name}:{block.line}"
        assert block.is_fenced, f"{place}: code that is indented; put it between ``` lines"
        assert block.language in LANGUAGES, f"{place}: {block.language!r} is none of {LANGUAGES}"


def test_code_on_the_page_runs(page: Any, folder: Path, root: Path) -> None:
    names = starting_names()
    for block in page.blocks:
        try:
            if block.language == "python":
                run_python(block.text, names)
            elif block.language == "bash":
                for line in commands(block.text):
                    run_command(line, root)
            else:
                read_data(block.language, block.text, folder)
        except (Exception, SystemExit) as error:
            raise AssertionError(f"{page.name}:{block.line}: {error!r}") from error


def starting_names() -> dict[str, Any]:
    """What stands for the reader's own tensors."""
    torch.manual_seed(0)
    return {
        "logits": torch.randn(2, 30, 4, requires_grad=True),
        "targets": (torch.rand(2, 30, 4) < 0.1).float(),
        "labels": torch.randint(-2, 4, (2, 30)),
        "__name__": "__main__",
    }


def run_python(code: str, names: dict[str, Any]) -> None:
    compiled = compile(code, "block", "exec")
    if not all(is_there() for word, (_, is_there) in NEEDED.items() if word in code):
        return
    exec(compiled, names)
    if ".backward()" in code:
        assert any(gradients(names)), "backward() has left no gradient"


def gradients(names: dict[str, Any]) -> Iterator[bool]:
    """For each tensor with a gradient, whether it is one: finite, and not 0 everywhere."""
    for value in names.values():
        parameters = [value] if isinstance(value, torch.Tensor) and value.is_leaf else []
        if isinstance(value, nn.Module):
            parameters = list(value.parameters())
        for parameter in parameters:
            if parameter.grad is not None:
                yield bool(parameter.grad.isfinite().all() and parameter.grad.any())


def commands(text: str) -> list[list[str]]:
    """The words of each command; a backslash continues a line, a # begins a comment."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def run_command(words: list[str], root: Path) -> None:
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words[:3] == ["python", "-m", "rankdet"]:
        words = words[2:]
    known = [start for start in NOT_RUN if words[: len(start.split())] == start.split()]
    if words[0] == "make":
        subprocess.run(["make", "-n", *words[1:]], cwd=root, check=True, capture_output=True)
    elif known:
        check_command(words, root)
    elif words[0] == "rankdet":
        run_rankdet(words[1:])
    else:
        raise AssertionError(f"{words[0]} is neither run nor in the table of what is not run")


def check_command(words: list[str], root: Path) -> None:
    """Whether a command that is not run could be."""
    if words[0] in ("torchrun", "srun"):
        torchrun = get_args_parser().parse_args(words[words.index("torchrun") + 1 :])
        words = [torchrun.training_script, *torchrun.training_script_args]
        assert torchrun.module == (words[0] == "rankdet")
    if words[0] == "rankdet":
        parse_rankdet(words[1:])
    for extra in re.findall(r"\[(\w+)\]", " ".join(words)) if words[0] == "pip" else ():
        project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
        assert extra in project["optional-dependencies"], f"there is no extra {extra}"


def parse_rankdet(words: list[str]) -> None:
    """Read the options as the command line does, and do nothing."""
    command = typer.main.get_command(app)

    def silence(part: Any) -> None:
        part.callback = lambda **values: None
        for inner in getattr(part, "commands", {}).values():
            silence(inner)

    silence(command)
    command.main(words, prog_name="rankdet", standalone_mode=False)


def run_rankdet(words: list[str]) -> None:
    """Run a command in this process, made small, with a `> FILE` at its end obeyed."""
    file = None
    if ">" in words:
        words, (file,) = words[: words.index(">")], words[words.index(">") + 1 :]
    parse_rankdet(words)  # as it is written; what follows is what the test makes of it
    small = [*words, *smaller(words)]
    print("$ rankdet", *small)
    if words[0] == "train" and "--resume" not in words and "--out" in words:
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
    with contextlib.ExitStack() as stack:
        if file is not None:
            opened = stack.enter_context(Path(file).open("w"))
            stack.enter_context(contextlib.redirect_stdout(opened))
        try:
            status = typer.main.get_command(app).main(
                small, prog_name="rankdet", standalone_mode=False
            )
        except RankdetError as error:
            raise AssertionError(f"rankdet {' '.join(small)}: {error}") from error
    assert not status, f"rankdet {' '.join(small)}: status {status}"


def smaller(words: list[str]) -> list[str]:
    """The options that make a command quick."""
    if words[0] == "train" and "--resume" in words:
        return SMALLER["train --resume"].split()
    keys = [key for key in SMALLER if all(part in words for part in key.split())]
    return " ".join(SMALLER[key] for key in keys if key != "train --resume").split()


def read_data(language: str, text: str, folder: Path) -> None:
    if language == "json":
        json.loads(text)
    elif language == "xml":
        ElementTree.fromstring(text)
    elif language == "yaml":
        file = folder / "block.yaml"
        file.write_text(text)
        if not re.search(r"^names:", text, re.MULTILINE):  # else a data.yaml of YOLO
            read_config(file)


def test_the_commands_that_are_not_run_are_none_that_could_be() -> None:
    for command, reason in NOT_RUN.items():
        assert reason
        assert command.split()[-1] not in SMALLER
    assert to_dict(recipe("small"))["detector"]["backbone"] == "small"
