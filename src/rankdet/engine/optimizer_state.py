"""What optimiser, criterion and random numbers remember: tensors by name, and plain settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rankdet.errors import CheckpointError, shorten

# In front of the tensors' names, so that all of them fit into one file.
_OPTIMIZER = "optimizer."
_CRITERION = "criterion."
_CPU = "random.cpu"
_CUDA = "random.cuda"

# How an optimiser computes, not what: the machine that goes on chooses for itself.
_MACHINE_OPTIONS = {"foreach", "fused", "capturable", "differentiable"}

# What an optimiser counts; all else that it remembers has the shape of its parameter.
_COUNTS = {"step"}

NamedParameters = Iterable[tuple[str, nn.Parameter]]


def optimizer_state(
    optimizer: torch.optim.Optimizer, names: NamedParameters
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimiser's tensors by the name of their parameter, and its settings as JSON.

    names: `detector.named_parameters()`; every parameter of the optimiser must be among them. The
    tensors are not copies: save them before the next step.

    >>> layer = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    >>> layer(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> tensors, settings = optimizer_state(optimizer, layer.named_parameters())
    >>> list(tensors), settings["groups"][0]["lr"]
    (['optimizer.weight.momentum_buffer', 'optimizer.bias.momentum_buffer'], 0.1)
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}  # what an optimiser remembers beside tensors
    groups = []
    for group, named in _named_groups(optimizer, names):
        options = {key: group[key] for key in group.keys() - _MACHINE_OPTIONS - {"params"}}
        groups.append({**dict(sorted(options.items())), "parameters": list(named)})
        for name, parameter in named.items():
            for key, value in optimizer.state.get(parameter, {}).items():
                place = tensors if isinstance(value, Tensor) else values
                place[f"{_OPTIMIZER}{name}.{key}"] = value
    return tensors, {
        "type": type(optimizer).__name__,
        "groups": groups,
        "values": values,
        "tensors": list(tensors),
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    names: NamedParameters,
) -> None:
    """Put back what `optimizer_state` gave, with the dtypes that it had.

    tensors may hold others too. CheckpointError, before anything is changed, if the optimiser is
    of another type, or its parameters are others or in other groups.
    """
    named_groups = _named_groups(optimizer, names)
    _check_form(settings)
    _check_settings(optimizer, settings, [named for _, named in named_groups])
    states = _states(tensors, settings)
    restored: dict[Tensor, dict[str, Any]] = {}
    for group, named in named_groups:
        for name, parameter in named.items():
            state = states.pop(name, {})
            if state:
                restored[parameter] = {
                    key: _placed(value, name, key, parameter, group) for key, value in state.items()
                }
    if states:
        raise _other(f"it has numbers for {', '.join(states)}, which is not trained here")
    for (group, _), saved in zip(named_groups, settings["groups"], strict=True):
        _check_options(group, saved)
    for (group, _), saved in zip(named_groups, settings["groups"], strict=True):
        for key, value in saved.items():
            if key != "parameters":  # JSON has made lists of tuples
                group[key] = tuple(value) if isinstance(value, list) else value
    optimizer.state.clear()
    optimizer.state.update(restored)


def criterion_state(criterion: nn.Module) -> dict[str, Tensor]:
    """What the losses remember from step to step, such as running counts; often nothing."""
    return {_CRITERION + name: tensor for name, tensor in criterion.state_dict().items()}


def restore_criterion(criterion: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `criterion_state` gave; tensors may hold others too."""
    own = {
        name.removeprefix(_CRITERION): tensor
        for name, tensor in tensors.items()
        if name.startswith(_CRITERION)
    }
    if _shapes(own) != _shapes(criterion.state_dict()):
        raise _other("its loss remembers other numbers")
    criterion.load_state_dict(own)


def random_state() -> dict[str, Tensor]:
    """The state of torch's random numbers: on the CPU, and on the current GPU if one is in use."""
    state = {_CPU: torch.get_rng_state()}
    if torch.cuda.is_initialized():
        state[_CUDA] = torch.cuda.get_rng_state()
    return state


def restore_random_state(tensors: Mapping[str, Tensor]) -> None:
    """Put back what `random_state` gave; tensors may hold others too.

    >>> state = random_state()
    >>> number = torch.rand(1)
    >>> restore_random_state(state)
    >>> torch.equal(torch.rand(1), number)
    True
    """
    if _CPU not in tensors:
        raise CheckpointError(f"the checkpoint has no {_CPU}: it cannot be continued.")
    _set_random_state(_CPU, torch.set_rng_state, tensors)
    if _CUDA in tensors and torch.cuda.is_available():
        _set_random_state(_CUDA, torch.cuda.set_rng_state, tensors)


