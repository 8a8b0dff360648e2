"""Copies within host memory, synchronous or ordered by a stream."""

from __future__ import annotations

import ctypes
import threading

from aethermind.hal.memory import MemoryKind
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer, TransferStats, check_copy, check_fill
from aethermind_cpu import _native
from aethermind_cpu.streams import CpuStream

__all__ = ["CpuTransfer"]


class CpuTransfer(DataTransfer):
    """Copies and fills host memory. A copy counts as host-to-device or device-to-host by the kinds of its buffers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stats = TransferStats(0, 0)

    def copy(self, destination: Tensor, source: Tensor) -> None:
        check_copy(destination, source)
        ctypes.memmove(destination.address, source.address, source.nbytes)
        self._count(destination, source)

    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        check_copy(destination, source)
        _native_stream(stream).copy(destination.address, source.address, source.nbytes)
        self._count(destination, source)

    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        check_fill(destination, byte)
        if stream is None:
            ctypes.memset(destination.address, byte, destination.nbytes)
        else:
            _native_stream(stream).fill(destination.address, destination.nbytes, byte)

    def stats(self) -> TransferStats:
        with self._lock:
            return self._stats

    def _count(self, destination: Tensor, source: Tensor) -> None:
        to_device, from_device = (tensor.buffer.kind is MemoryKind.DEVICE for tensor in (destination, source))
        with self._lock:
            self._stats = self._stats.counting(source.nbytes, from_device=from_device, to_device=to_device)


def _native_stream(stream: Stream) -> _native.Stream:
    assert isinstance(stream, CpuStream), "a CPU copy needs a CPU stream"
    return stream.native
