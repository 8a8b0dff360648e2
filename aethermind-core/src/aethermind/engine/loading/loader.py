"""Compilation of a model, and of the model that drafts for it: from files to plans on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from aethermind.dispatch import Fallback
from aethermind.engine.config import EngineConfig, EngineOptions
from aethermind.engine.loading.adapters import Adapters
from aethermind.engine.loading.compiled_model import CompiledModel, compile_for
from aethermind.engine.loading.kv_plan import fitting_num_blocks, for_whole_texts, plan_kv, warn_of_short_context
from aethermind.engine.loading.memory_estimate import MemoryPlanner, memory_limit
from aethermind.engine.loading.model_graph import StepGraphs, check_context_shift, max_symbols
from aethermind.engine.loading.model_weights import is_base_model, remapped_checkpoint, stored_formats
from aethermind.engine.loading.tensor_parallel import TensorParallel, num_threads_of
from aethermind.engine.loading.weight_formats import WeightFormats, formats_on_device
from aethermind.errors import ConfigError, InvalidArgumentError
from aethermind.graph.builder import stored_name
from aethermind.graph.tensor_parallel import Share, with_collectives
from aethermind.hal.dtype import DType
from aethermind.log import get_logger
from aethermind.model.architecture import AdaptsWeights, Architecture, CausalLM, TextEncoder
from aethermind.model.config import DecoderConfig
from aethermind.model.known_fields import check_fields
from aethermind.model.mtp import MTP_PROJECTION, SHARED_WITH_MTP, MTPModule
from aethermind.runtime import OpenDevice, Runtime

if TYPE_CHECKING:
    from aethermind.graph.builder import GraphBuilder
    from aethermind.graph.ir import Graph
    from aethermind.model.source import ModelSource
    from aethermind.ops.operator import OperatorRegistry

__all__ = ["compile_model", "open_to_explain"]

logger = get_logger(__name__)

_MTP_METHOD = "mtp"
"""The speculative method that drafts with a model's MTP module."""


def compile_model(
    runtime: Runtime,
    model: str | Path,
    config: EngineConfig | None = None,
    *,
    opened: OpenDevice | None = None,
    rank: int = 0,
    is_draft: bool = False,
    **options: Unpack[EngineOptions],
) -> CompiledModel:
    """Read a model's configuration, open the device unless it is `opened`, and compile the plan of the plain step.

    With `tensor_parallel_size` above 1 the plan is that of `rank`. `is_draft` means that the model drafts for another
    one. `options` may be given instead of a configuration.
    """
    config = config or EngineConfig.of(**options)
    # Ranks are processes of their own, which open the files.
    source = runtime.open_source(model, config.tokenizer, may_arrive=config.executor_name == "inline")
    raw = source.config()
    name = runtime.architectures.resolve_name(raw, source.path)
    architecture = runtime.architectures.get(name)
    network = runtime.architectures.create_model(name, raw)
    if rank == 0:
        check_fields(source.path, source.json_files(), architecture)
    decoder = network.config
    if isinstance(network, TextEncoder):
        config = for_whole_texts(config, decoder)
    formats = WeightFormats.of(config, runtime.weight_formats)
    opened, operators, parallel = _open_for_rank(runtime, config, opened, rank)
    if config.prefill_stream:
        _check_has_streams(opened)
    dtype = _choose_dtype(config.dtype, decoder.dtype, opened.backend.capabilities.dtypes, opened.backend.name)
    has_checkpoints = is_draft or config.speculative_method is not None
    kv = plan_kv(config, dtype, network, opened, has_checkpoints=has_checkpoints)
    generation = source.generation()
    eos_token_ids = _eos_token_ids(decoder, generation)
    symbols = max_symbols(config, kv.max_model_len, kv.spec, decoder.vocab_size, len(eos_token_ids))
    if isinstance(network, TextEncoder):
        symbols["R"] = symbols["T"]
    has_mtp = config.speculative_method == _MTP_METHOD
    embedding_dtype, lm_head_dtype = (_dtype_of(name, config, opened, network) for name in _OTHER_DTYPES)
    graphs = StepGraphs(
        network,
        operators,
        kv.spec,
        kv.num_blocks,
        kv.max_model_len,
        dtype,
        has_mtp,
        embedding_dtype,
        lm_head_dtype,
    )
    network, builder, is_headless = _build_graph(architecture, raw, source, config, graphs)
    graph = builder.finish()
    if config.context_shift:
        check_context_shift(graph, kv.spec)
    stored = (
        {} if config.load_format == "dummy" else formats_on_device(stored_formats(source, network), opened.dispatcher)
    )
    adapters = _read_adapters(config, source, name, network, graph, operators, dtype)
    if parallel is not None:
        if adapters is not None:
            adapters = adapters.divided(parallel, adapters.add_to(graph, operators))
        graph = parallel.divide(graph)
        stored = parallel.formats(stored)
    weight_formats = formats.of_parameters(graph, operators, stored)
    row_formats = formats.of_rows(weight_formats, stored)
    # The memory of a draft model, besides that of its blocks, does not depend on their number.
    num_draft_blocks = kv.spec.num_blocks_for(kv.max_model_len) if kv.is_upper_bound else kv.num_blocks
    compiled = CompiledModel(
        source=source,
        architecture=name,
        ignored_names=architecture.ignored_names,
        model=network,
        config=config,
        open_device=opened,
        operators=operators,
        dtype=dtype,
        cache_spec=kv.spec,
        num_kv_blocks=kv.num_blocks,
        num_swap_blocks=kv.num_swap_blocks,
        max_model_len=kv.max_model_len,
        eos_token_ids=eos_token_ids,
        generation=generation,
        step=compile_for(opened, graph, operators, symbols, config.fallback, weight_formats, row_formats),
        computed=builder.constants,
        weight_formats=weight_formats,
        row_formats=row_formats,
        outputs_hidden_states=has_mtp,
        parallel=parallel,
        adapters=adapters,
        is_headless=is_headless,
        embedding_dtype=embedding_dtype,
        lm_head_dtype=lm_head_dtype,
    )
    compiled = replace(compiled, draft=_compile_draft(runtime, compiled, num_draft_blocks))
    is_runnable = opened.backend.capabilities.is_host_accessible or not compiled.step.fallbacks
    if kv.is_upper_bound:
        return _with_num_blocks(runtime, compiled, fitting_num_blocks(compiled)) if is_runnable else compiled
    return _within_memory(runtime, compiled)


