"""A model compiled for a device: what everything behind the plan asks about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aethermind.cache.spec import KVCacheSpec
from aethermind.dispatch import Fallback
from aethermind.engine.config import EngineConfig
from aethermind.engine.loading.adapter_choice import NO_ADAPTER, AdapterChoice
from aethermind.engine.loading.adapters import Adapters
from aethermind.engine.loading.model_graph import GraphKey, Part, StepGraphs
from aethermind.engine.loading.tensor_parallel import TensorParallel
from aethermind.errors import InvalidArgumentError
from aethermind.graph.compile import Compiled, compile_graph
from aethermind.graph.ir import Graph, without_unused_nodes
from aethermind.hal.dtype import DType
from aethermind.log import get_logger
from aethermind.model.architecture import CausalLM, TextEncoder
from aethermind.ops.operator import OperatorRegistry
from aethermind.ops.schema import TensorType
from aethermind.ops.weight_format import WeightFormat
from aethermind.runtime import OpenDevice
from aethermind.text.answer_parser import AnswerFormat

if TYPE_CHECKING:
    from aethermind.cache.stores.kv_store import KVStore
    from aethermind.checkpoint.source import TensorSource
    from aethermind.engine.executors.executor import ExecutorFactory
    from aethermind.engine.policies import SchedulingPolicy
    from aethermind.engine.speculative.proposer import ProposerFactory
    from aethermind.model.input_processor import InputProcessor
    from aethermind.model.source import ModelSource
    from aethermind.sampling.logits_constraints import LogitsProcessorRegistry
    from aethermind.text.tokenizer import Tokenizer

__all__ = ["PlannedModel", "compile_for"]

logger = get_logger(__name__)

_ROWS_OF_TEXT = {Part.SCORES: 64, Part.HIDDEN_STATES: 1 << 30}
"""Rows at a time where all of a text count: few where each takes a row of logits, else as many as tokens."""


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
    adapters: Adapters | None = None
    """Those that requests can name; what they consist of is not among `parameter_types`."""
    is_headless: bool = False
    """Whether the checkpoint has no output matrix: then the logits that the graphs have mean nothing."""

    is_encoder: bool = field(init=False)
    """Whether the model is made to compute vectors of texts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_encoder", isinstance(self.model, TextEncoder))  # slow, and every request asks

    @property
    def max_draft_tokens(self) -> int:
        """How many drafts a step can check: for so many rows beyond one for each sequence there is memory."""
        return self.compiled.plan.symbols["R"] - self.compiled.plan.symbols["S"]

    @property
    def key(self) -> GraphKey:
        """The graph that `compiled` is."""
        return GraphKey(part=Part.HIDDEN_STATES) if self.is_encoder else GraphKey()

    @property
    def generates(self) -> bool:
        """Whether the model answers; else it computes vectors of texts only."""
        return not (self.is_encoder or self.is_headless)

    @property
    def pooling(self) -> str:
        """How vectors of texts are pooled unless somebody asks for something else."""
        return self.source.pooling() or (self.model.pooling if isinstance(self.model, TextEncoder) else "last")

    @property
    def parameter_types(self) -> dict[str, TensorType]:
        """The dtype and shape of every parameter, computed ones included."""
        return {value.name: value.type for value in self.compiled.graph.parameters}

    def ending_as(self, tokenizer: Tokenizer) -> PlannedModel:
        """The same model whose answers end with the ends of this tokenizer, too.

        Fine-tuning often changes the tokenizer's files alone, so the ends of an answer are those of all files.
        """
        own = (token_id for token_id in tokenizer.end_token_ids if token_id < self.model.config.vocab_size)
        return replace(self, eos_token_ids=self.eos_token_ids.union(own))

    def choose_adapter(self, name: str) -> AdapterChoice:
        """The adapter of that name, none for an empty one; InvalidArgumentError names those there are."""
        if not name:
            return NO_ADAPTER
        if self.adapters is None:
            raise InvalidArgumentError(
                f"There is no adapter {name!r:.100}: the model was loaded without any. Pass its directory as adapters."
            )
        return self.adapters.choose(name)

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
        if key.has_adapters:
            assert self.adapters is not None, "requests without adapters need no such graph"
            graph = self.adapters.add_to(graph, self.operators)
        if self.parallel is not None:
            graph = self.parallel.divide(graph)
        symbols = dict(self.compiled.plan.symbols)
        if key.part in _ROWS_OF_TEXT:
            symbols["R"] = max(symbols["R"], min(symbols["T"], _ROWS_OF_TEXT[key.part]))
        return compile_for(
            self.open_device,
            graph,
            self.operators,
            symbols,
            self.config.fallback,
            self.weight_formats,
            self.row_formats,
            fuse=fuse,
            packed={one.parameter: one.pack for one in self.compiled.plan.constants.values() if one.pack is not None},
        )


def compile_for(
    opened: OpenDevice,
    graph: Graph,
    operators: OperatorRegistry,
    symbols: Mapping[str, int],
    fallback: str,
    weight_formats: Mapping[str, WeightFormat],
    row_formats: Mapping[str, WeightFormat],
    *,
    fuse: bool = True,
    packed: Mapping[str, str] | None = None,
) -> Compiled:
    """Compile a graph for a device (see `compile_graph`); what its kernels leave to the reference is logged."""
    compiled = compile_graph(
        graph,
        operators,
        opened.dispatcher,
        opened.backend.name,
        symbols,
        fallback=Fallback(fallback),
        fuse=fuse,
        weight_formats=weight_formats,
        row_formats=row_formats,
        packed=packed,
    )
    if compiled.fallbacks and fallback == "warn":
        logger.warning(
            "%s has no kernel for %s; the NumPy reference computes them, slowly. Run `aethermind explain`.",
            opened.device,
            ", ".join(compiled.fallbacks),
        )
    return compiled
