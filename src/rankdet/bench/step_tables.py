"""The tables of `rankdet bench step`, for terminal and README, beside the bars it is held to."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

# The parts of a step, in the order of the tables; forward and backward of each loss together.
PARTS = (
    "class loss",
    "matching",
    "box loss",
    "network forward",
    "network backward",
    "optimiser and checks",
)
MOST_CLASS_LOSS = 0.02  # of the step, with AP-loss
MOST_MATCHING = 0.05  # matching, targets and box loss together, of the step
LEAST_SPEEDUP = {"reference": 1.5, "like ours": 1.1}

_LOSSES = {"ap": "AP-loss", "focal": "focal loss"}
_PEERS = {
    "reference": "as its reference script",
    "like ours": "compiled, channels last, bfloat16",
}


def shares(row: dict[str, Any]) -> dict[str, float]:
    """What each part is of the step, from 0 to 1.

    >>> shares({"parts": {"class loss": 1.0, "network forward": 3.0}})
    {'class loss': 0.25, 'network forward': 0.75}
    """
    total = sum(row["parts"].values())
    return {name: part / total for name, part in row["parts"].items()}


def matching_share(row: dict[str, Any]) -> float:
    """What matching, the targets and the box loss are together of the step."""
    return shares(row)["matching"] + shares(row)["box loss"]


def speedups(results: dict[str, Any]) -> dict[tuple[str, str, str], float]:
    """Images a second of our networks over torchvision's, by network, loss and peer."""
    return {
        (row["network"], row["loss"], peer["name"]): row["images_per_second"]
        / peer["images_per_second"]
        for row in results["ours"]
        for peer in results["torchvision"]
        if row["classes"] == 80
    }


def print_tables(results: dict[str, Any], console: Console, *, with_bars: bool = True) -> None:
    """Every number, and in red with its bar what misses the bar that it is held to."""
    title = (
        f"A training step: RetinaNet with {results['backbone']}, {results['images']} images of "
        f"{results['side']} x {results['side']}, {results['objects']} objects"
    )
    table = Table(title=title)
    table.add_column("anchors a place\nclasses\nloss", no_wrap=True)
    rows = results["ours"]
    for row in rows:
        names = (row["anchors_per_place"], row["classes"], row["loss"])
        table.add_column("\n".join(map(str, names)), justify="right")
    for name, key in (
        ("milliseconds", "milliseconds"),
        ("by the wall", "wall_milliseconds"),
        ("without loss", "without_loss_milliseconds"),
    ):
        table.add_row(name, *(f"{row[key]:.2f}" for row in rows))
    table.add_row("images a second", *(f"{row['images_per_second']:.0f}" for row in rows))
    for name in PARTS:
        bar = MOST_CLASS_LOSS if name == "class loss" and with_bars else None
        table.add_row(name, *(_share(row, shares(row)[name], bar) for row in rows))
    bar = MOST_CLASS_LOSS if with_bars else None
    table.add_row("class loss, device alone", *(_device_share(row, bar) for row in rows))
    bar = MOST_MATCHING if with_bars else None
    table.add_row("matching and boxes", *(_share(row, matching_share(row), bar) for row in rows))
    console.print(table)

    table = Table(title="torchvision's RetinaNet, 9 anchors a place, 80 classes")
    for name in ("", "ms", "by the wall", "images/s", "ours, 9 anchors", "ours, 6"):
        table.add_column(name, justify="right" if name else "left")
    faster = speedups(results)
    for peer in results["torchvision"]:
        name = peer["name"]
        bar = LEAST_SPEEDUP[name] if with_bars else None
        table.add_row(
            _PEERS[name],
            f"{peer['milliseconds']:.2f}",
            f"{peer['wall_milliseconds']:.2f}",
            f"{peer['images_per_second']:.0f}",
            _judged(faster["as torchvision's", "ap", name], bar, "{:.2f} x", at_least=True),
            f"{faster['ours', 'ap', name]:.2f} x",
        )
    console.print(table)
    for text in results["differences"]:
        console.print(f"- {text}")


def _device_share(row: dict[str, Any], bar: float | None) -> str:
    """What the class loss would be of the step if the device never waited for the host."""
    milliseconds = row.get("class_loss_on_device")  # older records have none
    return "-" if milliseconds is None else _share(row, milliseconds / row["milliseconds"], bar)


def _share(row: dict[str, Any], share: float, bar: float | None) -> str:
    """A share of the step in percent; AP-loss is held to the bars."""
    return _judged(100 * share, 100 * bar if bar and row["loss"] == "ap" else None, "{:.1f} %")


def _judged(value: float, bar: float | None, shape: str, at_least: bool = False) -> str:
    """The value, in red with its bar if it misses it."""
    shown = shape.format(value)
    is_met = bar is None or (value >= bar if at_least else value <= bar)
    sign = "≥" if at_least else "≤"
    return shown if is_met else f"[red]{shown} (not {sign} {bar:g})[/red]"


def markdown(record: dict[str, Any]) -> str:
    """The README's tables of a record that `rankdet bench step --json FILE` wrote."""
    lines = [
        "| anchors a place, classes, loss | ms a step | images/s | class loss, device alone | "
        + " | ".join(PARTS)
        + " |",
        "| --- |" + " --- |" * (3 + len(PARTS)),
    ]
    for row in record["ours"]:
        what = f"{row['anchors_per_place']}, {row['classes']}, {_LOSSES[row['loss']]}"
        numbers = [f"{row['wall_milliseconds']:.1f}", f"{row['images_per_second']:.0f}"]
        numbers.append(_device_share(row, None))
        numbers += [f"{100 * share:.1f} %" for share in shares(row).values()]
        lines.append(f"| {what} | " + " | ".join(numbers) + " |")
    lines += [
        "",
        "| torchvision's RetinaNet | images/s | ours, 9 anchors a place | ours, 6 |",
    ]
    lines.append("| --- | --- | --- | --- |")
    faster = speedups(record)
    for peer in record["torchvision"]:
        ratios = [
            f"{faster[network, 'ap', peer['name']]:.2f} x"
            for network in ("as torchvision's", "ours")
        ]
        cells = [_PEERS[peer["name"]], f"{peer['images_per_second']:.0f}", *ratios]
        lines.append("| " + " | ".join(cells) + " |")
    origin = record["provenance"]
    lines += [
        "",
        f"`{origin['command']}`, commit {origin['commit']}, seed {origin['seed']}, "
        f"torch {origin['versions']['torch']}, {origin['machine']}.",
    ]
    return "\n".join(lines)
