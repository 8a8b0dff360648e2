"""The GPUs of this machine and their primary contexts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from threading import RLock, local

from aethermind.hal.device import CountedDevices, DeviceProperties
from aethermind_cuda.driver import Driver
from aethermind_cuda.launch import DeviceFacts

__all__ = ["Context", "CudaDevices"]

# Values of `CUdevice_attribute`.
_NUM_MULTIPROCESSORS = 16
_PCI_BUS, _PCI_DEVICE, _PCI_DOMAIN = 33, 34, 50
_L2_CACHE_BYTES = 38
_MAJOR, _MINOR = 75, 76
_SHARED_BYTES_OPTIN = 97

_BACKEND_HANDLE = "backend", 0
_thread = local()
"""`context` is the context that the thread entered last."""


class Context:
    """The primary context of a device, shared with torch and others, as retained by one backend.

    Memory, streams, events and graphs may be collected after their backend was closed, and the driver can free them
    only while their context exists. So each is registered here; the context is released once the backend has closed
    it and the last handle is released.
    """

    def __init__(self, driver: Driver, index: int) -> None:
        self.handle = driver.retain_context(index)
        self._driver = driver
        self._index = index
        self._live_handles: set[tuple[Hashable, int]] = {_BACKEND_HANDLE}
        self._lock = RLock()  # reentrant: a garbage collection inside may release another handle

    def enter(self) -> None:
        """Make this context current in the calling thread."""
        self._driver.set_context(self.handle)
        _thread.context = self

    def register(self, kind: Hashable, handle: int) -> int:
        """Retain the context until `release` of this handle; returns the handle."""
        self._live_handles.add((kind, handle))
        return handle

    def release(self, kind: Hashable, handle: int, destroy: Callable[[int], None]) -> None:
        """Call `destroy(handle)` in this context; the handle is unregistered even if the call fails.

        A garbage collection may call this between any two calls of a thread, so the thread's context is restored.
        """
        before: Context = getattr(_thread, "context", self)
        try:
            self.enter()
            destroy(handle)
        finally:
            self._unregister((kind, handle))
            if before is not self and before._live_handles:
                before.enter()

    def close(self) -> None:
        """Unregister the backend: the context is released with its last handle."""
        self._unregister(_BACKEND_HANDLE)

    def _unregister(self, entry: tuple[Hashable, int]) -> None:
        with self._lock:
            if entry in self._live_handles:
                self._live_handles.remove(entry)
                if not self._live_handles:
                    self._driver.release_context(self._index)


class CudaDevices(CountedDevices):
    """The GPUs that the driver sees. A context is retained when its device is first entered."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver.device_count(), "GPU")
        self._driver = driver
        self._contexts: dict[int, Context] = {}
        self._lock = RLock()
        self.facts = cache(self._facts)

    def properties(self, index: int) -> DeviceProperties:
        facts = self.facts(index)
        major, minor = facts.compute_capability
        version = self._driver.version()
        return DeviceProperties(
            self._driver.device_name(index),
            self._driver.device_memory(index),
            facts.num_multiprocessors,
            facts.compute_capability,
            (f"sm_{major}{minor}",),
            {
                "cuda_driver": f"{version[0]}.{version[1]}",
                "l2_cache_bytes": str(self._driver.device_attribute(index, _L2_CACHE_BYTES)),
                "shared_memory_bytes": str(facts.shared_bytes),
            },
        )

    def bus_id(self, index: int) -> str:
        """The address of a GPU on the PCI bus, `DOMAIN:BUS:DEVICE.FUNCTION` in hexadecimal."""
        attribute = self._driver.device_attribute
        domain, bus, device = (attribute(index, number) for number in (_PCI_DOMAIN, _PCI_BUS, _PCI_DEVICE))
        return f"{domain:08x}:{bus:02x}:{device:02x}.0"

    def synchronize(self, index: int) -> None:
        self.enter(index)
        self._driver.synchronize_context()

    def enter(self, index: int) -> None:
        """Make the device's context current in the calling thread."""
        self.context(index).enter()

    def context(self, index: int) -> Context:
        """The context of a device."""
        return self._contexts.get(index) or self._retain(index)

    def close(self) -> None:
        """Release each context as soon as its last handle is released."""
        with self._lock:
            for context in self._contexts.values():
                context.close()
            self._contexts.clear()

    def _facts(self, index: int) -> DeviceFacts:
        self.check(index)
        attribute = self._driver.device_attribute
        return DeviceFacts(
            (attribute(index, _MAJOR), attribute(index, _MINOR)),
            attribute(index, _NUM_MULTIPROCESSORS),
            attribute(index, _SHARED_BYTES_OPTIN),
        )

    def _retain(self, index: int) -> Context:
        """Retain a device's context and enable peer access to all devices that support it."""
        self.check(index)
        with self._lock:
            if index not in self._contexts:
                context = Context(self._driver, index)
                for other, other_context in self._contexts.items():
                    self._enable_peer_access(index, context, other, other_context)
                    self._enable_peer_access(other, other_context, index, context)
                self._contexts[index] = context
            return self._contexts[index]

    def _enable_peer_access(self, index: int, context: Context, other: int, other_context: Context) -> None:
        if self._driver.can_access_peer(index, other):
            context.enter()
            self._driver.enable_peer_access(other_context.handle)
