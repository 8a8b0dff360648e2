"""The composition root: every registry filled from the core and the installed plugins, then frozen."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.dispatch import Dispatcher, Fallback, Kernel, KernelRegistry
from aethermind.dispatch.useless_kernels import useless_kernels
from aethermind.graph.tensor_parallel.operators import with_collectives
from aethermind.hal.backend import Backend
from aethermind.hal.device import DeviceId
from aethermind.hal.registry import DeviceRegistry, Selection
from aethermind.log import get_logger
from aethermind.model.registry import (
    ArchitectureRegistry,
    GgufFamilyRegistry,
    InputProcessorRegistry,
    ModelRegistry,
)
from aethermind.model.source import ModelSource, RetokenizedSource, open_source
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.weight_format import FORMAT_NAMES, WeightFormatRegistry, parse_format
from aethermind.plugins.discovery import PluginRecord, call_each
from aethermind.plugins.trial import load_installed
from aethermind.runtime.executor_registry import ExecutorRegistry
from aethermind.runtime.kv_store_registry import KVStoreRegistry
from aethermind.runtime.policy_registry import PolicyRegistry
from aethermind.runtime.proposer_registry import ProposerRegistry
from aethermind.runtime.registration import DeviceRegistration, Registration
from aethermind.sampling.logits_constraints import LogitsProcessorRegistry
from aethermind.text.answer_formats import AnswerFormatRegistry

if TYPE_CHECKING:
    import pluggy

__all__ = ["OpenDevice", "Runtime"]

_POLICIES = {
    "fcfs": "FirstComeFirstServed",
    "priority": "PriorityWithAging",
    "shortest": "ShortestFirst",
    "deadline": "EarliestDeadline",
    "fair": "FairShare",
}
_KV_STORES = {
    "host": "host_store:open_host_store",
    "disk": "disk_store:open_disk_store",
    "redis": "redis_store:open_redis_store",
    "rediss": "redis_store:open_redis_store",
}
_PROPOSERS = {"prompt_lookup": "prompt_lookup:PromptLookup", "draft": "draft:DraftModel"}
_EXECUTORS = {"inline": "executor:InlineExecutor", "multiproc": "multiproc:MultiprocExecutor"}


logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A device in use: its backend, the dispatcher over its kernels, why it was chosen, and its worker threads."""

    backend: Backend
    device: DeviceId
    dispatcher: Dispatcher
    selection: Selection
    num_threads: int


