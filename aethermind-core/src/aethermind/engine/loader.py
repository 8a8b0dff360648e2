"""From a model's files to a plan on a device, and to its weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aethermind.cache.spec import KVCacheSpec
from aethermind.dispatch import Fallback
from aethermind.engine.config import EngineConfig
from aethermind.engine.kv_plan import for_whole_texts, plan_kv
from aethermind.engine.model_graph import GraphKey, Part, StepGraphs
from aethermind.engine.tensor_parallel import PartialTensors, TensorParallel, num_threads_of
from aethermind.engine.weight_cache import WeightCache
from aethermind.engine.weight_formats import WeightFormats
from aethermind.errors import InvalidArgumentError
from aethermind.graph.compile import Compiled, compile_graph
from aethermind.graph.constants import ConstantStore
from aethermind.graph.ir import Graph, without_unused_nodes
from aethermind.graph.tensor_parallel import Share, with_collectives
from aethermind.hal.dtype import DType
from aethermind.log import get_logger
from aethermind.model.architecture import AdaptsWeights, CausalLM, TextEncoder
from aethermind.model.config import DecoderConfig
from aethermind.model.hf_config import architecture_name
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType
from aethermind.ops.weight_format import WeightFormat
from aethermind.runtime import OpenDevice, Runtime
from aethermind.sampling.params import MAX_BAD_WORDS, MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS
from aethermind.text.answer_parser import AnswerFormat

if TYPE_CHECKING:
    from aethermind.cache.stores.kv_store import KVStore
    from aethermind.checkpoint.source import TensorSource
    from aethermind.engine.executors.executor import ExecutorFactory
    from aethermind.engine.policies import SchedulingPolicy
    from aethermind.engine.speculative.proposer import ProposerFactory
    from aethermind.model.input_processor import InputProcessor
    from aethermind.model.source import ModelSource
    from aethermind.sampling.registry import LogitsProcessorRegistry

__all__ = ["PlannedModel", "open_constants", "open_input_processor", "open_weights", "plan_model"]

logger = get_logger(__name__)

_ROWS_OF_TEXT = {Part.SCORES: 64, Part.HIDDEN_STATES: 1 << 30}
"""Rows at a time where all of a text count: few where each takes a row of logits, else as many as tokens."""

_MOST_DRAFTS = 128
"""The most drafts that a step checks: each takes a row of logits, for which memory is set aside."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model compiled for a device, its weights not read yet.

    `computed` holds parameters that come from the configuration, `generation` what generation_config.json holds,
    `weight_formats` by parameter what is not to be stored dense, `row_formats` those in which rows are looked up, too.
    `create_input_processor` makes the model's input processor from the checkpoint's tensors, if a package has one;
    `open_kv_store` opens the store that the engine is to share blocks with, if one was named; `create_executor` opens
    the place where its steps run.
    """

    source: ModelSource
    architecture: str
    ignored_names: tuple[str, ...]
    model: CausalLM | TextEncoder
    config: EngineConfig
    open_device: OpenDevice
    operators: OperatorRegistry
    dtype: DType
    cache_spec: KVCacheSpec
    num_kv_blocks: int
    num_swap_blocks: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    generation: Mapping[str, Any]
    compiled: Compiled
    computed: Mapping[str, Any]
    weight_formats: Mapping[str, WeightFormat]
    row_formats: Mapping[str, WeightFormat]
    logits_processors: LogitsProcessorRegistry
    create_input_processor: Callable[[TensorSource], InputProcessor] | None
    policy: SchedulingPolicy
    answer_format: AnswerFormat
    open_kv_store: Callable[[], KVStore] | None
    create_executor: ExecutorFactory
    create_proposer: ProposerFactory | None = None
    draft: PlannedModel | None = None
    """The draft model of speculative decoding, where one was named; on the same open device."""
    parallel: TensorParallel | None = None
    """The rank of several that this is: its graphs are divided, and `parameter_types` those of its parts."""

    @property
    def max_draft_tokens(self) -> int:
        """How many drafts a step can check: for so many rows beyond one for each sequence there is memory."""
        return self.compiled.plan.symbols["R"] - self.compiled.plan.symbols["S"]

    @property
    def key(self) -> GraphKey:
        """The graph that `compiled` is."""
        return GraphKey(part=Part.HIDDEN_STATES) if self.is_encoder else GraphKey()

    @property
    def is_encoder(self) -> bool:
        """Whether the model computes vectors of texts and generates nothing."""
        return isinstance(self.model, TextEncoder)

    @property
    def pooling(self) -> str:
        """How vectors of texts are pooled unless somebody asks for something else."""
        return self.source.pooling() or (self.model.pooling if isinstance(self.model, TextEncoder) else "last")

    @property
    def parameter_types(self) -> dict[str, TensorType]:
        """The dtype and shape of every parameter, computed ones included."""
        return {value.name: value.type for value in self.compiled.graph.parameters}

    def compile(
        self,
        key: GraphKey = GraphKey(),  # noqa: B008 - a constant
        *,
        fuse: bool = True,
        rewrite: Callable[[Graph], Graph] | None = None,
    ) -> Compiled:
        """Compile a variant of the step's graph (see `model_graph`), which `rewrite` may change first."""
        graphs = StepGraphs(
            self.model, self.operators, self.cache_spec, self.num_kv_blocks, self.max_model_len, self.dtype
        )
        graph = graphs.build(key).finish()
        graph = without_unused_nodes(graph if rewrite is None else rewrite(graph))
        if self.parallel is not None:
            graph = self.parallel.divide(graph)
        symbols = dict(self.compiled.plan.symbols)
        if key.part in _ROWS_OF_TEXT:
            symbols["R"] = max(symbols["R"], min(symbols["T"], _ROWS_OF_TEXT[key.part]))
        return _compile(
            graph,
            self.operators,
            self.open_device,
            symbols,
            self.config,
            self.weight_formats,
            self.row_formats,
            fuse=fuse,
            packed={one.parameter: one.pack for one in self.compiled.plan.constants.values() if one.pack is not None},
        )


