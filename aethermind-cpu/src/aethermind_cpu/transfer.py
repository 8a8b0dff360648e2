"""Copies within host memory, in a stream's order or at once."""

from __future__ import annotations

import ctypes
import threading

from aethermind.hal.buffer import MemoryKind
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer, TransferStats, check_copy, check_fill
from aethermind_cpu import _native
from aethermind_cpu.streams import CpuStream

__all__ = ["CpuTransfer"]


class CpuTransfer(DataTransfer):
    """Host and device memory are one here; bytes count as crossing by the kinds of the two buffers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._host_to_device = self._device_to_host = 0

    def copy(self, destination: Tensor, source: Tensor) -> None:
        check_copy(destination, source)
        ctypes.memmove(destination.address, source.address, source.nbytes)
        self._count(destination, source)

    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        check_copy(destination, source)
        _native_of(stream).copy(destination.address, source.address, source.nbytes)
        self._count(destination, source)

    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        check_fill(destination, byte)
        if stream is None:
            ctypes.memset(destination.address, byte, destination.nbytes)
        else:
            _native_of(stream).fill(destination.address, destination.nbytes, byte)

    def stats(self) -> TransferStats:
        with self._lock:
            return TransferStats(self._host_to_device, self._device_to_host)

    def _count(self, destination: Tensor, source: Tensor) -> None:
        is_to_device = destination.buffer.kind is MemoryKind.DEVICE
        is_from_device = source.buffer.kind is MemoryKind.DEVICE
        with self._lock:
            if is_to_device and not is_from_device:
                self._host_to_device += source.nbytes
            elif is_from_device and not is_to_device:
                self._device_to_host += source.nbytes


def _native_of(stream: Stream) -> _native.Stream:
    assert isinstance(stream, CpuStream), "copies run on a stream of their own backend"
    return stream.native
