"""NVTX ranges for NVIDIA's profilers (`pip install nvtx`)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from aethermind.errors import DeviceError
from aethermind.hal.profiler_ranges import ProfilerRanges
from aethermind.hal.stream import Stream

__all__ = ["nvtx_ranges"]


def nvtx_ranges() -> ProfilerRanges:
    """Return the function that opens a range on the enqueuing thread, which Nsight projects onto the GPU.

    DeviceError without nvtx.
    """
    try:
        import nvtx
    except ImportError:
        raise DeviceError("Ranges in NVIDIA's profilers need nvtx: run `pip install nvtx`.") from None

    def open_range(name: str, _: Stream) -> AbstractContextManager[Any]:
        opened: AbstractContextManager[Any] = nvtx.annotate(name)
        return opened

    return open_range
