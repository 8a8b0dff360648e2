"""Device and host memory as torch byte tensors, so that torch's caching allocator is the only allocator."""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right

import torch

from aethermind.errors import InvalidArgumentError, OutOfMemoryError
from aethermind.hal.device import DeviceId
from aethermind.hal.memory import Allocator, Buffer, MemoryCounter, MemoryKind, MemoryStats
from aethermind.hal.tensor import Tensor
from aethermind_cann.devices import CannDevices

__all__ = ["CannAllocator", "bytes_of"]

_HOST_ALIGNMENT = 64


class CannAllocator(Allocator):
    """Allocates on the current device, with statistics per device."""

    def __init__(self, name: str, devices: CannDevices) -> None:
        self._name = name
        self._devices = devices
        self._lock = threading.RLock()  # reentrant: a garbage collection inside `alloc` may release another buffer
        self._storages: dict[int, torch.Tensor] = {}
        self._counters = [MemoryCounter() for _ in range(devices.count())]

    def alloc(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        device = DeviceId(self._name, self._devices.current())
        if nbytes < 0:
            raise InvalidArgumentError(f"Cannot allocate {nbytes} bytes on {device}: the size is negative.")
        try:
            storage = _allocate(nbytes, kind, device.index)
        except (MemoryError, RuntimeError) as error:  # torch raises a RuntimeError when memory runs out
            raise self._out_of_memory(nbytes, kind, device, error) from None
        address = storage.data_ptr()
        counter = self._counters[device.index]
        with self._lock:
            if kind is MemoryKind.DEVICE:
                self._storages[address] = storage
            counter.add(nbytes)

        def release() -> None:
            with self._lock:
                self._storages.pop(address, None)
                counter.remove(nbytes)

        is_host_accessible = kind is not MemoryKind.DEVICE
        return Buffer(
            device, address, nbytes, kind=kind, is_host_accessible=is_host_accessible, release=release, owner=storage
        )

    def stats(self) -> MemoryStats:
        with self._lock:
            index = self._devices.current()
            stats = self._counters[index].stats()
        reserved = max(stats.reserved_bytes, torch.npu.memory_reserved(index))
        return MemoryStats(stats.allocated_bytes, reserved, stats.peak_bytes, stats.num_allocations)

    def storage_at(self, address: int) -> tuple[torch.Tensor, int]:
        """Return the allocated byte tensor that contains a device address, and the address's offset in it."""
        with self._lock:
            starts = sorted(self._storages)
            start = starts[bisect_right(starts, address) - 1]
            return self._storages[start], address - start

    def _out_of_memory(self, nbytes: int, kind: MemoryKind, device: DeviceId, error: Exception) -> OutOfMemoryError:
        where = f"{kind.value} memory for {device}" if kind is not MemoryKind.DEVICE else f"{device}"
        free, total = torch.npu.mem_get_info(device.index)
        in_use = self._counters[device.index].stats().allocated_bytes
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return OutOfMemoryError(
            f"Could not allocate {nbytes} bytes on {where}: it has {total} bytes, {free} are free, {in_use} are in use "
            f"by this process's tensors ({reason}). "
            "Lower --max-model-len or the number of KV blocks, or choose a smaller model."
        )


def bytes_of(tensor: Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor in device or host memory as a torch tensor, uint8 [nbytes]; no copy."""
    owner = tensor.buffer.owner
    begin = tensor.address - tensor.buffer.address
    if isinstance(owner, torch.Tensor):
        return owner[begin : begin + tensor.nbytes]
    memory = (ctypes.c_byte * tensor.nbytes).from_address(tensor.address)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _allocate(nbytes: int, kind: MemoryKind, index: int) -> torch.Tensor:
    """Allocate a byte tensor of at least one byte, so that it has an address."""
    if kind is MemoryKind.DEVICE:
        return torch.empty(max(nbytes, 1), dtype=torch.uint8, device=f"npu:{index}")
    if kind is MemoryKind.PINNED:
        return torch.empty(max(nbytes, 1), dtype=torch.uint8, pin_memory=True)
    whole = torch.empty(nbytes + _HOST_ALIGNMENT, dtype=torch.uint8)
    begin = -whole.data_ptr() % _HOST_ALIGNMENT
    return whole[begin : begin + max(nbytes, 1)]
