"""Copies of arrays to device memory and back, and long-running work for tests of asynchronous streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from aethermind.hal import Backend, DeviceId, DType, Stream, Tensor

__all__ = ["LongWork", "on_device", "on_host", "read_without_waiting"]

_NUM_BYTES, _NUM_FILLS, _FLAG_BYTE = 128 << 20, 4, 0xAB


def on_device(backend: Backend, device: DeviceId, array: np.ndarray[Any, Any]) -> Tensor:
    """Return a copy of an array in device memory."""
    tensor = Tensor.of(backend.allocator.alloc(array.nbytes), DType.of_numpy(array.dtype), array.shape)
    backend.transfer.copy(tensor, Tensor.of_numpy(array, device))
    return tensor


def on_host(backend: Backend, tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return a copy of a device tensor as an array."""
    array = np.empty(tensor.shape, tensor.dtype.numpy)
    backend.transfer.copy(Tensor.of_numpy(array, tensor.buffer.device), tensor)
    return array


@dataclass(frozen=True)
class LongWork:
    """Half a gigabyte of fills on a stream. The last bytes that they write are a flag: all fills have run.

    On an asynchronous device the fills are still running when `on` returns.
    """

    backend: Backend
    flag: Tensor
    scratch: Tensor

    @classmethod
    def on(cls, backend: Backend, stream: Stream) -> LongWork:
        """Submit the work."""
        scratch = Tensor.of(backend.allocator.alloc(_NUM_BYTES), DType.UINT8, (_NUM_BYTES,))
        work = cls(backend, Tensor.of(scratch.buffer, DType.UINT8, (64,), _NUM_BYTES - 64), scratch)
        backend.transfer.fill(scratch, 0)
        for byte in [*range(_NUM_FILLS), _FLAG_BYTE]:
            backend.transfer.fill(scratch, byte, stream)
        return work

    @property
    def has_run(self) -> bool:
        """Whether all fills have run: the flag, read from device memory without waiting for the stream."""
        return bool(np.all(read_without_waiting(self.backend, self.flag) == _FLAG_BYTE))


def read_without_waiting(backend: Backend, tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the contents of device memory now, without waiting for other streams."""
    if tensor.buffer.is_host_accessible:
        return tensor.numpy().copy()
    stream = backend.streams.create(tensor.buffer.device.index)
    host = Tensor.of_numpy(np.empty(tensor.shape, tensor.dtype.numpy), tensor.buffer.device)
    backend.transfer.copy_async(host, tensor, stream)
    stream.synchronize()
    stream.destroy()
    return host.numpy()
