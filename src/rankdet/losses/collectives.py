"""What the processes of a run tell each other, so that a loss is that of their global batch.

`group` is a `torch.distributed.ProcessGroup`; None is this process alone: then every function
returns what it got, and torch.distributed is not called. All processes of a group must call the
same functions in the same order, also those without images or positives; else they wait forever.

The value of a synchronised loss is that of the global batch, on every process. Its gradient is that
of the own scores alone, times the number of processes: DistributedDataParallel averages over the
processes, and the average is then the gradient of the global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_LONGEST_MESSAGE = 4000  # bytes of an error's text that travel


class PeerError(RuntimeError):
    """Another process of the group raised; the text says which one, and what."""


def own_group(
    synchronize: bool, process_group: dist.ProcessGroup | None
) -> dist.ProcessGroup | None:
    """The group to synchronise over: the given one, or the default group for None.

    None, this process alone, unless `synchronize` and torch.distributed is initialised.

    >>> own_group(True, None) is None  # nothing is initialised here
    True
    """
    if not (synchronize and dist.is_available() and dist.is_initialized()):
        return None
    group = dist.group.WORLD if process_group is None else process_group
    if not isinstance(group, dist.ProcessGroup):  # what `new_group` gives to those outside of it
        raise ValueError(
            f"process_group: expected a group that this process is a member of, got {group}"
        )
    return group


def eager_where_synchronized(loss: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The loss, kept out of graphs of torch.compile where it has a group.

    Collectives of sizes that only the data tell have no place in a graph.
    """

    @wraps(loss)
    def choose(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if torch.compiler.is_compiling():
            synchronize, group = kwargs.get("synchronize", False), kwargs.get("process_group")
            if own_group(bool(synchronize), group) is not None:  # type: ignore[arg-type]
                # Not before it is needed: it imports the compiler, which takes seconds.
                eager: Callable[Parameters, Result] = torch.compiler.disable(loss)
                return eager(*args, **kwargs)
        return loss(*args, **kwargs)

    return choose


@contextmanager
def raised_by_all(group: dist.ProcessGroup | None, device: torch.device) -> Iterator[None]:
    """A context whose errors all processes raise: the one itself its own, the others a PeerError.

    No collective may be called inside: a process that raises would leave it to the others. It
    costs an all-reduce of one number; the texts travel only if there are any.

    Args:
        device: of the tensors, for a group that cannot send from the host.
    """
    if group is None:
        yield
        return
    try:
        yield
    except Exception as error:
        _told(f"{type(error).__name__}: {error}", group, device)
        raise
    messages = _told("", group, device)
    if messages:
        raise PeerError("; ".join(messages))


def _told(message: str, group: dist.ProcessGroup, device: torch.device) -> list[str]:
    """What all processes have to say, each text with its process; empty texts are left out."""
    device = exchange_device(group, device)
    if not bool(summed(torch.tensor([len(message)], device=device), group)):
        return []
    own = torch.tensor(list(message.encode()[:_LONGEST_MESSAGE]), dtype=torch.uint8, device=device)
    sizes = _sizes(len(own), group, device)
    texts = [bytes(part.tolist()) for part in _joined(own, sizes, group)[0].split(sizes)]
    ranks = dist.get_process_group_ranks(group)
    return [
        f"process {rank}: {text.decode(errors='replace')}"
        for rank, text in zip(ranks, texts, strict=True)
        if text
    ]


def summed(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum of the processes' tensors, all of one shape; no gradient flows through it.

    >>> summed(torch.tensor([2, 3]), None)
    tensor([2, 3])
    """
    if group is None or tensor.numel() == 0:
        return tensor
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def summed_together(
    tensors: tuple[Tensor, ...], group: dist.ProcessGroup | None
) -> tuple[Tensor, ...]:
    """`summed` for each of them, in a single all-reduce of float64: integers are exact to 2^53."""
    if group is None:
        return tensors
    flat = summed(torch.cat([tensor.double().flatten() for tensor in tensors]), group)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return tuple(
        part.view(tensor.shape).to(tensor.dtype)
        for part, tensor in zip(parts, tensors, strict=True)
    )


def largest(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Of each number, the largest of all processes; no gradient flows through it."""
    if group is None:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total, op=dist.ReduceOp.MAX, group=group)
    return total


def concatenated(values: Tensor, group: dist.ProcessGroup | None) -> tuple[Tensor, slice]:
    """The values (n,) of all processes one after the other, and where in it the own ones are.

    However uneven the numbers are, what travels is as long as the whole: nothing is padded.

    >>> concatenated(torch.tensor([5.0, 7.0]), None)
    (tensor([5., 7.]), slice(0, 2, None))
    """
    if group is None:
        return values, slice(0, len(values))
    sizes = _sizes(len(values), group, exchange_device(group, values.device))
    return _joined(values, sizes, group)


def _sizes(size: int, group: dist.ProcessGroup, device: torch.device) -> list[int]:
    """The numbers of all processes, in their order."""
    sizes = torch.zeros(group.size(), dtype=torch.int64, device=device)
    sizes[group.rank()] = size
    return [int(number) for number in summed(sizes, group).tolist()]


def _joined(values: Tensor, sizes: list[int], group: dist.ProcessGroup) -> tuple[Tensor, slice]:
    """`concatenated`, where the numbers are known."""
    start = sum(sizes[: group.rank()])
    own = slice(start, start + len(values))
    whole = values.new_zeros(sum(sizes))
    whole[own] = values.detach()
    return summed(whole, group), own


def exchange_device(group: dist.ProcessGroup | None, device: torch.device) -> torch.device:
    """Where small tensors are to be when processes exchange them: the host, if the group can.

    The host then has the results without waiting for its accelerator once more, and dozens of
    operations on a few thousand numbers take less time there than to be launched on a GPU.

    >>> exchange_device(None, torch.device("cpu"))
    device(type='cpu')
    """
    has_host = group is not None and "cpu:" in dist.get_backend_config(group)
    return torch.device("cpu") if has_host else device


def global_sum(value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The sum of the processes' values, for every process to compute the same loss from.

    The gradient is that of the own value, times the number of processes.

    >>> global_sum(torch.tensor(2.0), None)
    tensor(2.)
    """
    if group is None:
        return value
    total: Tensor = _GlobalSum.apply(value, group)
    return total


class _GlobalSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.num_processes = group.size()
        return summed(value, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:
        return incoming * ctx.num_processes, None


def global_mean(mean: Tensor, number: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The mean over all processes, of means that each took over so many of its own: a scalar.

    The one way to normalise here. 0 of them count as 1, in `mean` and for all processes together.

    >>> global_mean(torch.tensor(2.0), torch.tensor(3), None)
    tensor(2.)
    """
    if group is None:
        return mean
    number = number.double()
    sums = torch.stack([mean.double() * number.clamp(min=1), number])
    total, number = global_sum(sums, group).unbind()
    # Where the total is NaN, so is all of its gradient, also where the own mean is a number.
    divisor = torch.where(total.isnan(), float("nan"), number.clamp(min=1)).detach()
    return (total / divisor).to(mean.dtype)


def scaled_for_averaging(value: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """The value itself, which is global already; its gradient times the number of processes."""
    if group is None:
        return value
    scaled: Tensor = _Scaled.apply(value, group.size())
    return scaled


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, factor: int) -> Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:
        return incoming * ctx.factor, None
