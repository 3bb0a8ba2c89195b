"""Ranking losses on CUDA by the kernels of ap_triton*.py: launches, memory and autograd.

The host does not wait for the device, with one exception. Arrays are made for as many positives as
there are rows; or, where that would take too much memory, for CAPACITY, and then there might be
more. So the host looks at their number, which is known long before the loss is: the rest has been
launched by then, and the device does not stand still. Where nothing may wait, in the capture of a
CUDA graph, more positives than there is room for make the loss NaN.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.library import custom_op, get_ctx

from rankdet.losses import ap_triton, ap_triton_knots, ap_triton_middle
from rankdet.losses.fused import divide_up, on_device_of
from rankdet.losses.kernels import refuse_second_derivative

CAPACITY = 1 << 16  # positives that there is room for in a large batch
_ROOM = 1 << 21  # numbers in all histograms, if there are few positives: 16 MiB
# Until backward the floats are kept; in the forward pass there are also the keys and the indices,
# and, where histograms are or were, what `weigh` needs.
_BYTES_KEPT_PER_POSITIVE = 4 * ap_triton.NUM_PARTS
_BYTES_PER_POSITIVE = (
    _BYTES_KEPT_PER_POSITIVE + 8 * ap_triton.NUM_KEY_PARTS + 4 * ap_triton.NUM_INDEX_PARTS
)
# What all that may take more than the gradient. The goal is 32 MiB (README.md); 2 of them
# are for the small arrays, and for the allocator, which rounds up.
_EXTRA_BYTES = 30 << 20


class Blocks(NamedTuple):
    """Sizes that change no result beyond its last digit: what a program takes, how many run.

    Chosen by measurement on an H200 (benchmarks/NOTES.md, "On a CUDA device"). Small tiles and many
    programs hide the time that memory takes to answer.
    """

    rows: int = 1024  # `find_positives`: labels of a program
    positives: int = 32  # `lay_knots`: positives that a program ranks at a time
    others: int = 128  # and others that it compares them with
    searched: int = 2048  # `lay_knots`, its last program: knots, places or cells at a time
    cells: int = 1 << 13  # of the grid; more make for shorter searches, and a longer table to fill
    tile: int = 256  # `bin_negatives`: scores at a time
    programs_per_processor: int = 32  # and programs, at most
    bins: int = 16  # `weigh`: bins that a program adds up at a time
    histograms: int = 64  # of so many histograms
    weighed: int = 2048  # `weigh`, its last program: places or positives at a time
    bin_warps: int = 2  # warps of a program of `bin_negatives`
    write_tile: int = 256  # `write_update`: scores of a program
    write_warps: int = 1  # and its warps
    room: int = _ROOM  # numbers in all histograms, at least


DEFAULT_BLOCKS = Blocks()


class State(NamedTuple):
    """What `write_update` needs; the arrays are described in ap_triton.py."""

    header: Tensor
    floats: Tensor
    table: Tensor


def rank(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: str,
    delta: float,
    capacity: int | None = None,
    blocks: Blocks = DEFAULT_BLOCKS,
) -> tuple[Tensor, State]:
    """The loss of one ranking, a float32 scalar, and the state that its update is written from.

    Args:
        logits: (R, K) float16, bfloat16 or float32, contiguous.
        labels: (R,) signed integers, contiguous.
        mask: None, or (R, K) bool, contiguous.
        weights: a name in weights.py.
        delta: half the width of the step; 0 for the Heaviside step.
        capacity: positives that there is room for at first; if there are more, it starts again.
    """
    if capacity is None:
        capacity = _capacity(logits)
    with on_device_of(logits):
        return _rank(logits, labels, mask, weights, delta, capacity, blocks)


def _rank(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    weights: str,
    delta: float,
    capacity: int,
    blocks: Blocks,
) -> tuple[Tensor, State]:
    """`rank` on the current device."""
    may_be_more = len(logits) > capacity and not _is_capturing(logits)
    header, keys = _find(logits, labels, mask, capacity, blocks)
    arrival = _Arrival(header) if may_be_more else None
    result = _bin_and_weigh(logits, labels, mask, header, keys, False, weights, delta, blocks)
    num_positives = 0 if arrival is None else arrival.wait()
    if num_positives > capacity:
        header, keys = _find(logits, labels, mask, num_positives, blocks)
        # To rank so many by counting would take too long.
        keys[:num_positives] = keys[:num_positives].sort().values
        result = _bin_and_weigh(logits, labels, mask, header, keys, True, weights, delta, blocks)
    return result


def _capacity(logits: Tensor) -> int:
    """How many positives there is to be room for: all rows, if the memory for that is no more than
    the gradient will need."""
    num_rows = max(1, logits.shape[0])
    room = max(_ROOM, ap_triton_middle.NUM_SCRATCH_PARTS * num_rows)
    size = _BYTES_PER_POSITIVE * num_rows + 8 * room
    allowed = logits.numel() * logits.element_size() + _EXTRA_BYTES
    fits = size <= allowed and _BYTES_KEPT_PER_POSITIVE * num_rows <= _EXTRA_BYTES
    return num_rows if num_rows <= CAPACITY or fits else CAPACITY


def _find(
    logits: Tensor, labels: Tensor, mask: Tensor | None, capacity: int, blocks: Blocks
) -> tuple[Tensor, Tensor]:
    """header and keys, with the positives in them."""
    num_rows, num_classes = logits.shape
    header = torch.zeros(ap_triton.HEADER_SIZE, dtype=torch.int64, device=logits.device)
    num_keys = ap_triton.NUM_KEY_PARTS * capacity + ap_triton.NUM_MORE_KEYS
    keys = torch.empty(num_keys, dtype=torch.int64, device=logits.device)
    ap_triton.find_positives_kernel[(max(1, divide_up(num_rows, blocks.rows)),)](
        logits, labels, mask, header, keys, num_rows, capacity, num_classes, blocks.rows
    )
    return header, keys


def _bin_and_weigh(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    header: Tensor,
    keys: Tensor,
    is_sorted: bool,
    weights: str,
    delta: float,
    blocks: Blocks,
) -> tuple[Tensor, State]:
    """The loss and the state, from the positives that `_find` found."""
    capacity = len(keys) // ap_triton.NUM_KEY_PARTS
    device, num_classes, num_scores = logits.device, logits.shape[1], logits.numel()
    num_processors = num_processors_of(device)
    num_tiles = divide_up(num_scores, blocks.tile)
    num_programs = max(1, min(num_tiles, blocks.programs_per_processor * num_processors))
    scores_per_program = divide_up(num_tiles, num_programs) * blocks.tile
    # More room makes for less waiting in large batches; their gradient will need more than that.
    room = max(blocks.room, min(num_scores >> 5, 4 * blocks.room))
    room = max(room, ap_triton_middle.NUM_SCRATCH_PARTS * capacity + 1)
    # With few scores to each, histograms take longer to clear and to add up than they spare.
    most_histograms = max(1, min(num_programs, num_scores // 8192, 1024))
    value = torch.empty((), dtype=torch.float32, device=device)
    floats = torch.empty(num_floats_for(capacity), dtype=torch.float32, device=device)
    table = torch.empty(blocks.cells, dtype=torch.int32, device=device)
    num_indices = ap_triton.NUM_INDEX_PARTS * capacity
    indices = torch.empty(num_indices, dtype=torch.int32, device=device)
    histograms = torch.empty(room, dtype=torch.int64, device=device)
    ap_triton_knots.lay_knots_kernel[(num_processors,)](
        header, keys, floats, indices, table, histograms, capacity, room, most_histograms,
        num_programs, scores_per_program, delta, is_sorted, blocks.cells, blocks.positives,
        blocks.others, blocks.searched, num_warps=16,
    )  # fmt: skip
    ap_triton.bin_negatives_kernel[(num_programs,)](
        logits, labels, mask, header, floats, table, histograms, num_scores, capacity, delta,
        num_classes, weights == "auc", blocks.cells, group_size(num_classes, blocks.tile),
        blocks.tile, num_warps=blocks.bin_warps,
    )  # fmt: skip
    ap_triton_middle.weigh_kernel[(num_processors,)](
        header, keys, floats, indices, histograms, value, capacity, weights, delta, blocks.bins,
        blocks.histograms, blocks.weighed, num_warps=16,
    )  # fmt: skip
    return value, State(header, floats, table)


def write_update(
    scale: Tensor,
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    state: State,
    delta: float,
    blocks: Blocks = DEFAULT_BLOCKS,
) -> Tensor:
    """The gradient, of the logits' shape and dtype; scale is what comes in from behind the loss."""
    gradient = torch.empty_like(logits)
    num_classes, num_scores = logits.shape[1], logits.numel()
    capacity = _capacity_of(state.floats)
    with on_device_of(logits):
        ap_triton.write_update_kernel[(divide_up(num_scores, blocks.write_tile),)](
            scale, logits, labels, mask, *state, gradient, num_scores, capacity, delta, num_classes,
            blocks.cells, group_size(num_classes, blocks.write_tile), blocks.write_tile,
            num_warps=blocks.write_warps,
        )  # fmt: skip
    return gradient


