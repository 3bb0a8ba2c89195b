"""The processes of a training: how they find each other, agree, and end together.

torchrun (or anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT) starts them. Without
these variables a process is alone: then every method gives back what it got, and torch.distributed
is not called. All processes must call the same methods in the same order.

A process can be lost at any time. What the others then do depends on where it happens:
- inside of `together`, all raise at the same point, and can go on with the same next call;
- elsewhere the lost one leaves its reason where the processes have met (`reasons`). The others
  notice by a collective that fails, look for the reason, and end as well.
"""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankdet.engine.reasons import Reasons
from rankdet.errors import ConfigError, RankdetError, TrainingError, printable, shorten
from rankdet.losses.collectives import PeerError, largest, raised_by_all, summed

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store  # not every torch has it

# Process 0 judges an evaluation and saves while the others wait for it.
_TIMEOUT = timedelta(minutes=30)
# What tells DDP to leave buffers alone; the second is the name in older versions of torch.
_SYNC_BUFFERS = (
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers"
)
_HOST = torch.device("cpu")
# Words of torch's errors when a process is gone, whatever it was that the others sent to it.
_LOST = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "broken pipe")


class PeerStopped(RankdetError):
    """Another process could not go on, and all have noticed at the same point."""


@dataclass(frozen=True)
class Launch:
    """What the environment says: this is process `rank` of `world_size`, on this machine the
    `local_rank`-th."""

    rank: int
    local_rank: int
    world_size: int
    num_restarts: int = 0


def read_launch(environment: Mapping[str, str]) -> Launch | None:
    """How this process was started; None: alone. ConfigError if the variables make no sense.

    >>> read_launch({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    Launch(rank=1, local_rank=0, world_size=2, num_restarts=0)
    """
    world_size = _number(environment, "WORLD_SIZE", 1, least=1)
    if "RANK" not in environment:
        if world_size == 1:
            return None
        raise ConfigError(
            f"WORLD_SIZE = {world_size}, and RANK is not set: expected both, as torchrun sets "
            "them. Start with torchrun, or unset WORLD_SIZE."
        )
    if "WORLD_SIZE" not in environment:
        raise ConfigError(
            "RANK is set, and WORLD_SIZE is not: expected both, as torchrun sets them. Start with "
            "torchrun, or unset RANK."
        )
    rank = _number(environment, "RANK", 0, least=0)
    if rank >= world_size:
        raise ConfigError(f"RANK = {rank}: expected less than WORLD_SIZE, which is {world_size}.")
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environment]
    if missing and world_size == 1:
        return None
    if missing:
        raise ConfigError(
            f"{missing[0]} is not set: expected the address at which the {world_size} processes "
            "meet. torchrun sets it."
        )
    _number(environment, "MASTER_PORT", 0, least=0)
    _number(environment, "LOCAL_WORLD_SIZE", 1, least=1)  # by which the data workers are shared out
    slurm_rank = _number(environment, "SLURM_LOCALID", 0, least=0)
    return Launch(
        rank=rank,
        local_rank=_number(environment, "LOCAL_RANK", slurm_rank, least=0),
        world_size=world_size,
        num_restarts=_number(environment, "TORCHELASTIC_RESTART_COUNT", 0, least=0),
    )


def _number(environment: Mapping[str, str], name: str, usual: int, *, least: int) -> int:
    text = environment.get(name)
    if text is None:
        return usual
    if not text.strip().isdecimal() or int(text) < least:
        raise ConfigError(
            f"{name} = {shorten(text)}: expected a whole number of at least {least}, as torchrun "
            f"sets it. Unset {name}, or start with torchrun."
        )
    return int(text)


