"""What processes tell each other: in one process nothing, in two and four by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rankdet.losses import collectives
from rankdet.losses.collectives import (
    PeerError,
    concatenated,
    global_mean,
    global_sum,
    largest,
    own_group,
    raised_by_all,
    scaled_for_averaging,
    summed,
    summed_together,
)

Worlds = Callable[[int], Any]
CPU = torch.device("cpu")


def call(world: Any, name: str, arguments: Sequence[Sequence[Any]], **more: Any) -> list[Any]:
    """The answers of the processes to a call of the function, each with its own arguments."""
    orders = [{"name": name, "arguments": own, **more} for own in arguments]
    answers = world.run("collective", orders)
    assert [answer["error"] for answer in answers] == [None] * len(answers)
    return answers


# --- one process -----------------------------------------------------------------------------


def test_alone_nothing_changes_and_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist, "all_reduce")
    values = torch.tensor([1.0, 2.0])
    assert summed(values, None) is values
    assert largest(values, None) is values
    assert global_sum(values, None) is values
    assert scaled_for_averaging(values, None) is values
    assert global_mean(values, torch.tensor(3), None) is values
    assert summed_together((values, values[:1]), None)[0] is values
    whole, own = concatenated(values, None)
    assert whole is values
    assert own == slice(0, 2)
    with raised_by_all(None, CPU):
        pass
    with pytest.raises(KeyError, match="mine"), raised_by_all(None, CPU):
        raise KeyError("mine")


def test_there_is_no_group_where_nothing_is_initialised() -> None:
    assert own_group(True, None) is None
    assert own_group(False, None) is None


def test_a_build_without_distributed_has_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist, "is_initialized")
    assert own_group(True, None) is None


def test_a_group_that_can_send_from_the_host_does_so(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda:1")
    group: Any = object()
    for backends, expected in (
        ("cpu:gloo,cuda:gloo", CPU),
        ("cpu:gloo,cuda:nccl", CPU),
        ("cuda:nccl", device),
    ):
        monkeypatch.setattr(dist, "get_backend_config", lambda group, found=backends: found)
        assert collectives.exchange_device(group, device) == expected


# --- groups ----------------------------------------------------------------------------------


def test_the_group_is_the_default_one_or_the_given_one(worlds: Worlds) -> None:
    world = worlds(4)
    answers = world.run("group", [{"synchronize": True, "ranks": None}] * 4)
    assert [(a["number"], a["is_world"]) for a in answers] == [(4, True)] * 4
    answers = world.run("group", [{"synchronize": False, "ranks": None}] * 4)
    assert [(a["number"], a["is_world"]) for a in answers] == [(1, False)] * 4
    answers = world.run("group", [{"synchronize": True, "ranks": [1, 3]}] * 4)
    for rank in (1, 3):
        assert (answers[rank]["number"], answers[rank]["is_world"]) == (2, False)
    for rank in (0, 2):
        assert answers[rank]["error"].startswith("ValueError: process_group: expected a group that")


# --- numbers ---------------------------------------------------------------------------------


def test_sums_are_those_of_all_processes_and_change_no_argument(worlds: Worlds) -> None:
    parts = [torch.tensor([1, 2]), torch.tensor([10, 20])]
    for part, answer in zip(
        parts, call(worlds(2), "summed", [[part] for part in parts]), strict=True
    ):
        assert answer["result"].tolist() == [11, 22]
        assert answer["argument"].tolist() == part.tolist()
        assert answer["sent"] == [2]


def test_a_tensor_that_is_not_contiguous_is_summed_like_any(worlds: Worlds) -> None:
    part = torch.arange(6.0).view(2, 3)
    for answer in call(worlds(2), "summed", [[part.T]] * 2):
        assert answer["result"].tolist() == (2 * part.T).tolist()


def test_of_nothing_nothing_travels(worlds: Worlds) -> None:
    for answer in call(worlds(2), "summed", [[torch.empty(0, 3)]] * 2):
        assert answer["result"].shape == (0, 3)
        assert answer["sent"] == []


def test_tensors_are_summed_together_exactly_and_keep_their_kind(worlds: Worlds) -> None:
    large = 2**52 - 1
    parts = (
        torch.tensor([[large, 3]]),
        torch.tensor(0.5, dtype=torch.float32),
        torch.empty(0, dtype=torch.int64),
        torch.tensor([1e-300, float("nan")], dtype=torch.float64),
    )
    for answer in call(worlds(2), "summed_together", [[parts]] * 2):
        counts, number, nothing, wide = answer["result"]
        assert answer["sent"] == [5]
        assert counts.tolist() == [[2 * large, 6]]
        assert (counts.dtype, number.dtype) == (torch.int64, torch.float32)
        assert (number.item(), number.shape) == (1.0, ())
        assert (nothing.dtype, nothing.shape) == (torch.int64, (0,))
        assert wide[0].item() == 2e-300
        assert wide[1].isnan()  # the NaN of one number is not that of its neighbours


def test_the_largest_is_that_of_all_processes(worlds: Worlds) -> None:
    parts = [torch.tensor([1.0, -5.0]), torch.tensor([-3.0, float("-inf")])]
    for part, answer in zip(
        parts, call(worlds(2), "largest", [[part] for part in parts]), strict=True
    ):
        assert answer["result"].tolist() == [1.0, -5.0]
        assert torch.equal(answer["argument"], part)


def test_values_stand_one_after_the_other_however_uneven_they_are(worlds: Worlds) -> None:
    parts = [torch.tensor(part, dtype=torch.float64) for part in ([0.1, 0.2], [], [0.3], [])]
    slices = [slice(0, 2), slice(2, 2), slice(2, 3), slice(3, 3)]
    for own, answer in zip(
        slices, call(worlds(4), "concatenated", [[part] for part in parts]), strict=True
    ):
        assert answer["result"] == (answer["result"][0], own)
        assert answer["result"][0].tolist() == [0.1, 0.2, 0.3]
        assert answer["sent"] == [4, 3]  # the numbers of values, then the values


def test_no_values_at_all_are_no_values(worlds: Worlds) -> None:
    for answer in call(worlds(2), "concatenated", [[torch.empty(0)]] * 2):
        assert answer["result"][0].tolist() == []
        assert answer["sent"] == [2]


def test_what_is_not_finite_comes_through(worlds: Worlds) -> None:
    parts = [torch.tensor([float("nan"), 1.0]), torch.tensor([float("-inf")])]
    for answer in call(worlds(2), "concatenated", [[part] for part in parts]):
        assert [str(value) for value in answer["result"][0].tolist()] == ["nan", "1.0", "-inf"]


# --- numbers with a gradient -----------------------------------------------------------------


def test_a_global_sum_gives_each_process_its_gradient_times_their_number(worlds: Worlds) -> None:
    parts = [torch.tensor([1.0, 2.0]) * (rank + 1) for rank in range(4)]
    for answer in call(worlds(4), "global_sum", [[part] for part in parts], with_gradient=True):
        assert answer["result"].tolist() == [10.0, 20.0]
        assert answer["gradient"].tolist() == [4.0, 8.0]  # 4 x the weights 1 and 2


def test_a_scaled_value_is_the_same_and_its_gradient_is_not(worlds: Worlds) -> None:
    parts = [[torch.tensor(7.0)], [torch.tensor(9.0)]]
    answers = call(worlds(2), "scaled_for_averaging", parts, with_gradient=True)
    assert [answer["result"].item() for answer in answers] == [7.0, 9.0]
    assert [answer["gradient"].item() for answer in answers] == [2.0, 2.0]
    assert [answer["sent"] for answer in answers] == [[], []]


def test_a_global_mean_weighs_the_means_by_their_numbers(worlds: Worlds) -> None:
    # 1 is the mean of 3, 5 that of 1: (3 + 5) / 4
    parts = [[torch.tensor(1.0), torch.tensor(3)], [torch.tensor(5.0), torch.tensor(1)]]
    answers = call(worlds(2), "global_mean", parts, with_gradient=True)
    assert [answer["result"].item() for answer in answers] == [2.0, 2.0]
    assert [answer["gradient"].item() for answer in answers] == [2 * 3 / 4, 2 * 1 / 4]
    assert [answer["sent"] for answer in answers] == [[2], [2]]
    assert answers[0]["result"].dtype == torch.float32


def test_no_positives_count_as_one_in_each_process_and_in_all(worlds: Worlds) -> None:
    def mean(*parts: tuple[float, int]) -> list[float]:
        arguments = [[torch.tensor(value), torch.tensor(number)] for value, number in parts]
        return [answer["result"].item() for answer in call(worlds(2), "global_mean", arguments)]

    assert mean((5.0, 0), (2.0, 2)) == [4.5, 4.5]  # (5 + 4) / 2
    assert mean((5.0, 0), (2.0, 0)) == [7.0, 7.0]  # (5 + 2) / 1
    assert mean((5.0, 0), (2.0, 1)) == [7.0, 7.0]


def test_the_nan_of_one_process_is_the_value_and_the_gradient_of_all(worlds: Worlds) -> None:
    parts = [[torch.tensor(1.0), torch.tensor(3)], [torch.tensor(float("nan")), torch.tensor(1)]]
    for answer in call(worlds(2), "global_mean", parts, with_gradient=True):
        assert answer["result"].isnan()
        assert answer["gradient"].isnan()


# --- errors ----------------------------------------------------------------------------------


def raised(world: Any, *texts: list[str]) -> list[list[str]]:
    answers = world.run("raise", [{"texts": own} for own in texts])
    return [answer["reached"] for answer in answers]


def test_what_one_process_raises_all_raise(worlds: Worlds) -> None:
    world = worlds(4)
    told = "PeerError: process 2: LookupError: no such image, café.jpg"
    expected = [["", told, ""]] * 4
    expected[2] = ["", "LookupError: no such image, café.jpg", ""]
    own = ["", "no such image, café.jpg", ""]
    assert raised(world, [""] * 3, [""] * 3, own, [""] * 3) == expected


def test_all_errors_are_named_and_long_ones_cut(worlds: Worlds) -> None:
    (first,), (second,), (third,), (fourth,) = raised(worlds(4), [""], ["one"], [""], ["ä" * 9999])
    assert first == third
    assert first.startswith("PeerError: process 1: LookupError: one; process 3: LookupError: ää")
    assert len(first) < 3000
    assert (second, fourth) == ("LookupError: one", "LookupError: " + "ä" * 9999)


def test_where_nothing_is_raised_one_number_travels(worlds: Worlds) -> None:
    answers = worlds(2).run("raise", [{"texts": [""]}] * 2)
    assert [answer["sent"] for answer in answers] == [[1], [1]]


def test_a_process_alone_in_its_world_takes_the_same_way(worlds: Worlds) -> None:
    world = worlds(1)
    (answer,) = call(world, "concatenated", [[torch.tensor([3.0])]])
    assert answer["result"][0].tolist() == [3.0]
    assert answer["sent"] == [1, 1]
    assert raised(world, ["mine"]) == [["LookupError: mine"]]


def test_a_peer_error_is_a_runtime_error() -> None:
    assert issubclass(PeerError, RuntimeError)


# --- torch.compile ---------------------------------------------------------------------------


def test_only_a_loss_with_a_group_stays_out_of_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    @collectives.eager_where_synchronized
    def double(value: Tensor, *, synchronize: bool = False, process_group: Any = None) -> Tensor:
        """The docstring."""
        seen.append(torch.compiler.is_compiling())
        return 2 * value

    assert double.__doc__ == "The docstring."

    def compiled(value: Tensor, synchronize: bool) -> Tensor:
        return double(value, synchronize=synchronize)

    torch.compiler.reset()
    run = torch.compile(compiled, backend="eager")
    assert run(torch.tensor(3.0), False).item() == 6.0
    monkeypatch.setattr(collectives, "own_group", lambda synchronize, group: synchronize or None)
    torch.compiler.reset()
    assert run(torch.tensor(3.0), True).item() == 6.0
    assert seen[-1] is False
