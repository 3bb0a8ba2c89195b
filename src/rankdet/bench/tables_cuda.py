"""The tables of the bench on a CUDA device, for terminal and README, beside their bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isnan
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rankdet.bench.problems import REGIMES

# The times that are judged; in a row, the suffix of a time's key and the prefix of a ratio's
KINDS = {"eager": ("", ""), "device": ("_graph", "graph_")}

_OTHERS = ("loop", "sort", "copy")
_DETAILS = {
    "ap_loss": "AP-loss",
    "focal": "torchvision's focal loss",
    "ap_loss_one_thread": "AP-loss, backward on the calling thread",
    "focal_one_thread": "focal loss, backward on the calling thread",
    "forward": "AP-loss, forward alone",
    "backward": "AP-loss, backward alone",
    "auc_loss": "AUC-loss",
    "heaviside": "AP-loss, heaviside step",
    "sigmoid": "AP-loss, sigmoid step",
}


def print_checks(results: dict[str, Any], console: Console) -> None:
    """The largest errors of the checks, and a line in red for each problem."""
    checks = results["checks"]
    dtypes = list(dict.fromkeys(check["dtype"] for check in checks))
    title = f"{len(checks)} checks against float64: largest errors"
    table = Table("", "value", *(f"gradient, {dtype}" for dtype in dtypes), title=title)
    for loss, step in dict.fromkeys((check["loss"], check["step"]) for check in checks):
        chosen = [check for check in checks if (check["loss"], check["step"]) == (loss, step)]
        cells = [_worst(chosen, "value")]
        for dtype in dtypes:
            of_dtype = [check for check in chosen if check["dtype"] == dtype]
            cells.append(_worst(of_dtype, "gradient") if of_dtype else "-")
        table.add_row(f"{loss} {step}", *cells)
    console.print(table)
    for problem in results["problems"]:
        console.print(f"[red]{escape(problem)}[/red]", highlight=False)


def _worst(checks: Sequence[dict[str, Any]], name: str) -> str:
    """The largest error; NaN is larger than any."""
    worst = max(checks, key=lambda check: (isnan(check["errors"][name]), check["errors"][name]))
    error, bar = worst["errors"][name], worst["bars"][name]
    shown = f"{error:.1e}"
    return shown if error <= bar else f"[red]{shown} (not ≤ {bar:.1e})[/red]"


def print_tables(results: dict[str, Any], console: Console) -> None:
    """Every number, and in red with its bar what misses the bar that it is held to."""
    rows = results["rows"]
    titles = [f"{kind}\n{name}" for kind in KINDS for name in ("AP-loss", "focal", "ratio")]
    title = "Forward + backward, ms: eager, and the device alone (CUDA graphs)"
    _print(console, title, titles, rows, _times)
    for reason in dict.fromkeys(_reasons(rows)):
        console.print(f"[red]no CUDA graph: {escape(reason)}[/red]", highlight=False)
    titles = ["AP-loss\nquartiles", "\nleast", "focal\nquartiles", "\nleast"]
    titles += ["our focal", "loop", "sort", "copy"]
    _print(console, "The spread of the eager times, and others, ms", titles, rows, _others)
    titles = ["GB/s", "floor ms", "eager\n/ floor", "device\n/ floor"]
    titles += ["extra MiB", "focal's\nextra MiB"]
    title = "AP-loss against two reads and one write, and memory beside the gradient"
    _print(console, title, titles, rows, _limits)
    table = Table("", *REGIMES, title=f"{size_name(rows[0]['scores'])} scores, float32, eager, ms")
    for title, values in _details(results["details"]):
        table.add_row(title, *values)
    console.print(table)
    for text in _outcomes(rows):
        console.print(f"{text} bars are met.")


def values_of(row: dict[str, Any], kind: str) -> dict[str, float | None]:
    """What the bars of a row are about; None where it could not be measured."""
    if kind == "memory":
        return {"extra_mib": row["extra_mib"]}
    suffix, prefix = KINDS[kind]
    names = ("ratio", "times_floor")
    return {
        "milliseconds": row[f"ap_loss{suffix}"]["milliseconds"],
        **{name: row[prefix + name] for name in names},
    }


def bars_met(row: dict[str, Any], kind: str) -> dict[str, bool]:
    """Whether the bars of a row are met, by times of a kind or by memory; without a time none is.

    >>> row = {"ap_loss": {"milliseconds": 0.3}, "ratio": 0.3, "times_floor": 9.0}
    >>> bars_met({**row, "bars": {"milliseconds": 0.35, "ratio": 0.25, "extra_mib": 1}}, "eager")
    {'milliseconds': True, 'ratio': False}
    """
    found = {}
    for name, value in values_of(row, kind).items():
        if name in row["bars"]:
            found[name] = value is not None and value <= row["bars"][name]
    return found


def _reasons(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Why times of graphs are missing."""
    graphs = (row[f"{loss}_graph"] for row in rows for loss in ("ap_loss", "focal"))
    return [graph["reason"] for graph in graphs if "reason" in graph]


