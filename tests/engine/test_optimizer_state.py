"""Optimisers and random numbers that go on as if nothing had happened."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankdet.engine.checkpoint import load_checkpoint, save_checkpoint
from rankdet.engine.optimizer_state import (
    criterion_state,
    optimizer_state,
    random_state,
    restore_criterion,
    restore_optimizer,
    restore_random_state,
)
from rankdet.errors import CheckpointError

MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.01, betas=(0.8, 0.95))


def in_groups(module: nn.Module) -> torch.optim.Optimizer:
    """Biases before weights: another order than the network's own."""
    named = dict(module.named_parameters())
    biases = [parameter for name, parameter in named.items() if name.endswith("bias")]
    weights = [parameter for name, parameter in named.items() if name.endswith("weight")]
    groups = [{"params": biases, "weight_decay": 0.0}, {"params": weights, "lr": 0.05}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01)


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(2, 3, 4, 4, generator=generator)
        optimizer.zero_grad()
        module(images).square().sum().backward()
        optimizer.step()


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.named_parameters()}


def through_json(settings: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(settings)))


@pytest.mark.parametrize("make", [sgd, adamw, in_groups])
def test_a_training_goes_on_to_the_last_bit(make: MakeOptimizer, tmp_path: Path) -> None:
    whole = network()
    train(whole, make(whole), range(6))

    first = network()
    optimizer = make(first)
    train(first, optimizer, range(3))
    tensors, settings = optimizer_state(optimizer, first.named_parameters())
    path = save_checkpoint(
        tmp_path, 3, weights=first.state_dict(), training=tensors, state={"optimizer": settings}
    )

    read = load_checkpoint(path)
    second = network()
    second.load_state_dict(read.weights)
    optimizer = make(second)
    names = second.named_parameters()
    restore_optimizer(optimizer, read.training, read.state["optimizer"], names)
    train(second, optimizer, range(3, 6))
    expected = weights_of(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights_of(second).items())
    without = network()
    without.load_state_dict(read.weights)
    train(without, make(without), range(3, 6))  # the optimiser's memory matters
    assert not torch.equal(weights_of(without)["2.weight"], expected["2.weight"])


def test_names_and_dtypes_are_those_of_the_optimiser() -> None:
    module = network()
    optimizer = adamw(module)
    train(module, optimizer, range(2))
    tensors, settings = optimizer_state(optimizer, module.named_parameters())
    assert set(tensors) == {
        f"optimizer.{name}.{key}"
        for name in ("0.weight", "0.bias", "2.weight", "2.bias")
        for key in ("step", "exp_avg", "exp_avg_sq")
    }
    assert tensors["optimizer.0.bias.step"].item() == 2.0
    (group,) = settings["groups"]
    assert group["parameters"] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert (settings["type"], group["lr"]) == ("AdamW", 0.01)
    assert "foreach" not in group  # how this machine computes it

    tensors["optimizer.0.bias.exp_avg"] = tensors["optimizer.0.bias.exp_avg"].double()
    fresh = adamw(module)
    restore_optimizer(fresh, tensors, through_json(settings), module.named_parameters())
    state = fresh.state[dict(module.named_parameters())["0.bias"]]
    assert state["exp_avg"].dtype == torch.float64
    assert (state["step"].dtype, state["step"].device.type) == (torch.float32, "cpu")
    assert fresh.param_groups[0]["betas"] == (0.8, 0.95)


def test_each_group_gets_its_own_settings_back() -> None:
    module = network()
    optimizer = in_groups(module)
    train(module, optimizer, range(1))
    optimizer.param_groups[0]["lr"] = 0.003
    tensors, settings = optimizer_state(optimizer, module.named_parameters())
    assert [group["parameters"] for group in settings["groups"]] == [
        ["0.bias", "2.bias"],
        ["0.weight", "2.weight"],
    ]
    fresh = in_groups(module)
    restore_optimizer(fresh, tensors, through_json(settings), module.named_parameters())
    assert [group["lr"] for group in fresh.param_groups] == [0.003, 0.05]
    assert [group["weight_decay"] for group in fresh.param_groups] == [0.0, 0.01]
    parameters = dict(module.named_parameters())
    for name in ("0.bias", "2.weight"):
        restored = fresh.state[parameters[name]]["momentum_buffer"]
        assert torch.equal(restored, optimizer.state[parameters[name]]["momentum_buffer"])


def test_frozen_parameters_and_other_tensors_are_no_hindrance() -> None:
    module = network()
    module[0].requires_grad_(False)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    train(module, optimizer, range(1))
    tensors, settings = optimizer_state(optimizer, module.named_parameters())
    assert list(tensors) == [
        "optimizer.2.weight.momentum_buffer",
        "optimizer.2.bias.momentum_buffer",
    ]
    restore_optimizer(optimizer, tensors | random_state(), settings, module.named_parameters())


