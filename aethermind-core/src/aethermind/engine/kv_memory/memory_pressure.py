"""Memory pressure: while a device's memory is short, memory of the KV cache is returned to the system.

The KV cache is allocated at the start, and its pages remain in use once they were written. When the memory in use, by
any process, exceeds a threshold, idle sessions are swapped out, blocks that only the prefix cache holds are evicted in
portions, the least recently used first, and the pages of free blocks are returned. Evicted blocks are computed again
when they are needed.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Protocol

from aethermind.errors import AetherMindError, InvalidArgumentError
from aethermind.hal.backend import Backend
from aethermind.hal.memory import Allocator
from aethermind.log import get_logger

if TYPE_CHECKING:
    from aethermind.cache.kv_cache import KVCache
    from aethermind.engine.kv_memory.memory import KVMemory
    from aethermind.runtime import OpenDevice

__all__ = ["MemoryPressure"]

logger = get_logger(__name__)

_INTERVAL_S = 1.0
"""Seconds between two readings of the memory in use."""
_EVICTED_FRACTION = 0.25
"""Fraction of the KV cache that is evicted at a time: the next reading may show that it was enough."""


class _Engine(Protocol):
    def relieve_memory_pressure(self) -> int: ...


class MemoryPressure:
    """Returns memory of one engine's KV cache while the memory in use exceeds a threshold. Callers hold the lock.

    `threshold` is a fraction of the device's memory.
    """

    def __init__(self, opened: OpenDevice, cache: KVCache, memory: KVMemory, threshold: float) -> None:
        """InvalidArgumentError for a device that returns no memory, or does not report how much is in use."""
        backend = opened.backend
        if type(backend.allocator).discard is Allocator.discard or type(backend).usage is Backend.usage:
            raise InvalidArgumentError(
                f"device_memory_threshold is for devices that return parts of the KV cache's memory to the system, "
                f"and {opened.device} holds it until the engine ends. Leave it out; swap_threshold counts blocks.",
                param="device_memory_threshold",
            )
        self._opened = opened
        self._cache = cache
        self._memory = memory
        self._threshold = threshold
        self._is_short = False

    def relieve(self) -> int:
        """Return memory to the system if it is short; returns the number of bytes, in whole pages."""
        usage = self._opened.backend.usage(self._opened.device.index)
        if usage is None or usage.memory_used_bytes <= self._threshold * usage.memory_total_bytes:
            self._is_short = False
            return 0
        num_evicted = self._cache.evict(int(_EVICTED_FRACTION * self._cache.pool.num_blocks) or 1)
        num_bytes = self._memory.discard_blocks(self._cache.pool.free_blocks())
        if not self._is_short:
            logger.info(
                "%.0f %% of the memory of %s is in use: %s blocks were evicted from the KV cache, %.1f MiB returned",
                100 * usage.memory_used_bytes / usage.memory_total_bytes,
                self._opened.device,
                num_evicted,
                num_bytes / 2**20,
            )
        self._is_short = True
        return num_bytes

    def watch(self, engine: _Engine) -> None:
        """Call `engine.relieve_memory_pressure()` once a second, in a thread, until the engine ends."""
        reference, ended = weakref.ref(engine), threading.Event()
        weakref.finalize(engine, ended.set).atexit = False

        def run() -> None:
            while not ended.wait(_INTERVAL_S):
                watched = reference()
                try:
                    if watched is not None:
                        watched.relieve_memory_pressure()
                except AetherMindError:  # it was closed
                    return
                del watched

        threading.Thread(target=run, name="aethermind-memory", daemon=True).start()