def _open_for_rank(
    runtime: Runtime, config: EngineConfig, opened: OpenDevice | None, rank: int
) -> tuple[OpenDevice, OperatorRegistry, TensorParallel | None]:
    """Open the device, unless it is `opened`; with several ranks, add the collectives' operators and kernels."""
    opened = opened or _open_device(runtime, config, rank)
    if config.tensor_parallel_size == 1:
        return opened, runtime.operators, None
    operators = with_collectives(runtime.operators)
    parallel = TensorParallel.of(Share(rank, config.tensor_parallel_size), operators)
    return parallel.with_collective_kernels(opened), operators, parallel


def _build_graph(
    architecture: Architecture, raw: Mapping[str, Any], source: ModelSource, config: EngineConfig, graphs: StepGraphs
) -> tuple[CausalLM | TextEncoder, GraphBuilder, bool]:
    """Write the graph of the plain step; returns the model, the graph's builder, and whether the checkpoint is
    headless.

    A headless checkpoint has no output matrix. The embeddings replace it, and the logits are never read.
    """
    builder = graphs.build()
    if config.load_format == "dummy" or not is_base_model(source, builder.parameter_names):
        return graphs.model, builder, False
    headless = architecture.create({**raw, "tie_word_embeddings": True})
    return headless, replace(graphs, model=headless).build(), True


def _read_adapters(
    config: EngineConfig,
    source: ModelSource,
    name: str,
    network: CausalLM | TextEncoder,
    graph: Graph,
    operators: OperatorRegistry,
    dtype: DType,
) -> Adapters | None:
    """Read the configuration's LoRA adapters for the weights of a graph; None without any.

    ConfigError for a model that takes no adapters.
    """
    if not config.adapters and config.max_loras is None:
        return None
    if isinstance(network, TextEncoder):
        raise ConfigError(f"{name} is an encoder, which takes no adapters. Leave the adapters out.")
    remapped = None
    if config.load_format != "dummy":
        remapped = remapped_checkpoint(source, network, [value.name for value in graph.parameters])
    elif isinstance(network, AdaptsWeights):
        raise ConfigError(
            f"{name} takes no adapters with dummy weights, because adapters have the names of a checkpoint. Leave the "
            "adapters out."
        )
    paths = config.adapters or {}
    if config.max_loras is None:
        return Adapters.read(paths, graph, operators, dtype, remapped)
    if config.executor_name != "inline":
        raise ConfigError(
            "max_loras needs steps in the engine's process. Leave max_loras or the executor's options out."
        )
    slots = {"max_loras": config.max_loras, "max_rank": config.max_lora_rank}
    return Adapters.with_slots(paths, graph, operators, dtype, remapped, **slots)


_MAX_RECOMPILATIONS = 3
_GROWTH_BYTES = 512 << 10
"""Bytes that are left free for what the process grows by while a small model is compiled again."""
_CHECK_BYTES = 64 << 10
"""Bytes that are left free for what it grows by until `check_memory`."""


