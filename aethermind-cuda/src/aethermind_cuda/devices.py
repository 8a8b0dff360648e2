"""The GPUs of this machine, and the context of each in which everything happens."""

from __future__ import annotations

from functools import cache
from threading import RLock

from aethermind.hal.device import CountedDevices, DeviceProperties
from aethermind_cuda.driver import Driver
from aethermind_cuda.launch import DeviceFacts

__all__ = ["CudaDevices"]

# Of `CUdevice_attribute`.
_NUM_MULTIPROCESSORS = 16
_L2_CACHE_BYTES = 38
_MAJOR, _MINOR = 75, 76
_SHARED_BYTES_OPTIN = 97


class CudaDevices(CountedDevices):
    """Contexts are the devices' primary ones, which torch and others share, retained when a device is first entered."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver.device_count(), "GPU")
        self._driver = driver
        self._contexts: dict[int, int] = {}
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
        """Make the device's context the calling thread's."""
        context = self._contexts.get(index)
        self._driver.set_context(self._retain(index) if context is None else context)

    def close(self) -> None:
        """Give the contexts back."""
        with self._lock:
            for index in self._contexts:
                self._driver.release_context(index)
            self._contexts.clear()

    def _facts(self, index: int) -> DeviceFacts:
        self.check(index)
        ask = self._driver.device_attribute
        return DeviceFacts(
            (ask(index, _MAJOR), ask(index, _MINOR)),
            ask(index, _NUM_MULTIPROCESSORS),
            ask(index, _SHARED_BYTES_OPTIN),
        )

    def _retain(self, index: int) -> int:
        """The context of a device, which from now on reaches the memory of all others that can be reached."""
        self.check(index)
        with self._lock:
            if index not in self._contexts:
                context = self._driver.retain_context(index)
                for other, other_context in self._contexts.items():
                    self._connect(index, context, other, other_context)
                    self._connect(other, other_context, index, context)
                self._contexts[index] = context
            return self._contexts[index]

    def _connect(self, index: int, context: int, other: int, other_context: int) -> None:
        if self._driver.can_access_peer(index, other):
            self._driver.set_context(context)
            self._driver.enable_peer_access(other_context)
