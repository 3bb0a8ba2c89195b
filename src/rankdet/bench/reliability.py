"""`rankdet bench reliability`: bad data, attacks, thousands of spoilt files, and faults."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from rankdet.bench import attacks, bad_data, fuzz
from rankdet.bench.bad_case import Case
from rankdet.bench.faults import table as faults
from rankdet.bench.spoilt import IMAGE_KINDS, TEXT_KINDS
from rankdet.errors import RankdetError
from rankdet.output import write_whole
from rankdet.progress import say
from rankdet.provenance import provenance

NUM_TEXTS, NUM_IMAGES = 5000, 500  # of each kind
NUM_TEXTS_QUICK, NUM_IMAGES_QUICK = 100, 20

DATA = "data"  # the name of all that is tried on readers of data
NAMES = (DATA, *(fault.name for fault in faults.FAULTS))

_TABLES = ("cases", "attacks", "spoilt", "faults")

_Advance = Callable[[], None]
_Part = Callable[[str, int], _Advance]
_Rows = list[dict[str, Any]]


def main(*, quick: bool, json_file: Path | None, seed: int, only: Collection[str] = ()) -> bool:
    """Try everything, print the tables, write them as JSON if asked; whether all was as it should.

    only: some of NAMES; all, if there are none. Every problem is printed. A spoilt file of the
    tables is read again by `rankdet.bench.fuzz.repeat(kind, seed, index)`.
    """
    if unknown := set(only) - set(NAMES):
        known = ", ".join(NAMES)
        raise RankdetError(f"--only {min(unknown)}: expected one of {known}.")
    console = Console()
    results = _tried(quick, seed, only or NAMES, console)
    _print_tables(results, console)
    if json_file is not None:
        record = {"provenance": provenance(seed=seed, quick=quick), **results}
        write_whole(json_file, (json.dumps(record, indent=2) + "\n").encode())
        console.print(f"wrote {json_file}")
    return bool(results["is_as_expected"])


def _tried(quick: bool, seed: int, names: Collection[str], console: Console) -> dict[str, Any]:
    """All results, ready for JSON."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:

        def part(what: str, total: int) -> _Advance:
            if not console.is_terminal:
                say(f"{what} ...")
            task = bar.add_task(escape(what), total=total)
            return lambda: bar.advance(task)

        data = _try_data(quick, seed, part) if DATA in names else ([], [], [])
        fault_rows = faults.try_faults(names, quick=quick, seed=seed, part=part)
    case_rows, attack_rows, fuzz_rows = data
    rows = (*case_rows, *attack_rows, *fuzz_rows, *fault_rows)
    return {
        "is_as_expected": not any(row["problems"] for row in rows),
        "limits": {"seconds": fuzz.MAX_SECONDS, "megabytes": fuzz.MAX_MEGABYTES},
        "cases": case_rows,
        "attacks": attack_rows,
        "spoilt": fuzz_rows,
        "faults": fault_rows,
    }


def _try_data(quick: bool, seed: int, part: _Part) -> tuple[_Rows, _Rows, _Rows]:
    """The rows about bad data, attacks, and spoilt files."""
    num_files = {
        **dict.fromkeys(TEXT_KINDS, NUM_TEXTS_QUICK if quick else NUM_TEXTS),
        **dict.fromkeys(IMAGE_KINDS, NUM_IMAGES_QUICK if quick else NUM_IMAGES),
    }
    cases, named = bad_data.all_cases(), list(attacks.attacks())
    return (
        _try_cases(cases, part("named cases", len(cases))),
        _try_attacks(named, part("attacks", len(named))),
        _try_spoilt(num_files, seed, part("spoilt files", sum(num_files.values()))),
    )


def _try_cases(cases: list[Case], advance: _Advance) -> list[dict[str, Any]]:
    """For each format: how many cases there are, and what was not as it should."""
    rows: dict[str, dict[str, Any]] = {}
    for case in cases:
        row = rows.setdefault(case.format, {"format": case.format, "tried": 0, "problems": []})
        row["tried"] += 1
        with tempfile.TemporaryDirectory() as name:
            case.write(Path(name))
            try:
                found = bad_data.problems(case, Path(name))
            except Exception as error:  # the very thing that must not happen
                found = [f"{type(error).__name__}: {error}"]
        row["problems"] += [f"{case.name}: {text}" for text in found]
        advance()
    return list(rows.values())


def _try_attacks(named: list[attacks.Attack], advance: _Advance) -> list[dict[str, Any]]:
    rows = []
    for attack in named:
        result = attacks.run_attack(attack)
        answer = result.answer
        rows.append(
            {
                "name": result.name,
                "bytes": result.num_bytes,
                "outcome": answer.outcome,
                "reason": answer.reason,
                "milliseconds": round(answer.milliseconds, 2),
                "megabytes": round(answer.megabytes, 1),
                "problems": [answer.reason] if answer.outcome == "failed" else [],
            }
        )
        advance()
    return rows


def _try_spoilt(num_files: dict[str, int], seed: int, advance: _Advance) -> list[dict[str, Any]]:
    tallies = {kind: fuzz.Tally(kind) for kind in num_files}
    for kind, answer in fuzz.run(num_files, seed):
        tallies[kind].add(answer)
        advance()
    rows = []
    for tally in tallies.values():
        row = asdict(tally)
        row["slowest"], row["megabytes"] = round(tally.slowest, 1), round(tally.megabytes, 1)
        del row["failures"]
        row["problems"] = [f"seed {seed}, index {a.index}: {a.reason}" for a in tally.failures]
        if tally.tried != num_files[tally.kind]:
            row["problems"].append(f"{tally.tried} tried of {num_files[tally.kind]}")
        rows.append(row)
    return rows


def _print_tables(results: dict[str, Any], console: Console) -> None:
    if results["cases"]:
        _print_data_tables(results, console)
    if results["faults"]:
        console.print(faults.as_table(results["faults"]))
    for row in (row for key in _TABLES for row in results[key]):
        for text in row["problems"]:
            place = row.get("format") or row.get("title") or row.get("name") or row["kind"]
            console.print(f"[red]{escape(place)}[/red]: {escape(text)}", highlight=False)
    if results["is_as_expected"]:
        console.print("All as it should be.")


def _print_data_tables(results: dict[str, Any], console: Console) -> None:
    table = Table("bad data", "cases", "not as expected", title="Named cases")
    for row in results["cases"]:
        table.add_row(row["format"], str(row["tried"]), _judged(row))
    console.print(table)

    table = Table("attack", "bytes", "outcome", "ms", "extra MB", title="Attacks, each alone")
    for row in results["attacks"]:
        outcome = f"{row['outcome']} {row['reason']}".strip()
        shown = f"[red]{escape(outcome)}[/red]" if row["problems"] else escape(outcome)
        cost = (f"{row['milliseconds']:.1f}", f"{row['megabytes']:.0f}")
        table.add_row(row["name"], f"{row['bytes']:,}", shown, *cost)
    console.print(table)

    columns = ("spoilt files", "tried", "read", "refused", "failures", "slowest ms", "extra MB")
    table = Table(*columns, title="Spoilt at random")
    for row in results["spoilt"]:
        counts = [f"{row[key]:,}" for key in ("tried", "read", "refused")]
        cost = (f"{row['slowest']:.0f}", f"{row['megabytes']:.0f}")
        table.add_row(row["kind"], *counts, _judged(row), *cost)
    console.print(table)


def _judged(row: dict[str, Any]) -> str:
    count = len(row["problems"])
    return f"[red]{count}[/red]" if count else "0"
