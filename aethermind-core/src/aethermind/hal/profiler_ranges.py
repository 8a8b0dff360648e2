"""Named ranges in the timeline of a profiler: the interface, and ITT tasks, which are ranges of the host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from aethermind.errors import DeviceError
from aethermind.hal.stream import Stream

__all__ = ["ProfilerRanges", "itt_ranges"]

ProfilerRanges = Callable[[str, Stream], AbstractContextManager[Any]]
"""A context manager for a named range around the work that is submitted to a stream within it; ranges nest."""


def itt_ranges() -> ProfilerRanges:
    """Return ranges that are tasks of Intel's Instrumentation and Tracing Technology, on the calling thread.

    VTune and other collectors show them (https://github.com/intel/ittapi). DeviceError without the ittapi package.
    """
    try:
        import ittapi
    except ImportError:
        raise DeviceError("Ranges in a profiler of the host need ittapi: run `pip install ittapi`.") from None
    domain = ittapi.domain("aethermind")

    def open_range(name: str, _: Stream) -> AbstractContextManager[Any]:
        task: AbstractContextManager[Any] = ittapi.nested_task(name, domain)
        return task

    return open_range
