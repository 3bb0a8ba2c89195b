"""Losses of a batch that several processes share: the loss that one process has of all of it.

Real processes, on the CPU. The value is the same everywhere; a process has the gradient of its own
scores, times the number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rankdet import losses
from rankdet.detectors.criterion import batch_average_precision
from rankdet.losses import BACKGROUND, ghm_loss

Worlds = Callable[[int], Any]
Column = Callable[..., Tensor]

STEPS = ("piecewise", "heaviside", "sigmoid")
SCOPES = ("batch", "image")
RANKINGS: list[tuple[str, dict[str, Any]]] = [
    *(
        ("ap_loss", {"step": step, "scope": scope, "interpolate": interpolate})
        for step in STEPS
        for scope in SCOPES
        for interpolate in (True, False)
    ),
    *(("auc_loss", {"step": step, "scope": scope}) for step in STEPS for scope in SCOPES),
    *(
        ("smooth_ap_loss", {"scope": scope, "log_space": log_space})
        for scope in SCOPES
        for log_space in (True, False)
    ),
    *(("hinge_ap_loss", {"scope": scope}) for scope in SCOPES),
    *((loss, {"scope": 1}) for loss in ("ap_loss", "auc_loss")),
]
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("focal_loss", {}),
    ("focal_loss", {"gamma": 0.0, "alpha": None}),
    ("ohem_loss", {}),
    ("cross_entropy_loss", {}),
    ("ghm_loss", {}),
    ("dr_loss", {}),
    ("dr_loss", {"positive_temperature": 0.001, "negative_temperature": 0.001}),
]
ALL = RANKINGS + OTHERS
EACH = [("ap_loss", {"step": step}) for step in STEPS] + [
    *(("ap_loss", {"scope": "image"}), ("auc_loss", {}), ("smooth_ap_loss", {})),
    *(("hinge_ap_loss", {}), ("focal_loss", {}), ("ohem_loss", {}), ("ghm_loss", {})),
    ("dr_loss", {}),
]


def name_of(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *map(str, case[1].values())])


# --- by hand ---------------------------------------------------------------------------------


def test_a_positive_here_and_the_negatives_there(worlds: Worlds, column: Column) -> None:
    # b = f(1) + f(-2) = 1 + 0, a = 1: 1 - AP = 1/2; the update -1/2 and 1/2, 0, times 2 processes
    here = [column(2.0), torch.tensor([0])]
    there = [column(3.0, 0.0), torch.tensor([BACKGROUND, BACKGROUND])]
    for name in ("ap_loss", "auc_loss"):  # 1 - AUC: one negative of two
        first, second = worlds(2).run_loss(name, here, there)
        assert first["value"].item() == second["value"].item() == 0.5
        assert first["gradient"].tolist() == [[-1.0]]
        assert second["gradient"].tolist() == [[1.0], [0.0]]


def test_positives_of_two_processes_are_ranked_together(worlds: Worlds, column: Column) -> None:
    # positives 4 (here) and 0 (there), the negative 2 between them: precisions 1 and 2/3; the first
    # is not raised by interpolation: it is the higher one of rank 1 anyway
    here = [column(4.0, 2.0), torch.tensor([0, BACKGROUND])]
    there = [column(0.0), torch.tensor([0])]
    first, second = worlds(2).run_loss("ap_loss", here, there, step="heaviside")
    assert first["value"].item() == second["value"].item() == pytest.approx(1 / 6)
    assert first["gradient"].flatten().tolist() == pytest.approx([0.0, 2 / 6])
    assert second["gradient"].flatten().tolist() == pytest.approx([-2 / 6])


def test_images_are_averaged_over_all_processes(worlds: Worlds, column: Column) -> None:
    # Two images here, of loss 1/2 and, without positives, 0; there, one of loss 0, but ranked.
    here = [column(0.0, 2.0, 5.0, 5.0).view(2, 2, 1), torch.tensor([[0, BACKGROUND], [-1, -1]])]
    there = [column(9.0, 0.0).view(1, 2, 1), torch.tensor([[0, BACKGROUND]])]
    first, second = worlds(2).run_loss("ap_loss", here, there, scope="image")
    assert first["value"].item() == second["value"].item() == 0.25
    assert first["gradient"].flatten().tolist() == [-0.5, 0.5, 0.0, 0.0]
    assert second["gradient"].flatten().tolist() == [0.0, 0.0]


def test_images_are_ranked_together_within_their_process(worlds: Worlds, column: Column) -> None:
    # Here two images together, of loss 1/2, and one alone, of loss 0; there, one of loss 1/2.
    here = [column(0.0, 2.0, -5.0, -5.0, 9.0, 0.0).view(3, 2, 1)]
    here.append(torch.tensor([[0, BACKGROUND], [-1, -1], [0, BACKGROUND]]))
    there = [column(0.0, 2.0).view(1, 2, 1), torch.tensor([[0, BACKGROUND]])]
    first, second = worlds(2).run_loss("ap_loss", here, there, scope=2)
    assert first["value"].item() == second["value"].item() == pytest.approx(1 / 3)
    ours = [-1 / 3, 1 / 3, 0.0, 0.0, 0.0, 0.0]  # 1/2 over three rankings, times 2 processes
    assert first["gradient"].flatten().tolist() == pytest.approx(ours)
    assert second["gradient"].flatten().tolist() == pytest.approx([-1 / 3, 1 / 3])


def test_the_normaliser_of_focal_loss_is_global(worlds: Worlds, column: Column) -> None:
    # Binary cross-entropy: 3 log 2 over the one positive.
    here = [column(0.0, 0.0), torch.tensor([BACKGROUND, BACKGROUND])]
    there = [column(0.0), torch.tensor([0])]
    first, second = worlds(2).run_loss("focal_loss", here, there, gamma=0.0, alpha=None)
    assert first["value"].item() == second["value"].item() == pytest.approx(3 * math.log(2))
    assert first["gradient"].flatten().tolist() == pytest.approx([1.0, 1.0])
    assert second["gradient"].flatten().tolist() == pytest.approx([-1.0])


def test_ohem_chooses_in_each_image_and_divides_by_all_positives(worlds: Worlds) -> None:
    # Two columns of 0 have the loss log 2. Here a positive and one negative, there two of each.
    here = [torch.zeros(3, 2), torch.tensor([0, BACKGROUND, BACKGROUND])]
    there = [torch.zeros(5, 2), torch.tensor([0, 0, *[BACKGROUND] * 3])]
    answers = worlds(2).run_loss("ohem_loss", here, there, negative_ratio=1.0)
    for answer in answers:
        assert answer["value"].item() == pytest.approx((2 + 4) * math.log(2) / 3)
        assert answer["gradient"].abs().max().item() == pytest.approx(2 * 0.5 / 3)


def test_without_positives_anywhere_loss_and_gradient_are_zero(worlds: Worlds) -> None:
    inputs = [torch.randn(4, 3), torch.full((4,), BACKGROUND)]
    for step in STEPS:
        for answer in worlds(2).run_loss("ap_loss", inputs, inputs, step=step):
            assert answer["value"].item() == 0.0
            assert not answer["gradient"].any()


# --- against one process ---------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("case", ALL, ids=name_of)
def test_gradients_are_those_of_one_process_with_the_whole_batch(
    worlds: Worlds, process_worlds: Any, case: tuple[str, dict[str, Any]], size: int
) -> None:
    name, settings = case
    problems = [(process_worlds.random_parts(seed, size), bool(seed % 2)) for seed in range(10)]
    cases = [(name, parts, is_masked, settings) for parts, is_masked in problems]
    for (parts, is_masked), answers in zip(problems, worlds(size).run_cases(*cases), strict=True):
        value, gradients = process_worlds.alone(name, parts, is_masked, **settings)
        for answer, gradient in zip(answers, gradients, strict=True):
            assert answer["value"].item() == pytest.approx(value.item(), rel=1e-12, abs=1e-14)
            process_worlds.assert_close(answer["gradient"], size * gradient, gradients, 1e-10)


def test_the_problems_have_empty_processes_and_others(process_worlds: Any) -> None:
    """The test above would prove less otherwise."""
    parts = [part for seed in range(10) for part in process_worlds.random_parts(seed, 4)]
    num_images = torch.tensor([len(logits) for logits, _, _ in parts])
    assert 0.2 < (num_images == 0).double().mean() < 0.5
    assert set(num_images.tolist()) == {0, 1, 2, 3}
    labels = [labels for _, labels, _ in parts if len(labels)]
    assert any(bool((each < 0).all()) for each in labels)
    masked = [(labels, mask) for _, labels, mask in parts if len(labels)]
    is_positive = [(each.unsqueeze(-1) == torch.arange(3), mask) for each, mask in masked]
    assert any(bool((mask <= positive).all()) for positive, mask in is_positive)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("case", EACH, ids=name_of)
def test_narrow_scores_lose_no_more_than_in_one_process(
    worlds: Worlds, process_worlds: Any, case: tuple[str, dict[str, Any]], dtype: torch.dtype
) -> None:
    name, settings = case
    parts = process_worlds.random_parts(3, 4, dtype)
    value, gradients = process_worlds.alone(name, parts, False, **settings)
    (answers,) = worlds(4).run_cases((name, parts, False, settings))
    rounding = 1e-6 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
    rounding = max(rounding, 1e-5) if name == "dr_loss" else rounding  # it subtracts two means
    for answer, gradient in zip(answers, gradients, strict=True):
        assert answer["value"].dtype == torch.float32
        assert answer["value"].item() == pytest.approx(value.item(), rel=1e-6)
        process_worlds.assert_close(answer["gradient"], 4 * gradient, gradients, rounding)


def test_what_comes_in_from_behind_scales_the_gradient(worlds: Worlds, process_worlds: Any) -> None:
    parts = process_worlds.random_parts(5, 2)
    for name, settings in EACH:
        _, gradients = process_worlds.alone(name, parts, False, **settings)
        orders = [
            {"name": name, "inputs": part[:2], "settings": settings, "grad_output": -3.0}
            for part in parts
        ]
        for answer, gradient in zip(worlds(2).run("loss", orders), gradients, strict=True):
            process_worlds.assert_close(answer["gradient"], -6 * gradient, gradients, 1e-10)


def test_the_plain_ranking_problem_is_shared_too(worlds: Worlds) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(9, dtype=torch.float64, generator=generator)
    targets = torch.tensor([1, 0, 0, 1, 0, 1, 0, 0, 1])
    first = [scores[:6].view(2, 3), targets[:6].view(2, 3)]
    answers = worlds(2).run_loss("binary_ap_loss", first, [scores[6:], targets[6:]])
    leaf = scores.clone().requires_grad_()
    value = losses.binary_ap_loss(leaf, targets)
    value.backward()
    assert leaf.grad is not None
    assert [answer["value"].item() for answer in answers] == pytest.approx([value.item()] * 2)
    found = torch.cat([answer["gradient"].flatten() for answer in answers])
    assert torch.allclose(found, 2 * leaf.grad)


def test_box_loss_is_the_mean_over_the_positives_of_all(
    worlds: Worlds, process_worlds: Any
) -> None:
    for seed in range(4):
        parts = process_worlds.random_parts(seed, 4)
        deltas = [torch.randn(len(labels), 12, 4) for _, labels, _ in parts]
        labels = [labels for _, labels, _ in parts]
        whole = process_worlds.call_box_loss(torch.cat(deltas), torch.cat(labels), beta=0.5)
        gradients = whole["gradient"].split([len(own) for own in labels])
        orders = [
            {"deltas": own_deltas, "labels": own, "beta": 0.5, "synchronize": True}
            for own_deltas, own in zip(deltas, labels, strict=True)
        ]
        answers = worlds(4).run("boxes", orders)
        for answer, gradient in zip(answers, gradients, strict=True):
            assert answer["value"].item() == pytest.approx(whole["value"].item(), rel=1e-6)
            process_worlds.assert_close(answer["gradient"], 4 * gradient, gradients, 1e-6)
            assert answer["sent"] == [2]


@pytest.mark.parametrize("loss", ["CrossEntropyLoss", "OHEMLoss"])
@pytest.mark.parametrize("shares", [([0, 1, 2, 3], [4]), ([], [5, 2]), ([0, 3], [6])])
def test_both_stages_of_faster_rcnn_have_the_losses_of_the_global_batch(
    shares: tuple[list[int], list[int]], loss: str, worlds: Worlds, process_worlds: Any
) -> None:
    whole = process_worlds.call_stages([*shares[0], *shares[1]], loss)
    assert all(part.isfinite() for part in whole["parts"].values())
    assert set(whole["parts"]) == {"rpn.class", "rpn.box", "roi.class", "roi.box"}
    orders = [{"images": images, "loss": loss, "synchronize": True} for images in shares]
    answers = worlds(2).run("stages", orders)
    assert [answer["error"] for answer in answers] == [None, None]
    sizes = [len(images) for images in shares]
    for rank, answer in enumerate(answers):
        for name, part in whole["parts"].items():
            assert answer["parts"][name].item() == pytest.approx(part.item(), rel=1e-5, abs=1e-7)
        for own, gradient in zip(answer["gradients"], whole["gradients"], strict=True):
            expected = 2 * gradient.split(sizes)[rank]  # which DDP halves
            process_worlds.assert_close(own, expected, [expected], 1e-5)


def test_the_shown_precision_is_that_of_the_global_batch(
    worlds: Worlds, process_worlds: Any
) -> None:
    for activation in ("sigmoid", "softmax"):
        parts = [(logits, labels) for logits, labels, _ in process_worlds.random_parts(7, 4)]
        logits, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        expected = batch_average_precision(logits, labels, activation)
        orders = [
            {"logits": logits, "labels": labels, "activation": activation}
            for logits, labels in parts
        ]
        for answer in worlds(4).run("precision", orders):
            assert answer["value"].item() == pytest.approx(expected.item())


def test_the_shown_precision_is_nan_only_without_positives_anywhere(worlds: Worlds) -> None:
    here = {"logits": torch.zeros(1, 2, 1), "labels": torch.tensor([[-1, -1]])}
    there = {"logits": torch.zeros(1, 1, 1), "labels": torch.tensor([[0]])}
    for other, is_nan in ((there, False), (here, True)):
        answers = worlds(2).run(
            "precision", [{**own, "activation": "sigmoid"} for own in (here, other)]
        )
        assert [bool(answer["value"].isnan()) for answer in answers] == [is_nan] * 2


# --- training --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["APLoss", "FocalLoss", "GHMLoss"])
def test_weights_after_some_steps_are_those_of_one_process(
    worlds: Worlds, process_worlds: Any, name: str
) -> None:
    """Under DistributedDataParallel itself, in batches of uneven parts, one of them empty."""
    generator = torch.Generator().manual_seed(0)
    sizes = [[9, 4, 0, 2], [0, 7, 1, 3], [5, 5, 5, 0]]
    features = [
        torch.randn(sum(parts), 5, dtype=torch.float64, generator=generator) for parts in sizes
    ]
    labels = [torch.randint(-2, 3, (sum(parts),), generator=generator) for parts in sizes]
    network = process_worlds.small_network(torch.float64)
    values = process_worlds.fit(network, getattr(losses, name)(), features, labels)
    orders = [
        {
            "features": [f.split(parts)[rank] for f, parts in zip(features, sizes, strict=True)],
            "labels": [own.split(parts)[rank] for own, parts in zip(labels, sizes, strict=True)],
            "name": name,
            "settings": {},
        }
        for rank in range(4)
    ]
    start = process_worlds.small_network(torch.float64)
    for answer in worlds(4).run("train", orders):
        assert answer["error"] is None
        assert answer["values"] == pytest.approx(values, rel=1e-6)
        both = zip(answer["weights"], network.parameters(), start.parameters(), strict=True)
        for weight, expected, first in both:
            assert torch.allclose(weight, expected, rtol=1e-9, atol=1e-12)
            assert not torch.allclose(weight, first, rtol=1e-3)


def test_running_counts_stay_equal_and_a_broken_batch_leaves_no_trace(worlds: Worlds) -> None:
    logits = torch.linspace(-3, 3, 12).view(6, 2)
    labels = torch.tensor([0, 1, -1, -1, -2, -1])
    broken = torch.full((1, 2), float("nan"))
    here = [(logits[:4], labels[:4]), (broken, labels[:1]), (logits[:1], labels[:1])]
    there = [(logits[4:], labels[4:]), (logits[:4], labels[:4]), (logits[1:], labels[1:])]
    first, second = worlds(2).run("ghm", [{"batches": here}, {"batches": there}])
    counts = torch.zeros(5)
    expected = ghm_loss(logits, labels, bins=5, momentum=0.75, running_counts=counts)
    again = ghm_loss(logits, labels, bins=5, momentum=0.75, running_counts=counts)
    for answer in (first, second):
        assert torch.allclose(answer["counts"], counts)
        assert answer["values"][1].isnan()
        assert torch.allclose(answer["values"][[0, 2]], torch.stack([expected, again]))