def _within_memory(runtime: Runtime, compiled: CompiledModel) -> CompiledModel:
    """Lower a default number of KV blocks to what fits into memory.

    If not even one sequence of the requested length fits, the number is not lowered, and `check_memory` refuses the
    model. The process grows while a model is compiled again, so the number may have to be lowered once more.
    """
    spec, config = compiled.cache_spec, compiled.config
    limit = memory_limit(compiled)
    if limit is None or config.num_kv_blocks is not None or not spec.has_attention or compiled.is_encoder:
        return compiled
    min_blocks = spec.num_blocks_for(1 if config.max_model_len is None else compiled.max_model_len)
    for _ in range(_MAX_RECOMPILATIONS):
        planner = MemoryPlanner(compiled)
        if planner.estimate().device_bytes <= limit - _CHECK_BYTES:
            break
        counts = (planner.num_fitting_blocks(limit - free) for free in (_GROWTH_BYTES, 0))
        num_blocks = next((count for count in counts if count >= min_blocks), 0)
        if not 0 < num_blocks < compiled.num_kv_blocks:
            break
        compiled = _with_num_blocks(runtime, compiled, num_blocks)
    return compiled


def _with_num_blocks(runtime: Runtime, compiled: CompiledModel, num_blocks: int) -> CompiledModel:
    """Recompile the model with fewer KV blocks, and with contexts that fit into them."""
    config = compiled.config
    draft = _compile_draft(runtime, compiled, num_blocks)
    if num_blocks == compiled.num_kv_blocks:
        return replace(compiled, draft=draft)
    max_model_len = min(compiled.max_model_len, compiled.cache_spec.num_tokens_in(num_blocks))
    if max_model_len < compiled.max_model_len:
        warn_of_short_context(compiled.open_device, max_model_len, compiled.max_model_len)
    builder = replace(compiled.graphs, num_blocks=num_blocks, max_model_len=max_model_len).build()
    graph = builder.finish()
    if compiled.parallel is not None:
        graph = compiled.parallel.divide(graph)
    num_eos, vocab_size = len(compiled.eos_token_ids), compiled.model.config.vocab_size
    symbols = max_symbols(config, max_model_len, compiled.cache_spec, vocab_size, num_eos)
    return replace(
        compiled,
        num_kv_blocks=num_blocks,
        max_model_len=max_model_len,
        step=compile_for(
            compiled.open_device,
            graph,
            compiled.operators,
            symbols,
            config.fallback,
            compiled.weight_formats,
            compiled.row_formats,
        ),
        computed=builder.constants,
        draft=draft,
    )


def open_to_explain(runtime: Runtime, config: EngineConfig) -> OpenDevice:
    """Open the device of a configuration whose `fallback` is "allow", with a reference kernel for each missing kernel.

    Reference kernels cannot run on a device whose memory the host cannot access. A plan for such a device serves
    inspection only; its `fallbacks` are the operators for which the device needs kernels.
    """
    from aethermind.dispatch.reference import reference_kernels

    opened = _open_device(runtime, config)
    if opened.backend.capabilities.is_host_accessible:
        return opened
    references = reference_kernels(runtime.operators, opened.backend.name)
    return replace(opened, dispatcher=opened.dispatcher.with_fallbacks(references))


def _open_device(runtime: Runtime, config: EngineConfig, rank: int = 0) -> OpenDevice:
    return runtime.open_device(
        config.device,
        fallback=Fallback(config.fallback),
        num_threads=num_threads_of(config.num_threads, config.tensor_parallel_size),
        is_deterministic=config.deterministic,
        numa=config.numa,
        rank=rank,
        num_ranks=config.tensor_parallel_size,
    )


def _compile_draft(runtime: Runtime, compiled: CompiledModel, num_blocks: int) -> CompiledModel | None:
    """Compile the model that drafts for another: its MTP module or the draft model; None without either."""
    config = compiled.config
    if config.speculative_method == _MTP_METHOD:
        is_first_rank = compiled.parallel is None or compiled.parallel.share.rank == 0
        return _compile_mtp(runtime, compiled, num_blocks) if is_first_rank else None
    if config.draft_model is None:
        return None
    draft_config = replace(config.of_draft(num_blocks), max_model_len=None)
    return compile_model(runtime, config.draft_model, draft_config, opened=compiled.open_device, is_draft=True)


def _check_has_streams(opened: OpenDevice) -> None:
    if opened.backend.capabilities.is_host_accessible:
        raise InvalidArgumentError(
            f"prefill_stream needs a device that runs two streams at once, and {opened.device} computes on the host's "
            "cores, all of which one stream uses. Leave it out.",
            param="prefill_stream",
        )


def _choose_dtype(text: str, of_checkpoint: DType, supported: tuple[DType, ...], device: str) -> DType:
    if text == "auto":
        return of_checkpoint if of_checkpoint in supported else DType.FLOAT32
    dtype = DType.parse(text)
    if dtype not in supported:
        known = ", ".join(map(str, supported))
        raise InvalidArgumentError(
            f"Device {device} does not compute {dtype}. It computes {known}; pass one of them as dtype."
        )
    return dtype