@dataclass(frozen=True)
class Processes:
    """The processes that train together, seen from one of them.

    rank: which one this is; process 0 alone reads and writes the run and speaks. device_name: where
    this one computes; None: to be chosen. group: None if it is alone. store: where the processes
    have met. num_restarts: by torchrun, of all of them.
    """

    rank: int = 0
    world_size: int = 1
    device_name: str | None = None
    group: dist.ProcessGroup | None = None
    store: Store | None = None
    num_restarts: int = 0

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        return self.group is None

    @contextmanager
    def together(self) -> Iterator[None]:
        """A context whose errors all processes raise at its end, the others as PeerStopped.

        No other method may be called inside.
        """
        try:
            with raised_by_all(self.group, _HOST):
                yield
        except PeerError as error:
            raise PeerStopped(str(error)) from None

    def agreed_signal(self, signal: int | None) -> int | None:
        """The signal that has reached any of the processes, the highest of several; or None."""
        if self.group is None:
            return signal
        number = int(largest(torch.tensor([signal or 0]), self.group))
        return number or None

    def sent(self, content: bytes) -> bytes:
        """The content that process 0 gives; what the others give is not looked at."""
        if self.group is None:
            return content
        size = torch.tensor([len(content)])
        dist.broadcast(size, src=0, group=self.group)
        buffer = torch.empty(int(size), dtype=torch.uint8)
        if self.is_first and content:
            buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if buffer.numel():
            dist.broadcast(buffer, src=0, group=self.group)
        return buffer.numpy().tobytes()

    def gathered(self, content: bytes) -> list[bytes]:
        """What each of the processes gives, in their order; for process 0 alone, [] elsewhere."""
        if self.group is None:
            return [content]
        sizes = torch.zeros(self.world_size, dtype=torch.int64)
        sizes[self.rank] = len(content)
        sizes = summed(sizes, self.group)
        buffer = torch.zeros(max(1, int(sizes.max())), dtype=torch.uint8)
        if content:
            buffer[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        parts = (
            [torch.empty_like(buffer) for _ in range(self.world_size)] if self.is_first else None
        )
        dist.gather(buffer, parts, dst=0, group=self.group)
        return [
            part[:size].numpy().tobytes()
            for part, size in zip(parts or [], sizes.tolist(), strict=False)
        ]

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum of the processes' tensors of one shape, on their device."""
        return summed(tensor, self.group)

    def wrapped(self, detector: nn.Module) -> nn.Module:
        """The detector whose gradients are averaged over the processes; itself for one alone.

        From here on all have the weights and buffers of process 0. Buffers that a forward pass
        changes, such as a batch norm's, are each process's own: see `share_buffers`.
        """
        if self.group is None:
            return detector
        self.share_buffers(detector)
        leave_buffers: dict[str, Any] = {_SYNC_BUFFERS: False}
        # DDP otherwise groups the gradients anew after the first step of a session, and sums of
        # three or more processes round differently in another grouping: a run that was stopped
        # would not go on bit for bit.
        return DistributedDataParallel(
            _WithIdleWeight(detector),
            find_unused_parameters=True,
            process_group=self.group,
            **leave_buffers,
        )

    def share_buffers(self, detector: nn.Module) -> None:
        """Give all processes the buffers that the detector has in process 0."""
        if self.group is not None:
            for buffer in detector.buffers():
                dist.broadcast(buffer, src=0, group=self.group)


class _WithIdleWeight(nn.Module):
    """The detector, and a weight that nothing uses: else DDP warns that it looks for such."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector
        device = next(detector.parameters()).device
        self.idle = nn.Parameter(torch.zeros(1, device=device))

    def forward(self, images: Tensor, targets: object = None) -> object:
        return self.detector(images, targets)


ALONE = Processes()


@contextmanager
def joined_processes(device_name: str | None) -> Iterator[Processes]:
    """The processes of this training, which have met; they part at the end.

    device_name: as the user gave it. "cuda" or None: each process of a machine takes the next GPU.
    If torch.distributed is in use already, as under Ray Train, it stays so, and they have a group
    of their own.
    Only process 0 speaks meanwhile. When others end, a TrainingError says why, where that is known.
    """
    launch = read_launch(os.environ)
    if launch is None:
        yield Processes(device_name=device_name)
        return
    processes = _join(launch, device_name)
    with _silence(not processes.is_first):
        try:
            yield processes
        except BaseException as error:
            reason = _reason_to_tell(processes, error)
            if reason is None:
                raise
            raise TrainingError(reason) from error
        dist.destroy_process_group(processes.group)


def _join(launch: Launch, device_name: str | None) -> Processes:
    if not dist.is_available():
        raise ConfigError(
            "RANK is set, and this torch has no torch.distributed: it trains in one process alone. "
            "Unset RANK, or install another build of torch."
        )
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous  # knows torchrun's store and its restarts

    try:
        store, rank, world_size = next(iter(rendezvous("env://", timeout=_TIMEOUT)))
        # torchrun may keep one store for all attempts: what an earlier one left is not for this.
        store = PrefixStore(f"rankdet/{launch.num_restarts}", store)
        device_name, backend = _device_and_backend(store, launch, device_name)
        if dist.is_initialized():
            group: Any = dist.new_group(backend=backend, timeout=_TIMEOUT)
        else:
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT
            )
            group = dist.group.WORLD
    except (RuntimeError, OSError) as error:
        address = ":".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise TrainingError(
            f"process {launch.rank} of {launch.world_size} cannot join the others at "
            f"{printable(address)}: {_first_line(error)}. Check the address and the network, and "
            "that all processes were started."
        ) from error
    return Processes(rank, world_size, device_name, group, store, launch.num_restarts)


def _device_and_backend(
    store: Store, launch: Launch, device_name: str | None
) -> tuple[str | None, str]:
    """This process's device, and what all processes talk through.

    NCCL wants a GPU for each process. gloo can do without, also for tensors on a GPU.
    """
    num_devices = torch.cuda.device_count()
    if num_devices and device_name in (None, "cuda"):
        device_name = f"cuda:{launch.local_rank % num_devices}"
    identity = ""
    if device_name is not None and device_name.startswith("cuda") and num_devices:
        with suppress(RuntimeError, AssertionError):  # no such device: told later, by its name
            torch.cuda.set_device(device_name)
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            identity = f"{socket.gethostname()} {properties.uuid}"
    store.set(f"device/{launch.rank}", identity)
    identities = [store.get(f"device/{rank}") for rank in range(launch.world_size)]
    is_own = all(identities) and len(set(identities)) == len(identities)
    return device_name, "cpu:gloo,cuda:nccl" if is_own else "gloo"


@contextmanager
def _silence(is_wanted: bool) -> Iterator[None]:
    """Standard error goes nowhere meanwhile."""
    if not is_wanted:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        yield


def _reason_to_tell(processes: Processes, error: BaseException) -> str | None:
    """What this process says of its end; None: its error as it is. The others can look it up."""
    assert processes.store is not None
    reasons = Reasons(processes.store, processes.rank, processes.world_size)
    own = f"process {processes.rank} stops"
    told: str | None = None
    if isinstance(error, PeerError | PeerStopped):
        reasons.leave("")
        told = f"{own} because of another: {error}"
    elif _is_loss_of_a_process(error):
        reasons.leave("")
        told = f"{own} because of another: {reasons.of_others()}"
    else:
        reason = f"{type(error).__name__}: {error}"
        reasons.leave(reason)
        if isinstance(error, RankdetError) and reasons.is_said_by_first(reason):
            told = f"{own} for the same reason as process 0."
    reasons.close()
    return told


def _is_loss_of_a_process(error: BaseException) -> bool:
    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    return type(error) is RuntimeError and any(words in text for words in _LOST)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