def _print(
    console: Console,
    title: str,
    titles: Sequence[str],
    rows: Sequence[dict[str, Any]],
    cells: Callable[[dict[str, Any]], list[str]],
) -> None:
    table = Table("scores", "positives", "scores are", "dtype", title=title)
    for column in titles:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        first = (size_name(row["scores"]), f"{row['positives']:,}", row["regime"], row["dtype"])
        table.add_row(*first, *cells(row))
    console.print(table)


def _times(row: dict[str, Any]) -> list[str]:
    cells = []
    for kind, (suffix, _) in KINDS.items():
        values = values_of(row, kind)
        cells += [
            judged(values["milliseconds"], row["bars"].get("milliseconds")),
            number(row[f"focal{suffix}"]["milliseconds"]),
            judged(values["ratio"], row["bars"].get("ratio")),
        ]
    return cells


def _others(row: dict[str, Any]) -> list[str]:
    cells = []
    for name in ("ap_loss", "focal"):
        cells += ["-".join(map(number, row[name]["quartiles"])), number(row[name]["least"])]
    return cells + [number(row[key]["milliseconds"]) for key in ("our_focal", *_OTHERS)]


def _limits(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['gigabytes_per_second']:,.0f}",
        number(row["floor_milliseconds"]),
        *(
            judged(values_of(row, kind)["times_floor"], row["bars"].get("times_floor"))
            for kind in KINDS
        ),
        judged(row["extra_mib"], row["bars"].get("extra_mib")),
        number(row["focal_extra_mib"]),
    ]


def _details(details: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Title and cells, for the regimes, of what was measured at the smallest size alone."""
    found = [
        (title, [number(details[regime][key]["milliseconds"]) for regime in REGIMES])
        for key, title in _DETAILS.items()
    ]
    counts = [str(details[regime]["synchronisations"]) for regime in REGIMES]
    return [*found, ("times that the host waits", counts)]


def size_name(scores: int) -> str:
    """
    >>> size_name(5_237_760), size_name(20_951_040), size_name(163_680)
    ('5.2 M', '21 M', '0.16 M')
    """
    millions = scores / 1e6
    digits = 0 if millions >= 10 else 1 if millions >= 1 else 2
    return f"{millions:.{digits}f} M"


def number(value: float | None) -> str:
    """Three digits, or a dash for what was not measured.

    >>> number(0.03456), number(1.97), number(605.4), number(23_456.7), number(None)
    ('0.035', '1.97', '605', '23,457', '-')
    """
    if value is None:
        return "-"
    size = abs(value)
    digits = 3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0
    return f"{value:,.{digits}f}"


def judged(value: float | None, bar: float | None) -> str:
    """The value, in red with its bar if it misses it.

    >>> judged(0.3, 0.35), judged(0.3, 0.25), judged(0.3, None), judged(None, 0.25)
    ('0.300', '[red]0.300 (not ≤ 0.25)[/red]', '0.300', '[red]-[/red]')
    """
    shown = number(value)
    if bar is None or (value is not None and value <= bar):
        return shown
    return f"[red]{shown}[/red]" if value is None else f"[red]{shown} (not ≤ {bar:g})[/red]"


_TITLES = (
    "scores, positives",
    "dtype",
    "scores are",
    "AP-loss, eager / device",
    "focal, eager / device",
    "ratio, eager / device",
    "loop",
    "sort",
    "copy",
    "/ floor",
    "extra MiB",
)


def _outcomes(rows: list[dict[str, Any]]) -> list[str]:
    """How many bars are met, of each kind."""
    texts = []
    for kind in (*KINDS, "memory"):
        outcomes = [is_met for row in rows for is_met in bars_met(row, kind).values()]
        if outcomes:
            texts.append(f"{kind}: {sum(outcomes)} of {len(outcomes)}")
    return texts


def markdown(record: dict[str, Any]) -> str:
    """The README's table of a record of `rankdet bench losses --device cuda --json FILE`."""
    lines = ["| " + " | ".join(_TITLES) + " |", "|" + " --- |" * len(_TITLES)]
    lines += ["| " + " | ".join(_markdown_cells(row)) + " |" for row in record["rows"]]
    origin, gpu = record["provenance"], record["gpu"]
    outcomes = "; ".join(_outcomes(record["rows"]))
    lines += [
        "",
        *([f"Goals met: {outcomes}.", ""] if outcomes else []),
        f"`{origin['command']}`, commit {origin['commit']}, seed {origin['seed']}, "
        f"torch {origin['versions']['torch']}, Triton {gpu['triton']}, {gpu['name']}.",
    ]
    return "\n".join(lines)


def _markdown_cells(row: dict[str, Any]) -> list[str]:
    eager, device = (values_of(row, kind) for kind in KINDS)
    focal = (row[f"focal{suffix}"]["milliseconds"] for suffix, _ in KINDS.values())
    return [
        f"{size_name(row['scores'])}, {row['positives']:,}",
        row["dtype"],
        row["regime"],
        f"{number(eager['milliseconds'])} / {number(device['milliseconds'])}",
        " / ".join(map(number, focal)),
        f"{number(eager['ratio'])} / {number(device['ratio'])}",
        *(number(row[key]["milliseconds"]) for key in _OTHERS),
        f"{number(eager['times_floor'])} / {number(device['times_floor'])}",
        number(row["extra_mib"]),
    ]
