"""The device `arena`: an address space in which it allocates buffers itself, at addresses that the host cannot use."""

from collections import defaultdict
from functools import partial
from threading import RLock
from typing import Any

import numpy as np

from aethermind import hal
from aethermind.errors import OutOfMemoryError
from aethermind.graph import StepLoop
from aethermind.hal.host_memory import HostAllocator, HostDevices, HostEvents, HostStreams, HostTransfer

ARENA = hal.DeviceId("arena")
SIZE, ALIGNMENT = 1 << 32, 64  # the system commits a page at its first access


class ArenaAllocator(hal.Allocator):
    """A bump allocator with a free list per size."""

    def __init__(self) -> None:
        self._host = HostAllocator(ARENA)
        self._lock = RLock()  # reentrant: a garbage collection inside `alloc` may release another buffer
        self._free_lists: dict[int, list[int]] = defaultdict(list)
        self._next, self._used, self._peak, self._count = ALIGNMENT, 0, 0, 0

    def alloc(self, nbytes: int, kind: hal.MemoryKind = hal.MemoryKind.DEVICE) -> hal.Buffer:
        if kind is not hal.MemoryKind.DEVICE or nbytes < 0:
            return self._host.alloc(nbytes, kind)
        size = max(1, -(-nbytes // ALIGNMENT)) * ALIGNMENT
        with self._lock:
            begin = self._free_lists[size].pop() if self._free_lists[size] else self._next
            if begin + size > SIZE:
                raise OutOfMemoryError(
                    f"Could not allocate {nbytes} bytes on {ARENA}: {self._used} of its {SIZE} bytes are in use. "
                    "Lower --max-model-len or the number of KV blocks, or choose a smaller model."
                )
            self._next, self._count = max(self._next, begin + size), self._count + 1
            self._used += nbytes
            self._peak = max(self._peak, self._used)
        release = partial(self._free, begin, size, nbytes)
        return hal.Buffer(ARENA, begin, nbytes, is_host_accessible=False, release=release)

    def stats(self) -> hal.MemoryStats:
        return hal.MemoryStats(self._used, self._next, self._peak, self._count)

    def _free(self, begin: int, size: int, nbytes: int) -> None:
        with self._lock:
            self._free_lists[size].append(begin)
            self._used -= nbytes


class ArenaTransfer(HostTransfer):
    """Copies by the host after translating arena addresses."""

    def __init__(self, base: int) -> None:
        self._base = base

    def copy(self, destination: hal.Tensor, source: hal.Tensor) -> None:
        super().copy(self._on_host(destination), self._on_host(source))

    def fill(self, destination: hal.Tensor, byte: int, stream: Any = None) -> None:
        super().fill(self._on_host(destination), byte, stream)

    def _on_host(self, tensor: hal.Tensor) -> hal.Tensor:
        if tensor.buffer.is_host_accessible:
            return tensor
        address = self._base + tensor.address
        buffer = hal.Buffer(ARENA, address, tensor.nbytes, is_host_accessible=True, owner=tensor.buffer)
        return hal.Tensor(buffer, tensor.dtype, tensor.shape, tensor.strides)


class ArenaBackend(hal.Backend):
    """The backend: its own memory; work is executed synchronously, as on the host."""

    def __init__(self) -> None:
        self.name = ARENA.type
        self._memory = np.zeros(SIZE, np.uint8)
        self._base = self._memory.ctypes.data
        self.devices = HostDevices(hal.DeviceProperties("an arena in host memory", SIZE, num_cores=1))
        self.allocator, self.transfer = ArenaAllocator(), ArenaTransfer(self._base)
        self.streams, self.events = HostStreams(), HostEvents()
        dtypes = (hal.DType.FLOAT32, hal.DType.BFLOAT16, hal.DType.FLOAT16)
        self.capabilities = hal.Capabilities(dtypes, is_host_accessible=False)

    def close(self) -> None:
        """Nothing to release: no work is pending."""

    def compile(self, plan: Any, memory: Any) -> StepLoop:
        """Compile a plan to Python kernels over the host's view of the arena."""
        return StepLoop(plan, {location: self._base + address for location, address in memory.items()})
