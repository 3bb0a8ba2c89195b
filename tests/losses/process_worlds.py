"""Processes for the tests of synchronised losses: they start once and then do what they are told.

They come from a server that has imported torch, so that each starts in no time. They find this
module by its name: conftest.py puts its folder on the path. `World.run` sends each process its
orders, and returns what each of them answers.
"""

from __future__ import annotations

import dataclasses
import io
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from rankdet import losses
from rankdet.detectors import criterion
from rankdet.detectors.assign import Assignment
from rankdet.detectors.rois import roi_assigner
from rankdet.detectors.rpn import ObjectnessLoss, SampledAnchors
from rankdet.losses import BACKGROUND, IGNORED, collectives
from rankdet.structures import Predictions, Target

SECONDS = 60.0  # until a process must have answered
TIMEOUT = timedelta(seconds=20)  # of a collective
PATIENCE = 10  # times as long on a device, where kernels are compiled first
OTHER_COLLECTIVES = ("all_gather", "all_gather_into_tensor", "all_gather_object", "broadcast")
OTHER_COLLECTIVES += ("broadcast_object_list", "gather", "gather_object", "reduce", "send", "recv")

Part = tuple[Tensor, Tensor, Tensor]  # logits, labels and mask of a process
Orders = dict[str, Any]
Answer = dict[str, Any]


def random_parts(seed: int, size: int, dtype: torch.dtype = torch.float64) -> list[Part]:
    """Batches of up to three images; of three in ten processes, without any image.

    Some have images, but no positives, and some nothing but positives.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int) -> int:
        return int(torch.randint(0, high, (), generator=generator))

    kinds = torch.tensor([IGNORED, BACKGROUND, BACKGROUND, BACKGROUND, 0, 1])
    parts = []
    for _ in range(size):
        num_images = 0 if draw(10) < 3 else 1 + draw(3)
        shape = (num_images, 12)
        logits = 2 * torch.randn(*shape, 3, generator=generator, dtype=torch.float64)
        if draw(2):
            logits = logits.round()  # ties, also between processes
        labels = kinds[torch.randint(0, 6, shape, generator=generator)]
        mask = torch.rand(logits.shape, generator=generator) < 0.8
        kind = draw(6)
        if kind == 0:
            labels = labels.clamp(max=BACKGROUND)
        elif kind == 1:
            mask = mask & (labels.unsqueeze(-1) == torch.arange(3))
        parts.append((logits.to(dtype), labels, mask))
    return parts


def alone(
    name: str, parts: list[Part], is_masked: bool = False, device: str = "cpu", **settings: Any
) -> tuple[Tensor, Any]:
    """The value and the gradients, one for each process, of the loss of all parts together."""
    logits, labels, mask = (torch.cat(tensors).to(device) for tensors in zip(*parts, strict=True))
    logits.requires_grad_()
    value = getattr(losses, name)(logits, labels, mask=mask if is_masked else None, **settings)
    value.backward()
    assert logits.grad is not None
    return value.detach().cpu(), logits.grad.cpu().split([len(part[0]) for part in parts])


def assert_close(actual: Tensor, expected: Tensor, whole: Any, tolerance: float) -> None:
    """Equal up to the tolerance, relative to the largest number of the whole gradient."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    scale = max([float(part.abs().max()) for part in whole if part.numel()], default=0.0)
    assert torch.allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)


