"""The tables of the bench, for terminal and README, beside the bars that they are held to."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rankdet.bench.problems import REGIMES

# What we hold ourselves to: cost against focal loss, growth of time, memory against the logits.
MOST_COST = {"initial": 1.0, "half-trained": 2.0, "trained": 1.0}
MOST_GROWTH_WITH_POSITIVES = {"initial": 1.3, "half-trained": 1.6, "trained": 1.3}
MOST_GROWTH_WITH_NEGATIVES = 9.0
MOST_MEMORY = 1.5
LEAST_SPEEDUP = 30.0


def print_tables(results: dict[str, Any], console: Console) -> None:
    """Every number beside the bar that it is held to."""
    columns = ("scores are", "positives", "AP-loss", "focal", "ratio", "at most")
    table = Table(*columns, title=f"{results['scores'] / 1e6:.1f} M scores")
    for row in results["cost"]:
        table.add_row(
            row["regime"],
            f"{row['positives']:,}",
            f"{row['milliseconds']:.1f} ms",
            f"{row['yardstick_milliseconds']:.1f} ms",
            _judged(row["ratio"], MOST_COST[row["regime"]]),
            f"{MOST_COST[row['regime']]:.1f}",
        )
    console.print(table)

    table = Table("half-trained scores", "time", "ratio to focal")
    for name, row in results["others"].items():
        table.add_row(name, f"{row['milliseconds']:.1f} ms", f"{row['ratio']:.2f}")
    console.print(table)

    table = Table("AP-loss", *REGIMES)
    growths, memory = results["growth"], results["memory"]
    table.add_row(
        "time, 8 x the positives",
        *(_judged(row["positives"], MOST_GROWTH_WITH_POSITIVES[row["regime"]]) for row in growths),
    )
    table.add_row(
        "time, 8 x the anchors",
        *(_judged(row["negatives"], MOST_GROWTH_WITH_NEGATIVES) for row in growths),
    )
    speedups = [row["ratio"] for row in results["reference"].values()]
    table.add_row(
        "the loop of Algorithm 1 / AP-loss",
        *(_judged(speedup, LEAST_SPEEDUP, at_least=True) for speedup in speedups),
    )
    table.add_row(
        "extra memory / logits", *(_judged(row["ap_loss"], MOST_MEMORY) for row in memory)
    )
    table.add_row(
        "extra memory of focal / logits", *(_judged(row["focal"], None) for row in memory)
    )
    console.print(table)


def _judged(value: float | None, bar: float | None, at_least: bool = False) -> str:
    """The value, in red with its bar if it misses it."""
    if value is None:
        return "n/a"
    shown = f"{value:.0f}" if value >= 100 else f"{value:.2f}"
    if bar is None:
        return shown
    is_met = value >= bar if at_least else value <= bar
    sign = "≥" if at_least else "≤"
    return shown if is_met else f"[red]{shown} (not {sign} {bar:g})[/red]"


def markdown(record: dict[str, Any]) -> str:
    """The README's table of a record that `rankdet bench losses --json FILE` wrote."""
    origin = record["provenance"]
    lines = [
        f"| {record['scores'] / 1e6:.1f} M scores | " + " | ".join(REGIMES) + " |",
        "| --- |" + " --- |" * len(REGIMES),
    ]

    def add(name: str, values: list[float | None], unit: str = " x") -> None:
        lines.append(f"| {name} | " + " | ".join(_number(value, unit) for value in values) + " |")

    for positives in dict.fromkeys(row["positives"] for row in record["cost"]):
        rows = [row for row in record["cost"] if row["positives"] == positives]
        add(f"AP-loss / focal loss, {positives:,} positives", [row["ratio"] for row in rows])
    references = record["reference"].values()
    add("the loop of Algorithm 1 / AP-loss", [row["ratio"] for row in references])
    add("time with 8 x the positives", [row["positives"] for row in record["growth"]])
    add("time with 8 x the anchors", [row["negatives"] for row in record["growth"]])
    add("extra memory of AP-loss / logits", [row["ap_loss"] for row in record["memory"]])
    add("extra memory of focal loss / logits", [row["focal"] for row in record["memory"]])
    versions = origin["versions"]
    lines += [
        "",
        f"`{origin['command']}`, commit {origin['commit']}, seed {origin['seed']}, "
        f"{origin['threads']} threads, torch {versions['torch']}, {origin['machine']}.",
    ]
    return "\n".join(lines)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "n/a"
    return f"{value:.0f}{unit}" if value >= 10 else f"{value:.2f}{unit}"


if __name__ == "__main__":  # python -m rankdet.bench.tables results/losses-cpu.json
    print(markdown(json.loads(Path(sys.argv[1]).read_text())))
