"""The command `rankdet`: reads the options, checks them, and calls the module that does the work.

Everything that needs torch is imported inside the functions: `rankdet --help` answers at once.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from rankdet import __version__
from rankdet.cli import bench, data, demo, report, reproduce, robustness, running, training
from rankdet.cli.options import INTERRUPTED, Format
from rankdet.cli.reproduce import EXPERIMENTS
from rankdet.errors import ConfigError, RankdetError

__all__ = ["EXPERIMENTS", "Format", "app", "main"]

app = typer.Typer(
    name="rankdet",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _help(command: Callable[..., None]) -> str:
    """The command's docstring, each paragraph one line: the terminal breaks it where it must."""
    paragraphs = (inspect.getdoc(command) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


# In the order in which `rankdet --help` names them.
for _command in (
    demo.demo,
    data.check,
    data.view,
    data.synth,
    training.train,
    running.evaluate,
    running.predict,
    robustness.robustness,
    report.report,
    training.recipes,
):
    app.command(help=_help(_command))(_command)
app.add_typer(bench.app, name="bench")
app.add_typer(reproduce.app, name="reproduce")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"rankdet {__version__}")
        raise typer.Exit


def _refuse_several_processes(command: str | None) -> None:
    """Under torchrun each process would do all of it, and write the same files."""
    num_processes = os.environ.get("WORLD_SIZE", "1")
    if command != "train" and "RANK" in os.environ and num_processes != "1":
        raise ConfigError(
            f"WORLD_SIZE = {num_processes}: `rankdet {command}` runs in one process. "
            "Start it without torchrun; only `rankdet train` is for several processes."
        )


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Ranking losses for object detection."""
    _refuse_several_processes(context.invoked_subcommand)


def _refuse_empty_words(words: list[str]) -> None:
    """ConfigError if there is one: as a path it would mean this folder."""
    if "" in words:
        place = words.index("")
        before = f" after {words[place - 1]}" if place else ""
        raise ConfigError(
            f"word {place + 1} of the command{before} is empty. Give a value (a variable of the "
            "shell may not be set), or leave it out."
        )


def _keep_this_folder_out_of_imports() -> None:
    """For the processes that this one starts: workers, and trainings of an experiment.

    Python would look for modules in the working folder first, where a queue.py of the user's is not
    the module that Python itself means. The command `rankdet` does not look there, and `python -m
    rankdet` only for the package itself; so do its processes then.
    """
    with suppress(FileNotFoundError):  # the folder was deleted
        if not {"", str(Path.cwd())} & set(sys.path):
            os.environ["PYTHONSAFEPATH"] = "1"


def main() -> None:
    """Run the command line; a mistake in the data, or what the system refuses, is one line."""
    for name in ("stdout", "stderr"):  # closed before the start, as by `>&-`: nobody reads it
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - until the end
    for stream in (sys.stdout, sys.stderr):  # names that the terminal has no characters for
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    os.environ.pop("MPLBACKEND", None)  # a notebook's, which may not be installed here
    try:
        _keep_this_folder_out_of_imports()
        _refuse_empty_words(sys.argv[1:])
        app()
    except (RankdetError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:  # before typer listens for it; nothing has begun
        sys.exit(INTERRUPTED)
