"""The tables of the bench, for terminal and README, beside the bars that they are held to."""

from __future__ import annotations

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


NAMES = {
    "ap_loss": "AP-loss",
    "binary_ap_loss": "AP-loss (dense)",
    "focal": "focal loss",
    "auc_loss": "AUC-loss",
    "focal_loss": "our focal loss",
    "ghm_loss": "GHM-C",
    "dr_loss": "DR loss",
    "hinge_ap_loss": "hinge AP",
    "copy": "a copy of the logits",
}


def print_tables(results: dict[str, Any], console: Console, *, with_bars: bool = True) -> None:
    """Every number, and in red with its bar what misses the bar that it is held to."""
    table = Table(title=f"{results['scores'] / 1e6:.1f} M scores, forward + backward")
    for column in ("", "scores are", "positives", "time", "focal", "ratio", "quartiles"):
        table.add_column(column, no_wrap=column in ("time", "focal", "ratio", "quartiles"))
    for row in results["cost"]:
        bar = MOST_COST[row["regime"]] if row["loss"] == "ap_loss" and with_bars else None
        table.add_row(
            NAMES[row["loss"]],
            row["regime"],
            f"{row['positives']:,}",
            f"{row['milliseconds']:.0f} ms",
            f"{row['yardstick_milliseconds']:.0f} ms",
            _judged(row["ratio"], bar),
            "{:.2f}-{:.2f}".format(*row["ratio_quartiles"]),
        )
    console.print(table)

    table = Table("half-trained scores", "time", "ratio to focal")
    for name, row in results["others"].items():
        table.add_row(NAMES[name], f"{row['milliseconds']:.1f} ms", f"{row['ratio']:.2f}")
    console.print(table)

    table = Table("", *REGIMES)
    for title, bars, values in _rows_by_regime(results):
        judged = [
            _judged(value, bars.get(regime) if with_bars else None)
            for regime, value in zip(REGIMES, values, strict=True)
        ]
        table.add_row(title, *judged)
    bar = LEAST_SPEEDUP if with_bars else None
    speedups = (results["reference"][regime]["ratio"] for regime in REGIMES)
    judged = [_judged(speedup, bar, at_least=True) for speedup in speedups]
    table.add_row("the loop of Algorithm 1 / AP-loss", *judged)
    console.print(table)


def _rows_by_regime(
    results: dict[str, Any],
) -> list[tuple[str, dict[str, float], list[float | None]]]:
    """Title, bar for each regime, and values for all regimes: growth of time, and memory."""
    growth = results["growth"]
    rows: list[tuple[str, dict[str, float], list[float | None]]] = [
        (
            "time with 8 x the positives",
            MOST_GROWTH_WITH_POSITIVES,
            [growth[regime]["positives"]["ratio"] for regime in REGIMES],
        ),
        (
            "time with 8 x the anchors",
            dict.fromkeys(REGIMES, MOST_GROWTH_WITH_NEGATIVES),
            [growth[regime]["anchors"]["ratio"] for regime in REGIMES],
        ),
    ]
    for name in dict.fromkeys(row["loss"] for row in results["memory"]):
        bar = dict.fromkeys(REGIMES, MOST_MEMORY) if name == "ap_loss" else {}
        values = [row["ratio"] for row in results["memory"] if row["loss"] == name]
        rows.append((f"extra memory of {NAMES[name]} / logits", bar, values))
    return rows


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
    lines = [
        f"| {record['scores'] / 1e6:.1f} M scores | " + " | ".join(REGIMES) + " |",
        "| --- |" + " --- |" * len(REGIMES),
    ]

    def add(title: str, values: list[float | None]) -> None:
        lines.append(f"| {title} | " + " | ".join(map(_number, values)) + " |")

    for name, positives in dict.fromkeys((row["loss"], row["positives"]) for row in record["cost"]):
        rows = [
            row for row in record["cost"] if (row["loss"], row["positives"]) == (name, positives)
        ]
        title = f"{NAMES[name]} / focal loss, {positives:,} positives"
        add(title, [row["ratio"] for row in rows])
    add(
        "the loop of Algorithm 1 / AP-loss",
        [record["reference"][regime]["ratio"] for regime in REGIMES],
    )
    for title, _, values in _rows_by_regime(record):
        add(title, values)
    origin = record["provenance"]
    lines += [
        "",
        f"`{origin['command']}`, commit {origin['commit']}, seed {origin['seed']}, "
        f"{origin['threads']} threads, torch {origin['versions']['torch']}, {origin['machine']}.",
    ]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:.0f} x" if value >= 10 else f"{value:.2f} x"
