"""Copies between host and devices and between devices, with byte counts."""

from __future__ import annotations

from threading import Lock

from aethermind.hal.memory import Buffer, MemoryKind
from aethermind.hal.stream import Stream
from aethermind.hal.tensor import Tensor
from aethermind.hal.transfer import DataTransfer, TransferStats, check_copy, check_fill
from aethermind_cuda.devices import CudaDevices
from aethermind_cuda.driver import Driver
from aethermind_cuda.streams import CudaStream, CudaStreams

__all__ = ["CudaTransfer"]


class CudaTransfer(DataTransfer):
    """Copies and fills memory with the CUDA driver. A call without a stream waits for its own work only. Copies between
    devices are peer-to-peer where the hardware supports it, else staged by the driver; unified addressing identifies
    the memory of an address.
    """

    def __init__(self, driver: Driver, devices: CudaDevices, streams: CudaStreams) -> None:
        self._driver = driver
        self._devices = devices
        self._streams = streams
        self._stats = TransferStats(0, 0)
        self._lock = Lock()

    def copy(self, destination: Tensor, source: Tensor) -> None:
        check_copy(destination, source)
        stream = self._streams.create(_device_of(destination, source))
        self.copy_async(destination, source, stream)
        stream.destroy()

    def copy_async(self, destination: Tensor, source: Tensor, stream: Stream) -> None:
        check_copy(destination, source)
        assert isinstance(stream, CudaStream), "the stream is of another backend"
        handle, nbytes = stream.handle, source.nbytes
        if nbytes:
            self._driver.copy(destination.address, source.address, nbytes, handle)
            self._count(destination.buffer, source.buffer, nbytes)

    def fill(self, destination: Tensor, byte: int, stream: Stream | None = None) -> None:
        check_fill(destination, byte)
        own_stream = self._streams.create(destination.buffer.device.index) if stream is None else None
        target_stream = own_stream or stream
        assert isinstance(target_stream, CudaStream), "the stream is of another backend"
        handle = target_stream.handle
        if destination.nbytes:
            self._driver.fill(destination.address, byte, destination.nbytes, handle)
        if own_stream is not None:
            own_stream.destroy()

    def stats(self) -> TransferStats:
        return self._stats

    def _count(self, destination: Buffer, source: Buffer, nbytes: int) -> None:
        to_device, from_device = (buffer.kind is MemoryKind.DEVICE for buffer in (destination, source))
        with self._lock:
            self._stats = self._stats.counting(nbytes, from_device=from_device, to_device=to_device)


def _device_of(destination: Tensor, source: Tensor) -> int:
    """The device that executes a copy: the destination's if that is in device memory, otherwise the source's."""
    is_device = destination.buffer.kind is MemoryKind.DEVICE
    return (destination if is_device else source).buffer.device.index
