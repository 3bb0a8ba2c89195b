"""The README's table of faults."""

from __future__ import annotations

from rankdet.bench.faults.fault import Fault, Outcome, Trial, tried
from rankdet.bench.faults.tables import markdown

ORIGIN = {
    "command": "rankdet bench reliability",
    "commit": "abc",
    "seed": 3,
    "threads": 2,
    "versions": {"torch": "2.11"},
    "machine": "Linux",
}


def test_a_row_has_its_counts_and_what_broken_builds_came_to() -> None:
    row = {
        "title": "kill -9",
        "tried": 1200,
        "survived": 1199,
        "worst": "a | b",
        "seconds": 12.6,
        "broken": [
            {"build": "no sync", "tried": 3, "survived": 0},
            {"build": "no hash", "tried": 2, "survived": 1},
        ],
    }
    bare = {**row, "title": "soak", "worst": "", "broken": []}
    lines = markdown({"faults": [row, bare], "provenance": ORIGIN}).splitlines()
    assert lines[2:4] == [
        "| kill -9 | 1,200 | 1,199 | a \\| b | 13 | 0 of 3 (no sync); 1 of 2 (no hash) |",
        "| soak | 1,200 | 1,199 | - | 13 | - |",
    ]
    assert all(line.replace("\\|", "").count("|") == 7 for line in lines[:4])
    assert lines[4:] == [
        "",
        "`rankdet bench reliability`, commit abc, seed 3, 2 threads, torch 2.11, Linux.",
    ]


def test_the_table_takes_the_rows_that_the_bench_makes(tmp_path: object) -> None:
    class Nowhere:
        folder = tmp_path

    def try_it(trial: Trial) -> Outcome:
        return Outcome(tried=2, survived=2, worst="close")

    fault = Fault("name", "a title", try_it, broken=(), tries=(2, 2))
    row = tried(fault, Nowhere(), quick=True, seed=0, advance=lambda: None)  # type: ignore[arg-type]
    table = markdown({"faults": [row], "provenance": ORIGIN})
    assert "| a title | 2 | 2 | close | 0 | - |" in table
