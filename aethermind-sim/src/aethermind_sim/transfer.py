"""Copies between host and devices and between devices, each as work on a stream."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

from aethermind.errors import DeviceError
from aethermind.hal.memory import Buffer
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer, TransferStats, check_copy, check_fill
from aethermind_sim.faults import Faults
from aethermind_sim.memory import Region, Span, accessible
from aethermind_sim.streams import SimStream, SimStreams

__all__ = ["SimTransfer"]


class SimTransfer(DataTransfer):
    """Copies and fills on simulated streams. Without a stream they are synchronous, ordered with no stream."""

    def __init__(self, streams: SimStreams, faults: Faults) -> None:
        self._streams = streams
        self._faults = faults
        self._stats = TransferStats(0, 0)

    def copy(self, destination: Tensor, source: Tensor) -> None:
        stream = self._streams.create()
        self.copy_async(destination, source, stream)
        stream.destroy()

    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        check_copy(destination, source)
        to_address, from_address, nbytes = destination.address, source.address, source.nbytes
        from_device, to_device = map(_is_device, (source.buffer, destination.buffer))
        memory = _AccessedMemory({source: False, destination: True})

        def work() -> None:
            self._faults.check_copy()
            with accessible(memory.spans()):
                ctypes.memmove(to_address, from_address, nbytes)
            self._stats = self._stats.counting(nbytes, from_device=from_device, to_device=to_device)

        _submit(stream, work)

    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        check_fill(destination, byte)
        address, nbytes = destination.address, destination.nbytes
        memory = _AccessedMemory({destination: True})

        def work() -> None:
            self._faults.check_copy()
            with accessible(memory.spans()):
                ctypes.memset(address, byte, nbytes)

        if stream is not None:
            _submit(stream, work)
            return
        own_stream = self._streams.create()
        own_stream.submit(work)
        own_stream.destroy()

    def stats(self) -> TransferStats:
        return self._stats


class _AccessedMemory:
    """The memory that a copy or fill accesses, by tensor and whether it is written; no reference keeps it alive."""

    def __init__(self, tensors: dict[Tensor, bool]) -> None:
        self._spans: list[Span] = []
        self._host_buffers: list[Callable[[], Buffer | None]] = []
        for tensor, is_written in tensors.items():
            if isinstance(tensor.buffer.owner, Region):
                self._spans.append(Span(tensor.buffer.owner, tensor.address, tensor.nbytes, is_written))
            else:
                self._host_buffers.append(weakref.ref(tensor.buffer))

    def spans(self) -> list[Span]:
        """Return the spans to make accessible; DeviceError if host memory of another allocator was freed."""
        if any(buffer() is None for buffer in self._host_buffers):
            raise DeviceError(
                "The host memory of a copy was freed before the copy ran. "
                "Keep both tensors until the stream has been synchronised."
            )
        return self._spans


def _is_device(buffer: Buffer) -> bool:
    return isinstance(buffer.owner, Region) and buffer.owner.device is not None


def _submit(stream: Stream, work: Callable[[], None]) -> None:
    assert isinstance(stream, SimStream), "the stream is of another backend"
    stream.submit(work)