class World:
    """Processes that form a group; `run` gives each its orders."""

    def __init__(self, size: int, backend: str = "gloo", device: str = "cpu") -> None:
        context = multiprocessing.get_context("forkserver")
        # The second is what torch itself imports at the first call of an operator of our own.
        context.set_forkserver_preload(["rankdet.detectors.criterion", "torch._dynamo"])
        self.seconds = SECONDS * (1 if device == "cpu" else PATIENCE)
        self.folder = tempfile.TemporaryDirectory()
        store = str(Path(self.folder.name) / "store")
        self.connections: list[Connection] = []
        self.processes = []
        for rank in range(size):
            own, other = context.Pipe()
            arguments = (other, rank, size, store, backend, device)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            self.connections.append(own)
            self.processes.append(process)

    def run(self, name: str, orders: Sequence[Orders]) -> list[Answer]:
        """The answers to the function of this name, called with its orders in each process."""
        for connection, own_orders in zip(self.connections, orders, strict=True):
            connection.send_bytes(to_bytes((name, own_orders)))
        end = time.monotonic() + self.seconds
        answers = []
        for rank, connection in enumerate(self.connections):
            if not connection.poll(max(0.0, end - time.monotonic())):
                self.close()
                raise TimeoutError(f"process {rank} has not answered to {name!r}")
            answers.append(from_bytes(connection.recv_bytes()))
        return answers

    def run_loss(self, name: str, *inputs: Sequence[Tensor], **settings: Any) -> list[Answer]:
        """The answers to a loss of the processes' own inputs, errors among them."""
        orders = [{"name": name, "inputs": list(own), "settings": settings} for own in inputs]
        return self.run("loss", orders)

    def run_cases(self, *cases: tuple[str, list[Part], bool, dict[str, Any]]) -> list[list[Answer]]:
        """Of each case (loss, parts of the batch, whether with masks, settings) the answers."""
        orders: list[list[Orders]] = [[] for _ in self.processes]
        for name, parts, is_masked, settings in cases:
            for own_orders, (*inputs, mask) in zip(orders, parts, strict=True):
                own = {**settings, "mask": mask if is_masked else None}
                own_orders.append({"name": name, "inputs": inputs, "settings": own})
        answers = self.run("losses", [{"cases": own_orders} for own_orders in orders])
        assert [answer["error"] for answer in answers] == [None] * len(orders)
        return [list(case) for case in zip(*(answer["answers"] for answer in answers), strict=True)]

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()
        self.folder.cleanup()


def to_bytes(value: Any) -> bytes:
    """As bytes: torch's own way through a pipe shares memory, and needs descriptors for it."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def from_bytes(value: bytes) -> Any:
    return torch.load(io.BytesIO(value), map_location="cpu", weights_only=False)


def serve(
    connection: Connection, rank: int, size: int, store: str, backend: str, device: str
) -> None:
    """What a process does: answer orders, until it is ended."""
    torch.set_num_threads(1)
    timeout = TIMEOUT * (1 if device == "cpu" else PATIENCE)
    dist.init_process_group(
        backend, store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=timeout
    )
    torch.set_default_device(device)
    while True:
        name, orders = from_bytes(connection.recv_bytes())
        sent: list[int] = []
        start = time.monotonic()
        with watched(sent):
            try:
                answer = {"error": None, **COMMANDS[name](**on_device(orders, device))}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
        answer |= {"sent": sent, "seconds": time.monotonic() - start}
        connection.send_bytes(to_bytes(on_device(answer, "cpu")))


def on_device(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: on_device(part, device) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_device(part, device) for part in value)
    return value


def watched(sent: list[int]) -> Any:
    """A context that writes down how many numbers each collective sends."""
    all_reduce = dist.all_reduce

    def count(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        sent.append(tensor.numel())
        return all_reduce(tensor, *args, **kwargs)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a collective other than all_reduce")

    others = dict.fromkeys(OTHER_COLLECTIVES, refuse)
    return mock.patch.multiple(dist, all_reduce=count, **others)


def the_group(ranks: list[int] | None) -> dist.ProcessGroup | None:
    """The group of these processes; every process of the world has to ask for it."""
    if ranks is None:
        return None
    with mock.patch.multiple(dist, broadcast=dist.broadcast):
        return dist.new_group(ranks, timeout=TIMEOUT)


def call_loss(
    name: str,
    inputs: Sequence[Tensor],
    settings: dict[str, Any],
    ranks: list[int] | None = None,
    grad_output: float = 1.0,
    compiled: bool = False,
) -> Answer:
    """The loss of this name, a function or a module, and the gradient of its first input."""
    settings = {"synchronize": True, **settings}
    if ranks is not None:
        settings["process_group"] = the_group(ranks)
    mask = settings.pop("mask", None)
    loss: Callable[..., Tensor] = getattr(losses, name)
    leaf = inputs[0].detach().clone().requires_grad_()
    if isinstance(loss, type):
        module = loss(**settings)
        value = module(leaf, *inputs[1:], mask)
    else:
        loss = torch.compile(loss, backend="eager") if compiled else loss
        value = loss(leaf, *inputs[1:], mask=mask, **settings)
    value.backward(torch.full_like(value, grad_output))
    return {"value": value.detach(), "gradient": leaf.grad}


def call_many(cases: Sequence[Orders]) -> Answer:
    """The answers of `call_loss` to each case, in one go."""
    return {"answers": [call_loss(**case) for case in cases]}


def call_box_loss(
    deltas: Tensor,
    labels: Tensor,
    beta: float = 1.0,
    synchronize: bool = False,
    ranks: list[int] | None = None,
) -> Answer:
    """The box loss of `boxes_of`'s problem, by the criterion, and the gradient of the deltas."""
    predictions, assignment, targets = boxes_of(deltas, labels)
    module = criterion.Criterion(
        lambda *_: assignment,
        no_loss,
        box_weights=(10, 10, 5, 5),
        beta=beta,
        synchronize=synchronize,
        process_group=the_group(ranks),
    )
    value = module([predictions], targets).parts["box"]
    value.backward()
    return {"value": value.detach(), "gradient": predictions.deltas.grad}


