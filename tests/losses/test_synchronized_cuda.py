"""Synchronised losses on a CUDA device: as one process has them, by NCCL and by gloo.

One device is enough: NCCL with a single process, gloo with two that share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.gpu

Worlds = Callable[[int, str], Any]
WORLDS = ((1, "nccl"), (1, "cpu:gloo,cuda:nccl"), (2, "gloo"))
STEPS = ("piecewise", "heaviside", "sigmoid")
CASES: list[tuple[str, dict[str, Any]]] = [
    *(
        ("ap_loss", {"step": step, "scope": scope, "interpolate": interpolate})
        for step in STEPS
        for scope in ("batch", "image")
        for interpolate in (True, False)
    ),
    *(("auc_loss", {"step": step}) for step in STEPS),
    *(("smooth_ap_loss", {}), ("hinge_ap_loss", {}), ("focal_loss", {}), ("ohem_loss", {})),
    *(("ghm_loss", {}), ("dr_loss", {}), ("cross_entropy_loss", {})),
]


@pytest.fixture(scope="module")
def cuda_worlds(process_worlds: Any) -> Iterator[Worlds]:
    """(number, backend) -> a `World` of so many processes on the device."""
    started: dict[tuple[int, str], Any] = {}

    def world(size: int, backend: str) -> Any:
        if (size, backend) not in started:
            started[size, backend] = process_worlds.World(size, backend, "cuda")
        return started[size, backend]

    yield world
    for each in started.values():
        each.close()


def name_of(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *map(str, case[1].values())])


@pytest.mark.parametrize(("size", "backend"), WORLDS)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_gradients_are_those_of_one_process_with_the_whole_batch(
    cuda_worlds: Worlds,
    process_worlds: Any,
    case: tuple[str, dict[str, Any]],
    size: int,
    backend: str,
) -> None:
    """In float32 and half precision against the fused kernels, in float64 against the CPU."""
    name, settings = case
    problems = [
        (process_worlds.random_parts(seed, size, dtype), bool(seed % 2), dtype)
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
        for seed in range(6)
    ]
    cases = [(name, parts, is_masked, settings) for parts, is_masked, _ in problems]
    found = cuda_worlds(size, backend).run_cases(*cases)
    for (parts, is_masked, dtype), answers in zip(problems, found, strict=True):
        device = "cpu" if dtype == torch.float64 else "cuda"
        value, gradients = process_worlds.alone(name, parts, is_masked, device, **settings)
        tolerance = 1e-10 if dtype == torch.float64 else max(1e-5, 4 * torch.finfo(dtype).eps)
        if name == "dr_loss":  # it subtracts two means
            tolerance = max(tolerance, 1e-4)
        for answer, gradient in zip(answers, gradients, strict=True):
            expected = pytest.approx(value.item(), rel=min(tolerance, 1e-5), abs=1e-12)
            assert answer["value"].item() == expected
            process_worlds.assert_close(answer["gradient"], size * gradient, gradients, tolerance)


@pytest.mark.parametrize(("size", "backend"), WORLDS)
def test_a_larger_batch_is_ranked_as_one_process_ranks_it_in_float64(
    cuda_worlds: Worlds, process_worlds: Any, size: int, backend: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(size):
        logits = torch.randn(2, 40_000, 8, generator=generator)
        labels = torch.randint(-200, 8, (2, 40_000), generator=generator).clamp(min=-1)
        parts.append((logits, labels, torch.ones_like(logits, dtype=torch.bool)))
    cases = [("ap_loss", {"step": step}) for step in ("piecewise", "heaviside")]
    cases += [("focal_loss", {})]
    found = cuda_worlds(size, backend).run_cases(
        *((name, parts, False, settings) for name, settings in cases)
    )
    for (name, settings), answers in zip(cases, found, strict=True):
        wide = [(logits.double(), labels, mask) for logits, labels, mask in parts]
        value, gradients = process_worlds.alone(name, wide, False, **settings)
        for answer, gradient in zip(answers, gradients, strict=True):
            assert answer["value"].item() == pytest.approx(value.item(), rel=1e-6)
            expected = (size * gradient).float()
            process_worlds.assert_close(answer["gradient"], expected, gradients, 1e-6)


@pytest.mark.parametrize(("size", "backend"), WORLDS)
def test_box_loss_is_the_mean_over_the_positives_of_all(
    cuda_worlds: Worlds, process_worlds: Any, size: int, backend: str
) -> None:
    for seed in range(6):
        labels = [labels for _, labels, _ in process_worlds.random_parts(seed, size)]
        deltas = [torch.randn(len(own), 12, 4) for own in labels]
        whole = process_worlds.call_box_loss(torch.cat(deltas), torch.cat(labels))
        gradients = whole["gradient"].split([len(own) for own in labels])
        orders = [
            {"deltas": own_deltas, "labels": own, "synchronize": True}
            for own_deltas, own in zip(deltas, labels, strict=True)
        ]
        answers = cuda_worlds(size, backend).run("boxes", orders)
        for answer, gradient in zip(answers, gradients, strict=True):
            assert answer["error"] is None
            assert answer["value"].item() == pytest.approx(whole["value"].item(), rel=1e-5)
            process_worlds.assert_close(answer["gradient"], size * gradient, gradients, 1e-5)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_process_with_nothing_stops_with_the_one_that_has_nan(
    cuda_worlds: Worlds, case: tuple[str, dict[str, Any]]
) -> None:
    name, settings = case
    world = cuda_worlds(2, "gloo")
    wrong = [torch.full((1, 3, 4), float("nan")), torch.zeros(1, 3, dtype=torch.long)]
    nothing = [torch.zeros(0, 3, 4), torch.zeros(0, 3, dtype=torch.long)]
    first, second = world.run_loss(name, wrong, nothing, **settings, check_finite=True)
    assert first["error"].startswith("FloatingPointError: logits: 12 of 12 scores are not finite")
    assert second["error"].startswith("PeerError: process 0: FloatingPointError: logits: 12 of 12")
    for answer in world.run_loss(name, wrong, nothing, **settings):  # values are not read here
        assert answer["value"].isnan()
    labels = torch.full((1, 3), 9)  # means nothing: on a device that makes the loss NaN
    for answer in world.run_loss(name, [torch.zeros(1, 3, 4), labels], nothing, **settings):
        assert answer["value"].isnan()


def test_weights_after_some_steps_are_those_of_one_process(
    cuda_worlds: Worlds, process_worlds: Any
) -> None:
    generator = torch.Generator().manual_seed(0)
    features = [torch.randn(12, 5, dtype=torch.float64, generator=generator) for _ in range(3)]
    labels = [torch.randint(-2, 3, (12,), generator=generator) for _ in range(3)]
    network = process_worlds.small_network(torch.float64)
    values = process_worlds.fit(network, process_worlds.losses.APLoss(), features, labels)
    orders = [
        {
            "features": [batch[rank * 8 : rank * 8 + 8] for batch in features],
            "labels": [batch[rank * 8 : rank * 8 + 8] for batch in labels],
            "name": "APLoss",
            "settings": {},
        }
        for rank in range(2)
    ]
    for answer in cuda_worlds(2, "gloo").run("train", orders):
        assert answer["error"] is None
        assert answer["values"] == pytest.approx(values, rel=1e-6)
        for weight, expected in zip(answer["weights"], network.parameters(), strict=True):
            assert torch.allclose(weight, expected, rtol=1e-6, atol=1e-9)
