"""A second stream for prefill: the decodes and the prefills of a step are two runs that overlap on the device.

    default stream   … copies of blocks │ decodes                       │ tokens joined │ the next step …
    prefill stream                      │ prefill chunks, second arena  │

Decodes are bound by memory and prefill by arithmetic, so both together may take less time than one after the other.
Each run reads all weights, so they may also take more. The two runs write to different blocks and state slots. Each has
an executor of its own, with an arena, inputs and a workspace. With batch-invariant kernels (`--deterministic`) the
results have the same bits as those of one run.
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
    """Return the device's default stream, as a stream of steps."""
    opened = compiled.open_device
    return _with_readback(compiled, opened.backend.streams.default(opened.device.index))


def open_prefill_stream(compiled: CompiledModel) -> StepStream | None:
    """Create the second stream; None unless the configuration has `prefill_stream`."""
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
    """Let `other` run concurrently with `main` for what is enqueued within the block. The host does not wait.

    The work on `other` begins after what `main` has so far; what `main` gets after the block waits for that work.
    """
    started, ended = backend.events.create(), backend.events.create()
    started.record(main)
    other.wait_event(started)
    try:
        yield
    finally:
        ended.record(other)
        main.wait_event(ended)


def joined_step(
    backend: Backend, main: Stream, decision: ScheduleDecision, decodes: InFlightStep, prefills: InFlightStep
) -> InFlightStep:
    """Return both runs as one step. The tokens of prefills are copied after those of decodes, for the next step."""
    token_ids = None
    if decodes.token_ids is not None and prefills.token_ids is not None:
        decode_tokens, prefill_tokens = decodes.token_ids, prefills.token_ids
        num_decoded, num_prefilled = len(decodes.sampled), len(prefills.sampled)
        # The output has memory for the rows of the largest step, so the tokens of both runs fit.
        offset_bytes = decode_tokens.offset_bytes + num_decoded * decode_tokens.dtype.itemsize
        destination = Tensor.of(decode_tokens.buffer, decode_tokens.dtype, (num_prefilled,), offset_bytes)
        if num_prefilled:
            backend.transfer.copy_async(destination, prefill_tokens, main)
        token_ids = Tensor.of(
            decode_tokens.buffer, decode_tokens.dtype, (num_decoded + num_prefilled,), decode_tokens.offset_bytes
        )
    return InFlightStep(
        decision,
        [*decodes.sampled, *prefills.sampled],
        lambda: decodes.read() + prefills.read(),
        token_ids,
    )
