"""Synchronised losses: what travels between processes, what happens when one fails, settings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rankdet import losses
from rankdet.detectors.criterion import batch_average_precision
from rankdet.losses import BACKGROUND, IGNORED, APLoss

Worlds = Callable[[int], Any]

STEPS = ("piecewise", "heaviside", "sigmoid")
EACH = [("ap_loss", {"step": step}) for step in STEPS] + [
    *(("ap_loss", {"scope": "image"}), ("auc_loss", {}), ("smooth_ap_loss", {})),
    *(("hinge_ap_loss", {}), ("focal_loss", {}), ("ohem_loss", {}), ("ghm_loss", {})),
    *(("dr_loss", {}), ("cross_entropy_loss", {})),
]
MODULES = ("APLoss", "AUCLoss", "SmoothAPLoss", "HingeAPLoss")
MODULES += ("FocalLoss", "OHEMLoss", "GHMLoss", "DRLoss", "CrossEntropyLoss")


def name_of(case: tuple[str, dict[str, Any]]) -> str:
    return "-".join([case[0], *map(str, case[1].values())])


# --- what travels ----------------------------------------------------------------------------


def sent(world: Any, name: str, num_positives: int, num_negatives: int, **settings: Any) -> Any:
    """What each process sends, with so many positives and negatives in all."""
    generator = torch.Generator().manual_seed(num_negatives)
    parts = []
    for number in (num_positives // 2, num_positives - num_positives // 2):
        labels = torch.full((number + num_negatives // 2,), BACKGROUND)
        labels[:number] = 0
        parts.append([torch.randn(len(labels), 1, generator=generator), labels])
    answers = world.run_loss(name, *parts, **settings)
    assert [answer["error"] for answer in answers] == [None, None]
    return [answer["sent"] for answer in answers]


@pytest.mark.parametrize("step", STEPS)
def test_numbers_that_travel_grow_with_the_positives_never_with_the_negatives(
    worlds: Worlds, step: str
) -> None:
    for name in ("ap_loss", "auc_loss"):
        few = sent(worlds(2), name, 6, 200, step=step)
        assert few == sent(worlds(2), name, 6, 20_000, step=step)
        for positives in (0, 6, 60):
            num_bins = {"piecewise": 2 * positives + 1, "heaviside": positives + 1}.get(step)
            numbers = positives + 1 if num_bins is None else 2 * num_bins
            # a flag, how many positives each has, the positives, the bins or sums, if all is right
            expected = [1, 2, *[positives] * (positives > 0), numbers + 1]
            assert sent(worlds(2), name, positives, 200, step=step) == [expected] * 2


def test_other_losses_send_numbers_that_do_not_grow_with_the_negatives(worlds: Worlds) -> None:
    for name, most in (("focal_loss", 3), ("ghm_loss", 40), ("dr_loss", 8)):
        few, many = (sent(worlds(2), name, 6, number) for number in (200, 20_000))
        assert few == many
        assert sum(few[0]) <= most
    image = {"inputs": [torch.randn(3, 50, 2), torch.zeros(3, 50, dtype=torch.long)]}
    order = {"name": "ap_loss", "settings": {"scope": "image"}, **image}
    assert [answer["sent"] for answer in worlds(2).run("loss", [order] * 2)] == [[1, 2]] * 2


def test_hinge_loss_sends_a_few_numbers_for_each_positive_and_round(worlds: Worlds) -> None:
    for positives in (4, 40):
        for negatives in (200, 20_000):
            for numbers in sent(worlds(2), "hinge_ap_loss", positives, negatives):
                assert max(numbers) <= 8 * positives + 10
                assert len(numbers) < 30


# --- errors ----------------------------------------------------------------------------------


def check_errors(answers: list[Any], culprit: int, own: str) -> None:
    """The culprit has raised the error, and all others have told so, long before the timeout."""
    for rank, answer in enumerate(answers):
        start = own if rank == culprit else f"PeerError: process {culprit}: {own}"
        assert answer["error"] is not None
        assert answer["error"].startswith(start)
        assert answer["seconds"] < 10  # half of it


@pytest.mark.parametrize("case", EACH, ids=name_of)
def test_when_one_process_raises_the_others_stop_with_its_message(
    worlds: Worlds, case: tuple[str, dict[str, Any]]
) -> None:
    name, settings = case
    world = worlds(4)
    right = [torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)]
    wrong = [torch.zeros(2, 3, 4), torch.zeros(2, 4, dtype=torch.long)]
    answers = world.run_loss(name, right, right, wrong, right, **settings)
    check_errors(answers, 2, "ValueError: labels: expected shape (2, 3), one integer for each")

    wrong = [torch.zeros(1, 3, 4), torch.full((1, 3), 9)]
    answers = world.run_loss(name, right, wrong, right, right, **settings)
    check_errors(answers, 1, "ValueError: labels: expected 0..")

    wrong = [torch.full((1, 3, 4), math.inf), torch.zeros(1, 3, dtype=torch.long)]
    answers = world.run_loss(name, right, right, right, wrong, **settings, check_finite=True)
    check_errors(answers, 3, "FloatingPointError: logits: 12 of 12 scores are not finite (0 NaN,")
    # and they can go on
    assert [a["error"] for a in world.run_loss(name, right, right, right, right)] == [None] * 4


def test_the_plain_ranking_problem_speaks_of_scores_and_targets(worlds: Worlds) -> None:
    right = [torch.zeros(2), torch.tensor([0, 1])]
    for wrong, error in (
        ([torch.zeros(2), torch.tensor([0])], "ValueError: targets: expected the scores' shape"),
        ([torch.zeros(2), torch.tensor([0, 7])], "ValueError: targets: expected 0 or 1, got 7"),
        ([torch.full((2,), math.nan), right[1]], "FloatingPointError: scores: 2 of 2 scores are"),
    ):
        check_errors(worlds(2).run_loss("binary_ap_loss", right, wrong), 1, error)


@pytest.mark.parametrize("case", EACH, ids=name_of)
def test_a_broken_score_anywhere_makes_value_and_gradient_nan_everywhere(
    worlds: Worlds, case: tuple[str, dict[str, Any]]
) -> None:
    name, settings = case
    labels = torch.tensor([[0, BACKGROUND, IGNORED]])
    right = torch.arange(9.0).view(1, 3, 3)
    is_counted = labels[..., None] != IGNORED
    # the positive, a negative; of infinity some losses would make a number
    for place, score in (((0, 0, 0), math.nan), ((0, 1, 2), math.nan), ((0, 1, 2), math.inf)):
        wrong = right.clone()
        wrong[place] = score
        background = labels.clamp(max=BACKGROUND)
        parts = [[wrong, labels], [right, labels], [right, background], [right[:0], labels[:0]]]
        answers = worlds(4).run_loss(name, *parts, **settings, check_finite=False)
        assert all(answer["value"].isnan() for answer in answers)
        for answer, (_, own) in zip(answers, parts, strict=True):
            if name == "ohem_loss":  # where only chosen anchors have a gradient
                continue
            expected = is_counted.expand(answer["gradient"].shape)
            if own is background:
                expected = (background[..., None] != IGNORED).expand(expected.shape)
            assert torch.equal(answer["gradient"].isnan(), expected)
            assert not answer["gradient"][~expected].any()


# --- settings --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
def test_modules_pass_their_group_on(worlds: Worlds, process_worlds: Any, name: str) -> None:
    """A pair of four processes has a loss of its own; the two others take no part in it."""
    parts = process_worlds.random_parts(5, 2)
    # SmoothAPLoss -> smooth_ap_loss
    function = re.sub(r"(?<=[a-z])(?=[A-Z])|(?=Loss)", "_", name).lower().replace("__", "_")
    settings = {"momentum": 0.0} if name == "GHMLoss" else {}
    value, gradients = process_worlds.alone(function, parts, False)
    by_rank = [parts[0], parts[0], parts[1], parts[1]]
    orders = [
        {"name": name, "inputs": part[:2], "settings": settings, "ranks": [1, 2]}
        for part in by_rank
    ]
    answers = worlds(4).run("loss", orders)
    for answer, gradient in zip(answers[1:3], gradients, strict=True):
        assert answer["value"].item() == pytest.approx(value.item(), rel=1e-6)
        process_worlds.assert_close(answer["gradient"], 2 * gradient, gradients, 1e-6)
    for answer in (answers[0], answers[3]):
        assert answer["error"].startswith("ValueError: process_group: expected a group that this")


def test_box_loss_and_precision_take_a_group_too(worlds: Worlds, process_worlds: Any) -> None:
    labels = torch.tensor([[0, BACKGROUND, 0, BACKGROUND]])
    deltas = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0))
    by_rank = [0, 0, 1, 1]
    both = torch.cat([labels, labels.flip(1)])
    group = {"ranks": [1, 2]}
    order = {"synchronize": True, **group}
    parts = [{"deltas": deltas[[i]], "labels": both[[i]], **order} for i in by_rank]
    expected = process_worlds.call_box_loss(deltas, both)["value"].item()
    answers = worlds(4).run("boxes", parts)
    assert [a["value"].item() for a in answers[1:3]] == pytest.approx([expected] * 2)
    assert answers[0]["error"].startswith("ValueError: process_group")

    parts = [
        {"logits": deltas[[i]], "labels": both[[i]], "activation": "sigmoid", **group}
        for i in by_rank
    ]
    precision = batch_average_precision(deltas, both, "sigmoid").item()
    answers = worlds(4).run("precision", parts)
    assert [a["value"].item() for a in answers[1:3]] == pytest.approx([precision] * 2)
    assert answers[0]["error"].startswith("ValueError: process_group")


def test_without_synchronize_each_process_is_alone(worlds: Worlds, process_worlds: Any) -> None:
    parts = [part[:2] for part in process_worlds.random_parts(5, 2)]
    for name, settings in EACH:
        answers = worlds(2).run_loss(name, *parts, **settings, synchronize=False)
        for (logits, labels), answer in zip(parts, answers, strict=True):
            expected = getattr(losses, name)(logits, labels, **settings)
            assert answer["value"].item() == expected.item()
            assert answer["sent"] == []


def test_without_a_group_synchronize_changes_nothing(process_worlds: Any) -> None:
    (logits, labels, _), _ = process_worlds.random_parts(5, 2)
    for name, settings in EACH:
        loss = getattr(losses, name)
        value = loss(logits, labels, **settings, synchronize=True)
        assert value.item() == loss(logits, labels, **settings).item()


def test_compiled_code_leaves_the_synchronised_loss_out(
    worlds: Worlds, process_worlds: Any
) -> None:
    parts = process_worlds.random_parts(5, 2)
    for name, settings in (("ap_loss", {}), ("focal_loss", {}), ("dr_loss", {})):
        value, gradients = process_worlds.alone(name, parts, False, **settings)
        orders = [
            {"name": name, "inputs": part[:2], "settings": settings, "compiled": True}
            for part in parts
        ]
        for answer, gradient in zip(worlds(2).run("loss", orders), gradients, strict=True):
            assert answer["error"] is None
            assert answer["value"].item() == pytest.approx(value.item())
            process_worlds.assert_close(answer["gradient"], 2 * gradient, gradients, 1e-10)


def test_a_module_says_that_it_synchronises_only_if_it_does() -> None:
    settings = (
        "delta=1.0, step='piecewise', interpolate=True, scope='batch', check_finite=None, "
        "negatives='all', ratio=3.0"
    )
    assert repr(APLoss()) == f"APLoss({settings})"
    assert repr(APLoss(synchronize=True)) == f"APLoss(synchronize=True, {settings})"
