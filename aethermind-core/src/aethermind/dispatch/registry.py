"""Which package offers kernels for which kind of device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from aethermind.dispatch.kernel import Kernel
from aethermind.errors import AetherMindError, PluginError, in_words
from aethermind.hal.dtype import DType
from aethermind.plugins.stdout_guard import stdout_to_stderr

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

    def device_types(self) -> list[str]:
        """The devices that packages offer kernels for, sorted."""
        return sorted(self._loaders)

    def kernels(self, device_type: str) -> tuple[Kernel, ...]:
        """Every kernel for a device type, loaded once; PluginError names a package whose kernels cannot be loaded."""
        if device_type not in self._loaded:
            offers = self._loaders.get(device_type, ())
            found = [kernel for provider, load in offers for kernel in _load(device_type, provider, load)]
            self._loaded[device_type] = tuple(found)
        return self._loaded[device_type]


def _load(device_type: str, provider: str, load: Callable[[], Iterable[Kernel]]) -> list[Kernel]:
    """What a loader returns, checked, each kernel with its provider."""
    try:
        with stdout_to_stderr():
            offered: object = load()
            found = list(offered) if isinstance(offered, Iterable) else None
    except AetherMindError:
        raise
    except Exception as error:
        raise _refusal(device_type, provider, in_words(error)) from error
    if found is None:
        raise _refusal(device_type, provider, f"load() returned {type(offered).__name__} instead of kernels.")
    for number, kernel in enumerate(found):
        if problem := _problem(kernel, device_type):
            raise _refusal(device_type, provider, f"Number {number} of what load() returned {problem}.")
    for kernel in found:
        object.__setattr__(kernel, "provider", provider)  # 100 times faster than a copy, and a device has thousands
    return found


def _refusal(device_type: str, provider: str, reason: str) -> PluginError:
    return PluginError(
        f"The kernels of {provider} for {device_type} cannot be loaded: {reason} Update or uninstall {provider}."
    )


def _problem(kernel: object, device_type: str) -> str | None:
    """What is wrong with something that should be a kernel for a device, as a verb and its object."""
    if not isinstance(kernel, Kernel):
        return f"is {kernel!r:.80}, of type {type(kernel).__name__}, instead of a Kernel"
    name = f"is kernel {kernel.name!r} for operator {kernel.operator!r},"
    if kernel.device_type != device_type:
        return f"{name} made for device {kernel.device_type!r}"
    if not all(isinstance(dtype, DType) for dtype in kernel.dtypes):
        return f"{name} whose dtypes are {kernel.dtypes!r:.80} instead of DTypes"
    return None
