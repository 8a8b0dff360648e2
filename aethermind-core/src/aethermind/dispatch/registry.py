"""Which package offers kernels for which kind of device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aethermind.dispatch.kernel import Kernel

__all__ = ["KernelRegistry"]


class KernelRegistry:
    """Device types to loaders of kernels; filled at boot, then frozen. Loading happens when a device is first opened."""

    def __init__(self) -> None:
        self._loaders: dict[str, list[tuple[str, Callable[[], Sequence[Kernel]]]]] = {}
        self._loaded: dict[str, tuple[Kernel, ...]] = {}
        self._is_frozen = False

    def register(self, device_type: str, load: Callable[[], Sequence[Kernel]], *, provider: str = "aethermind-core") -> None:
        """Offer the kernels that `load()` returns for `device_type`; several packages may offer kernels for one device."""
        assert not self._is_frozen, "registries are frozen after boot"
        self._loaders.setdefault(device_type, []).append((provider, load))

    def freeze(self) -> None:
        self._is_frozen = True

    def kernels(self, device_type: str) -> tuple[Kernel, ...]:
        """Every kernel for a device type, loaded once."""
        if device_type not in self._loaded:
            found = [kernel for _, load in self._loaders.get(device_type, ()) for kernel in load()]
            self._loaded[device_type] = tuple(found)
        return self._loaded[device_type]
