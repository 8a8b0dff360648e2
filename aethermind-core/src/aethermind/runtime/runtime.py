"""The composition root: every registry filled from the core and the installed plugins, then frozen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from aethermind.dispatch import Dispatcher, Fallback, Kernel, KernelRegistry
from aethermind.errors import AetherMindError
from aethermind.hal.backend import Backend
from aethermind.hal.device import DeviceId
from aethermind.hal.registry import DeviceRegistry, Selection
from aethermind.model.registry import ArchitectureRegistry, ModelRegistry
from aethermind.ops.operator import OperatorRegistry
from aethermind.plugins.discovery import PluginRecord, discover, load

__all__ = ["OpenDevice", "Runtime"]


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A device in use: its backend, the dispatcher over its kernels, and why it was chosen."""

    backend: Backend
    device: DeviceId
    dispatcher: Dispatcher
    selection: Selection
    num_threads: int


@dataclass
class Runtime:
    """What is installed. Two runtimes can live in one process; nothing here is global.

    `plugins` are the records of everything that was found, failures included.
    """

    plugins: list[PluginRecord] = field(default_factory=list)
    devices: DeviceRegistry = field(default_factory=DeviceRegistry)
    kernels: KernelRegistry = field(default_factory=KernelRegistry)
    architectures: ArchitectureRegistry = field(default_factory=ArchitectureRegistry)
    models: ModelRegistry = field(default_factory=ModelRegistry)
    manager: Any = None

    @classmethod
    def boot(cls) -> Runtime:
        """Fill all registries. A plugin that fails is recorded and left out; nothing here raises because of it."""
        runtime = cls(plugins=discover())
        runtime._register_core()
        runtime.manager = load(runtime.plugins)
        for hook, registry in runtime._registries():
            runtime._call_hook(hook, registry)
        for record in runtime.plugins:
            if record.error:
                runtime.devices.record_failure(record.name, f"its plugin {record.title} failed: {record.error}")
        for _, registry in runtime._registries():
            registry.freeze()
        return runtime

    @cached_property
    def operators(self) -> OperatorRegistry:
        """The catalog and the plugins' operators; made when first asked for, because pages import NumPy."""
        from aethermind.ops.catalog import load as load_catalog

        registry = OperatorRegistry(load_catalog())
        self._call_hook("register_operators", registry)
        registry.freeze()
        return registry

    def open_device(self, text: str = "auto", *, fallback: Fallback = Fallback.WARN, num_threads: int | None = None) -> OpenDevice:
        """Select and open a device; DeviceError says what is wrong with the name or the hardware."""
        selection = self.devices.select(text)
        backend = selection.entry.open()
        threads = backend.set_num_threads(num_threads)
        may_fall_back = backend.capabilities.is_host_accessible and fallback is not Fallback.ERROR
        fallbacks = self._reference_kernels(backend.name)() if may_fall_back else []
        dispatcher = Dispatcher(self.kernels.kernels(backend.name), fallbacks)
        return OpenDevice(backend, selection.device, dispatcher, selection, threads)

    def _register_core(self) -> None:
        from aethermind.hal import null_backend, numpy_backend

        self.devices.register("numpy", probe=numpy_backend.probe, open=numpy_backend.NumpyBackend, priority=0, provider="aethermind-core")
        self.devices.register("null", probe=null_backend.probe, open=null_backend.NullBackend, priority=-1, provider="aethermind-core")
        for name in ("numpy", "null"):
            self.kernels.register(name, self._reference_kernels(name))

    def _reference_kernels(self, device_type: str) -> Callable[[], list[Kernel]]:
        def load_references() -> list[Kernel]:
            from aethermind.dispatch.reference import reference_kernels

            return reference_kernels(self.operators, device_type)

        return load_references

    def _registries(self) -> list[tuple[str, Any]]:
        return [
            ("register_devices", self.devices),
            ("register_kernels", self.kernels),
            ("register_architectures", self.architectures),
            ("register_models", self.models),
        ]

    def _call_hook(self, hook: str, registry: Any) -> None:
        """Call one hook of every plugin, each on its own, so that one failure leaves the others registered."""
        names = [record.name for record in self.plugins if record.error is None]
        for record in self.plugins:
            if record.error is not None:
                continue
            others = [self.manager.get_plugin(name) for name in names if name != record.name]
            try:
                self.manager.subset_hook_caller(hook, remove_plugins=others)(registry=registry)
            except AetherMindError as error:
                record.error = str(error)
            except Exception as error:
                record.error = f"{hook} raised {type(error).__name__}: {error}"
