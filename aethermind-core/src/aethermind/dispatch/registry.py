"""The registry of kernels: which packages provide kernels for which devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches

from aethermind.dispatch.kernel import Kernel
from aethermind.errors import AetherMindError, PluginError, describe_exception
from aethermind.hal.dtype import DType
from aethermind.ops.operator import OperatorRegistry
from aethermind.plugins.stdout_guard import stdout_to_stderr

__all__ = ["KernelRegistry", "unusable_kernels"]


class KernelRegistry:
    """Loaders of kernels by device type; filled at boot, then frozen. Kernels are loaded when first asked for."""

    def __init__(self) -> None:
        self._loaders: dict[str, list[tuple[str, int | None, Callable[[], Sequence[Kernel]]]]] = {}
        self._loaded: dict[str, tuple[Kernel, ...]] = {}
        self._is_frozen = False

    def register(
        self,
        device_type: str,
        load: Callable[[], Sequence[Kernel]],
        *,
        provider: str,
        api_version: int | None = None,
    ) -> None:
        """Add the kernels that `load()` returns for `device_type`; several packages may add some for one device.

        `api_version` is the version of the plugin API that the package is for, None for the newest. Boot passes it.
        """
        assert not self._is_frozen, "registries are frozen after boot"
        self._loaders.setdefault(device_type, []).append((provider, api_version, load))

    def freeze(self) -> None:
        """Refuse registrations from now on."""
        self._is_frozen = True

    def device_types(self) -> list[str]:
        """Return the device types for which packages have kernels, sorted."""
        return sorted(self._loaders)

    def kernels(self, device_type: str) -> tuple[Kernel, ...]:
        """Return every kernel for a device type, loaded once; PluginError names a package whose loader fails."""
        if device_type not in self._loaded:
            loaders = self._loaders.get(device_type, ())
            found = [kernel for loader in loaders for kernel in _load(device_type, *loader)]
            self._loaded[device_type] = tuple(found)
        return self._loaded[device_type]


def _load(
    device_type: str, provider: str, api_version: int | None, load: Callable[[], Iterable[Kernel]]
) -> list[Kernel]:
    """Return the kernels of a loader, checked, each with its provider and the version of its plugin API."""
    try:
        with stdout_to_stderr():
            returned: object = load()
            found = list(returned) if isinstance(returned, Iterable) else None
    except AetherMindError:
        raise
    except Exception as error:
        raise _load_error(device_type, provider, describe_exception(error)) from error
    if found is None:
        raise _load_error(device_type, provider, f"load() returned {type(returned).__name__} instead of kernels.")
    for number, kernel in enumerate(found):
        if problem := _defect(kernel, device_type):
            raise _load_error(device_type, provider, f"Item {number} of what load() returned {problem}.")
    for kernel in found:
        # Kernels are frozen; a device has thousands of them, so that copies would be slow.
        object.__setattr__(kernel, "provider", provider)
        object.__setattr__(kernel, "api_version", api_version)
    return found


def _load_error(device_type: str, provider: str, reason: str) -> PluginError:
    return PluginError(
        f"The kernels of {provider} for {device_type} cannot be loaded: {reason} Update or uninstall {provider}."
    )


def _defect(kernel: object, device_type: str) -> str | None:
    """Return why an object is not a kernel for a device, as a predicate of a sentence; None if it is one."""
    if not isinstance(kernel, Kernel):
        return f"is {kernel!r:.80}, of type {type(kernel).__name__}, instead of a Kernel"
    name = f"is kernel {kernel.name!r} for operator {kernel.operator!r},"
    if kernel.device_type != device_type:
        return f"{name} made for device {kernel.device_type!r}"
    if not all(isinstance(dtype, DType) for dtype in kernel.dtypes):
        return f"{name} whose dtypes are {kernel.dtypes!r:.80} instead of DTypes"
    return None


def unusable_kernels(kernels: Iterable[Kernel], operators: OperatorRegistry) -> Iterator[tuple[Kernel, str, bool]]:
    """Yield kernels that no plan can use, or whose packs no plan can use, with the reason and whether that is an error.

    An unknown operator may belong to a package that is not installed; it is an error only if it is similar to a known
    one, so that it is probably misspelt.
    """
    schemas = {operator.name: operator.schema for operator in operators}
    views = {name for name, schema in schemas.items() if schema.is_view}
    for kernel in kernels:
        schema = schemas.get(kernel.operator)
        if schema is None:
            near = get_close_matches(kernel.operator, schemas, 1)
            advice = f"did you mean {near[0]!r}?" if near else "it is of use only beside a package that defines it."
            yield kernel, f"no installed package defines operator {kernel.operator!r}; {advice}", bool(near)
            continue
        if kernel.operator in views:
            yield kernel, f"{kernel.operator} is a view, which no kernel computes.", True
        for name in kernel.packs.keys() - {spec.name for spec in schema.inputs} if kernel.packs else ():
            inputs = ", ".join(spec.name for spec in schema.inputs)
            yield kernel, f"it packs {name!r}, but the inputs of {kernel.operator} are {inputs}.", True
