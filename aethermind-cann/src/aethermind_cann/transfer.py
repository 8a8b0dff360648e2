"""Copies between host and NPUs, as bytes, so that every dtype is copied alike."""

from __future__ import annotations

import torch

from aethermind.hal.memory import Buffer, MemoryKind
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer, TransferStats, check_copy, check_fill
from aethermind_cann.memory import bytes_of
from aethermind_cann.streams import CannStream, CannStreams

__all__ = ["CannTransfer"]


class CannTransfer(DataTransfer):
    """A call without a stream runs on the device's default stream and waits for that copy."""

    def __init__(self, streams: CannStreams) -> None:
        self._streams = streams
        self._stats = TransferStats(0, 0)

    def copy(self, destination: Tensor, source: Tensor) -> None:
        stream = self._stream_of(destination.buffer, source.buffer)
        self.copy_async(destination, source, stream)
        stream.synchronize()

    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        check_copy(destination, source)
        assert isinstance(stream, CannStream), "the stream is of another backend"
        with torch.npu.stream(stream.handle):
            if source.nbytes:
                bytes_of(destination).copy_(bytes_of(source), non_blocking=True)
        to_device, from_device = _is_device(destination.buffer), _is_device(source.buffer)
        self._stats = self._stats.counting(source.nbytes, from_device=from_device, to_device=to_device)

    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        check_fill(destination, byte)
        used = self._stream_of(destination.buffer) if stream is None else stream
        assert isinstance(used, CannStream), "the stream is of another backend"
        with torch.npu.stream(used.handle):
            if destination.nbytes:
                bytes_of(destination).fill_(byte)
        if stream is None:
            used.synchronize()

    def stats(self) -> TransferStats:
        return self._stats

    def _stream_of(self, *buffers: Buffer) -> CannStream:
        """Return the default stream of the NPU that the first device buffer is on."""
        index = next((buffer.device.index for buffer in buffers if _is_device(buffer)), buffers[0].device.index)
        return self._streams.default(index)


def _is_device(buffer: Buffer) -> bool:
    return buffer.kind is MemoryKind.DEVICE