def test_an_optimiser_that_has_made_no_step_is_restored_as_such() -> None:
    module = network()
    tensors, settings = optimizer_state(sgd(module), module.named_parameters())
    assert tensors == {}
    used = sgd(module)
    train(module, used, range(1))
    restore_optimizer(used, tensors, settings, module.named_parameters())
    assert not used.state


def test_what_an_optimiser_remembers_beside_tensors_comes_back() -> None:
    module = network()
    optimizer = sgd(module)
    (first, *_) = module.parameters()
    optimizer.state[first] = {"momentum_buffer": None, "count": 3}
    tensors, settings = optimizer_state(optimizer, module.named_parameters())
    assert tensors == {}
    fresh = sgd(module)
    restore_optimizer(fresh, tensors, through_json(settings), module.named_parameters())
    assert fresh.state[first] == {"momentum_buffer": None, "count": 3}


def test_restored_tensors_are_copies_laid_out_like_their_parameters() -> None:
    module = network().to(memory_format=torch.channels_last)
    optimizer = sgd(module)
    train(module, optimizer, range(1))
    tensors, settings = optimizer_state(optimizer, module.named_parameters())
    plain = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    fresh = sgd(module)
    restore_optimizer(fresh, plain, settings, module.named_parameters())
    restored = fresh.state[module[0].weight]["momentum_buffer"]
    assert restored.stride() == module[0].weight.stride()
    assert not restored.requires_grad
    restored.zero_()
    assert plain["optimizer.0.weight.momentum_buffer"].abs().sum() > 0


# What does not belong together


def stored(make: MakeOptimizer = sgd) -> tuple[dict[str, Tensor], dict[str, Any]]:
    module = network()
    optimizer = make(module)
    train(module, optimizer, range(1))
    return optimizer_state(optimizer, module.named_parameters())


def refusal(module: nn.Module, optimizer: torch.optim.Optimizer, *saved: Any) -> str:
    """What restoring says; the optimiser must be as before."""
    before = [dict(group) for group in optimizer.param_groups]
    with pytest.raises(CheckpointError, match="belongs to another training") as caught:
        restore_optimizer(optimizer, *saved, module.named_parameters())
    assert not optimizer.state
    assert [dict(group) for group in optimizer.param_groups] == before
    return str(caught.value)


def test_another_type_of_optimiser_is_refused() -> None:
    module = network()
    text = refusal(module, adamw(module), *stored(sgd))
    assert "it was made by SGD, this training uses AdamW" in text


def test_other_parameters_are_refused() -> None:
    module = nn.Sequential(*network(), nn.Linear(2, 2))
    text = refusal(module, sgd(module), *stored())
    assert "differ: 3.bias, 3.weight." in text
    module = network()
    assert "the groups or their order" in refusal(module, in_groups(module), *stored())


def test_another_shape_is_refused() -> None:
    module = network()
    module[2] = nn.Linear(16, 5)
    text = refusal(module, sgd(module), *stored())
    assert "2.weight.momentum_buffer is (2, 16), here (5, 16)" in text


def test_a_missing_or_foreign_tensor_is_refused() -> None:
    module = network()
    tensors, settings = stored()
    less = {name: tensor for name, tensor in tensors.items() if name[:11] != "optimizer.2"}
    assert "differ: optimizer.2.bias.mom" in refusal(module, sgd(module), less, settings)
    more = tensors | {"optimizer.9.bias.momentum_buffer": torch.ones(1)}
    assert "differ: optimizer.9.bias.mom" in refusal(module, sgd(module), more, settings)
    settings = settings | {"tensors": list(more)}
    assert "has numbers for 9.bias" in refusal(module, sgd(module), more, settings)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda settings: settings.clear(),
        lambda settings: settings.update(groups="x"),
        lambda settings: settings.update(groups=["x"]),
        lambda settings: settings.update(groups=[{"lr": 1.0}]),
        lambda settings: settings.update(values=[]),
        lambda settings: settings.update(tensors=None),
        lambda settings: settings.pop("type"),
    ],
)
def test_settings_that_nobody_has_written_are_refused(
    spoil: Callable[[dict[str, Any]], Any],
) -> None:
    module = network()
    tensors, settings = stored()
    settings = through_json(settings)
    spoil(settings)
    assert "not as they were written" in refusal(module, sgd(module), tensors, settings)
    assert "not as they were written" in refusal(module, sgd(module), tensors, "x")


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("momentum", "0.9", r"momentum = '0\.9': expected something like 0\.9"),
        ("momentum", [0.9], "expected something like"),
        ("nesterov", 1, "nesterov = 1: expected something like False"),
        ("params", [], "unknown here: 'params'"),
        ("hook", "x", "unknown here: 'hook'"),
    ],
)
def test_options_of_another_kind_are_refused(option: str, value: object, reason: str) -> None:
    module = network()
    tensors, settings = stored()
    settings = through_json(settings)
    settings["groups"][0][option] = value
    assert re.search(reason, refusal(module, sgd(module), tensors, settings))


