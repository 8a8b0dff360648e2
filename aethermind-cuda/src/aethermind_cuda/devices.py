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
_L2_CACHE_BYTES = 38
_MAJOR, _MINOR = 75, 76
_SHARED_BYTES_OPTIN = 97

_THE_BACKEND = "backend", 0
_thread = local()
"""`context` is the context that the thread entered last."""


class Context:
    """The primary context of a device, shared with torch and others, as retained by one backend.

    Memory, streams, events and graphs may be collected after their backend was closed, and the driver can free them
    only while their context exists. So each is registered here as a `thing`; the context is released once the backend
    has closed it and the last thing is gone.
    """

    def __init__(self, driver: Driver, index: int) -> None:
        self.handle = driver.retain_context(index)
        self._driver = driver
        self._index = index
        self._things: set[tuple[Hashable, int]] = {_THE_BACKEND}
        self._lock = RLock()  # reentrant: a garbage collection inside may release another thing

    def enter(self) -> None:
        """Make this context current in the calling thread."""
        self._driver.set_context(self.handle)
        _thread.context = self

    def made(self, kind: Hashable, handle: int) -> int:
        """Keep the context until this thing is given back; returns the handle."""
        self._things.add((kind, handle))
        return handle

    def give_back(self, kind: Hashable, handle: int, give_back: Callable[[int], None]) -> None:
        """Call `give_back(handle)` in this context; the thing is forgotten even if the call fails.

        A garbage collection may call this between any two calls of a thread, so the thread's context is restored.
        """
        before: Context = getattr(_thread, "context", self)
        try:
            self.enter()
            give_back(handle)
        finally:
            self._gone((kind, handle))
            if before is not self and before._things:
                before.enter()

    def leave(self) -> None:
        """Release the context once no thing needs it: its backend is closed."""
        self._gone(_THE_BACKEND)

    def _gone(self, thing: tuple[Hashable, int]) -> None:
        with self._lock:
            if thing in self._things:
                self._things.remove(thing)
                if not self._things:
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
        """Release each context as soon as nothing made in it is left."""
        with self._lock:
            for context in self._contexts.values():
                context.leave()
            self._contexts.clear()

    def _facts(self, index: int) -> DeviceFacts:
        self.check(index)
        ask = self._driver.device_attribute
        return DeviceFacts(
            (ask(index, _MAJOR), ask(index, _MINOR)),
            ask(index, _NUM_MULTIPROCESSORS),
            ask(index, _SHARED_BYTES_OPTIN),
        )

    def _retain(self, index: int) -> Context:
        """Retain a device's context and enable peer access to all devices that support it."""
        self.check(index)
        with self._lock:
            if index not in self._contexts:
                context = Context(self._driver, index)
                for other, other_context in self._contexts.items():
                    self._connect(index, context, other, other_context)
                    self._connect(other, other_context, index, context)
                self._contexts[index] = context
            return self._contexts[index]

    def _connect(self, index: int, context: Context, other: int, other_context: Context) -> None:
        if self._driver.can_access_peer(index, other):
            context.enter()
            self._driver.enable_peer_access(other_context.handle)