def _set_random_state(
    name: str, set_state: Callable[[Tensor], None], tensors: Mapping[str, Tensor]
) -> None:
    try:
        set_state(tensors[name])
    except (RuntimeError, TypeError) as error:  # torch looks at size and type
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"the checkpoint's {name} cannot be used: {shorten(reason)}. Use another one."
        ) from error


def _named_groups(
    optimizer: torch.optim.Optimizer, names: NamedParameters
) -> list[tuple[dict[str, Any], dict[str, nn.Parameter]]]:
    """Each group of the optimiser, with its parameters by name."""
    name_of = {parameter: name for name, parameter in names}
    groups = []
    for group in optimizer.param_groups:
        if not all(parameter in name_of for parameter in group["params"]):
            raise ValueError("expected the names of all parameters of the optimiser, got fewer")
        groups.append((group, {name_of[parameter]: parameter for parameter in group["params"]}))
    return groups


def _check_form(settings: object) -> None:
    """CheckpointError unless these are settings as `optimizer_state` gives them."""
    forms = {"type": str, "groups": list, "values": dict, "tensors": list}
    is_sound = isinstance(settings, Mapping) and all(
        isinstance(settings.get(key), form) for key, form in forms.items()
    )
    if not is_sound or not all(
        isinstance(group, dict) and isinstance(group.get("parameters"), list)
        for group in settings["groups"]  # type: ignore[index]
    ):
        raise _other("its optimiser has no settings, or they are not as they were written")


def _check_options(own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """CheckpointError unless the saved options are known to the optimiser, and of their kind."""
    for key, value in saved.items():
        if key == "parameters":
            continue
        if key == "params" or key not in own:
            raise _other(f"its optimiser has a setting that is unknown here: {shorten(key)}")
        if _kind(value) != _kind(own[key]) and None not in (value, own[key]):
            expected = shorten(own[key])
            raise _other(f"{key} = {shorten(value)}: expected something like {expected}")


def _kind(value: object) -> object:
    """What kind of option this is: all numbers are of one, and lists have that of their items."""
    if isinstance(value, list | tuple):
        return [_kind(item) for item in value]
    if isinstance(value, bool):
        return bool
    return float if isinstance(value, int | float) else type(value)


def _check_settings(
    optimizer: torch.optim.Optimizer,
    settings: Mapping[str, Any],
    groups: list[dict[str, nn.Parameter]],
) -> None:
    kind = type(optimizer).__name__
    if settings["type"] != kind:
        raise _other(f"it was made by {settings['type']}, this training uses {kind}")
    saved = [group["parameters"] for group in settings["groups"]]
    here = [list(named) for named in groups]
    if saved != here:
        different = {name for names in saved for name in names}
        different ^= {name for names in here for name in names}
        what = ", ".join(sorted(different)) or "the groups or their order"
        raise _other(f"the parameters that are trained differ: {what}")


def _states(
    tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """What was remembered for each parameter, by its name."""
    own = {key: tensor for key, tensor in tensors.items() if key.startswith(_OPTIMIZER)}
    if own.keys() != set(settings["tensors"]):
        different = ", ".join(sorted(own.keys() ^ set(settings["tensors"])))
        raise _other(f"its tensors and its settings differ: {different}")
    states: dict[str, dict[str, Any]] = {}
    for full, value in (own | settings["values"]).items():
        name, _, key = full.removeprefix(_OPTIMIZER).rpartition(".")
        states.setdefault(name, {})[key] = value
    return states


def _placed(
    value: Any, name: str, key: str, parameter: nn.Parameter, group: Mapping[str, Any]
) -> Any:
    """The value where the optimiser expects it: on the parameter's device, laid out like it."""
    if not isinstance(value, Tensor):
        if not isinstance(value, int | float | None):
            raise _other(f"{name}.{key} = {shorten(value)}: expected a number")
        return value
    if value.dim() == 0 and key in _COUNTS:  # on the CPU, unless the optimiser's kernel counts
        is_counted_there = group.get("fused") or group.get("capturable")
        return value.to(parameter.device if is_counted_there else "cpu", copy=True)
    if value.shape != parameter.shape:
        raise _other(f"{name}.{key} is {tuple(value.shape)}, here {tuple(parameter.shape)}")
    return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _other(reason: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint belongs to another training: {reason}. Resume with the settings of before."
    )
