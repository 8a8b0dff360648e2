"""What drivers of tests have in common: GPUs that are numbers, and handles for what they give out."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

from aethermind_cuda.driver import INVALID_DEVICE, CudaError

__all__ = ["ATTRIBUTES", "FakeGpus"]

ATTRIBUTES = {16: 108, 33: 0x3B, 34: 0, 38: 40 << 20, 50: 1, 75: 8, 76: 0, 97: 163 << 10}
"""Those of an A100."""


class FakeGpus:
    """`num_devices` GPUs of `total` bytes each, and everything in `handles` by the number that stands for it."""

    def __init__(self, num_devices: int, total: int) -> None:
        self.num_devices = num_devices
        self.total = total
        self.handles: dict[int, Any] = {}
        self.retained: Counter[int] = Counter()
        self._numbers = count(0x1000)

    def version(self) -> tuple[int, int]:
        return 13, 0

    def device_count(self) -> int:
        return self.num_devices

    def device_name(self, index: int) -> str:
        return f"fake GPU {index}"

    def device_memory(self, index: int) -> int:
        self._check(index)
        return self.total

    def device_attribute(self, index: int, attribute: int) -> int:
        self._check(index)
        return ATTRIBUTES[attribute]

    def retain_context(self, index: int) -> int:
        self._check(index)
        self.retained[index] += 1
        return self._new(("context", index))

    def release_context(self, index: int) -> None:
        self._check(index)
        assert self.retained[index] > 0, f"context {index} is released more often than it was retained"
        self.retained[index] -= 1

    def can_access_peer(self, index: int, other: int) -> bool:
        return index != other

    def enable_peer_access(self, other_context: int) -> None:
        assert self.handles[other_context][0] == "context"

    def stream_priority_range(self) -> tuple[int, int]:
        return 0, -5

    def max_active_clusters(
        self, function: int, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int
    ) -> int:
        """As many as an H200 was seen to run: 30 of four blocks, which are ten elevenths of its multiprocessors."""
        assert function in self.handles, f"{function} is no kernel"
        return ATTRIBUTES[16] * 10 // 11 // grid[0]

    def module_unload(self, module: int) -> None:
        self._forget(module)

    def event_destroy(self, event: int) -> None:
        self._forget(event)

    def graph_exec_destroy(self, executable: int) -> None:
        self._forget(executable)

    def _forget(self, handle: int) -> None:
        """What is in a context can be given back as long as that is there."""
        assert self.retained.total() > 0, f"{self.handles[handle]} is given back behind its context"
        del self.handles[handle]

    def _new(self, thing: Any) -> int:
        number = next(self._numbers)
        self.handles[number] = thing
        return number

    def _check(self, index: int) -> None:
        if not 0 <= index < self.num_devices:
            raise CudaError("cuDeviceGet", INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal")
