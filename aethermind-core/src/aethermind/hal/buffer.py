"""A span of device memory with an owner."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from aethermind.errors import DeviceError
from aethermind.hal.device import DeviceId

__all__ = ["Buffer", "MemoryKind"]


class MemoryKind(Enum):
    """Where a buffer lives, seen from its device."""

    DEVICE = "device"
    HOST = "host"
    PINNED = "pinned"


class Buffer:
    """`nbytes` bytes at `address`, freed once: by `free()`, or when the last reference goes.

    Neither waits for work that still uses it, and the memory may be handed out again at once: whoever frees a buffer,
    or drops the last reference, has synchronised the streams that use it.

    `address` is meaningful to the device; the host may dereference it only where `is_host_accessible`.
    `owner` is whatever keeps the memory alive (a mapped file, an array). A buffer without `release` is borrowed: it
    ends with its last reference and cannot be freed.
    """

    __slots__ = (
        "__weakref__",
        "_release",
        "address",
        "device",
        "is_freed",
        "is_host_accessible",
        "kind",
        "nbytes",
        "owner",
    )

    def __init__(
        self,
        device: DeviceId,
        address: int,
        nbytes: int,
        *,
        kind: MemoryKind = MemoryKind.DEVICE,
        is_host_accessible: bool,
        release: Callable[[], None] | None = None,
        owner: object = None,
    ) -> None:
        self.device = device
        self.address = address
        self.nbytes = nbytes
        self.kind = kind
        self.is_host_accessible = is_host_accessible
        self.owner = owner
        self.is_freed = False
        self._release = release

    def __repr__(self) -> str:
        return f"Buffer({self.device}, {self.nbytes} bytes, {self.kind.value}{', freed' if self.is_freed else ''})"

    def __del__(self) -> None:
        release = getattr(self, "_release", None)
        if release is not None:
            self._release = None
            release()

    def free(self) -> None:
        """Give the memory back now; no view of it may be used any more. The caller waits for work on it first.

        Freeing twice, or freeing borrowed memory, is a DeviceError.
        """
        if self._release is None:
            raise DeviceError(f"{self!r} was freed already or is borrowed; free only what was allocated, and once.")
        release, self._release = self._release, None
        self.address = 0
        self.owner = None
        self.is_freed = True
        release()
