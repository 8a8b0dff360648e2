"""The composition root: all registries, filled by the core and the installed plugins, then frozen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.cache.stores.kv_store import StoreAddress
from aethermind.dispatch import Dispatcher, Fallback, Kernel, KernelRegistry
from aethermind.dispatch.registry import unusable_kernels
from aethermind.errors import InvalidArgumentError
from aethermind.first_party import FIRST_PARTY
from aethermind.graph.tensor_parallel.collectives import with_collectives
from aethermind.hal.backend import Backend
from aethermind.hal.device import DeviceId, Probe
from aethermind.hal.registry import DeviceRegistry, Selection
from aethermind.hal.topology import host_topology
from aethermind.log import get_logger
from aethermind.model.registry import ArchitectureRegistry, ModelRegistry, gguf_families, input_processors
from aethermind.model.source import ModelSource, RetokenizedSource, open_source
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.weight_format import FORMAT_NAMES, WeightFormatRegistry, parse_format
from aethermind.plugins.compatibility import deprecated
from aethermind.plugins.discovery import PluginRecord
from aethermind.plugins.loading import call_each
from aethermind.plugins.registry import Registry
from aethermind.plugins.sandbox_load import load_installed
from aethermind.runtime.isolated_devices import IsolatedDevice

if TYPE_CHECKING:
    import pluggy

    from aethermind.cache.stores.kv_store import KVStore
    from aethermind.model.gguf_family import GgufFamily
    from aethermind.model.input_processor import InputProcessorFactory
    from aethermind.sampling.logits_constraints import LogitsProcessorFactory
    from aethermind.text.answer_format import AnswerFormat

__all__ = ["OpenDevice", "Runtime"]

logger = get_logger(__name__)

_BUILT_IN = {
    "policies": {
        "fcfs": "aethermind.engine.policies:FirstComeFirstServed",
        "priority": "aethermind.engine.policies:PriorityWithAging",
        "shortest": "aethermind.engine.policies:ShortestFirst",
        "deadline": "aethermind.engine.policies:EarliestDeadline",
        "weighted": "aethermind.engine.policies:WeightedOrder",
        "fair": "aethermind.engine.policies:FairShare",
    },
    "kv_stores": {
        "host": "aethermind.cache.stores.kv_store:open_host_store",
        "disk": "aethermind.cache.stores.disk_store:open_disk_store",
        "redis": "aethermind.cache.stores.redis_store:open_redis_store",
        "rediss": "aethermind.cache.stores.redis_store:open_redis_store",
    },
    "proposers": {
        "prompt_lookup": "aethermind.engine.speculative.prompt_lookup:PromptLookup",
        "draft": "aethermind.engine.speculative.model_proposer:DraftModel",
        "mtp": "aethermind.engine.speculative.mtp:MTPProposer",
    },
    "executors": {
        "inline": "aethermind.engine.executors.executor:InlineExecutor",
        "multiproc": "aethermind.engine.executors.multiproc:MultiprocExecutor",
    },
}
"""Import paths of objects that the core registers, by kind and name; an object is imported if it is selected."""


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """An opened device: its backend, the dispatcher over its kernels, why it was chosen, its worker threads, and one
    line on their placement by NUMA node, None where they are not placed.
    """

    backend: Backend
    device: DeviceId
    dispatcher: Dispatcher
    selection: Selection
    num_threads: int
    numa: str | None = None


class _KVStoreRegistry(Registry["Callable[[StoreAddress], KVStore]"]):
    def open_at(self, address: str) -> KVStore:
        """Open the store at an address."""
        parsed = StoreAddress.parse(address)
        return self.get(parsed.name)(parsed)

    def open(self, address: str) -> KVStore:
        """Deprecated: use `Runtime.open_kv_store`."""
        deprecated("Runtime.kv_stores.open", instead="Runtime.open_kv_store", until="0.4")
        return self.open_at(address)


@dataclass(repr=False)
class Runtime:
    """The registries of everything that is installed, made by `boot`. A process can have several: nothing is global.

    `plugins` are the records of all plugins found, failures included. `built_in` are the names that the core registered
    itself, by kind, in the form of a record's `registered`. `policies`, `proposers` and `executors` hold objects of the
    engine, whose `engine.parts` knows their types.
    """

    plugins: list[PluginRecord]
    manager: pluggy.PluginManager
    devices: DeviceRegistry = field(default_factory=DeviceRegistry)
    kernels: KernelRegistry = field(default_factory=KernelRegistry)
    weight_formats: WeightFormatRegistry = field(default_factory=WeightFormatRegistry)
    architectures: ArchitectureRegistry = field(default_factory=ArchitectureRegistry)
    input_processors: Registry[InputProcessorFactory] = field(default_factory=input_processors)
    gguf_families: Registry[GgufFamily] = field(default_factory=gguf_families)
    models: ModelRegistry = field(default_factory=ModelRegistry)
    logits_processors: Registry[LogitsProcessorFactory] = field(
        default_factory=lambda: Registry(
            "Logits processor",
            "logits processor",
            error=InvalidArgumentError,
            advice="Install the package that provides it.",
        )
    )
    answer_formats: Registry[AnswerFormat] = field(
        default_factory=lambda: Registry("Answer format of architecture", "answer format")
    )
    policies: Registry[Any] = field(default_factory=lambda: Registry("Scheduling policy", "scheduling policy"))
    kv_stores: _KVStoreRegistry = field(default_factory=lambda: _KVStoreRegistry("KV store", "KV store"))
    proposers: Registry[Any] = field(default_factory=lambda: Registry("Proposer", "speculative method"))
    executors: Registry[Any] = field(default_factory=lambda: Registry("Executor", "executor"))
    built_in: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def boot(cls) -> Runtime:
        """Load the installed plugins and fill all registries. A plugin that fails is recorded and registers nothing."""
        return cls.of(*load_installed())

    @classmethod
    def of(cls, records: list[PluginRecord], manager: pluggy.PluginManager) -> Runtime:
        """Fill all registries from the core and from these plugins."""
        runtime = cls(records, manager)
        while not runtime._register():  # one more plugin failed: start over without what it has registered
            runtime = cls(records, manager)
        for record in records:
            if record.error:
                runtime.devices.record_failure(record.name, f"its plugin {record.title} failed: {record.error}")
        for _, registry in runtime._registries():
            registry.freeze()
        return runtime

    def __post_init__(self) -> None:
        self._operators = _LazyOperators(self.plugins, self.manager, self.built_in)

    def __repr__(self) -> str:
        devices = ", ".join(entry.name for entry in self.devices)
        return f"<Runtime with devices {devices}; architectures {', '.join(self.architectures.names()) or 'none'}>"

    @property
    def operators(self) -> OperatorRegistry:
        """The operators of the catalog and of plugins; made at first use, because operator pages import NumPy.

        A plugin that fails here is recorded, and none of its operators are included.
        """
        return self._operators.registry

    def providers(self, kind: str, name: str) -> list[str]:
        """Return the packages, with versions, that registered `name` of a `kind` (`devices`, `kernels`, …)."""
        of_plugins = [
            f"{record.distribution} {record.version}"
            for record in self.plugins
            if name in record.registered.get(kind, ())
        ]
        return ["aethermind-core"] * (name in self.built_in.get(kind, ())) + of_plugins

    def open_source(
        self, model: str | Path, tokenizer: str | Path | None = None, *, may_arrive: bool = False
    ) -> ModelSource:
        """Open the files of an installed model, of the model at a path, or of one of the Hugging Face Hub by its name,
        which is downloaded if it is not in the cache; ConfigError if there is none.

        With `may_arrive` its weights may still be downloaded, and are waited for where values are read.

        `tokenizer` replaces the model's tokenizer: a directory, its tokenizer.json, a .gguf file, or a model's name.
        """
        locate = self.models.locate_arriving if may_arrive else self.models.locate
        source = open_source(locate(str(model)), self.gguf_families)
        return source if tokenizer is None else RetokenizedSource(source, self.open_tokenizer_source(tokenizer))

    def open_tokenizer_source(self, tokenizer: str | Path) -> ModelSource:
        """Open the files of a tokenizer: a directory, its tokenizer.json, a .gguf file, or an installed model."""
        path = self.models.locate(str(tokenizer), "tokenizer")
        is_vocabulary = path.name == "tokenizer.json" and path.is_file()
        return open_source(path.parent if is_vocabulary else path, self.gguf_families)

    def open_kv_store(self, address: str) -> KVStore:
        """Open the KV store at an address; ConfigError for an unknown name lists the installed stores."""
        return self.kv_stores.open_at(address)

    def open_device(
        self,
        text: str = "auto",
        *,
        fallback: Fallback = Fallback.WARN,
        num_threads: int | None = None,
        is_deterministic: bool = False,
        numa: str = "off",
        rank: int = 0,
        num_ranks: int = 1,
    ) -> OpenDevice:
        """Select and open a device; DeviceError says what is wrong with the name or the hardware.

        With `is_deterministic` its dispatcher refuses kernels whose results depend on the other rows of a batch. With
        `numa="auto"` threads and memory are placed by NUMA node, for one of `num_ranks` ranks on this machine.
        """
        selection, backend = self.devices.open(text)
        threads = backend.set_num_threads(num_threads)
        if num_threads is not None and backend.capabilities.is_host_accessible:
            _warn_of_more_threads_than_cores(threads)
        placement = backend.place_by_node(rank, num_ranks) if numa == "auto" else None
        if placement is not None:
            logger.info("%s: %s", selection.device, placement)
        may_fall_back = backend.capabilities.is_host_accessible and fallback is not Fallback.ERROR
        fallbacks = self._reference_kernels(backend.name)() if may_fall_back else []
        kernels = self.kernels.kernels(backend.name)
        for kernel, problem, is_mistake in unusable_kernels(kernels, with_collectives(self.operators)):
            level = logging.WARNING if is_mistake else logging.INFO
            logger.log(level, "Kernel %s, for %s, is never used: %s", kernel.title, backend.name, problem)
        dispatcher = Dispatcher(kernels, fallbacks, is_deterministic=is_deterministic)
        return OpenDevice(backend, selection.device, dispatcher, selection, threads, placement)

    def _register(self) -> bool:
        """Fill the registries; False if a plugin failed, after it may have registered some names."""
        self._register_core()
        return all(_call_hook(self.plugins, self.manager, hook, registry) for hook, registry in self._registries())

    def _register_core(self) -> None:
        from aethermind.hal.builtin_backends import NullBackend, NumpyBackend, probe_null, probe_numpy

        provider = "aethermind-core"
        built_in = {
            kind: _RecordingRegistry(registry, self.built_in, kind)
            for kind, registry in ((hook.removeprefix("register_"), registry) for hook, registry in self._registries())
        }
        built_in["devices"].register("numpy", probe=probe_numpy, open=NumpyBackend, priority=0, provider=provider)
        built_in["devices"].register("null", probe=probe_null, open=NullBackend, priority=-1, provider=provider)
        for name in ("numpy", "null"):
            built_in["kernels"].register(name, self._reference_kernels(name), provider=provider)
        built_in["weight_formats"].register(parse_format, names=FORMAT_NAMES, provider=provider)
        for kind, targets in _BUILT_IN.items():
            for name, target in targets.items():
                built_in[kind].register(name, target, provider=provider)

    def _reference_kernels(self, device_type: str) -> Callable[[], list[Kernel]]:
        operators = self._operators  # not self, which would be a reference cycle through the kernel registry

        def load_references() -> list[Kernel]:
            from aethermind.dispatch.reference import reference_kernels

            return reference_kernels(operators.registry, device_type)

        return load_references

    def _registries(self) -> list[tuple[str, Any]]:
        return [
            ("register_devices", self.devices),
            ("register_kernels", self.kernels),
            ("register_weight_formats", self.weight_formats),
            ("register_architectures", self.architectures),
            ("register_input_processors", self.input_processors),
            ("register_gguf_families", self.gguf_families),
            ("register_models", self.models),
            ("register_logits_processors", self.logits_processors),
            ("register_answer_formats", self.answer_formats),
            ("register_policies", self.policies),
            ("register_kv_stores", self.kv_stores),
            ("register_proposers", self.proposers),
            ("register_executors", self.executors),
        ]


class _LazyOperators:
    """The operators of a runtime, registered at first use. Separate from the runtime to avoid a reference cycle."""

    def __init__(self, plugins: list[PluginRecord], manager: pluggy.PluginManager, built_in: dict[str, list[str]]):
        self._plugins = plugins
        self._manager = manager
        self._built_in = built_in

    @cached_property
    def registry(self) -> OperatorRegistry:
        from aethermind.ops.catalog import load as load_catalog

        registry = OperatorRegistry(load_catalog())
        while not _call_hook(self._plugins, self._manager, "register_operators", registry):
            registry = OperatorRegistry(load_catalog())
        registry.freeze()
        self._built_in["operators"] = [operator.name for operator in load_catalog()]
        return registry


def _call_hook(plugins: list[PluginRecord], manager: pluggy.PluginManager, hook: str, registry: Any) -> bool:
    """Call one hook of every plugin that has not failed; False if one of them fails now."""
    kind = hook.removeprefix("register_")
    for record in plugins:
        record.registered.pop(kind, None)
    working = [record for record in plugins if record.error is None]
    for record in working:
        recording = _RecordingRegistry(registry, record.registered, kind)
        if isinstance(registry, DeviceRegistry) and not record.is_first_party:
            recording = _DeviceRegistryOfThirdParty(registry, record)
        elif kind in _REPLACEABLE_KINDS and not record.is_first_party:
            recording = _FamilyRegistryOfThirdParty(registry, record, kind)
        elif kind == "kernels":
            recording = _KernelRegistryOfPlugin(registry, record)
        list(call_each(manager, [record], hook, registry=recording))
    return all(record.error is None for record in working)


def _warn_of_more_threads_than_cores(num_threads: int) -> None:
    num_cores = host_topology().num_usable_cores
    if num_threads > num_cores:
        logger.warning(
            "%d threads on %d cores wait for each other, which is slower: ask for at most %d.",
            num_threads,
            num_cores,
            num_cores,
        )


class _RecordingRegistry:
    """A wrapper of a registry for one package: it also records the names that the package registers, by kind."""

    def __init__(self, registry: Any, registered: dict[str, list[str]], kind: str) -> None:
        self._registry = registry
        self._registered = registered
        self._kind = kind

    def register(self, *args: Any, **options: Any) -> None:
        """Call the registry's own `register`."""
        self._registry.register(*args, **options)
        names = options.get("names") or [args[0] if args else next(iter(options.values()))]
        self._registered.setdefault(self._kind, []).extend(_name_of(name) for name in names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)


