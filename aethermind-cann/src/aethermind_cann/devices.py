"""The NPUs that torch_npu reports."""

from __future__ import annotations

import torch

from aethermind.hal.device import CountedDevices, DeviceProperties

__all__ = ["CannDevices"]


class CannDevices(CountedDevices):
    """The NPUs. The current device is stored here, for all threads; torch's is per thread."""

    def __init__(self) -> None:
        super().__init__(int(torch.npu.device_count()), "NPU")

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

    def set_current(self, index: int) -> None:
        super().set_current(index)
        torch.npu.set_device(index)

    def synchronize(self, index: int) -> None:
        self.check(index)
        torch.npu.synchronize(index)
