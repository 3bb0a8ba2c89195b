"""The README's table of the faults that `rankdet bench reliability` has tried."""

from __future__ import annotations

from typing import Any


def markdown(record: dict[str, Any]) -> str:
    """The table of a record that `rankdet bench reliability --json FILE` wrote.

    The last column has, for every build without a protection, how often it survived.
    """
    lines = [
        "| fault | tried | survived | worst | seconds | survived without its protection |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in record["faults"]:
        broken = "; ".join(
            f"{build['survived']} of {build['tried']} ({build['build']})" for build in row["broken"]
        )
        counts = [f"{row['tried']:,}", f"{row['survived']:,}"]
        cells = [row["title"], *counts, row["worst"] or "-", f"{row['seconds']:.0f}", broken or "-"]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    origin = record["provenance"]
    lines += [
        "",
        f"`{origin['command']}`, commit {origin['commit']}, seed {origin['seed']}, "
        f"{origin['threads']} threads, torch {origin['versions']['torch']}, {origin['machine']}.",
    ]
    return "\n".join(lines)