def plan_model(
    runtime: Runtime,
    model: str | Path,
    config: EngineConfig | None = None,
    *,
    opened: OpenDevice | None = None,
    rank: int = 0,
    **options: Any,
) -> PlannedModel:
    """Read a model's configuration, open the device unless it is `opened`, and compile the step's plan: that of `rank`,
    where the configuration has several.

    `options` are fields of EngineConfig.
    """
    config = config or EngineConfig(**options)
    policy = runtime.policies.make(config.scheduling_policy)
    method = config.speculative_method
    create_proposer = None if method is None else runtime.proposers.get(method)
    create_executor = runtime.executors.get(config.executor_name)
    source = runtime.open_source(model, config.tokenizer)
    raw = source.config()
    name = architecture_name(raw, source.path)
    architecture = runtime.architectures.get(name)
    network = architecture.create(raw)
    decoder = network.config
    is_encoder = isinstance(network, TextEncoder)
    if is_encoder:
        config = for_whole_texts(config, decoder)
    formats = WeightFormats.choose(runtime.weight_formats, config.quantization, config.lm_head)
    opened = opened or runtime.open_device(
        config.device,
        fallback=Fallback(config.fallback),
        num_threads=num_threads_of(config.num_threads, config.tensor_parallel_size),
        is_deterministic=config.deterministic,
    )
    operators, parallel = runtime.operators, None
    if config.tensor_parallel_size > 1:
        operators = with_collectives(operators)
        parallel = TensorParallel.of(Share(rank, config.tensor_parallel_size), operators)
        opened = parallel.equip(opened)
    dtype = _choose_dtype(config.dtype, decoder.dtype, opened.backend.capabilities.dtypes, opened.backend.name)
    kv = plan_kv(config, dtype, decoder, opened, is_encoder=is_encoder)
    generation = source.generation()
    eos_token_ids = _eos_token_ids(decoder, generation)
    builder = StepGraphs(network, operators, kv.spec, kv.num_blocks, kv.max_model_len, dtype).build()
    symbols = _greatest_symbols(config, kv.max_model_len, kv.spec, decoder.vocab_size, len(eos_token_ids))
    if is_encoder:
        symbols["R"] = symbols["T"]
    factory = runtime.input_processors.find(name)
    graph = builder.finish()
    stored = {} if config.load_format == "dummy" else source.weight_formats()
    if parallel is not None:
        graph = parallel.divide(graph)
        stored = parallel.formats(stored)
    weight_formats = formats.of_parameters(graph, operators, stored)
    row_formats = formats.of_rows(weight_formats, stored)
    compiled = _compile(graph, operators, opened, symbols, config, weight_formats, row_formats, fuse=True)
    return PlannedModel(
        source,
        name,
        architecture.ignored_names,
        network,
        config,
        opened,
        operators,
        dtype,
        kv.spec,
        kv.num_blocks,
        kv.num_swap_blocks,
        kv.max_model_len,
        eos_token_ids,
        generation,
        compiled,
        builder.constants,
        weight_formats,
        row_formats,
        runtime.logits_processors,
        None if factory is None else partial(factory.create, raw),
        policy,
        runtime.answer_formats.find(name),
        None if config.kv_store is None else partial(runtime.kv_stores.open, config.kv_store),
        create_executor,
        create_proposer,
        _plan_draft(runtime, config, kv.num_blocks, opened),
        parallel,
    )


def _plan_draft(runtime: Runtime, config: EngineConfig, num_blocks: int, opened: OpenDevice) -> PlannedModel | None:
    """The draft model, if there is to be one, with the options and as many blocks as the model it drafts for."""
    if config.draft_model is None:
        return None
    own = replace(
        config,
        max_model_len=None,
        num_kv_blocks=num_blocks,
        swap_space=0.0,
        kv_store=None,
        speculative_method=None,
        draft_model=None,
        executor="auto",
        tensor_parallel_size=1,
    )
    return plan_model(runtime, config.draft_model, own, opened=opened)


