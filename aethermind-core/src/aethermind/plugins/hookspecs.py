"""The hooks that a plugin may implement, and their documentation.

A plugin is a module (or object) named by an entry point of the group `aethermind.plugins.v2`. It implements any of the
functions below, marked with `@aethermind.plugins.hookimpl`. Registration is cheap and lazy: a hook registers names with
the import path of each object, and imports nothing heavy. Every `register_*` hook receives a registry and may be called
again, for another runtime or after another plugin failed, so it must keep no state.

    from aethermind.plugins import hookimpl

    @hookimpl
    def register_devices(registry):
        registry.register("mychip", probe=probe, open=open_backend, priority=20, provider="aethermind-mychip")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    import typer

    from aethermind.cache.stores.kv_store import KVStore, StoreAddress
    from aethermind.dispatch.registry import KernelRegistry
    from aethermind.engine.executors.executor import ExecutorFactory
    from aethermind.engine.policies import SchedulingPolicy
    from aethermind.engine.speculative.proposer import ProposerFactory
    from aethermind.hal.registry import DeviceRegistry
    from aethermind.model.gguf_family import GgufFamily
    from aethermind.model.input_processor import InputProcessorFactory
    from aethermind.model.registry import ArchitectureRegistry, ModelRegistry
    from aethermind.ops.operator import OperatorRegistry
    from aethermind.ops.weight_format import WeightFormatRegistry
    from aethermind.plugins.registry import Registry
    from aethermind.sampling.logits_constraints import LogitsProcessorFactory
    from aethermind.text.answer_format import AnswerFormat

__all__ = [
    "API_VERSION",
    "DEPRECATED_HOOKS",
    "ENTRY_POINT_GROUP",
    "ENTRY_POINT_PREFIX",
    "HookSpecs",
    "OLDEST_API_VERSION",
    "hookimpl",
    "hookspec",
]

API_VERSION = 2
OLDEST_API_VERSION = 1
ENTRY_POINT_PREFIX = "aethermind.plugins.v"
ENTRY_POINT_GROUP = f"{ENTRY_POINT_PREFIX}{API_VERSION}"

DEPRECATED_HOOKS: Mapping[str, tuple[str, str]] = {}
"""Maps a deprecated hook to what to implement instead and the version that removes the hook."""

hookspec = pluggy.HookspecMarker("aethermind")
hookimpl = pluggy.HookimplMarker("aethermind")


class HookSpecs:
    """The hooks of plugin API versions 1 and 2, which have the same ones."""

    @hookspec
    def register_devices(self, registry: DeviceRegistry) -> None:
        """Claim device names: `registry.register(name, probe=, open=, provider=, priority=)`."""

    @hookspec
    def register_operators(self, registry: OperatorRegistry) -> None:
        """Register operators: `registry.register(operator, provider=)`."""

    @hookspec
    def register_kernels(self, registry: KernelRegistry) -> None:
        """Offer kernels for a device type: `registry.register(device_type, load, provider=)`.

        `load()` returns a list of `dispatch.Kernel`; it is called when a device of that type is first opened.
        """

    @hookspec
    def register_weight_formats(self, registry: WeightFormatRegistry) -> None:
        """Offer weight formats: `registry.register(parse, names=, provider=)`.

        `parse(name)` returns an `ops.weight_format.WeightFormat` or None; error messages list `names`. A kernel
        lists the formats that it supports in its `weight_formats`.
        """

    @hookspec
    def register_architectures(self, registry: ArchitectureRegistry) -> None:
        """Claim names of `architectures` in config.json: `registry.register(name, "module:OBJECT", provider=)`."""

    @hookspec
    def register_input_processors(self, registry: Registry[InputProcessorFactory]) -> None:
        """Accept images or audio in an architecture's prompts: `registry.register(name, "module:OBJECT", provider=)`.

        `name` is the name of the architecture, OBJECT is an `InputProcessorFactory` (see `model.input_processor`).
        """

    @hookspec
    def register_gguf_families(self, registry: Registry[GgufFamily]) -> None:
        """Claim values of `general.architecture` in GGUF files: `registry.register(name, "module:OBJECT", provider=)`.

        The object is a `model.gguf_family.GgufFamily`.
        """

    @hookspec
    def register_models(self, registry: ModelRegistry) -> None:
        """Offer a model that a package contains: `registry.register(name, locate, provider=)`.

        `locate()` returns its directory.
        """

    @hookspec
    def register_logits_processors(self, registry: Registry[LogitsProcessorFactory]) -> None:
        """Claim names for `SamplingParams.logits_processors`: `registry.register(name, "module:FACTORY", provider=)`.

        `FACTORY(params, tokenizer)` makes the processor of one request: a function
        `processor(prompt_token_ids, output_token_ids, logits)` that changes a row of logits, float32 [V], in place,
        before all other sampling. It runs on the host, so steps that use it wait for a copy of the logits.
        """

    @hookspec
    def register_answer_formats(self, registry: Registry[AnswerFormat]) -> None:
        """Describe how an architecture marks reasoning and tool calls: `registry.register(name, "module:OBJECT",
        provider=)`. OBJECT is a `text.answer_format.AnswerFormat`.
        """

    @hookspec
    def register_policies(self, registry: Registry[Callable[[], SchedulingPolicy]]) -> None:
        """Offer a scheduling policy: `registry.register(name, "module:OBJECT", provider=)`.

        `OBJECT()` returns an `engine.policies.SchedulingPolicy`; `--scheduling-policy` chooses it by its name. Its
        parameters may follow the name, `NAME:PARAMETER=VALUE`, in the types of their annotations.
        """

    @hookspec
    def register_kv_stores(self, registry: Registry[Callable[[StoreAddress], KVStore]]) -> None:
        """Offer a KV store, in which engines share KV blocks: `registry.register(name, "module:OPEN", provider=)`.

        `OPEN(address)` takes a `cache.stores.StoreAddress` and returns a `cache.stores.KVStore`; `--kv-store` chooses
        it by an address that begins with its name: `NAME`, `NAME:LOCATION?OPTION=VALUE`.
        """

    @hookspec
    def register_proposers(self, registry: Registry[ProposerFactory]) -> None:
        """Offer a proposer for speculative decoding: `registry.register(name, "module:FACTORY", provider=)`.

        `FACTORY(compiled)` returns an `engine.speculative.Proposer`; `--speculative-method` chooses it by its name.
        The model verifies every draft, so a bad proposer costs time but does not change answers.
        """

    @hookspec
    def register_executors(self, registry: Registry[ExecutorFactory]) -> None:
        """Offer an executor, which runs a model's steps: `registry.register(name, "module:FACTORY", provider=)`.

        `FACTORY(compiled)` returns an `engine.executors.Executor`; `--executor` chooses it by its name.
        """

    @hookspec
    def register_commands(self, app: typer.Typer) -> None:
        """Add commands to the `aethermind` command line."""

    @hookspec
    def doctor_checks(self) -> list[tuple[str, Callable[[], str]]]:
        """Further checks for `aethermind doctor`: (title, function returning one line)."""
        return []