def test_options_may_be_lists_of_tuples_and_whole_numbers_and_missing() -> None:
    module = network()
    tensors, settings = stored(adamw)
    settings = through_json(settings)
    (group,) = settings["groups"]
    group["lr"] = 1
    del group["eps"]  # of a torch that did not have it yet
    optimizer = adamw(module)
    restore_optimizer(optimizer, tensors, settings, module.named_parameters())
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.95)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["eps"]) == (1, 1e-8)
    group["betas"] = [0.8]
    assert "betas = [0.8]" in refusal(module, adamw(module), tensors, settings)


def test_only_counts_are_single_numbers() -> None:
    module = network()
    tensors, settings = stored()
    tensors["optimizer.0.weight.momentum_buffer"] = torch.tensor(1.0)
    text = refusal(module, sgd(module), tensors, settings)
    assert "0.weight.momentum_buffer is (), here (" in text


def test_what_is_remembered_beside_tensors_must_be_numbers() -> None:
    module = network()
    tensors, settings = stored()
    settings["values"] = {"optimizer.0.weight.count": "many"}
    assert "0.weight.count = 'many'" in refusal(module, sgd(module), tensors, settings)


def test_names_must_cover_the_optimiser() -> None:
    module = network()
    with pytest.raises(ValueError, match="names of all parameters"):
        optimizer_state(sgd(module), module[0].named_parameters())


# Random numbers


def test_random_numbers_go_on_where_they_were() -> None:
    torch.manual_seed(3)
    torch.rand(5)
    state = random_state()
    expected = torch.rand(5)
    torch.manual_seed(99)
    restore_random_state(state | {"other": torch.ones(1)})
    assert torch.equal(torch.rand(5), expected)


def test_random_numbers_survive_a_checkpoint(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, weights={}, training=random_state(), state={})
    expected = torch.rand(5)
    restore_random_state(load_checkpoint(path).training)
    assert torch.equal(torch.rand(5), expected)


def test_a_checkpoint_without_random_numbers_cannot_be_continued() -> None:
    with pytest.raises(CheckpointError, match=r"no random\.cpu"):
        restore_random_state({})


@pytest.mark.parametrize(
    "state",
    [torch.zeros(10, dtype=torch.uint8), torch.zeros(5056), torch.zeros((), dtype=torch.uint8)],
)
def test_random_numbers_of_another_kind_are_refused(state: Tensor) -> None:
    before = torch.get_rng_state()
    with pytest.raises(CheckpointError, match=r"random\.cpu cannot be used: .*RNG state.* Use"):
        restore_random_state({"random.cpu": state})
    assert torch.equal(torch.get_rng_state(), before)


def test_the_state_of_a_gpu_is_ignored_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    restored: list[Tensor] = []
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    state = random_state() | {"random.cuda": torch.zeros(16, dtype=torch.uint8)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    restore_random_state(state)
    assert restored == []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    restore_random_state(state)
    assert restored == [state["random.cuda"]]


@pytest.mark.gpu
def test_random_numbers_of_a_gpu_go_on_where_they_were() -> None:
    torch.rand(5, device="cuda")
    state = random_state()
    assert state["random.cuda"].device.type == "cpu"
    expected = torch.rand(5, device="cuda")
    torch.cuda.manual_seed(99)
    restore_random_state(state)
    assert torch.equal(torch.rand(5, device="cuda"), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("fused", [False, True])
def test_a_step_count_is_where_the_optimiser_wants_it(fused: bool) -> None:
    module = nn.Linear(2, 2).cuda()
    optimizer = torch.optim.AdamW(module.parameters(), fused=fused)
    module(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    tensors, settings = optimizer_state(optimizer, module.named_parameters())
    fresh = torch.optim.AdamW(module.parameters(), fused=fused)
    saved = {name: tensor.cpu() for name, tensor in tensors.items()}
    restore_optimizer(fresh, saved, settings, module.named_parameters())
    state = fresh.state[module.weight]
    assert state["step"].device == optimizer.state[module.weight]["step"].device
    assert state["exp_avg"].device.type == "cuda"
    fresh.step()


def test_what_a_loss_remembers_is_put_back() -> None:
    before, after = nn.Sequential(nn.BatchNorm1d(2)), nn.Sequential(nn.BatchNorm1d(2))
    before(torch.randn(8, 2))
    restore_criterion(after, criterion_state(before) | random_state())
    assert torch.equal(after[0].running_mean, before[0].running_mean)
    assert before[0].running_mean.any()


def test_a_loss_without_memory_adds_nothing() -> None:
    assert criterion_state(nn.ReLU()) == {}
    restore_criterion(nn.ReLU(), random_state())


@pytest.mark.parametrize("saved", [nn.ReLU(), nn.Sequential(nn.BatchNorm1d(3))])
def test_another_loss_does_not_go_on(saved: nn.Module) -> None:
    with pytest.raises(CheckpointError, match="its loss remembers other numbers"):
        restore_criterion(nn.Sequential(nn.BatchNorm1d(2)), criterion_state(saved))