_REPLACEABLE_KINDS = ("architectures", "input_processors", "gguf_families", "answer_formats")
"""Kinds of names for which a third-party package takes precedence over a first-party one."""


class _FamilyRegistryOfThirdParty(_RecordingRegistry):
    """A registry of model families for a third-party package, which may replace names of first-party packages.

    Otherwise each family that a first-party package adds would break the third-party package that already has it.
    """

    def __init__(self, registry: Any, record: PluginRecord, kind: str) -> None:
        super().__init__(registry, record.registered, kind)
        self._record = record

    def register(self, *args: Any, **options: Any) -> None:
        """Register a name; one of a first-party package is replaced, and the plugin's record says so."""
        name = args[0] if args else options.get("name")
        owner = self._registry.provider(name)
        if owner in FIRST_PARTY and options.get("replaces") is None:
            options["replaces"] = owner
            sentence = (
                f"{name} ({self._kind.replace('_', ' ')}) is this package's instead of {owner}'s; to use that one, set "
                "AETHERMIND_PLUGINS to the other plugins"
            )
            if sentence not in self._record.replaced:
                self._record.replaced.append(sentence)
        super().register(*args, **options)


class _DeviceRegistryOfThirdParty(_RecordingRegistry):
    """The device registry for a third-party package, whose devices are probed and opened in a child process first."""

    def __init__(self, registry: Any, record: PluginRecord) -> None:
        super().__init__(registry, record.registered, "devices")
        self._record = record

    def register(self, name: str, *, probe: Callable[[], Probe], open: Callable[[], Backend], **rest: Any) -> None:
        """Register the device with sandboxed versions of its functions."""
        device = IsolatedDevice(self._record, name, probe, open)
        sandboxed = {"cached_probe": device.cached_probe, "examine": device.examine}
        super().register(name, probe=device.probe, open=device.open, **sandboxed, **rest)


class _KernelRegistryOfPlugin(_RecordingRegistry):
    """The kernel registry for one package, which records the version of the plugin API that the package is made for."""

    def __init__(self, registry: Any, record: PluginRecord) -> None:
        super().__init__(registry, record.registered, "kernels")
        self._api_version = int(record.api_version)

    def register(self, *args: Any, **options: Any) -> None:
        """Add the kernels of the package, with that version."""
        super().register(*args, **{**options, "api_version": self._api_version})


def _name_of(thing: Any) -> str:
    return thing if isinstance(thing, str) else str(thing.name)
