"""What a device is called, what it can tell about itself, and why it may be absent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from aethermind.errors import DeviceError, InvalidArgumentError

__all__ = ["CountedDevices", "DeviceId", "DeviceManager", "DeviceProperties", "Probe"]


@dataclass(frozen=True, slots=True)
class DeviceId:
    """One device: the name of its backend and an index, written `cuda:0`. The name is opaque to the core."""

    type: str
    index: int = 0

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> DeviceId:
        """Read `NAME` or `NAME:INDEX`; anything else is an InvalidArgumentError."""
        name, colon, index = text.partition(":")
        if not name or (colon and not index.isdecimal()):
            raise InvalidArgumentError(f"Device {text!r} is not of the form NAME or NAME:INDEX, such as cpu or cuda:1.")
        return cls(name, int(index) if index else 0)


@dataclass(frozen=True, slots=True)
class Probe:
    """The answer of a backend to "are you there?": how many devices, and in a sentence why so many, or why none.

    `is_broken` says that the asking went wrong, so that nobody knows.
    """

    count: int
    reason: str
    is_broken: bool = False

    @property
    def is_available(self) -> bool:
        return self.count > 0


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """Facts of one device; 0 where a number is not known.

    `isa` names instruction sets or an architecture; `details` holds what has no field of its own.
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
        """The number of devices; 0 where the hardware is absent."""

    @abstractmethod
    def properties(self, index: int) -> DeviceProperties:
        """Facts of device `index`; DeviceError when there is no such device."""

    @abstractmethod
    def current(self) -> int:
        """The index of the device that work goes to when none is named."""

    @abstractmethod
    def set_current(self, index: int) -> None:
        """Make `index` current; DeviceError when there is no such device."""

    @abstractmethod
    def synchronize(self, index: int) -> None:
        """Return when everything submitted to device `index`, on any of its streams, has finished."""


class CountedDevices(DeviceManager):
    """Devices of which one is current for all threads; facts and waiting are the subclass's."""

    def __init__(self, count: int, kind: str) -> None:
        """How many there are, and what messages call one: `GPU`."""
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
        """DeviceError when there is no such device."""
        if not 0 <= index < self._count:
            raise DeviceError(f"{self._kind} {index} does not exist: there are {self._count}, counted from 0.")
