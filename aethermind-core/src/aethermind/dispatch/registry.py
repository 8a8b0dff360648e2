"""Which package offers kernels for which kind of device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aethermind.dispatch.kernel import Kernel
from aethermind.errors import AetherMindError, PluginError

__all__ = ["KernelRegistry"]


class KernelRegistry:
    """Device types to loaders of kernels; filled at boot, then frozen. Loaded when a device is first opened."""

    def __init__(self) -> None:
        self._loaders: dict[str, list[tuple[str, Callable[[], Sequence[Kernel]]]]] = {}
        self._loaded: dict[str, tuple[Kernel, ...]] = {}
        self._is_frozen = False

    def register(self, device_type: str, load: Callable[[], Sequence[Kernel]], *, provider: str) -> None:
        """Offer the kernels that `load()` returns for `device_type`; several packages may offer some for one device."""
        assert not self._is_frozen, "registries are frozen after boot"
        self._loaders.setdefault(device_type, []).append((provider, load))

    def freeze(self) -> None:
        """Refuse registrations from now on."""
        self._is_frozen = True

    def kernels(self, device_type: str) -> tuple[Kernel, ...]:
        """Every kernel for a device type, loaded once; PluginError names a package whose kernels cannot be loaded."""
        if device_type not in self._loaded:
            offers = self._loaders.get(device_type, ())
            found = [kernel for provider, load in offers for kernel in _load(device_type, provider, load)]
            self._loaded[device_type] = tuple(found)
        return self._loaded[device_type]


def _load(device_type: str, provider: str, load: Callable[[], Sequence[Kernel]]) -> Sequence[Kernel]:
    try:
        return load()
    except AetherMindError:
        raise
    except Exception as error:
        raise PluginError(
            f"The kernels of {provider} for {device_type} cannot be loaded: {type(error).__name__}: {error}. "
            f"Update or uninstall {provider}."
        ) from error
