"""NPUs as torch_npu counts them."""

from __future__ import annotations

import torch

from aethermind.errors import DeviceError
from aethermind.hal.device import DeviceManager, DeviceProperties

__all__ = ["CannDevices"]


class CannDevices(DeviceManager):
    """The current device is this object's own: torch's would be another one in every thread."""

    def __init__(self) -> None:
        self._count = int(torch.npu.device_count())
        self._current = 0

    def count(self) -> int:
        return self._count

    def properties(self, index: int) -> DeviceProperties:
        self.check(index)
        found = torch.npu.get_device_properties(index)
        free_bytes, total_bytes = torch.npu.mem_get_info(index)
        return DeviceProperties(
            found.name,
            total_bytes,
            max(1, int(getattr(found, "cube_core_num", 1))),
            details={"free bytes": str(free_bytes), "vector cores": str(getattr(found, "vector_core_num", "?"))},
        )

    def current(self) -> int:
        return self._current

    def set_current(self, index: int) -> None:
        self.check(index)
        self._current = index
        torch.npu.set_device(index)

    def synchronize(self, index: int) -> None:
        self.check(index)
        torch.npu.synchronize(index)

    def check(self, index: int) -> None:
        """DeviceError when there is no such device."""
        if not 0 <= index < self._count:
            raise DeviceError(f"NPU {index} does not exist: there are {self._count}, counted from 0.")
