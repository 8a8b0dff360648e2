"""The parts that an engine is assembled from: a compiled model, and plugins that its configuration names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from aethermind.cache.stores.kv_store import StoreAddress
from aethermind.engine.config import EngineConfig, EngineOptions
from aethermind.engine.loading.compiled_model import CompiledModel
from aethermind.engine.loading.loader import compile_model
from aethermind.engine.loading.memory_check import check_memory
from aethermind.engine.loading.weight_formats import WeightFormats
from aethermind.engine.policies.parameters import create_policy
from aethermind.hal.dtype import DType
from aethermind.text.answer_format import AnswerFormat

if TYPE_CHECKING:
    from aethermind.cache.stores.kv_store import KVStore
    from aethermind.engine.executors.executor import ExecutorFactory
    from aethermind.engine.loading.memory_estimate import MemoryEstimate
    from aethermind.engine.policies import SchedulingPolicy
    from aethermind.engine.speculative.proposer import ProposerFactory
    from aethermind.model.input_processor import InputProcessor, InputProcessorFactory
    from aethermind.plugins.registry import Registry
    from aethermind.runtime import Runtime
    from aethermind.sampling.logits_constraints import LogitsProcessorFactory

__all__ = ["EngineParts", "check_names"]


def check_names(runtime: Runtime, config: EngineConfig) -> None:
    """Look up the names that a configuration gives, which are wrong for every model if they are unknown.

    Neither a model nor a device is opened. The errors are those of assembling an engine: ConfigError for an unknown
    plugin, InvalidArgumentError for an unknown dtype or format, DeviceError for an unknown or absent device.
    """
    create_policy(runtime.policies, config.scheduling_policy)
    if config.speculative_method is not None:
        runtime.proposers.get(config.speculative_method)
    runtime.executors.get(config.executor_name)
    if config.kv_store is not None:
        runtime.kv_stores.get(StoreAddress.parse(config.kv_store).name)
    if config.dtype != "auto":
        DType.parse(config.dtype)
    WeightFormats.choose(runtime.weight_formats, config.quantization, config.lm_head_quantization)
    if config.device != "auto":
        runtime.devices.select(config.device)


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The compiled model of an engine and the objects from registries that run and serve it.

    Attributes:
        memory: the estimate of the memory that the model takes; it fits into the memory that there is.
        create_executor: opens the executor in which the model's steps run.
        create_proposer: creates the proposer of speculative decoding; None without speculation.
        open_kv_store: opens the store in which the engine shares KV blocks with others; None without one.
        input_processors: creates processors of images and sound in prompts; None if no package has one for the model.
        answer_format: how the model marks reasoning and tool calls in its output.
    """

    compiled: CompiledModel
    memory: MemoryEstimate
    policy: SchedulingPolicy
    create_executor: ExecutorFactory
    create_proposer: ProposerFactory | None
    open_kv_store: Callable[[], KVStore] | None
    input_processors: InputProcessorFactory | None
    logits_processors: Registry[LogitsProcessorFactory]
    answer_format: AnswerFormat

    @classmethod
    def of(
        cls, runtime: Runtime, model: str | Path, config: EngineConfig | None = None, **options: Unpack[EngineOptions]
    ) -> Self:
        """Look up the parts that a configuration, or its `options`, names, and compile the model.

        ConfigError lists what is installed for an unknown name, before the model is opened. A KV store is looked up
        when the engine opens it.
        """
        config = config or EngineConfig.of(**options)
        policy = create_policy(runtime.policies, config.scheduling_policy)
        method = config.speculative_method
        create_proposer = None if method is None else runtime.proposers.get(method)
        create_executor = runtime.executors.get(config.executor_name)
        compiled = compile_model(runtime, model, config)
        return cls(
            compiled=compiled,
            memory=check_memory(runtime, model, compiled, config),
            policy=policy,
            create_executor=create_executor,
            create_proposer=create_proposer,
            open_kv_store=None if config.kv_store is None else partial(runtime.open_kv_store, config.kv_store),
            input_processors=runtime.input_processors.find(compiled.architecture),
            logits_processors=runtime.logits_processors,
            answer_format=runtime.answer_formats.find(compiled.architecture) or AnswerFormat(),
        )

    def open_input_processor(self) -> InputProcessor | None:
        """Create the model's input processor from its checkpoint; None if no package has one."""
        if self.input_processors is None:
            return None
        source = self.compiled.source
        return self.input_processors.create(source.config(), source.weights())