def no_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.sum() * 0


def boxes_of(deltas: Tensor, labels: Tensor) -> tuple[Predictions, Assignment, list[Target]]:
    """Of each image one object, which every positive anchor is matched with."""
    num_images, num_anchors = labels.shape
    corner = torch.arange(float(num_anchors)).unsqueeze(1)
    anchors = torch.cat([corner, corner, corner + 8, corner + 9], 1)
    targets = [
        Target(
            boxes=torch.tensor([[1.0, 2.0, 9.0, 11.0]]),
            labels=torch.tensor([0]),
            is_ignored=torch.tensor([False]),
            areas=torch.ones(1),
            image_id=number,
            size=(20, 20),
        )
        for number in range(num_images)
    ]
    index = torch.where(labels >= 0, 0, -1)
    logits = torch.zeros(num_images, num_anchors, 1, requires_grad=True)
    leaf = deltas.detach().clone().requires_grad_()
    predictions = Predictions("boxes", logits, leaf, anchors, (num_anchors,))
    return predictions, Assignment(labels, index, torch.zeros(labels.shape)), targets


def call_stages(images: list[int], loss: str, synchronize: bool = False) -> Answer:
    """All losses of Faster R-CNN's criterion for these images, and the gradients of its outputs."""
    stages, targets = two_stages(images)
    settings: dict[str, Any] = {"beta": 1 / 9, "box_mean": "all"}
    first = criterion.StageCriterion(
        SampledAnchors(num_samples=16),
        ObjectnessLoss(synchronize=synchronize),
        box_weights=(1, 1, 1, 1),
        **settings,
    )
    module = criterion.Criterion(
        roi_assigner(),
        getattr(losses, loss)(synchronize=synchronize),
        box_weights=(10, 10, 5, 5),
        stages={"rpn": first},
        synchronize=synchronize,
        **settings,
    )
    found = module(stages, targets)
    found.total.backward()
    return {
        "parts": {name: part.detach() for name, part in found.parts.items()},
        "gradients": [leaf.grad for stage in stages for leaf in (stage.logits, stage.deltas)],
    }


def two_stages(images: list[int]) -> tuple[list[Predictions], list[Target]]:
    """Random outputs of both stages; each image has always its own. Three classes, with softmax."""
    targets, draws = [], []
    corners = 4.0 * torch.cartesian_prod(torch.arange(8.0), torch.arange(8.0))
    anchors = torch.cat([corners, corners + 8], dim=1)
    for image in images:
        generator = torch.Generator().manual_seed(image)
        number = image % 3  # of objects
        objects = anchors[torch.randperm(64, generator=generator)[:number]] + 0.5
        shapes = ((64, 1), (64, 4), (12, 4), (12, 3, 4))
        numbers = [torch.randn(shape, generator=generator) for shape in shapes]
        rois = torch.cat([objects, anchors[torch.randperm(64, generator=generator)]])[:12]
        draws.append((*numbers, rois, torch.arange(12) >= 6 + image))
        no = torch.zeros(number, dtype=torch.bool)
        ones = torch.ones(number)
        targets.append(Target(objects, torch.arange(number), no, ones, image, (40, 40)))
    if not draws:
        (one, other), _ = two_stages([0])
        return [leaves(stage.select(slice(0))) for stage in (one, other)], []
    logits, deltas, roi_logits, roi_deltas, rois, padding = map(
        torch.stack, zip(*draws, strict=True)
    )
    first = Predictions("rpn", logits, deltas, anchors, (64,))
    second = Predictions("roi", roi_logits, roi_deltas, rois, (12,), padding)
    return [leaves(first), leaves(second)], targets


