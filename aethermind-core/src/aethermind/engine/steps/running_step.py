"""A step on its way: how its tokens come to the host, and how the next step gets them without the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

from aethermind.engine.kv_memory.stretches import stretches
from aethermind.graph.executor import FedInput
from aethermind.hal.allocator import ALIGNMENT
from aethermind.hal.buffer import MemoryKind
from aethermind.hal.layout import align_up
from aethermind.hal.tensor import Tensor

if TYPE_CHECKING:
    from aethermind.engine.scheduling.decision import ScheduleDecision
    from aethermind.engine.steps.model_runner import SampledToken
    from aethermind.engine.steps.verification import SampledRow
    from aethermind.runtime import OpenDevice

Array = Any

__all__ = ["RunningStep", "TokenReadback", "fed_tokens", "rows_of"]


@dataclass(slots=True)
class RunningStep:
    """A step that was enqueued and has not been read."""

    decision: ScheduleDecision
    sampled: Sequence[SampledRow]
    """Whose rows get a token, in row order."""
    read: Callable[[], list[SampledToken]]
    """Wait for the tokens and return them; once."""
    token_ids: Tensor | None = None
    """The tokens as the device has them, i32[R], until its next step; None where that has to wait for `read`."""
    started: float = 0.0
    """When it was scheduled, in seconds of the engine's clock."""
    blocks: list[int] = field(default_factory=list)
    """KV blocks of requests that ended after it was enqueued, which it may write to."""


class TokenReadback:
    """Brings sampled tokens, and what is known of them, to page-locked memory behind the step that samples them, and
    the host waits for no more.

    There is room for two steps, in turn: the first has to be read before the third is enqueued.
    """

    def __init__(self, opened: OpenDevice, num_rows: int) -> None:
        backend = opened.backend
        self._allocator = backend.allocator
        self._transfer = backend.transfer
        self._stream = backend.streams.default(opened.device.index)
        buffer, other = (self._allocator.alloc(4 * num_rows, MemoryKind.PINNED) for _ in range(2))
        event, other_event = (backend.events.create() for _ in range(2))
        self._turns = ((buffer, event), (other, other_event))

    def enqueue(self, outputs: Sequence[Tensor]) -> Callable[[], list[Array]]:
        """Copy outputs of a step behind what is enqueued; returns what waits for them, and then gives views of them."""
        starts = list(accumulate((align_up(output.nbytes, ALIGNMENT) for output in outputs), initial=0))
        (buffer, copied), other = self._turns
        if starts[-1] > align_up(buffer.nbytes, ALIGNMENT):  # the last step that it was for has been read
            buffer = self._allocator.alloc(starts[-1], MemoryKind.PINNED)
        self._turns = other, (buffer, copied)
        arrived = [
            Tensor.of(buffer, output.dtype, output.shape, start)
            for output, start in zip(outputs, starts[:-1], strict=True)
        ]
        for host, output in zip(arrived, outputs, strict=True):
            self._transfer.copy_async(host, output, self._stream)
        copied.record(self._stream)

        def read() -> list[Array]:
            copied.synchronize()
            return [host.numpy() for host in arrived]

        return read


def fed_tokens(decision: ScheduleDecision, before: RunningStep) -> list[FedInput]:
    """The tokens that the decodes of a step go on from, as far as the step `before` samples them."""
    assert before.token_ids is not None, "the tokens of the step before stay on the device"
    row_of = {row: index for index, row in enumerate(before.sampled)}
    decodes = enumerate(entry.request for entry in decision.scheduled[: decision.num_decodes])
    pairs = [(row_of[request], position) for position, request in decodes if request in row_of]
    rows, positions = [row for row, _ in pairs], [position for _, position in pairs]
    return [
        FedInput("token_ids", position, rows_of(before.token_ids, row, count))
        for row, position, count in stretches(rows, positions)
    ]


def rows_of(output: Tensor, first: int, count: int) -> Tensor:
    """Some rows of an output [R, …]."""
    _, *width = output.shape
    offset_bytes = output.offset_bytes + first * prod(width) * output.dtype.itemsize
    return Tensor.of(output.buffer, output.dtype, (count, *width), offset_bytes)