@dataclass(repr=False)
class Runtime:
    """What is installed; `boot` makes it. Two runtimes can live in one process: nothing here is global.

    `plugins` are the records of everything that was found, failures included; `built_in` names what the core
    registered itself, by kind, as the records do.
    """

    plugins: list[PluginRecord]
    manager: pluggy.PluginManager
    devices: DeviceRegistry = field(default_factory=DeviceRegistry)
    kernels: KernelRegistry = field(default_factory=KernelRegistry)
    weight_formats: WeightFormatRegistry = field(default_factory=WeightFormatRegistry)
    architectures: ArchitectureRegistry = field(default_factory=ArchitectureRegistry)
    input_processors: InputProcessorRegistry = field(default_factory=InputProcessorRegistry)
    gguf_families: GgufFamilyRegistry = field(default_factory=GgufFamilyRegistry)
    models: ModelRegistry = field(default_factory=ModelRegistry)
    logits_processors: LogitsProcessorRegistry = field(default_factory=LogitsProcessorRegistry)
    answer_formats: AnswerFormatRegistry = field(default_factory=AnswerFormatRegistry)
    policies: PolicyRegistry = field(default_factory=PolicyRegistry)
    kv_stores: KVStoreRegistry = field(default_factory=KVStoreRegistry)
    proposers: ProposerRegistry = field(default_factory=ProposerRegistry)
    executors: ExecutorRegistry = field(default_factory=ExecutorRegistry)
    built_in: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def boot(cls) -> Runtime:
        """Fill all registries. A plugin that fails is recorded and left out entirely; nothing raises because of it."""
        return cls.of(*load_installed())

    @classmethod
    def of(cls, records: list[PluginRecord], manager: pluggy.PluginManager) -> Runtime:
        """Fill all registries with what the core has and what these plugins register."""
        runtime = cls(records, manager)
        while not runtime._register():  # one more plugin failed: begin again without what it registered before
            runtime = cls(records, manager)
        for record in records:
            if record.error:
                runtime.devices.record_failure(record.name, f"its plugin {record.title} failed: {record.error}")
        for _, registry in runtime._registries():
            registry.freeze()
        return runtime

    def __post_init__(self) -> None:
        self._operators = _Operators(self.plugins, self.manager, self.built_in)

    def __repr__(self) -> str:
        devices = ", ".join(entry.name for entry in self.devices)
        return f"<Runtime with devices {devices}; architectures {', '.join(self.architectures.names()) or 'none'}>"

    @property
    def operators(self) -> OperatorRegistry:
        """The catalog and the plugins' operators; made when first asked for, because pages import NumPy.

        A plugin that fails here is recorded, and none of its operators are there.
        """
        return self._operators.registry

    def providers(self, kind: str, name: str) -> list[str]:
        """The packages, with version, that registered `name` among the `kind` (`devices`, `kernels`, …)."""
        of_plugins = [
            f"{record.distribution} {record.version}"
            for record in self.plugins
            if name in record.registered.get(kind, ())
        ]
        return ["aethermind-core"] * (name in self.built_in.get(kind, ())) + of_plugins

    def open_source(self, model: str | Path, tokenizer: str | Path | None = None) -> ModelSource:
        """The files of an installed model, or of the one at a path; ConfigError when it is neither.

        `tokenizer` is where its tokenizer is instead: a directory, its tokenizer.json, a .gguf file, or a model's name.
        """
        source = open_source(self.models.locate(str(model)), self.gguf_families)
        return source if tokenizer is None else RetokenizedSource(source, self.open_tokenizer_source(tokenizer))

    def open_tokenizer_source(self, tokenizer: str | Path) -> ModelSource:
        """What has a tokenizer: a directory, its tokenizer.json, a .gguf file, or an installed model."""
        path = self.models.locate(str(tokenizer))
        is_vocabulary = path.name == "tokenizer.json" and path.is_file()
        return open_source(path.parent if is_vocabulary else path, self.gguf_families)

    def open_device(
        self,
        text: str = "auto",
        *,
        fallback: Fallback = Fallback.WARN,
        num_threads: int | None = None,
        is_deterministic: bool = False,
    ) -> OpenDevice:
        """Select and open a device; DeviceError says what is wrong with the name or the hardware.

        With `is_deterministic` its dispatcher refuses kernels whose results depend on what else is in a batch.
        """
        selection, backend = self.devices.open(text)
        threads = backend.set_num_threads(num_threads)
        if num_threads is not None and backend.capabilities.is_host_accessible:
            _warn_of_more_threads_than_cpus(threads)
        may_fall_back = backend.capabilities.is_host_accessible and fallback is not Fallback.ERROR
        fallbacks = self._reference_kernels(backend.name)() if may_fall_back else []
        kernels = self.kernels.kernels(backend.name)
        for kernel, problem, is_mistake in useless_kernels(kernels, with_collectives(self.operators)):
            level = logging.WARNING if is_mistake else logging.INFO
            logger.log(level, "Kernel %s, for %s, is never used: %s", kernel.title, backend.name, problem)
        dispatcher = Dispatcher(kernels, fallbacks, is_deterministic=is_deterministic)
        return OpenDevice(backend, selection.device, dispatcher, selection, threads)

    def _register(self) -> bool:
        """Fill the registries; False when a plugin failed, which may have registered some of its things."""
        self._register_core()
        return all(_call(self.plugins, self.manager, hook, registry) for hook, registry in self._registries())

    def _register_core(self) -> None:
        from aethermind.hal import null_backend, numpy_backend

        provider = "aethermind-core"
        built_in = {
            kind: Registration(registry, self.built_in, kind)
            for kind, registry in ((hook.removeprefix("register_"), registry) for hook, registry in self._registries())
        }
        built_in["devices"].register(
            "numpy", probe=numpy_backend.probe, open=numpy_backend.NumpyBackend, priority=0, provider=provider
        )
        built_in["devices"].register(
            "null", probe=null_backend.probe, open=null_backend.NullBackend, priority=-1, provider=provider
        )
        for name in ("numpy", "null"):
            built_in["kernels"].register(name, self._reference_kernels(name), provider=provider)
        built_in["weight_formats"].register(parse_format, names=FORMAT_NAMES, provider=provider)
        for name, target in _POLICIES.items():
            built_in["policies"].register(name, f"aethermind.engine.policies:{target}", provider=provider)
        for name, target in _KV_STORES.items():
            built_in["kv_stores"].register(name, f"aethermind.cache.stores.{target}", provider=provider)
        for name, target in _PROPOSERS.items():
            built_in["proposers"].register(name, f"aethermind.engine.speculative.{target}", provider=provider)
        for name, target in _EXECUTORS.items():
            built_in["executors"].register(name, f"aethermind.engine.executors.{target}", provider=provider)

    def _reference_kernels(self, device_type: str) -> Callable[[], list[Kernel]]:
        operators = self._operators  # and no runtime: what registers this would be a cycle

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


class _Operators:
    """The operators of a runtime, apart from it: its kernels refer to them."""

    def __init__(self, plugins: list[PluginRecord], manager: pluggy.PluginManager, built_in: dict[str, list[str]]):
        self._plugins = plugins
        self._manager = manager
        self._built_in = built_in

    @cached_property
    def registry(self) -> OperatorRegistry:
        from aethermind.ops.catalog import load as load_catalog

        registry = OperatorRegistry(load_catalog())
        while not _call(self._plugins, self._manager, "register_operators", registry):
            registry = OperatorRegistry(load_catalog())
        registry.freeze()
        self._built_in["operators"] = [operator.name for operator in load_catalog()]
        return registry


def _call(plugins: list[PluginRecord], manager: pluggy.PluginManager, hook: str, registry: Any) -> bool:
    """Call one hook of every plugin that has not failed; False when one of them failed now."""
    kind = hook.removeprefix("register_")
    for record in plugins:
        record.registered.pop(kind, None)
    working = [record for record in plugins if record.error is None]
    for record in working:
        view = Registration(registry, record.registered, kind)
        if isinstance(registry, DeviceRegistry) and not record.is_ours:
            view = DeviceRegistration(registry, record)
        list(call_each(manager, [record], hook, registry=view))
    return all(record.error is None for record in working)


def _warn_of_more_threads_than_cpus(num_threads: int) -> None:
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or num_threads
    if num_threads > num_cpus:
        logger.warning(
            "%d threads on %d CPUs wait for each other, which is many times slower. Ask for at most %d.",
            num_threads,
            num_cpus,
            num_cpus,
        )