def leaves(stage: Predictions) -> Predictions:
    outputs = {
        name: getattr(stage, name).detach().requires_grad_() for name in ("logits", "deltas")
    }
    return dataclasses.replace(stage, **outputs)


def call_precision(
    logits: Tensor, labels: Tensor, activation: str, ranks: list[int] | None = None
) -> Answer:
    value = criterion.batch_average_precision(
        logits, labels, activation, synchronize=True, process_group=the_group(ranks)
    )
    return {"value": value}


def call_collective(name: str, arguments: Sequence[Any], with_gradient: bool = False) -> Answer:
    """What a function of collectives.py returns; the gradient of its first argument."""
    first, *rest = arguments
    first = first.requires_grad_() if with_gradient else first
    result = getattr(collectives, name)(first, *rest, dist.group.WORLD)
    answer: Answer = {"result": result, "argument": first}
    if with_gradient:
        weights = torch.arange(1, result.numel() + 1, dtype=result.dtype).view(result.shape)
        (result * weights).sum().backward()
        answer = {"result": result.detach(), "gradient": first.grad}
    return answer


def raise_or_not(texts: list[str]) -> Answer:
    """Raise the text, where there is one, for all; each text in a context of its own."""
    reached = []
    for text in texts:
        try:
            with collectives.raised_by_all(dist.group.WORLD, torch.get_default_device()):
                if text:
                    raise LookupError(text)
            reached.append("")
        except Exception as error:
            reached.append(f"{type(error).__name__}: {error}")
    return {"reached": reached}


def find_group(synchronize: bool, ranks: list[int] | None) -> Answer:
    group = collectives.own_group(synchronize, the_group(ranks))
    number = 1 if group is None else group.size()
    return {"number": number, "is_world": group is dist.group.WORLD}


def train(
    features: list[Tensor], labels: list[Tensor], name: str, settings: dict[str, Any]
) -> Answer:
    """The weights of a small network after a step for each batch, by DistributedDataParallel."""
    network = small_network(features[0].dtype).to(features[0].device)
    parallel = DistributedDataParallel(network)
    loss = getattr(losses, name)(synchronize=True, **settings)
    values = fit(parallel, loss, features, labels)
    return {"weights": [weight.detach() for weight in network.parameters()], "values": values}


def small_network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    with torch.device("cpu"):  # the same numbers wherever it goes
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)


def fit(
    network: nn.Module, loss: nn.Module, features: list[Tensor], labels: list[Tensor]
) -> list[float]:
    """The values of the loss, one for each step."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9)
    values = []
    for batch, batch_labels in zip(features, labels, strict=True):
        optimizer.zero_grad()
        value = loss(network(batch), batch_labels)
        value.backward()
        optimizer.step()
        values.append(value.item())
    return values


def count_ghm(batches: list[tuple[Tensor, Tensor]]) -> Answer:
    """The running counts of `GHMLoss` after the batches, some of which may be broken."""
    loss = losses.GHMLoss(bins=5, check_finite=False, synchronize=True)
    values = [loss(logits, labels) for logits, labels in batches]
    return {"counts": loss.running_counts, "values": torch.stack(values)}


COMMANDS: dict[str, Callable[..., Answer]] = {
    "loss": call_loss,
    "losses": call_many,
    "boxes": call_box_loss,
    "stages": call_stages,
    "precision": call_precision,
    "collective": call_collective,
    "raise": raise_or_not,
    "group": find_group,
    "train": train,
    "ghm": count_ghm,
}
