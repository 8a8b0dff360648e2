"""Devices: their names and properties, whether they are available, and their use by all processes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

from aethermind.errors import DeviceError, InvalidArgumentError

__all__ = ["CountedDevices", "DeviceId", "DeviceManager", "DeviceProperties", "DeviceUsage", "Probe", "UsageSampler"]


@dataclass(frozen=True, slots=True)
class DeviceId:
    """One device: the name of its backend and an index, written `cuda:0`. The name is opaque to the core."""

    type: str
    index: int = 0

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> DeviceId:
        """Parse `NAME` or `NAME:INDEX`; InvalidArgumentError for anything else."""
        name, colon, index = text.partition(":")
        if not name or (colon and not index.isdecimal()):
            raise InvalidArgumentError(f"Device {text!r} is not of the form NAME or NAME:INDEX, such as cpu or cuda:1.")
        return cls(name, int(index) if index else 0)


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a probe: the number of devices of a backend, and a sentence about the reason.

    `is_broken` means that the probe itself failed, so that the number is unknown.
    """

    count: int
    reason: str
    is_broken: bool = False

    @property
    def is_available(self) -> bool:
        return self.count > 0


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """The properties of one device; 0 where a number is not known.

    `isa` names instruction sets or an architecture; `details` holds properties that have no field.
    """

    name: str
    total_memory_bytes: int
    num_cores: int
    compute_capability: tuple[int, int] | None = None
    isa: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)


class DeviceManager(ABC):
    """Enumerates the devices of one backend."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of devices; 0 where the hardware is absent."""

    @abstractmethod
    def properties(self, index: int) -> DeviceProperties:
        """Return the properties of device `index`; DeviceError when there is no such device."""

    @abstractmethod
    def current(self) -> int:
        """Return the index of the device that is used where none is named."""

    @abstractmethod
    def set_current(self, index: int) -> None:
        """Make `index` current; DeviceError when there is no such device."""

    @contextmanager
    def use(self, index: int) -> Iterator[None]:
        """Make device `index` current within the block, for instance to allocate memory there."""
        before = self.current()
        self.set_current(index)
        try:
            yield
        finally:
            self.set_current(before)

    @abstractmethod
    def synchronize(self, index: int) -> None:
        """Return when everything submitted to device `index`, on any of its streams, has finished."""


class CountedDevices(DeviceManager):
    """A number of devices, one of which is current for all threads; subclasses add `properties` and `synchronize`."""

    def __init__(self, count: int, kind: str) -> None:
        """Set the number of devices, and the word for one of them in messages, such as `GPU`."""
        self._count = count
        self._kind = kind
        self._current = 0

    def count(self) -> int:
        return self._count

    def current(self) -> int:
        return self._current

    def set_current(self, index: int) -> None:
        self.check(index)
        self._current = index

    def check(self, index: int) -> None:
        """Raise DeviceError when there is no such device."""
        if not 0 <= index < self._count:
            raise DeviceError(f"{self._kind} {index} does not exist: there are {self._count}, counted from 0.")


_USAGE_INTERVAL_S = 1.0
"""The maximum age of readings of usage. A driver's reading takes up to milliseconds, and monitoring asks every few
seconds.
"""


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
            if now - self._read_at >= _USAGE_INTERVAL_S:
                found = (self._read(index) for index in self._indices)
                self._latest = tuple(usage for usage in found if usage is not None)
                self._read_at = now
            return self._latest
