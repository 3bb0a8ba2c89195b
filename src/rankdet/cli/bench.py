"""`rankdet bench`: speed, memory and reliability, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankdet.cli.options import Seed, check_device

app = typer.Typer(help="Measure speed, memory and reliability.", no_args_is_help=True)


@app.command("losses")
def bench_losses(
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, a minute or two.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", dir_okay=False, help="Also write the table here.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    seed: Seed = 0,
) -> None:
    """Time and memory of the losses, forward and backward, next to sigmoid focal loss.

    On a CUDA device the losses are compared with float64 first, and a difference ends the command
    with status 1; then come times by events, the floor that the memory sets, and CUDA graphs.
    """
    check_device(device)
    _prepare_record(json_file)

    from rankdet.bench import losses

    losses.main(quick=quick, json_file=json_file, device=device, seed=seed)


@app.command("step")
def bench_step(
    quick: Annotated[
        bool, typer.Option("--quick", help="A small network, on a CPU too, in seconds.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", dir_okay=False, help="Also write the table here.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N.")] = None,
    seed: Seed = 0,
) -> None:
    """Time of a whole training step and of its parts, next to torchvision's RetinaNet."""
    device = device or ("cpu" if quick else "cuda")
    check_device(device)
    _prepare_record(json_file)

    from rankdet.bench import step

    step.main(quick=quick, json_file=json_file, device=device, seed=seed)


@app.command("reliability")
def bench_reliability(
    quick: Annotated[
        bool, typer.Option("--quick", help="Few files and few faults, some minutes.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", dir_okay=False, help="Also write the counts here.")
    ] = None,
    seed: Seed = 0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only this part: data, or one of the faults, as kill; a wrong name lists them. "
            "May be repeated.",
        ),
    ] = None,
) -> None:
    """Break things for real, and count how it ends: data files, checkpoints, disks, processes.

    Thousands of broken data files must be read or refused, never with a traceback. Then real
    trainings are killed and their files spoilt; each fault is also tried on a build without its
    protection, and must be seen to do harm there. The status is 1 if anything is not as it should.
    """
    _prepare_record(json_file)

    from rankdet.bench import reliability

    if not reliability.main(quick=quick, json_file=json_file, seed=seed, only=tuple(only or ())):
        raise typer.Exit(1)


@app.command("table")
def bench_table(
    record: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A --json FILE.")],
) -> None:
    """Print a record of `rankdet bench losses` or `step` as a table for a text in Markdown."""
    import json

    from rankdet.bench import step_tables, tables, tables_cuda
    from rankdet.errors import RankdetError

    try:
        content = json.loads(record.read_bytes())
        if "torchvision" in content:
            table = step_tables.markdown(content)
        elif "rows" in content:
            table = tables_cuda.markdown(content)
        else:
            table = tables.markdown(content)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RankdetError(
            f"{record}: expected a record that `rankdet bench losses` or `rankdet bench step` of "
            "this version wrote. Measure again with --json."
        ) from error
    typer.echo(table)


def _prepare_record(file: Path | None) -> None:
    """Let a wrong folder or a file of somebody else's show before the minutes of measuring."""
    from rankdet.output import refuse_foreign

    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        refuse_foreign(file, '"provenance": {')
