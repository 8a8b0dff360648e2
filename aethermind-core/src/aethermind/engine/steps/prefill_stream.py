"""A second stream for prefill: a step that decodes and prefills is two runs that overlap on the device.

    default stream   … copies of blocks │ decodes                       │ tokens joined │ the next step …
    prefill stream                      │ prefill chunks, other arena   │

Decodes wait for memory and prefill for arithmetic, so together they may take less time than one after the other; each
reads all weights, so they may also take more. The parts of a step write to different blocks and state slots. Each has
an executor, and so an arena, inputs and a workspace, of its own. Kernels compute the rows of a request alike in any
batch where they are batch invariant (`--deterministic`), so answers have the same bits then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from aethermind.engine.steps.in_flight_step import InFlightStep, TokenReadback
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor

if TYPE_CHECKING:
    from aethermind.engine.loading.compiled_model import CompiledModel
    from aethermind.engine.scheduling.decision import ScheduleDecision
    from aethermind.hal.backend import Backend

__all__ = ["StepStream", "forked", "joined_step", "open_prefill_stream", "open_step_stream"]


class StepStream(NamedTuple):
    """A stream on which steps run, and the readback of their tokens, None on a device that is not asynchronous."""

    stream: Stream
    readback: TokenReadback | None
    is_for_prefill: bool = False


def open_step_stream(compiled: CompiledModel) -> StepStream:
    """Return the default stream of the device."""
    opened = compiled.open_device
    return _with_readback(compiled, opened.backend.streams.default(opened.device.index))


def open_prefill_stream(compiled: CompiledModel) -> StepStream | None:
    """Create the second stream, if the configuration has one."""
    if not compiled.config.prefill_stream:
        return None
    opened = compiled.open_device
    return _with_readback(compiled, opened.backend.streams.create(opened.device.index), is_for_prefill=True)


def _with_readback(compiled: CompiledModel, stream: Stream, *, is_for_prefill: bool = False) -> StepStream:
    opened, readback = compiled.open_device, None
    if opened.backend.capabilities.is_asynchronous:
        readback = TokenReadback(opened, compiled.step.plan.symbols["R"], stream)
    return StepStream(stream, readback, is_for_prefill)


@contextmanager
def forked(backend: Backend, main: Stream, other: Stream) -> Iterator[None]:
    """Within the block, `other` runs concurrently with `main`: behind what that has so far, before what it gets later.

    The host does not wait.
    """
    begun, ended = backend.events.create(), backend.events.create()
    begun.record(main)
    other.wait_event(begun)
    try:
        yield
    finally:
        ended.record(other)
        main.wait_event(ended)


def joined_step(
    backend: Backend, main: Stream, decision: ScheduleDecision, decodes: InFlightStep, prefills: InFlightStep
) -> InFlightStep:
    """Return both parts of a step as one; prefill's tokens are copied behind those of decodes, for the next step."""
    token_ids = None
    if decodes.token_ids is not None and prefills.token_ids is not None:
        first, more = decodes.token_ids, prefills.token_ids
        count, num_more = len(decodes.sampled), len(prefills.sampled)
        # The output has memory for the rows of the largest step, so also for those of this one.
        offset_bytes = first.offset_bytes + count * first.dtype.itemsize
        behind = Tensor.of(first.buffer, first.dtype, (num_more,), offset_bytes)
        if num_more:
            backend.transfer.copy_async(behind, more, main)
        token_ids = Tensor.of(first.buffer, first.dtype, (count + num_more,), first.offset_bytes)
    return InFlightStep(
        decision,
        [*decodes.sampled, *prefills.sampled],
        lambda: decodes.read() + prefills.read(),
        token_ids,
    )
