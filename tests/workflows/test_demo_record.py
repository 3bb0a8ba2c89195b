"""The record of a demo, as the README's table."""

from __future__ import annotations

from typing import Any

from rankdet.workflows.demo_record import markdown


def run(loss: str, ap50: float | None) -> dict[str, Any]:
    origin = {
        "command": "rankdet demo",
        "commit": "0123456789ab",
        "seed": 3,
        "threads": 2,
        "versions": {"torch": "2.15.0"},
        "machine": "a machine",
    }
    return {
        "loss": loss,
        "metrics": {"AP": 40.04, "AP50": ap50, "AP75": 30.06},
        "data": {"num_images": 500},
        "checkpoint": {"step": 1250},
        "training": {"provenance": origin},
    }


def test_each_loss_has_a_row_and_the_origin_stands_below() -> None:
    table = markdown({"runs": [run("ap", 61.25), run("ohem", None), run("dr", 7.0)]})
    assert table.splitlines() == [
        "| loss | AP50 | AP | AP75 |",
        "| --- | --- | --- | --- |",
        "| AP-loss | 61.2 | 40.0 | 30.1 |",
        "| OHEM | n/a | 40.0 | 30.1 |",
        "| DR loss | 7.0 | 40.0 | 30.1 |",
        "",
        "In percent, on 500 images, after 1,250 steps each. `rankdet demo`, commit 0123456789ab, "
        "seed 3, 2 threads, torch 2.15.0, a machine.",
    ]