def open_weights(planned: PlannedModel) -> TensorSource:
    """The checkpoint's tensors, and a rank's parts of them, checked against the model name by name.

    CheckpointError says what does not fit.
    """
    parts = {} if planned.parallel is None else planned.parallel.parts
    types = {name: type for name, type in planned.parameter_types.items() if name not in parts}
    whole = _open_checkpoint(planned, types | {part.parameter: part.whole for part in parts.values()})
    return PartialTensors(whole, parts) if parts else whole


def open_constants(planned: PlannedModel, changed: Mapping[str, Any] | None = None) -> ConstantStore:
    """Where the plans of a model get their weights from; `changed` are parameters that differ from the checkpoint's."""
    kept = None if changed else WeightCache.of(planned)
    source, computed = open_weights(planned), {**planned.computed, **(changed or {})}
    opened = planned.open_device
    return ConstantStore(
        opened.backend,
        opened.device,
        lambda name: computed[name] if name in computed else source.array(name),
        planned.parameter_types,
        kept,
    )


def _open_checkpoint(planned: PlannedModel, types: Mapping[str, TensorType]) -> TensorSource:
    from aethermind.checkpoint.dummy import DummyCheckpoint
    from aethermind.checkpoint.name_map import match_names

    shapes = {
        name: tuple(dim for dim in type.shape if isinstance(dim, int))
        for name, type in types.items()
        if name not in planned.computed
    }
    if planned.config.load_format == "dummy":
        return DummyCheckpoint(shapes, planned.dtype.numpy, planned.config.seed)
    checkpoint = planned.source.weights()
    if isinstance(planned.model, AdaptsWeights):
        checkpoint = planned.model.adapt(checkpoint)
    match_names(shapes, checkpoint, ignore=(*planned.ignored_names, *checkpoint.neutral_names))
    return checkpoint


def open_input_processor(planned: PlannedModel) -> InputProcessor | None:
    """The model's input processor over its checkpoint, or None if no package has one."""
    create = planned.create_input_processor
    return None if create is None else create(planned.source.weights())


def _compile(
    graph: Any,
    operators: OperatorRegistry,
    opened: OpenDevice,
    symbols: Mapping[str, int],
    config: EngineConfig,
    weight_formats: Mapping[str, WeightFormat],
    row_formats: Mapping[str, WeightFormat],
    *,
    fuse: bool,
    packed: Mapping[str, str] | None = None,
) -> Compiled:
    compiled = compile_graph(
        graph,
        operators,
        opened.dispatcher,
        opened.backend.name,
        symbols,
        fallback=Fallback(config.fallback),
        fuse=fuse,
        weight_formats=weight_formats,
        row_formats=row_formats,
        packed=packed,
    )
    if compiled.fallbacks and config.fallback == "warn":
        logger.warning(
            "%s has no kernel for %s; the NumPy reference computes them, slowly. Run `aethermind explain`.",
            opened.device,
            ", ".join(compiled.fallbacks),
        )
    return compiled


def _greatest_symbols(
    config: EngineConfig, max_model_len: int, cache: KVCacheSpec, vocab_size: int, num_eos: int
) -> dict[str, int]:
    """Of the largest step: tokens, sequences, rows, table width, the adjusted sampler's token lists, embeddings."""
    sequences = rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    if config.speculative_method is not None:
        rows += min(sequences * config.num_speculative_tokens, _MOST_DRAFTS)
    return {
        "T": config.max_num_batched_tokens,
        "S": sequences,
        "R": rows,
        "B": cache.num_blocks_for(max_model_len),
        "X": rows * min(max_model_len, vocab_size),
        "Y": rows * min(MAX_STOP_TOKEN_IDS + num_eos + 2 * MAX_BAD_WORDS, vocab_size),
        "Z": rows * min(MAX_LOGIT_BIAS + max_model_len, vocab_size),
        "E": config.max_num_batched_tokens,
    }


def _choose_dtype(text: str, of_checkpoint: DType, supported: tuple[DType, ...], device: str) -> DType:
    if text == "auto":
        return of_checkpoint if of_checkpoint in supported else DType.FLOAT32
    dtype = DType.parse(text)
    if dtype not in supported:
        known = ", ".join(map(str, supported))
        raise InvalidArgumentError(
            f"Device {device} does not compute {dtype}. It computes {known}; pass one of them as --dtype."
        )
    return dtype


def _eos_token_ids(decoder: DecoderConfig, generation: Mapping[str, Any]) -> frozenset[int]:
    """The ids that end an answer, by both configuration files; ids that the model cannot produce are left out."""
    value = generation.get("eos_token_id")
    ids = [*decoder.eos_token_ids, *(value if isinstance(value, list) else [value])]
    return frozenset(i for i in ids if isinstance(i, int) and not isinstance(i, bool) and 0 <= i < decoder.vocab_size)
