"""A step in flight: its tokens are read back to the host, and copied to the inputs of the next step on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

from aethermind.engine.kv_memory.swap_stream import contiguous_runs
from aethermind.graph.executor import DeviceInput
from aethermind.hal.memory import ALIGNMENT, MemoryKind, align_up
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor

if TYPE_CHECKING:
    from aethermind.engine.scheduling.decision import ScheduleDecision
    from aethermind.engine.steps.batch import SampledRow
    from aethermind.engine.steps.model_runner import SampledToken
    from aethermind.runtime import OpenDevice

__all__ = ["InFlightStep", "TokenReadback", "device_tokens", "rows_of"]

Array = Any


@dataclass(slots=True)
class InFlightStep:
    """A step that was enqueued and whose tokens have not been read."""

    decision: ScheduleDecision
    sampled: Sequence[SampledRow]
    """The requests of the logits rows, in row order."""
    read: Callable[[], list[SampledToken]]
    """Waits for the tokens and returns them; called once."""
    token_ids: Tensor | None = None
    """The tokens in device memory, i32[R], valid until the next step; None if the next step has to wait for `read`."""
    ran_ahead: bool = False
    """Whether it was enqueued before the tokens of the step before it were known."""
    started: float = 0.0
    """When it was scheduled, in seconds of the engine's clock."""
    blocks: list[int] = field(default_factory=list)
    """KV blocks of requests that ended after the step was enqueued; the step may still write to them."""


class TokenReadback:
    """Copies sampled tokens and their log probabilities to page-locked memory, on the step's stream, after the step.

    Double-buffered: step i has to be read before step i + 2 is enqueued.
    """

    def __init__(self, opened: OpenDevice, num_rows: int, stream: Stream) -> None:
        backend = opened.backend
        self._allocator = backend.allocator
        self._transfer = backend.transfer
        self._stream = stream
        first, second = (self._allocator.alloc(4 * num_rows, MemoryKind.PINNED) for _ in range(2))
        first_event, second_event = (backend.events.create() for _ in range(2))
        self._buffers = ((first, first_event), (second, second_event))

    def enqueue(self, outputs: Sequence[Tensor]) -> Callable[[], list[Array]]:
        """Enqueue copies of a step's outputs; returns a function that waits for them and returns views."""
        offsets = list(accumulate((align_up(output.nbytes, ALIGNMENT) for output in outputs), initial=0))
        (buffer, copied), other_buffer = self._buffers
        if offsets[-1] > align_up(buffer.nbytes, ALIGNMENT):  # the buffer's last step has been read
            buffer = self._allocator.alloc(offsets[-1], MemoryKind.PINNED)
        self._buffers = other_buffer, (buffer, copied)
        host_tensors = [
            Tensor.of(buffer, output.dtype, output.shape, start)
            for output, start in zip(outputs, offsets[:-1], strict=True)
        ]
        for host, output in zip(host_tensors, outputs, strict=True):
            self._transfer.copy_async(host, output, self._stream)
        copied.record(self._stream)

        def read() -> list[Array]:
            copied.synchronize()
            return [host.numpy() for host in host_tensors]

        return read


def device_tokens(decision: ScheduleDecision, previous: InFlightStep) -> list[DeviceInput]:
    """Return the input tokens of a step's decodes that the step `previous` samples, to be copied on the device."""
    assert previous.token_ids is not None, "the previous step leaves its tokens on the device"
    row_of = {row: index for index, row in enumerate(previous.sampled)}
    decodes = enumerate(entry.request for entry in decision.scheduled[: decision.num_decodes])
    pairs = [(row_of[request], position) for position, request in decodes if request in row_of]
    rows, positions = [row for row, _ in pairs], [position for _, position in pairs]
    return [
        DeviceInput("token_ids", position, rows_of(previous.token_ids, row, count))
        for row, position, count in contiguous_runs(rows, positions)
    ]


def rows_of(output: Tensor, first: int, count: int) -> Tensor:
    """Return a view of `count` rows of an output [R, …]."""
    _, *row_shape = output.shape
    offset_bytes = output.offset_bytes + first * prod(row_shape) * output.dtype.itemsize
    return Tensor.of(output.buffer, output.dtype, (count, *row_shape), offset_bytes)
