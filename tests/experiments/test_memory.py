"""Peaks of memory by hand, and the study's tables from a record made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rankdet.experiments import memory
from rankdet.experiments.comparison import LOSSES
from rankdet.experiments.peak_memory import peak_bytes

CPU = torch.device("cpu")
MIB = 2**20


def test_what_is_released_counts_no_longer() -> None:
    def run() -> None:
        for _ in range(5):
            torch.empty(1000)

    assert peak_bytes(run, CPU) == 4000


def test_what_is_held_together_is_added_up() -> None:
    held: list[torch.Tensor] = []

    def run() -> None:
        held.extend([torch.empty(1000), torch.empty(500, dtype=torch.float64)])
        held.pop()
        held.append(torch.empty(250))

    assert peak_bytes(run, CPU) == 4000 + 4000


def test_what_was_there_before_is_not_counted() -> None:
    before = torch.empty(2000)
    assert peak_bytes(lambda: before + 1, CPU) == pytest.approx(8000, abs=20)  # and the scalar 1


def test_what_an_operator_holds_inside_counts() -> None:
    values = torch.randn(100_000)
    # The sorted copy and int64 places are given back; more is held while it works.
    assert peak_bytes(lambda: values.sort(), CPU) >= 100_000 * (4 + 8)


def test_the_backward_pass_counts() -> None:
    weight = torch.ones(1000, requires_grad=True)

    def run() -> None:
        ((weight * 2) * 3).sum().backward()
        weight.grad = None

    # Both products at once, or in the backward pass as many gradients; and some scalars.
    assert 8000 <= peak_bytes(run, CPU) < 8100


def test_the_same_again_gives_the_same() -> None:
    layer = torch.nn.Conv2d(3, 8, 3)
    images = torch.rand(2, 3, 32, 32)

    def run() -> None:
        layer(images).sum().backward()
        layer.zero_grad(set_to_none=True)

    run()
    assert peak_bytes(run, CPU) == peak_bytes(run, CPU) > 8 * 30 * 30 * 2 * 4


@pytest.mark.gpu
def test_on_a_gpu_whole_blocks_are_counted() -> None:
    assert peak_bytes(lambda: torch.empty(1000, device="cuda"), torch.device("cuda")) == 4096


def by_hand(sizes: tuple[int, ...]) -> dict[str, Any]:
    """A record: the network takes 100 MiB an image, losses 1, 2, 3 and 4, with 0.5 for boxes."""
    rows = {}
    for size in sizes:
        base = dict.fromkeys(LOSSES, 100 * MIB * size)
        extra = dict(zip(LOSSES, (1, 2, 3, 4), strict=True))
        rows[str(size)] = {
            "result": {
                "without_loss": base,
                memory.NO_CLASS_LOSS: int(100.5 * MIB * size),
                "with_loss": {name: base[name] + extra[name] * MIB * size for name in LOSSES},
                "loss_by_itself": {name: extra[name] * MIB * size // 2 for name in LOSSES},
            }
        }
    return {
        "item": "memory",
        "labels": ["fig_memory_cost"],
        "request": {"scale": "smoke", "seed": 0},
        "plan": ["1", "2"],
        "rows": rows,
    }


def test_the_table_shows_differences() -> None:
    text = memory.markdown(by_hand((1, 2)))
    assert "| network without a loss | 100.00 | 200.00 |" in text
    assert "| box loss alone | +0.50 | +1.00 |" in text
    assert "| CE-Loss + OHEM | +1.00 | +2.00 |" in text
    assert "| AP-Loss | +4.00 | +8.00 |" in text
    assert "| AP-Loss, by itself | 2.00 | 4.00 |" in text


def test_the_figure_has_ticks_at_the_batch_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(memory, "save_figure", lambda figure, path: kept.append(figure))
    memory.figure(by_hand((1, 2)), Path("unused.png"))
    assert [axes.get_xticks().tolist() for axes in kept[0].axes] == [[1, 2]] * 3


def test_a_row_that_was_not_run_is_said_to_be_missing(tmp_path: Path) -> None:
    record = by_hand((1,))
    assert "| AP-Loss | +4.00 | not run |" in memory.markdown(record)
    memory.figure(record, tmp_path / "memory.png")
    memory.figure({**record, "rows": {}}, tmp_path / "empty.png")
    assert (tmp_path / "memory.png").stat().st_size > 10_000