_OTHER_DTYPES = ("embedding_dtype", "lm_head_dtype")


def _dtype_of(option: str, config: EngineConfig, opened: OpenDevice, network: CausalLM | TextEncoder) -> DType | None:
    """The dtype of embeddings or of the output projection; None for the model's.

    InvalidArgumentError for one that the device does not compute, and for an encoder.
    """
    text: str | None = getattr(config, option)
    if text is None:
        return None
    if isinstance(network, TextEncoder):
        raise InvalidArgumentError(f"An encoder has no {option}. Leave it out.", param=option)
    return _choose_dtype(text, DType.FLOAT32, opened.backend.capabilities.dtypes, opened.backend.name)


def _eos_token_ids(decoder: DecoderConfig, generation: Mapping[str, Any]) -> frozenset[int]:
    """Return the ids that end an output, from both configuration files, without ids that the model cannot produce.

    `CompiledModel.with_end_tokens_of` adds those of the tokenizer.
    """
    value = generation.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in ids):
        raise ConfigError(
            f"eos_token_id in generation_config.json should be a token id or a list of them, got {value!r}."
        )
    for file, file_ids in (("config.json", decoder.eos_token_ids), ("generation_config.json", ids)):
        for token_id in file_ids:
            if not 0 <= token_id < decoder.vocab_size:
                logger.warning("eos_token_id in %s is %s, which no token has: no answer ends with it.", file, token_id)
    return frozenset(token_id for token_id in (*decoder.eos_token_ids, *ids) if 0 <= token_id < decoder.vocab_size)


def _compile_mtp(runtime: Runtime, compiled: CompiledModel, num_blocks: int) -> CompiledModel:
    """Compile the MTP module of a model for its device, with a KV cache of `num_blocks` blocks.

    The module uses the model's constants of the embeddings and the output matrix, unless these are divided among ranks.
    InvalidArgumentError if
    the model or its checkpoint has no such module.
    """
    module = _find_module(runtime, compiled)
    config = replace(compiled.config.of_draft(num_blocks), max_model_len=compiled.max_model_len, weight_cache=0.0)
    opened, operators, plan = compiled.open_device, compiled.operators, compiled.step.plan
    kv = plan_kv(config, compiled.dtype, module, opened)
    graphs = StepGraphs(
        module,
        operators,
        kv.spec,
        kv.num_blocks,
        kv.max_model_len,
        compiled.dtype,
        outputs_hidden_states=True,
        embedding_dtype=compiled.embedding_dtype,
        lm_head_dtype=compiled.lm_head_dtype,
    )
    builder = graphs.build()
    graph = builder.finish()
    is_dummy = config.load_format == "dummy"
    stored = {} if is_dummy else formats_on_device(stored_formats(compiled.source, module), opened.dispatcher)
    formats = WeightFormats.of(config, runtime.weight_formats)
    weight_formats = formats.of_parameters(graph, operators, stored)
    row_formats = formats.of_rows(weight_formats, stored)
    shared = frozenset[str]()
    if compiled.parallel is None:
        shared = frozenset(value.name for value in graph.parameters if stored_name(value.name) in SHARED_WITH_MTP)
    packed = {
        constant.parameter: constant.pack
        for constant in plan.constants.values()
        if constant.pack is not None and constant.parameter in shared
    }
    symbols = {**plan.symbols, "R": plan.symbols["S"], "B": kv.spec.table_width(kv.max_model_len)}
    step = compile_for(opened, graph, operators, symbols, config.fallback, weight_formats, row_formats, packed=packed)
    return replace(
        compiled,
        ignored_names=("*",),
        model=module,
        config=config,
        cache_spec=kv.spec,
        num_kv_blocks=kv.num_blocks,
        num_swap_blocks=0,
        max_model_len=kv.max_model_len,
        step=step,
        computed=builder.constants,
        weight_formats=weight_formats,
        row_formats=row_formats,
        draft=None,
        outputs_hidden_states=True,
        shared_parameters=shared,
        parallel=None,
        adapters=None,
    )


def _find_module(runtime: Runtime, compiled: CompiledModel) -> MTPModule:
    module = runtime.architectures.create_mtp(compiled.architecture, compiled.source.config())
    if module is None:
        raise _refusal(f"{compiled.architecture} of this config.json has no module for multi-token prediction (MTP)")
    if compiled.config.load_format != "dummy" and MTP_PROJECTION not in module.adapt(compiled.source.weights()).names:
        raise _refusal(f"{compiled.source.path} has no weights of a module for multi-token prediction (MTP)")
    return module


def _refusal(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{reason}. Choose another speculative_method, or take a checkpoint with one.", param="speculative_method"
    )