def num_floats_for(capacity: int) -> int:
    """How long `floats` is: `ap_triton.part` says where in it the parts are."""
    return 4 + ap_triton.NUM_PARTS * (capacity + 4)


def _capacity_of(floats: Tensor) -> int:
    """The capacity that `floats` was made for."""
    return len(floats) // ap_triton.NUM_PARTS - 4


def group_size(num_classes: int, tile: int) -> int:
    """How many neighbouring scores share a label for sure, since the number divides the classes: a
    power of two, 16 at most."""
    return min(num_classes & -num_classes, 16, tile)


def fused_loss(
    logits: Tensor, labels: Tensor, mask: Tensor | None, weights: str, delta: float
) -> tuple[Tensor, Tensor]:
    """The loss of one ranking, whose backward gives the update; and the header, which begins with
    the number of positives and that of scores that are not finite (0, or some number).

    The arguments are those of `rank`.
    """
    if torch.compiler.is_compiling():
        value, header, _, _ = _rank_operator(logits, labels, mask, weights, delta)
    else:
        value, header = _FusedLoss.apply(logits, labels, mask, weights, delta)
    return value, header


class _FusedLoss(torch.autograd.Function):
    """For eager mode: an operator of torch.library costs the host twice as much."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, mask: Tensor | None, weights: str, delta: float
    ) -> tuple[Tensor, Tensor]:
        value, state = rank(logits, labels, mask, weights, delta)
        ctx.save_for_backward(logits, labels, mask, *state)
        ctx.delta = delta
        ctx.mark_non_differentiable(state.header)
        return value, state.header

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_value: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, mask, *state = ctx.saved_tensors
        gradient = write_update(grad_value, logits, labels, mask, State(*state), ctx.delta)
        return gradient, None, None, None, None


_ARGUMENTS = "Tensor logits, Tensor labels, Tensor? mask"


@custom_op(
    "rankdet::rank_fused",
    mutates_args=(),
    schema=f"({_ARGUMENTS}, str weights, float delta) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _rank_operator(
    logits: Tensor, labels: Tensor, mask: Tensor | None, weights: str, delta: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    value, state = rank(logits, labels, mask, weights, delta)
    return value, *state


@_rank_operator.register_fake
def _(
    logits: Tensor, labels: Tensor, mask: Tensor | None, weights: str, delta: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    capacity = _capacity(logits)
    is_fixed = logits.shape[0] <= capacity
    num_floats = num_floats_for(capacity) if is_fixed else get_ctx().new_dynamic_size()
    return (
        logits.new_empty((), dtype=torch.float32),
        logits.new_empty(ap_triton.HEADER_SIZE, dtype=torch.int64),
        logits.new_empty(num_floats, dtype=torch.float32),
        logits.new_empty(DEFAULT_BLOCKS.cells, dtype=torch.int32),
    )


@custom_op(
    "rankdet::write_fused_update",
    mutates_args=(),
    schema=f"(Tensor scale, {_ARGUMENTS}, Tensor header, Tensor floats, Tensor table, float delta)"
    " -> Tensor",
)
def _write_operator(
    scale: Tensor,
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None,
    header: Tensor,
    floats: Tensor,
    table: Tensor,
    delta: float,
) -> Tensor:
    return write_update(scale, logits, labels, mask, State(header, floats, table), delta)


@_write_operator.register_fake
def _(scale: Tensor, logits: Tensor, *state: Any) -> Tensor:
    return torch.empty_like(logits)


def _keep_state(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, labels, mask, _, ctx.delta = inputs
    ctx.save_for_backward(logits, labels, mask, *output[1:])
    ctx.set_materialize_grads(False)


def _give_update(ctx: Any, grad_value: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    return _write_operator(grad_value, *ctx.saved_tensors, ctx.delta), None, None, None, None


_rank_operator.register_autograd(_give_update, setup_context=_keep_state)
_write_operator.register_autograd(refuse_second_derivative)


def _is_capturing(logits: Tensor) -> bool:
    return logits.is_cuda and torch.cuda.is_current_stream_capturing()


@cache
def num_processors_of(device: torch.device) -> int:
    if device.type != "cuda":  # interpreted, in tests
        return 2
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


class _Arrival:
    """The number of positives on its way to the host, behind the kernel that counts them."""

    def __init__(self, header: Tensor) -> None:
        self.number = header[:1].to("cpu", non_blocking=True)
        self.event = torch.cuda.Event() if header.is_cuda else None
        if self.event is not None:
            self.event.record()

    def wait(self) -> int:
        """The number. What was launched after the copy goes on meanwhile."""
        if self.event is not None:
            self.event.synchronize()
        return int(self.number)
