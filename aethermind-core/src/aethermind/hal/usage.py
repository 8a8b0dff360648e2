"""The utilisation and memory of devices, for monitoring."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

__all__ = ["DeviceUsage", "UsageSampler"]

_INTERVAL_S = 1.0
"""Readings are at most this old. A driver's reading takes up to milliseconds, and monitoring asks every few seconds."""


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """The use of one device by all processes.

    `utilization` is the fraction of the last sampling period of the driver in which the device computed, from 0 to 1;
    None where it is not known.
    """

    device: str
    memory_used_bytes: int
    memory_total_bytes: int
    utilization: float | None = None


class UsageSampler:
    """Reads the usage of devices, at most once a second. Thread-safe.

    Args:
        read: returns the usage of one device by index, None where it is not known.
        indices: the devices.
    """

    def __init__(
        self,
        read: Callable[[int], DeviceUsage | None],
        indices: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._indices = tuple(indices)
        self._clock = clock
        self._lock = Lock()
        self._read_at = -float("inf")
        self._latest: tuple[DeviceUsage, ...] = ()

    def latest(self) -> tuple[DeviceUsage, ...]:
        """Return the usage of each device that reports it, at most a second old."""
        now = self._clock()
        with self._lock:
            if now - self._read_at >= _INTERVAL_S:
                found = (self._read(index) for index in self._indices)
                self._latest = tuple(usage for usage in found if usage is not None)
                self._read_at = now
            return self._latest
